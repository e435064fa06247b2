"""Writes folders for transformers from arrays under T5X's names: config and weights, one array at a time.

`huggingface_tokenizer` writes the tokenizer's files.

The weights are written in the order in which `arrays` is iterated, and a transposed matrix in blocks of rows, so
that only one array, the layers that were read with it, and some megabytes are in memory.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import re
import struct
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from etils import epath

from limba.config import ModelConfig
from limba.formats.architectures import HEAD, rows, written
from limba.formats.huggingface import FLAX_FILE, HEAD_SCALE, flax_name, head_scale
from limba.formats.huggingface_config import config_json
from limba.formats.huggingface_tokenizer import write_tokenizer
from limba.formats.names import Stored, blocks_of, read_ahead, size_of, unflatten, write_block, write_safetensors
from limba.formats.t5x import numpy_dtype
from limba.storage.files import read_text

FILE_BYTES = 5 * 10**9  # a larger model is cut into files of at most this size, as transformers does
ENCODER = "encoder"  # the folder of a hybrid's encoder, inside its language model's
# What `write_sentence_modules` writes.
SENTENCE_MODULES = (
    "modules.json",
    "1_Pooling/config.json",
    "sentence_bert_config.json",
    "config_sentence_transformers.json",
)
_ARRAY = 1  # flax's number of msgpack's extension for an array
_FIXED_EXTENSIONS = {1: 0xD4, 2: 0xD5, 4: 0xD6, 8: 0xD7, 16: 0xD8}  # bytes -> the head of an extension of that size
_ID_OF_ROLE = re.compile(r"\w+_token_id")
_CLASS = "tokenizer_class"  # which AutoTokenizer opens, where tokenizer_config.json names none


class Form(NamedTuple):
    """What a folder holds: the forms of its weights, their dtype, and the version of transformers that reads them."""

    formats: Sequence[str]
    dtype: str = "float32"
    transformers: int = 5
    length: int | None = None  # the longest text that the model was trained with; None: it is not known
    begins: bool = False  # of a language model: its texts begin with <cls> after the start, as a hybrid's do
    special: Any = None  # SpecialIds of a folder for transformers; None: T5's layout
    published: epath.Path | None = None  # that folder, if its tokenizer's files are written, and its ids and rules


def write_folder(
    folder: Path,
    arrays: Mapping[str, np.ndarray],
    model: ModelConfig,
    form: Form,
    tokenizer: tuple[Any, Any] | None,
    suppressed: Sequence[int] = (),
) -> None:
    """Writes a folder for transformers: config, weights in each form ("pytorch", "flax"), the tokenizer if known.

    Its generation_config.json suppresses these ids, and the embedding's rows without a piece. An untied umT5
    for transformers 4 differs from that for 5, see `head_scale`.
    """
    if model.predicts_next:  # a hybrid is written twice
        write_folder(folder, arrays, model.exported, form._replace(begins=True), tokenizer, suppressed)
        write_encoder_of_hybrid(folder / ENCODER, arrays, model, form, tokenizer)
        return
    config_json(model)  # raises before anything is written
    if form.length is not None and model.positions == "rotary":
        # Rotary positions have no end in the network, and those beyond this one were never trained.
        model = dataclasses.replace(model, max_length=form.length)
    folder.mkdir(parents=True, exist_ok=True)
    name, vocabulary = tokenizer or (None, None)
    special = form.special
    eos_id = 1 if vocabulary is None or vocabulary.eos_id is None else int(vocabulary.eos_id)
    mask = None
    if special is not None:
        mask = special.mask if model.is_encoder else None
    elif vocabulary is not None and model.is_encoder:
        from limba.data.vocabulary.sentinels import mask_id

        mask = mask_id(vocabulary)
    padding = () if vocabulary is None else range(vocabulary.vocab_size, model.vocab_size)
    scale = head_scale(model) if form.transformers >= 5 else 1.0
    write_configs(folder, model, form.dtype, eos_id, [*padding, *suppressed], scale, mask)
    if form.published is not None:
        _keep_published(folder, form.published)
    elif special is not None:
        _write_special_ids(folder, special, model)
    if "pytorch" in form.formats:
        write_pytorch(folder, arrays, model, form.dtype, scale)
    if "flax" in form.formats:
        write_flax(folder, arrays, model, form.dtype, scale)
    length = form.length
    if not length and model.is_decoder_only and not model.is_t5_decoder:
        length = model.max_length
    if name is not None and form.published is not None and name.path != "byte":
        _copy_tokenizer(form.published, folder)
    elif name is not None:
        starts = model.is_decoder_only and not model.is_encoder
        begin = None
        if starts and form.begins and vocabulary is not None:
            from limba.data.vocabulary.sentinels import begin_id

            begin = begin_id(vocabulary)
        write_tokenizer(folder, name.path, name.extra_ids or 0, starts, mask, begin, length, vocabulary)


def as_encoder(model: ModelConfig) -> ModelConfig:
    """Returns the network of a hybrid's hidden states: transformers' EuroBertModel, which has no output layer.

    It reads the start before a text, as the hybrid does. A mask's piece is predicted at the place before it, so the
    output layer of EuroBertForMaskedLM would answer for the neighbour: `fill` knows the place.
    """
    biases = tuple(part for part in model.biases if part != "logits")
    return dataclasses.replace(model, attention_mask="bidirectional", has_logits=False, biases=biases)


def write_encoder_of_hybrid(
    folder: Path, arrays: Mapping[str, np.ndarray], model: ModelConfig, form: Form, tokenizer: tuple[Any, Any] | None
) -> None:
    """Writes a hybrid as an EuroBertModel, for vectors and for fine-tuning in other programs.

    Its texts begin as the hybrid's own.
    """
    encoder = as_encoder(model)
    if form.length is not None:
        encoder = dataclasses.replace(encoder, max_length=form.length)
    folder.mkdir(parents=True, exist_ok=True)
    name, vocabulary = tokenizer or (None, None)
    begin = None
    mask = None
    if vocabulary is not None:
        from limba.data.vocabulary.sentinels import begin_id, mask_id

        begin = begin_id(vocabulary)
        mask = mask_id(vocabulary)
    eos_id = 1 if vocabulary is None or vocabulary.eos_id is None else int(vocabulary.eos_id)
    write_configs(folder, encoder, form.dtype, eos_id, mask_id=mask)
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"bos_token_id": 0}, indent=2) + "\n")
    write_pytorch(folder, arrays, encoder, form.dtype)
    if name is not None:
        length = encoder.max_length
        write_tokenizer(folder, name.path, name.extra_ids or 0, True, mask, begin, length, vocabulary)
    write_sentence_modules(folder, encoder)


def _write_special_ids(folder: Path, special: Any, model: ModelConfig) -> None:
    """Replaces the ids of T5's layout by a folder's SpecialIds."""
    ends: object = None
    if special.ends:
        ends = special.ends[0] if len(special.ends) == 1 else list(special.ends)
    ids = {"pad_token_id": special.padding, "eos_token_id": ends}
    of_config = dict(ids)
    of_generation = dict(ids)
    if model.is_decoder_only:
        of_config["bos_token_id"] = of_generation["bos_token_id"] = special.start
    elif not model.is_t5_encoder:
        of_config["decoder_start_token_id"] = special.decoder_start
        of_generation["decoder_start_token_id"] = special.generation_start
    if special.suppressed:
        of_generation["suppress_tokens"] = sorted(special.suppressed)
    for name, named_ids in (("config", of_config), ("generation_config", of_generation)):
        file = folder / f"{name}.json"
        if file.exists():
            file.write_text(json.dumps(json.loads(file.read_text()) | named_ids, indent=2) + "\n")


def _keep_published(folder: Path, published: epath.Path) -> None:
    """Puts what a published folder says of its tokenizer and of generation in its place: ids, class and rules.

    Where it has no generation_config.json, its config.json has the rules.
    """
    from limba.data.vocabulary.generation_rules import RULES

    ours = json.loads((folder / "config.json").read_text())
    theirs = json.loads(read_text(published / "config.json"))
    name = "generation_config.json"
    has_rules = (published / name).exists()

    def is_kept(key: str) -> bool:
        return key == _CLASS or _ID_OF_ROLE.fullmatch(key) is not None or (not has_rules and key in RULES)

    ours = {key: value for key, value in ours.items() if not _ID_OF_ROLE.fullmatch(key)}
    ours |= {key: value for key, value in theirs.items() if is_kept(key)}
    (folder / "config.json").write_text(json.dumps(ours, indent=2) + "\n")
    generates = (folder / name).exists()  # an encoder does not
    if generates:
        (folder / name).unlink()
        if has_rules:
            (folder / name).write_bytes((published / name).read_bytes())


def _copy_tokenizer(source: epath.Path, folder: Path) -> None:
    """Copies the tokenizer's files of a folder for transformers as they are."""
    from limba.data.vocabulary.files import OF_TOKENIZER

    for name in OF_TOKENIZER:
        if (source / name).exists():
            (folder / name).write_bytes((source / name).read_bytes())


