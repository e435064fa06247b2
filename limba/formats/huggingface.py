"""Hugging Face's T5 folders: one table of names and transposes, both ways; arrays read and written one by one.

The table is `rows`: T5X's name of a parameter, PyTorch's, and whether the matrix is transposed between them.
safetensors is a length, a JSON header and the bytes; it is read and written here because the library holds a
whole file in memory.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tensorstore as ts

from limba.config import ConfigError, ModelConfig
from limba.formats import decoder_only

FILE_BYTES = 5 * 10**9  # a larger model is cut into files of at most this size, as transformers does
_TYPES = {"F32": "float32", "BF16": "bfloat16", "F16": "float16", "F64": "float64", "I64": "int64", "I32": "int32"}
_COPIES = re.compile(r"(encoder|decoder)\.embed_tokens\.weight")  # filled by tying; accepted, never needed


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
    if row.t5x.endswith("embedding"):  # the relative bias too, and that one is transposed also here
        return path + "/embedding"
    return path + ("/weight" if row.t5x.endswith("scale") else "/kernel")


def open_folder(directory: str | Path, config: ModelConfig) -> Mapping[str, np.ndarray]:
    """Returns a folder's arrays under T5X's names and shapes, unstacked; each is read when it is asked for."""
    if config.is_decoder_only:
        return decoder_only.read(SafetensorsFolder(directory), config, str(directory))
    return T5xView(directory, config)


class SafetensorsFolder(Mapping[str, np.ndarray]):
    """The arrays of `model.safetensors`, or of the files that its index names, by PyTorch's names; read on demand."""

    def __init__(self, directory: str | Path):
        self.path = Path(directory)
        index = self.path / "model.safetensors.index.json"
        if index.exists():
            files = sorted(set(json.loads(index.read_text())["weight_map"].values()))
        else:
            files = ["model.safetensors"]
        self._places: dict[str, tuple[Path, str, tuple[int, ...], int, int]] = {}
        for name in files:
            self._read_header(self.path / name)

    def _read_header(self, path: Path) -> None:
        try:
            with path.open("rb") as file:
                length = int.from_bytes(file.read(8), "little")
                header = json.loads(file.read(length))
                start, size = 8 + length, path.stat().st_size
        except (OSError, ValueError, MemoryError, OverflowError) as error:
            raise ConfigError(f"{path} cannot be read as safetensors ({error}); copy it anew.") from error
        for name, about in header.items():
            if name == "__metadata__":
                continue
            first, last = about["data_offsets"]
            if start + last > size:
                raise ConfigError(f"{path} is cut short: {name} ends beyond it; copy it anew.")
            if about["dtype"] not in _TYPES:
                raise ConfigError(f"{path} holds {name} as {about['dtype']}; save it as float32 or bfloat16.")
            self._places[name] = (path, _TYPES[about["dtype"]], tuple(about["shape"]), start + first, last - first)

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
    """True for a folder of transformers' with weights that are read here."""
    folder = Path(path)
    names = ("model.safetensors", "model.safetensors.index.json", "flax_model.msgpack")
    return (folder / "config.json").is_file() and any((folder / name).is_file() for name in names)


