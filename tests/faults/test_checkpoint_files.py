"""Damage to each file of the newest checkpoint: it is seen and named, and the checkpoint before it is taken."""

from __future__ import annotations

import json
import random
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from benchmarks import kill
from tests.faults.runs import MOST_LINES, TRAINED_STEPS, UNWANTED, Runs, Setting

EARLIER = TRAINED_STEPS - 5  # the checkpoint before the newest
# `limba train` up to the first step, again and again in one process: reads lines of arguments, and writes for each a
# line with the exit status, the step and hash of the state and batch that training would begin with, and what it says.
RESTORING = """
import hashlib, json, os, sys, tempfile, traceback
from limba.config import environment
environment.set_variables()
environment.set_logging()
with environment.quiet_imports():
    import jax
    import numpy as np
    from limba.cli import program
    from limba.cli.train import run
    from limba.training.loop import Loop
answers = os.fdopen(os.dup(1), "w")
found = {}
def stop(loop, state, *_):
    digest = hashlib.blake2b(digest_size=8)
    for leaf in jax.tree.leaves(state):
        digest.update(np.asarray(leaf).tobytes())
    for _, rows in sorted(next(loop.reader.stream).items()):
        for name in sorted(rows):
            digest.update(rows[name].tobytes())
    found.update(step=int(state.step), digest=digest.hexdigest())
    return {"step": int(state.step), "interrupted": False}
Loop.run = stop
for line in sys.stdin:
    found.clear()
    with tempfile.TemporaryFile() as printed:
        os.dup2(printed.fileno(), 1)
        os.dup2(printed.fileno(), 2)
        try:
            code = program.exit_code(run, json.loads(line))
        except Exception:
            traceback.print_exc()
            code = 1
        sys.stdout.flush()
        sys.stderr.flush()
        printed.seek(0)
        text = printed.read().decode(errors="replace")
    answers.write(json.dumps({"code": code, "text": text, **found}) + "\\n")
    answers.flush()
"""


class Restoring:
    """A process that restores one directory after the other, as `limba train` does. Use it as a context manager."""

    def __init__(self, runs: Runs):
        self._runs = runs
        self._process = subprocess.Popen(
            [sys.executable, "-c", RESTORING],
            env=kill.environments(1, runs.new("hashes"))[0],
            cwd=kill.ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> Restoring:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()

    def __call__(self, directory: Path) -> dict[str, Any]:
        """Returns {"code", "text", and if training could begin "step" and "digest"} of a start in the directory."""
        assert self._process.stdin is not None and self._process.stdout is not None
        arguments = self._runs.arguments(directory, Setting(), TRAINED_STEPS)
        self._process.stdin.write(json.dumps(arguments) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        assert answer, f"Restoring {directory} ended its process."
        return json.loads(answer)


def _flip(path: Path, moments: random.Random) -> None:
    data = bytearray(path.read_bytes())
    data[moments.randrange(len(data))] ^= 1 << moments.randrange(8)
    path.write_bytes(data)


WAYS: dict[str, Callable[[Path, random.Random], object]] = {
    "deleted": lambda path, _: path.unlink(),
    "emptied": lambda path, _: path.write_bytes(b""),
    "cut": lambda path, _: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]),
    "flipped": _flip,
}


@pytest.fixture(scope="module")
def whole(runs: Runs) -> Path:
    """A run whose two checkpoints are as they were written."""
    return runs.trained(Setting(), "whole")


@pytest.fixture(scope="module")
def restoring(runs: Runs) -> Iterator[Restoring]:
    with Restoring(runs) as process:
        yield process


@pytest.fixture(scope="module")
def newest(restoring: Restoring, whole: Path) -> dict[str, Any]:
    """What a start in the whole run begins with."""
    return restoring(whole)


@pytest.fixture(scope="module")
def earlier(runs: Runs, restoring: Restoring, whole: Path) -> dict[str, Any]:
    """What a start begins with where the newest checkpoint never was."""
    directory = runs.new("earlier")
    shutil.copytree(whole, directory)
    shutil.rmtree(directory / "checkpoints" / str(TRAINED_STEPS))
    return restoring(directory)


