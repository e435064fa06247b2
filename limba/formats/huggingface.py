"""Reads Hugging Face's folders: config.json, and arrays by T5X's names, one by one.

A safetensors file is a length, a JSON header and the bytes; it is read here because the library reads a whole file into
memory.
"""

from __future__ import annotations

import functools
import json
import logging
import math
import re
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tensorstore as ts

from limba import toolbox
from limba.config import InputError, ModelConfig, foreign, reason_of
from limba.formats.architectures import CLASSES, HEAD, HEADS, STORED_HEAD, Row, model_fields, rows, unfused
from limba.formats.names import Arrays, Json, Stored, check_names, files_of_index, flatten
from limba.formats.t5x import numpy_dtype

logger = logging.getLogger(__name__)

_TYPES = {"F32": "float32", "BF16": "bfloat16", "F16": "float16", "F64": "float64", "I64": "int64", "I32": "int32"}
# Copies of tied arrays in transformers, and buffers; the output layer is asked for by `stored_head`.
_UNREAD = re.compile(
    r"(transformer\.)?(en|de)coder[./]embed_tokens[./]\w+|.*(rotary_emb\.inv_freq|attn\.bias)|(lm_head|decoder)\.weight"
)
FLAX_FILE = "flax_model.msgpack"
# The files of a folder's weights in each form, the better form first.
WEIGHTS = {
    "safetensors": re.compile(r"model\.safetensors(\.index\.json)?|model-\d+-of-\d+\.safetensors"),
    "flax": re.compile(re.escape(FLAX_FILE)),
    "bin": re.compile(r"pytorch_model\.bin(\.index\.json)?|pytorch_model-\d+-of-\d+\.bin"),
}
# The entry of config.json that says by what the output layer is multiplied in the file; see `head_scale`.
HEAD_SCALE = "limba_lm_head_scale"
STORED_EMBEDDINGS = (  # of T5, Llama, GPT-2, ModernBERT
    "shared.weight",
    "model.embed_tokens.weight",
    "transformer.wte.weight",
    "model.embeddings.tok_embeddings.weight",
)


def head_scale(config: ModelConfig) -> float:
    """Returns by what the output layer is multiplied in a folder for transformers 5: d_model^0.5 for an untied umT5.

    Version 5 multiplies what that layer reads by d_model^-0.5, whatever config.json says; 4.57 does so only for tied
    embeddings.
    """
    has_head = not (config.logits_via_embedding or config.is_decoder_only or config.is_t5_encoder)
    is_scaled = config.relative_bias_per_layer and has_head
    return config.emb_dim**0.5 if is_scaled else 1.0


class StoredHead(NamedTuple):
    """The output layer of a folder."""

    is_tied: bool  # Limba's tied network computes it
    place: str = STORED_HEAD  # the array of one that is not; the embedding, where a T5 uses that without scaling
    scale: float = 1.0  # by what that array is divided


def stored_head(folder: Path, stored: Mapping[str, np.ndarray] | None, emb_dim: int = 1) -> StoredHead:
    """Returns the output layer of a folder with these arrays, as its writer has it; None: as config.json says.

    transformers 5 says `tie_word_embeddings` of every T5, also beside an `lm_head.weight` of its own. So the bytes
    decide: only a copy of the embedding, in any dtype, is tied. What a T5's layer reads is multiplied by
    emb_dim^-0.5 in 4.57 if it is tied; in 5 by `scale_decoder_outputs` for a t5, never for an mt5, always for a umt5.
    """
    about = _about(folder)
    kind, version = about.get("model_type"), str(about.get("transformers_version") or "").partition(".")[0]
    said = bool(about.get("tie_word_embeddings", kind not in ("llama", "eurobert")))
    by_5 = version.isdigit() and int(version) > 4
    embedding = next((name for name in STORED_EMBEDDINGS if name in (stored or ())), "")
    place = HEADS.get(str(kind), STORED_HEAD)
    is_own = bool(stored and embedding and place in stored)
    is_own = is_own and not (said and _is_copy(stored[place], stored[embedding]))  # type: ignore[index]
    is_scaled = said and not is_own
    if by_5 or not version:  # Limba's own folders name no version, and have the keys of both
        own = {"t5": about.get("scale_decoder_outputs", is_scaled), "mt5": is_scaled and not by_5, "umt5": said}
        is_scaled = bool(own.get(str(kind), is_scaled))
    if is_own or not (said or by_5):
        written = about.get(HEAD_SCALE) if by_5 or not version else None  # 4.57 keeps the key, and does not scale
        factor = emb_dim**0.5 if is_scaled else 1.0
        head = StoredHead(False, scale=written if isinstance(written, int | float) and written else factor)
    else:
        head = StoredHead(True) if is_scaled or not stored else StoredHead(False, embedding)
    if said and not head.is_tied:
        why = "lm_head.weight is another matrix" if is_own else "its logits are not scaled as a tied T5's"
        _say(f"{folder}: config.json ties the output layer to the embedding, but {why}: read as a layer of its own.")
    return head


