"""pytorch_model.bin without torch: the same numbers as torch's own reader gives, and nothing else than tensors."""

import collections
import importlib
import json
import os
import pickle
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch

from limba.config import InputError
from limba.formats.huggingface import open_safetensors
from limba.tools.migrate import pytorch_bin
from limba.tools.migrate.pytorch_bin import as_safetensors, open_bin


def weights() -> dict[str, torch.Tensor]:
    """Every dtype; views of one storage with offsets and strides; a scalar, and an empty one."""
    torch.manual_seed(0)
    numbers = torch.randn(6, 8)
    kinds = {"half": torch.float16, "bfloat16": torch.bfloat16, "double": torch.float64, "bool": torch.bool}
    kinds |= {"long": torch.int64, "int": torch.int32, "short": torch.int16, "char": torch.int8, "byte": torch.uint8}
    tensors = {name: (numbers.abs() * 9).to(kind) for name, kind in kinds.items()}
    tensors |= {"float": numbers, "rows": numbers[2:4], "transposed": numbers.T, "every_other": numbers[:, 1::2]}
    tensors |= {"spread": numbers[0].expand(3, 8), "scalar": torch.tensor(3.5), "empty": torch.zeros(0, 4)}
    return {**tensors, "parameter": torch.nn.Parameter(numbers[1]), "nan": torch.tensor([float("nan"), float("inf")])}


def same(folder: Path, wanted: dict[str, torch.Tensor]) -> None:
    read = open_bin(folder)
    assert list(read) == list(wanted) and len(read) == len(wanted)
    for name, tensor in wanted.items():
        expected = tensor.detach().float().numpy()
        assert read.shapes[name] == expected.shape and read[name].dtype == np.float32
        np.testing.assert_array_equal(read[name], expected)


@pytest.mark.parametrize("choices", [{}, {"_use_new_zipfile_serialization": False}, {"pickle_protocol": 4}])
def test_all_tensors_equal_those_that_torch_reads(choices: dict, tmp_path: Path) -> None:
    torch.save(collections.OrderedDict(weights()), tmp_path / "pytorch_model.bin", **choices)
    same(tmp_path, weights())
    if "pickle_protocol" not in choices:  # which torch reads only with more rights
        same(tmp_path, torch.load(tmp_path / "pytorch_model.bin", weights_only=True))


