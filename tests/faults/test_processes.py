"""Processes that are killed, asked to stop, stopped for a while or stuck: the run says why, and loses nothing."""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.faults.runs import AGAIN, END_SECONDS, LONG_STEPS, RESUMED_STEPS, TRAINED_STEPS, Runs, Setting
from tests.faults.starts import Start, is_saving

pytestmark = pytest.mark.night

HOST_SECONDS = 30.0  # RunConfig.host_timeout_seconds
STEP_SECONDS = 10.0  # RunConfig.step_timeout_seconds where a step stands still
STOPPED_SECONDS = 60.0
AGAIN_SECONDS = 0.6  # from the first Ctrl-C to the second; less counts as one
STOPPED_STEPS = 80  # of the run that is stopped alone
GONE_SECONDS = 15.0  # of MODEL_DIR
STACKS = "taken_and_recorded"  # the function of kill.RECORDING that stands still
KILLED = {-9}
RESTART = {AGAIN}
LOST = {AGAIN, -signal.SIGABRT}  # of the others; jax ends them with a message of its own
INTERRUPTED = {75, 130}  # Ctrl-C ends the process like any program, or as one that is started again
HOST_TIMEOUT = f"--gin.config.RunConfig.host_timeout_seconds={HOST_SECONDS}"
STEP_TIMEOUT = f"--gin.config.RunConfig.step_timeout_seconds={STEP_SECONDS}"


@dataclass(frozen=True)
class Sent:
    """A signal to some processes of a run, at a random moment or inside a save."""

    name: str
    number: int
    processes: int  # of the run
    targets: tuple[int, ...]
    in_save: bool = False

    @property
    def loses_some(self) -> bool:
        """Whether some processes die, and others notice it."""
        return self.number == signal.SIGKILL and len(self.targets) < self.processes

    def codes(self, process: int) -> set[int]:
        """Returns the exit codes that a process may have."""
        if self.number == signal.SIGKILL and process in self.targets:
            return KILLED
        return LOST if self.loses_some else RESTART

    @property
    def says(self) -> str | None:
        """What the console says; None where nobody is left to say it."""
        if self.number == signal.SIGKILL:
            return "" if self.loses_some else None
        return "save"


def _signals() -> Iterator[Sent]:
    for processes in (1, 2, 4):
        everyone = tuple(range(processes))
        groups = {"first": (0,), "last": (processes - 1,), "all": everyone}
        if processes == 1:
            groups = {"all": everyone}
        for in_save in (False, True):
            suffix = "-in-save" if in_save else ""
            for which, targets in groups.items():
                yield Sent(f"kill-{which}-of-{processes}{suffix}", signal.SIGKILL, processes, targets, in_save)
            for which, targets in groups.items():
                if which != "first":
                    yield Sent(f"term-{which}-of-{processes}{suffix}", signal.SIGTERM, processes, targets, in_save)
    yield Sent("ctrl-c", signal.SIGINT, 1, (0,))
    yield Sent("hangup", signal.SIGHUP, 1, (0,))  # as a closed terminal sends it


SIGNALS = list(_signals())


@pytest.mark.parametrize("sent", SIGNALS, ids=lambda sent: sent.name)
def test_a_signal_loses_nothing(sent: Sent, runs: Runs, moments: random.Random) -> None:
    setting = Setting(sent.processes, LONG_STEPS[sent.processes])
    directory = runs.trained(setting, "signal")
    with runs.training(directory, setting, moments.randint(6, 10), extra=[HOST_TIMEOUT]) as start:
        if sent.in_save:
            assert start.until(lambda: is_saving(directory), pause=0.001), start.text()
            time.sleep(moments.uniform(0.0, 0.08))
        else:
            time.sleep(moments.uniform(0.0, 0.3))
        since = time.monotonic()
        start.send(sent.number, moments.sample(sent.targets, len(sent.targets)))
        codes = start.wait(HOST_SECONDS + END_SECONDS)
    wanted = [sent.codes(process) for process in range(sent.processes)]
    runs.check(start, directory, codes, wanted, since, sent.says, by_jax=sent.loses_some)
    promised = max(TRAINED_STEPS, start.promised())
    runs.check_resumes(directory, setting, promised, steps=promised + RESUMED_STEPS[sent.processes])


@pytest.mark.parametrize("processes", [1, 2], ids=lambda number: f"stuck-step-of-{number}")
def test_a_step_that_stands_still_ends_the_run(processes: int, runs: Runs, moments: random.Random) -> None:
    setting = Setting(processes, LONG_STEPS[processes])
    directory = runs.trained(setting, "stuck")
    stuck = {processes - 1: {"STUCK_AT": str(TRAINED_STEPS + moments.randint(6, 10))}}
    with runs.training(directory, setting, 1, extra=[HOST_TIMEOUT, STEP_TIMEOUT], variables=stuck) as start:
        since = start.quiet_since()
        codes = start.wait(STEP_SECONDS + HOST_SECONDS + END_SECONDS)
    runs.check(start, directory, codes, [RESTART] * processes, since, r"\bstep\b")
    files = (path for path in directory.rglob("*") if path.suffix in (".txt", ".log"))
    assert any(STACKS in path.read_text() for path in files), f"no file in the run's directory has {STACKS}"
    promised = max(TRAINED_STEPS, start.promised())
    runs.check_resumes(directory, setting, promised, steps=promised + RESUMED_STEPS[setting.processes])


