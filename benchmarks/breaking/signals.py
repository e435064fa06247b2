"""Processes that are killed, asked to stop, stopped for a while or stuck: one after the other in one directory."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.breaking.bench import (
    AGAIN,
    END_SECONDS,
    LONG_STEPS,
    MORE_STEPS,
    STARTS,
    TRAINED_STEPS,
    Bench,
    Row,
    Setting,
)
from benchmarks.breaking.start import Start, is_saving

HOST_SECONDS = {1: 30.0, 2: 30.0, 4: 10.0}  # RunConfig.host_timeout_seconds, by the number of processes
STEP_SECONDS = 10.0  # RunConfig.step_timeout_seconds where a step stands still
STEPS = {1: LONG_STEPS, 2: 240, 4: 200}  # of the undisturbed runs, by the number of processes
STOPPED_SECONDS = 60.0
AGAIN_SECONDS = 0.6  # from the first Ctrl-C to the second; less counts as one
STOPPED_STEPS = 80  # of the run that is stopped alone
GONE_SECONDS = 15.0  # of MODEL_DIR
STACKS = "recorded"  # the function of kill.RECORDING that stands still
KILLED = {-9}
RESTART = {AGAIN}
LOST = {AGAIN, -signal.SIGABRT}  # of the others; jax ends them with a message of its own
INTERRUPTED = {75, 130}  # Ctrl-C ends the process like any program, or as one that is started again


@dataclass(frozen=True)
class Fault:
    """A signal to some processes of a run, at a random moment or inside a save."""

    name: str
    done: str
    number: int
    targets: tuple[int, ...]
    in_save: bool = False
    wanted: Mapping[int, set[int]] = field(default_factory=dict)  # the targets' exit codes
    says: str | None = ""
    within: float = 30.0
    kind: str = "once"  # twice, stopped, stuck

    @property
    def stands_still(self) -> bool:
        """Whether a step of the last process never ends."""
        return self.kind in ("stuck", "twice")


def _kills(processes: int) -> Iterator[Fault]:
    everyone, last = tuple(range(processes)), processes - 1
    groups = {"all": everyone} if processes == 1 else {"first": (0,), "last": (last,), "all": everyone}
    for in_save in (False, True):
        moment, suffix = (" during a save", "-in-save") if in_save else (" at random", "")
        for which, targets in groups.items():
            dead = ", ".join(map(str, targets))
            yield Fault(
                f"kill-{which}-of-{processes}{suffix}",
                f"kill -9 of {'all' if which == 'all' else f'process {dead}'} of {processes}{moment}",
                signal.SIGKILL,
                targets,
                in_save,
                dict.fromkeys(targets, KILLED),
                None if which == "all" else "",
                HOST_SECONDS[processes],
            )
        for which, targets in groups.items():
            if which != "first":
                yield Fault(
                    f"term-{which}-of-{processes}{suffix}",
                    f"SIGTERM to {'all' if which == 'all' else 'process ' + str(last)} of {processes}{moment}",
                    signal.SIGTERM,
                    targets,
                    in_save,
                    dict.fromkeys(targets, RESTART),
                    "save",
                )


def faults(processes: int) -> list[Fault]:
    """Returns the faults that are done to runs of that many processes."""
    found, last = list(_kills(processes)), processes - 1
    asked = {0: RESTART}
    if processes == 1:
        found += [
            Fault("ctrl-c", "Ctrl-C once", signal.SIGINT, (0,), wanted=asked, says="save"),
            Fault(
                "ctrl-c-twice",
                "Ctrl-C twice, while a step stands still, so that the first one saves nothing",
                signal.SIGINT,
                (0,),
                wanted={0: {130}},
                says="second SIGINT",
                within=5,
                kind="twice",
            ),
            Fault("hangup", "SIGHUP, as a closed terminal sends it", signal.SIGHUP, (0,), wanted=asked, says="save"),
        ]
    if processes < 4:
        found += [
            Fault(
                f"stuck-step-of-{processes}",
                f"process {last} of {processes} stands still in a step",
                0,
                (last,),
                wanted={last: RESTART},
                says=r"\bstep\b",
                within=STEP_SECONDS + HOST_SECONDS[processes],
                kind="stuck",
            ),
        ]
    if processes == 2:
        found += [
            Fault(
                f"stopped-60-s-of-{processes}",
                f"SIGSTOP of process {last} of {processes} for 60 s, then SIGCONT",
                signal.SIGSTOP,
                (last,),
                wanted={last: LOST},
                within=HOST_SECONDS[processes],
                kind="stopped",
            ),
        ]
    return found


def _do(bench: Bench, start: Start, fault: Fault, directory: Path) -> tuple[float, list[int | None]]:
    """Does the fault to a run that trains; returns when, and the exit codes."""
    moments = bench.moments
    if fault.stands_still:
        quiet = time.monotonic()
        while start.is_running() and time.monotonic() < quiet + 3:
            if start.lines and start.lines[-1].seconds > quiet:
                quiet = start.lines[-1].seconds
            time.sleep(0.05)
        if fault.kind == "stuck":
            return quiet, start.wait(END_SECONDS)
    if fault.in_save:
        start.until(lambda: is_saving(directory), 60, pause=0.001)
        time.sleep(moments.uniform(0.0, 0.08))
    else:
        time.sleep(moments.uniform(0.0, 0.3))
    order = moments.sample(fault.targets, len(fault.targets))
    since = time.monotonic()
    start.send(fault.number, order)
    if fault.kind == "twice":
        time.sleep(AGAIN_SECONDS)
        since = time.monotonic()
        start.send(fault.number, order)
    if fault.kind == "stopped":
        deadline = since + STOPPED_SECONDS
        while time.monotonic() < deadline:
            time.sleep(0.1)
        start.send(signal.SIGCONT, order)
    return since, start.wait(END_SECONDS)


class Chain:
    """One run that meets fault after fault: each start resumes what the fault before has left."""

    def __init__(self, bench: Bench, processes: int):
        self.bench, self.setting = bench, Setting(processes, STEPS[processes])
        self.directory, self.promised = bench.new("chain"), 0
        self.pending: Row | None = None  # of the fault before, until a start shows what it has left

    def run(self, chosen: Sequence[Fault]) -> Iterator[Row]:
        """Yields a row for each fault, once the start after it has shown what is left."""
        self.bench.reference(self.setting)
        for fault in chosen:
            row, is_ready, starts = Row(fault.name, fault.done), False, STARTS
            while not is_ready:
                steps, is_fresh = self.bench.moments.randint(6, 10), not self.directory.exists()
                starts -= 1
                with self._start(fault, steps) as start:
                    is_ready = start.trains(1 if fault.stands_still else steps)
                    since, codes = _do(self.bench, start, fault, self.directory) if is_ready else (0.0, start.wait(5))
                if not is_ready and starts and all(code == AGAIN for code in codes):
                    continue
                if self.pending is not None:
                    yield self._settled(self.pending, start, is_ready)
                    self.pending = None
                if is_ready:
                    self._judge(fault, row, start, since, codes)
                    self.pending = row
                    break
                if is_fresh:
                    row.wrong, row.output = [f"the run came to no step and ended with {codes}"], start.text()
                    yield row
                    break
                self.directory, self.promised = self.bench.new("chain"), 0
        if self.pending is not None:
            steps = self.promised + 3 * MORE_STEPS  # some may have been trained and not saved
            yield self.bench.resume(self.pending, self.directory, self.setting, self.promised, steps=steps)

    def _start(self, fault: Fault, steps: int) -> Start:
        extra = [f"--gin.config.RunConfig.host_timeout_seconds={HOST_SECONDS[self.setting.processes]}"]
        variables = {}
        if fault.kind == "stuck":
            extra.append(f"--gin.config.RunConfig.step_timeout_seconds={STEP_SECONDS}")
        if fault.stands_still:
            saved = [int(path.name) for path in self.directory.glob("checkpoints/*") if path.name.isdigit()]
            variables = {fault.targets[0]: {"STUCK_AT": str(max(saved, default=0) + steps)}}
        return self.bench.start(self.directory, self.setting, extra=extra, variables=variables)

    def _judge(self, fault: Fault, row: Row, start: Start, since: float, codes: Sequence[int | None]) -> None:
        number = self.setting.processes
        loses = fault.number in (signal.SIGKILL, signal.SIGSTOP) and len(fault.targets) < number
        wanted = [fault.wanted.get(index, LOST if loses else RESTART) for index in range(number)]
        self.bench.judge(row, start, self.directory, codes, wanted, since, fault.says, fault.within, loses)
        self.promised = max(self.promised, start.promised())
        if fault.number == signal.SIGKILL and fault.in_save:
            torn = any("tmp" in path.name for path in self.directory.glob("checkpoints/*"))
            row.done += ", which it tore" if torn else ", which had just ended"
        if fault.kind == "stuck" and not any(STACKS in path.read_text() for path in _texts(self.directory)):
            row.wrong.append(f"no file in the run's directory has the stack, with {STACKS}")

    def _settled(self, row: Row, start: Start, is_ready: bool) -> Row:
        """Returns the row of the fault before, finished by the start that came after it."""
        problem = "the run does not resume"
        if is_ready:
            problem = self.bench.differences(start, self.directory, self.setting, self.promised)
        return self.bench.resumed(row, problem, start)


def _texts(directory: Path) -> list[Path]:
    """Returns the small files of a run that are no figures and no checkpoints."""
    places = (path for path in directory.rglob("*") if path.is_file() and "checkpoints" not in path.parts)
    return [path for path in places if path.suffix in (".txt", ".log") and path.stat().st_size < 1 << 22]


def rows(bench: Bench, processes: int, chosen: Sequence[str]) -> Iterator[Row]:
    """Yields the rows of the chosen faults of runs of that many processes."""
    by_name = {fault.name: fault for fault in faults(processes)}
    if picked := [by_name[name] for name in chosen if name in by_name]:
        yield from Chain(bench, processes).run(picked)
    for name, function in ALONE.items():
        if name in chosen and processes == 1:
            yield function(bench, name)


def _interrupted_early(bench: Bench, name: str) -> Row:
    setting = Setting()
    directory = bench.trained(setting, "early")
    with bench.start(directory, setting, program=("-m", "limba", "train")) as start:
        time.sleep(bench.moments.uniform(0.8, 2.5))
        since = time.monotonic()
        start.send(signal.SIGINT, [0])
        codes = start.wait(END_SECONDS)
    row = Row(name, "Ctrl-C while the program is being loaded")
    bench.judge(row, start, directory, codes, [INTERRUPTED], since, None)
    return bench.resume(row, directory, setting, TRAINED_STEPS)


def _stopped_alone(bench: Bench, name: str) -> Row:
    def stop(start: Start, _: Path) -> None:
        start.send(signal.SIGSTOP, [0])
        time.sleep(STOPPED_SECONDS)
        start.send(signal.SIGCONT, [0])

    row = Row(name, "SIGSTOP of the only process for 60 s, then SIGCONT")
    return _disturbed(bench, row, stop, None)


def _other_number(bench: Bench, name: str) -> Row:
    setting = Setting(2, STEPS[2])
    directory = bench.trained(setting, "other")
    with bench.start(directory, setting) as start:
        start.trains(3)
        since = time.monotonic()
        start.send(signal.SIGKILL, [0, 1])
        codes = start.wait(END_SECONDS)
    row = Row(name, "kill -9 of all of 2; one process of twice the devices resumes it")
    bench.judge(row, start, directory, codes, [{-9}, {-9}], since, None)
    promised = max(TRAINED_STEPS, start.promised())
    return bench.resume(row, directory, setting, promised, processes=1, steps=promised + 3 * MORE_STEPS)


def _moved_model_dir(bench: Bench, name: str) -> Row:
    def move(_: Start, directory: Path) -> None:
        away = directory.with_name("away")
        directory.rename(away)
        time.sleep(GONE_SECONDS)
        away.rename(directory)

    row = Row(name, f"MODEL_DIR is moved away, and back after {GONE_SECONDS:.0f} s")
    return _disturbed(bench, row, move, "is gone|tried again")


def _disturbed(bench: Bench, row: Row, does: Callable[[Start, Path], None], says: str | None) -> Row:
    """Returns the row of a run that goes on to its end by itself."""
    setting = Setting(1, LONG_STEPS)
    directory = bench.trained(setting, "disturbed")
    with bench.start(directory, setting, steps=STOPPED_STEPS) as start:
        start.trains(3)
        since = time.monotonic()
        does(start, directory)
        codes = start.wait(END_SECONDS)
    bench.judge(row, start, directory, codes, [{0}], since, says, within=2 * STOPPED_SECONDS)
    return bench.resumed(row, bench.differences(start, directory, setting, TRAINED_STEPS), start)


ALONE = {
    "model-dir-moved": _moved_model_dir,
    "ctrl-c-early": _interrupted_early,
    "stopped-60-s-of-1": _stopped_alone,
    "kill-all-of-2-resumed-by-1": _other_number,
}


def names(processes: int) -> list[str]:
    """Returns the names of the faults that are done to runs of that many processes."""
    return [*(fault.name for fault in faults(processes)), *(ALONE if processes == 1 else ())]
