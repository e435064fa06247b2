"""Two processes of one run that were not given the same: each difference must be named before the first step."""

from __future__ import annotations

import dataclasses
import shutil
import subprocess
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks import kill
from benchmarks.breaking.bench import END_SECONDS, TRAINED_STEPS, Bench, NotTriedError, Row, Setting

INPUT = {2}
CODE = kill.ROOT / "tasks" / "demo.py"  # a file that every run of the bench imports
# Puts the first path over the second, for this process alone, and becomes the command that follows.
OVER = 'mount --bind "$0" "$1" && shift && exec "$@"'


def _hidden(other: Path, place: Path) -> list[str]:
    """Returns the words of a command that sees `other` at `place`, as another machine might."""
    if shutil.which("unshare") is None or subprocess.run(["unshare", "-m", "true"], capture_output=True).returncode:
        raise NotTriedError("This needs a process that sees other files, and unshare gives this user none here.")
    return ["unshare", "-m", "sh", "-c", OVER, str(other), str(place)]


def _other_rate(bench: Bench, folder: Path) -> dict[str, Any]:
    return {"each": {1: ["--gin.LEARNING_RATE=0.1"]}}


def _other_file(bench: Bench, folder: Path) -> dict[str, Any]:
    seen = bench.new("seen")
    shutil.copytree(folder, seen)
    shutil.copyfile(seen / "a.jsonl", seen / "another.jsonl")
    return {"before": {1: _hidden(seen, folder)}}


def _other_text(bench: Bench, folder: Path) -> dict[str, Any]:
    seen, file = bench.new("seen.jsonl"), folder / "a.jsonl"
    seen.write_bytes(b"".join(reversed(file.read_bytes().splitlines(keepends=True))))
    return {"before": {1: _hidden(seen, file)}}


def _other_vocabulary(bench: Bench, folder: Path) -> dict[str, Any]:
    from limba.data.tasks import source_of_files
    from limba.data.vocabulary.train import train_vocabulary

    seen = bench.new("other").with_suffix(".model")
    texts = list(source_of_files(str(bench.corpus), "text", 0.0).texts("train"))
    train_vocabulary(iter(texts[: len(texts) // 2]), 800, str(seen))
    return {"before": {1: _hidden(seen, bench.vocabulary)}}


def _other_code(bench: Bench, folder: Path) -> dict[str, Any]:
    seen = bench.new("other").with_suffix(".py")
    seen.write_text(CODE.read_text() + "\n# Another version.\n")
    return {"before": {1: _hidden(seen, CODE)}}


DIFFERENCES: dict[str, tuple[str, str, Callable[[Bench, Path], dict[str, Any]]]] = {
    "other-setting": ("another LEARNING_RATE", r"LEARNING_RATE.*0\.1|learning_rate.*0\.1", _other_rate),
    "other-corpus-file": ("one more file in the folder of the corpus", "another", _other_file),
    "other-text": ("another text in a file of the corpus, of the same size", r"a\.jsonl", _other_text),
    "other-vocabulary": ("another vocabulary at the same path", "vocabulary", _other_vocabulary),
    "other-code": ("another version of tasks/demo.py", r"tasks/demo\.py|code", _other_code),
}


def rows(bench: Bench, chosen: Sequence[str]) -> Iterator[Row]:
    """Yields the rows of the chosen faults."""
    if not (names := [name for name in DIFFERENCES if name in chosen]):
        return
    folder = bench.new("corpus")
    folder.mkdir()
    lines = bench.corpus.read_bytes().splitlines(keepends=True)
    (folder / "a.jsonl").write_bytes(b"".join(lines[::2]))
    (folder / "b.jsonl").write_bytes(b"".join(lines[1::2]))
    setting = Setting(corpus=f"{folder}/*.jsonl")  # trained by one process, whose run two then want to resume
    directory = bench.trained(setting, "disagreeing")
    found = []
    for name in names:
        what, says, change = DIFFERENCES[name]
        row = Row(name, f"process 1 of 2 has {what}")
        try:
            parts = change(bench, folder)
        except NotTriedError as error:
            row.not_tried = str(error)
            yield row
            continue
        with bench.start(directory, dataclasses.replace(setting, processes=2), **parts) as start:
            codes = start.wait(2 * END_SECONDS)
        bench.judge(row, start, directory, codes, [INPUT, INPUT], start.began, rf"(?s)(?=.*[Pp]rocess 1)(?=.*({says}))")
        if steps := start.trained():
            row.wrong.append(f"trains on, up to step {max(steps)}")
            row.resumed = "not tried"
            directory = bench.trained(setting, "disagreeing")
        found.append(row)
    last = bench.resume(Row("", ""), directory, setting, TRAINED_STEPS)
    for row in found:
        if not row.resumed:
            row.resumed, row.wrong, row.output = last.resumed, [*row.wrong, *last.wrong], row.output + last.output
        yield row
