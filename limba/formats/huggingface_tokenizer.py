"""Writes the tokenizer's files of a folder for transformers, so that AutoTokenizer gives the ids of Limba's vocabulary.

It also tells the ids of a ByT5's sentinels, on which seqio and transformers disagree.
"""

from __future__ import annotations

import contextlib
import functools
import json
import re
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from etils import epath

from limba.config import InputError
from limba.formats.names import Json
from limba.storage.files import read_text

# A ByT5's sentinels are the last bytes' own ids, from 258 down, or rows of their own above the bytes. The published
# models have the first: T5X trains with seqio's ByteVocabulary without extra ids, whose last id is 258 (Xue et al.,
# arXiv:2105.13626). transformers' ByT5Tokenizer writes `<extra_id_0>` as 259, a row that was never trained. Limba's
# tokenizers name each sentinel with its id.
LAST_BYTE = 258  # the id of 0xFF
UNKNOWN_LENGTH = 10**9  # model_max_length of a folder that does not know it
_SENTINEL = re.compile(r"<extra_id_(\d+)>")


class _Source(NamedTuple):
    """A vocabulary as Limba reads it, and a tokenizer of the package `tokenizers` with the same ids."""

    vocabulary: Any
    padding: int
    end: int
    unknown: int
    special: dict[str, int]  # the tokens that no text spells: name -> id
    tokenizer: Any  # None: transformers' ByT5Tokenizer needs none


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

    Raises InputError for a vocabulary that tokenizer.json cannot hold: both tokenize `export_check.TEXTS`.
    """
    # These import TensorFlow, which the weights do not need.
    from limba.data.vocabulary.export_check import check_written, sentinels_of
    from limba.data.vocabulary.files import content as content_of
    from limba.data.vocabulary.piece_table import PieceTable
    from limba.data.vocabulary.tokenizer_json import template

    if vocabulary == "byte":
        source = _of_bytes(extra_ids, starts)
    elif vocabulary.endswith(".json"):
        source = _of_json(vocabulary, starts, mask_id)
    else:
        source = _of_model(vocabulary, extra_ids, starts, mask_id)
        (directory / "spiece.model").write_bytes(content_of(vocabulary))
    tokenizer = source.tokenizer
    name_of = {number: name for name, number in source.special.items()}
    if tokenizer is not None:
        if starts:
            before = [0] if begin_id is None else [0, begin_id]
            begins = {name_of.get(number) or PieceTable(source.vocabulary).name(number): number for number in before}
            tokenizer.post_processor = template(begins, [*begins], [])
        gaps = sentinels_of(source.vocabulary) if mask_id is None else [(str(name_of[mask_id]), mask_id)] * 2
        check_written(
            trained or source.vocabulary,
            lambda text: tokenizer.encode(text, add_special_tokens=False).ids,
            [] if starts else gaps,
            vocabulary,
        )
        tokenizer.save(str(directory / "tokenizer.json"), pretty=False)
    roles = _roles(source, name_of, starts, mask_id)
    tokenizer_config = _tokenizer_config(source, name_of, roles, extra_ids, length)
    for name, content in (("tokenizer_config", tokenizer_config), ("special_tokens_map", roles)):
        (directory / f"{name}.json").write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n")


def _of_bytes(extra_ids: int, starts: bool) -> _Source:
    """Returns the vocabulary of bytes.

    Its sentinels count down from the last id in seqio and up in transformers: their ids are written out. Without extra
    ids they are the ids of bytes that no text has, 258 to 248.
    """
    from limba.data.vocabulary.load import load_vocabulary
    from limba.data.vocabulary.sentinels import BYTE_SENTINELS
    from limba.data.vocabulary.tokenizer_json import of_bytes
    from limba.data.vocabulary.vocabularies import SPECIALS

    num_sentinels = extra_ids or (0 if starts else BYTE_SENTINELS)
    special = {name: number for number, name in enumerate(SPECIALS)}
    special |= {f"<extra_id_{i}>": LAST_BYTE + extra_ids - i for i in range(num_sentinels)}
    tokenizer = of_bytes(special) if starts else None  # ByT5Tokenizer ends texts and cannot begin them
    return _Source(load_vocabulary("byte", extra_ids), 0, 1, 2, special, tokenizer)


def _of_json(path: str, starts: bool, mask_id: int | None) -> _Source:
    from limba.data.vocabulary.load import load_vocabulary
    from limba.data.vocabulary.piece_table import PieceTable
    from limba.data.vocabulary.tokenizer_json import around, of_tokenizer

    read: Any = load_vocabulary(path)
    table = PieceTable(read)
    gaps = [table.name(number) for number in table.sentinels]
    if mask_id is not None:
        gaps.append(table.name(mask_id))
    tokenizer = of_tokenizer(read.tokenizer, gaps)
    ids = (0, read.eos_id, _unknown_of(read))
    names = [str(tokenizer.id_to_token(number)) for number in ids]
    if not starts:
        tokenizer.post_processor = around(tokenizer.get_vocab(), names[1], mask_id is not None)
    return _Source(read, *ids, dict(zip(names, ids, strict=True)) | _added_special(tokenizer), tokenizer)


def _of_model(path: str, extra_ids: int, starts: bool, mask_id: int | None) -> _Source:
    from limba.data.vocabulary.load import load_vocabulary
    from limba.data.vocabulary.tokenizer_json import of_model

    read: Any = load_vocabulary(path, extra_ids)
    tokenizer = of_model(path, extra_ids, starts, mask_id is not None, mask_id)
    return _Source(read, 0, read.eos_id, _unknown_of(read), _added_special(tokenizer), tokenizer)


def _unknown_of(vocabulary: Any) -> int:
    return vocabulary.eos_id if vocabulary.unk_id is None else vocabulary.unk_id


def _added_special(tokenizer: Any) -> dict[str, int]:
    added = tokenizer.get_added_tokens_decoder()
    return {token.content: number for number, token in added.items() if token.special}


def _roles(source: _Source, name_of: Mapping[int, str], starts: bool, mask_id: int | None) -> Json:
    """Returns special_tokens_map.json: role -> token."""
    roles = {
        "pad_token": name_of[source.padding],
        "eos_token": name_of[source.end],
        "unk_token": name_of[source.unknown],
    }
    if starts:
        roles["bos_token"] = name_of[source.padding]
    if mask_id is not None:
        roles |= {"mask_token": name_of[mask_id], "sep_token": name_of[source.end]}
        begins_with = next((name for name in ("<cls>", "[CLS]") if name in source.special), None)
        if begins_with is not None:
            roles["cls_token"] = begins_with
    return roles


def _tokenizer_config(
    source: _Source, name_of: Mapping[int, str], roles: Json, extra_ids: int, length: int | None
) -> Json:
    from limba.data.vocabulary.sentinels import SENTINEL

    special = source.special
    sentinels = sorted((name for name in special if SENTINEL.fullmatch(name)), key=special.__getitem__)
    if source.tokenizer is None:
        tokenizer_config: Json = {"tokenizer_class": "ByT5Tokenizer", "extra_ids": extra_ids}
    else:
        tokenizer_config = {"tokenizer_class": "PreTrainedTokenizerFast"}
    return tokenizer_config | {
        **roles,
        "additional_special_tokens": sentinels,
        "added_tokens_decoder": {str(n): _token(name, source.tokenizer) for n, name in sorted(name_of.items())},
        "clean_up_tokenization_spaces": False,
        "model_input_names": ["input_ids", "attention_mask"],  # 4.57's other class gives token_type_ids too
        "model_max_length": length or UNKNOWN_LENGTH,
    }


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
