"""The weights of a pytorch_model.bin, read without torch and written as model.safetensors: a zip or a stream, a pickle.

The few names that a table of tensors needs stand for functions of this module, and any other name is refused. Nothing
is looked up or imported by a name, so a file of somebody else runs nothing. (torch/serialization.py has both forms:
`_save` the zip of version 1.6 and later, `_legacy_save` the stream before it.)
"""

from __future__ import annotations

import hashlib
import io
import json
import logging
import math
import mmap
import pickle
import pickletools
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from limba.config import InputError, reason_of
from limba.formats.names import files_of_index
from limba.storage.files import private_folder, replacing

logger = logging.getLogger(__name__)

INDEX, WRITTEN = "pytorch_model.bin.index.json", "model.safetensors"
CACHE = "~/.cache/limba/safetensors"  # for folders that cannot be written
MAGIC = 0x1950A86A20F9469CFC6C  # of a stream: its first pickle
ZIP = b"PK\x03\x04"
BYTES_OF_PICKLE = 1 << 26
# Classes of storages -> numpy's type; bfloat16 is widened from its bits.
STORAGES = {
    "FloatStorage": "f4", "DoubleStorage": "f8", "HalfStorage": "f2", "BFloat16Storage": "u2", "LongStorage": "i8",
    "IntStorage": "i4", "ShortStorage": "i2", "CharStorage": "i1", "ByteStorage": "u1", "BoolStorage": "u1",
}  # fmt: skip


class _WrongError(Exception):
    """What a file holds that is no table of tensors, as a clause."""


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
    folder that somebody else has written safetensors to is returned as it is. Raises InputError as BinFolder.
    """
    own = folder / WRITTEN
    if own.with_name(f"{WRITTEN}.index.json").exists() or (own.exists() and not _mark(own)):
        return folder
    files = [(name, (folder / name).stat()) for name in _names(folder) if (folder / name).exists()]
    mark = " ".join(f"{name} {about.st_size} {about.st_mtime_ns}" for name, about in files)
    kept = Path(CACHE).expanduser() / hashlib.blake2b(f"{folder.resolve()} {mark}".encode(), digest_size=12).hexdigest()
    for place in (folder, kept):
        if _mark(place / WRITTEN) == mark:
            return place
    arrays = BinFolder(folder)
    try:
        _write(folder, arrays, mark)
    except OSError:
        _write(private_folder(kept), arrays, mark)
        folder = kept
    logger.warning("The weights of %s are now in %s too, which is read from now on.", arrays.path, folder / WRITTEN)
    return folder


def _names(folder: Path) -> list[str]:
    index = folder / INDEX
    return files_of_index(index) if index.exists() else ["pytorch_model.bin"]


def _mark(path: Path) -> str:
    """Returns which files a model.safetensors was made from here; "" for another one, or none."""
    try:
        with path.open("rb") as file:
            header = json.loads(file.read(min(int.from_bytes(file.read(8), "little"), BYTES_OF_PICKLE)))
        return str(header["__metadata__"]["made_from"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return ""


def _write(folder: Path, arrays: BinFolder, mark: str) -> None:
    """Writes all arrays, one after the other; the file has its name when it is whole."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt", "made_from": mark}}
    end = 0
    for name in arrays:
        shape, start = arrays.shape(name), end
        end += 4 * math.prod(shape)
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    with replacing(folder / WRITTEN) as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for name in arrays:
            file.write(np.ascontiguousarray(arrays[name], "<f4").data)


class BinFolder(Mapping[str, np.ndarray]):
    """The arrays of `pytorch_model.bin`, or of the files that its index names, as float32; each is read on access.

    bfloat16 and float16 are exact in float32. Raises InputError for a file that cannot be read, or that holds anything
    but tensors.
    """

    def __init__(self, directory: str | Path):
        self.path = Path(directory)
        self._places: dict[str, tuple[_File, _Tensor]] = {}
        for name in _names(self.path):
            file = _File(self.path / name)
            self._places |= {key: (file, tensor) for key, tensor in file.tensors.items()}

    def __getitem__(self, name: str) -> np.ndarray:
        file, tensor = self._places[name]
        return file.array(tensor)

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)

    def shape(self, name: str) -> tuple[int, ...]:
        """Returns an array's shape without reading its values."""
        return self._places[name][1].shape


