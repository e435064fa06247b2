"""Writes Hugging Face's T5 folders from arrays under T5X's names: config, weights, tokenizer; one array at a time.

The weights are written in the order in which `arrays` is iterated, and a transposed matrix in blocks of rows, so
that only one array and some megabytes are in memory.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import msgpack
import numpy as np
import tensorstore as ts

from limba.config import InputError, ModelConfig
from limba.formats import decoder_only
from limba.formats.byt5 import LAST_BYTE
from limba.formats.huggingface import FILE_BYTES, HEAD, HEAD_SCALE, Row, flax_name, rows
from limba.formats.names import unflatten
from limba.formats.t5x import ARRAY_EXTENSION

BLOCK_BYTES = 1 << 26
FLAX_CHUNK_BYTES = 1 << 30  # flax cuts larger arrays, whose length msgpack could not hold
_LETTERS = {"float32": "F32", "bfloat16": "BF16"}


def shape_of(name: str, config: ModelConfig) -> tuple[int, ...]:
    """Returns the shape that the parameter of T5X's name has in the network, unstacked."""
    if config.is_decoder_only:
        return decoder_only.written_shapes(config)[name]
    joined = config.num_heads * config.head_dim
    kinds = {
        "token_embedder/embedding": (config.vocab_size, config.emb_dim),
        "logits_dense/kernel": (config.emb_dim, config.vocab_size),
        "rel_embedding": (config.num_heads, config.num_relpos_buckets),
        "scale": (config.emb_dim,),
        "out/kernel": (joined, config.emb_dim),
        "wo/kernel": (config.mlp_dim, config.emb_dim),
        "mlp/wi/kernel": (config.emb_dim, config.mlp_dim),
        "mlp/wi_0/kernel": (config.emb_dim, config.mlp_dim),
        "mlp/wi_1/kernel": (config.emb_dim, config.mlp_dim),
    }
    return next((shape for end, shape in kinds.items() if name.endswith(end)), (config.emb_dim, joined))


def check_arrays(shapes: Mapping[str, tuple[int, ...]], config: ModelConfig, place: str, advice: str) -> None:
    """Raises InputError for the first array that is missing, unknown, or of another shape."""
    if config.is_decoder_only:
        wanted = decoder_only.shapes(config)
    else:
        wanted = {row.t5x: shape_of(row.t5x, config) for row in rows(config)}
    for name in [*wanted, *shapes]:
        if name not in shapes or name not in wanted:
            what = "has no" if name not in shapes else "has, and its configuration does not have,"
            raise InputError(f"{place} {what} {name}; {advice}.")
        if shapes[name] != wanted[name]:
            raise InputError(
                f"{place} holds {name} as {shapes[name]}, and its configuration makes it {wanted[name]}; {advice}."
            )


def config_json(config: ModelConfig, dtype: str = "float32", eos_id: int = 1) -> dict[str, Any]:
    """Returns config.json for transformers 4.57 and 5; InputError for a network that they lack.

    `eos_id` is the vocabulary's end of sequence.
    Without a bias in every layer it is always a `t5`, also for mT5: transformers' `mt5` never scales the logits of a
    tied head. `scale_decoder_outputs` is what version 5 reads instead of `tie_word_embeddings`.
    """
    if config.is_decoder_only:
        return decoder_only.config_json(config, dtype, eos_id)
    first, *gate = config.mlp_activations
    if gate and gate != ["linear"]:
        raise InputError(
            f"mlp_activations are {config.mlp_activations}, and transformers' T5 has only a linear second one;"
            " use the model in Limba."
        )
    kind = "umt5" if config.relative_bias_per_layer else "t5"
    activation = "gelu_new" if first == "gelu" else first
    return {
        "architectures": ["UMT5ForConditionalGeneration" if kind == "umt5" else "T5ForConditionalGeneration"],
        "model_type": kind,
        "vocab_size": config.vocab_size,
        "d_model": config.emb_dim,
        "d_kv": config.head_dim,
        "d_ff": config.mlp_dim,
        "num_heads": config.num_heads,
        "num_layers": config.num_encoder_layers,
        "num_decoder_layers": config.num_decoder_layers,
        "feed_forward_proj": f"gated-{first}" if gate else activation,  # a plain `gelu` would be the exact one
        "dense_act_fn": activation,
        "is_gated_act": bool(gate),
        "relative_attention_num_buckets": config.num_relpos_buckets,
        "relative_attention_max_distance": config.relpos_max_distance,
        "layer_norm_epsilon": config.layer_norm_epsilon,
        "dropout_rate": config.dropout_rate,
        "tie_word_embeddings": config.logits_via_embedding,
        "scale_decoder_outputs": config.logits_via_embedding,
        "is_encoder_decoder": True,
        "use_cache": True,
        "initializer_factor": 1.0,
        "pad_token_id": 0,
        "eos_token_id": eos_id,
        "decoder_start_token_id": 0,
        "torch_dtype": dtype,
    }


