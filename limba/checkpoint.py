"""Orbax checkpoints: the state and the data position in one step, committed together or not at all.

A run directory holds `checkpoints/<step>/` with the items `state` (the arrays) and `data` (JSON: for
every logical data shard the position of its stream). Saving is asynchronous; a step exists only when
all of it is written.
"""

from __future__ import annotations

import base64
import logging
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp
from etils import epath
from jax.experimental import multihost_utils

from limba.config import CheckpointConfig, ConfigError, DataConfig
from limba.state import TrainState

Positions = Mapping[int, bytes]
logger = logging.getLogger(__name__)


class Checkpoints:
    """The checkpoints of one run directory. Use as a context manager: leaving it waits for the last save."""

    def __init__(self, model_dir: str, config: CheckpointConfig, data: DataConfig):
        self.directory = run_directory(model_dir) / "checkpoints"
        self._data = data
        self._manager = _manager(self.directory, config.keep, create=True)

    def __enter__(self) -> Checkpoints:
        return self

    def __exit__(self, *_: object) -> None:
        self._manager.wait_until_finished()
        self._manager.close()

    def steps(self) -> list[int]:
        """Returns the saved steps, oldest first."""
        return sorted(self._manager.all_steps())

    def save(self, step: int, state: TrainState, positions: Positions) -> None:
        """Starts saving; all processes call it at the same step with the positions of their own shards."""
        if step in self._manager.all_steps():
            return
        data = {
            "task": self._data.mixture_or_task_name,
            "seed": self._data.seed,
            "num_data_shards": self._data.num_data_shards,
            "positions": {str(shard): _encode(position) for shard, position in _gather(positions).items()},
        }
        self._manager.save(
            step, args=ocp.args.Composite(state=ocp.args.StandardSave(state), data=ocp.args.JsonSave(data))
        )

    def restore_latest(self, abstract: TrainState) -> tuple[TrainState, Positions] | None:
        """Returns the newest checkpoint that can be read, or None when there is none at all.

        A broken one is put aside as `<step>.broken` and the one before is taken; that is logged.
        ConfigError when the checkpoint is another model's or another data stream's, or all are broken.
        """
        steps = self.steps()
        for step in reversed(steps):
            try:
                _check_parameters(self._manager, step, abstract, self.directory)
                items = ocp.args.Composite(state=ocp.args.StandardRestore(abstract), data=ocp.args.JsonRestore())
                restored = self._manager.restore(step, args=items)
                positions = self._positions(restored["data"], step)
            except ConfigError:
                raise
            except Exception as error:  # whatever a broken file makes the reader raise
                if _passes(error):
                    raise
                reason = str(error).strip().split("\n")[0][:200]
                logger.warning(
                    "The checkpoint at step %d cannot be read (%s: %s); it is put aside as %s.broken and the one"
                    " before it is taken.",
                    step,
                    type(error).__name__,
                    reason,
                    self.directory / str(step),
                )
                self._put_aside(step)
                continue
            return restored["state"], positions
        if steps:
            raise ConfigError(
                f"None of the checkpoints {steps} in {self.directory} can be read; look at the .broken"
                " directories there, or give another MODEL_DIR to start anew."
            )
        return None

    def _positions(self, data: Mapping[str, Any], step: int) -> Positions:
        for field, now in (
            ("task", self._data.mixture_or_task_name),
            ("seed", self._data.seed),
            ("num_data_shards", self._data.num_data_shards),
        ):
            if data[field] != now:
                raise ConfigError(
                    f"The checkpoint at step {step} in {self.directory} holds a data position for {field}"
                    f" {data[field]!r}, and this run has {now!r}; set it back, or start a new MODEL_DIR with"
                    f" INITIAL_CHECKPOINT_PATH={self.directory / str(step)} to begin the data anew."
                )
        return {int(shard): base64.b64decode(text) for shard, text in data["positions"].items()}

    def _put_aside(self, step: int) -> None:
        if jax.process_index() == 0:
            broken = self.directory / str(step)
            aside = self.directory / f"{step}.broken"
            if aside.exists():
                aside.rmtree()
            broken.rename(aside)
        _barrier(f"put_aside_{step}")
        self._manager.reload()


# What a reader says when the storage, the machine or the rights fail, and not the checkpoint.
_PASSING = ("UNAVAILABLE", "DEADLINE_EXCEEDED", "PERMISSION_DENIED", "UNAUTHENTICATED", "RESOURCE_EXHAUSTED")


