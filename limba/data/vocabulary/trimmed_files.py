"""The files of a vocabulary with fewer ids: SentencePiece's model, tokenizer.json, and the files beside them.

The ids that stay keep their order; the new number of an id is its index among them. Nothing else in a file changes:
normalizer, pre-tokenizer, scores and the order of merges stay as they are.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from limba.config import InputError
from limba.data.vocabulary.files import content
from limba.data.vocabulary.published_files import read_json
from limba.data.vocabulary.sentinels import SENTINEL
from limba.data.vocabulary.vocabularies import parse_model

Json = dict[str, Any]
MODELS = ("spiece.model", "sentencepiece.bpe.model", "tokenizer.model")
# Keys whose value is one id, or several, end so; the other two are keys of generation_config.json.
_OF_IDS = "_token_id"
_LISTS = ("suppress_tokens", "begin_suppress_tokens")
_LISTS_OF_LISTS = ("bad_words_ids",)


@dataclass(frozen=True)
class Kept:
    """The ids that stay, in ascending order, and the name of each old id that has one."""

    ids: Sequence[int]
    names: Mapping[int, str]

    @cached_property
    def new(self) -> dict[int, int]:
        """Each old id's new number."""
        return {old: new for new, old in enumerate(self.ids)}

    @cached_property
    def pieces(self) -> frozenset[str]:
        """The names of the ids that stay."""
        return frozenset(self.names[number] for number in self.ids if number in self.names)

    def num_rows(self, before: int) -> int:
        """Returns how many rows are left of a matrix that had `before`; ids beyond it had none."""
        return sum(number < before for number in self.ids)


def sentencepiece_model(data: bytes, kept: Kept) -> bytes:
    """Returns a SentencePiece model with the pieces that stay: all bytes, sentinels and special tokens do."""
    model = parse_model(data)
    kinds = model.SentencePiece
    pieces = []
    new_ids: dict[int, int] = {}
    for number, piece in enumerate(model.pieces):
        is_of_text = piece.type == kinds.NORMAL and not SENTINEL.fullmatch(piece.piece)
        if is_of_text and piece.piece not in kept.pieces:
            continue
        new_ids[number] = len(pieces)
        pieces.append(piece)
    made = type(model)()
    made.CopyFrom(model)
    del made.pieces[:]
    made.pieces.extend(pieces)
    made.trainer_spec.vocab_size = len(pieces)
    for field in ("unk_id", "bos_id", "eos_id", "pad_id"):
        number = getattr(made.trainer_spec, field)
        if number >= 0:  # -1: there is none
            setattr(made.trainer_spec, field, new_ids.get(number, number))
    # A model may hold texts by which SentencePiece tests itself when it opens the file; they are of the old pieces.
    made.DiscardUnknownFields()
    return made.SerializeToString()


def tokenizer_state(state: Json, kept: Kept) -> Json:
    """Returns what a tokenizer.json holds with the ids that stay; InputError for a kind of model that is not known."""
    made = copy.deepcopy(state)
    model = made["model"]
    kind = model.get("type") or ("Unigram" if isinstance(model.get("vocab"), list) else "BPE")
    if kind == "Unigram":
        model["vocab"] = [row for number, row in enumerate(model["vocab"]) if number in kept.new]
        if model.get("unk_id") is not None:
            model["unk_id"] = kept.new[model["unk_id"]]
    elif kind in ("BPE", "WordPiece", "WordLevel"):
        model["vocab"] = _renumbered(model["vocab"], kept)
    else:
        raise InputError(f"tokenizer.json holds a model of type {kind}; only Unigram, BPE and WordPiece are trimmed.")
    if kind == "BPE":
        model["merges"] = [merge for merge in model["merges"] if _is_possible(merge, model["vocab"])]
    # An added token may be gone: to transformers' class it was an ordinary piece, or nothing.
    added = [token for token in made.get("added_tokens") or () if token["id"] in kept.new]
    made["added_tokens"] = [{**token, "id": kept.new[token["id"]]} for token in added]
    if made.get("padding"):
        made["padding"]["pad_id"] = kept.new.get(made["padding"]["pad_id"], 0)
    _renumber_processor(made.get("post_processor"), kept)
    return made


def _renumbered(vocabulary: Mapping[str, int], kept: Kept) -> dict[str, int]:
    pairs = sorted(vocabulary.items(), key=lambda pair: pair[1])
    return {name: kept.new[number] for name, number in pairs if number in kept.new}


def _is_possible(merge: str | Sequence[str], vocabulary: Mapping[str, int]) -> bool:
    """Returns whether both pieces of a merge stay, and the piece that they make."""
    left, right = merge.split(" ") if isinstance(merge, str) else merge
    return left in vocabulary and right in vocabulary and left + right in vocabulary


