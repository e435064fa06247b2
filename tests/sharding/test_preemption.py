"""SIGTERM, SIGINT and SIGHUP ask a run to stop, on all processes alike; a second SIGINT ends it at once."""

import os
import pty
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import pytest

from limba.sharding import preemption
from limba.sharding.preemption import SIGNALS, listening, stop_requests
from tests.sharding.processes import ROOT, Processes
from tests.waiting import Clock, wait_until


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_asks_to_stop(number: signal.Signals) -> None:
    before = [signal.getsignal(which) for which in SIGNALS]
    with stop_requests() as stop_requested:
        assert not stop_requested(1)
        os.kill(os.getpid(), number)
        deadline = time.monotonic() + 5
        while not stop_requested(2):
            assert time.monotonic() < deadline
        assert stop_requested(3)
    assert [signal.getsignal(which) for which in SIGNALS] == before


def test_a_signal_that_the_process_was_started_to_ignore_stays_ignored() -> None:
    """As by nohup."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with listening():
            assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
            assert signal.getsignal(signal.SIGINT) is not before
    finally:
        signal.signal(signal.SIGHUP, before)


def test_another_thread_than_the_main_one_trains_without_signals() -> None:
    asked: list[bool] = []

    def train() -> None:
        with stop_requests() as stop_requested:
            asked.append(stop_requested(1))

    thread = threading.Thread(target=train)
    thread.start()
    thread.join()
    assert asked == [False]


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 75), (signal.SIGHUP, 75)])
def test_a_signal_before_the_first_step_ends_at_once(number: signal.Signals, status: int) -> None:
    """Here inside imports, whose stderr is buffered."""
    program = (
        "import sys, time; from limba.config import environment; from limba.sharding import preemption\n"
        "with preemption.listening(), environment.quiet_imports():\n"
        "    print('ready', flush=True); time.sleep(100)"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    process.stdout.readline()
    process.send_signal(number)
    errors = process.communicate(timeout=120)[1]
    assert process.returncode == status
    assert errors == f"{number.name} ended the run before a step was done; the same command starts it again.\n"


@pytest.mark.slow
def test_a_second_sigint_ends_a_process_whose_step_does_not(tmp_path: Path) -> None:
    with Processes(tmp_path, 1, odd_step=3) as processes:
        time.sleep(0.5)
        processes.send(signal.SIGINT, 0)
        with pytest.raises(subprocess.TimeoutExpired):
            processes.each[0].wait(1.0)
        processes.send(signal.SIGINT, 0)
        status, lines = processes.end(0)
    assert status == 130 and len(lines) == 2
    assert lines[0] == "SIGINT: the run saves after this step and ends; a second one ends it at once."
    assert lines[1].startswith("A second SIGINT ended the run at once; the same command resumes it")


def test_a_sigint_that_a_launcher_sends_on_is_the_same_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two real ones that come at once the system may leave one out."""
    clock = Clock()
    ended: list[int] = []
    monkeypatch.setattr(preemption, "time", clock)
    monkeypatch.setattr(preemption, "_end", lambda _, status: ended.append(status))
    listener = preemption.Listener()
    listener.stage = "training"
    for seconds, ends in ((0.0, []), (preemption.APART_SECONDS, []), (0.1, [preemption.INTERRUPTED])):
        clock.now += seconds
        listener._act(signal.SIGINT)
        assert listener.asked and ended == ends


def test_a_closed_terminal_asks_to_stop(tmp_path: Path) -> None:
    """Printing to it is an error from then on, which must not end the run before it has saved."""
    ours, theirs = pty.openpty()
    program = (
        "import fcntl, sys, termios, time; from pathlib import Path\n"
        "from limba.sharding.preemption import stop_requests\n"
        "fcntl.ioctl(0, termios.TIOCSCTTY, 0)\n"
        "with stop_requests() as stop_requested:\n"
        "    stop_requested(0); print('ready', flush=True)\n"
        "    while not stop_requested(1): time.sleep(0.05)\n"
        "    print('saved', flush=True); print('saved', file=sys.stderr, flush=True)\n"
        "    Path(sys.argv[1]).write_text('saved')"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path / "end")],
        **dict.fromkeys(("stdin", "stdout", "stderr"), theirs),
        cwd=ROOT,
        start_new_session=True,
    )
    os.close(theirs)
    said = b""
    while not said.endswith(b"\n"):  # the end of the line comes by a write of its own
        said += os.read(ours, 100)
    assert said.strip() == b"ready"
    os.close(ours)
    assert process.wait(10) == 0
    assert (tmp_path / "end").read_text() == "saved"


