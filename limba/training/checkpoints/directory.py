"""The checkpoints of a run: a step holds the state and the data position, and is there only when all of it is.

A run directory holds `checkpoints/<step>/` with the items `state` (the arrays) and `data` (JSON: the position of every
logical data shard), and a manifest with the checksum of each file. Saving goes on in the background (`saver.py`).
"""

from __future__ import annotations

import errno
import json
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, TypeVar

import jax
import numpy as np
from etils import epath

from limba.config import CheckpointConfig, ConfigError, DataConfig, InputError, RestartError, StorageError
from limba.config.waiting import waiting
from limba.data.stream.positions import check_one_corpus
from limba.formats import limba_checkpoint
from limba.sharding.agreement import gather_bytes, gather_texts, own_part, together
from limba.sharding.mesh import named_leaves
from limba.storage.failures import is_passing, limited, short_reason, twice
from limba.storage.files import free_bytes
from limba.training.checkpoints import arrays, step_directory
from limba.training.checkpoints.saver import GRACE_SECONDS, Outcome, Saver
from limba.training.checkpoints.step_directory import size_text
from limba.training.state import TrainState

Positions = Mapping[int, Mapping[str, Any]]
Unpack = Callable[[Positions], object]
T = TypeVar("T")
logger = logging.getLogger(__name__)

# Advice if a checkpoint does not fit the run: when resuming from it, and when initializing from it.
RESUME_ADVICE = {
    "params": "Set ModelConfig as it was, or give another RunConfig.model_dir.",
    "opt_state": "Set OptimizerConfig as it was, or give another RunConfig.model_dir.",
}
INITIAL_ADVICE = {
    "params": "Set ModelConfig as it was, or give another RunConfig.initial_checkpoint_path.",
    "opt_state": "Set OptimizerConfig as it was, or RunConfig.reset_step=True, which starts at step 0 with a new "
    "optimizer state.",
}


class Restored(NamedTuple):
    """What a checkpoint holds: the state, each shard's data position, and the notes that were saved with them."""

    state: TrainState
    positions: Positions
    notes: limba_checkpoint.Notes


