"""What somebody else's model directory, folder or index may not do; docs/development/security.md says it to users."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import limba
from limba.cli import main
from limba.config import UntrustedModuleError
from limba.export import end_of_run
from limba.inference import source
from limba.tools.pages.play.play import Server

ROOT = Path(__file__).resolve().parents[2]
GOLDEN = ROOT / "tests" / "golden" / "run"
WRITES = "from pathlib import Path\n\nPath({!r}).write_text('code ran')\n"


@pytest.fixture
def workdir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The current directory: a run, and modules on Python's path that write a file when they are imported."""
    shutil.copytree(GOLDEN / "run", tmp_path / "run")
    shutil.copy(GOLDEN / "corpus.jsonl", tmp_path)
    (tmp_path / "pairs.jsonl").write_text('{"inputs": "a", "targets": "b"}\n')
    (tmp_path / "evil_module.py").write_text(WRITES.format(str(tmp_path / "ran")))
    (tmp_path / "evil_package").mkdir()
    (tmp_path / "evil_package" / "__init__.py").write_text(WRITES.format(str(tmp_path / "ran")))
    (tmp_path / "evil_package" / "tasks.py").write_text("")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    for name in ("evil_module", "evil_package", "evil_package.tasks"):
        sys.modules.pop(name, None)


def naming(workdir: Path, module: str, in_gin: bool) -> None:
    """Has the run name a module, in config.gin or in config.json."""
    file = workdir / "run" / "config.gin"
    if in_gin:
        file.write_text(f"import {module}\n{file.read_text()}")
        return
    document = json.loads((workdir / "run" / "config.json").read_text())
    document["run"]["data"]["task_modules"].append(module)
    (workdir / "run" / "config.json").write_text(json.dumps(document))


OF_GIN = [
    ["generate", "run", "--prompt=a", "--max_tokens=1", "--gin.BATCH_SIZE=16"],
    ["generate", "--gin_file=run/config.gin", "--checkpoint=run", "--prompt=a"],
    ["report", "--gin_file=run/config.gin"],
]
COMMANDS = [
    ["generate", "run", "--prompt=a", "--max_tokens=1"],
    ["generate", "run", "--input=corpus.jsonl", "--fields=text"],
    ["generate", "run", "--score", "--input=pairs.jsonl"],
    ["evaluate", "run"],
    ["evaluate", "run/checkpoints/10"],
]


@pytest.mark.parametrize("module", ["evil_module", "evil_package.tasks"])
@pytest.mark.parametrize(
    ("argv", "in_gin"), [*((argv, True) for argv in OF_GIN), *((argv, False) for argv in COMMANDS)]
)
def test_a_run_chooses_no_code(argv: list[str], in_gin: bool, module: str, workdir: Path, capsys) -> None:
    naming(workdir, module, in_gin)
    assert main.main(argv) == 2
    assert not (workdir / "ran").exists()
    (sentence,) = capsys.readouterr().err.splitlines()
    assert f"names the module '{module}'" in sentence and sentence.endswith(f" --import={module}")


@pytest.mark.parametrize(
    "argv", [["report", "run"], ["convert", "run", "out", "--no_check"], ["convert", "run", "--to=list"]]
)
def test_what_needs_no_task_imports_nothing(argv: list[str], workdir: Path, capsys) -> None:
    naming(workdir, "evil_module", in_gin=False)
    shutil.copy(GOLDEN / "whole" / "metrics.jsonl", workdir / "run")
    assert main.main([*argv, *(["--vocabulary=byte"] if argv[-1] == "--no_check" else [])]) == 0
    assert not (workdir / "ran").exists()


def test_the_documents_of_somebody_s_run_choose_no_code(workdir: Path, capsys) -> None:
    naming(workdir, "evil_module", in_gin=False)
    assert main.main(["inspect", "run", "--step=1"]) == 2
    assert not (workdir / "ran").exists()
    (sentence,) = capsys.readouterr().err.splitlines()
    assert sentence.endswith("if you trust who wrote it: limba inspect run --step=1 --import=evil_module")


