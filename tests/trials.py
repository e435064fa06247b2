"""Runs test files over and over, each time in a fork of one process that has imported their libraries but not Limba.

    python -B -m tests.trials <JOB.json

benchmarks/mutate.py starts it. A job is {"module": FILE, "tests": [FILE], "marks": EXPRESSION, "texts": [TEXT]}. The
first line that it prints is true where the tests pass on the file as it is, else false, and the job ends. Then each
text stands in the file's place for one run; a line says which test failed first, or null where all passed.
"""

import contextlib
import importlib.util
import json
import os
import resource
import signal
import sys
import tempfile
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

from tests import conftest

SECONDS = 900  # of the clock: a test that waits for ever
# Of processor time, an endless loop: at least so many seconds, and so many times what the tests need.
LEAST = 30
TIMES = 4
OWN = {"limba", "tests", "benchmarks", "tasks", "convert", "launch"}
PATIENT = ("beartype", "flax", "jax", "jaxtyping", "numpy", "optax", "orbax", "safetensors", "scipy", "sentencepiece")
PATIENT += ("seqio", "t5", "tensorflow", "tensorstore", "tokenizers", "torch", "transformers")


class Ended(NamedTuple):
    """How a run of the tests ended."""

    failed: str | None  # the test that failed first, or what else ended the run
    seconds: dict[str, float]  # of each test
    modules: list[str]  # what was imported in the end


class Watching:
    """A plugin of pytest: runs the tests in the order given, and notes how they end."""

    def __init__(self, first: Sequence[str], rank: dict[str, float]) -> None:
        self.first = list(first)
        self.rank = rank
        self.seconds: dict[str, float] = {}
        self.failed = ""

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        def place(item: pytest.Item) -> tuple[int, float]:
            known = item.nodeid in self.first
            return (self.first.index(item.nodeid) if known else len(self.first), self.rank.get(_file(item.nodeid), 0.0))

        items.sort(key=place)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.seconds[report.nodeid] = self.seconds.get(report.nodeid, 0.0) + report.duration
        if report.failed and not self.failed:
            self.failed = report.nodeid

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed and not self.failed:
            self.failed = f"{report.nodeid} (its import)"


def _file(test: str) -> str:
    return test.split("::", 1)[0]


def run(tests: Sequence[str], marks: str, watching: Watching, most: int) -> Ended:
    """Runs the tests in a fork until one fails; `most` seconds of processor time are too many."""
    told = tempfile.NamedTemporaryFile("w+")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # JAX warns of each fork; there is no backend yet
        child = os.fork()
    if child == 0:
        try:
            os.setpgrp()
            signal.alarm(SECONDS)
            resource.setrlimit(resource.RLIMIT_CPU, (most, most + 5))
            _run(tests, marks, watching, Path(told.name))
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)  # what a broken module's tests have started
    with told:
        text = told.read()
    return Ended(*json.loads(text)) if text else Ended("no end", {}, [])


def _run(tests: Sequence[str], marks: str, watching: Watching, told: Path) -> None:
    quiet = os.open(os.devnull, os.O_WRONLY)
    os.dup2(quiet, 1)
    os.dup2(quiet, 2)
    options = ["-q", "-x", "-n", "0", "-p", "no:cacheprovider", "-m", marks]
    options += ["-W", "ignore::pytest.PytestAssertRewriteWarning"]  # of the plugins that are there before the fork
    code = int(pytest.main([*options, "--doctest-modules", *tests], plugins=[watching]))
    failed = None if code == 0 else watching.failed or f"pytest ended with {code}"
    told.write_text(json.dumps([failed, watching.seconds, sorted(sys.modules)]))


def replaced(path: Path, text: str) -> None:
    """Writes the file, and removes what Python has compiled of it: its time may be the same second."""
    path.write_text(text)
    for compiled in Path(importlib.util.cache_from_source(path)).parent.glob(f"{path.stem}.*"):
        compiled.unlink()


def main() -> None:
    job = json.load(sys.stdin)
    path = Path(job["module"])
    marks = job["marks"]
    tests = [*job["tests"], job["module"]]  # its examples are tests too
    before = path.read_text()
    sys.dont_write_bytecode = False  # of all modules, once
    ended = run(tests, marks, Watching([], {}), SECONDS)
    for name in ended.modules if ended.failed is None else ():
        if name.split(".")[0] in PATIENT and "." not in name:
            importlib.import_module(name)
    used = conftest.processor_seconds()
    if ended.failed is None:  # again as the faults will be tried
        ended = run(tests, marks, Watching([], {}), SECONDS)
    print(json.dumps(ended.failed is None), flush=True)
    if ended.failed is not None:
        sys.exit(f"{ended.failed} fails without a fault")
    sys.dont_write_bytecode = True
    rank: dict[str, float] = {}
    for test, seconds in ended.seconds.items():
        rank[_file(test)] = rank.get(_file(test), 0.0) + seconds
    most = LEAST + int(TIMES * (conftest.processor_seconds() - used))
    first: list[str] = []
    for text in job["texts"]:
        replaced(path, text)
        failed = run(tests, marks, Watching(first, rank), most).failed
        if failed in ended.seconds:
            first = [failed, *(item for item in first if item != failed)]
        print(json.dumps(failed), flush=True)
    replaced(path, before)


if __name__ == "__main__":
    main()
