"""Hugging Face's T5 folders: one table of names and transposes, for both directions; arrays are read one by one.

The table is `rows`: T5X's name of a parameter, PyTorch's, and whether the matrix is transposed between them. A
safetensors file is a length, a JSON header and the bytes; it is read here because the library reads a whole file into
memory.
"""

from __future__ import annotations

import functools
import json
import logging
import math
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import msgpack
import numpy as np
import tensorstore as ts

from limba import toolbox
from limba.config import InputError, ModelConfig
from limba.config.errors import reason_of
from limba.formats import decoder_only
from limba.formats.names import check_names, files_of_index
from limba.formats.t5x import decode_extension, joined

logger = logging.getLogger(__name__)

FILE_BYTES = 5 * 10**9  # a larger model is cut into files of at most this size, as transformers does
_TYPES = {"F32": "float32", "BF16": "bfloat16", "F16": "float16", "F64": "float64", "I64": "int64", "I32": "int32"}
_COPIES = re.compile(r"(encoder|decoder)\.embed_tokens\.weight")  # tied copies in transformers; not read
FLAX_FILE = "flax_model.msgpack"
# First byte -> length of what precedes an extension's data (msgpack's specification, "ext format family").
_EXTENSION_HEADS = {0xC7: 3, 0xC8: 4, 0xC9: 6, **dict.fromkeys(range(0xD4, 0xD9), 2)}
# The files of a folder's weights in each form, the better form first.
WEIGHTS = (
    re.compile(r"model\.safetensors(\.index\.json)?|model-\d+-of-\d+\.safetensors"),
    re.compile(re.escape(FLAX_FILE)),
    re.compile(r"pytorch_model\.bin(\.index\.json)?|pytorch_model-\d+-of-\d+\.bin"),
)


# The entry of config.json that says by what the output layer is multiplied in the file; see `head_scale`.
HEAD_SCALE = "limba_lm_head_scale"
HEAD = "decoder/logits_dense/kernel"
STORED_HEAD = "lm_head.weight"
STORED_EMBEDDINGS = ("shared.weight", "model.embed_tokens.weight", "transformer.wte.weight")  # of T5, Llama, GPT-2


class Row(NamedTuple):
    """One parameter's names on both sides; a transposed one is [in, out] in T5X and [out, in] in PyTorch."""

    t5x: str
    pytorch: str
    transposed: bool


def rows(config: ModelConfig) -> list[Row]:
    """Returns the table of a network, T5X's names unstacked."""
    if config.is_decoder_only:
        return [Row(*row) for row in decoder_only.rows(config)]
    table = [Row("token_embedder/embedding", "shared.weight", False)]
    for side, num_layers in (("encoder", config.num_encoder_layers), ("decoder", config.num_decoder_layers)):
        for i in range(num_layers):
            table += _layer_rows(side, i, config)
        if not config.relative_bias_per_layer:
            table.append(_bias_row(f"{side}/relpos_bias", side, 0))
        table.append(Row(f"{side}/{side}_norm/scale", f"{side}.final_layer_norm.weight", False))
    if not config.logits_via_embedding:
        table.append(Row("decoder/logits_dense/kernel", "lm_head.weight", True))
    return table


def head_scale(config: ModelConfig) -> float:
    """Returns by what the output layer is multiplied in a folder for transformers 5: d_model^0.5 for an untied umT5.

    Version 5 multiplies what that layer reads by d_model^-0.5, whatever config.json says; 4.57 does so only for tied
    embeddings.
    """
    is_scaled = config.relative_bias_per_layer and not config.logits_via_embedding and not config.is_decoder_only
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
    said, by_5 = bool(about.get("tie_word_embeddings", kind != "llama")), version.isdigit() and int(version) > 4
    embedding = next((name for name in STORED_EMBEDDINGS if name in (stored or ())), "")
    is_own = bool(stored and embedding and STORED_HEAD in stored)
    is_own = is_own and not (said and _is_copy(stored[STORED_HEAD], stored[embedding]))  # type: ignore[index]
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


