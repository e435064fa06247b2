"""Arrays by name, read on demand, and written as safetensors; Limba's names of parameters and T5X's.

A tree is a flat dict here: "encoder/layers/attention/query/kernel" -> array. Limba stacks the layers of a stack on
axis 0; T5X (examples/t5) has one array for each layer, whose name differs only in that.
"""

from __future__ import annotations

import json
import math
import re
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, TypeVar

import numpy as np

from limba.config import InputError, reason_of, untrusted_files

Json = dict[str, Any]  # an object of a JSON file
BLOCK_BYTES = 1 << 26
WRITE_BYTES = 1 << 20  # of one call
STRIP = 64  # columns that are transposed at once,
STRIP_ROWS = 2048  # and their rows: half a MiB in float32, which stays in a processor's cache
LIMIT_OF_HEADER = 1 << 26  # bytes of a safetensors file's header
# The files of transformers' weights: one, or the index of several.
SAFETENSORS = "model.safetensors"
SAFETENSORS_INDEX = "model.safetensors.index.json"
BIN = "pytorch_model.bin"
BIN_INDEX = "pytorch_model.bin.index.json"
_LETTERS = {  # of safetensors
    **{"float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16"},
    **{"int64": "I64", "int32": "I32"},
}
_STACKED = re.compile(r"(^|/)layers/")
_END: Any = object()  # of what `read_ahead` reads
T = TypeVar("T")