class ScaledHead(Mapping[str, np.ndarray]):
    """Arrays by T5X's names, the output layer's multiplied; each is read on access."""

    def __init__(self, arrays: Mapping[str, np.ndarray], scale: float):
        self._arrays, self._scale = arrays, np.float32(scale)

    def __getitem__(self, name: str) -> np.ndarray:
        array = self._arrays[name]
        return array.astype(np.float32) * self._scale if name == HEAD else array

    def __iter__(self) -> Iterator[str]:
        return iter(self._arrays)

    def __len__(self) -> int:
        return len(self._arrays)


def write_configs(
    directory: Path,
    config: ModelConfig,
    dtype: str,
    eos_id: int = 1,
    suppressed: Sequence[int] = (),
    head_scale: float = 1.0,
) -> None:
    """Writes config.json and generation_config.json.

    `eos_id` is the vocabulary's end of sequence; `generate` of transformers never gives the `suppressed` ids.
    `head_scale` is what the written output layer is multiplied by.
    """
    start = "bos_token_id" if config.is_decoder_only else "decoder_start_token_id"
    generation: dict[str, object] = {"pad_token_id": 0, "eos_token_id": eos_id, start: 0}
    if suppressed:
        generation["suppress_tokens"] = sorted(suppressed)
    about = config_json(config, dtype, eos_id) | ({HEAD_SCALE: head_scale} if head_scale != 1 else {})
    for name, content in (("config", about), ("generation_config", generation)):
        (directory / f"{name}.json").write_text(json.dumps(content, indent=2) + "\n")