def _about(folder: Path) -> Mapping[str, Any]:
    """Returns a folder's config.json; nothing for one that `model_config` refuses."""
    try:
        about = json.loads((folder / "config.json").read_text(encoding="utf-8"))
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


def _bias_row(t5x: str, side: str, layer: int) -> Row:
    name = f"{side}.block.{layer}.layer.0.SelfAttention.relative_attention_bias.weight"
    return Row(f"{t5x}/rel_embedding", name, True)


def _layer_rows(side: str, i: int, config: ModelConfig) -> list[Row]:
    own, theirs = f"{side}/layers_{i}", f"{side}.block.{i}.layer"
    parts = (
        [("attention", "SelfAttention", "pre_attention_layer_norm")]
        if side == "encoder"
        else [
            ("self_attention", "SelfAttention", "pre_self_attention_layer_norm"),
            ("encoder_decoder_attention", "EncDecAttention", "pre_cross_attention_layer_norm"),
        ]
    )
    table = []
    for place, (attention, theirs_attention, norm) in enumerate(parts):
        table.append(Row(f"{own}/{norm}/scale", f"{theirs}.{place}.layer_norm.weight", False))
        for name, letter in (("query", "q"), ("key", "k"), ("value", "v"), ("out", "o")):
            table.append(
                Row(f"{own}/{attention}/{name}/kernel", f"{theirs}.{place}.{theirs_attention}.{letter}.weight", True)
            )
    place = len(parts)
    table.append(Row(f"{own}/pre_mlp_layer_norm/scale", f"{theirs}.{place}.layer_norm.weight", False))
    gates = ("wi",) if len(config.mlp_activations) == 1 else ("wi_0", "wi_1")
    for name in (*gates, "wo"):
        table.append(Row(f"{own}/mlp/{name}/kernel", f"{theirs}.{place}.DenseReluDense.{name}.weight", True))
    if config.relative_bias_per_layer:
        table.append(_bias_row(f"{own}/relpos_bias", side, i))
    return table


def flax_name(row: Row) -> str:
    """Returns transformers' Flax name of a parameter, with slashes; its kernels are not transposed."""
    path = row.pytorch.removesuffix(".weight").replace(".", "/")
    if row.t5x.endswith("embedding"):  # the relative bias too, which is transposed here as well
        return path + "/embedding"
    return path + ("/weight" if row.t5x.endswith("scale") else "/kernel")


def open_folder(directory: str | Path, config: ModelConfig) -> Mapping[str, np.ndarray]:
    """Returns a folder's arrays by T5X's names and shapes, unstacked; each is read on access."""
    if config.is_decoder_only:
        stored = _pytorch_arrays(directory)
        if config.logits_via_embedding and not stored_head(Path(directory), stored).is_tied:
            check_names([], [STORED_HEAD], str(directory))
        return decoder_only.read(stored, config, str(directory))
    return T5xView(directory, config)


def _pytorch_arrays(directory: str | Path) -> Any:
    """Returns the arrays of a folder by PyTorch's names, of the better file."""
    if any(WEIGHTS[-1].fullmatch(entry.name) for entry in Path(directory).iterdir()):
        migrate = toolbox.find("migrate")
        if migrate is not None:
            directory = migrate.as_safetensors(Path(directory))
        elif weights_form(directory) == "bin":
            raise InputError(
                f"{directory} has only a pytorch_model.bin; save it as safetensors, or install Limba's tools."
            )
    return SafetensorsFolder(directory)


def _entry(name: str, about: Any) -> tuple[str, str, tuple[int, ...], int, int]:
    """Returns (name, dtype, shape, first byte, byte after the last) of a safetensors header's entry, or ValueError."""
    try:
        dtype, shape, (first, last) = about["dtype"], tuple(about["shape"]), about["data_offsets"]
        is_right = isinstance(dtype, str) and all(isinstance(n, int) and n >= 0 for n in (*shape, first, last - first))
    except (KeyError, TypeError, ValueError):
        is_right = False
    if not is_right:
        raise ValueError(f"its entry of {name} is wrong")
    return name, dtype, shape, first, last


