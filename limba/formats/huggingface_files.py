"""Writes folders for transformers from arrays under T5X's names: config, weights, tokenizer; one array at a time.

The weights are written in the order in which `arrays` is iterated, and a transposed matrix in blocks of rows, so
that only one array and some megabytes are in memory.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import re
import tempfile
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from etils import epath

from limba.config import InputError, ModelConfig
from limba.formats.architectures import HEAD, config_json, rows, written
from limba.formats.huggingface import FLAX_FILE, HEAD_SCALE, flax_name, head_scale
from limba.formats.names import Json, Stored, size_of, unflatten, write_safetensors
from limba.formats.t5x import numpy_dtype
from limba.storage.files import read_text

FILE_BYTES = 5 * 10**9  # a larger model is cut into files of at most this size, as transformers does
# A ByT5's sentinels are the last bytes' own ids, from 258 down, or rows of their own above the bytes. The published
# models have the first: T5X trains with seqio's ByteVocabulary without extra ids, whose last id is 258 (Xue et al.,
# arXiv:2105.13626). transformers' ByT5Tokenizer writes `<extra_id_0>` as 259, a row that was never trained. Limba's
# tokenizers name each sentinel with its id.
LAST_BYTE = 258  # the id of 0xFF
ENCODER = "encoder"  # the folder of a hybrid's encoder, inside its language model's
UNKNOWN_LENGTH = 10**9  # model_max_length of a folder that does not know it
_ID_OF_ROLE = re.compile(r"\w+_token_id")
_SENTINEL = re.compile(r"<extra_id_(\d+)>")


class Form(NamedTuple):
    """What a folder holds: the forms of its weights, their dtype, and the version of transformers that reads them."""

    formats: Sequence[str]
    dtype: str = "float32"
    transformers: int = 5
    length: int | None = None  # the longest text that the model was trained with; None: it is not known
    begins: bool = False  # of a language model: its texts begin with <cls> after the start, as a hybrid's do
    special: Any = None  # SpecialIds of a folder for transformers, whose tokenizer files are copied; None: T5's layout
    published: epath.Path | None = None  # of a run with such a folder as vocabulary: the other files have its ids too


def write_folder(
    folder: Path,
    arrays: Mapping[str, np.ndarray],
    model: ModelConfig,
    form: Form,
    tokenizer: tuple[Any, Any] | None,
    suppressed: Sequence[int] = (),
) -> None:
    """Writes a folder for transformers: config, weights in each form ("pytorch", "flax"), the tokenizer if known.

    Its generation_config.json suppresses these ids, and the rows of the embedding that are no pieces. An untied umT5
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
        _keep_special_ids(folder, form.published)
    elif special is not None:
        _write_special_ids(folder, special, model)
    if "pytorch" in form.formats:
        write_pytorch(folder, arrays, model, form.dtype, scale)
    if "flax" in form.formats:
        write_flax(folder, arrays, model, form.dtype, scale)
    length = form.length or (model.max_length if model.is_decoder_only and not model.is_t5_decoder else None)
    if name is not None and vocabulary is not None and special is not None and name.path != "byte":
        _copy_tokenizer(epath.Path(vocabulary.path).parent, folder)
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
    """Puts the ids of a folder for transformers, SpecialIds, in the place of T5's layout."""
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


def _keep_special_ids(folder: Path, published: epath.Path) -> None:
    """Puts the ids of a published folder in their places, and its generation_config.json as it is."""
    ours = json.loads((folder / "config.json").read_text())
    theirs = json.loads(read_text(published / "config.json"))
    ours = {key: value for key, value in ours.items() if not _ID_OF_ROLE.fullmatch(key)}
    ours |= {key: value for key, value in theirs.items() if _ID_OF_ROLE.fullmatch(key)}
    (folder / "config.json").write_text(json.dumps(ours, indent=2) + "\n")
    name = "generation_config.json"
    (folder / name).unlink(missing_ok=True)
    if (published / name).exists():
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
    """Writes flax_model.msgpack, which is made in memory."""
    from flax import serialization

    stored = _written(arrays, config, dtype, head_scale, flax=True).items()
    tree = unflatten({name: array.read().astype(array.dtype, copy=False) for name, array in stored})
    (directory / FLAX_FILE).write_bytes(serialization.msgpack_serialize(tree, in_place=True))