def _passes(error: Exception) -> bool:
    """True for an error that may be gone at the next start: no reason to put a checkpoint aside."""
    kinds = (ConnectionError, TimeoutError, PermissionError, MemoryError)
    return isinstance(error, kinds) or any(word in str(error) for word in _PASSING)


def run_directory(model_dir: str) -> epath.Path:
    """Returns MODEL_DIR as an absolute path; a bucket's stays as it is."""
    path = epath.Path(model_dir).expanduser()
    return path if "://" in model_dir else path.resolve()


def load_initial(path: str, abstract: TrainState) -> TrainState:
    """Returns the state of a run directory's newest checkpoint, or of one `checkpoints/<step>`.

    ConfigError when nothing is there, or when it is another model's.
    """
    root = run_directory(path)
    step = int(root.name) if root.name.isdigit() else None
    directory = root.parent if step is not None else root / "checkpoints"
    if not directory.exists():
        raise ConfigError(
            f"INITIAL_CHECKPOINT_PATH {path} holds no checkpoints of Limba's (no directory {directory});"
            " give a run directory or one of its checkpoints/<step>."
        )
    with _manager(directory, None, create=False) as manager:
        steps = sorted(manager.all_steps())
        step = step if step is not None else max(steps, default=None)
        if step is None or step not in steps:
            raise ConfigError(f"INITIAL_CHECKPOINT_PATH {path}: {directory} holds the steps {steps}; give one of them.")
        _check_parameters(manager, step, abstract, directory)
        restored = manager.restore(step, args=ocp.args.Composite(state=ocp.args.StandardRestore(abstract)))
    return restored["state"]


def _manager(directory: epath.Path, keep: int | None, create: bool) -> ocp.CheckpointManager:
    options = ocp.CheckpointManagerOptions(
        max_to_keep=keep, create=create, enable_async_checkpointing=create, read_only=not create
    )
    handlers = {"state": ocp.StandardCheckpointHandler(), "data": ocp.JsonCheckpointHandler()}
    return ocp.CheckpointManager(directory, item_names=tuple(handlers), item_handlers=handlers, options=options)


def _check_parameters(manager: ocp.CheckpointManager, step: int, abstract: TrainState, directory: epath.Path) -> None:
    """Raises ConfigError naming the parameters that differ in name or shape from this run's model."""
    saved_tree = manager.item_metadata(step)["state"]
    saved_tree = getattr(saved_tree, "tree", saved_tree)
    saved = _shapes(saved_tree["params"])
    wanted = _shapes(abstract.params)
    if not saved:
        raise ValueError("its metadata names no parameters")
    differing = [
        f"{name} is {saved.get(name, 'absent')} there and {wanted.get(name, 'absent')} here"
        for name in sorted(saved.keys() | wanted.keys())
        if saved.get(name) != wanted.get(name)
    ]
    if differing:
        more = f" and {len(differing) - 3} more" if len(differing) > 3 else ""
        raise ConfigError(
            f"The checkpoint at step {step} in {directory} is another model's: {'; '.join(differing[:3])}{more}."
            " Give the gin file that it was trained with, or another MODEL_DIR."
        )


def _shapes(tree: Any) -> dict[str, tuple[int, ...]]:
    return {
        jax.tree_util.keystr(path, simple=True, separator="/"): tuple(leaf.shape)
        for path, leaf in jax.tree.leaves_with_path(tree)
    }


def _gather(positions: Positions) -> dict[int, bytes]:
    """Returns the positions of all processes' shards."""
    if jax.process_count() == 1:
        return dict(positions)
    sizes = np.array([len(positions), max(map(len, positions.values()))])
    count, size = np.asarray(multihost_utils.process_allgather(sizes)).max(axis=0)
    numbers = np.full((count, 2), -1, np.int64)  # shard, length
    content = np.zeros((count, size), np.uint8)
    for row, (shard, position) in enumerate(sorted(positions.items())):
        numbers[row] = shard, len(position)
        content[row, : len(position)] = np.frombuffer(position, np.uint8)
    numbers = np.asarray(multihost_utils.process_allgather(numbers)).reshape(-1, 2)
    content = np.asarray(multihost_utils.process_allgather(content)).reshape(-1, size)
    return {int(shard): content[row, :length].tobytes() for row, (shard, length) in enumerate(numbers) if shard >= 0}


def _barrier(name: str) -> None:
    if jax.process_count() > 1:
        multihost_utils.sync_global_devices(name)


def _encode(position: bytes) -> str:
    return base64.b64encode(position).decode("ascii")
