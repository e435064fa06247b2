"""The weights of a pytorch_model.bin, read without torch and written as model.safetensors.

Such a file is a pickle of the tensors' shapes, and the numbers beside it: in a zip since PyTorch 1.6, in one stream
before (torch/serialization.py: `_save` and `_legacy_save`). A pickle can run code by naming it. So the few names that a
table of tensors needs stand for functions of this module, any other name is refused, and nothing is imported.
"""

from __future__ import annotations

import functools
import hashlib
import io
import logging
import math
import pickle
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np

from limba.config import InputError, reason_of
from limba.formats.names import (
    BIN,
    BIN_INDEX,
    SAFETENSORS,
    SAFETENSORS_INDEX,
    Arrays,
    Stored,
    files_of_index,
    made_from,
    write_safetensors,
)
from limba.storage.files import private_folder, replacing

logger = logging.getLogger(__name__)

CACHE = "~/.cache/limba/safetensors"  # for folders that cannot be written
MAGIC = 0x1950A86A20F9469CFC6C  # of a stream: its first pickle
ZIP = b"PK\x03\x04"
BYTES_OF_PICKLE = 1 << 26  # at most: it holds names and shapes, not numbers
DAMAGED = (  # what reading a file that was cut or changed raises
    OSError, ValueError, KeyError, IndexError, EOFError, AttributeError, TypeError, zipfile.BadZipFile,
    NotImplementedError, RuntimeError, MemoryError, OverflowError, pickle.UnpicklingError, ImportError,
)  # fmt: skip
# Classes of storages -> numpy's type; bfloat16 is widened from its bits.
STORAGES = {
    "FloatStorage": "f4", "DoubleStorage": "f8", "HalfStorage": "f2", "BFloat16Storage": "u2", "LongStorage": "i8",
    "IntStorage": "i4", "ShortStorage": "i2", "CharStorage": "i1", "ByteStorage": "u1", "BoolStorage": "u1",
}  # fmt: skip


class _WrongError(Exception):
    """The file holds something else than a table of tensors; the message is the end of a sentence about it."""


@dataclass(frozen=True)
class _Storage:
    """The numbers of one or several tensors."""

    key: str
    kind: str  # one of STORAGES
    length: int

    @property
    def bytes(self) -> int:
        return self.length * np.dtype(STORAGES[self.kind]).itemsize


@dataclass(frozen=True)
class _Tensor:
    """A view of a storage, counted in numbers."""

    storage: _Storage
    start: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


def as_safetensors(folder: Path) -> Path:
    """Returns a folder with the weights of `folder` as model.safetensors, float32: itself, or one in CACHE.

    They are written once, beside the pytorch_model.bin if the folder can be written, and again when that changes. A
    folder that has safetensors of another origin is returned as it is. Raises InputError as `open_bin`.
    """
    safetensors = folder / SAFETENSORS
    if made_from(safetensors) == "" and (safetensors.exists() or (folder / SAFETENSORS_INDEX).exists()):
        return folder
    # The mark, written into the safetensors, says which files they were made of: names, sizes and times.
    files = [(name, (folder / name).stat()) for name in _names(folder) if (folder / name).exists()]
    mark = " ".join(f"{name} {stat.st_size} {stat.st_mtime_ns}" for name, stat in files)
    digest = hashlib.blake2b(f"{folder.resolve()} {mark}".encode(), digest_size=12).hexdigest()
    cached = Path(CACHE).expanduser() / digest
    for candidate in (folder, cached):
        if made_from(candidate / SAFETENSORS) == mark:
            return candidate
    arrays = open_bin(folder)
    written = folder
    try:
        _write(folder, arrays, mark)
    except OSError:
        written = private_folder(cached)
        _write(written, arrays, mark)
    by_transformers = ", by transformers too, also after the .bin has changed" if written == folder else ""
    logger.warning(
        "The weights of %s are now in %s too, which is read from now on%s.",
        folder, written / SAFETENSORS, by_transformers,
    )  # fmt: skip
    return written


