"""Chooses the files of a folder that hold its weights, as transformers does, and reads safetensors files.

A safetensors file is a length, a JSON header and the bytes of the arrays. It is read here, because the library reads a
whole file into memory.
"""

from __future__ import annotations

import functools
import json
import logging
import math
import re
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

from limba.config import InputError, reason_of, untrusted_files
from limba.formats.names import (
    BIN,
    BIN_INDEX,
    SAFETENSORS,
    SAFETENSORS_INDEX,
    Arrays,
    Json,
    Stored,
    files_of_index,
    made_from,
)
from limba.formats.t5x import numpy_dtype

logger = logging.getLogger(__name__)

FLAX_FILE = "flax_model.msgpack"
ADAPTER = "adapter_config.json"  # of LoRA: with peft installed, transformers reads the model that this file names
OF_AN_ADAPTER = (
    f"{{}} holds {ADAPTER}: an adapter (LoRA), which is a change of another model; merge it into that model with peft's"
    " merge_and_unload(), save the result, and give that folder."
)

# safetensors' names of dtypes, and numpy's. Arrays of other dtypes (float8, …) may lie in a file, and are not read.
DTYPES = {
    "F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "BOOL": "bool",
    "I64": "int64", "I32": "int32", "I16": "int16", "I8": "int8",
    "U64": "uint64", "U32": "uint32", "U16": "uint16", "U8": "uint8",
}  # fmt: skip
WEIGHT_DTYPES = ("F64", "F32", "F16", "BF16", "I64", "I32")  # smaller whole numbers are quantized weights


class WeightsFile(NamedTuple):
    """A file that stands for a set of weights: it holds them, or it is the index of several files that do."""

    name: str
    form: str  # safetensors, bin or flax
    parts: str | None = None  # a pattern of the files beside an index


# In the order of transformers' `from_pretrained`, versions 4.57 and 5 (modeling_utils.py): a folder that was saved
# twice holds two sets, and the first in this list is read. Version 5 reads no Flax, so that comes last.
WEIGHTS_FILES = (
    WeightsFile(SAFETENSORS, "safetensors"),
    WeightsFile(SAFETENSORS_INDEX, "safetensors", r"model-\d+-of-\d+\.safetensors"),
    WeightsFile(BIN, "bin"),
    WeightsFile(BIN_INDEX, "bin", r"pytorch_model-\d+-of-\d+\.bin"),
    WeightsFile(FLAX_FILE, "flax"),
)


def weights_files(names: Iterable[str]) -> list[WeightsFile]:
    """Returns the sets of weights among the names of a folder's files, the one that is read first.

    >>> [file.name for file in weights_files(["model.safetensors.index.json", "model.safetensors", "a.txt"])]
    ['model.safetensors', 'model.safetensors.index.json']
    """
    present = set(names)
    return [file for file in WEIGHTS_FILES if file.name in present]


def files_to_download(names: Iterable[str]) -> list[str]:
    """Returns which files of a folder hold the weights that are read; [] for a folder without weights."""
    names = sorted(names)
    chosen = next(iter(weights_files(names)), None)
    if chosen is None:
        return []
    if chosen.parts is None:
        return [chosen.name]
    return [chosen.name, *(name for name in names if re.fullmatch(chosen.parts, name))]


def weights_form(path: str | Path) -> str | None:
    """Returns the form of the weights that are read of a folder: "safetensors", "bin" or "flax"; None without any."""
    chosen = next(iter(weights_files(_names_in(path))), None)
    return None if chosen is None else chosen.form


def is_huggingface(path: str | Path) -> bool:
    """Returns whether a folder is for transformers, with weights in one of the files of WEIGHTS_FILES."""
    return (Path(path) / "config.json").is_file() and weights_form(path) is not None


def _names_in(path: str | Path) -> list[str]:
    return [entry.name for entry in Path(path).iterdir()] if Path(path).is_dir() else []


def check_weights(folder: Path, is_chosen: bool = False) -> None:
    """Logs which set of weights is read, where a folder holds several and none `is_chosen` by the caller.

    Raises InputError for the folder of an adapter, whose weights are changes of another model's.
    """
    names = _names_in(folder)
    if ADAPTER in names:
        raise InputError(OF_AN_ADAPTER.format(folder))
    sets = [file.name for file in weights_files(names)]
    if SAFETENSORS in sets and made_from(folder / SAFETENSORS):
        sets = [name for name in sets if name not in (BIN, BIN_INDEX)]  # Limba's own copy of these
    if len(sets) > 1 and not is_chosen:
        say_once(
            f"{folder} holds {len(sets)} sets of weights, {', '.join(sets)}: {sets[0]} is read, as transformers does;"
            " remove the others if they are older."
        )