def write_sentence_modules(folder: Path, model: ModelConfig) -> None:
    """Writes what makes a folder one for sentence-transformers: the mean of the hidden states, compared by cosine.

    Names and keys are from its versions 2 to 5, and version 6 reads them too.
    """
    modules = [("0", "", "Transformer"), ("1", "1_Pooling", "Pooling")]
    parts = [
        {"idx": int(name), "name": name, "path": path, "type": f"sentence_transformers.models.{kind}"}
        for name, path, kind in modules
    ]
    contents = {
        "modules": parts,
        "1_Pooling/config": {"word_embedding_dimension": model.emb_dim, "pooling_mode_mean_tokens": True},
        "sentence_bert_config": {"max_seq_length": model.max_length, "do_lower_case": False},
        "config_sentence_transformers": {"prompts": {}, "default_prompt_name": None, "similarity_fn_name": "cosine"},
    }
    (folder / "1_Pooling").mkdir(exist_ok=True)
    for name, content in contents.items():
        (folder / f"{name}.json").write_text(json.dumps(content, indent=2) + "\n")


def write_configs(
    directory: Path,
    config: ModelConfig,
    dtype: str,
    eos_id: int = 1,
    suppressed: Sequence[int] = (),
    head_scale: float = 1.0,
    mask_id: int | None = None,
) -> None:
    """Writes config.json and, except for an encoder, generation_config.json.

    `eos_id` is the vocabulary's end of sequence; `generate` of transformers never gives the `suppressed` ids.
    `head_scale` is what the written output layer is multiplied by, `mask_id` an encoder's mask.
    """
    is_encoder = config.is_encoder or not config.has_logits
    start = "bos_token_id" if config.is_decoder_only else "decoder_start_token_id"
    generation: dict[str, object] = {"pad_token_id": 0, "eos_token_id": eos_id, start: 0}
    if suppressed:
        generation["suppress_tokens"] = sorted(suppressed)
    hf_config = config_json(config, dtype, eos_id, mask_id)
    if head_scale != 1:
        hf_config[HEAD_SCALE] = head_scale
    files = {"config": hf_config}
    if not is_encoder:
        files["generation_config"] = generation
    for name, content in files.items():
        (directory / f"{name}.json").write_text(json.dumps(content, indent=2) + "\n")


