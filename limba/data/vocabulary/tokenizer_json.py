"""`tokenizer.json` for Hugging Face's `tokenizers`, written from a SentencePiece model without that library."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from typing import Any

from limba.config import InputError
from limba.data.vocabulary.load import NUM_SENTINELS, SENTINEL, SPACE, read_model
from limba.data.vocabulary.tokenizers import byte_of_letter


def tokenizer_json(model_path: str, extra_ids: int = NUM_SENTINELS, starts: bool = False, encodes: bool = False) -> str:
    """Returns the text of a tokenizer.json that gives the ids of the SentencePiece unigram model at `model_path`.

    It appends the end of sequence, as T5 needs it; with `encodes`, for an encoder, it also puts <cls> before a text
    where the model has that; with `starts` it puts padding there, and no end, as Limba's language models need it.
    `extra_ids` sentinels follow the pieces unless the model has its own. Two differences to SentencePiece are
    known: several combining marks on a letter, if they are not in Unicode's canonical order or not composed (NFD),
    and the literal text of a special token (`</s>`, `<extra_id_0>`), which becomes that token. Raises InputError
    for a model that does not exist or is not a unigram model.
    """
    model = read_model(model_path)
    kinds = model.SentencePiece
    if model.trainer_spec.model_type != model.trainer_spec.UNIGRAM:
        raise InputError(f"The vocabulary {model_path} is not a unigram model, which tokenizer.json needs; give one.")
    vocabulary, added = [], []
    for number, piece in enumerate(model.pieces):
        sentinel = SENTINEL.fullmatch(piece.piece)
        text = f"<extra_id_{sentinel[1]}>" if sentinel else piece.piece
        vocabulary.append([text, piece.score])
        if sentinel or piece.type in (kinds.CONTROL, kinds.UNKNOWN):
            added.append(special_token(number, text))
    if not any(SENTINEL.fullmatch(piece.piece) for piece in model.pieces):
        for sentinel in reversed(range(extra_ids)):
            added.append(special_token(len(vocabulary), f"<extra_id_{sentinel}>"))
            vocabulary.append([f"<extra_id_{sentinel}>", 0.0])
    ids = {piece.piece: number for number, piece in enumerate(model.pieces)}
    end = ids.get(model.trainer_spec.eos_piece)
    if end is None:
        raise InputError(f"The vocabulary {model_path} has no end of sequence; train one with eos_id=1.")
    content = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": {"type": "Sequence", "normalizers": _normalizers(model)},
        "pre_tokenizer": _pre_tokenizer(model.normalizer_spec.add_dummy_prefix),
        "post_processor": start(model.pieces[0].piece) if starts else around(ids, model.pieces[end].piece, encodes),
        "decoder": _decoder(),
        "model": {
            "type": "Unigram",
            "unk_id": next(i for i, piece in enumerate(model.pieces) if piece.type == kinds.UNKNOWN),
            "vocab": vocabulary,
            "byte_fallback": any(piece.type == kinds.BYTE for piece in model.pieces),
        },
    }
    return json.dumps(content, ensure_ascii=False)


def special_token(number: int, text: str) -> dict[str, object]:
    sides = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {"id": number, "content": text, **sides, "special": True}


def _replace(pattern: str, content: str) -> dict[str, Any]:
    return {"type": "Replace", "pattern": {"Regex": pattern}, "content": content}


def _normalizers(model: Any) -> list[dict[str, Any]]:
    import sentencepiece

    spec, steps = model.normalizer_spec, []
    if spec.precompiled_charsmap:
        normalizer = sentencepiece.SentencePieceProcessor()
        normalizer.LoadFromSerializedProto(model.SerializeToString())
        if normalizer.Normalize("\u2460").endswith("1"):  # a circled digit: the rules include NFKC
            # `tokenizers` applies rules to whole graphemes of less than 6 bytes, else to single characters. After
            # NFKC a grapheme is a single character if one exists, and the rules' own NFKC changes nothing more.
            steps.append({"type": "NFKC"})
        rules = base64.b64encode(spec.precompiled_charsmap).decode()
        steps.append({"type": "Precompiled", "precompiled_charsmap": rules})
    if spec.remove_extra_whitespaces:
        # Only spaces: the library's own Strip would remove line ends too.
        steps += [_replace(r"\A +| +\z", ""), _replace(" {2,}", " ")]
    return steps


def _pre_tokenizer(starts_with_space: bool) -> dict[str, Any]:
    scheme = "always" if starts_with_space else "never"
    spaces = {"type": "Metaspace", "replacement": SPACE, "prepend_scheme": scheme, "split": False}
    # The names of byte pieces are plain text where a text has them: cut in two they match no piece.
    names = {"type": "Split", "pattern": {"Regex": "<(?=0x[0-9A-F]{2}>)"}, "behavior": "MergedWithPrevious"}
    return {"type": "Sequence", "pretokenizers": [spaces, {**names, "invert": False}]}


def around(ids: Mapping[str, int], end: str, encodes: bool) -> dict[str, Any]:
    """Returns the post-processor that appends this token to each text; if it `encodes`, <cls> or [CLS] come before."""
    begin = [name for name in ("<cls>", "[CLS]") if encodes and name in ids][:1]
    special = {name: {"SpecialToken": {"id": name, "type_id": 0}} for name in (*begin, end)}
    before, after = [special[name] for name in begin], special[end]
    first, second = ({"Sequence": {"id": name, "type_id": 0}} for name in "AB")
    return {
        "type": "TemplateProcessing",
        "single": [*before, first, after],
        "pair": [*before, first, after, second, after],
        "special_tokens": {name: {"id": name, "ids": [ids[name]], "tokens": [name]} for name in special},
    }


def start(text: str) -> dict[str, Any]:
    """Returns the post-processor that puts padding, id 0, before each text: a decoder's first input."""
    start = {"SpecialToken": {"id": text, "type_id": 0}}
    first, second = ({"Sequence": {"id": name, "type_id": 0}} for name in "AB")
    return {
        "type": "TemplateProcessing",
        "single": [start, first],
        "pair": [start, first, second],
        "special_tokens": {text: {"id": text, "ids": [0], "tokens": [text]}},
    }


def _decoder() -> dict[str, Any]:
    steps = [
        {"type": "Replace", "pattern": {"String": SPACE}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
        {"type": "Strip", "content": " ", "start": 1, "stop": 0},
    ]
    return {"type": "Sequence", "decoders": steps}


def byte_tokenizer_json(special: Mapping[str, int], first: int = 3) -> str:
    """Returns the text of a tokenizer.json of UTF-8's bytes: byte b is id b + `first`, as in ByT5.

    It puts padding before a text and nothing after it; transformers' ByT5Tokenizer appends an end of sequence.
    `special` are the other tokens, with padding at 0; their literal text becomes that token.
    """
    letters = {letter: first + byte for letter, byte in byte_of_letter().items()}
    spaces = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    content = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            special_token(number, text) for text, number in sorted(special.items(), key=lambda item: item[1])
        ],
        "normalizer": None,
        "pre_tokenizer": spaces,
        "post_processor": start(next(text for text, number in special.items() if number == 0)),
        "decoder": spaces,
        "model": {"type": "BPE", "vocab": {**special, **letters}, "merges": []},
    }
    return json.dumps(content, ensure_ascii=False)
