"""The arrays of a training state: copied to the host, written, merged and read, each process its own shards.

The arrays are zarr arrays in an OCDBT store for each process, `state/ocdbt.process_<i>.<attempt>`, which the first
process merges into one. tensorstore writes and reads them here, so that a failure is an exception of the call that
failed, and a thread that waits can be left.
"""

import functools
import logging
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

import jax
import numpy as np
import tensorstore as ts
from etils import epath
from jaxtyping import PyTree

from limba.config import InputError
from limba.formats.limba_checkpoint import AVERAGE, averages_in
from limba.formats.t5x import stored_arrays
from limba.sharding.mesh import leaf_name, named_leaves
from limba.storage.failures import waited
from limba.storage.files import key_value_store
from limba.storage.literal_names import matching

Index = tuple[slice, ...]
Spec = Mapping[str, object]  # of a tensorstore
T = TypeVar("T")
logger = logging.getLogger(__name__)

# What only a run in float16 has, or one that averages its weights: the dtype and the average may change.
OPTIONAL = re.compile(r"(?:^|/)(?:loss_scale_\w+$|average_updates$|average/)")

CHUNK_BYTES = 1 << 26  # a larger shard is written as several chunks, which are compressed side by side
BATCH_BYTES = 1 << 30  # of the arrays that are written, or read, at one time
COPY_THREADS = 4  # a copy of one thread does not use all of the memory's speed
OCDBT = {
    "config": {"max_inline_value_bytes": 1024, "max_decoded_node_bytes": 100_000_000, "manifest_kind": "single"},
    "assume_config": True,
}
MERGED = "manifest.ocdbt"  # the file by which an OCDBT store is opened
MEMORY = {"driver": "memory"}
STORE = "ocdbt.process_"  # begins the name of a process's store
# The locks that tensorstore would take do not exist on every file system.
FILE_OPTIONS = {"file_io_locking": {"mode": "non_atomic"}}


@dataclass(frozen=True)
class HostArray:
    """An array of the state, with what this process writes of it."""

    name: str  # in the store: the keys, joined with dots
    shape: tuple[int, ...]
    dtype: np.dtype
    chunk: tuple[int, ...]
    parts: tuple[tuple[Index, np.ndarray], ...]


@dataclass(frozen=True)
class Snapshot:
    """A copy of a state in the host's memory, which later steps do not change."""

    arrays: tuple[HostArray, ...]
    num_bytes: int  # of all processes

    @property
    def memory(self) -> list[np.ndarray]:
        """What holds the copies."""
        return [part for array in self.arrays for _, part in array.parts]


def num_bytes(tree: PyTree) -> int:
    """Returns the bytes of a state's arrays, or of their shapes, over all processes."""
    return sum(math.prod(leaf.shape) * np.dtype(leaf.dtype).itemsize for leaf in jax.tree.leaves(tree))


def take_snapshot(state: PyTree, memory: Sequence[np.ndarray] = ()) -> Snapshot:
    """Returns a copy of this process's part of the state: all that a save costs the training thread.

    On a CPU it is made in this memory, where that is of `memory_for` or of a snapshot (`Snapshot.memory`) that is no
    longer needed: memory that is new to the process takes as long to get as to fill.
    """
    leaves = jax.tree.leaves_with_path(state)
    chosen = [_own_parts(leaf) for _, leaf in leaves]
    # Of the parts of all leaves, one after the other: the data that holds it, and where it is in that.
    shards: list[jax.Array] = []
    insides = []
    for (_, leaf), parts in zip(leaves, chosen, strict=True):
        data_of = {_key(shard.index, leaf.shape): shard.data for shard in leaf.addressable_shards}
        for part in parts:
            shards.append(data_of[part.shard])
            insides.append(part.inside)
    for data in shards:
        data.copy_to_host_async()  # all are on their way before the first is waited for
    used = memory if len(memory) == len(shards) else [None] * len(shards)
    with ThreadPoolExecutor(COPY_THREADS) as pool:
        copies = iter(list(pool.map(_copied, insides, shards, used)))
    arrays = []
    for (path, leaf), parts in zip(leaves, chosen, strict=True):
        name = jax.tree_util.keystr(path, simple=True, separator=".")
        _, axis, number = _shares(leaf.sharding, leaf.shape)
        chunk = chunk_shape(leaf.sharding.shard_shape(leaf.shape), axis, number, leaf.dtype.itemsize)
        copied = tuple((part.index, next(copies)) for part in parts)
        arrays.append(HostArray(name, tuple(leaf.shape), np.dtype(leaf.dtype), chunk, copied))
    return Snapshot(tuple(arrays), num_bytes(state))


