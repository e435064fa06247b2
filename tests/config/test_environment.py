"""Only TensorFlow's start-up notes are kept off stderr, whatever else happens."""

import importlib.util
import os
import subprocess
import sys

import pytest

from benchmarks.card import DETERMINISTIC
from limba.cli.main import check_accelerator
from limba.config import InputError, environment

NOTE = b"I0000 00:00:1795220775.415077    8474 port.cc:153] oneDNN custom operations are on.\n"
FIRST = b"WARNING: All log messages before absl::InitializeLog() is called are written to STDERR\n"


def test_chatter_is_dropped_and_the_rest_passed_on(capfd: pytest.CaptureFixture[str]) -> None:
    with environment.quiet_imports():
        os.write(2, FIRST + NOTE + b"E0000 00:00:1.5 1 a.cc:1] broken\nIt matters.\n")
    os.write(2, NOTE)
    assert capfd.readouterr().err == "E0000 00:00:1.5 1 a.cc:1] broken\nIt matters.\n" + NOTE.decode()


def test_what_was_written_before_an_error_is_passed_on(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ImportError), environment.quiet_imports():
        os.write(2, NOTE + b"It matters.\n")
        raise ImportError
    assert capfd.readouterr().err == "It matters.\n"


def test_the_user_s_variables_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in environment.VARIABLES:
        monkeypatch.setenv(name, "mine")
    environment.set_variables()
    assert {os.environ[name] for name in environment.VARIABLES} == {"mine"}


def test_the_script_says_whether_this_is_a_cloud_tpu() -> None:
    done = subprocess.run([sys.executable, environment.__file__], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0 if environment.is_tpu_vm() else 1, "", "")


def test_a_last_sentence_is_seen_while_imports_are_quiet() -> None:
    program = (
        "from limba.config import environment\n"
        "with environment.quiet_imports(): print('kept'); environment.end_now('The end.', 130)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (130, "kept\n", "The end.\n")


PINNED = """
import os
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
from limba.config import environment
from limba.data.stream.ahead import num_threads
print(environment.num_cores(), num_threads(num_shards=16))
"""


def test_cores_are_those_that_this_process_may_use() -> None:
    """A job of four cores on a node of 128 does not read with 256 threads."""
    assert subprocess.check_output([sys.executable, "-c", PINNED], text=True) == "1 2\n"


def test_flags_for_gpus_are_known_to_xla_and_the_users_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    """XLA ends a process whose XLA_FLAGS has a flag that it does not know."""
    for name in (environment.GPU_FLAGS_SWITCH, environment.GPU_MEMORY[0]):
        monkeypatch.delenv(name, raising=False)
    flag = environment.GPU_XLA_FLAG
    users = f"--xla_force_host_platform_device_count=2 {DETERMINISTIC}"  # as docs/gpus.md has it for exact resumption
    monkeypatch.setenv("XLA_FLAGS", users)
    environment.set_gpu_flags()
    assert os.environ["XLA_FLAGS"] == f"{users} {flag}=true"
    assert os.environ["XLA_PYTHON_CLIENT_MEM_FRACTION"] == "0.9"
    program = "import jax; print(jax.device_count())"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (0, "2\n"), done.stderr

    monkeypatch.setenv("XLA_FLAGS", f"{flag}=false")
    monkeypatch.setenv("XLA_PYTHON_CLIENT_MEM_FRACTION", "0.5")
    environment.set_gpu_flags()
    assert (os.environ["XLA_FLAGS"], os.environ["XLA_PYTHON_CLIENT_MEM_FRACTION"]) == (f"{flag}=false", "0.5")
    monkeypatch.setenv("XLA_FLAGS", "")
    monkeypatch.setenv(environment.GPU_FLAGS_SWITCH, "0")
    environment.set_gpu_flags()
    assert os.environ["XLA_FLAGS"] == ""


@pytest.mark.parametrize(
    ("variables", "number"),
    [
        ({"CUDA_VISIBLE_DEVICES": "0,1,5"}, 3),
        ({"CUDA_VISIBLE_DEVICES": ""}, 0),
        ({"CUDA_VISIBLE_DEVICES": "-1"}, 0),
        ({"CUDA_VISIBLE_DEVICES": "GPU-8f2a,MIG-3"}, 2),
        ({"ROCR_VISIBLE_DEVICES": "0,1"}, 2),
    ],
)
def test_visible_gpus_are_counted(variables: dict[str, str], number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert environment.num_gpus() == number


@pytest.mark.parametrize(
    ("here", "part", "words"),
    [
        ("/dev/nvidia0", "cuda", "an NVIDIA GPU"),
        ("amd", "rocm", "an AMD GPU"),
        ("tpu", "tpu", "a Cloud TPU"),
        ("", "", ""),
    ],
)
def test_an_accelerator_without_its_packages_is_named(
    here: str, part: str, words: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("JAX_PLATFORMS", "CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(environment, "glob", lambda pattern: [here] if here.startswith("/dev") else [])
    monkeypatch.setattr(environment, "num_amd_gpus", lambda: int(here == "amd"))
    monkeypatch.setattr(environment, "is_tpu_vm", lambda: here == "tpu")
    real = importlib.util.find_spec
    absent = ("jax_cuda", "jax_rocm", "libtpu")
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name.startswith(absent) else real(name, *rest)
    )
    if not here:
        assert environment.accelerator_without_packages() is None
        return
    assert environment.accelerator_without_packages() == (words, part)
    with pytest.raises(InputError, match=f"This machine has {words}.*bash launch/setup.sh {part}, or set JAX_PL"):
        check_accelerator("train")
    check_accelerator("generate")
    assert capsys.readouterr().err.startswith(f"This machine has {words}, and jax's packages for it are not installed")
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    check_accelerator("train")
    monkeypatch.delenv("JAX_PLATFORMS")
    monkeypatch.setattr(importlib.util, "find_spec", lambda *_: object())
    check_accelerator("train")
