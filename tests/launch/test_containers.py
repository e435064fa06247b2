"""The shell scripts and container files are what their linters take; nothing is built or started."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = sorted(path for folder in ("launch", "convert", "tests") for path in (ROOT / folder).rglob("*.sh"))
SCRIPTS += [ROOT / ".ci" / name for name in ("package", "run")]


def linter(name: str) -> str:
    """Returns the path of a program of requirements-test.txt; a test that needs it fails without it."""
    path = shutil.which(name, path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    if path is None:
        pytest.fail(f"{name} is not installed; run bash launch/setup.sh tests")
    return path


def lint(*command: str, text: str | None = None) -> None:
    done = subprocess.run(command, cwd=ROOT, input=text, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
def test_the_shell_scripts_pass_shellcheck() -> None:
    assert {"pod.sh", "pod_worker.sh", "setup.sh", "convert.sh", "run.sh"} <= {path.name for path in SCRIPTS}
    lint(linter("shellcheck"), "--external-sources", *map(str, SCRIPTS))


def test_the_dockerfile_passes_hadolint() -> None:
    lint(linter("hadolint"), "Dockerfile")


@pytest.mark.parametrize("name", ["docs/install.md", "Dockerfile", "launch/apptainer.def"])
def test_a_container_s_command_gives_what_its_gin_file_needs(name: str) -> None:
    """The names that the header of gin/demo.gin gives."""
    text = re.sub(r" \\\n#?\s+", " ", (ROOT / name).read_text())
    commands = re.findall(r"(?:docker|apptainer) run .* gin/demo\.gin (.*)", text)
    (header,) = re.findall(
        r"^# Command +limba train gin/demo\.gin (.*)", (ROOT / "gin/demo.gin").read_text(), re.MULTILINE
    )
    needed = set(re.findall(r"--gin\.(\w+)=", header))
    assert len(needed) == 4 and len(commands) == (2 if name.endswith(".md") else 1)
    for command in commands:
        assert {word.partition("=")[0] for word in command.split()} == needed


def test_what_the_containers_copy_exists_and_their_arguments_are_known() -> None:
    docker = (ROOT / "Dockerfile").read_text()
    apptainer = (ROOT / "launch" / "apptainer.def").read_text()
    copied = re.findall(r"^COPY --chown=1000 (.+) \S+$", docker, re.MULTILINE)
    copied = [word for words in copied for word in words.split()]
    copied += re.findall(r"^    (\S+) /limba/\S+$", apptainer, re.MULTILINE)
    assert len(copied) > 15 and all((ROOT / word).exists() for word in copied)
    known = (ROOT / "launch" / "setup.sh").read_text()
    for argument in (
        re.search(r"# cpu, tpu, cuda, cuda12 or rocm", docker)[0].replace("#", "").replace(" or", ",").split(",")
    ):
        assert re.search(rf"\b{argument.strip()}\b", known)
    for section in ("arguments", "files", "post", "environment", "runscript", "test"):
        assert f"\n%{section}\n" in apptainer
    body = apptainer.partition("%post\n")[2].partition("%environment")[0].replace("{{ accelerator }}", "cpu")
    lint(linter("shellcheck"), "--shell=sh", "-", text=body)
