"""The weights of a legacy pytorch_model.bin, by PyTorch's names. It is a pickle: only plain tensors are accepted."""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from limba.config import InputError
from limba.config.errors import reason_of
from limba.formats.huggingface import files_of_index

_ZIP = b"PK\x03\x04"  # what the files of PyTorch 1.6 and later begin with


class BinFolder(Mapping[str, np.ndarray]):
    """The arrays of `pytorch_model.bin`, or of the files that its index names.

    The files are mapped into memory, and an array's pages are read on access; a file from before PyTorch 1.6 cannot be
    mapped and is read as a whole. bfloat16 and float16 become float32, which represents them exactly. Raises
    InputError for a file that cannot be read or holds anything but tensors, and without torch.
    """

    def __init__(self, directory: str | Path):
        self.path = Path(directory)
        index = self.path / "pytorch_model.bin.index.json"
        names = files_of_index(index) if index.exists() else ["pytorch_model.bin"]
        self._tensors: dict[str, Any] = {}
        for name in names:
            self._tensors |= _tensors(self.path / name)

    def __getitem__(self, name: str) -> np.ndarray:
        return self._tensors[name].float().numpy()

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)

    def shape(self, name: str) -> tuple[int, ...]:
        """Returns an array's shape without reading its values."""
        return tuple(self._tensors[name].shape)


def _tensors(path: Path) -> dict[str, Any]:
    try:
        import torch
    except ImportError as error:
        raise InputError(
            f"{path} is read with torch, which is not installed; add it (pip install torch), or use model.safetensors."
        ) from error
    try:
        with path.open("rb") as file:
            is_mapped = file.read(len(_ZIP)) == _ZIP
        found = torch.load(path, map_location="cpu", weights_only=True, mmap=is_mapped)
    except pickle.UnpicklingError as error:
        raise InputError(
            f"{path} holds more than tensors, which could run code here, or is damaged; it is not opened: use"
            " model.safetensors, or a copy from somebody you trust."
        ) from error
    except (OSError, RuntimeError, ValueError, EOFError) as error:
        raise InputError(f"{path} cannot be read as PyTorch's ({reason_of(error)}); copy it again.") from error
    if not isinstance(found, Mapping) or not all(isinstance(value, torch.Tensor) for value in found.values()):
        raise InputError(f"{path} holds no table of tensors; give the pytorch_model.bin of a T5.")
    return dict(found)