def _names(folder: Path) -> list[str]:
    """Returns the names of the files with a folder's weights: `pytorch_model.bin`, else what its index names."""
    if (folder / BIN).exists() or not (folder / BIN_INDEX).exists():
        return [BIN]
    return files_of_index(folder / BIN_INDEX)


def _write(folder: Path, arrays: Arrays, mark: str) -> None:
    """Writes all arrays, one after the other; the file has its name when it is whole."""
    with replacing(folder / SAFETENSORS) as file:
        write_safetensors(file, arrays.stored, made_from=mark)


def open_bin(folder: Path) -> Arrays:
    """Returns the arrays of `pytorch_model.bin`, or of the files that its index names, as float32; read on access.

    bfloat16 and float16 are exact in float32. Raises InputError for a file that cannot be read, or that holds anything
    but tensors.
    """
    arrays: dict[str, Stored] = {}
    for name in _names(folder):
        file = _File(folder / name)
        for key, tensor in file.tensors.items():
            arrays[key] = Stored(tensor.shape, np.dtype(np.float32), functools.partial(file.array, tensor))
    return Arrays(arrays)


class _File:
    """One file: its tensors, and where each storage is in the stream or the zip."""

    def __init__(self, path: Path):
        self.path = path
        self._byte_order = "<"  # numpy's sign for little-endian
        self._locations: dict[str, int | str] = {}  # storage -> its first byte in the stream, or its name in the zip
        try:
            with path.open("rb") as file:
                is_zip = file.read(4) == ZIP
                file.seek(0)
                self.tensors = self._checked(self._read_zip(file) if is_zip else self._read_stream(file))
        except _WrongError as error:
            raise InputError(
                f"{path} {error}; it is not opened: use model.safetensors, or save it again with a newer PyTorch as a"
                " table of tensors, torch.save(model.state_dict(), …)."
            ) from error
        except DAMAGED as error:
            raise self._damaged(error) from error

    def _damaged(self, error: Exception) -> InputError:
        return InputError(f"{self.path} cannot be read as PyTorch's ({reason_of(error)}); copy it again.")

    def _read_zip(self, file: BinaryIO) -> object:
        with zipfile.ZipFile(file) as archive:
            sizes = {entry.filename: entry.file_size for entry in archive.infolist()}
            table = next((name for name in sizes if name.endswith("/data.pkl")), None)
            if table is None:
                raise _WrongError("holds no data.pkl, so it is not a table of tensors")
            folder = table.removesuffix("data.pkl")
            if any(e.compress_type for e in archive.infolist() if e.filename.startswith(f"{folder}data/")):
                raise _WrongError("is compressed")
            byte_order = f"{folder}byteorder"
            if byte_order in sizes and archive.read(byte_order) == b"big":
                self._byte_order = ">"
            if sizes[table] > BYTES_OF_PICKLE:
                raise _WrongError(f"has {sizes[table]:,} bytes beside its tensors")
            storages: dict[str, _Storage] = {}
            tensors = _read(io.BytesIO(archive.read(table)), storages)
            for key, storage in storages.items():
                name = f"{folder}data/{key}"
                if sizes[name] < storage.bytes:
                    raise ValueError(f"storage {key} is shorter than its tensors")
                self._locations[key] = name
            return tensors

    def _read_stream(self, file: BinaryIO) -> object:
        if _read(file) != MAGIC:
            raise ValueError("it begins neither as a zip nor as a stream of tensors")
        for _ in range(2):  # the version, the machine's sizes
            header = _read(file)
            if isinstance(header, dict) and header.get("little_endian") is False:
                self._byte_order = ">"
        storages: dict[str, _Storage] = {}
        tensors = _read(file, storages)
        keys = _read(file)
        if not isinstance(keys, list):
            raise ValueError("it has no list of storages")
        for key in keys:
            if int.from_bytes(file.read(8), "little") != storages[key].length:
                raise ValueError(f"storage {key} has another length than its tensors")
            self._locations[key] = file.tell()
            file.seek(storages[key].bytes, io.SEEK_CUR)
        if file.tell() > self.path.stat().st_size:
            raise ValueError("its last storage ends beyond the file")
        return tensors

    def _checked(self, tensors: object) -> dict[str, _Tensor]:
        """Returns the tensors by name, each within its storage: `as_strided` would read beyond it."""
        if not isinstance(tensors, dict) or not tensors:
            raise _WrongError("holds no table of tensors")
        for name, tensor in tensors.items():
            if not (isinstance(name, str) and isinstance(tensor, _Tensor)):
                raise _WrongError(f"holds {str(name)[:80]!r}, which is not a tensor")
            if tensor.storage.key not in self._locations:
                raise ValueError(f"the storage of {name} is not in the file")
            last = tensor.start + sum((n - 1) * step for n, step in zip(tensor.shape, tensor.strides, strict=True))
            is_beyond = math.prod(tensor.shape) > 0 and last >= tensor.storage.length
            if is_beyond or min(tensor.start, *tensor.strides, 0) < 0:
                raise ValueError(f"{name} ends beyond its storage")
        return tensors

    def array(self, tensor: _Tensor) -> np.ndarray:
        """Returns a tensor's numbers, float32, read from the file now."""
        storage = tensor.storage
        location = self._locations[storage.key]
        try:
            with self.path.open("rb") as file:
                if isinstance(location, str):
                    data = zipfile.ZipFile(file).read(location)
                else:
                    file.seek(location)
                    data = file.read(storage.bytes)
        except DAMAGED as error:
            raise self._damaged(error) from error
        dtype = np.dtype(self._byte_order + STORAGES[storage.kind])
        numbers = np.frombuffer(data, dtype, storage.length)[tensor.start :]
        strides = tuple(dtype.itemsize * step for step in tensor.strides)
        view = np.lib.stride_tricks.as_strided(numbers, tensor.shape, strides, writeable=False)
        if storage.kind == "BFloat16Storage":  # the upper half of a float32's bits
            return (view.astype(np.uint32) << 16).view(np.float32)
        return view.astype(np.float32)