def write_tokenizer(
    directory: Path,
    vocabulary: str,
    extra_ids: int,
    starts: bool = False,
    mask_id: int | None = None,
    begin_id: int | None = None,
    length: int | None = None,
    trained: Any = None,
) -> None:
    """Writes files with which transformers' AutoTokenizer gives the ids of Limba's vocabulary.

    With `starts`, for a language model, texts begin with the start id 0, and with `begin_id` after it, and have no end.
    The token of `mask_id` is an encoder's mask; an encoder's texts begin with <cls>, where the vocabulary has it.
    `vocabulary` is the path of a SentencePiece model or of a tokenizer.json, whose post-processor is replaced, or
    'byte'. `length` is the longest text that the model was trained with, `trained` the vocabulary that it was trained
    with, where that is another object than `load_vocabulary` makes.
    ByT5's sentinels count down from the last id in seqio and up in transformers: their ids are written out. Without
    extra ids they are the ids of bytes that no text has, 258 to 248. Raises InputError for a vocabulary that
    tokenizer.json cannot hold: both tokenize `export_check.TEXTS`.
    """
    # These import TensorFlow, which the weights do not need.
    from limba.data.vocabulary.export_check import check_written, sentinels_of
    from limba.data.vocabulary.files import content as content_of
    from limba.data.vocabulary.load import load_vocabulary
    from limba.data.vocabulary.piece_table import PieceTable
    from limba.data.vocabulary.sentinels import BYTE_SENTINELS, SENTINEL
    from limba.data.vocabulary.tokenizer_json import around, of_bytes, of_model, of_tokenizer, template
    from limba.data.vocabulary.vocabularies import SPECIALS

    encodes = mask_id is not None
    tokenizer = None
    if vocabulary == "byte":
        read: Any = load_vocabulary("byte", extra_ids)
        count = extra_ids or (0 if starts else BYTE_SENTINELS)
        special = {name: number for number, name in enumerate(SPECIALS)}
        special |= {f"<extra_id_{i}>": LAST_BYTE + extra_ids - i for i in range(count)}
        ids = (0, 1, 2)
        tokenizer = of_bytes(special) if starts else None  # ByT5Tokenizer ends texts and cannot begin them
    else:
        read = load_vocabulary(vocabulary, *([] if vocabulary.endswith(".json") else [extra_ids]))
        ids = (0, read.eos_id, read.eos_id if read.unk_id is None else read.unk_id)
        if vocabulary.endswith(".json"):
            table = PieceTable(read)
            gaps = [table.name(number) for number in table.sentinels]
            if mask_id is not None:
                gaps.append(table.name(mask_id))
            tokenizer = of_tokenizer(read.tokenizer, gaps)
            names = [str(tokenizer.id_to_token(number)) for number in ids]
            special = dict(zip(names, ids, strict=True))
            if not starts:
                tokenizer.post_processor = around(tokenizer.get_vocab(), names[1], encodes)
        else:
            tokenizer = of_model(vocabulary, extra_ids, starts, encodes, mask_id)
            special = {}
            (directory / "spiece.model").write_bytes(content_of(vocabulary))
        added = tokenizer.get_added_tokens_decoder()
        special |= {token.content: number for number, token in added.items() if token.special}
    named = {number: name for name, number in special.items()}
    if tokenizer is not None:
        if starts:
            before = [0] if begin_id is None else [0, begin_id]
            begins = {named.get(number) or PieceTable(read).name(number): number for number in before}
            tokenizer.post_processor = template(begins, [*begins], [])
        gaps = sentinels_of(read) if mask_id is None else [(str(named[mask_id]), mask_id)] * 2
        written = tokenizer
        check_written(
            trained or read,
            lambda text: written.encode(text, add_special_tokens=False).ids,
            [] if starts else gaps,
            vocabulary,
        )
        tokenizer.save(str(directory / "tokenizer.json"), pretty=False)
    if tokenizer is None:
        tokenizer_config: Json = {"tokenizer_class": "ByT5Tokenizer", "extra_ids": extra_ids}
    else:
        tokenizer_config = {"tokenizer_class": "PreTrainedTokenizerFast"}
    roles = {"pad_token": named[ids[0]], "eos_token": named[ids[1]], "unk_token": named[ids[2]]}
    if starts:
        roles["bos_token"] = named[ids[0]]
    if mask_id is not None:
        roles |= {"mask_token": named[mask_id], "sep_token": named[ids[1]]}
        begins_with = next((name for name in ("<cls>", "[CLS]") if name in special), None)
        if begins_with is not None:
            roles["cls_token"] = begins_with
    ordered = sorted((name for name in special if SENTINEL.fullmatch(name)), key=special.__getitem__)
    added = {str(number): _token(name, tokenizer) for number, name in sorted(named.items())}
    tokenizer_config |= {
        **roles,
        "additional_special_tokens": ordered,
        "added_tokens_decoder": added,
        "clean_up_tokenization_spaces": False,
        "model_input_names": ["input_ids", "attention_mask"],  # 4.57's other class gives token_type_ids too
        "model_max_length": length or UNKNOWN_LENGTH,
    }
    for name, content in (("tokenizer_config", tokenizer_config), ("special_tokens_map", roles)):
        (directory / f"{name}.json").write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n")


