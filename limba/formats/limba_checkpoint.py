"""Limba's checkpoints under T5X's names: one array for each layer, read on demand, some layers at a time.

`checkpoints/<step>/state` is an OCDBT store of zarr arrays: `params/encoder/layers/mlp/wo/kernel` with the layers on
axis 0, and `opt_state/…`. Iteration goes stack by stack, so in this order every stack is read once. `data/metadata` is
JSON: the data positions and the guard's notes.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any, NamedTuple, NotRequired, TypedDict, cast

import numpy as np
from etils import epath

from limba.config import InputError, StorageError
from limba.formats.names import Arrays, Stored
from limba.formats.t5x import StoredTree, stored_arrays
from limba.storage import manifest
from limba.storage.failures import short_reason
from limba.storage.files import read_bytes

PARAMETERS = "params/"
HELD_BYTES = 1 << 28  # of stacks that are held at one time; more where one chunk is larger
HELD_STACKS = 3  # GPT-2 and ModernBERT store queries, keys and values in one array
LAST_FORMAT_IN_TEXT = 5  # of data positions: from 6 on they are JSON
AVERAGE = re.compile(r"^opt_state/\d+/average/(.+)$")  # names the averaged parameter


def is_own(path: epath.Path) -> bool:
    """Returns whether the path is a Limba checkpoint, `checkpoints/<step>`; it may be damaged.

    `limba/formats/open.py` asks this, and the like of other kinds, in its order.
    """
    if not (path.name.isdigit() and path.parent.name == "checkpoints"):
        return False
    return (path / "state" / "manifest.ocdbt").exists() or manifest.exists(path)


def steps_in(directory: epath.Path, with_files: bool = False) -> dict[int, epath.Path]:
    """Returns step -> its directory in a folder `checkpoints`, oldest first; damaged ones too, unfinished ones not.

    `with_files` also gives files that have the name of a step, which `damage` calls damaged. Raises StorageError if a
    bucket does not say what is there, and OSError if a file system does not.
    """
    directories: dict[int, epath.Path] = {}
    try:
        # `is_dir` is not asked first: it also says False of a storage that refuses or gives no answer, and a run that
        # takes that for an empty folder begins at step 0.
        for child in directory.iterdir():
            if child.name.isdigit() and (is_finished(child) or (with_files and child.is_file())):
                directories[int(child.name)] = child
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except OSError as error:
        if "://" not in str(directory):
            raise
        raise StorageError(f"{directory} cannot be listed ({short_reason(error)}); fix that, and try again.") from error
    return dict(sorted(directories.items()))


def is_finished(path: epath.Path) -> bool:
    """Returns whether the writing of a checkpoint has ended.

    On a file system it has its name only then. In a bucket the manifest is its last file.
    """
    if "://" in str(path):
        return manifest.exists(path)  # an error where the bucket gives no answer, which `is_dir` takes for False
    return path.is_dir()


def checkpoints_of(path: epath.Path) -> dict[int, epath.Path]:
    """Returns step -> directory of the finished checkpoints in a Limba run directory, oldest first."""
    return {step: folder for step, folder in steps_in(path / "checkpoints").items() if is_own(folder)}


class GuardNotes(TypedDict, total=False):
    """What the guard of a run needs at a step: the loss and gradient norm of recent steps, and where its data begin."""

    data_start: int
    window: list[list[float]]


class Notes(TypedDict, total=False):
    """What a checkpoint keeps of a run beside its state and its data position."""

    guard: GuardNotes


class DataItem(TypedDict):
    """The item `data` of a checkpoint: the position of each shard, and the data to which they belong.

    `about` is what all positions say. Before version 0.3 a position was text, and there was no `about`.
    """

    task: str
    seed: int
    num_data_shards: int | None
    about: NotRequired[dict[str, Any]]
    positions: dict[str, Any]
    notes: NotRequired[Notes]


def positions_in(path: epath.Path) -> dict[int, dict[str, Any]]:
    """Returns shard -> its data position, each with what it is about, of a checkpoint; errors as `read_data`'s."""
    return positions_of(read_data(path))


def positions_of(data: DataItem) -> dict[int, dict[str, Any]]:
    """Returns shard -> its data position, each with what it is about; text of earlier versions has only its format."""
    identity = data.get("about", {})
    is_text = any(isinstance(position, str) for position in data["positions"].values())
    if is_text:
        return {int(shard): {"about": {"format": LAST_FORMAT_IN_TEXT}} for shard in data["positions"]}
    return {int(shard): {**position, "about": identity} for shard, position in data["positions"].items()}


def read_data(path: epath.Path) -> DataItem:
    """Returns the item `data` of a checkpoint; errors are the file's fault, or pass (`failures.is_passing`)."""
    data = json.loads(read_bytes(path / "data" / "metadata"))
    if not isinstance(data, dict):
        raise ValueError("data/metadata is not a JSON object")
    return cast(DataItem, data)