class _File:
    """One file, mapped into memory: its tensors, and the place of each storage."""

    def __init__(self, path: Path):
        self.path = path
        self._order = "<"
        self._places: dict[str, int] = {}  # storage -> its first byte
        try:
            with path.open("rb") as file:
                found = self._read_zip(file) if file.read(4) == ZIP else self._read_stream(file)
                self._data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            self.tensors = self._checked(found)
        except _WrongError as error:
            raise InputError(
                f"{path} {error}; it is not opened: use model.safetensors, or save it again with a newer PyTorch as a"
                " table of tensors, torch.save(model.state_dict(), …)."
            ) from error
        except (OSError, ValueError, KeyError, IndexError, EOFError, AttributeError, TypeError) as error:
            raise self._damaged(reason_of(error)) from error
        except (zipfile.BadZipFile, NotImplementedError, RuntimeError, MemoryError, OverflowError) as error:
            raise self._damaged(reason_of(error)) from error

    def _damaged(self, reason: str) -> InputError:
        return InputError(f"{self.path} cannot be read as PyTorch's ({reason}); copy it again.")

    def _read_zip(self, file: BinaryIO) -> object:
        with zipfile.ZipFile(file) as archive:
            entries = {entry.filename: entry for entry in archive.infolist()}
            table = next((name for name in entries if name.endswith("/data.pkl")), None)
            if table is None:
                raise _WrongError("holds no data.pkl, so it is no table of tensors")
            folder = table.removesuffix("data.pkl")
            if (order := folder + "byteorder") in entries and archive.read(order) == b"big":
                self._order = ">"
            if entries[table].file_size > BYTES_OF_PICKLE:
                raise _WrongError(f"has {entries[table].file_size:,} bytes beside its tensors")
            found = _read(io.BytesIO(archive.read(table)))
            for name, entry in entries.items():
                if not name.startswith(folder + "data/"):
                    continue
                if entry.compress_type != zipfile.ZIP_STORED:
                    raise _WrongError("is compressed")
                file.seek(entry.header_offset + 26)
                lengths = int.from_bytes(file.read(2), "little") + int.from_bytes(file.read(2), "little")
                self._places[name.removeprefix(folder + "data/")] = entry.header_offset + 30 + lengths
        return found

    def _read_stream(self, file: BinaryIO) -> object:
        file.seek(0)
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            if _first_number(data) != MAGIC:
                raise ValueError("it begins neither as a zip nor as a stream of tensors")
            for _ in range(3):  # the magic number, the version, the machine's sizes
                head = _read(data)
                if isinstance(head, dict) and head.get("little_endian") is False:
                    self._order = ">"
            storages: dict[str, _Storage] = {}
            found, keys = _read(data, storages), _read(data)
            if not isinstance(keys, list):
                raise ValueError("it has no list of storages")
            place = data.tell()
            for key in keys:
                if int.from_bytes(data[place : place + 8], "little") != storages[key].length:
                    raise ValueError(f"storage {key} has another length than its tensors")
                self._places[key] = place + 8
                place += 8 + storages[key].bytes
            return found

    def _checked(self, found: object) -> dict[str, _Tensor]:
        if not isinstance(found, dict) or not found:
            raise _WrongError("holds no table of tensors")
        for name, tensor in found.items():
            if not (isinstance(name, str) and isinstance(tensor, _Tensor)):
                raise _WrongError(f"holds {str(name)[:80]!r}, which is no tensor")
            last = tensor.start + sum((n - 1) * step for n, step in zip(tensor.shape, tensor.strides, strict=True))
            place = self._places[tensor.storage.key]
            if (math.prod(tensor.shape) and last >= tensor.storage.length) or min(tensor.start, *tensor.strides, 0) < 0:
                raise ValueError(f"{name} ends beyond its storage")
            if place + tensor.storage.bytes > len(self._data):
                raise ValueError(f"{name} ends beyond the file")
        return found

    def array(self, tensor: _Tensor) -> np.ndarray:
        storage = tensor.storage
        dtype = np.dtype(self._order + STORAGES[storage.kind])
        numbers = np.frombuffer(self._data, dtype, storage.length, self._places[storage.key])[tensor.start :]
        strides = tuple(dtype.itemsize * step for step in tensor.strides)
        view = np.lib.stride_tricks.as_strided(numbers, tensor.shape, strides, writeable=False)
        if storage.kind == "BFloat16Storage":  # the upper half of a float32's bits
            return (view.astype(np.uint32) << 16).view(np.float32)
        return view.astype(np.float32)


def _first_number(data: Any) -> object:
    """Returns the number that the first pickle holds; None for anything else."""
    try:
        return next(argument for code, argument, _ in pickletools.genops(data[:64]) if code.name != "PROTO")
    except (ValueError, StopIteration):
        return None


class _Table(dict):
    """Stands for an OrderedDict, and for what a module has beside its tensors, of which nothing is used."""

    def __setstate__(self, state: object) -> None:
        pass


def _tensor(storage: object, start: int, shape: tuple, strides: tuple, *_: object) -> _Tensor:
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

    def __init__(self, file: Any, storages: dict[str, _Storage] | None = None):
        super().__init__(file)
        self._storages = {} if storages is None else storages

    def find_class(self, module: str, name: str, /) -> Any:
        if module == "torch" and name.endswith("Storage"):
            return name
        if (module, name) not in _MAKERS:
            raise _WrongError(f"holds more than tensors, a call of {module}.{name}, which could run code")
        return _MAKERS[module, name]

    def persistent_load(self, asked: Any) -> _Storage:
        """Returns the storage that a pickle refers to: ("storage", its class, key, device, length, …)."""
        match asked:
            case ("storage", str(kind), str(key), _, int(length), *rest) if not any(rest) and length >= 0:
                if kind not in STORAGES:
                    raise _WrongError(f"holds numbers as torch.{kind}")
                return self._storages.setdefault(key, _Storage(key, kind, length))
        raise _WrongError("refers to something that is no storage of numbers")


def _read(file: Any, storages: dict[str, _Storage] | None = None) -> Any:
    try:
        return _Tables(file, storages).load()
    except (pickle.UnpicklingError, ImportError) as error:
        raise ValueError(reason_of(error)) from error
