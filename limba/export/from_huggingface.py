"""Imports a Hugging Face folder, or a model of the hub, as a Limba checkpoint."""

from __future__ import annotations

import dataclasses
import math
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp
from jax.sharding import AxisType
from orbax.checkpoint import future, type_handlers

from limba.config import DataConfig, InputError, ModelConfig, OptimizerConfig, plain
from limba.formats import huggingface
from limba.inference.source import VOCABULARIES, local_folder, open_folder
from limba.model import Network
from limba.sharding.mesh import leaf_name
from limba.storage import lease, manifest
from limba.training.checkpoints.directory import position_item
from limba.training.checkpoints.initial import stacked
from limba.training.optimizer import make_optimizer
from limba.training.state import abstract_state

GIN = "from __gin__ import dynamic_registration\nfrom limba import config\n\n"
TOKENIZER_CONFIG = "tokenizer_config.json"
PART_BYTES = 1 << 26  # of small arrays, which are written together, to wait for the disk only once


def network_gin(model: ModelConfig) -> str:
    """Returns the network as a gin file's text."""
    fields = [
        f"config.ModelConfig.{entry.name} = {getattr(model, entry.name)!r}" for entry in dataclasses.fields(model)
    ]
    return GIN + "\n".join(fields) + "\n"


def import_folder(source: str | Path, out: Path) -> str:
    """Writes OUT/checkpoints/0 and OUT/config.gin from a folder or a hub id; returns a sentence about them.

    Arrays are read and written a few at a time; the optimizer state is a new Adafactor's. OUT is renamed to its final
    name when it is complete. Raises InputError for an invalid folder, another architecture, arrays that do not fit,
    and an OUT that is not empty.
    """
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise InputError(f"{out} is not empty; name a new directory.")
    folder = local_folder(str(source))
    model = huggingface.model_config(folder)
    arrays = open_folder(folder, model)
    with lease.held(str(out), "imports to", beside=True):
        return _import(folder, arrays, model, out)


def _import(folder: Path, arrays: Mapping[str, np.ndarray], model: ModelConfig, out: Path) -> str:
    writing = out.with_name(out.name + ".importing")
    shutil.rmtree(writing, ignore_errors=True)
    writing.mkdir(parents=True)
    _write_checkpoint(writing / "checkpoints", _unread_state(arrays, model))
    (writing / "config.gin").write_text(network_gin(model))
    (writing / plain.FILE).write_text(plain.to_text(model))
    sentence = f"{out}/checkpoints/0, with its network in {out}/config.gin"
    vocabulary = next((name for name in VOCABULARIES if (folder / name).is_file()), None)
    if vocabulary is not None:
        shutil.copyfile(folder / vocabulary, writing / vocabulary)
        sentence += f" and its vocabulary in {out}/{vocabulary}"
    if (folder / TOKENIZER_CONFIG).is_file():  # its class and number of sentinels
        shutil.copyfile(folder / TOKENIZER_CONFIG, writing / TOKENIZER_CONFIG)
    if out.exists():
        out.rmdir()
    writing.rename(out)
    return f"{sentence}; start from it with RunConfig.initial_checkpoint_path={out}."


@dataclass(frozen=True)
class Unread:
    """An array of a checkpoint that is read just before it is written."""

    shape: tuple[int, ...]
    dtype: np.dtype
    read: Callable[[], np.ndarray]


class InParts(type_handlers.NumpyHandler):
    """Orbax's array writer, but with a few arrays at a time instead of all at once."""

    def __init__(self) -> None:
        super().__init__(deepcopy_host_arrays=False)

    async def serialize(
        self, values: Sequence[Any], infos: Sequence[Any], args: Sequence[Any] | None = None
    ) -> Sequence[future.Future]:
        args = args or [ocp.SaveArgs()] * len(values)
        for part in _parts([math.prod(value.shape) * value.dtype.itemsize for value in values]):
            arrays = [np.asarray(value.read(), value.dtype) for value in values[part]]
            for written in await super().serialize(arrays, infos[part], args[part]):
                written.result()
        return []


def _parts(sizes: Sequence[int]) -> Iterator[slice]:
    """Yields slices of adjacent arrays with at most PART_BYTES together, or one larger array."""
    start = 0
    for end in range(1, len(sizes) + 1):
        if end == len(sizes) or sum(sizes[start : end + 1]) > PART_BYTES:
            yield slice(start, end)
            start = end


def _unread_state(arrays: Mapping[str, np.ndarray], model: ModelConfig) -> Any:
    """Returns a state at step 0 with these parameters and a new Adafactor, whose averages are zeros."""
    devices = jax.local_devices(backend="cpu")[:1]  # only a name; nothing is placed there
    mesh = jax.make_mesh((1, 1, 1), ("data", "fsdp", "model"), (AxisType.Auto,) * 3, devices=devices)
    abstract = abstract_state(Network(model), make_optimizer(OptimizerConfig(), 1), mesh)

    def unread(leaf: jax.ShapeDtypeStruct, read: Callable[[], np.ndarray]) -> Unread:
        return Unread(leaf.shape, leaf.dtype, read)

    zeros = jax.tree.map(lambda leaf: unread(leaf, lambda: np.zeros(leaf.shape, leaf.dtype)), abstract)
    params = jax.tree.map_with_path(
        lambda place, leaf: unread(leaf, lambda: stacked(leaf_name(place), leaf.shape[0], arrays.__getitem__)),
        abstract.params,
    )
    return zeros.replace(params=params)


def _write_checkpoint(directory: Path, state: Any) -> None:
    registry = type_handlers.create_type_handler_registry((Unread, InParts()))
    handlers = {
        "state": ocp.PyTreeCheckpointHandler(type_handler_registry=registry),
        "data": ocp.JsonCheckpointHandler(),
    }
    options = ocp.CheckpointManagerOptions(create=True, enable_async_checkpointing=False)
    data = position_item(DataConfig("imported", {"inputs": 1}, batch_size=1), {})
    items = ocp.args.Composite(state=ocp.args.PyTreeSave(state), data=ocp.args.JsonSave(data))
    with ocp.CheckpointManager(
        directory, item_names=tuple(handlers), item_handlers=handlers, options=options
    ) as manager:
        manager.save(0, args=items)
    manifest.write(str(directory / "0"), step=0)