class Checkpoints:
    """The checkpoints of one run directory. Use it as a context manager: on exit it waits for the last save."""

    def __init__(
        self,
        model_dir: str,
        config: CheckpointConfig,
        data: DataConfig,
        check_lease: Callable[[], None] = lambda: None,
        may_commit: Callable[[], None] = lambda: None,
    ):
        self.check_lease = check_lease  # RestartError if another run has taken over model_dir
        self.may_commit = may_commit  # the same, asked of the storage before a step is named, renamed or removed
        self.directory = epath.Path(model_dir) / "checkpoints"
        self._config = config
        self._data = data
        self._name = str(self.directory).replace("/", "|")  # of what the processes exchange
        self._saver = Saver(self._name, self.directory, config.keep, config.save_timeout_seconds, may_commit)
        if jax.process_index() == 0:
            self._answered(self._tidy)
        self._memory: Callable[[], Sequence[np.ndarray]] = tuple  # gives the memory of the next snapshot
        self._current: int | None = None  # the step that was saved or restored last
        self._steps: list[int] = []  # oldest first, as this process last saw or wrote them
        self._look()
        self._saver.good_step = max(self._steps, default=None)

    def __enter__(self) -> Checkpoints:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            self._saver.wait()
            return
        self._saver.abandon()
        try:
            self._saver.wait()
        except (StorageError, RestartError) as error:  # the run ends by another error
            logger.warning("%s", error)

    def steps(self) -> list[int]:
        """Returns the saved steps, oldest first."""
        return list(self._steps)

    def save(
        self, step: int, state: TrainState, positions: Positions, notes: limba_checkpoint.Notes | None = None
    ) -> None:
        """Starts saving: copies the state to the host, and returns. `poll` reports the commit.

        All processes call it at the same step, each with the positions of its own shards. `notes` are kept with the
        step. The step that was saved or restored last is there already; another one that is there, from before the
        run went back, is replaced. Waits for the save before, and raises StorageError if that has failed for good.
        """
        if step == self._current:
            return
        self._saver.wait()
        parts = {shard: json.dumps(position).encode() for shard, position in positions.items()}
        everywhere = {shard: json.loads(part) for shard, part in gather_bytes(parts).items()}
        data = {**position_item(_data_of(self._data, step), everywhere), "notes": notes or {}}
        self._current = step
        snapshot = arrays.take_snapshot(state, self._memory())
        memory = snapshot.memory if jax.default_backend() == "cpu" else ()  # elsewhere it is freed
        self._memory = lambda: memory
        self._saver.start(step, snapshot, data)

    def poll(self) -> list[int]:
        """Returns the steps whose commit has ended since the last call, the same in every process.

        The loop calls it after each step; it does not wait. Raises StorageError when a save has failed for good.
        """
        ended = self._saver.poll()
        for outcome in ended:
            self._note(outcome)
        return [outcome.step for outcome in ended]

    def stop(self) -> None:
        """Gives up a save that fails soon, since the run was asked to stop."""
        self._saver.stop()

    def wait(self) -> None:
        """Waits until the last save is committed; `poll` then reports it. StorageError if it fails for good."""
        self._saver.wait()

    def _note(self, outcome: Outcome) -> None:
        if outcome.error is not None:
            raise outcome.error
        steps = {*self._steps, outcome.step}
        if self._config.keep is not None:
            steps -= {*step_directory.old_steps(steps, outcome.step, self._config.keep)}
        self._steps = sorted(steps)

    def check_space(self, abstract: TrainState) -> None:
        """Raises StorageError if not one checkpoint of this size fits on the disk; warns if not all that are kept do.

        One more than are kept must fit, as an old one is removed when the new one is committed.
        """
        size = arrays.num_bytes(abstract)
        free = self._answered(lambda: free_bytes(str(self.directory)))
        if free is None:
            return
        if free < size:
            raise StorageError(
                f"A checkpoint takes {size_text(size)}, and {size_text(free)} are free in {self.directory}; make room,"
                " or give another RunConfig.model_dir."
            )
        wanted = 1
        if self._config.keep is not None:
            wanted = max(1, self._config.keep + 1 - len(self._steps_there()))
        if jax.process_index() == 0 and free < wanted * size:
            logger.warning(
                "The checkpoints to come need %s (%d of %s), and %s are free in %s: make room, or lower"
                " CheckpointConfig.keep.",
                size_text(wanted * size),
                wanted,
                size_text(size),
                size_text(free),
                self.directory,
            )

    def reserve_memory(self, abstract: TrainState) -> None:
        """Gets the memory for the copies of such a state in a thread, on a CPU, so that the first save has it."""
        if jax.default_backend() == "cpu":
            pool = ThreadPoolExecutor(1, "memory for checkpoints")
            self._memory = pool.submit(arrays.memory_for, abstract).result
            pool.shutdown(wait=False)

    def restore_latest(self, abstract: TrainState, unpack: Unpack | None = None) -> Restored | None:
        """Returns the newest whole checkpoint; None if there is none.

        `unpack` is called with the data positions: it raises InputError if they belong to other data, and any other
        error if they are damaged. A damaged checkpoint is renamed to `<step>.broken` with a sentence that says which
        file was wrong, and the one before it is taken, in all processes alike. Raises InputError if the checkpoint has
        another model, optimizer or data stream, or if none is whole; StorageError if the storage fails at the moment.
        """
        damaged: list[tuple[int, epath.Path, str]] = []
        for step, path in self._listing():
            restored, reason = self._restore(step, path, abstract, unpack)
            if restored is not None:
                self._goes_on_from(step)
                self._set_aside(damaged, step)
                self._note_unchecked(path)
                return restored
            damaged.append((step, path, reason))
        if damaged:
            step, path, reason = damaged[0]
            if os.strerror(errno.EIO) in reason:  # a storage that is away gives it for all files
                raise StorageError(
                    f"The checkpoint {path} cannot be read ({reason}), nor an older one; nothing is changed. Fix"
                    " that, and start the same command again."
                )
            raise InputError(
                f"None of the checkpoints {sorted(step for step, *_ in damaged)} in {self.directory} can be read (step"
                f" {step}: {reason}); copy one of them again from elsewhere, or give another RunConfig.model_dir to"
                " start from step 0."
            )
        return None

    def restore_step(self, step: int, abstract: TrainState, unpack: Unpack | None = None) -> Restored:
        """Returns one checkpoint, to go back to it: later ones are renamed to `<step>.rewound`.

        Raises what `restore_latest` raises, StorageError if the checkpoint is damaged or a later one cannot be renamed,
        and RestartError if another run has the directory.
        """
        self._saver.wait()
        listing = self._listing()
        path = dict(listing).get(step)
        restored = None
        reason = "it is gone"
        if path is not None:
            restored, reason = self._restore(step, path, abstract, unpack)
        if path is None or restored is None:
            raise StorageError(
                f"The checkpoint at step {step} in {self.directory}, to which the run goes back, cannot be read"
                f" ({reason}); start the same command again."
            )
        self._goes_on_from(step)
        later = [path for later_step, path in listing if later_step > step]
        reasons = self._rewound(later) if jax.process_index() == 0 else ("", "")
        lost, reason = json.loads(self._shared(json.dumps(reasons))[0])
        if lost:
            raise RestartError(lost)
        if reason:
            raise StorageError(reason)
        self._look()
        self._note_unchecked(path)
        return restored

    def _rewound(self, later: Sequence[epath.Path]) -> tuple[str, str]:
        """Renames steps that the run has gone back before.

        Returns ("", ""), or why another run has the directory, or why a step cannot be renamed.
        """
        for path in later:
            try:
                self.may_commit()  # else it may be a successor's
                step_directory.set_aside(path, "rewound")
            except RestartError as error:
                return str(error), ""
            except Exception as error:  # noqa: BLE001  a bucket's client has errors of its own
                sentence = f"Step {path.name} in {self.directory} cannot be renamed ({short_reason(error)}); start the"
                return "", f"{sentence} same command again."
        return "", ""

    def _goes_on_from(self, step: int) -> None:
        self._current = step
        self._saver.good_step = step

    def _look(self) -> None:
        self._steps = self._steps_there()

    def _tidy(self) -> None:
        """Restores and removes what an interrupted save has left."""
        step_directory.restore_replaced(self.directory)
        step_directory.clear_unfinished(self.directory, self.may_commit)

    def _steps_there(self, with_files: bool = False) -> list[int]:
        """Returns what `limba_checkpoint.steps_in` finds; errors as `_answered`."""
        return self._answered(lambda: [*limba_checkpoint.steps_in(self.directory, with_files)])

    def _answered(self, look: Callable[[], T]) -> T:
        """Returns what a look at the directory returns.

        Raises StorageError if the storage does not say what is there, or says nothing for as long as a save may take.
        """
        try:
            return limited(look, self._config.save_timeout_seconds, "the listing")
        except StorageError:
            raise
        except Exception as error:
            raise StorageError(
                f"{self.directory} cannot be listed ({short_reason(error)}); fix that, and try again."
            ) from error

    def _listing(self) -> list[tuple[int, epath.Path]]:
        """Returns (step, path) of all checkpoints as the first process sees them, the newest first."""
        steps: list[int] = []
        failure = ""
        try:
            steps = self._steps_there(with_files=True)
        except StorageError as error:  # raised below, by all processes
            failure = str(error)
        failure, steps = json.loads(self._shared(json.dumps([failure, steps]))[0])
        if failure:
            raise StorageError(failure)
        return [(step, self.directory / str(step)) for step in sorted(steps, reverse=True)]

    def _shared(self, text: str) -> Sequence[str]:
        seconds = self._config.save_timeout_seconds + GRACE_SECONDS
        try:
            return gather_texts(f"{self._name}/reading", text, seconds)
        except TimeoutError as error:
            raise StorageError(
                f"While {self.directory} was read, {error}; look at that process, and start the same command again."
            ) from error

    def _restore(
        self, step: int, path: epath.Path, abstract: TrainState, unpack: Unpack | None
    ) -> tuple[Restored | None, str]:
        """Returns (the checkpoint, "") or (None, what is damaged), as all processes together find."""
        is_first = jax.process_index() == 0
        part = (jax.process_index(), jax.process_count())
        with waiting(f"checking the files of {path}", shows=is_first):
            damages, reason = self._judged(path, lambda: limba_checkpoint.damage(path, self._config.verify, part))
        if damages is None:
            return None, reason
        for sentences in damages:  # of each process, about its part of the files
            if sentences:
                return None, sentences[0]
        read_ones: list[Restored] = []

        def read() -> None:
            check_arrays(path, abstract, RESUME_ADVICE)
            data = limba_checkpoint.read_data(path)
            positions = self._positions(data, path)
            if unpack is not None:
                unpack(positions)
            state = arrays.read_arrays(path / "state", abstract)
            read_ones.append(Restored(state, positions, data.get("notes", {})))

        with waiting(f"restoring {path}", shows=is_first):
            _, reason = self._judged(path, read)
        if reason:
            return None, reason
        return read_ones[0], ""

    def _note_unchecked(self, path: epath.Path) -> None:
        """Says what the check of a checkpoint could not find."""
        if self._config.verify == "sizes" and jax.process_index() == 0:
            logger.warning(
                "CheckpointConfig.verify is 'sizes': the files of %s have their sizes, and a changed byte in them"
                " would not be noticed.",
                path,
            )

    def _judged(self, path: epath.Path, call: Callable[[], T]) -> tuple[list[T] | None, str]:
        """Returns (the results of all processes, "") or (None, what is damaged); all processes return the same.

        Raises InputError if the checkpoint is another run's, StorageError if the storage fails at the moment.
        """
        kind = ""
        text = ""
        result = None
        caught = InputError()
        try:
            result = limited(lambda: twice(call), self._config.save_timeout_seconds, f"reading {path}")
        except InputError as error:
            kind = "input"
            text = str(error)
            caught = error
        except Exception as error:  # whatever a damaged file makes of its reader is damage
            kind = "storage" if is_passing(error) else "damage"
            text = short_reason(error, str(path))
            logger.debug("A checkpoint cannot be read:", exc_info=True)
        outcomes = [json.loads(outcome) for outcome in self._shared(json.dumps([kind, text, result]))]
        for wanted in ("storage", "input", "damage"):
            for index, (kind_there, sentence, _) in enumerate(outcomes):
                if kind_there != wanted:
                    continue
                where = f"process {index}: " if len(outcomes) > 1 and wanted != "input" else ""
                if wanted == "damage":
                    return None, where + sentence
                if wanted == "input":
                    raise caught if kind == "input" else InputError(sentence)
                raise StorageError(
                    f"The checkpoint {path} cannot be read at the moment ({where}{sentence}); nothing is changed. Fix"
                    " that, and start the same command again."
                )
        return [value for *_, value in outcomes], ""

    def _positions(self, data: limba_checkpoint.DataItem, path: epath.Path) -> Positions:
        positions = limba_checkpoint.positions_of(data)
        for name, field in (("task", "mixture_or_task_name"), ("seed", "seed"), ("num_data_shards", "num_data_shards")):
            now = getattr(_data_of(self._data, int(path.name)), field)
            if data[name] != now:
                saved = _stages_in(positions)
                if (self._data.stages or saved) and field != "num_data_shards":
                    begun = self._data.stage_of(int(path.name) - 1)
                    stage = _data_of(self._data, int(path.name)).mixture_or_task_name
                    since = f" since step {saved['begins']}" if saved else ""
                    raise ConfigError(
                        "DataConfig.stages",
                        f"is {self._data.stages!r}, by which the batches before step {path.name} come from {stage}"
                        f" since step {begun}, and the checkpoint there, in {path.parent}, has read"
                        f" {data['task']!r}{since}; leave the stages before that step as they were.",
                    )
                raise ConfigError(
                    f"DataConfig.{field}",
                    f"is {now!r}, and the data position of the checkpoint at step {path.name} in {path.parent} was"
                    f" saved with {data[name]!r}; set it to that, or give a new RunConfig.model_dir with"
                    f" RunConfig.initial_checkpoint_path={path} to read the data from their beginning.",
                )
        return positions

    def _set_aside(self, damaged: Sequence[tuple[int, epath.Path, str]], taken: int) -> None:
        """Renames damaged steps and says so. Only when another one is taken: a run that reads none changes none."""
        for step, path, reason in damaged if jax.process_index() == 0 else ():
            try:
                outcome = f"is renamed to {step_directory.set_aside(path).name}"
            except Exception as error:  # noqa: BLE001  a save of this step replaces it
                outcome = f"cannot be renamed ({short_reason(error)})"
            logger.warning(
                "The checkpoint at step %d cannot be read (%s): %s %s, and step %d is resumed.",
                step,
                reason,
                path,
                outcome,
                taken,
            )
        self._shared("")
        self._look()
        self._steps = [step for step in self._steps if step <= taken]  # a damaged one may have kept its name