@functools.cache
def _say(line: str) -> None:
    logger.warning(line)


def _about(folder: Path) -> Json:
    """Returns a folder's config.json; nothing for one that `model_config` refuses."""
    try:
        about = json.loads(foreign.text_of(folder / "config.json"))
    except (OSError, ValueError, RecursionError):
        return {}
    return about if isinstance(about, dict) else {}


def _is_copy(head: np.ndarray, embedding: np.ndarray) -> bool:
    """Returns whether one of two matrices is the other one, perhaps rounded to a shorter dtype."""

    def same(one: np.ndarray, other: np.ndarray, dtype: np.dtype) -> bool:
        rows = (slice(start, start + 4096) for start in range(0, len(one), 4096))
        with np.errstate(over="ignore"):
            return all(np.array_equal(one[each], other[each].astype(dtype).astype(one.dtype)) for each in rows)

    types = [ts.dtype(name).numpy_dtype for name in ("float32", "bfloat16", "float16")]
    pairs = ((head, embedding), (embedding, head))
    return head.shape == embedding.shape and any(same(*pair, dtype) for pair in pairs for dtype in types)


def flax_name(row: Row) -> str:
    """Returns transformers' Flax name of a parameter, with slashes; its kernels are not transposed."""
    path = row.pytorch.removesuffix(".weight").replace(".", "/")
    if row.t5x.endswith("embedding"):  # the relative bias too, which is transposed here as well
        return path + "/embedding"
    return path + ("/weight" if row.t5x.endswith("scale") else "/kernel")


def open_folder(directory: str | Path, config: ModelConfig, flax: bool | None = None) -> Arrays:
    """Returns a folder's arrays by T5X's names and shapes, unstacked; each is read on access.

    `flax` chooses between two files; None takes the better one. Raises InputError for arrays that are missing, or that
    the network does not have.
    """
    folder, table = Path(directory), rows(config)
    if flax or (flax is None and not config.is_decoder_only and weights_form(folder) == "flax"):
        stored, head = open_flax(folder / FLAX_FILE), stored_head(folder, None, config.emb_dim)
        places = {row.t5x: (flax_name(row), row.t5x.endswith("rel_embedding")) for row in table}
    else:
        stored = _pytorch_arrays(folder)
        head = stored_head(folder, stored, config.emb_dim)
        places = {row.t5x: (row.pytorch, row.transposed) for row in table}
        # A decoder's own layer may be a copy: its tied logits are not scaled.
        if head.is_tied != config.logits_via_embedding and not (head.is_tied and config.is_decoder_only):
            check_names(*(([STORED_HEAD], []) if head.is_tied else ([], [STORED_HEAD])), str(folder))
        if HEAD in places and not config.is_decoder_only:
            places[HEAD] = (head.place, True)
    names = [name for name, _ in places.values()]
    extra = sorted({name for name in stored if not _UNREAD.fullmatch(name)} - set(names))
    check_names([name for name in names if name not in stored], extra, str(folder))
    found = {ours: stored.stored[name].T if turned else stored.stored[name] for ours, (name, turned) in places.items()}
    if HEAD in found and head.scale != 1:
        whole = found[HEAD].read
        divided = lambda: whole().astype(np.float32) / np.float32(head.scale)
        found[HEAD] = Stored(found[HEAD].shape, np.dtype("float32"), divided)
    return Arrays(unfused(found, config))


def _pytorch_arrays(directory: str | Path) -> Arrays:
    """Returns the arrays of a folder by PyTorch's names, of the better file."""
    if any(WEIGHTS["bin"].fullmatch(entry.name) for entry in Path(directory).iterdir()):
        migrate = toolbox.find("migrate")
        if migrate is not None:
            directory = migrate.as_safetensors(Path(directory))
        elif weights_form(directory) == "bin":
            raise InputError(f"{directory} has only a pytorch_model.bin; save safetensors, or install Limba's tools.")
    return open_safetensors(directory)


def open_safetensors(directory: str | Path) -> Arrays:
    """Returns the arrays of `model.safetensors`, or of the files that its index names, by PyTorch's names."""
    folder = Path(directory)
    index = folder / "model.safetensors.index.json"
    files = files_of_index(index) if index.exists() else ["model.safetensors"]
    return Arrays({name: stored for file in files for name, stored in _entries(folder / file).items()})


