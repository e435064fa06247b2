"""Undisturbed runs, and the judgement: what a run said after a fault, and whether what came then is the same."""

from __future__ import annotations

import contextlib
import dataclasses
import re
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import kill
from tests.faults.starts import Line, Start

MOST_LINES = 5  # that a fault may print on one console
END_SECONDS = 120.0  # after which a process that still runs counts as hanging
TRAINED_STEPS = 20  # of the run that the faults begin with; a checkpoint every 5
WHOLE_STEPS = 40  # up to which it is resumed afterwards
# Of the undisturbed run that is compared with those that meet their fault while they train, by its processes.
LONG_STEPS = {1: 320, 2: 240, 4: 100}
MORE_STEPS = 20  # that those train afterwards
# The same after processes have ended, by their number: more than were trained and not saved. Four processes share two
# cores, where most of a trial's time would be their steps.
RESUMED_STEPS = {1: 60, 2: 60, 4: 25}
UNSAVED = "--gin.CHECKPOINT_PERIOD=1000"  # of a run to compare with, which nobody resumes
TOLERANCE = 1e-5  # of the first ten steps' losses on another number of processes, as in tests/run/test_kill.py
UNWANTED = re.compile(
    r"Traceback \(most recent call last\)|\*\*\* Check failure|^\s*@ +0x|\[[EF]\d{4} |\b[EF]\d{4} \d\d:\d\d|"
    r"Fatal Python error|core dumped|terminate called",
    re.MULTILINE,
)
STARTS = 3  # of a run that asks to be started again
AGAIN = 75
INPUT = {2}
STORAGE = {74}
ORDINARY_SAVE = re.compile(r"step [\d,]+ saved in \S+")


@dataclass(frozen=True)
class Setting:
    """What is trained on how many processes. Runs of one setting must be equal to the last bit."""

    processes: int = 1
    steps: int = WHOLE_STEPS  # of the undisturbed run
    corpus: str | None = None  # another corpus; None: the one all tests share
    more: tuple[str, ...] = ()  # further arguments of `limba train`


@dataclass(frozen=True)
class Reference:
    """The hashes and losses of a run that nothing disturbed."""

    hashes: dict[tuple[int, int], set[str]]
    losses: dict[int, float]


def shape(text: str, directory: Path) -> str:
    """Returns a line without its numbers and what follows the first bar: the same for all lines of its kind.

    >>> shape("step 12/400 | loss 5.1", Path("/tmp/a"))
    'step #/#'
    """
    text = text.replace(str(directory), "DIR").split(" | ")[0]
    return re.sub(r"[\d.,]*\d", "#", text).strip()


