"""What processes compare, and how an error of one ends all: with threads for processes, then real ones."""

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from jax._src.lib import _jax  # pyright: ignore[reportPrivateImportUsage]

from limba.config import InputError, RestartError, StorageError
from limba.sharding import agreement, consistency
from tests.sharding.processes import free_port, xla_flags

ROOT = Path(__file__).resolve().parents[2]
GIVEN = re.compile(r"^\[(?!Gloo).*", re.MULTILINE)  # a process's own lines, not its libraries'
JOINED = re.compile(r"^process \d of 2 on .*\n", re.MULTILINE)  # which each process prints once


class Processes(threading.local):
    """The state of jax.distributed: each thread is a process."""

    client: Any = None
    num_processes = None
    process_id = 0


@pytest.fixture
def in_processes(monkeypatch: pytest.MonkeyPatch) -> Callable:
    """Returns a function that calls `work(process)` in that many threads, and returns what each gives or raises.

    They are joined by jax's own service, each with a client of its own.
    """
    state = Processes()
    monkeypatch.setattr(agreement.distributed, "global_state", state)

    def run(num: int, work: Callable[[int], object]) -> list[object]:
        address = f"127.0.0.1:{free_port()}"
        results = [None] * num
        service = _jax.get_distributed_runtime_service(address, num)

        def one(process: int) -> None:
            client = _jax.get_distributed_runtime_client(address, process, init_timeout=60)
            client.connect()
            state.client = client
            state.num_processes = num
            state.process_id = process
            try:
                results[process] = work(process)
            except Exception as error:  # noqa: BLE001  compared by the test
                results[process] = error
            client.shutdown()

        threads = [threading.Thread(target=one, args=(process,)) for process in range(num)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
            assert not thread.is_alive(), "nothing hangs"
        service.shutdown()
        return results

    return run


@pytest.mark.parametrize("num", [2, 3])
def test_all_processes_end_with_the_same_sentence(in_processes: Callable, num: int) -> None:
    facts = {"a": "1", **{f"part {number:06}": "" for number in range(50_000)}}  # more than one message holds
    assert in_processes(num, lambda process: consistency.check_alike(lambda: facts)) == [None] * num

    def differing(process: int) -> None:
        consistency.check_alike(lambda: {**facts, "a": "2"} if process == 1 else facts)

    errors = in_processes(num, differing)
    assert all(isinstance(error, InputError) for error in errors)
    (said,) = {str(error) for error in errors}
    assert "process 1 has a 2, process 0 has 1;" in said


def test_an_error_of_one_ends_all_with_its_exit_status(in_processes: Callable) -> None:
    def work(error: Exception | None) -> Callable[[int], None]:
        def one(process: int) -> None:
            with agreement.together():
                if process == 1 and error:
                    raise error

        return one

    assert in_processes(3, work(None)) == [None] * 3
    for raised, kind, part in (
        (InputError("The file x is bad; mend it."), InputError, "Process 1 cannot go on: The file x is bad; mend it."),
        (StorageError("Full."), StorageError, "Full."),
        (OSError(28, "No space left"), StorageError, "Process 1 cannot go on: OSError, No space left; its own output"),
        (PermissionError(13, "no"), StorageError, "Process 1 cannot go on: PermissionError, no; its own output"),
        (ConnectionResetError(104, "reset"), StorageError, "Process 1 cannot go on: ConnectionResetError, reset; "),
        (KeyError("bug"), InputError, "Process 1 cannot go on: KeyError, 'bug'; its own output says more."),
    ):
        first, of_second, other = in_processes(3, work(raised))
        assert of_second is raised
        assert type(first) is type(other) is kind and part in str(first) and str(first) == str(other)


def test_one_that_does_not_come_is_named(in_processes: Callable) -> None:
    failed = ValueError("own")

    def work(process: int) -> None:
        if process == 2:
            return
        with agreement.together(0.3):
            if process == 1:
                raise failed

    first, of_second, _ = in_processes(3, work)
    assert isinstance(first, RestartError) and str(first).startswith(
        "Process 2 gave no answer within 0 s: it has ended"
    )
    assert of_second is failed  # its own error says more than that another is missing

    def without_first(process: int) -> None:
        if process:
            agreement.of_first("x", 0.1)

    _, other = in_processes(2, without_first)
    assert isinstance(other, RestartError) and str(other).startswith(
        "Process 0 gave no answer within 0 s: it has ended"
    )


def test_one_that_comes_late_is_told_so(in_processes: Callable) -> None:
    waited = threading.Barrier(2)

    def work(process: int) -> None:
        if process:
            waited.wait(60)
        try:
            agreement.gather_texts("late", str(process), 0.2)
        finally:
            if not process:
                waited.wait(60)

    first, late = in_processes(2, work)
    assert isinstance(first, TimeoutError) and str(first) == "process 1 gave no answer within 0 s"
    assert isinstance(late, TimeoutError) and str(late) == "this process gave no answer within 0 s"


def test_what_is_gathered_is_not_kept(in_processes: Callable) -> None:
    """A run of weeks gathers the data positions at each of its saves."""

    def work(process: int) -> tuple[dict[int, bytes], int]:
        for number in range(3):
            parts = agreement.gather_bytes({process: bytes([number, 255])})
        agreement.gather_texts("done", "")
        return parts, len(
            [key for key, _ in agreement.service().key_value_dir_get("limba/bytes/") if "call" not in key]
        )

    expected = {0: b"\x02\xff", 1: b"\x02\xff"}
    assert in_processes(2, work) == [(expected, 2)] * 2


def test_the_first_process_says(in_processes: Callable) -> None:
    assert in_processes(3, lambda process: agreement.of_first(f"of {process}")) == ["of 0"] * 3
    assert in_processes(1, lambda process: agreement.of_first("alone")) == ["alone"]


# Starts each run of a list, one after the other, and prints the exit statuses; without `ending_together`, which would
# end the processes with the first run.
SEVERAL = """
import json, os, sys
from limba.config import environment
environment.set_variables()
from limba.cli import program
from limba.config import errors
from limba.cli.flags import parse_args
from limba.sharding import joining
with environment.quiet_imports():
    from limba.run import train
    from limba.training import checks
def run(arguments):
    given = parse_args(arguments)
    with errors.named(given.names):
        train(given.config, given.text)
joining.join_hosts()
checks.SEEN_SECONDS = 2.0
codes = []
for place, arguments in json.loads(sys.argv[1]):
    os.chdir(place)
    job = run if arguments[0].startswith("--") else lambda found: checks.check_shared(found[0])
    codes.append(program.exit_code(job, arguments))
    print("---", file=sys.stderr)
print(json.dumps(codes))
"""


def two(runs: list[list], roots: tuple[Path, Path] = (ROOT, ROOT)) -> list[tuple[list[int], list[str]]]:
    """Returns each process's exit statuses and what it said of each run; `runs` are (process 0's, process 1's)."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    started = []
    for index, root in enumerate(roots):
        variables = {
            **os.environ,
            "JAX_PLATFORMS": "cpu",
            "XLA_FLAGS": xla_flags(),
            "PYTHONPATH": str(root),
            "COORDINATOR_ADDRESS": address,
            "NUM_PROCESSES": "2",
            "PROCESS_ID": str(index),
        }
        started.append(
            subprocess.Popen(
                [sys.executable, "-c", SEVERAL, json.dumps([pair[index] for pair in runs])],
                env=variables,
                cwd=root,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
    outputs = [process.communicate(timeout=300) for process in started]
    return [
        (json.loads(GIVEN.findall(printed)[-1]), [part.strip() for part in JOINED.sub("", errors).split("---\n")[:-1]])
        for printed, errors in outputs
    ]


# One path on all hosts, another folder on each, in the process's current directory.
HERE = "/proc/self/cwd/corpus"


@pytest.fixture
def arguments(vocabulary: Path, tmp_path: Path) -> list[str]:
    return [
        "--gin_file=gin/demo.gin",
        f"--gin.VOCABULARY={vocabulary}",
        f"--gin.CORPUS={HERE}/*.jsonl",
        f"--gin.MODEL_DIR={tmp_path / 'run'}",
        "--gin.VOCAB_SIZE=1024",
        "--gin.BATCH_SIZE=8",
        "--gin.TASK_FEATURE_LENGTHS={'inputs': 48}",
        "--gin.TRAIN_STEPS=2",
    ]


@pytest.mark.night
def test_two_processes_that_differ_end_before_anything_is_compiled(
    arguments: list[str], corpus: Path, vocabulary: Path, tmp_path: Path
) -> None:
    """Each run varies one thing; the other process has it right."""
    places = {}
    for name in ("right", "more", "other"):
        places[name] = tmp_path / name
        shutil.copytree(corpus.parent, places[name] / "corpus", ignore=lambda *_: {"vocabulary.model", "run"})
    shutil.copy(corpus, places["more"] / "corpus" / "more.jsonl")
    text = (places["other"] / "corpus" / corpus.name).read_bytes()
    (places["other"] / "corpus" / corpus.name).write_bytes(text.replace(b"Python", b"python", 1))  # the same size
    model = vocabulary.read_bytes()
    (tmp_path / "same.model").write_bytes(model)
    (tmp_path / "other.model").write_bytes(model.replace("▁the".encode(), "▁teh".encode(), 1))
    right = (str(places["right"]), arguments)
    runs = [
        (right, (right[0], [*arguments, "--gin.LEARNING_RATE=0.1"])),
        (right, (right[0], [*arguments, f"--gin.VOCABULARY={tmp_path / 'other.model'}"])),
        (right, (str(places["more"]), arguments)),
        (right, (str(places["other"]), arguments)),
        (right, (right[0], [*arguments, f"--gin.VOCABULARY={tmp_path / 'absent.model'}"])),
        ((right[0], [*arguments, f"--gin.MODEL_DIR={tmp_path / 'a'}"]), right),
        ((right[0], [str(tmp_path / "a")]), (right[0], [str(places["right"])])),  # check_shared alone
        (right, (right[0], [*arguments, f"--gin.VOCABULARY={tmp_path / 'same.model'}"])),  # another path, equal bytes
    ]
    (tmp_path / "a").mkdir()
    first, second = two(runs)
    assert first[0] == second[0] == [2] * 7 + [0], (first, second)
    said = [
        "process 1 has LEARNING_RATE 0.1, process 0 has 1.0",
        "process 1 has the vocabulary of demo_span_corruption's inputs with content sentencepiece",
        f"process 1 has the corpus part {HERE}/more.jsonl",
        f"process 1 has the file {HERE}/corpus.jsonl of demo_span_corruption with content",
        "The vocabulary " + str(tmp_path / "absent.model") + " does not exist",
        f"process 1 has MODEL_DIR '{tmp_path / 'run'}', process 0 has '{tmp_path / 'a'}'",
        "process 1 does not see what process 0 writes",
    ]
    for part, of_first, other in zip(said, first[1], second[1], strict=False):
        assert part in of_first and part in other, (of_first, other)
        assert of_first.count("\n") == 0
    assert (tmp_path / "run" / "checkpoints" / "2").exists()


@pytest.mark.night
def test_two_processes_with_other_code_end_with_the_file_s_name(arguments: list[str], tmp_path: Path) -> None:
    roots = (tmp_path / "one", tmp_path / "two")
    for root in roots:
        for folder in ("limba", "launch", "tasks", "gin"):
            shutil.copytree(ROOT / folder, root / folder)  # compiled modules too, or each start would compile them
    step = roots[1] / "limba" / "training" / "step.py"
    step.write_text(step.read_text() + "# one line more\n")
    (first, second) = two([tuple((str(root), arguments) for root in roots)], roots)
    assert first[0] == second[0] == [2]
    assert first[1] == second[1]
    assert "process 1 has limba/training/step.py with content" in first[1][0]
    assert not (tmp_path / "run" / "checkpoints").exists()
