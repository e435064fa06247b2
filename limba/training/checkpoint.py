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

from limba.config import CheckpointConfig, ConfigError, DataConfig, InputError
from limba.training.state import TrainState

Positions = Mapping[int, bytes]
logger = logging.getLogger(__name__)

# What to do where a checkpoint is not the run's: one that is gone on from, and one that is started from.
RESUME_ADVICE = {
    "params": "Give the gin file that it was trained with, or another RunConfig.model_dir.",
    "opt_state": "Set OptimizerConfig as it was, or give another RunConfig.model_dir.",
}
INITIAL_ADVICE = {
    "params": "Give the gin file that it was trained with, or another RunConfig.initial_checkpoint_path.",
    "opt_state": "Set OptimizerConfig as it was, or RunConfig.reset_step=True, which begins with a fresh "
    "optimizer at step 0.",
}


class Checkpoints:
    """The checkpoints of one run directory. Use as a context manager: leaving it waits for the last save."""

    def __init__(self, model_dir: str, config: CheckpointConfig, data: DataConfig):
        self.directory = epath.Path(model_dir) / "checkpoints"
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
        data = ocp.args.JsonSave(position_item(self._data, _gather(positions)))
        self._manager.save(step, args=ocp.args.Composite(state=ocp.args.StandardSave(state), data=data))

    def restore_latest(self, abstract: TrainState) -> tuple[TrainState, Positions] | None:
        """Returns the newest checkpoint that can be read, or None when there is none at all.

        A damaged one is put aside as `<step>.broken` and the one before is taken; that is logged. All
        processes decide alike. ConfigError when the checkpoint is another model's, optimizer's or data
        stream's, or all are damaged.
        """
        steps = self.steps()
        for step in reversed(steps):
            restored, error = None, None
            try:
                _check_arrays(self._manager, step, abstract, self.directory, RESUME_ADVICE)
                items = ocp.args.Composite(state=ocp.args.StandardRestore(abstract), data=ocp.args.JsonRestore())
                restored = self._manager.restore(step, args=items)
            except Exception as caught:  # noqa: BLE001  judged below, by all processes together
                error = caught
            if _any_process(error is not None and not _is_damage(error)):
                raise error or RuntimeError(f"Another process cannot read the checkpoint at step {step}; see its log.")
            if _any_process(error is not None):
                self._put_aside(step, error)
                continue
            return restored["state"], self._positions(restored["data"], step)
        if steps:
            raise InputError(
                f"None of the checkpoints {steps} in {self.directory} can be read; look at the .broken"
                " directories there, or give another RunConfig.model_dir to start anew."
            )
        return None

    def _positions(self, data: Mapping[str, Any], step: int) -> Positions:
        for field, now in (
            ("task", self._data.mixture_or_task_name),
            ("seed", self._data.seed),
            ("num_data_shards", self._data.num_data_shards),
        ):
            if data[field] != now:
                raise InputError(
                    f"The checkpoint at step {step} in {self.directory} holds a data position for {field}"
                    f" {data[field]!r}, and this run has {now!r}; set it back, or start a new RunConfig.model_dir with"
                    f" RunConfig.initial_checkpoint_path={self.directory / str(step)} to begin the data anew."
                )
        return {int(shard): base64.b64decode(text) for shard, text in data["positions"].items()}

    def _put_aside(self, step: int, error: Exception | None) -> None:
        aside = self.directory / f"{step}.broken"
        reason = (
            "another process's copy" if error is None else f"{type(error).__name__}: {error}".strip().split("\n")[0]
        )
        logger.warning(
            "The checkpoint at step %d cannot be read (%s); it is put aside as %s and the one before it is taken.",
            step,
            reason[:200],
            aside,
        )
        if jax.process_index() == 0:
            if aside.exists():
                aside.rmtree()
            (self.directory / str(step)).rename(aside)
        _any_process(False)  # all wait for the renaming
        self._manager.reload()


def position_item(data: DataConfig, positions: Positions) -> dict[str, Any]:
    """Returns what a checkpoint keeps of the data: whose positions they are, and the positions of all shards."""
    return {
        "task": data.mixture_or_task_name,
        "seed": data.seed,
        "num_data_shards": data.num_data_shards,
        "positions": {str(shard): _encode(position) for shard, position in positions.items()},
    }