def model_config(directory: str | Path, **choices: Any) -> ModelConfig:
    """Returns the network that a folder's config.json describes; ConfigError where it is no T5."""
    path = Path(directory) / "config.json"
    try:
        about = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} cannot be read ({error}); give a folder of transformers'.") from error
    if about.get("model_type") in ("llama", "gpt2"):
        return ModelConfig(**{**decoder_only.model_fields(about), "dtype": "float32", **choices})
    if about.get("model_type") not in ("t5", "mt5", "umt5"):
        raise ConfigError(
            f"{path} describes a {about.get('model_type')!r}; only t5, mt5, umt5, llama and gpt2 are read."
        )
    projection = about.get("feed_forward_proj", "relu")
    activation = projection.removeprefix("gated-").replace("gelu_new", "gelu")
    gated = projection.startswith("gated-")
    head_tied = about.get("tie_word_embeddings", True)
    if gated and about["model_type"] == "t5" and "tie_word_embeddings" not in about:
        head_tied = True
    fields = {
        "vocab_size": about["vocab_size"],
        "emb_dim": about["d_model"],
        "num_heads": about["num_heads"],
        "head_dim": about["d_kv"],
        "mlp_dim": about["d_ff"],
        "num_encoder_layers": about["num_layers"],
        "num_decoder_layers": about.get("num_decoder_layers") or about["num_layers"],
        "mlp_activations": (activation, "linear") if gated else (activation,),
        "logits_via_embedding": head_tied,
        "relative_bias_per_layer": about["model_type"] == "umt5",
        "num_relpos_buckets": about.get("relative_attention_num_buckets", 32),
        "relpos_max_distance": about.get("relative_attention_max_distance", 128),
        "layer_norm_epsilon": about.get("layer_norm_epsilon", 1e-6),
        "dtype": "float32",
    }
    return ModelConfig(**{**fields, **choices})


class T5xView(Mapping[str, np.ndarray]):
    """A folder's arrays under T5X's names and shapes, unstacked; each is read when it is asked for."""

    def __init__(self, directory: str | Path, config: ModelConfig, flax: bool | None = None):
        """`flax` says which of two files is read; None: PyTorch's where it is there."""
        self.path = Path(directory)
        self._read: Callable[[Row], np.ndarray]
        if flax is None:
            flax = (self.path / "flax_model.msgpack").is_file() and not any(self.path.glob("model*.safetensors*"))
        if flax:
            stored = _flax_arrays(self.path / "flax_model.msgpack")
            names = {row.t5x: flax_name(row) for row in rows(config)}
            unread = {name for name in stored if "embed_tokens" not in name}
            self._read = lambda row: _transposed(stored[flax_name(row)], row.t5x.endswith("rel_embedding"))
        else:
            stored = SafetensorsFolder(self.path)
            names = {row.t5x: row.pytorch for row in rows(config)}
            unread = {name for name in stored if not _COPIES.fullmatch(name)}
            self._read = lambda row: _transposed(stored[row.pytorch], row.transposed)
        if config.logits_via_embedding:
            unread.discard("lm_head.weight")  # a copy that some versions write
        missing = [name for name in names.values() if name not in stored]
        extra = sorted(unread - set(names.values()))
        if missing or extra:
            what = f"lacks {missing[0]}" if missing else f"holds {extra[0]}, which the network has not"
            more = max(len(missing), len(extra)) - 1
            raise ConfigError(
                f"{self.path} {what}{f' and {more} more' if more > 0 else ''}; give the model's own gin file."
            )
        self._rows = {row.t5x: row for row in rows(config)}

    def __getitem__(self, name: str) -> np.ndarray:
        return self._read(self._rows[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self._rows)

    def __len__(self) -> int:
        return len(self._rows)


def _transposed(array: np.ndarray, is_transposed: bool) -> np.ndarray:
    return array.T if is_transposed else array


def _flax_arrays(path: Path) -> dict[str, np.ndarray]:
    import msgpack

    from limba.formats.t5x import decode_extension, joined

    try:
        with path.open("rb") as file:  # in parts: the file's bytes and its arrays are not both held
            most = 2**32 - 1
            tree = msgpack.Unpacker(
                file,
                read_size=1 << 20,
                max_buffer_size=most,
                max_ext_len=most,
                ext_hook=decode_extension,
                raw=False,
                strict_map_key=False,
            ).unpack()
    except (ValueError, msgpack.UnpackException) as error:
        raise ConfigError(f"{path} cannot be read as flax's msgpack ({error}); copy it anew.") from error
    arrays: dict[str, np.ndarray] = {}

    def walk(node: Any, name: str) -> None:
        if not isinstance(node, Mapping):
            arrays[name] = node
        elif "__msgpack_chunked_array__" in node:
            arrays[name] = joined(node)
        else:
            for key, value in node.items():
                walk(value, f"{name}/{key}" if name else key)

    walk(tree, "")
    return arrays