@dataclass(frozen=True)
class Stored:
    """An array that is read, or computed, when it is asked for."""

    shape: tuple[int, ...]
    dtype: np.dtype
    read: Callable[[], np.ndarray]
    read_rows: Callable[[int, int], np.ndarray] | None = None  # rows [start, stop) alone, where the file allows that

    def blocks(self, count: int | None = None) -> Iterator[np.ndarray]:
        """Yields the array `count` rows at a time, None: about BLOCK_BYTES of them.

        No more than these are in memory, where the file allows to read them alone.
        """
        if not self.shape:
            yield self.read()
            return
        num_rows = self.shape[0]
        if count is None:
            row_bytes = math.prod(self.shape[1:]) * self.dtype.itemsize
            count = max(1, BLOCK_BYTES // max(1, row_bytes))
        read_rows = self.read_rows
        if read_rows is None:
            whole = self.read()
            read_rows = lambda start, stop: whole[start:stop]
        for start in range(0, num_rows, count):
            yield read_rows(start, min(start + count, num_rows))

    @property
    def T(self) -> Stored:  # noqa: N802  numpy's name
        """The transposed array."""
        return Stored(self.shape[::-1], self.dtype, lambda: self.read().T)


class Arrays(Mapping[str, np.ndarray]):
    """Arrays by name; `arrays[name]` reads one, `describe` and `stored` read none."""

    def __init__(self, stored: Mapping[str, Stored]):
        self.stored = dict(stored)

    def __getitem__(self, name: str) -> np.ndarray:
        return self.stored[name].read()

    def __contains__(self, name: object) -> bool:
        return name in self.stored  # a Mapping's own would read the array

    def __iter__(self) -> Iterator[str]:
        return iter(self.stored)

    def __len__(self) -> int:
        return len(self.stored)

    def describe(self, name: str) -> tuple[tuple[int, ...], str]:
        """Returns (shape, dtype name)."""
        return self.stored[name].shape, self.stored[name].dtype.name

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Name -> shape."""
        return {name: array.shape for name, array in self.stored.items()}


def size_of(stored: Stored) -> int:
    """Returns an array's bytes."""
    return math.prod(stored.shape) * stored.dtype.itemsize


def read_ahead(items: Iterable[T]) -> Iterator[T]:
    """Yields what is read; a thread reads the next item while the caller writes the one before.

    Where the caller ends before the items do, the one that is being read is waited for.

    >>> list(read_ahead(range(3)))
    [0, 1, 2]
    """
    reading = iter(items)
    with ThreadPoolExecutor(1) as reader:
        following = reader.submit(next, reading, _END)
        while True:
            item = following.result()
            if item is _END:
                return
            following = reader.submit(next, reading, _END)
            yield item


def copy_to(array: np.ndarray, out: np.ndarray) -> None:
    """Copies an array of any layout into one in C order.

    A transposed matrix goes in strips. numpy's copy reads, or writes, a new line of the processor's cache for each
    value, and takes four times as long where rows are a power of two apart: the cache has few places for such lines.
    So each strip first goes to rows of another length.
    """
    if array.ndim != 2 or abs(array.strides[0]) >= abs(array.strides[1]):
        out[...] = array
        return
    num_rows, num_columns = array.shape
    memory = np.empty((STRIP, STRIP_ROWS + 16), array.dtype)
    for top in range(0, num_rows, STRIP_ROWS):
        rows = slice(top, min(top + STRIP_ROWS, num_rows))
        for left in range(0, num_columns, STRIP):
            columns = slice(left, min(left + STRIP, num_columns))
            strip = memory[: columns.stop - left, : rows.stop - top]
            strip[...] = array[rows, columns].T
            out[rows, columns] = strip.T


def blocks_of(stored: Stored) -> Iterator[memoryview]:
    """Yields an array's bytes in C order, some rows at a time."""
    for rows in stored.blocks():
        yield _bytes_of(rows, stored.dtype)


def _bytes_of(rows: np.ndarray, dtype: np.dtype) -> memoryview:
    """Returns the bytes of rows as this dtype, in C order."""
    block = rows.astype(dtype, copy=False)
    if not block.flags.c_contiguous:
        in_order = np.empty(block.shape, dtype)
        copy_to(block, in_order)
        block = in_order
    return block.reshape(-1).view(np.uint8).data


def _blocks_in_turn(arrays: Iterable[Stored]) -> Iterator[memoryview]:
    """Yields the bytes of some arrays, one array after the other; a thread reads while the caller has them."""

    def blocks() -> Iterator[tuple[np.ndarray, np.dtype]]:
        for stored in arrays:
            for rows in stored.blocks():
                yield rows, stored.dtype

    for rows, dtype in read_ahead(blocks()):
        yield _bytes_of(rows, dtype)


def taken(stored: Stored, rows: np.ndarray, axis: int) -> np.ndarray:
    """Returns the slices of an array at the indices `rows` of an axis, which ascend; it is read some rows at a time."""
    shape = (*stored.shape[:axis], len(rows), *stored.shape[axis + 1 :])
    slices = np.empty(shape, stored.dtype)
    start = 0
    for block in stored.blocks():
        stop = start + len(block)
        if axis:
            slices[start:stop] = block.take(rows, axis)
        else:
            first, last = np.searchsorted(rows, (start, stop))
            slices[first:last] = block[rows[first:last] - start]
        start = stop
    return slices


def write_safetensors(file: IO[bytes], part: Mapping[str, Stored], **metadata: str) -> None:
    """Writes one file of safetensors, its arrays one after the other, with this metadata."""
    header: Json = {"__metadata__": {"format": "pt", **metadata}}
    start = 0
    for name, stored in part.items():
        end = start + size_of(stored)
        header[name] = {"dtype": _LETTERS[stored.dtype.name], "shape": stored.shape, "data_offsets": [start, end]}
        start = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    file.write(struct.pack("<Q", len(text)) + text)
    for block in read_ahead(_blocks_in_turn(part.values())):
        write_block(file, block)


def write_block(file: IO[bytes], block: memoryview) -> None:
    """Writes a block of bytes, WRITE_BYTES at a time.

    For one call of many megabytes Linux takes large pages, which a virtual machine may first have to get from its host:
    3 GB took 4 to 8 seconds that way, and 1.2 to 2 in parts.
    """
    for start in range(0, len(block), WRITE_BYTES):
        file.write(block[start : start + WRITE_BYTES])


def made_from(path: Path) -> str:
    """Returns from which .bin files Limba has made a model.safetensors; "" for one that somebody else wrote."""
    try:
        with untrusted_files.open_regular(path) as file:
            header = json.loads(file.read(min(int.from_bytes(file.read(8), "little"), LIMIT_OF_HEADER)))
        return str(header["__metadata__"]["made_from"])
    except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return ""


def unstack_layers(tree: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Returns T5X's tree: each array under `layers/` cut along axis 0 into `layers_i/`."""
    result: dict[str, np.ndarray] = {}
    for name, array in tree.items():
        if not _STACKED.search(name):
            result[name] = array
            continue
        for i in range(array.shape[0]):
            result[_STACKED.sub(rf"\g<1>layers_{i}/", name)] = array[i]
    return result


def flatten(tree: Mapping) -> dict:
    """Returns {"a/b/c": leaf} of a nested dict."""
    from flax import traverse_util

    return traverse_util.flatten_dict(tree, sep="/")


def unflatten(flat: Mapping[str, object]) -> dict:
    """Returns the nested dict of {"a/b/c": leaf}."""
    from flax import traverse_util

    return traverse_util.unflatten_dict(flat, sep="/")


def check_names(
    missing: Sequence[str], extra: Sequence[str], where: str, advice: str = "give the model's own configuration"
) -> None:
    """Raises InputError if `where` lacks arrays of a network, or has others.

    >>> check_names(["lm_head.weight"], [], "model/")
    Traceback (most recent call last):
    limba.config.errors.InputError: model/ has no lm_head.weight; give the model's own configuration.
    """
    if missing or extra:
        what = f"has no {missing[0]}" if missing else f"has {extra[0]}, which the network does not have"
        more = max(len(missing), len(extra)) - 1
        raise InputError(f"{where} {what}{f', and {more} more' if more > 0 else ''}; {advice}.")


def files_of_index(index: Path) -> list[str]:
    """Returns the names of the files that the index of a folder's weights names.

    Raises InputError for an index that cannot be read, and for a name that does not belong to a file beside it: an
    index from somebody else must not choose which other files are read.
    """
    try:
        names = sorted(set(json.loads(untrusted_files.text_of(index))["weight_map"].values()))
    except InputError:
        raise
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise InputError(f"{index} is not an index of weights ({reason_of(error)}); copy it again.") from error
    for name in names:
        if not isinstance(name, str) or name in ("", ".", "..") or re.search(r"[/\\\0:]", name):
            raise InputError(
                f"{index} names the file {name!r}, which is not beside it; copy the folder again, from somebody"
                " whom you trust."
            )
    return names