def check_together(path: epath.Path, how: str = "checksums") -> None:
    """As `limba_checkpoint.check_whole`; every process checks its part of the files, and all raise alike."""
    with together(CheckpointConfig().save_timeout_seconds):
        limba_checkpoint.check_whole(path, how, own_part())


def position_item(data: DataConfig, positions: Positions) -> limba_checkpoint.DataItem:
    """Returns the item `data` of a checkpoint: the positions of all shards, and which data they belong to.

    Raises InputError if they belong to different data.
    """
    check_one_corpus(positions)
    return {
        "task": data.mixture_or_task_name,
        "seed": data.seed,
        "num_data_shards": data.num_data_shards,
        "about": next((dict(position["about"]) for position in positions.values()), {}),
        "positions": {
            str(shard): {name: part for name, part in position.items() if name != "about"}
            for shard, position in sorted(positions.items())
        },
    }


def _stages_in(positions: Positions) -> Mapping[str, object]:
    """Returns what the first data position says of the stages of its run; {} for a run without."""
    for position in positions.values():
        return position.get("stage", {})
    return {}


def _data_of(data: DataConfig, step: int) -> DataConfig:
    """Returns the data choices of the stage that a checkpoint's position belongs to, the stage of its last batch."""
    return data.of_stages[data.stage_of(step - 1)]