def _blocks(array: np.ndarray, dtype: np.dtype) -> Iterator[memoryview]:
    """Yields an array's bytes in C order, some rows at a time."""
    array = np.atleast_1d(array)
    count = max(1, BLOCK_BYTES // max(1, array[:1].size * dtype.itemsize))
    for start in range(0, len(array), count):
        block = np.ascontiguousarray(array[start : start + count].astype(dtype, copy=False))
        yield block.reshape(-1).view(np.uint8).data


def _oriented(row: Row, array: np.ndarray, flax: bool) -> np.ndarray:
    is_transposed = row.t5x.endswith("rel_embedding") if flax else row.transposed
    return array.T if is_transposed else array


def _in_order(arrays: Mapping[str, np.ndarray], config: ModelConfig) -> list[Row]:
    table = {row.t5x: row for row in rows(config)}
    return [table[name] for name in arrays if name in table]


def _written_shape(row: Row, config: ModelConfig, flax: bool) -> tuple[int, ...]:
    is_transposed = row.t5x.endswith("rel_embedding") if flax else row.transposed
    shape = shape_of(row.t5x, config)
    return shape[::-1] if is_transposed else shape


def write_pytorch(
    directory: Path,
    arrays: Mapping[str, np.ndarray],
    config: ModelConfig,
    dtype: str = "float32",
    file_bytes: int = FILE_BYTES,
) -> None:
    """Writes model.safetensors, or several files of at most `file_bytes` and their index."""
    if config.is_decoder_only:
        arrays = decoder_only.written(arrays, config)
    size = ts.dtype(dtype).numpy_dtype.itemsize
    files: list[list[tuple[Row, int]]] = [[]]
    for row in _in_order(arrays, config):
        length = size * int(np.prod(shape_of(row.t5x, config)))
        if files[-1] and sum(there for _, there in files[-1]) + length > file_bytes:
            files.append([])
        files[-1].append((row, length))
    count = len(files)
    names = [f"model-{i + 1:05}-of-{count:05}.safetensors" for i in range(count)]
    for name, part in zip(names if count > 1 else ["model.safetensors"], files, strict=True):
        _write_safetensors(directory / name, part, arrays, config, dtype)
    if count > 1:
        index = {row.pytorch: name for name, part in zip(names, files, strict=True) for row, _ in part}
        total = sum(length for part in files for _, length in part)
        content = {"metadata": {"total_size": total}, "weight_map": index}
        (directory / "model.safetensors.index.json").write_text(json.dumps(content, indent=2) + "\n")


def _write_safetensors(
    path: Path, part: list[tuple[Row, int]], arrays: Mapping[str, np.ndarray], config: ModelConfig, dtype: str
) -> None:
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    start = 0
    for row, length in part:
        shape = list(_written_shape(row, config, flax=False))
        header[row.pytorch] = {"dtype": _LETTERS[dtype], "shape": shape, "data_offsets": [start, start + length]}
        start += length
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for row, _ in part:
            for block in _blocks(_oriented(row, arrays[row.t5x], flax=False), ts.dtype(dtype).numpy_dtype):
                file.write(block)


def write_flax(
    directory: Path,
    arrays: Mapping[str, np.ndarray],
    config: ModelConfig,
    dtype: str = "float32",
    chunk_bytes: int = FLAX_CHUNK_BYTES,
) -> None:
    """Writes flax_model.msgpack as flax.serialization would; arrays over `chunk_bytes` are cut as it cuts them."""
    table = {flax_name(row): row for row in _in_order(arrays, config)}
    packer = msgpack.Packer()
    place, gaps = 0, {}  # name -> [(where its bytes stand, how many)]
    with (directory / "flax_model.msgpack").open("wb") as file:

        def put(data: bytes) -> None:
            nonlocal place
            file.seek(place)
            file.write(data)
            place += len(data)

        def leave_gap(name: str, shape: tuple[int, ...], length: int) -> None:
            nonlocal place
            inner = b"\x93" + packer.pack(shape) + packer.pack(dtype) + b"\xc6" + struct.pack(">I", length)
            put(b"\xc9" + struct.pack(">Ib", len(inner) + length, ARRAY_EXTENSION) + inner)
            gaps.setdefault(name, []).append((place, length))
            place += length

        def walk(node: Mapping[str, Any], path: str) -> None:
            put(packer.pack_map_header(len(node)))
            for key, value in node.items():
                put(packer.pack(key))
                if isinstance(value, dict):
                    walk(value, f"{path}{key}/")
                else:
                    leaf(f"{path}{key}")

        def leaf(name: str) -> None:
            shape = _written_shape(table[name], config, flax=True)
            item = ts.dtype(dtype).numpy_dtype.itemsize
            size, count = int(np.prod(shape)), max(1, chunk_bytes // item)
            if size <= count:
                leave_gap(name, shape, size * item)
                return
            put(packer.pack_map_header(3) + packer.pack("__msgpack_chunked_array__") + packer.pack(True))
            put(packer.pack("shape") + packer.pack({str(i): length for i, length in enumerate(shape)}))
            pieces = [min(count, size - start) for start in range(0, size, count)]
            put(packer.pack("chunks") + packer.pack_map_header(len(pieces)))
            for i, piece in enumerate(pieces):
                put(packer.pack(str(i)))
                leave_gap(name, (piece,), piece * item)

        walk(unflatten(dict.fromkeys(table, np.zeros(0))), "")
        for name, row in table.items():
            blocks = _blocks(_oriented(row, arrays[row.t5x], flax=True), ts.dtype(dtype).numpy_dtype)
            _fill(file, gaps[name], blocks)


def _fill(file: BinaryIO, gaps: list[tuple[int, int]], blocks: Iterator[memoryview]) -> None:
    """Writes the blocks one after the other into the gaps of a file."""
    gaps = list(gaps)
    for block in blocks:
        while len(block):
            place, length = gaps[0]
            file.seek(place)
            written = file.write(block[:length])
            block = block[written:]
            gaps[0] = (place + written, length - written)
            if not gaps[0][1]:
                gaps.pop(0)


def write_tokenizer(directory: Path, vocabulary: str, extra_ids: int, starts: bool = False) -> None:
    """Writes files with which transformers' AutoTokenizer gives the ids of Limba's vocabulary.

    With `starts`, for a language model, texts begin with the start id 0 and have no end. `vocabulary` is the path of a
    SentencePiece model or of a tokenizer.json, whose post-processor is replaced, or 'byte'.
    ByT5's sentinels count down from the last id in seqio and up in transformers: their ids are written out. Without
    extra ids they are those of bytes that no text has, 258 to 248.
    """
    # These import TensorFlow, which the weights do not need.
    from limba.data.vocabulary.files import content as content_of
    from limba.data.vocabulary.load import BYTE_SENTINELS, SENTINEL, load_vocabulary
    from limba.data.vocabulary.tokenizer_json import byte_tokenizer_json, end_of_sequence, start, tokenizer_json

    if vocabulary == "byte":
        count = extra_ids or (0 if starts else BYTE_SENTINELS)
        sentinels = {f"<extra_id_{i}>": LAST_BYTE + extra_ids - i for i in range(count)}
        special = {"<pad>": 0, "</s>": 1, "<unk>": 2, **sentinels}
        about = {"tokenizer_class": "ByT5Tokenizer", "extra_ids": extra_ids}
        if starts:  # ByT5Tokenizer ends texts and cannot begin them
            (directory / "tokenizer.json").write_text(byte_tokenizer_json(special), encoding="utf-8")
            about = {"tokenizer_class": "PreTrainedTokenizerFast"}
        ids = (0, 1, 2)
    elif vocabulary.endswith(".json"):
        read: Any = load_vocabulary(vocabulary)
        content = json.loads(content_of(vocabulary))
        names = [read.tokenizer.id_to_token(number) for number in (0, read.eos_id)]
        content["post_processor"] = start(names[0]) if starts else end_of_sequence(names[1], read.eos_id)
        text = json.dumps(content, ensure_ascii=False)
        (directory / "tokenizer.json").write_text(text, encoding="utf-8")
        special = {entry["content"]: entry["id"] for entry in content["added_tokens"] if entry["special"]}
        sentinels = {name: number for name, number in special.items() if SENTINEL.fullmatch(name)}
        ids = (0, read.eos_id, read.eos_id if read.unk_id is None else read.unk_id)
        special |= {read.tokenizer.id_to_token(number): number for number in ids}
        about = {"tokenizer_class": "PreTrainedTokenizerFast"}
    else:
        read = load_vocabulary(vocabulary, extra_ids)
        ids = (0, read.eos_id, read.unk_id)
        text = tokenizer_json(vocabulary, extra_ids, starts)
        (directory / "tokenizer.json").write_text(text, encoding="utf-8")
        (directory / "spiece.model").write_bytes(content_of(vocabulary))
        special = {entry["content"]: entry["id"] for entry in json.loads(text)["added_tokens"]}
        sentinels = {name: number for name, number in special.items() if SENTINEL.fullmatch(name)}
        about = {"tokenizer_class": "PreTrainedTokenizerFast"}
    named = {number: name for name, number in special.items()}
    roles = {"pad_token": named[ids[0]], "eos_token": named[ids[1]], "unk_token": named[ids[2]]}
    roles |= {"bos_token": named[ids[0]]} if starts else {}
    ordered = sorted(sentinels, key=sentinels.__getitem__)
    sides = dict.fromkeys(("lstrip", "rstrip", "normalized", "single_word"), False)
    added = {str(number): {"content": name, **sides, "special": True} for number, name in sorted(named.items())}
    about |= {
        **roles,
        "additional_special_tokens": ordered,
        "added_tokens_decoder": added,
        "clean_up_tokenization_spaces": False,
        "model_input_names": ["input_ids", "attention_mask"],  # 4.57's other class gives token_type_ids too
        "model_max_length": 10**9,  # relative positions have no limit
    }
    for name, content in (("tokenizer_config", about), ("special_tokens_map", roles)):
        (directory / f"{name}.json").write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n")