# What a reader says when the storage, the machine or the rights fail, and not the checkpoint.
_PASSING = ("UNAVAILABLE", "DEADLINE_EXCEEDED", "PERMISSION_DENIED", "UNAUTHENTICATED", "RESOURCE_EXHAUSTED", "ABORTED")


def _is_damage(error: Exception) -> bool:
    """True for an error that proves files missing or spoilt; a store that fails today proves nothing."""
    if isinstance(error, InputError) or any(word in str(error) for word in _PASSING):
        return False
    return isinstance(error, FileNotFoundError | KeyError | ValueError | EOFError)


def _any_process(here: bool) -> bool:
    """Returns whether it is true in any process; all must call it."""
    if jax.process_count() == 1:
        return here
    return bool(np.asarray(multihost_utils.process_allgather(np.array(here))).any())


def limba_checkpoint_at(path: str) -> epath.Path:
    """Returns the `checkpoints/<step>` of ours that a path names: itself, or the newest of a run directory.

    ConfigError when nothing is there.
    """
    root = epath.Path(path) if "://" in path else epath.Path(path).expanduser().resolve()
    step = int(root.name) if root.name.isdigit() and root.parent.name == "checkpoints" else None
    directory = root.parent if step is not None else root / "checkpoints"
    if not directory.exists():
        raise ConfigError(
            "RunConfig.initial_checkpoint_path",
            f"{path} holds no checkpoints of Limba's (no directory {directory}),"
            " none of T5X's and no folder of Hugging Face's, and is no hub id (user/name); give one of these.",
        )
    with _manager(directory, None, create=False) as manager:
        steps = sorted(manager.all_steps())
    step = step if step is not None else max(steps, default=None)
    if step is None or step not in steps:
        raise ConfigError(
            "RunConfig.initial_checkpoint_path", f"{path}: {directory} holds the steps {steps}; give one of them."
        )
    return directory / str(step)


def load_limba_checkpoint(path: epath.Path, abstract: TrainState) -> TrainState:
    """Returns the whole state of one `checkpoints/<step>`; ConfigError when it is another model's or optimizer's."""
    directory, step = path.parent, int(path.name)
    with _manager(directory, None, create=False) as manager:
        try:
            _check_arrays(manager, step, abstract, directory, INITIAL_ADVICE)
            restored = manager.restore(step, args=ocp.args.Composite(state=ocp.args.StandardRestore(abstract)))
        except (FileNotFoundError, KeyError, ValueError) as error:
            if not _is_damage(error):
                raise
            reason = str(error).strip().split("\n")[0][:200]
            raise InputError(
                f"The checkpoint at step {step} in {directory} cannot be read ({reason}); give another"
                " RunConfig.initial_checkpoint_path."
            ) from error
    return restored["state"]


def _manager(directory: epath.Path, keep: int | None, create: bool) -> ocp.CheckpointManager:
    options = ocp.CheckpointManagerOptions(
        max_to_keep=keep, create=create, enable_async_checkpointing=create, read_only=not create
    )
    handlers = {"state": ocp.StandardCheckpointHandler(), "data": ocp.JsonCheckpointHandler()}
    return ocp.CheckpointManager(directory, item_names=tuple(handlers), item_handlers=handlers, options=options)


def _check_arrays(
    manager: ocp.CheckpointManager, step: int, abstract: TrainState, directory: epath.Path, advice: Mapping[str, str]
) -> None:
    """Raises ConfigError naming the arrays that differ in name or shape from this run's, parameters first."""
    saved_tree = manager.item_metadata(step)["state"]
    saved_tree = getattr(saved_tree, "tree", saved_tree)
    for part, owner in (("params", "model"), ("opt_state", "optimizer")):
        saved, wanted = _shapes(saved_tree[part]), _shapes(getattr(abstract, part))
        if not saved:
            raise ValueError(f"its metadata names no {part}")
        differing = [
            f"{name} is {saved.get(name, 'absent')} there and {wanted.get(name, 'absent')} here"
            for name in sorted(saved.keys() | wanted.keys())
            if saved.get(name) != wanted.get(name)
        ]
        if differing:
            more = f" and {len(differing) - 3} more" if len(differing) > 3 else ""
            raise InputError(
                f"The checkpoint at step {step} in {directory} is another {owner}'s: {'; '.join(differing[:3])}{more}."
                f" {advice[part]}"
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


def _encode(position: bytes) -> str:
    return base64.b64encode(position).decode("ascii")