def _written(
    arrays: Mapping[str, np.ndarray], config: ModelConfig, dtype: str, head_scale: float, flax: bool = False
) -> dict[str, Stored]:
    """Returns the arrays by PyTorch's, or Flax's, names and in its shapes, in the order in which `arrays` has them."""
    arrays = written(arrays, config)
    table = {row.t5x: row for row in rows(config)}

    def read(name: str) -> np.ndarray:
        if name == HEAD and head_scale != 1:
            return arrays[name].astype(np.float32) * np.float32(head_scale)
        return arrays[name]

    named_arrays = {}
    for row in (table[name] for name in arrays if name in table):
        stored = Stored(row.shape, numpy_dtype(dtype), partial(read, row.t5x))
        # Flax keeps kernels as they are here, and both forms have relative biases transposed.
        is_transposed = row.t5x.endswith("rel_embedding") if flax else row.transposed
        name = flax_name(row) if flax else row.pytorch
        named_arrays[name] = stored.T if is_transposed else stored
    return named_arrays


def write_pytorch(
    directory: Path,
    arrays: Mapping[str, np.ndarray],
    config: ModelConfig,
    dtype: str = "float32",
    head_scale: float = 1.0,
    file_bytes: int = FILE_BYTES,
) -> None:
    """Writes model.safetensors, or several files of at most `file_bytes` and their index."""
    write_weights(directory, _written(arrays, config, dtype, head_scale), file_bytes)


def write_weights(directory: Path, arrays: Mapping[str, Stored], file_bytes: int = FILE_BYTES) -> None:
    """Writes arrays by PyTorch's names as `write_pytorch` does, each in its own dtype."""
    files: list[dict[str, Stored]] = [{}]
    for name, stored in arrays.items():
        if files[-1] and sum(map(size_of, files[-1].values())) + size_of(stored) > file_bytes:
            files.append({})
        files[-1][name] = stored
    count = len(files)
    names = [f"model-{i + 1:05}-of-{count:05}.safetensors" for i in range(count)]
    for name, part in zip(names if count > 1 else ["model.safetensors"], files, strict=True):
        with (directory / name).open("wb") as file:
            write_safetensors(file, part)
    if count > 1:
        index = {name: file for file, part in zip(names, files, strict=True) for name in part}
        total = sum(size_of(stored) for part in files for stored in part.values())
        content = {"metadata": {"total_size": total}, "weight_map": index}
        (directory / "model.safetensors.index.json").write_text(json.dumps(content, indent=2) + "\n")