def load_limba_checkpoint(path: epath.Path, abstract: TrainState) -> TrainState:
    """Returns the state of one `checkpoints/<step>`, whose files have been checked.

    Raises InputError if it has another model or optimizer, or is damaged; StorageError if the storage fails.
    """
    try:
        check_arrays(path, abstract, INITIAL_ADVICE)
        return arrays.read_arrays(path / "state", abstract)
    except InputError:
        raise
    except Exception as error:
        if is_passing(error):
            raise StorageError(f"{path} cannot be read ({short_reason(error)}); fix that, and start again.") from error
        raise InputError(
            f"The checkpoint at step {path.name} in {path.parent} cannot be read ({short_reason(error)}); give another"
            " RunConfig.initial_checkpoint_path."
        ) from error


def check_arrays(path: epath.Path, abstract: TrainState, advice: Mapping[str, str]) -> None:
    """Raises InputError naming the arrays that differ in name or shape from this run's, parameters first."""
    stored = {name: tuple(store.shape) for name, store in arrays.opened(path / "state").items()}
    for part, owner in (("params", "model"), ("opt_state", "optimizer")):
        saved = {name.removeprefix(f"{part}/"): shape for name, shape in stored.items() if name.startswith(f"{part}/")}
        wanted = {name: tuple(leaf.shape) for name, leaf in named_leaves(getattr(abstract, part)).items()}
        if not saved:
            raise ValueError(f"it holds no {part}")
        differing = [
            f"{name} is {saved.get(name, 'absent')} in the checkpoint and {wanted.get(name, 'absent')} in this run"
            for name in sorted(saved.keys() | wanted.keys())
            if saved.get(name) != wanted.get(name) and not arrays.OPTIONAL.search(name)
        ]
        if differing:
            more = f" and {len(differing) - 3} more" if len(differing) > 3 else ""
            raise InputError(
                f"The checkpoint at step {path.name} in {path.parent} was saved from a different {owner}:"
                f" {'; '.join(differing[:3])}{more}. {advice[part]}",
                field="ModelConfig" if part == "params" else "OptimizerConfig",
            )