def test_ctrl_c_twice_ends_a_run_whose_step_stands_still(runs: Runs, moments: random.Random) -> None:
    """The trial ctrl-c-twice: the first one saves nothing."""
    setting = Setting(1, LONG_STEPS[1])
    directory = runs.trained(setting, "twice")
    stuck = {0: {"STUCK_AT": str(TRAINED_STEPS + moments.randint(6, 10))}}
    with runs.training(directory, setting, 1, variables=stuck) as start:
        start.quiet_since()
        start.send(signal.SIGINT, [0])
        time.sleep(AGAIN_SECONDS)
        assert start.is_running(), start.text()
        since = time.monotonic()
        start.send(signal.SIGINT, [0])
        codes = start.wait(END_SECONDS)
    runs.check(start, directory, codes, [{130}], since, "second SIGINT")
    promised = max(TRAINED_STEPS, start.promised())
    runs.check_resumes(directory, setting, promised, steps=promised + RESUMED_STEPS[setting.processes])


def test_ctrl_c_while_the_program_is_loaded(runs: Runs, moments: random.Random) -> None:
    """The trial ctrl-c-early."""
    setting = Setting()
    directory = runs.trained(setting, "early")
    with runs.start(directory, setting, program=("-m", "limba", "train")) as start:
        time.sleep(moments.uniform(0.8, 2.5))
        since = time.monotonic()
        start.send(signal.SIGINT, [0])
        codes = start.wait(END_SECONDS)
    runs.check(start, directory, codes, [INTERRUPTED], since, None)
    runs.check_resumes(directory, setting, TRAINED_STEPS)


def test_one_of_two_processes_that_is_stopped_is_named_as_lost(runs: Runs) -> None:
    """The trial stopped-60-s-of-2: SIGSTOP of the last process, and SIGCONT when the first one has said so."""
    setting = Setting(2, LONG_STEPS[2])
    directory = runs.trained(setting, "stopped")
    with runs.training(directory, setting, 6, extra=[HOST_TIMEOUT]) as start:
        since = time.monotonic()
        start.send(signal.SIGSTOP, [1])
        assert start.until(lambda: runs.said(start, directory, since), HOST_SECONDS + END_SECONDS), start.text()
        start.send(signal.SIGCONT, [1])
        codes = start.wait(END_SECONDS)
    runs.check(start, directory, codes, [LOST, LOST], since, by_jax=True)
    promised = max(TRAINED_STEPS, start.promised())
    runs.check_resumes(directory, setting, promised, steps=promised + RESUMED_STEPS[setting.processes])


def _stop_for_a_while(start: Start, directory: Path) -> None:
    start.send(signal.SIGSTOP, [0])
    time.sleep(STOPPED_SECONDS)
    start.send(signal.SIGCONT, [0])


def _move_for_a_while(start: Start, directory: Path) -> None:
    away = directory.with_name(f"{directory.name}_away")
    directory.rename(away)
    time.sleep(GONE_SECONDS)
    away.rename(directory)


DISTURBANCES = {
    "stopped-60-s-of-1": (_stop_for_a_while, None),  # and the sentence
    "model-dir-moved": (_move_for_a_while, "is gone|tried again"),
}


@pytest.mark.parametrize("name", DISTURBANCES)
def test_a_run_goes_on_by_itself(name: str, runs: Runs) -> None:
    disturb, says = DISTURBANCES[name]
    setting = Setting(1, LONG_STEPS[1])
    directory = runs.trained(setting, "disturbed")
    with runs.training(directory, setting, 3, steps=STOPPED_STEPS) as start:
        since = time.monotonic()
        disturb(start, directory)
        codes = start.wait(2 * END_SECONDS)
    runs.check(start, directory, codes, [{0}], since, says)
    runs.check_same(start, directory, setting, TRAINED_STEPS)


def test_one_process_of_twice_the_devices_resumes_two(runs: Runs) -> None:
    """The trial kill-all-of-2-resumed-by-1."""
    setting = Setting(2, LONG_STEPS[2])
    directory = runs.trained(setting, "other")
    with runs.training(directory, setting, 3) as start:
        since = time.monotonic()
        start.send(signal.SIGKILL, [0, 1])
        codes = start.wait(END_SECONDS)
    runs.check(start, directory, codes, [KILLED, KILLED], since, None)
    promised = max(TRAINED_STEPS, start.promised())
    runs.check_resumes(directory, setting, promised, processes=1, steps=promised + RESUMED_STEPS[setting.processes])