def memory_for(abstract: PyTree) -> list[np.ndarray]:
    """Returns memory for `take_snapshot` of such a state, which the process has already got from the system."""
    memory = []
    for leaf in jax.tree.leaves(abstract):
        for part in _own_parts(leaf):
            array = np.empty([inside.stop - inside.start for inside in part.inside], leaf.dtype)
            array.fill(0)  # the system gives a page when it is first written
            memory.append(array)
    return memory


def _copied(inside: Index, data: jax.Array, into: np.ndarray | None) -> np.ndarray:
    """Returns a part of a shard on the host, in memory that no step writes to."""
    array = np.asarray(data)[inside]
    if next(iter(data.devices())).platform != "cpu":
        return array
    if into is None or (into.shape, into.dtype) != (array.shape, array.dtype):
        return np.array(array)  # as the array itself is the device's memory, which the next step reuses
    np.copyto(into, array)
    return into


Key = tuple[tuple[int, int], ...]


def _key(index: Index, shape: Sequence[int]) -> Key:
    return tuple(part.indices(size)[:2] for part, size in zip(index, shape, strict=True))


def _slices(key: Key) -> Index:
    return tuple(slice(start, stop) for start, stop in key)


@functools.lru_cache(maxsize=4096)
def _shares(sharding: jax.sharding.Sharding, shape: tuple[int, ...]) -> tuple[dict[Key, list[int]], int | None, int]:
    """Returns (the processes that hold each shard, the axis that they divide it along, how many divide it).

    Every process computes the same. With the axis None one process writes a shard whole.
    """
    processes_of: dict[Key, set[int]] = {}
    for device, index in sharding.devices_indices_map(shape).items():
        processes_of.setdefault(_key(index, shape), set()).add(device.process_index)
    holders = {key: sorted(processes) for key, processes in processes_of.items()}
    numbers = {len(processes) for processes in holders.values()}
    number = numbers.pop() if len(numbers) == 1 else 1
    if number == 1:
        return holders, None, number
    for axis, size in enumerate(sharding.shard_shape(shape)):
        if size and size % number == 0:
            return holders, axis, number
    return holders, None, number


class _Part(NamedTuple):
    """What this process writes of an array: a shard, or a part of one that several processes hold."""

    shard: Key
    index: Index  # in the array
    inside: Index  # in the shard


def _own_parts(leaf: PyTree) -> list[_Part]:
    """Returns what this process writes of an array, or of the abstract one."""
    process = jax.process_index()
    parts = []
    holders, axis, number = _shares(leaf.sharding, leaf.shape)
    indices = leaf.sharding.addressable_devices_indices_map(leaf.shape).values()
    for key in dict.fromkeys(_key(index, leaf.shape) for index in indices):
        rank = holders[key].index(process)
        if axis is None and rank > 0:
            continue
        index = list(_slices(key))
        inside = [slice(0, stop - start) for start, stop in key]
        if axis is not None:
            start = key[axis][0]
            size = inside[axis].stop // number
            inside[axis] = slice(rank * size, (rank + 1) * size)
            index[axis] = slice(start + rank * size, start + (rank + 1) * size)
        parts.append(_Part(key, tuple(index), tuple(inside)))
    return parts