class SafetensorsFolder(Mapping[str, np.ndarray]):
    """The arrays of `model.safetensors`, or of the files that its index names, by PyTorch's names; read on demand."""

    def __init__(self, directory: str | Path):
        self.path = Path(directory)
        index = self.path / "model.safetensors.index.json"
        files = files_of_index(index) if index.exists() else ["model.safetensors"]
        self._places: dict[str, tuple[Path, str, tuple[int, ...], int, int]] = {}
        for name in files:
            self._read_header(self.path / name)

    def _read_header(self, path: Path) -> None:
        try:
            size = path.stat().st_size
            with path.open("rb") as file:
                length = int.from_bytes(file.read(8), "little")
                if length > size - 8:
                    raise ValueError("its header ends beyond it")
                header = json.loads(file.read(length))
            start = 8 + length
            entries = [_entry(name, about) for name, about in header.items() if name != "__metadata__"]
        except (OSError, ValueError, AttributeError, RecursionError) as error:
            raise InputError(f"{path} cannot be read as safetensors ({reason_of(error)}); copy it again.") from error
        for name, dtype, shape, first, last in entries:
            if start + last > size:
                raise InputError(f"{path} is truncated: {name} ends beyond it; copy it again.")
            if dtype not in _TYPES:
                raise InputError(f"{path} holds {name} as {dtype}; save it as float32 or bfloat16.")
            if last - first != math.prod(shape) * ts.dtype(_TYPES[dtype]).numpy_dtype.itemsize:
                raise InputError(f"{path} has {last - first} bytes of {name}, not its shape's; copy it again.")
            self._places[name] = (path, _TYPES[dtype], shape, start + first, last - first)

    def __getitem__(self, name: str) -> np.ndarray:
        path, dtype, shape, start, size = self._places[name]
        with path.open("rb") as file:
            file.seek(start)
            return np.frombuffer(file.read(size), ts.dtype(dtype).numpy_dtype).reshape(shape)

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)

    def shape(self, name: str) -> tuple[int, ...]:
        return self._places[name][2]


def is_huggingface(path: str | Path) -> bool:
    """Returns whether a folder is for transformers, with weights in one of the forms of WEIGHTS."""
    return (Path(path) / "config.json").is_file() and weights_form(path) is not None


def weights_form(path: str | Path) -> str | None:
    """Returns the form of a folder's weights, the first of "safetensors", "flax" and "bin", or None."""
    names = [entry.name for entry in Path(path).iterdir()] if Path(path).is_dir() else []
    for form, pattern in zip(("safetensors", "flax", "bin"), WEIGHTS, strict=True):
        if any(map(pattern.fullmatch, names)):
            return form
    return None


# What transformers' T5Config, MT5Config and UMT5Config have where a config.json lacks a key.
T5_DEFAULTS: Mapping[str, Any] = {
    "vocab_size": 32128,
    "d_model": 512,
    "d_kv": 64,
    "d_ff": 2048,
    "num_layers": 6,
    "num_decoder_layers": None,
    "num_heads": 8,
    "relative_attention_num_buckets": 32,
    "relative_attention_max_distance": 128,
    "dropout_rate": 0.1,
    "layer_norm_epsilon": 1e-6,
    "feed_forward_proj": "relu",
    "tie_word_embeddings": True,
}
MT5_DEFAULTS = {
    **{"vocab_size": 250112, "d_ff": 1024, "num_layers": 8, "num_heads": 6, "feed_forward_proj": "gated-gelu"},
}
ATTRIBUTES = {"hidden_size": "d_model", "num_attention_heads": "num_heads", "num_hidden_layers": "num_layers"}
ATTRIBUTES |= {"head_dim": "d_kv"}  # T5Config's other names of its keys


