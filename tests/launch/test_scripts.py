"""Scripts of single runs say what they need and show their own help; convert.sh finds the newest run."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PUBLISHED = ("ro_base.sh", "ro_large.sh", "ro_mt5_base.sh", "ro_mt5_large.sh")


def started(
    script: str, *arguments: str, folder: Path = ROOT, here: Path | None = None, **variables: str
) -> subprocess.CompletedProcess:
    kept = {name: value for name, value in os.environ.items() if name not in ("MODEL_DIR", "VOCABULARY", "CORPUS")}
    return subprocess.run(
        ["bash", str(folder / script), *arguments], env={**kept, **variables}, capture_output=True, text=True,
        timeout=60, check=False, cwd=here,
    )  # fmt: skip


@pytest.mark.parametrize("script", [*PUBLISHED, "en_ms.sh", "ro_diacritics.sh", "pretrain.sh"])
def test_help_is_the_scripts_own(script: str) -> None:
    shown = started(f"launch/{script}", "--help")
    comments = [line[2:] for line in (ROOT / "launch" / script).read_text().splitlines() if line.startswith("# ")]
    assert (
        shown.returncode == 0
        and shown.stdout.splitlines()[0] == comments[0]
        and f"bash launch/{script}" in shown.stdout
    )


@pytest.mark.parametrize(
    ("command", "says"),
    [
        ("launch/pretrain.sh", "no gin file is given"),
        ("launch/pretrain.sh gin/demo.gin steps", "the argument steps is not known"),
        ("launch/pretrain.sh gin/demo.gin ACCELERATOR=gpu", "ACCELERATOR is gpu"),
        ("launch/pretrain.sh gin/demo.gin ACCELERATOR=cpu SETUP=maybe", "SETUP is maybe; give yes or no"),
        ("launch/setup.sh gpu", "the argument gpu is not known"),
        ("launch/simulate.sh none gin/demo.gin", "the number of processes is none"),
        ("launch/slurm.sh", "no gin file is given"),
        ("launch/pod.sh start my-pod", "start is not known"),
        ("launch/ja_lm.sh", "MODEL_DIR is not set"),
        ("launch/encoder.sh", "MODEL_DIR is not set"),
        ("launch/en_ms.sh steps", "the argument steps is not known"),
        ("launch/ro_diacritics.sh steps", "the argument steps is not known"),
    ],
)
def test_a_mistake_ends_every_script_with_2(command: str, says: str) -> None:
    script, *arguments = command.split()
    done = started(script, *arguments)
    assert done.returncode == 2 and done.stderr.count("\n") == 1 and says in done.stderr, done.stderr


@pytest.mark.parametrize("status", [0, 1, 2, 3, 74, 75, 130])
@pytest.mark.parametrize("script", ["convert/convert.sh runs/x", "launch/demo.sh", "launch/pretrain.sh gin/demo.gin"])
def test_every_script_ends_with_the_command_s_status(script: str, status: int, tmp_path: Path) -> None:
    """With the scripts' own text, where setup does nothing, and a Python that ends with the status."""
    for folder in ("launch", "convert"):
        shutil.copytree(ROOT / folder, tmp_path / folder)
    (tmp_path / "launch" / "setup.sh").write_text("exit 0\n")
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    python = tmp_path / ".venv" / "bin" / "python"
    python.write_text(f"#!/bin/sh\nexit {status}\n")
    python.chmod(0o755)
    name, *arguments = script.split()
    done = started(name, *arguments, folder=tmp_path, RETRIES="0", ACCELERATOR="cpu", MODEL_DIR=str(tmp_path / "run"))
    assert done.returncode == status, done.stderr


# Its setup.sh makes an environment where VENV says, with a Python that shows how it was called.
SETS_UP = """[ -n "$VENV" ] || exit 0
mkdir -p "$VENV/bin"
printf '#!/bin/sh\\ncase $1 in -c) exec {python} "$@" ;; esac\\necho "$0 $*"\\n' >"$VENV/bin/python"
chmod +x "$VENV/bin/python"
"""


@pytest.mark.parametrize("as_argument", [True, False])
@pytest.mark.parametrize(
    ("script", "command"),
    [
        ("pretrain.sh gin/demo.gin", "train gin/demo.gin"),
        ("preflight.sh gin/demo.gin", "preflight gin/demo.gin"),
        ("simulate.sh 1 gin/other.gin", "train gin/other.gin"),
    ],
)
def test_the_environment_is_where_venv_says(script: str, command: str, as_argument: bool, tmp_path: Path) -> None:
    """As NAME=VALUE too, and not as a name of the gin file, which has none of this name."""
    shutil.copytree(ROOT / "launch", tmp_path / "launch")
    (tmp_path / "launch" / "setup.sh").write_text(SETS_UP.format(python=sys.executable))
    name, *arguments = script.split()
    variables = {"RETRIES": "0", "ACCELERATOR": "cpu", "MODEL_DIR": str(tmp_path / "run"), "SETUP": "yes"}
    if as_argument:
        arguments.append("VENV=mine/venv")
    else:
        variables["VENV"] = "mine/venv"
    done = started(f"launch/{name}", *arguments, folder=tmp_path, here=tmp_path, **variables)
    assert done.returncode == 0, done.stderr
    assert f"mine/venv/bin/python -m limba {command} " in done.stdout and "gin.VENV" not in done.stdout, done.stdout


