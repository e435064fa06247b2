"""launch/demo.sh: its commands in order, what it starts again, when it is done. test_readme.py runs it whole."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import readme
from tests.terminal import shown_on

ROOT = Path(__file__).resolve().parents[2]
# Stands for Python: writes each call to the file `calls`, and ends the first training as the file `status` says, with 2
# before it has learned anything.
PROGRAM = """#!/bin/sh
echo "$*" >>"$HERE/calls"
case "$*" in
  *demo_gaps.gin*)
    status=0
    if [ -s "$HERE/status" ]; then
      read -r status <"$HERE/status"
      : >"$HERE/status"
    fi
    mkdir -p "$MODEL_DIR/checkpoints"
    if [ "$status" -ne 2 ]; then : >"$MODEL_DIR/${MADE:-vocabulary.model}"; fi
    exit "$status"
    ;;
esac
"""


@pytest.fixture
def workdir(tmp_path: Path) -> Path:
    """The scripts' own text, in a folder whose setup does nothing and whose Python is the small program."""
    shutil.copytree(ROOT / "launch", tmp_path / "launch")
    (tmp_path / "launch" / "setup.sh").write_text("exit 0\n")
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    python = tmp_path / ".venv" / "bin" / "python"
    python.write_text(PROGRAM)
    python.chmod(0o755)
    return tmp_path


