"""Reader processes of a run that stand still or have no memory left: the run goes on as before, or says why it ends."""

from __future__ import annotations

import itertools
import json
import resource
import signal
import time
from pathlib import Path

import psutil
import pytest

from limba.data.sources.listing import SMALLEST_UNIT
from tests.faults.runs import END_SECONDS, INPUT, MORE_STEPS, Runs, Setting
from tests.faults.starts import Start

pytestmark = pytest.mark.night

READERS = "--gin.config.DataConfig.num_reader_processes=2"
READ_SECONDS = 5.0
READ_ATTEMPTS = 3
# A reader is waited for twice as long as all attempts of one read may take.
ANSWER_SECONDS = 2 * READ_SECONDS * READ_ATTEMPTS
READING = (
    f"--gin.config.DataConfig.read_timeout_seconds={READ_SECONDS}",
    f"--gin.config.DataConfig.read_attempts={READ_ATTEMPTS}",
)
STOPPED_STEPS = 120
# Two shards in order, so that a reader comes to its third part of the corpus at about step 110.
IN_ORDER = ("--gin.config.DataConfig.shuffle=False", "--gin.config.DataConfig.num_data_shards=2")
IN_ORDER_STEPS = 200
LONG_BYTES = 12 << 20


def _readers(start: Start) -> list[psutil.Process]:
    """Returns the reader processes of a run, in the order in which they were started."""
    children = psutil.Process(start.processes[0].pid).children()
    reading = [child for child in children if "limba.data.stream.reader" in child.cmdline()]
    assert len(reading) == 2, reading
    return sorted(reading, key=lambda child: (child.create_time(), child.pid))


def test_a_reader_that_stands_still_is_replaced(runs: Runs) -> None:
    """The trial reader-stopped: SIGSTOP of one of two readers, and no SIGCONT."""
    setting = Setting(steps=STOPPED_STEPS)
    runs.reference(setting)
    directory = runs.new("stopped_reader")
    with runs.training(directory, setting, 8, extra=[READERS, *READING]) as start:
        since = time.monotonic()
        stopped = _readers(start)[1]
        stopped.send_signal(signal.SIGSTOP)
        codes = start.wait(ANSWER_SECONDS + 2 * END_SECONDS)
    says = rf"data shards \[1, 3\] gives no answer for {ANSWER_SECONDS:.0f} s: it is started again"
    runs.check(start, directory, codes, [{0}], since, says)
    assert not psutil.pid_exists(stopped.pid)
    runs.check_same(start, directory, setting)
    assert start.trained()[-1] == STOPPED_STEPS


@pytest.fixture
def corpus_with_a_long_line(runs: Runs) -> Path:
    """A corpus in which one line, of the second reader's third part, needs more memory than a reader has taken."""
    lines = runs.corpus.read_bytes().splitlines(keepends=True)
    before = itertools.accumulate(map(len, lines))
    place = next(number for number, size in enumerate(before) if size > 5 * SMALLEST_UNIT + SMALLEST_UNIT // 2)
    path = runs.new("long_line").with_suffix(".jsonl")
    long_line = json.dumps({"text": "long " * (LONG_BYTES // 5)}).encode() + b"\n"
    path.write_bytes(b"".join([*lines[:place], long_line, *lines[place:]]))
    return path


def test_a_reader_without_memory_ends_the_run(runs: Runs, corpus_with_a_long_line: Path) -> None:
    """The trial reader-out-of-memory: the kernel gives one of two readers no further memory (RLIMIT_DATA)."""
    setting = Setting(steps=IN_ORDER_STEPS, corpus=str(corpus_with_a_long_line), more=IN_ORDER)
    runs.reference(setting)
    directory = runs.new("full_reader")
    with runs.training(directory, setting, 3, extra=[READERS]) as start:
        since = time.monotonic()
        reader = _readers(start)[1]
        limits = (reader.memory_info().data, resource.RLIM_INFINITY)
        resource.prlimit(reader.pid, resource.RLIMIT_DATA, limits)
        codes = start.wait(2 * END_SECONDS)
    runs.check_same(start, directory, setting)
    says = r"data shards \[1\] has no memory left .* lower DataConfig.num_reader_processes, and start the same"
    runs.check(start, directory, codes, [INPUT], since, says)
    trained = max(start.trained())
    runs.check_resumes(directory, setting, trained, steps=trained + MORE_STEPS, extra=[READERS])
