"""What a run does when its corpus cannot be read any more: it saves what was trained, and ends with the reason."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping, Sequence
from typing import Any

import jax

from limba.config import InputError, RestartError
from limba.config.errors import SentenceError, reason_of
from limba.data.stream.streams import Rows
from limba.sharding.agreement import any_process, together


class RowReader:
    """The rows of each step. `failure` is the error for which the run must end; what was trained is saved before.

    With several processes all must save after the same step, which the stop signals settle. So a process that sees
    that its rows will end asks all to stop while it still has prefetched ones.
    """

    def __init__(self, has_epochs: bool):
        self._has_epochs = has_epochs
        self.failure: BaseException | None = None

    def next_rows(self, stream: Any, saved_steps: Sequence[int]) -> Mapping[int, Rows] | None:
        """Returns this process's rows, or None if the corpus of every process has ended or this one has failed."""
        try:
            rows = next(stream, None)
        except Exception as error:
            if jax.process_count() > 1:  # the others are in the next step already
                kept = _newest(saved_steps)
                raise _kind(error)(f"{_sentence(error)} The other processes wait for these rows: {kept}.") from error
            self.failure = error
            return None
        if self._has_epochs and not any_process(rows is not None):
            return None
        return stream.empty() if rows is None else rows

    def must_stop(self, stream: Any) -> bool:
        """Returns whether the run must stop after this step, since later rows cannot be read."""
        if self.failure is None and (failure := stream.failure()) is not None:
            self.failure = failure
            if jax.process_count() > 1:
                os.kill(os.getpid(), signal.SIGTERM)  # jax carries it to all processes, and names the step
        return self.failure is not None and jax.process_count() == 1

    def positions(self, stream: Any, saved_steps: Sequence[int]) -> Mapping[int, bytes]:
        """Returns the stream's data positions; after a failure an error of it says which step is kept."""
        try:
            return stream.positions()
        except (InputError, RestartError) as error:
            failure = self.failure or error
            raise _kind(failure)(f"{_sentence(failure)} The steps since are lost: {_newest(saved_steps)}.") from error

    def end(self, step: int, has_trained: bool) -> None:
        """Raises the failure, in all processes alike; call it in all of them when the step is saved."""
        with together():
            if self.failure is not None and not has_trained:
                raise self.failure
            if self.failure is not None:
                saved = f"What was trained, up to step {step:,}, is saved."
                raise _kind(self.failure)(f"{_sentence(self.failure)} {saved}") from self.failure


def _newest(saved_steps: Sequence[int]) -> str:
    return f"step {max(saved_steps):,} is the last one saved" if saved_steps else "no step is saved"


def _kind(error: BaseException) -> type[InputError | RestartError]:
    return RestartError if isinstance(error, RestartError) else InputError


def _sentence(error: BaseException) -> str:
    if isinstance(error, SentenceError):
        return str(error)
    return f"The rows of the next step cannot be made: {type(error).__name__} ({reason_of(error)})."
