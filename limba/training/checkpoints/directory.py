"""Orbax checkpoints: a step holds the state and the data position, and exists only when both are written.

A run directory holds `checkpoints/<step>/` with the items `state` (the arrays) and `data` (JSON: the position of
every logical data shard). Saving is asynchronous.
"""

from __future__ import annotations

import base64
import logging
from collections.abc import Mapping
from typing import Any

import orbax.checkpoint as ocp
from etils import epath

from limba.config import CheckpointConfig, ConfigError, DataConfig, InputError
from limba.config.errors import reason_of
from limba.sharding.multihost import any_process, gather_bytes, write_once
from limba.sharding.tree import named_leaves
from limba.storage.files import resolved
from limba.training.state import TrainState

Positions = Mapping[int, bytes]
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


class Checkpoints:
    """The checkpoints of one run directory. Use it as a context manager: on exit it waits for the last save."""

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
        """Starts saving. All processes call it at the same step, each with the positions of its own shards."""
        if step in self._manager.all_steps():
            return
        data = ocp.args.JsonSave(position_item(self._data, gather_bytes(positions)))
        self._manager.save(step, args=ocp.args.Composite(state=ocp.args.StandardSave(state), data=data))

    def restore_latest(self, abstract: TrainState) -> tuple[TrainState, Positions] | None:
        """Returns the newest readable checkpoint; None if there is no checkpoint.

        A damaged checkpoint is renamed to `<step>.broken` with a warning, and the previous one is used. All processes
        use the same one. Raises InputError if the checkpoint has another model, optimizer or data stream, or if all
        are damaged.
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
            if any_process(error is not None and not _is_damage(error)):
                raise error or RuntimeError(f"Another process cannot read the checkpoint at step {step}; see its log.")
            if any_process(error is not None):
                self._put_aside(step, error)
                continue
            assert restored is not None
            return restored["state"], self._positions(restored["data"], step)
        if steps:
            raise InputError(
                f"None of the checkpoints {steps} in {self.directory} can be read; restore one of the .broken"
                " directories there from a copy, or give another RunConfig.model_dir to start from step 0."
            )
        return None

    def _positions(self, data: Mapping[str, Any], step: int) -> Positions:
        for name, field in (
            ("task", "mixture_or_task_name"),
            ("seed", "seed"),
            ("num_data_shards", "num_data_shards"),
        ):
            if data[name] != (now := getattr(self._data, field)):
                raise ConfigError(
                    f"DataConfig.{field}",
                    f"is {now!r}, and the data position of the checkpoint at step {step} in {self.directory} was saved"
                    f" with {data[name]!r}; set it to that, or give a new RunConfig.model_dir with"
                    f" RunConfig.initial_checkpoint_path={self.directory / str(step)} to read the data from their"
                    " beginning.",
                )
        return {int(shard): base64.b64decode(text) for shard, text in data["positions"].items()}

    def _put_aside(self, step: int, error: Exception | None) -> None:
        aside = self.directory / f"{step}.broken"
        reason = "see the log of another process" if error is None else f"{type(error).__name__}: {reason_of(error)}"
        logger.warning(
            "The checkpoint at step %d cannot be read (%s); it is renamed to %s and the one before it is taken.",
            step,
            reason,
            aside,
        )

        def rename() -> None:
            if aside.exists():
                aside.rmtree()
            (self.directory / str(step)).rename(aside)

        write_once(rename)
        self._manager.reload()


def position_item(data: DataConfig, positions: Positions) -> dict[str, Any]:
    """Returns the item `data` of a checkpoint: the positions of all shards, and which data they belong to."""
    return {
        "task": data.mixture_or_task_name,
        "seed": data.seed,
        "num_data_shards": data.num_data_shards,
        "positions": {str(shard): base64.b64encode(position).decode() for shard, position in positions.items()},
    }


# Parts of messages about the storage, the machine or the permissions, not about the checkpoint.
_PASSING = ("UNAVAILABLE", "DEADLINE_EXCEEDED", "PERMISSION_DENIED", "UNAUTHENTICATED", "RESOURCE_EXHAUSTED", "ABORTED")


def _is_damage(error: Exception) -> bool:
    """Returns whether an error means missing or damaged files, and not a temporary failure of the storage."""
    if isinstance(error, InputError) or any(word in str(error) for word in _PASSING):
        return False
    return isinstance(error, FileNotFoundError | KeyError | ValueError | EOFError)


def limba_checkpoint_at(path: str) -> epath.Path:
    """Returns the Limba checkpoint (`checkpoints/<step>`) at a path: this step, or the newest of a run directory.

    Raises ConfigError if there is none.
    """
    root = resolved(path)
    step = int(root.name) if root.name.isdigit() and root.parent.name == "checkpoints" else None
    directory = root.parent if step is not None else root / "checkpoints"
    if not directory.exists():
        raise ConfigError(
            "RunConfig.initial_checkpoint_path",
            f"is {path}, which has no Limba checkpoint (there is no {directory}), and is not a T5X checkpoint,"
            " a Hugging Face folder or a hub id (user/name); give one of these.",
        )
    with _manager(directory, None, create=False) as manager:
        steps = sorted(manager.all_steps())
    step = step if step is not None else max(steps, default=None)
    if step is None or step not in steps:
        raise ConfigError(
            "RunConfig.initial_checkpoint_path",
            f"is {path}, and {directory} holds the steps {steps}; give one of them.",
        )
    return directory / str(step)


def load_limba_checkpoint(path: epath.Path, abstract: TrainState) -> TrainState:
    """Returns the state of one `checkpoints/<step>`.

    Raises InputError if it has another model or optimizer, or is damaged.
    """
    directory, step = path.parent, int(path.name)
    with _manager(directory, None, create=False) as manager:
        try:
            _check_arrays(manager, step, abstract, directory, INITIAL_ADVICE)
            restored = manager.restore(step, args=ocp.args.Composite(state=ocp.args.StandardRestore(abstract)))
        except (FileNotFoundError, KeyError, ValueError) as error:
            if not _is_damage(error):
                raise
            raise InputError(
                f"The checkpoint at step {step} in {directory} cannot be read ({reason_of(error)}); give another"
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
    """Raises InputError naming the arrays that differ in name or shape from this run's, parameters first."""
    saved_tree = manager.item_metadata(step)["state"]
    saved_tree = getattr(saved_tree, "tree", saved_tree)
    for part, owner in (("params", "model"), ("opt_state", "optimizer")):
        saved, wanted = _shapes(saved_tree[part]), _shapes(getattr(abstract, part))
        if not saved:
            raise ValueError(f"its metadata names no {part}")
        differing = [
            f"{name} is {saved.get(name, 'absent')} in the checkpoint and {wanted.get(name, 'absent')} in this run"
            for name in sorted(saved.keys() | wanted.keys())
            if saved.get(name) != wanted.get(name)
        ]
        if differing:
            more = f" and {len(differing) - 3} more" if len(differing) > 3 else ""
            raise InputError(
                f"The checkpoint at step {step} in {directory} is that of another {owner}:"
                f" {'; '.join(differing[:3])}{more}. {advice[part]}"
            )


def _shapes(tree: Any) -> dict[str, tuple[int, ...]]:
    return {name: tuple(leaf.shape) for name, leaf in named_leaves(tree).items()}