def model_config(directory: str | Path, kind: str | None = None, **choices: Any) -> ModelConfig:
    """Returns the network in a config.json (a file, or in a folder); InputError for unknown models.

    `kind` is the model_type of a file that names none.
    """
    path = Path(directory) if Path(directory).is_file() else Path(directory) / "config.json"
    try:
        about = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"{path} cannot be read ({reason_of(error)}); give a Hugging Face folder.") from error
    kind = (about.get("model_type") or kind) if isinstance(about, dict) else None
    if kind not in ("t5", "mt5", "umt5", "llama", "gpt2"):
        raise InputError(f"{path} describes a {kind!r}; only t5, mt5, umt5, llama and gpt2 are read.")
    try:
        fields = decoder_only.model_fields(about) if kind in ("llama", "gpt2") else _t5_fields(about, kind)
        if Path(directory).is_dir() and weights_form(directory) in ("safetensors", "bin"):
            fields["logits_via_embedding"] = stored_head(Path(directory), _pytorch_arrays(directory)).is_tied
        return ModelConfig(**{**fields, "dtype": "float32", **choices})
    except KeyError as error:
        raise InputError(f"{path} has no {error}; give the config.json of a Hugging Face model.") from error
    except InputError as error:
        raise InputError(f"{path}: {error}") from error
    except (TypeError, AttributeError, ValueError, ArithmeticError) as error:
        raise InputError(f"{path} has a wrong value ({reason_of(error)}); copy it again.") from error


def _t5_fields(given: Mapping[str, Any], kind: str) -> dict[str, Any]:
    given = {ATTRIBUTES.get(key, key): value for key, value in given.items()}
    about = {**T5_DEFAULTS, **(MT5_DEFAULTS if kind != "t5" else {}), **given}
    projection = about["feed_forward_proj"]
    activation = projection.removeprefix("gated-").replace("gelu_new", "gelu")
    gated = projection.startswith("gated-")
    return {
        "vocab_size": about["vocab_size"],
        "emb_dim": about["d_model"],
        "num_heads": about["num_heads"],
        "head_dim": about["d_kv"],
        "mlp_dim": about["d_ff"],
        "num_encoder_layers": about["num_layers"],
        "num_decoder_layers": about["num_decoder_layers"] or about["num_layers"],
        "mlp_activations": (activation, "linear") if gated else (activation,),
        "logits_via_embedding": about["tie_word_embeddings"],
        "relative_bias_per_layer": kind == "umt5",
        "num_relpos_buckets": about["relative_attention_num_buckets"],
        "relpos_max_distance": about["relative_attention_max_distance"],
        "layer_norm_epsilon": about["layer_norm_epsilon"],
    }


class T5xView(Mapping[str, np.ndarray]):
    """A folder's arrays by T5X's names and shapes, unstacked; each is read on access."""

    def __init__(
        self,
        directory: str | Path,
        config: ModelConfig,
        flax: bool | None = None,
    ):
        """`flax` chooses between two files; None takes the better one."""
        self.path = Path(directory)
        flax = flax or (flax is None and weights_form(self.path) == "flax")
        table = rows(config)
        if flax:
            self._stored: Any = FlaxFile(self.path / FLAX_FILE)
            self._places = {row.t5x: (flax_name(row), row.t5x.endswith("rel_embedding")) for row in table}
            unread = {name for name in self._stored if "embed_tokens" not in name}
            head = stored_head(self.path, None, config.emb_dim)
        else:
            self._stored = _pytorch_arrays(self.path)
            self._places = {row.t5x: (row.pytorch, row.transposed) for row in table}
            unread = {name for name in self._stored if not _COPIES.fullmatch(name)} - {STORED_HEAD}
            head = stored_head(self.path, self._stored, config.emb_dim)
            if head.is_tied != config.logits_via_embedding:
                check_names(*(([STORED_HEAD], []) if head.is_tied else ([], [STORED_HEAD])), str(self.path))
            if HEAD in self._places:
                self._places[HEAD] = (head.place, True)
        self._head_scale = np.float32(head.scale)
        names = [name for name, _ in self._places.values()]
        missing = [name for name in names if name not in self._stored]
        extra = sorted(unread - set(names))
        check_names(missing, extra, str(self.path))

    def __getitem__(self, name: str) -> np.ndarray:
        place, is_transposed = self._places[name]
        array = self._stored[place]
        if name == HEAD and self._head_scale != 1:
            array = array.astype(np.float32) / self._head_scale
        return array.T if is_transposed else array

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)

    def shape(self, name: str) -> tuple[int, ...]:
        """Returns an array's shape without reading its values."""
        place, is_transposed = self._places[name]
        shape = self._stored.shape(place)
        return shape[::-1] if is_transposed else shape