# Gin files whose VOCABULARY is in a bucket of the published run's authors, and scripts that name them.
NEED_A_VOCABULARY = re.compile(r"gin/ro_(t5x|fast)_\w+\.gin|launch/ro_(base|large)\.sh")
COMMAND = re.compile(r"(?:\w+=\S+ +)*(?:bash launch/\w+\.sh|limba train)\b[^`|\n]*")


def test_examples_of_runs_name_a_vocabulary_where_the_gin_file_needs_one() -> None:
    count = 0
    pages = [
        ROOT / "README.md",
        *(ROOT / "docs").rglob("*.md"),
        *(ROOT / "launch").iterdir(),
        *(ROOT / "gin").glob("*.gin"),
    ]
    for path in pages:
        text = re.sub(r" *\\\n[# ]*", " ", path.read_text())  # one line a command
        if path.suffix == ".md":
            text = re.sub(r"(?<=[^`\n|])\n *(?=[^\n`]*`)", " ", text)  # that goes on after a line's end, in backticks
        for command in COMMAND.findall(text):
            if "MODEL_DIR=" in command and NEED_A_VOCABULARY.search(command):
                count += 1
                assert "VOCABULARY=" in command, f"{path}: {command}"
    assert count >= 9


@pytest.mark.parametrize("script", PUBLISHED)
def test_a_run_is_never_written_to_a_bucket_of_somebody_else(script: str) -> None:
    text = (ROOT / "launch" / script).read_text()
    assert "myv4-bucket" not in text
    names = ["MODEL_DIR"] if "mt5" in script else ["MODEL_DIR", "VOCABULARY"]
    refused = started(f"launch/{script}")
    assert refused.returncode == 2 and refused.stderr.count("\n") == 1
    assert refused.stderr.startswith(f"launch/{script}: {' and '.join(names)} must be given")
    assert f"bash launch/{script}" in refused.stderr
    half = started(f"launch/{script}", "VOCABULARY=v.model", "MODEL_DIR=")
    assert half.stderr.startswith(f"launch/{script}: MODEL_DIR must be given")


def test_convert_without_arguments_takes_the_newest_run(tmp_path: Path) -> None:
    """With the script's own text, in a folder whose setup does nothing and whose Python shows its arguments."""
    shutil.copytree(ROOT / "convert", tmp_path / "convert")
    (tmp_path / "launch").mkdir()
    (tmp_path / "launch" / "setup.sh").write_text("exit 0\n")
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    python = tmp_path / ".venv" / "bin" / "python"
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" -c "import sys; print(sys.argv[1:])" "$@"\n')
    python.chmod(0o755)
    here = tmp_path / "my texts"
    here.mkdir()
    none = started("convert/convert.sh", folder=tmp_path, here=here)
    assert none.returncode == 2 and "there is no run below" in none.stderr and "MODEL_DIR" in none.stderr

    def converts(run: str) -> None:
        done = started("convert/convert.sh", folder=tmp_path, here=here)
        assert done.returncode == 0, done.stderr
        assert f"converting the newest, {run}\n" in done.stdout
        assert done.stdout.splitlines()[-1] == str(["-m", "limba", "convert", "export", run])

    def add(folder: Path, seconds: float) -> None:
        (folder / "checkpoints" / "5").mkdir(parents=True)
        os.utime(folder / "checkpoints" / "5", (seconds, seconds))

    add(tmp_path / "runs" / "old one", 1e9 - 2)
    add(tmp_path / "runs" / "new", 1e9 - 1)
    converts(f"{tmp_path}/runs/new")
    add(here / "runs" / "newer", 1e9)
    converts("runs/newer")
    add(here / "newest one", 1e9 + 1)
    converts("newest one")
    (tmp_path / "launch" / "setup.sh").write_text("exit 75\n")  # as without internet
    assert started("convert/convert.sh", folder=tmp_path, here=here).returncode == 75
    assert started("convert/convert.sh", folder=tmp_path, here=here, SETUP="no").returncode == 0
    assert "give yes or no" in started("convert/convert.sh", folder=tmp_path, here=here, SETUP="off").stderr
    python.unlink()
    refused = started("convert/convert.sh", folder=tmp_path, here=here, SETUP="no")
    assert refused.returncode == 2 and ".venv is not there" in refused.stderr