@pytest.mark.night
@pytest.mark.parametrize("way", WAYS, ids=lambda way: f"file-{way}")
def test_each_damaged_file_is_named_and_the_step_before_taken(
    way: str,
    runs: Runs,
    moments: random.Random,
    whole: Path,
    restoring: Restoring,
    newest: dict[str, Any],
    earlier: dict[str, Any],
) -> None:
    assert (newest["step"], earlier["step"]) == (TRAINED_STEPS, EARLIER)
    step = whole / "checkpoints" / str(TRAINED_STEPS)
    files = sorted(path.relative_to(step) for path in step.rglob("*") if path.is_file() and path.stat().st_size)
    assert len(files) == 6  # four of the arrays, the place in the text, and the manifest
    wrong: list[str] = []
    for file in files:
        directory = runs.new("damaged")
        shutil.copytree(whole, directory)
        WAYS[way](directory / "checkpoints" / str(TRAINED_STEPS) / file, moments)
        answer = restoring(directory)
        said = runs.unusual(answer["text"], directory)
        if problem := _problem(answer, said, file, newest, earlier, directory):
            wrong.append(f"{file} {way}: {problem}\n" + "\n".join(said[-8:]))
        shutil.rmtree(directory)
    assert not wrong, "\n".join(wrong)


def _problem(
    answer: dict[str, Any],
    said: Sequence[str],
    file: Path,
    newest: dict[str, Any],
    earlier: dict[str, Any],
    directory: Path,
) -> str:
    """Returns what is wrong with a start after a file was damaged; "" if nothing is."""
    text = "\n".join(said)
    if match := UNWANTED.search(text):
        return f"prints {match[0]!r} and {len(said)} lines"
    if answer["code"] or "digest" not in answer:
        return f"ends with {answer['code']}"
    if len(said) > MOST_LINES or not said:
        return f"{len(said)} lines"
    if answer["digest"] != earlier["digest"]:
        same = answer["digest"] == newest["digest"]
        return "the damage is not seen" if same else f"step {answer['step']} is loaded with other numbers"
    if file.name not in text:
        return "the file is not named"
    if (directory / "checkpoints" / str(TRAINED_STEPS)).exists():
        return "the damaged checkpoint has kept its name"
    return ""


@pytest.mark.night
@pytest.mark.parametrize("way", WAYS, ids=lambda way: f"file-{way}-and-train")
def test_a_run_trains_on_from_the_step_before_its_largest_damaged_file(
    way: str, runs: Runs, moments: random.Random
) -> None:
    setting = Setting()
    directory = runs.trained(setting, "damaged")
    step = directory / "checkpoints" / str(TRAINED_STEPS)
    largest = max((path for path in step.rglob("*") if path.is_file()), key=lambda path: path.stat().st_size)
    WAYS[way](largest, moments)
    with runs.start(directory, setting) as start:
        codes = start.wait(300)
    runs.check(start, directory, codes, [{0}], start.began, largest.name)
    runs.check_same(start, directory, setting, EARLIER)
    assert min(batch for _, batch in kill.hashes_in(start.hashes)) == EARLIER + 1


def test_damage_is_judged_by_what_is_loaded(tmp_path: Path) -> None:
    newest = {"digest": "new"}
    earlier = {"digest": "old"}
    file = Path("state/d/0a")
    good = {"code": 0, "step": 15, "digest": "old", "text": ""}

    def problem(said: list[str], name: Path = file, **changed: object) -> str:
        return _problem({**good, **changed}, said, name, newest, earlier, tmp_path)

    assert problem(["state/d/0a is not as it was written"]) == ""
    assert "not seen" in problem(["state/d/0a"], digest="new")
    assert "other numbers" in problem(["state/d/0a"], digest="wrong")
    assert "not named" in problem(["something is wrong"])
    assert "ends with 1" in problem(["state/d/0a"], code=1)
    assert "Traceback" in problem(["state/d/0a", "Traceback (most recent call last):"])
    assert problem([]) == "0 lines" and problem(["state/d/0a"] * 6) == "6 lines"
    assert "not seen" in problem(["no manifest.json"], Path("manifest.json"), digest="new")
    (tmp_path / "checkpoints" / "20").mkdir(parents=True)
    assert "kept its name" in problem(["state/d/0a"])


@pytest.mark.parametrize("way", WAYS)
def test_each_way_of_damage_changes_the_file(way: str, moments: random.Random, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"0123456789")
    WAYS[way](path, moments)
    left = path.read_bytes() if path.exists() else None
    assert left != b"0123456789"
    assert (left is None) == (way == "deleted") and len(left or b"") == {"cut": 5, "flipped": 10}.get(way, 0)