def demo(
    workdir: Path, *arguments: str, here: Path | None = None, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Runs launch/demo.sh in the folder `here`, or in the clone."""
    kept = {name: value for name, value in os.environ.items() if name not in ("MODEL_DIR", "CORPUS", "STEPS")}
    environment = {**kept, "HERE": str(workdir), "RETRY_SECONDS": "0", **variables}
    return subprocess.run(
        ["bash", str(workdir / "launch" / "demo.sh"), *arguments], cwd=here or workdir, env=environment,
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip


def calls(workdir: Path) -> list[str]:
    lines = (workdir / "calls").read_text().replace(f"{workdir}/", "").splitlines()
    (workdir / "calls").unlink()
    return lines


def test_each_step_is_a_public_command(workdir: Path) -> None:
    done = demo(workdir)
    assert done.returncode == 0, done.stderr
    run = "runs/demo"
    corpus_flags = f"--gin.CORPUS={run}/corpus.jsonl --gin.VOCABULARY={run}/vocabulary.model"
    assert calls(workdir) == [
        f"-P -m tasks.demo {run}/corpus.jsonl",
        f"-m limba train gin/demo_gaps.gin --gin.MODEL_DIR={run} {corpus_flags}",
        f"-m limba evaluate {run}",
        f"-m limba convert {run}",
        f"-m limba train gin/demo_spaces.gin --gin.MODEL_DIR={run}/spaces --gin.CORPUS={run}/corpus.jsonl",
    ]
    assert f"limba play {run} " in done.stdout


def test_started_again_it_says_that_it_is_done_unless_it_is_asked_for_more(workdir: Path) -> None:
    assert demo(workdir, STEPS="20").returncode == 0
    calls(workdir)
    again = demo(workdir, STEPS="20")
    assert again.returncode == 0 and again.stdout.startswith("The demo is done: runs/demo\n")
    assert "limba report" in again.stdout and not (workdir / "calls").exists()
    assert demo(workdir, "--gin.DTYPE=bfloat16", STEPS="40").returncode == 0
    gaps, spaces = [call for call in calls(workdir) if "limba train" in call]
    assert gaps.endswith("--gin.TRAIN_STEPS=40 --gin.DTYPE=bfloat16") and "demo_gaps.gin" in gaps
    assert spaces.endswith("--gin.TRAIN_STEPS=40") and "demo_spaces.gin" in spaces


@pytest.mark.parametrize(
    ("arguments", "steps", "says"),
    [
        (["--gin.MODEL_DIR=a"], "", "--gin.MODEL_DIR=a names what both trainings share; write MODEL_DIR=… before"),
        (["--gin.CORPUS=a"], "", "--gin.CORPUS=a names what both trainings share; write CORPUS=… before"),
        (["--gin.TRAIN_STEPS=3"], "20", "STEPS and --gin.TRAIN_STEPS=3 both say how many steps; give one of them."),
        (["--steps=3"], "", "the argument --steps=3 is not known; give --gin.NAME=VALUE, or see --help."),
    ],
)
def test_a_flag_that_means_no_one_thing_is_refused(arguments: list[str], steps: str, says: str, workdir: Path) -> None:
    done = demo(workdir, *arguments, STEPS=steps)
    assert (
        done.returncode == 2 and done.stderr.startswith(f"launch/demo.sh: {says}") and not (workdir / "calls").exists()
    )
    assert done.stderr.count("\n") == 1 and done.stdout == ""


@pytest.mark.parametrize(("status", "starts", "ends"), [(75, 2, 0), (2, 1, 2), (130, 1, 130)])
def test_a_run_that_ends_early_is_started_again_or_ends_the_demo(
    status: int, starts: int, ends: int, workdir: Path
) -> None:
    (workdir / "status").write_text(f"{status}\n")
    assert demo(workdir).returncode == ends
    made = calls(workdir)
    assert len([call for call in made if "demo_gaps.gin" in call]) == starts
    assert any("limba evaluate" in call for call in made) is (ends == 0)


def test_a_text_of_one_s_own_has_a_folder_of_its_own(workdir: Path) -> None:
    assert demo(workdir, CORPUS="my texts/*.txt").returncode == 0
    made = calls(workdir)
    (folder,) = (workdir / "runs").iterdir()
    assert re.fullmatch(r"demo-\d+", folder.name) and "--gin.CORPUS=my texts/*.txt" in made[0]
    assert not any("tasks.demo" in call or "demo_spaces" in call for call in made)


def test_a_pattern_is_another_text_in_another_folder(workdir: Path) -> None:
    a = workdir / "a"
    b = workdir / "b"
    a.mkdir()
    b.mkdir()
    (b / "b.txt").write_text("text")
    for folder, number in ((a, 1), (b, 2)):
        assert demo(workdir, here=folder, CORPUS="*.txt").returncode == 0
        assert f"--gin.CORPUS={folder.name}/*.txt " in calls(workdir)[0]
        assert len([*(workdir / "runs").iterdir()]) == number
    assert demo(workdir, here=b, CORPUS="*.txt").stdout.startswith("The demo is done: ")
    assert demo(workdir, here=a, CORPUS=f"{b}/*.txt").stdout.startswith("The demo is done: ")
    assert not (workdir / "calls").exists()
    for name in ("user/name", "gs://bucket/*.txt", "['*.txt', 'b.txt']", "~/text/*.txt"):  # the same in each folder
        assert demo(workdir, here=b, CORPUS=name).returncode == 0
        assert f"--gin.CORPUS={name} " in calls(workdir)[0]
    assert demo(workdir, here=b, CORPUS="b.txt").returncode == 0
    assert "--gin.CORPUS=b/b.txt " in calls(workdir)[0]


@pytest.mark.parametrize("made", ["vocabulary.model", "checkpoints/10"])  # VOCABULARY=byte makes no vocabulary
@pytest.mark.parametrize("ends", ["done", "interrupted"])
def test_a_folder_learns_from_one_text(ends: str, made: str, workdir: Path) -> None:
    if ends == "interrupted":
        (workdir / "status").write_text("130\n")
    run = str(workdir / "run")
    first = demo(workdir, CORPUS="a/*.txt", MODEL_DIR=run, MADE=made)
    assert first.returncode == (0 if ends == "done" else 130)
    calls(workdir)
    done = demo(workdir, CORPUS="nowhere/*.csv", MODEL_DIR="run")  # the same folder
    assert done.returncode == 2 and done.stdout == "" and not (workdir / "calls").exists()
    assert done.stderr == (
        f"launch/demo.sh: run learned from {workdir}/a/*.txt, and not from {workdir}/nowhere/*.csv; give another folder"
        " by MODEL_DIR, or that text again.\n"
    )
    done = demo(workdir, MODEL_DIR=run)
    assert done.returncode == 2 and "and not from Python's documentation; give another" in done.stderr
    assert demo(workdir, CORPUS="a/*.txt", MODEL_DIR=run).returncode == 0


def test_a_mistyped_text_keeps_no_folder_from_another(workdir: Path) -> None:
    (workdir / "status").write_text("2\n")
    assert demo(workdir, CORPUS="b/*.txt", MODEL_DIR="run").returncode == 2
    done = demo(workdir, CORPUS="a/*.txt", MODEL_DIR="run")
    assert done.returncode == 0, done.stderr
    done = demo(workdir, CORPUS="b/*.txt", MODEL_DIR="run")
    assert done.returncode == 2 and f"run learned from {workdir}/a/*.txt, and not from" in done.stderr


def test_what_to_type_next_can_be_typed_where_a_path_has_a_space(workdir: Path) -> None:
    printed = demo(workdir, MODEL_DIR=str(workdir / "my run"), here=workdir / "launch").stdout
    commands = [line for line in printed.splitlines() if "my" in line]
    assert [shlex.split(line)[2] for line in commands[:2]] == [f"{workdir}/my run"] * 2


@pytest.mark.slow
def test_the_demo_s_text_is_the_clone_s_in_any_folder(tmp_path: Path) -> None:
    """A real Python reads the clone's tasks/, beside another tasks/ in the folder where the scripts are called."""
    python = tmp_path / "environment" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(f'#!/bin/sh\ncase "$*" in *limba*) exit ;; esac\nexec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    clone = tmp_path / "clone"
    for name in ("launch", "tasks", "limba"):
        shutil.copytree(ROOT / name, clone / name, ignore=shutil.ignore_patterns("__pycache__"))
    (clone / "launch" / "setup.sh").write_text("exit 0\n")
    (clone / ".venv").symlink_to(tmp_path / "environment")
    (tmp_path / "here" / "tasks").mkdir(parents=True)
    (tmp_path / "here" / "tasks" / "__init__.py").write_text("")
    done = demo(clone, here=tmp_path / "here", MODEL_DIR="run")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "here" / "run" / "corpus.jsonl").stat().st_size > 100_000
    simulated = subprocess.run(
        ["bash", str(clone / "launch" / "simulate.sh"), "1", "gin/demo.gin", "MODEL_DIR=simulated"],
        cwd=tmp_path / "here", env={**os.environ, "RETRIES": "0"}, capture_output=True, text=True, timeout=100,
        check=False,
    )  # fmt: skip
    assert simulated.returncode == 0, simulated.stderr
    assert (tmp_path / "here" / "simulated" / "corpus.jsonl").stat().st_size > 100_000


def test_a_bucket_is_refused(workdir: Path) -> None:
    done = demo(workdir, MODEL_DIR="gs://bucket/demo")
    assert done.returncode == 2 and not (workdir / "calls").exists()
    assert done.stderr == (
        "launch/demo.sh: MODEL_DIR is gs://bucket/demo; the demo writes to a local directory, so give one.\n"
    )


def test_help_names_the_variables_and_what_flags_are_for(workdir: Path) -> None:
    shown = demo(workdir, "--help").stdout
    assert "--gin.NAME=VALUE is for the training on gaps alone" in shown and shown.endswith("it is done.\n")
    assert all(name in shown for name in ("CORPUS", "STEPS", "MODEL_DIR", "bash launch/demo.sh"))
    assert not (workdir / "calls").exists()


@pytest.mark.night
def test_a_terminal_shows_25_rows_and_one_line_of_progress(tmp_path: Path) -> None:
    """Of real trainings: as many steps as the recipe's rate is known for, on few rows."""
    shutil.copytree(ROOT / "launch", tmp_path / "launch")
    (tmp_path / "launch" / "setup.sh").write_text("exit 0\n")
    python = tmp_path / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    kept = {name: value for name, value in os.environ.items() if name not in ("MODEL_DIR", "CORPUS")}
    environment = {**kept, "PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu", "XLA_FLAGS": "", "STEPS": "300"}
    command = ["bash", "launch/demo.sh", "--gin.BATCH_SIZE=8", "--gin.EVAL_PERIOD=150"]
    status, drawn, rows = shown_on(command, tmp_path, environment, columns=readme.COLUMNS)
    assert status == 0, rows
    assert re.search(r"\rtraining [^\r\n]*300/300", drawn) and not any("tokens/s" in row for row in rows)
    assert len(rows) <= readme.MOST_ROWS, rows
    assert [row[:5] for row in rows[-5:]] == ["Next:", *["  lim"] * 4]