@functools.lru_cache(maxsize=32)
def reason_against(
    vocabulary: str, extra_ids: int, trained: Any, starts: bool, encodes: bool, content_name: str
) -> str | None:
    """Returns the sentence of `write_tokenizer` about a vocabulary that cannot be exported; None if it can be.

    `content_name` tells another file at the same path.
    """
    from limba.data.vocabulary.sentinels import mask_id

    if vocabulary == "byte":
        return None
    with tempfile.TemporaryDirectory(prefix="limba-vocabulary-") as folder:
        try:
            mask = mask_id(trained) if encodes else None
            write_tokenizer(Path(folder), vocabulary, extra_ids, starts, mask, trained=trained)
        except InputError as error:
            return str(error)
    return None


def _token(name: str, tokenizer: Any) -> Json:
    """Returns a special token as tokenizer_config.json has it; transformers takes the spaces to strip from there."""
    sides: dict[str, bool] = dict.fromkeys(("lstrip", "rstrip", "normalized", "single_word"), False)
    if tokenizer is not None:
        known = {token.content: token for token in tokenizer.get_added_tokens_decoder().values()}
        if name in known:
            sides = {side: getattr(known[name], side) for side in sides}
    return {"content": name, **sides, "special": True}


def extra_ids_of(tokenizer_config: Mapping[str, object]) -> int:
    """Returns how many rows of their own a ByT5Tokenizer's sentinels have; 0: they are the last bytes' ids.

    As transformers writes them, with `<extra_id_0>` first, they have none.

    >>> counted_down = {"260": {"content": "<extra_id_0>"}, "259": {"content": "<extra_id_1>"}}
    >>> extra_ids_of({"added_tokens_decoder": counted_down}), extra_ids_of({"extra_ids": 125})
    (2, 0)
    """
    added = tokenizer_config.get("added_tokens_decoder")
    if not isinstance(added, dict):
        return 0
    ids: dict[int, int] = {}  # the number of a sentinel -> its id
    for token_id, token in added.items():
        sentinel = _SENTINEL.fullmatch(str(token.get("content")))
        if sentinel is not None:
            ids[int(sentinel[1])] = int(token_id)
    counts_down = len(ids) > 1 and ids.get(0) == LAST_BYTE + len(ids)
    return len(ids) if counts_down else 0


def extra_ids_in(folder: epath.Path) -> int | None:
    """Returns the extra ids of a ByT5 in a folder for transformers; None for another model.

    Raises InputError for a tokenizer_config.json that is not text.
    """
    tokenizer_config = {}
    for name in ("config.json", "tokenizer_config.json"):
        if (folder / name).exists():
            with contextlib.suppress(ValueError, TypeError, RecursionError):  # reported where the file is needed
                tokenizer_config |= json.loads(read_text(folder / name))
    return extra_ids_of(tokenizer_config) if str(tokenizer_config.get("tokenizer_class")).startswith("ByT5") else None