def chunk_shape(shard: tuple[int, ...], axis: int | None, number: int, itemsize: int) -> tuple[int, ...]:
    """Returns the shape of a zarr chunk: what one process writes of a shard, or an even part of it.

    >>> chunk_shape((4, 6), 0, 2, 4), chunk_shape((8, 1 << 20, 4), None, 1, 4), chunk_shape((), None, 1, 4)
    ((2, 6), (4, 1048576, 4), ())
    """
    chunk = [size // number if i == axis else size for i, size in enumerate(shard)]
    for i in range(len(chunk)):
        while math.prod(chunk) * itemsize > CHUNK_BYTES and chunk[i] % 2 == 0:
            chunk[i] //= 2
    return tuple(max(1, size) for size in chunk)


def write_arrays(directory: epath.Path, snapshot: Snapshot, attempt: str) -> str:
    """Writes this process's parts into the store of its own in `directory`; returns the name of that store.

    `attempt` ends the name, so that no other attempt to save the step writes there.
    """
    process = jax.process_index()
    folder = directory / f"{STORE}{process}.{attempt}"
    folder.mkdir(parents=True, exist_ok=True)
    store = {"driver": "ocdbt", "base": _base(folder), **OCDBT}
    # One store for all arrays: of several, commits at one time would read an empty manifest (DATA_LOSS).
    context = ts.Context()
    for batch in _batches(snapshot.arrays, _bytes_here):
        transaction = ts.Transaction(atomic=True)
        writes = []
        for array in batch:
            if not (array.parts or process == 0):
                continue
            opening = ts.open(
                {
                    "driver": "zarr",
                    "kvstore": {**store, "path": f"{array.name}/"},
                    "dtype": ts.dtype(array.dtype).name,
                    "metadata": {"shape": array.shape, "chunks": array.chunk, "compressor": {"id": "zstd", "level": 1}},
                    "store_data_equal_to_fill_value": True,
                },
                create=process == 0,
                open=True,
                assume_metadata=process != 0,  # the first process writes it
                transaction=transaction,
                context=context,
            )
            opened = waited(opening)
            for index, part in array.parts:
                target = opened[index] if index else opened
                writes.append(target.write(part, can_reference_source_data_indefinitely=True))
        for write in writes:
            waited(write.copy)
        waited(transaction.commit_async())
    return folder.name


def _bytes_here(array: HostArray) -> int:
    """Returns the bytes of what this process writes of an array."""
    return sum(part.nbytes for _, part in array.parts)


def merge(directory: epath.Path, attempt: str) -> bytes:
    """Makes one store of those that the processes have written in an attempt; returns its manifest, not yet written.

    The merged store names the files of the others. It is there once the manifest is `directory`/MERGED.
    """
    context = ts.Context()
    spec = {"driver": "ocdbt", "base": _base(directory), "manifest": MEMORY, **OCDBT}
    merged = waited(ts.KvStore.open(spec, context=context))
    transaction = ts.Transaction(atomic=True)
    for folder in matching(directory, f"{STORE}*.{attempt}"):
        child = waited(ts.KvStore.open({"driver": "ocdbt", "base": _base(folder), **OCDBT}, context=context))
        waited(child.experimental_copy_range_to(merged.with_transaction(transaction)))
    waited(transaction.commit_async())
    memory = waited(ts.KvStore.open(MEMORY, context=context))
    return waited(memory.read(MERGED)).value


Stores = Mapping[str, ts.TensorStore]


def opened(directory: epath.Path) -> Stores:
    """Returns the arrays in a checkpoint's `state` by Limba's names, opened and not read; a lacking chunk is an error.

    ValueError for what is damaged.
    """
    try:
        specs = stored_arrays(directory)
    except InputError as error:  # to a run's own checkpoint it is damage, and no wrong input
        raise ValueError(str(error.__cause__ or error)) from error
    how = {"fill_missing_data_reads": False}
    context = ts.Context()
    started = {name: ts.open({**spec, **how}, read=True, open=True, context=context) for name, spec in specs.items()}
    return {name: waited(store) for name, store in started.items()}


def read_arrays(directory: epath.Path, abstract: PyTree) -> PyTree:
    """Returns the tree of arrays in a checkpoint's `state`, of the dtypes and with the shardings of `abstract`.

    Each process reads the shards of its devices. An array that is not there, or lacks a chunk, is an error. A number of
    OPTIONAL is then zero, and an average of the weights begins as the weights, with a sentence.
    """
    stores = opened(directory)
    wanted = named_leaves(abstract)
    stored_names = {name: _stored_name(name, stores) for name in wanted}
    absent = [name for name, stored_name in stored_names.items() if stored_name is None]
    read = {name: jax.device_put(np.zeros((), wanted[name].dtype), wanted[name].sharding) for name in absent}
    sentence = _about_average(directory.parent, set(wanted), set(stores))
    if sentence:
        logger.warning("%s", sentence)
    for batch in _batches([name for name in wanted if name not in read], lambda name: num_bytes(wanted[name])):
        started = {name: _started(stores[stored_names[name] or name], wanted[name]) for name in batch}
        for name, pieces in started.items():
            read[name] = _placed(wanted[name], {key: waited(piece) for key, piece in pieces.items()})
    return jax.tree.map_with_path(lambda path, _: read[leaf_name(path)], abstract)


def _stored_name(name: str, stores: Stores) -> str | None:
    """Returns the name of the stored array that is read for an array of the state.

    None for a number of OPTIONAL that is absent. These numbers are found by their last name, and an average by its
    parameter: where they are in the optimizer's chain depends on what is before them. A part without arrays, such as
    Adafactor's weight decay, moves only these.
    """
    if name in stores or not OPTIONAL.search(name):
        return name
    match = AVERAGE.match(name)
    if match is not None:
        return averages_in(stores).get(match[1], f"params/{match[1]}")
    last = name.rpartition("/")[2]
    return next((stored for stored in stores if stored.rpartition("/")[2] == last), None)


def _about_average(checkpoint: epath.Path, wanted: AbstractSet[str], stored: AbstractSet[str]) -> str:
    """Returns a note if only the run or only the checkpoint has an average of the weights; else ""."""
    has_average = any(AVERAGE.match(name) for name in wanted)
    had_average = any(AVERAGE.match(name) for name in stored)
    if has_average == had_average or jax.process_index() != 0:
        return ""
    if had_average:
        return f"{checkpoint} holds an average of the weights, which is dropped: EvaluationConfig.average is None."
    return f"{checkpoint} holds no average of the weights: it begins here, as the weights of step {checkpoint.name}."


def _started(store: ts.TensorStore, leaf: PyTree) -> dict[Key, ts.Future[np.ndarray]]:
    """Returns the reads of an array's shards, one for each index that this process's devices hold."""
    if tuple(store.shape) != tuple(leaf.shape):
        raise ValueError(f"an array of shape {tuple(store.shape)} and not {tuple(leaf.shape)}")
    indices = leaf.sharding.addressable_devices_indices_map(leaf.shape).values()
    keys = dict.fromkeys(_key(index, leaf.shape) for index in indices)
    return {key: (store[_slices(key)] if key else store).read() for key in keys}


def _placed(leaf: jax.ShapeDtypeStruct, pieces: Mapping[Key, np.ndarray]) -> jax.Array:
    def piece(index: Index | None) -> np.ndarray:
        return np.asarray(pieces[_key(index or (), leaf.shape)], leaf.dtype)

    return jax.make_array_from_callback(leaf.shape, leaf.sharding, piece)


def _batches(items: Sequence[T], size: Callable[[T], int]) -> Iterator[list[T]]:
    """Yields runs of adjacent items of at most BATCH_BYTES together, or one larger item."""
    batch = []
    total = 0
    for item in items:
        if batch and total + size(item) > BATCH_BYTES:
            yield batch
            batch = []
            total = 0
        batch.append(item)
        total += size(item)
    if batch:
        yield batch


def _base(folder: epath.Path) -> Spec:
    base = key_value_store(folder)
    if base["driver"] == "file":
        return {**base, **FILE_OPTIONS}
    return base
