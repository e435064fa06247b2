"""Functions of a program that get a run's figures, and may stop it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from limba.sharding.preemption import stop_all

# Gets a step and its figures by name, as metrics.jsonl has them.
Callback = Callable[[int, dict[str, float]], object]


@dataclass(frozen=True)
class Callbacks:
    """Functions that a run's first process calls. One that returns False stops the run.

    The run saves after the step that it is in, and ends; the same call resumes it. An error that one raises stops it
    too, and is raised when the step is saved.
    """

    on_log: Callback | None = None  # at each logged line: loss, learning_rate, seconds_per_step, …
    on_evaluation: Callback | None = None  # at each evaluation: loss, accuracy, bits_per_byte, the text's metrics


class Calls:
    """Calls the callbacks of a run; `must_stop` is what they say."""

    def __init__(self, callbacks: Callbacks):
        self._callbacks, self.must_stop = callbacks, False
        self._failure: Exception | None = None

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Calls `on_log` with the figures of the steps up to `step`."""
        self._call(self._callbacks.on_log, step, values)

    def evaluated(self, step: int, values: Mapping[str, float]) -> None:
        """Calls `on_evaluation` with the figures of the validation split and of generated text."""
        self._call(self._callbacks.on_evaluation, step, values)

    def check(self) -> None:
        """Raises the error of a callback, if there was one."""
        if self._failure is not None:
            raise self._failure

    def _call(self, callback: Callback | None, step: int, values: Mapping[str, float]) -> None:
        if callback is None:
            return
        try:
            found = callback(step, {name: float(value) for name, value in values.items()})
            stops = isinstance(found, bool | np.bool) and not found
        except Exception as error:  # noqa: BLE001  it is the user's, and raised when the step is saved
            self._failure, stops = error, True
        self.must_stop = self.must_stop or (stops and stop_all())