class Runs:
    """A folder for the runs, a corpus, a vocabulary, and the undisturbed runs to compare with."""

    def __init__(self, folder: Path, corpus: Path, vocabulary: Path):
        self.folder = folder
        self.corpus = corpus
        self.vocabulary = vocabulary
        self.ordinary: set[str] = set()  # shapes of the lines of undisturbed runs
        self._references: dict[Setting, Reference] = {}
        self._trained: dict[Setting, Path] = {}
        self._count = 0

    def new(self, name: str) -> Path:
        """Returns a path in the folder that nothing has yet."""
        self._count += 1
        return self.folder / f"{name}_{self._count}"

    def start(
        self, directory: Path, setting: Setting, steps: int | None = None, extra: Sequence[str] = (), **parts: Any
    ) -> Start:
        """Starts a run in the directory, up to `steps` or the setting's; `parts` are passed on to `Start`."""
        arguments = [*self.arguments(directory, setting, steps), *extra]
        return Start(arguments, setting.processes, self.new("hashes").with_suffix(".txt"), **parts)

    def arguments(self, directory: Path, setting: Setting, steps: int | None = None) -> list[str]:
        """Returns the arguments of `limba train`."""
        return [
            *kill.demo_arguments(setting.corpus or str(self.corpus), str(self.vocabulary)),
            f"--gin.MODEL_DIR={directory}",
            f"--gin.TRAIN_STEPS={setting.steps if steps is None else steps}",
            "--gin.LOG_PERIOD=1",
            *setting.more,
        ]

    @contextlib.contextmanager
    def training(self, directory: Path, setting: Setting, made: int, **parts: Any) -> Iterator[Start]:
        """Yields a start that has printed so many steps. One that asks to be started again is, as users do.

        Processes on busy cores may not find each other in time.
        """
        codes: Sequence[int | None] = ()
        text = ""
        for _ in range(STARTS):
            with self.start(directory, setting, **parts) as start:
                if start.trains(made):
                    yield start
                    return
                codes = start.wait(30)
                text = start.text()
            if set(codes) != {AGAIN}:
                break
        raise AssertionError(f"The run came to no {made} steps and ended with {codes}: {text[-3000:]}")

    def _undisturbed(self, directory: Path, setting: Setting, steps: int, extra: Sequence[str] = ()) -> Start:
        codes: Sequence[int | None] = ()
        for _ in range(STARTS):
            with self.start(directory, setting, steps, extra) as start:
                codes = start.wait(3 * END_SECONDS + steps)
            if not any(codes):
                self.ordinary |= {shape(line.text, directory) for line in start.lines}
                return start
            shutil.rmtree(directory)
        raise AssertionError(f"An undisturbed run ended with {codes}: {start.text()[-3000:]}")

    def reference(self, setting: Setting) -> Reference:
        """Returns what an undisturbed run of the setting gives; it is run once."""
        for known, reference in self._references.items():
            if dataclasses.replace(known, steps=setting.steps) == setting and known.steps >= setting.steps:
                return reference
        directory = self.new("reference")
        start = self._undisturbed(directory, setting, setting.steps, [UNSAVED])
        self._references[setting] = Reference(kill.hashes_in(start.hashes), kill.losses_in(directory))
        return self._references[setting]

    def trained(self, setting: Setting, name: str) -> Path:
        """Returns a fresh copy of a run of TRAINED_STEPS steps, whose directory holds its last two checkpoints."""
        key = dataclasses.replace(setting, steps=TRAINED_STEPS)
        if key not in self._trained:
            directory = self.new("trained")
            self._undisturbed(directory, key, TRAINED_STEPS)
            learned = self.new("learned")
            shutil.copytree(directory, learned)
            self._undisturbed(learned, key, TRAINED_STEPS + 1)  # for the lines of an undisturbed resume
            self._trained[key] = directory
        copy = self.new(name)
        shutil.copytree(self._trained[key], copy)
        return copy

    def said(self, start: Start, directory: Path, since: float = 0.0) -> list[Line]:
        """Returns the lines since then that an undisturbed run does not print."""
        if not self.ordinary:
            self.trained(Setting(), "ordinary")
        return [
            line
            for line in list(start.lines)
            if line.seconds >= since and line.text.strip() and not self._is_ordinary(line.text, directory)
        ]

    def check(
        self,
        start: Start,
        directory: Path,
        codes: Sequence[int | None],
        wanted: Sequence[set[int]],
        since: float,
        says: str | None = "",
        by_jax: bool = False,
    ) -> None:
        """Fails unless each process ended as it should after the fault, and said why in a few lines.

        `wanted` are the exit codes that each process may have; `says` is a pattern that the lines match, "" for any,
        and None if there may be none. With `by_jax` jax may say it, in as many lines as it likes.
        """
        wrong: list[str] = []
        for index, (code, allowed) in enumerate(zip(codes, wanted, strict=True)):
            if code is None:
                wrong.append(f"process {index} still runs")
            elif code not in allowed:
                wrong.append(f"process {index} ends with {code}, not {' or '.join(map(str, sorted(allowed)))}")
        lines = self.said(start, directory, since)
        text = "\n".join(line.text for line in lines)
        most = max((sum(line.process == n for line in lines) for n in range(len(start.processes))), default=0)
        if most > MOST_LINES and not by_jax:
            wrong.append(f"{most} lines")
        if (match := UNWANTED.search(text)) and not by_jax:
            wrong.append(f"prints {match[0].strip()!r}")
        if says is not None and not lines:
            wrong.append("nothing is said")
        elif says and not re.search(says, text):
            wrong.append(f"no line matches {says!r}")
        assert not wrong, f"{'; '.join(wrong)}\n--- said:\n{text}\n--- all:\n{start.text()[-4000:]}"

    def differences(self, start: Start, directory: Path, setting: Setting, promised: int = 0) -> str:
        """Returns "" if the start's batches and losses equal the undisturbed run's, else how they differ.

        `promised` is a step that was said to be saved: the start must not have begun before it.
        """
        whole = self.reference(setting)
        hashes_now = kill.hashes_in(start.hashes) if start.hashes.exists() else {}
        if not hashes_now:
            return "no batch was read after it"
        wrong = [batch for batch, hashes in hashes_now.items() if hashes != whole.hashes.get(batch, hashes)]
        if wrong:
            return f"{len(wrong)} of {len(hashes_now)} batches differ, the first is {min(wrong, key=lambda p: p[1])}"
        first = min(batch for _, batch in hashes_now)
        if first <= promised:
            return f"step {promised} was said to be saved, and step {first - 1} was resumed"
        losses = kill.losses_in(directory)
        if len(start.processes) != setting.processes:
            return _distant_losses(losses, whole.losses, range(first, first + 10))
        return _differing_losses(losses, whole.losses, first, start.trained())

    def check_same(self, start: Start, directory: Path, setting: Setting, promised: int = 0) -> None:
        """Fails unless the start's batches and losses equal the undisturbed run's."""
        problem = self.differences(start, directory, setting, promised)
        assert not problem, f"{problem}\n{start.text()[-4000:]}"

    def check_resumes(
        self, directory: Path, setting: Setting, promised: int = 0, processes: int = 0, **parts: Any
    ) -> None:
        """Resumes the run to its end, and fails unless it is the undisturbed one.

        `processes` is another number than the setting's.
        """
        resumed = dataclasses.replace(setting, processes=processes or setting.processes)
        codes: Sequence[int | None] = [AGAIN]
        for _ in range(STARTS):  # as launch/pretrain.sh does
            if all(code == AGAIN for code in codes):
                with self.start(directory, resumed, **parts) as start:
                    codes = start.wait(3 * END_SECONDS)
        assert not any(codes), f"the resumed run ends with {codes}\n{start.text()[-4000:]}"
        self.check_same(start, directory, setting, promised)

    def unusual(self, text: str, directory: Path) -> list[str]:
        """Returns the lines that an undisturbed run does not print."""
        return [line for line in text.splitlines() if line.strip() and not self._is_ordinary(line, directory)]

    def _is_ordinary(self, text: str, directory: Path) -> bool:
        is_known = shape(text, directory) in self.ordinary or ORDINARY_SAVE.fullmatch(text) is not None
        return is_known or text.startswith("[Gloo] ")  # of two processes' lines one may stand inside the other


def _differing_losses(losses: dict[int, float], whole: dict[int, float], first: int, trained: Sequence[int]) -> str:
    steps = [step for step in range(first, max(trained, default=first - 1) + 1) if step in whole]
    if not steps:
        return "no step was made after it"
    missing = [step for step in steps if step not in losses]
    if missing:
        return f"the losses of the steps {missing[:3]} are missing"
    wrong = [step for step in steps if losses[step] != whole[step]]
    return f"{len(wrong)} of {len(steps)} losses differ, the first at step {wrong[0]}" if wrong else ""


def _distant_losses(losses: dict[int, float], whole: dict[int, float], steps: Sequence[int]) -> str:
    most = max(abs(losses[step] / whole[step] - 1) for step in steps)
    return "" if most <= TOLERANCE else f"a loss differs by {most:.1e}"