@functools.cache
def say_once(line: str) -> None:
    """Logs a warning, the first time that it is called with this line."""
    logger.warning(line)


def open_safetensors(directory: str | Path) -> Arrays:
    """Returns the arrays of `model.safetensors`, else of the files that its index names, by PyTorch's names."""
    folder = Path(directory)
    index = folder / SAFETENSORS_INDEX
    files = [SAFETENSORS]
    if index.exists() and not (folder / SAFETENSORS).exists():
        files = files_of_index(index)
    arrays: dict[str, Stored] = {}
    for file in files:
        arrays |= _entries(folder / file)
    return Arrays(arrays)


def _entry(name: str, entry: Json) -> tuple[str, tuple[int, ...], int, int]:
    """Returns (type, shape, first byte, byte after the last) of a safetensors header's entry, or ValueError."""
    letters = ""
    shape: tuple[int, ...] = ()
    first = last = 0
    try:
        letters = entry["dtype"]
        shape = tuple(entry["shape"])
        first, last = entry["data_offsets"]
        is_right = isinstance(letters, str) and all(type(n) is int and n >= 0 for n in (*shape, first, last - first))
    except (KeyError, TypeError, ValueError):
        is_right = False
    if not is_right:
        raise ValueError(f"its entry of {name} is wrong")
    return letters, shape, first, last


def _entries(path: Path) -> dict[str, Stored]:
    """Returns the arrays that a safetensors file's header names; those that are not numbers of weights fail when read.

    A file may hold such an array beside its weights, such as a mask of booleans, which no network asks for.
    """
    try:
        size = path.stat().st_size
        with untrusted_files.open_regular(path) as file:
            length = int.from_bytes(file.read(8), "little")
            if length > size - 8:
                raise ValueError("its header ends beyond it")
            header = json.loads(file.read(length))
        shapes_and_bytes = {name: _entry(name, entry) for name, entry in header.items() if name != "__metadata__"}
    except InputError:
        raise
    except (OSError, ValueError, AttributeError, TypeError, OverflowError, RecursionError) as error:
        raise InputError(f"{path} cannot be read as safetensors ({reason_of(error)}); copy it again.") from error
    entries = {}
    for name, (letters, shape, first, last) in shapes_and_bytes.items():
        if 8 + length + last > size:
            raise InputError(f"{path} is truncated: {name} ends beyond it; copy it again.")
        dtype = numpy_dtype(DTYPES.get(letters, "uint8"))
        if letters in DTYPES and last - first != math.prod(shape) * dtype.itemsize:
            raise InputError(f"{path} has {last - first} bytes of {name}, not its shape's; copy it again.")
        if letters in WEIGHT_DTYPES:
            begin = 8 + length + first
            read = partial(_read_array, path, begin, last - first, dtype, shape)
            read_rows = partial(_read_rows, path, begin, dtype, shape[1:]) if shape else None
        else:
            read = partial(_refuse, path, name, letters)
            read_rows = None
        entries[name] = Stored(shape, dtype, read, read_rows)
    return entries


def _refuse(path: Path, name: str, letters: str) -> np.ndarray:
    raise InputError(f"{path} holds {name} as {letters}; save it as float32 or bfloat16.")


def _read_array(path: Path, start: int, size: int, dtype: np.dtype, shape: tuple[int, ...]) -> np.ndarray:
    return np.frombuffer(_read(path, start, size), dtype).reshape(shape)


def _read_rows(path: Path, begin: int, dtype: np.dtype, row: tuple[int, ...], start: int, stop: int) -> np.ndarray:
    """Returns rows of an array whose bytes begin at `begin`; each row has the shape `row`."""
    row_bytes = math.prod(row) * dtype.itemsize
    content = _read(path, begin + start * row_bytes, (stop - start) * row_bytes)
    return np.frombuffer(content, dtype).reshape(stop - start, *row)


def _read(path: Path, start: int, size: int) -> bytes:
    with untrusted_files.open_regular(path) as file:
        file.seek(start)
        return file.read(size)