def _renumber_processor(processor: Json | None, kept: Kept) -> None:
    """Changes the ids of the tokens that a post-processor puts around a text."""
    if not processor:
        return
    for inner in processor.get("processors") or ():
        _renumber_processor(inner, kept)
    for token in (processor.get("special_tokens") or {}).values():  # of a template
        token["ids"] = [kept.new[number] for number in token["ids"]]
    for role in ("sep", "cls"):  # of BERT's and RoBERTa's
        if isinstance(processor.get(role), list):
            name, number = processor[role]
            processor[role] = [name, kept.new[number]]


def with_new_ids(content: Json, kept: Kept, defaults: Mapping[str, int] | None = None) -> Json:
    """Returns a config.json's or generation_config.json's content with the new number of each id that it names.

    `defaults` are ids of its class that the file does not name, and now has to. An id that is gone keeps its number as
    a single value, and is left out of a list.
    """

    def one(number: Any) -> Any:
        is_id = isinstance(number, int) and not isinstance(number, bool)
        return kept.new.get(number, number) if is_id else number

    def several(numbers: Sequence[Any]) -> list[Any]:
        return [kept.new[number] for number in numbers if number in kept.new]

    whole = dict(content)
    for key, number in (defaults or {}).items():
        if key not in content and number in kept.new:
            whole[key] = number
    made: Json = {}
    for key, value in whole.items():
        if key.endswith(_OF_IDS):
            made[key] = [one(number) for number in value] if isinstance(value, list) else one(value)
        elif key in _LISTS and isinstance(value, list):
            made[key] = several(value)
        elif key in _LISTS_OF_LISTS and isinstance(value, list):
            lists = [several(numbers) for numbers in value if set(numbers) <= kept.new.keys()]
            made[key] = lists or None
        else:
            made[key] = value
    return made


def write_tokenizer_files(folder: Path, out: Path, kept: Kept) -> list[str]:
    """Writes the files of a folder that hold ids or pieces, with those that stay; returns their names."""
    makers: Mapping[str, Callable[[Path], bytes]] = {
        **dict.fromkeys(MODELS, lambda file: sentencepiece_model(content(str(file)), kept)),
        "tokenizer.json": lambda file: _json(tokenizer_state(_object(file), kept)),
        "tokenizer_config.json": lambda file: _json(_tokenizer_config(_object(file), kept)),
        "added_tokens.json": lambda file: _json(_renumbered(_object(file), kept)),
        "vocab.json": lambda file: _json(_renumbered(_object(file), kept)),
        "vocab.txt": lambda file: _lines_of_ids(file, kept),
        "merges.txt": lambda file: _lines_of_merges(file, kept),
    }
    written = []
    for name, make in makers.items():
        if (folder / name).is_file():
            (out / name).write_bytes(make(folder / name))
            written.append(name)
    return written


def _tokenizer_config(tokenizer_config: Json, kept: Kept) -> Json:
    """Returns tokenizer_config.json's content with new ids."""
    made = with_new_ids(tokenizer_config, kept)
    added = made.get("added_tokens_decoder")
    if not isinstance(added, dict):
        return made
    new_added: Json = {}
    for number, token in added.items():
        new = kept.new.get(int(number))
        if new is not None:
            new_added[str(new)] = token
    made["added_tokens_decoder"] = new_added
    return made


def _lines_of_ids(file: Path, kept: Kept) -> bytes:
    """Returns BERT's vocab.txt, whose lines are the pieces in the order of their ids."""
    lines = content(str(file)).decode().removesuffix("\n").split("\n")  # a piece may be another end of a line
    return "".join(f"{line}\n" for number, line in enumerate(lines) if number in kept.new).encode()


def _lines_of_merges(file: Path, kept: Kept) -> bytes:
    """Returns GPT-2's merges.txt; its first line may be a comment."""
    pieces = dict.fromkeys(kept.pieces, 0)
    kept_lines = []
    for line in content(str(file)).decode().split("\n"):
        is_merge = line.count(" ") == 1
        if line.startswith("#version") or (is_merge and _is_possible(line, pieces)):
            kept_lines.append(line)
    return "".join(f"{line}\n" for line in kept_lines).encode()


def _object(file: Path) -> Json:
    from etils import epath

    content = read_json(epath.Path(file.parent), file.name)
    assert content is not None, f"{file} is there"
    return content


def _json(made: Json) -> bytes:
    return (json.dumps(made, ensure_ascii=False, indent=2) + "\n").encode()