def _entry(name: str, about: Json) -> tuple[str, tuple[int, ...], int, int]:
    """Returns (type, shape, first byte, byte after the last) of a safetensors header's entry, or ValueError."""
    try:
        letters, shape, (first, last) = about["dtype"], (*about["shape"],), about["data_offsets"]
        is_right = isinstance(letters, str) and all(type(n) is int and n >= 0 for n in (*shape, first, last - first))
    except (KeyError, TypeError, ValueError):
        is_right = False
    if not is_right:
        raise ValueError(f"its entry of {name} is wrong")
    return letters, shape, first, last


def _entries(path: Path) -> dict[str, Stored]:
    """Returns the arrays that a safetensors file's header names."""
    try:
        size = path.stat().st_size
        with foreign.open_regular(path) as file:
            length = int.from_bytes(file.read(8), "little")
            if length > size - 8:
                raise ValueError("its header ends beyond it")
            header = json.loads(file.read(length))
        found = {name: _entry(name, about) for name, about in header.items() if name != "__metadata__"}
    except InputError:
        raise
    except (OSError, ValueError, AttributeError, TypeError, OverflowError, RecursionError) as error:
        raise InputError(f"{path} cannot be read as safetensors ({reason_of(error)}); copy it again.") from error
    entries = {}
    for name, (letters, shape, first, last) in found.items():
        if 8 + length + last > size:
            raise InputError(f"{path} is truncated: {name} ends beyond it; copy it again.")
        if letters not in _TYPES:
            raise InputError(f"{path} holds {name} as {letters}; save it as float32 or bfloat16.")
        dtype = numpy_dtype(_TYPES[letters])
        if last - first != math.prod(shape) * dtype.itemsize:
            raise InputError(f"{path} has {last - first} bytes of {name}, not its shape's; copy it again.")
        read = partial(_read_array, path, 8 + length + first, last - first, dtype, shape)
        entries[name] = Stored(shape, dtype, read)
    return entries


def _read_array(path: Path, start: int, size: int, dtype: np.dtype, shape: tuple[int, ...]) -> np.ndarray:
    return np.frombuffer(_read(path, start, size), dtype).reshape(shape)


def _read(path: Path, start: int, size: int) -> bytes:
    with foreign.open_regular(path) as file:
        file.seek(start)
        return file.read(size)


def is_huggingface(path: str | Path) -> bool:
    """Returns whether a folder is for transformers, with weights in one of the forms of WEIGHTS."""
    return (Path(path) / "config.json").is_file() and weights_form(path) is not None


def weights_form(path: str | Path) -> str | None:
    """Returns the form of a folder's weights, the first of "safetensors", "flax" and "bin", or None."""
    names = [entry.name for entry in Path(path).iterdir()] if Path(path).is_dir() else []
    return next((form for form, pattern in WEIGHTS.items() if any(map(pattern.fullmatch, names))), None)


def model_config(directory: str | Path, kind: str | None = None, **choices: object) -> ModelConfig:
    """Returns the network in a config.json (a file, or in a folder); InputError for unknown models.

    `kind` is the model_type of a file that names none.
    """
    path = Path(directory) if Path(directory).is_file() else Path(directory) / "config.json"
    try:
        about = json.loads(foreign.text_of(path))
    except InputError:
        raise
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"{path} cannot be read ({reason_of(error)}); give a Hugging Face folder.") from error
    kind = (about.get("model_type") or kind) if isinstance(about, dict) else None
    if kind not in ("mt5", *CLASSES):
        raise InputError(f"{path} describes a {kind!r}; only mt5, {', '.join(CLASSES)} are read.")
    try:
        fields = model_fields(about, kind)
        if Path(directory).is_dir() and weights_form(directory) in ("safetensors", "bin"):
            fields["logits_via_embedding"] = stored_head(Path(directory), _pytorch_arrays(directory)).is_tied
        return ModelConfig(**{**fields, "dtype": "float32", **choices})
    except KeyError as error:
        raise InputError(f"{path} has no {error}; give the config.json of a Hugging Face model.") from error
    except InputError as error:
        raise InputError(f"{path}: {error}") from error
    except (TypeError, AttributeError, ValueError, ArithmeticError) as error:
        raise InputError(f"{path} has a wrong value ({reason_of(error)}); copy it again.") from error


def open_flax(path: Path) -> Arrays:
    """Returns the arrays of a flax_model.msgpack by names joined with slashes; the file is read into memory."""
    from flax import serialization

    try:
        tree: Any = serialization.msgpack_restore(foreign.bytes_of(path))
        found = {name: np.asarray(leaf) for name, leaf in flatten(tree).items()}
    except InputError:
        raise
    except Exception as error:  # msgpack's own errors, and numpy's, of many kinds
        raise InputError(f"{path} cannot be read as flax's msgpack ({reason_of(error)}); copy it again.") from error
    return Arrays({name: Stored(each.shape, each.dtype, partial(np.asarray, each)) for name, each in found.items()})