class _Table(dict):
    """Stands for an OrderedDict. A module's attributes beside its tensors, its pickled state, are ignored."""

    def __setstate__(self, state: object) -> None:
        pass


def _tensor(storage: object, start: int, shape: tuple, strides: tuple, *_: object) -> _Tensor:
    """Returns what torch._utils._rebuild_tensor_v2 is called for, after a check: the file may hold any arguments."""
    numbers = (start, *shape, *strides)
    is_view = len(shape) == len(strides) and all(type(n) is int and n >= 0 for n in numbers)
    if not (isinstance(storage, _Storage) and is_view):
        raise _WrongError("holds more than tensors")
    return _Tensor(storage, start, shape, strides)


_MAKERS = {
    ("torch._utils", "_rebuild_tensor_v2"): _tensor,
    ("torch._utils", "_rebuild_parameter"): lambda tensor, *_: tensor,
    ("collections", "OrderedDict"): _Table,
}


class _Tables(pickle.Unpickler):
    """Reads a pickle in which every name stands for a function above, or for a kind of storage: none is looked up."""

    def __init__(self, file: BinaryIO, storages: dict[str, _Storage] | None = None):
        super().__init__(file)
        self._storages = {} if storages is None else storages

    def find_class(self, module: str, name: str, /) -> object:
        if module == "torch" and name.endswith("Storage"):
            return name
        if (module, name) not in _MAKERS:
            raise _WrongError(f"holds more than tensors, a call of {module}.{name}, which could run code")
        return _MAKERS[module, name]

    def persistent_load(self, asked: object) -> _Storage:
        """Returns the storage that a pickle refers to: ("storage", its class, key, device, length, …)."""
        match asked:
            case ("storage", str(kind), str(key), _, int(length), *rest) if not any(rest) and length >= 0:
                if kind not in STORAGES:
                    raise _WrongError(f"holds numbers as torch.{kind}")
                return self._storages.setdefault(key, _Storage(key, kind, length))
        raise _WrongError("refers to something that is not a storage of numbers")


def _read(file: BinaryIO, storages: dict[str, _Storage] | None = None) -> object:
    return _Tables(file, storages).load()