@pytest.mark.parametrize(
    ("number", "indices"),
    [
        pytest.param(signal.SIGTERM, (1,), marks=pytest.mark.night),
        (signal.SIGINT, (0,)),
        pytest.param(signal.SIGINT, (0, 1), marks=pytest.mark.night),
        pytest.param(signal.SIGHUP, (1,), marks=pytest.mark.night),
    ],
)
@pytest.mark.slow
def test_a_signal_to_some_processes_stops_all_after_the_same_step(
    number: signal.Signals, indices: tuple[int, ...], tmp_path: Path
) -> None:
    with Processes(tmp_path, 2) as processes:
        processes.send(number, *indices)
        ends = [processes.end(index) for index in (0, 1)]
    assert [status for status, _ in ends] == [75, 75]
    assert ends[0][1][-1] == ends[1][1][-1] and ends[0][1][-1].startswith("Stopped after step ")
    said = "SIGINT: the run saves after this step and ends; a second one ends it at once."
    assert [lines[:-1] for _, lines in ends] == [
        [said] if number == signal.SIGINT and index in indices else [] for index in (0, 1)
    ]


@pytest.mark.slow
@pytest.mark.parametrize("start", [0, pytest.param(1000, id="resumed")])
def test_a_signal_before_the_first_step_of_several_processes_stops_all_after_it(start: int, tmp_path: Path) -> None:
    """A resumed run went on for ever, and only SIGKILL ended it: jax names the first step, and it asked for others."""
    with Processes(tmp_path, 2, start=start, wait=3) as processes:
        processes.send(signal.SIGTERM, 1)
        processes.send(signal.SIGTERM, 1)  # as pod's stop sends it again
        ends = [processes.end(index) for index in (0, 1)]
    assert [(status, lines[-1].split(";")[0]) for status, lines in ends] == [
        (75, f"Stopped after step {start + 1}.")
    ] * 2


def test_a_program_that_trains_goes_on_after_its_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a notebook's kernel: no signal ends the process, and a second SIGINT is Python's own."""
    monkeypatch.setattr(preemption, "APART_SECONDS", 0.0)
    before = signal.getsignal(signal.SIGINT)
    with stop_requests() as stop_requested:
        os.kill(os.getpid(), signal.SIGINT)  # before the first step
        wait_until(lambda: stop_requested(1))
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
            signal.sigtimedwait([], 30)
    assert signal.getsignal(signal.SIGINT) is before


class _Others:
    """What `_tell_others` finds; its OTHERS does what it is made with."""

    def __init__(self, tell: Callable[[], object]):
        self.OTHERS = self
        self._tell = tell

    def tell(self, sentence: str, status: int) -> None:
        self._tell()


def test_a_signal_while_the_processes_join_ends_this_one_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """jax answers wrongly, or not at all, between its first and its last step of joining."""

    def fail() -> NoReturn:
        raise RuntimeError("the service is gone")

    ended: list[tuple[str, int]] = []
    monkeypatch.setattr(preemption, "TELLING_SECONDS", 0.1)
    monkeypatch.setattr(preemption, "JOINING_SECONDS", 0.1)
    monkeypatch.setattr(preemption, "end_now", lambda *end: ended.append(end))
    for tell in (fail, lambda: time.sleep(60)):
        monkeypatch.setitem(sys.modules, "limba.sharding.others", _Others(tell))  # type: ignore[arg-type]
        with preemption.joining():
            preemption._end("It ends.", 75)
    assert ended == [("It ends.", 75)] * 2


SIGNALLED = """
import os, signal, time
import jax
initialize = jax.distributed.initialize

def initialize_after_a_signal(**arguments):
    if os.environ["PROCESS_ID"] == "1":
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(1)  # the thread that hears it acts meanwhile
    initialize(**arguments)

jax.distributed.initialize = initialize_after_a_signal
"""


@pytest.mark.slow
def test_a_signal_while_jax_joins_the_processes_ends_all_with_a_sentence(tmp_path: Path) -> None:
    """One ended at once, and jax ended the other one a minute later, by SIGABRT."""
    processes = Processes(tmp_path, 2, wait=60, prelude=SIGNALLED)
    ends = [processes.end(index) for index in (0, 1)]
    assert [status for status, _ in ends] == [75, 75], ends
    said = "SIGTERM ended the run before a step was done; the same command starts it again."
    assert ends[1][1] == [said]
    assert len(ends[0][1]) == 1 and "Process 1 of 2 (host" in ends[0][1][0] and said.rstrip(".") in ends[0][1][0]