def test_a_module_in_files_with_an_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its table has an attribute, and two of its weights are one."""
    model = torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.Linear(6, 4), torch.nn.Linear(4, 6)).bfloat16()
    model[2].weight = model[0].weight
    table = model.state_dict()
    names = list(table)
    places = {}
    for number, part in enumerate((names[:3], names[3:]), 1):
        file = f"pytorch_model-0000{number}-of-00002.bin"
        kept = table.copy()
        for name in set(names) - set(part):
            del kept[name]
        torch.save(kept, tmp_path / file)
        places |= dict.fromkeys(part, file)
    (tmp_path / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": places}))
    same(tmp_path, {name: table[name] for name in names})


class Harmful:
    def __init__(self, folder: Path):
        self.folder = folder

    def __reduce__(self) -> tuple:
        return os.mkdir, (str(self.folder),)


class Built:
    """Has a pickle call a function that the reader knows with arguments no tensor has, and set an attribute of it."""

    def __reduce__(self) -> tuple:
        return torch._utils._rebuild_tensor_v2, ("storage", 0, (2,), (1,)), (None, {"__name__": "harm"})


@pytest.mark.parametrize("is_zip", [True, False])
def test_what_is_no_tensor_is_refused_and_runs_nothing(is_zip: bool, tmp_path: Path) -> None:
    path = tmp_path / "pytorch_model.bin"
    tensor = torch.zeros(2)
    for content, sentence in {
        "code": ({"a": tensor, "b": Harmful(tmp_path / "harm")}, r"a call of (posix|nt)\.mkdir, which could run code"),
        "number": ({"a": tensor, "step": 7}, "holds 'step', which is not a tensor"),
        "nested": ({"state_dict": {"a": tensor}}, "holds 'state_dict', which is not a tensor"),
        "list": ([tensor], "holds no table of tensors"),
        "nothing": ({}, "holds no table of tensors"),
        "sparse": ({"a": torch.eye(2).to_sparse()}, r"a call of torch\._utils\._rebuild_sparse_tensor"),
        "forged": ({"a": Built()}, "holds more than tensors"),
        "complex": ({"a": torch.zeros(2, dtype=torch.complex64)}, r"numbers as torch\.ComplexFloatStorage"),
        "module": (torch.nn.Linear(2, 2), r"a call of torch\.nn\.modules\.linear\.Linear"),
    }.values():
        torch.save(content, path, _use_new_zipfile_serialization=is_zip)
        with pytest.raises(InputError, match=f"{sentence}.*; it is not opened: use model.safetensors"):
            open_bin(tmp_path)
    assert not (tmp_path / "harm").exists()


def test_damaged_files_are_one_sentence(tmp_path: Path) -> None:
    path = tmp_path / "pytorch_model.bin"
    for is_zip in (True, False):
        torch.save(weights(), path, _use_new_zipfile_serialization=is_zip)
        whole = path.read_bytes()
        for length in (0, 3, 60, len(whole) // 2, len(whole) - 40):
            path.write_bytes(whole[:length])
            with pytest.raises(InputError, match=r"pytorch_model\.bin .*(copy it again|it is not opened)"):
                open_bin(tmp_path)
    path.write_bytes(pickle.dumps({"a": 1}))
    with pytest.raises(InputError, match="neither as a zip nor as a stream"):
        open_bin(tmp_path)
    torch.save(weights(), path)
    with zipfile.ZipFile(path) as plain, zipfile.ZipFile(tmp_path / "packed", "w", zipfile.ZIP_DEFLATED) as packed:
        for name in plain.namelist():
            packed.writestr(name, plain.read(name))
    (tmp_path / "packed").rename(path)
    with pytest.raises(InputError, match="is compressed"):
        open_bin(tmp_path)


def test_a_flipped_byte_of_a_storage_is_one_sentence(tmp_path: Path) -> None:
    path = tmp_path / "pytorch_model.bin"
    torch.save({"a": torch.full((64,), 3.0)}, path)
    data = path.read_bytes()
    numbers = np.full(64, 3.0, "<f4").tobytes()
    assert data.count(numbers) == 1
    path.write_bytes(data.replace(numbers, b"\x01" + numbers[1:]))
    with pytest.raises(InputError, match=r"pytorch_model\.bin cannot be read as PyTorch's \(Bad CRC.*copy it again"):
        as_safetensors(tmp_path)


def test_a_view_beyond_its_storage_is_refused(tmp_path: Path) -> None:
    """As a changed file could have it: other bytes of the memory would be read."""
    path = tmp_path / "pytorch_model.bin"
    torch.save({"a": torch.zeros(5, 77)}, path)
    data = path.read_bytes()
    assert data.count(b"K\x05K\x4d") == 1
    path.write_bytes(data.replace(b"K\x05K\x4d", b"K\x06K\x4d"))
    with pytest.raises(InputError, match=r"ends beyond its storage|Bad CRC"):
        open_bin(tmp_path)


def test_torch_is_not_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.save({"a": torch.ones(3)}, tmp_path / "pytorch_model.bin")
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.delitem(sys.modules, "limba.tools.migrate.pytorch_bin")
    read = importlib.import_module("limba.tools.migrate.pytorch_bin").open_bin(tmp_path)
    np.testing.assert_array_equal(read["a"], np.ones(3, np.float32))


def read_again(folder: Path, wanted: dict[str, torch.Tensor]) -> None:
    read = open_safetensors(folder)
    theirs = safetensors.torch.load_file(folder / "model.safetensors")
    assert sorted(read) == sorted(wanted) == sorted(theirs)
    for name, tensor in wanted.items():
        expected = tensor.detach().float()
        np.testing.assert_array_equal(read[name], expected.numpy())
        torch.testing.assert_close(theirs[name], expected, rtol=0, atol=0, equal_nan=True)


def test_the_weights_are_written_as_safetensors_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Beside the file, as the library safetensors reads it; again only when the file is another one."""
    path = tmp_path / "pytorch_model.bin"
    wanted = weights()
    torch.save(wanted, path)
    assert as_safetensors(tmp_path) == tmp_path
    (line,) = caplog.messages
    assert f"{tmp_path / 'model.safetensors'} too, which is read from now on, by transformers too" in line
    read_again(tmp_path, wanted)
    made = (tmp_path / "model.safetensors").stat()
    assert as_safetensors(tmp_path) == tmp_path and len(caplog.messages) == 1
    assert (tmp_path / "model.safetensors").stat() == made
    torch.save({"rows": torch.ones(2)}, path)
    assert as_safetensors(tmp_path) == tmp_path and len(caplog.messages) == 2
    read_again(tmp_path, {"rows": torch.ones(2)})
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["model.safetensors", "pytorch_model.bin"]


def test_safetensors_of_somebody_else_stay(tmp_path: Path) -> None:
    torch.save({"a": torch.ones(3)}, tmp_path / "pytorch_model.bin")
    safetensors.torch.save_file({"a": torch.zeros(3)}, tmp_path / "model.safetensors")
    before = (tmp_path / "model.safetensors").read_bytes()
    assert as_safetensors(tmp_path) == tmp_path and (tmp_path / "model.safetensors").read_bytes() == before


def test_a_folder_that_cannot_be_written_has_them_in_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """No right, as in a read-only mount; a process of root has every right, so the folder is made to fail."""
    monkeypatch.setattr(pytorch_bin, "CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "model"
    folder.mkdir()
    torch.save(weights(), folder / "pytorch_model.bin")
    write = pytorch_bin._write

    def refused(path: Path, *arguments: object) -> None:
        if path == folder:
            raise PermissionError(13, "Permission denied", str(path))
        write(path, *arguments)  # pyright: ignore[reportArgumentType]

    monkeypatch.setattr(pytorch_bin, "_write", refused)
    kept = as_safetensors(folder)
    assert kept.parent == tmp_path / "cache" and [path.name for path in folder.iterdir()] == ["pytorch_model.bin"]
    read_again(kept, weights())
    assert as_safetensors(folder) == kept
    (line,) = caplog.messages
    assert "transformers" not in line, "which does not look there"