class FlaxFile(Mapping[str, np.ndarray]):
    """The arrays of a flax_model.msgpack by names joined with slashes; read on demand."""

    def __init__(self, path: Path):
        self.path = path
        self._places: dict[str, tuple[int, int]] = {}
        try:
            with path.open("rb") as file, path.open("rb") as peek:
                most = 2**32 - 1
                unpacker = msgpack.Unpacker(file, read_size=1 << 20, max_buffer_size=most, raw=False)
                self._index(unpacker, peek, "")
        except (OSError, ValueError, TypeError, RecursionError, msgpack.UnpackException) as error:
            raise self._unreadable(error) from error

    def _unreadable(self, error: Exception) -> InputError:
        reason = str(error) or "it ends too early"
        return InputError(f"{self.path} cannot be read as flax's msgpack ({reason}); copy it again.")

    def _index(self, unpacker: msgpack.Unpacker, peek: BinaryIO, path: str) -> None:
        """Records the place of each array in a map, without reading it."""
        for _ in range(unpacker.read_map_header()):
            key, start = unpacker.unpack(), unpacker.tell()
            name = f"{path}/{key}" if path else key
            if _starts_map(peek, start) and not _starts_map(peek, start, "__msgpack_chunked_array__"):
                self._index(unpacker, peek, name)
            else:
                unpacker.skip()
                self._places[name] = (start, unpacker.tell())

    def __getitem__(self, name: str) -> np.ndarray:
        start, end = self._places[name]
        with self.path.open("rb") as file:
            file.seek(start)
            data = file.read(end - start)
        try:
            value = msgpack.unpackb(
                data, ext_hook=decode_extension, max_ext_len=len(data), raw=False, strict_map_key=False
            )
        except (ValueError, msgpack.UnpackException) as error:
            raise self._unreadable(error) from error
        return joined(value) if isinstance(value, Mapping) else np.asarray(value)

    def shape(self, name: str) -> tuple[int, ...]:
        """Returns an array's shape without reading its values."""
        with self.path.open("rb") as file:
            file.seek(self._places[name][0])
            head = file.read(1 << 12)
        unpacker = msgpack.Unpacker(raw=False)
        if head[0] in _EXTENSION_HEADS:
            unpacker.feed(head[_EXTENSION_HEADS[head[0]] :])
            unpacker.read_array_header()
            return tuple(unpacker.unpack())
        unpacker.feed(head)
        for _ in range(unpacker.read_map_header()):  # flax's form for arrays over a gibibyte
            if unpacker.unpack() == "shape":
                lengths = unpacker.unpack()
                return tuple(lengths[str(i)] for i in range(len(lengths)))
            unpacker.skip()
        raise self._unreadable(ValueError(f"{name} has no shape"))

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)


def _starts_map(file: BinaryIO, place: int, first_key: str = "") -> bool:
    """Returns whether a msgpack map with this first key begins there (specification, "map format family")."""
    file.seek(place)
    head = file.read(8 + len(first_key))
    length = {0xDE: 3, 0xDF: 5}.get(head[0], 1) if head else 1
    is_map = bool(head) and (head[0] in (0xDE, 0xDF) or head[0] & 0xF0 == 0x80)
    return is_map and (not first_key or msgpack.packb(first_key) == head[length : length + len(first_key) + 1])
