"""Damage to each file of the newest checkpoint: it must be seen, and the checkpoint before it be taken."""

from __future__ import annotations

import json
import random
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks import kill
from benchmarks.breaking.bench import MOST_LINES, TRAINED_STEPS, UNWANTED, Bench, Row, Setting

EARLIER = TRAINED_STEPS - 5  # the checkpoint before the newest
MARK = "commit_success.txt"  # Orbax's, made after the manifest: it holds a time, and nothing of the run
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

    def __init__(self, bench: Bench):
        self._bench = bench
        variables = kill.environments(1, bench.new("hashes"))[0]
        self._process = subprocess.Popen(
            [sys.executable, "-c", RESTORING],
            env=variables,
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
        arguments = self._bench.arguments(directory, Setting(), TRAINED_STEPS)
        self._process.stdin.write(json.dumps(arguments) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            raise RuntimeError(f"Restoring {directory} ended its process.")
        return json.loads(answer)


def _flip(path: Path, place: random.Random) -> None:
    data = bytearray(path.read_bytes())
    data[place.randrange(len(data))] ^= 1 << place.randrange(8)
    path.write_bytes(data)


WAYS: dict[str, Callable[[Path, random.Random], object]] = {
    "deleted": lambda path, _: path.unlink(),
    "emptied": lambda path, _: path.write_bytes(b""),
    "cut": lambda path, _: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]),
    "flipped": _flip,
}
SAID = {"cut": "cut to half", "flipped": "one bit flipped"}  # of the others their name


def names() -> list[str]:
    """Returns the names of these faults."""
    return [*(f"file-{way}" for way in WAYS), *(f"file-{way}-and-train" for way in WAYS)]


def rows(bench: Bench, chosen: Sequence[str]) -> Iterator[Row]:
    """Yields the rows of the chosen faults."""
    if any(f"file-{way}" in chosen for way in WAYS):
        with Restoring(bench) as restoring:
            yield from _each_file(bench, restoring, [way for way in WAYS if f"file-{way}" in chosen])
    for way in WAYS:
        if (name := f"file-{way}-and-train") in chosen:
            yield _trained_on(bench, way, name)


def _each_file(bench: Bench, restoring: Restoring, ways: Sequence[str]) -> Iterator[Row]:
    whole = bench.trained(Setting(), "whole")
    newest, earlier = restoring(whole), _without_newest(bench, restoring, whole)
    step = whole / "checkpoints" / str(TRAINED_STEPS)
    files = sorted(path.relative_to(step) for path in step.rglob("*") if path.is_file() and path.stat().st_size)
    for way in ways:
        row = Row(
            f"file-{way}", f"each of {len(files)} files of the newest checkpoint alone {SAID.get(way, way)}", survived=0
        )
        row.tried, row.resumed = len(files), "the one before, to the last bit"
        for file in files:
            directory = bench.new("damaged")
            shutil.copytree(whole, directory)
            WAYS[way](directory / "checkpoints" / str(TRAINED_STEPS) / file, bench.moments)
            answer = restoring(directory)
            said = bench.unusual(answer["text"], directory)
            problem = _problem(answer, said, file, newest, earlier, directory)
            row.lines, row.codes = max(row.lines, len(said)), sorted({*row.codes, answer["code"]}, key=str)
            named = next((line for line in said if file.name in line), "")
            row.said = row.said or bench.nameless(named, directory)
            if problem:
                row.wrong.append(f"{file} {SAID.get(way, way)}: {problem}")
                row.output += f"--- {file} {SAID.get(way, way)}: {problem}\n" + "\n".join(said[-8:]) + "\n"
            else:
                row.survived = (row.survived or 0) + 1
            shutil.rmtree(directory)
        yield row


def _without_newest(bench: Bench, restoring: Restoring, whole: Path) -> dict[str, Any]:
    directory = bench.new("earlier")
    shutil.copytree(whole, directory)
    shutil.rmtree(directory / "checkpoints" / str(TRAINED_STEPS))
    return restoring(directory)


def _problem(
    answer: dict[str, Any], said: Sequence[str], file: Path, newest: dict, earlier: dict, directory: Path
) -> str:
    """Returns what is wrong with a start after a file was damaged; "" if nothing is."""
    text = "\n".join(said)
    if found := UNWANTED.search(text):
        return f"prints {found[0]!r} and {len(said)} lines"
    if answer["code"] or "digest" not in answer:
        return f"ends with {answer['code']}"
    if file.name == MARK and not said and answer["digest"] == newest["digest"]:
        return ""  # nothing was lost
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


def _trained_on(bench: Bench, way: str, name: str) -> Row:
    """Damages the largest file, and trains on from the checkpoint before to the end."""
    setting = Setting()
    directory = bench.trained(setting, "damaged")
    step = directory / "checkpoints" / str(TRAINED_STEPS)
    largest = max((path for path in step.rglob("*") if path.is_file()), key=lambda path: path.stat().st_size)
    WAYS[way](largest, bench.moments)
    with bench.start(directory, setting) as start:
        codes = start.wait(120)
    row = Row(name, f"the largest file of the newest checkpoint {SAID.get(way, way)}; a start trains on")
    bench.judge(row, start, directory, codes, [{0}], start.began, largest.name)
    hashes = kill.hashes_in(start.hashes) if start.hashes.exists() else {}
    problem = bench.differences(start, directory, setting, EARLIER)
    if not problem and min(batch for _, batch in hashes) != EARLIER + 1:
        problem = f"step {EARLIER} was not taken"
    return bench.resumed(row, problem, start)
