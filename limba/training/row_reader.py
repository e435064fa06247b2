"""The rows of each step: where a run begins to read, and what it does when its corpus cannot be read any more."""

import contextlib
import functools
import logging
from collections.abc import Callable, Mapping

import jax

from limba.config import InputError, RestartError, SentenceError, StorageError, reason_of
from limba.config.errors import is_out_of_memory
from limba.data.stream.positions import Position, of_another_order
from limba.data.stream.shard import Rows
from limba.data.stream.streams import Stream
from limba.formats.limba_checkpoint import Notes
from limba.sharding.agreement import any_process, together
from limba.sharding.preemption import stop_all
from limba.training.checkpoints.directory import Checkpoints, Restored
from limba.training.history import History
from limba.training.state import TrainState

logger = logging.getLogger(__name__)

ShardRows = Mapping[int, Rows]  # a process's rows of a batch, by their shard


class RowReader:
    """The rows of each step, from the beginning of the data or where a checkpoint has stopped reading.

    `failure` is the error for which the run must end, after a save. With several processes all must save after the
    same step, which the stop signals settle. So a process that sees that its rows will end asks all to stop while it
    still has prefetched ones. Use it with `contextlib.closing`.
    """

    def __init__(
        self,
        checkpoints: Checkpoints,
        abstract: TrainState,
        open_stream: Callable[[], Stream],
        new_state: Callable[[], TrainState],
        history: History,
        has_epochs: bool,
    ):
        self.checkpoints = checkpoints
        self.history = history
        self._abstract = abstract
        self._has_epochs = has_epochs
        self._open = open_stream
        self._new_state = new_state
        self._opened: Stream | None = None
        self._step = 0  # of the rows that `next_rows` returned last
        self.failure: BaseException | None = None

    @property
    def stream(self) -> Stream:
        assert self._opened is not None  # `begin` has opened it
        return self._opened

    def close(self) -> None:
        """Closes the stream."""
        if self._opened is not None:
            self._opened.close()

    def begin(self, restore: Callable[..., Restored | None]) -> tuple[TrainState, Notes | None]:
        """Returns the restored state and its checkpoint's notes, or a new state; the stream is at the same step."""
        self.close()
        stream = self._open()
        self._opened = stream

        def check(positions: Mapping[int, Position]) -> None:
            if not of_another_order(positions, 0):
                stream.check(positions)

        restored = restore(self._abstract, check)
        if restored is None:
            state = self._new_state()
            self._step = int(state.step)
            stream.begin(self._step)
            return state, None
        step = int(restored.state.step)
        notes = restored.notes
        self._step = step
        anew = of_another_order(restored.positions, step)
        if not anew:
            stream.begin(step, restored.positions)
            return restored.state, notes
        if jax.process_index() == 0:
            logger.warning(anew)
        stream.begin(step)
        guard = notes.get("guard", {})
        return restored.state, {**notes, "guard": {**guard, "data_start": step}}

    def go_back(self, step: int | None) -> tuple[TrainState, Notes | None]:
        """Begins at a saved step; None: at the start of the run. Later checkpoints are set aside."""
        if step is None:
            return self.begin(lambda *_: None)
        return self.begin(functools.partial(self.checkpoints.restore_step, step))

    def next_rows(self) -> ShardRows | None:
        """Returns this process's rows, or None if the corpus of every process has ended or this one has failed."""
        try:
            rows = next(self.stream, None)
        except Exception as error:
            if jax.process_count() > 1:  # the others are in the next step already
                raise _kind(error)(
                    f"{_sentence(error)} The other processes wait for these rows: {self._newest()}."
                ) from error
            self.failure = error
            return None
        if self._has_epochs and not any_process(rows is not None):
            return None
        self._step += 1
        if self.history.is_due(self._step):
            with contextlib.suppress(InputError, RestartError):  # the next save says it, in all processes
                self.history.add(self._step, self.stream.positions())
        if rows is None:  # other processes still have rows
            return self.stream.empty()
        return rows

    def must_stop(self, rows: ShardRows | None, is_asked: Callable[[], bool]) -> bool:
        """Returns whether the run must stop after the step of `rows`: asked by a signal, or unable to read on."""
        if rows is None:
            return self.failure is not None
        if is_asked():
            return True
        if self.failure is None:
            self.failure = self.stream.failure()
            if self.failure is not None:
                stop_all()  # the others too, after a step that jax names
        return self.failure is not None and jax.process_count() == 1

    def positions(self) -> Mapping[int, Position]:
        """Returns the stream's data positions; if a failed stream has none, the error names the last saved step."""
        try:
            return self.stream.positions()
        except (InputError, RestartError) as error:
            failure = self.failure or error
            raise _kind(failure)(f"{_sentence(failure)} The steps since are lost: {self._newest()}.") from error

    def _newest(self) -> str:
        steps = self.checkpoints.steps()
        return f"step {max(steps):,} is the last one saved" if steps else "no step is saved"

    def end(self, step: int, has_trained: bool) -> None:
        """Raises the failure, in all processes alike; call it in all of them when the step is saved."""
        with together():
            if self.failure is None:
                return
            if not has_trained:
                raise self.failure
            saved = f"What was trained, up to step {step:,}, is saved."
            raise _kind(self.failure)(f"{_sentence(self.failure)} {saved}") from self.failure


def _kind(error: BaseException) -> type[InputError | StorageError | RestartError]:
    """Returns the kind with the error's exit status: an InputError may be about a server that does not answer."""
    status = getattr(error, "exit_status", InputError.exit_status)
    return next((kind for kind in (StorageError, RestartError) if kind.exit_status == status), InputError)


def _sentence(error: BaseException) -> str:
    if isinstance(error, SentenceError):
        return str(error)
    if is_out_of_memory(error):
        return (
            f"This host has no memory left for the rows of the next step ({reason_of(error)}); free some, and start the"
            " same command again."
        )
    return f"The rows of the next step cannot be made: {type(error).__name__} ({reason_of(error)})."
