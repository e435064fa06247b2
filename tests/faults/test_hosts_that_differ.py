"""Two processes of one run that were not given the same: each difference is named before the first step."""

from __future__ import annotations

import dataclasses
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchmarks import kill
from tests.faults.runs import END_SECONDS, INPUT, TRAINED_STEPS, Runs, Setting

pytestmark = pytest.mark.night

CODE = kill.ROOT / "tasks" / "demo.py"  # a file that every run of these tests imports
# Puts the first path over the second, for this process alone, and becomes the command that follows.
OVER = 'mount --bind "$0" "$1" && shift && exec "$@"'


def _hidden(other: Path, path: Path) -> list[str]:
    """Returns the words of a command that sees `other` at `path`, as another machine might."""
    if shutil.which("unshare") is None or subprocess.run(["unshare", "-m", "true"], capture_output=True).returncode:
        pytest.skip("a process that sees other files: run as root, or by `unshare -rm python -m pytest`")
    return ["unshare", "-m", "sh", "-c", OVER, str(other), str(path)]


def _other_rate(runs: Runs, folder: Path) -> dict[str, Any]:
    return {"of_processes": {1: ["--gin.LEARNING_RATE=0.1"]}}


def _other_file(runs: Runs, folder: Path) -> dict[str, Any]:
    """One more file in the folder of the corpus."""
    seen = runs.new("seen")
    shutil.copytree(folder, seen)
    shutil.copyfile(seen / "a.jsonl", seen / "another.jsonl")
    return {"before": {1: _hidden(seen, folder)}}


def _other_text(runs: Runs, folder: Path) -> dict[str, Any]:
    """Another text in a file of the corpus, of the same size."""
    seen = runs.new("seen.jsonl")
    file = folder / "a.jsonl"
    seen.write_bytes(b"".join(reversed(file.read_bytes().splitlines(keepends=True))))
    return {"before": {1: _hidden(seen, file)}}


def _other_vocabulary(runs: Runs, folder: Path) -> dict[str, Any]:
    """Another vocabulary at the same path."""
    from limba.data.tasks import source_of_files
    from limba.data.vocabulary.train import train_vocabulary

    seen = runs.new("other").with_suffix(".model")
    texts = list(source_of_files(str(runs.corpus), "text", 0.0).texts("train"))
    train_vocabulary(iter(texts[: len(texts) // 2]), 800, str(seen))
    return {"before": {1: _hidden(seen, runs.vocabulary)}}


def _other_code(runs: Runs, folder: Path) -> dict[str, Any]:
    seen = runs.new("other").with_suffix(".py")
    seen.write_text(CODE.read_text() + "\n# Another version.\n")
    return {"before": {1: _hidden(seen, CODE)}}


def _other_package(runs: Runs, folder: Path) -> dict[str, Any]:
    """Another version of a package, as its installer has recorded it."""
    installed = runs.new("installed")
    record = installed / "optax-0.2.1.dist-info"
    record.mkdir(parents=True)
    (record / "METADATA").write_text("Metadata-Version: 2.1\nName: optax\nVersion: 0.2.1\n")
    return {"variables": {1: {"PYTHONPATH": str(installed)}}}


DIFFERENCES: dict[str, tuple[str, Callable[[Runs, Path], dict[str, Any]]]] = {  # sentence, function
    "other-setting": (r"LEARNING_RATE.*0\.1|learning_rate.*0\.1", _other_rate),
    "other-corpus-file": ("another", _other_file),
    "other-text": (r"a\.jsonl", _other_text),
    "other-vocabulary": ("vocabulary", _other_vocabulary),
    "other-code": (r"tasks/demo\.py|code", _other_code),
    "other-package": (r"optax 0\.2\.1, process 0 has \d", _other_package),
}


@pytest.fixture(scope="module")
def folder(runs: Runs) -> Path:
    """The corpus as two files."""
    made = runs.new("corpus")
    made.mkdir()
    lines = runs.corpus.read_bytes().splitlines(keepends=True)
    (made / "a.jsonl").write_bytes(b"".join(lines[::2]))
    (made / "b.jsonl").write_bytes(b"".join(lines[1::2]))
    return made


@pytest.mark.parametrize("name", DIFFERENCES)
def test_processes_that_are_not_alike_do_not_train(name: str, runs: Runs, folder: Path) -> None:
    says, differing = DIFFERENCES[name]
    setting = Setting(corpus=f"{folder}/*.jsonl")  # trained by one process, whose run two then want to resume
    directory = runs.trained(setting, "disagreeing")
    parts = differing(runs, folder)
    with runs.start(directory, dataclasses.replace(setting, processes=2), **parts) as start:
        codes = start.wait(2 * END_SECONDS)
    runs.check(start, directory, codes, [INPUT, INPUT], start.began, rf"(?s)(?=.*[Pp]rocess 1)(?=.*({says}))")
    assert not start.trained(), start.text()
    runs.check_resumes(directory, setting, TRAINED_STEPS)