@pytest.mark.parametrize("command", [["status", "run", "--verify"], ["status", "run"], ["play", "run"]], ids=str)
def test_looking_at_a_run_chooses_no_code(
    command: list[str], workdir: Path, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    naming(workdir, "evil_module", in_gin=False)
    monkeypatch.setattr(Server, "serve_forever", lambda *_, **__: None)
    assert main.main(command) in (0, 2)
    assert not (workdir / "ran").exists()
    assert len(capsys.readouterr().err.splitlines()) <= 1


def test_the_ready_command_runs_it(workdir: Path, capsys) -> None:
    naming(workdir, "evil_module", in_gin=False)
    argv = ["generate", "run", "--score", "--input=pairs.jsonl", "--output=out.jsonl"]
    assert main.main(argv) == 2
    command = capsys.readouterr().err.split("if you trust who wrote it: limba ")[1].split()
    assert command == [*argv, "--import=evil_module"]
    assert main.main(command) == 0
    assert (workdir / "ran").read_text() == "code ran"


def test_load_says_what_to_give(workdir: Path) -> None:
    naming(workdir, "evil_package.tasks", in_gin=False)
    with pytest.raises(UntrustedModuleError, match=r"give imports=\['evil_package.tasks'\]"):
        limba.load("run").prefix  # noqa: B018
    assert not (workdir / "ran").exists()
    assert limba.load("run", imports=["evil_package"]).prefix == ""
    assert (workdir / "ran").exists()


THEIRS = ("numpy", "jax", "jaxlib", "orbax", "google", "json", "gin", "seqio", "fsspec", "torch", "wandb", "logging")
LIMBA = [sys.executable, "-P", "-c", "import sys; from limba.cli import main; sys.argv[0] = 'limba'; main.script()"]


@pytest.mark.parametrize(
    "argv",
    [
        ["status", ".", "--verify"],
        *(pytest.param(argv, marks=pytest.mark.night) for argv in (
            ["report", "."], ["status", "."], ["preflight", "--environment"], ["convert", ".", "--to=list"],
            ["generate", ".", "--prompt=a", "--max_tokens=1", "--vocabulary=byte"],
        )),
    ],
)  # fmt: skip
def test_what_lies_beside_a_model_is_not_imported(argv: list[str], tmp_path: Path) -> None:
    """By the console script, which Python starts without the current folder on its path."""
    run = tmp_path / "theirs"
    ran = tmp_path / "ran"
    shutil.copytree(GOLDEN / "run", run)
    shutil.copy(GOLDEN / "whole" / "metrics.jsonl", run)
    code = f"from pathlib import Path\nPath({str(ran)!r}).write_text(__name__)\nraise SystemError(__name__)\n"
    for name in THEIRS:
        (run / f"{name}.py").write_text(code)
    for package in ("jax_plugins/theirs", "tasks", "torch"):  # jax imports all of jax_plugins/
        (run / package).mkdir(parents=True)
        (run / package / "__init__.py").write_text(code)
    (run / "theirs-1.0.dist-info").mkdir()
    (run / "theirs-1.0.dist-info" / "entry_points.txt").write_text("[jax_plugins]\ntheirs = jax_plugins.theirs\n")
    (run / "theirs-1.0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: theirs\nVersion: 1.0\n")
    ended = subprocess.run(
        [*LIMBA, *argv],
        cwd=run,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert not ran.exists(), ran.read_text()
    assert "Traceback" not in ended.stderr and ended.returncode in (0, 1, 2)


def test_a_users_own_tasks_are_found_in_the_current_folder(tmp_path: Path) -> None:
    (tmp_path / "tasks").mkdir()
    (tmp_path / "tasks" / "own.py").write_text("raise SystemExit(41)\n")
    (tmp_path / "numpy.py").write_text("raise SystemExit(42)\n")
    (tmp_path / "run.gin").write_text("from tasks import own\ninclude 'gin/demo.gin'\nMODEL_DIR = 'out'\n")
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    ended = subprocess.run([*LIMBA, "train", "run.gin"], cwd=tmp_path, env=environment, timeout=600)
    assert ended.returncode == 41


@pytest.mark.night
def test_the_token_of_the_hub_is_written_nowhere(workdir: Path, monkeypatch: pytest.MonkeyPatch, capfd) -> None:
    """Over a run of two steps, from a JSON that holds the token too, a conversion, a model card and generated text."""
    token = "hf_" + "SECRET" * 5
    monkeypatch.setenv("HF_TOKEN", token)
    monkeypatch.setattr(end_of_run, "PAUSES", (0.0, 0.0))  # of 70 seconds between attempts
    limba.load("run").save(workdir / "hf")
    settings = {"config_name": "hf", "tokenizer_name": "byte", "train_file": "corpus.jsonl", "output_dir": "out"}
    settings |= {
        "max_steps": 2,
        "max_seq_length": 64,
        "per_device_train_batch_size": 1,
        "save_steps": 2,
        "logging_steps": 1,
    }
    (workdir / "a.json").write_text(json.dumps({**settings, "hub_token": token, "token": token, "push_to_hub": True}))
    assert main.main(["train", "a.json"]) == 74  # trained and saved; the hub cannot be reached to push
    (workdir / "a.json").unlink()
    assert main.main(["convert", "out", "--push=somebody/name", "--dry_run", "--no_check"]) == 0
    assert main.main(["generate", "out", "--prompt=a", "--max_tokens=2"]) == 0
    assert main.main(["generate", "somebody/name", "--prompt=a"]) == 2  # the hub cannot be reached
    printed = capfd.readouterr()
    files = [path for path in workdir.rglob("*") if path.is_file()]
    assert len(files) > 20 and "out/checkpoints" in " ".join(map(str, files))
    assert not [path for path in files if token.encode() in path.read_bytes()]
    assert token not in printed.out + printed.err


def test_tasks_inside_the_model_are_not_ours(workdir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    theirs = workdir / "run" / "tasks"
    theirs.mkdir()
    source.check_imports(["tasks.demo"], "run", directory=str(workdir / "run"))
    import tasks

    monkeypatch.setattr(tasks, "__path__", [*tasks.__path__, str(theirs)])  # as in a shell that stands in the run
    with pytest.raises(UntrustedModuleError, match="of a folder inside the model's own"):
        source.check_imports(["tasks.demo"], "run", directory=str(workdir / "run"))
    source.check_imports(["tasks.demo"], "run", ["tasks"], str(workdir / "run"))
    monkeypatch.delitem(sys.modules, "tasks")
    (theirs / "__init__.py").write_text("")
    monkeypatch.syspath_prepend(str(workdir / "run"))
    with pytest.raises(UntrustedModuleError):
        source.check_imports(["tasks.demo"], "run", directory=str(workdir / "run"))