def damage(path: epath.Path, how: str = "checksums", part: tuple[int, int] = (0, 1)) -> list[str]:
    """Returns a short sentence for each file of a checkpoint that is not as it was saved; see `manifest.check`."""
    return ["it is a file, not a folder"] if path.is_file() else manifest.check(path, how, part)


def check_whole(path: epath.Path, how: str = "checksums", part: tuple[int, int] = (0, 1)) -> None:
    """Raises InputError that names the first file of a checkpoint that is not as it was saved; `part` as `damage`.

    Raises StorageError if the files cannot be read at the moment.
    """
    try:
        damaged = damage(path, how, part)
    except Exception as error:
        raise StorageError(f"{path} cannot be read ({short_reason(error)}); fix that, and try again.") from error
    if damaged:
        more = f", and {len(damaged) - 1} more" if len(damaged) > 1 else ""
        raise InputError(f"The checkpoint {path} is damaged: {damaged[0]}{more}; name another step, or copy it again.")


def averages_in(names: Iterable[str]) -> dict[str, str]:
    """Returns parameter -> the array with its average, of a checkpoint's arrays.

    >>> averages_in(["params/norm/scale", "opt_state/3/average/norm/scale"])
    {'norm/scale': 'opt_state/3/average/norm/scale'}
    """
    averages: dict[str, str] = {}
    for name in names:
        match = AVERAGE.match(name)
        if match is not None:
            averages[match[1]] = name
    return averages


class _Held(NamedTuple):
    """Adjacent layers of a stack, from the layer `first` on."""

    first: int
    layers: np.ndarray


class LimbaCheckpoint(Arrays):
    """The parameters of one `checkpoints/<step>` by T5X's names, unstacked; `tree` has all arrays by Limba's names.

    With `average` the parameters are their average, where the checkpoint has one (`has_average`).
    All files are compared with the manifest first: `verify` is 'checksums', 'sizes', or None if that is done already.
    Raises InputError for a damaged file, if the store cannot be read, and for an array with missing pieces.
    """

    def __init__(self, path: str | epath.Path, verify: str | None = "checksums", average: bool = False):
        self.path = epath.Path(path)
        if verify is not None:
            check_whole(self.path, verify)
        self.step = int(self.path.name)
        self.tree = StoredTree(self.path, stored_arrays(self.path / "state"))
        self._held: dict[str, _Held] = {}  # by array, the last one that was asked for at the end
        averages = averages_in(self.tree)
        self.has_average = bool(averages)
        array_of: dict[str, str] = {}  # a parameter -> the array that is read for it
        for name in self.tree:
            if name.startswith(PARAMETERS):
                parameter = name.removeprefix(PARAMETERS)
                array_of[parameter] = averages.get(parameter, name) if average else name
        self.tree.check_whole([*array_of.values()])
        layers_by_name: dict[str, Stored] = {}
        for parameter, array in array_of.items():
            layers_by_name.update(self.layers(parameter, array))
        super().__init__(layers_by_name)

    def layers(self, name: str, array: str) -> Iterator[tuple[str, Stored]]:
        """Yields (T5X's name, array) of each layer of an array by Limba's name; of another one itself."""
        whole = self.tree.stored[array]
        if "/layers/" not in name:
            yield name, whole
            return
        for i in range(whole.shape[0]):
            layer = Stored(whole.shape[1:], whole.dtype, partial(self._layer, array, i))
            yield name.replace("/layers/", f"/layers_{i}/"), layer

    def _layer(self, array: str, number: int) -> np.ndarray:
        """Returns a layer of a stack; the layers that are read with it stay in memory, until other stacks need it."""
        held = self._held.pop(array, None)
        if held is None or not held.first <= number < held.first + len(held.layers):
            del held  # freed first: the layers before these are not needed any more
            if len(self._held) == HELD_STACKS:
                self._held.pop(next(iter(self._held)))
            held = self._read_layers(array, number)
        # Layers are asked for in order, so nothing of a stack is needed after its last one.
        if number < self.tree.stored[array].shape[0] - 1:
            self._held[array] = held
        return held.layers[number - held.first]

    def _read_layers(self, array: str, number: int) -> _Held:
        """Reads a layer and its neighbours: whole chunks."""
        stored = self.tree.stored[array]
        together = self.tree.rows_of_chunk(array)
        layer_bytes = math.prod(stored.shape[1:]) * stored.dtype.itemsize
        together *= max(1, HELD_BYTES // HELD_STACKS // max(1, together * layer_bytes))
        first = number // together * together
        assert stored.read_rows is not None, "a stack has an axis of layers"
        return _Held(first, stored.read_rows(first, min(first + together, stored.shape[0])))
