"""One start of a run: its processes, and what each of them prints and when."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks import kill
from limba.training.checkpoints.step_directory import UNFINISHED

FIRST_STEP_SECONDS = 400.0  # for a start's first step, on cores that others use too
QUICK = " --xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
TRAINED = re.compile(r"step ([\d,]+)/[\d,]+ \|")
WRITTEN = re.compile(rf"\d+\.[0-9a-f]+{re.escape(UNFINISHED)}")  # a step's directory until it is committed
SAVED = re.compile(r"\bstep ([\d,]+) (?:is )?saved", re.IGNORECASE)


@dataclass(frozen=True)
class Line:
    """One line of a process's console, and when it came (`time.monotonic`)."""

    process: int
    seconds: float
    text: str


class Start:
    """Processes that train, with their consoles read line by line. Use it as a context manager: none outlives it.

    `each` gives arguments, `before` the words of a command in front, `variables` the environment's, each for one
    process by its number. `program` are Python's own arguments; by default those that record each batch.
    """

    def __init__(
        self,
        arguments: Sequence[str],
        processes: int,
        hashes: Path,
        of_processes: Mapping[int, Sequence[str]] | None = None,
        before: Mapping[int, Sequence[str]] | None = None,
        variables: Mapping[int, Mapping[str, str]] | None = None,
        program: Sequence[str] = ("-c", kill.RECORDING),
    ):
        of_processes = of_processes or {}
        before = before or {}
        variables = variables or {}
        self.hashes = hashes
        self.lines: list[Line] = []
        self.began = time.monotonic()
        self.processes = [
            subprocess.Popen(
                [*before.get(index, ()), sys.executable, *program, *arguments, *of_processes.get(index, ())],
                env={**environment, **_compiling(environment, processes), **variables.get(index, {})},
                cwd=kill.ROOT,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                start_new_session=True,
            )
            for index, environment in enumerate(kill.environments(processes, hashes))
        ]
        self._threads = [
            threading.Thread(target=self._listen, args=(index,), daemon=True) for index in range(processes)
        ]
        for thread in self._threads:
            thread.start()

    def __enter__(self) -> Start:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.processes:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # its children, too
            process.wait()
        for thread, process in zip(self._threads, self.processes, strict=True):
            thread.join(5)
            if not thread.is_alive() and process.stdout is not None:
                process.stdout.close()

    def _listen(self, index: int) -> None:
        stream = self.processes[index].stdout
        assert stream is not None
        for text in stream:
            for part in text.rstrip("\n").split("\r"):
                self.lines.append(Line(index, time.monotonic(), part))

    def is_running(self) -> bool:
        """Returns whether all processes run."""
        return all(process.poll() is None for process in self.processes)

    def until(self, condition: Callable[[], object], limit: float = FIRST_STEP_SECONDS, pause: float = 0.02) -> bool:
        """Waits until the condition is true; returns False if a process ends or the limit passes before."""
        deadline = time.monotonic() + limit
        while not condition():
            if not self.is_running() or time.monotonic() > deadline:
                return bool(condition())
            time.sleep(pause)
        return True

    def trains(self, steps: int) -> bool:
        """Waits until that many steps are printed; returns False if the run ends before."""
        return self.until(lambda: len(self.trained()) >= steps)

    def trained(self) -> list[int]:
        """Returns the steps whose figures the first process has printed."""
        return self._numbers(TRAINED)

    def promised(self) -> int:
        """Returns the last step that was said to be saved; 0 if none was."""
        return max(self._numbers(SAVED), default=0)

    def last_saved(self) -> float:
        """Returns when the last checkpoint was said to be saved; without one, when this began."""
        return max((line.seconds for line in self.lines if SAVED.search(line.text)), default=self.began)

    def _numbers(self, pattern: re.Pattern[str]) -> list[int]:
        matches = (pattern.search(line.text) for line in list(self.lines))
        return [int(match[1].replace(",", "")) for match in matches if match]

    def quiet_since(self) -> float:
        """Waits until nothing is printed for three seconds; returns when that began."""
        quiet = time.monotonic()
        while self.is_running() and time.monotonic() < quiet + 3:
            if self.lines and self.lines[-1].seconds > quiet:
                quiet = self.lines[-1].seconds
            time.sleep(0.05)
        return quiet

    def send(self, number: int, processes: Sequence[int]) -> None:
        """Sends a signal to these processes, those that have ended left out."""
        for index in processes:
            if self.processes[index].poll() is None:
                self.processes[index].send_signal(number)

    def wait(self, limit: float) -> list[int | None]:
        """Returns the exit codes of all processes, None for one that still runs after the limit and was killed."""
        deadline = time.monotonic() + limit
        codes: list[int | None] = [None] * len(self.processes)
        while None in codes and time.monotonic() < deadline:
            for index, process in enumerate(self.processes):
                if codes[index] is None and process.poll() is not None:
                    codes[index] = process.returncode
            time.sleep(0.01)
        self.__exit__()
        return codes

    def text(self) -> str:
        """Returns all that was printed, each line with its process where there are several."""
        many = len(self.processes) > 1
        return "\n".join(f"{line.process}: {line.text}" if many else line.text for line in self.lines)


def _compiling(environment: Mapping[str, str], processes: int) -> dict[str, str]:
    """Returns what makes several processes compile in about the same time; gloo waits 30 seconds for the last one.

    Without the compile cache none is early, also where one has lost its part of it; without optimization none is
    late.
    """
    if processes == 1:
        return {}
    return {"XLA_FLAGS": environment["XLA_FLAGS"] + QUICK, "JAX_ENABLE_COMPILATION_CACHE": "false"}


def is_saving(directory: Path) -> bool:
    """Returns whether a checkpoint is being written now, by its unfinished directory."""
    with contextlib.suppress(FileNotFoundError):
        return any(WRITTEN.fullmatch(name) for name in os.listdir(directory / "checkpoints"))
    return False