def write_flax(
    directory: Path,
    arrays: Mapping[str, np.ndarray],
    config: ModelConfig,
    dtype: str = "float32",
    head_scale: float = 1.0,
) -> None:
    """Writes flax_model.msgpack, as flax's `msgpack_serialize` does, with one array in memory at a time.

    The file has the arrays layer by layer, and a checkpoint has them stack by stack: each is written to its places in
    the order in which `arrays` has them, so that a T5's stacks are not read once for each of their layers. It has its
    name only when all of it is written: until then what is missing reads as zeros.
    """
    named_arrays = _written(arrays, config, dtype, head_scale, flax=True)
    places: dict[int, list[tuple[int, _Part]]] = {id(stored): [] for stored in named_arrays.values()}
    unfinished = directory / f"{FLAX_FILE}.part"
    with unfinished.open("wb") as file:
        for piece in _flax_pieces(unflatten(named_arrays)):
            if isinstance(piece, _Part):
                places[id(piece.array)].append((file.tell(), piece))
                file.seek(piece.num_bytes, os.SEEK_CUR)
            else:
                file.write(piece)

        def placed_blocks() -> Iterator[tuple[int, memoryview]]:
            for stored in named_arrays.values():
                yield from _placed_blocks(stored, places[id(stored)])

        for position, block in read_ahead(placed_blocks()):
            file.seek(position)
            write_block(file, block)
    unfinished.replace(directory / FLAX_FILE)


class _Part(NamedTuple):
    """Values of an array, counted in C order, that are one piece of flax's file."""

    array: Stored
    first: int
    stop: int

    @property
    def num_bytes(self) -> int:
        return (self.stop - self.first) * self.array.dtype.itemsize


def _placed_blocks(stored: Stored, parts: Sequence[tuple[int, _Part]]) -> Iterator[tuple[int, memoryview]]:
    """Yields (position in the file, bytes) of an array's parts, of which each begins at a position; it is read once."""
    if len(parts) == 1:
        position, _ = parts[0]
        for block in blocks_of(stored):
            yield position, block
            position += len(block)
        return
    values = stored.read().reshape(-1)
    for position, part in parts:
        of_part = Stored(
            (part.stop - part.first,), stored.dtype, partial(values.__getitem__, slice(part.first, part.stop))
        )
        for block in blocks_of(of_part):
            yield position, block
            position += len(block)


def _flax_pieces(value: Any) -> Iterator[bytes | _Part]:
    """Yields the bytes of nested dictionaries as flax writes them, with each part of an array in place of its bytes.

    The forms of an array, and of one that is too large for one piece, are flax's (`flax/serialization.py`), heads are
    msgpack's: https://github.com/msgpack/msgpack/blob/master/spec.md
    """
    import msgpack
    from flax import serialization

    packer: Any = msgpack.Packer()  # its stub says that it may give None
    if isinstance(value, Stored):
        if size_of(value) > serialization.MAX_CHUNK_SIZE:
            yield from _flax_pieces(_flax_chunks(value, serialization.MAX_CHUNK_SIZE))
        else:
            yield from _flax_array(_Part(value, 0, math.prod(value.shape)), value.shape)
    elif isinstance(value, _Part):
        yield from _flax_array(value, (value.stop - value.first,))
    elif isinstance(value, Mapping):
        yield packer.pack_map_header(len(value))
        for name, inner in value.items():
            yield packer.pack(name)
            yield from _flax_pieces(inner)
    else:
        yield packer.pack(value)


def _flax_array(part: _Part, shape: tuple[int, ...]) -> Iterator[bytes | _Part]:
    """Yields an array of this shape as flax writes it."""
    import msgpack

    packer: Any = msgpack.Packer()
    head = packer.pack((shape, part.array.dtype.name)) + _sized_head(part.num_bytes, b"\xc4\xc5\xc6")
    head = b"\x93" + head[1:]  # three things, the bytes are the third
    yield _extension_head(len(head) + part.num_bytes, _ARRAY) + head
    yield part


def _flax_chunks(stored: Stored, most_bytes: int) -> dict[str, Any]:
    """Returns the dictionary that flax writes for an array of more than `most_bytes`."""
    count = max(1, most_bytes // stored.dtype.itemsize)
    total = math.prod(stored.shape)
    chunks = {}
    for number, start in enumerate(range(0, total, count)):
        chunks[str(number)] = _Part(stored, start, min(start + count, total))
    shape = {str(axis): size for axis, size in enumerate(stored.shape)}
    return {"__msgpack_chunked_array__": True, "shape": shape, "chunks": chunks}


def _sized_head(size: int, kinds: bytes) -> bytes:
    """Returns a byte of `kinds` and a size in one, two or four bytes, the fewest that hold it."""
    for kind, letter, bits in zip(kinds, "BHI", (8, 16, 32), strict=True):
        if size < 1 << bits:
            return struct.pack(f">B{letter}", kind, size)
    raise ValueError(f"msgpack holds at most 4 GiB in one piece, and this has {size} bytes")


def _extension_head(size: int, kind: int) -> bytes:
    """Returns the head of an extension, whose kind stands behind its size."""
    if size in _FIXED_EXTENSIONS:
        return bytes([_FIXED_EXTENSIONS[size], kind])
    return _sized_head(size, b"\xc7\xc8\xc9") + bytes([kind])
