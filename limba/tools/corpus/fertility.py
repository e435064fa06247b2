"""Measures how vocabularies fit text: tokens per word, bytes per token, unknown letters."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import rich.box
import rich.table

from limba.api import PieceTable, Texts, Vocabulary, source_of_files
from limba.config import InputError

REPORT_BYTES = 2_000_000  # bytes of each text


@dataclass
class Fertility:
    """Counts over some documents under one vocabulary, and the ratios that follow from them."""

    documents: int = 0
    words: int = 0  # between white space
    letters: int = 0
    bytes: int = 0  # of UTF-8
    tokens: int = 0
    unknown: int = 0  # tokens whose text is lost
    in_bytes: int = 0  # tokens that are single bytes of a letter without a piece
    letters_without_piece: Counter[str] = field(default_factory=Counter)  # lost, or spelled in bytes

    @property
    def tokens_per_word(self) -> float:
        return self.tokens / max(self.words, 1)

    @property
    def bytes_per_token(self) -> float:
        return self.bytes / max(self.tokens, 1)

    @property
    def tokens_per_byte(self) -> float:
        return self.tokens / max(self.bytes, 1)

    @property
    def unknown_share(self) -> float:
        return self.unknown / max(self.tokens, 1)

    @property
    def in_bytes_share(self) -> float:
        return self.in_bytes / max(self.tokens, 1)


def fertility(documents: Iterable[bytes], vocabulary: Vocabulary) -> Fertility:
    """Returns the counts of these UTF-8 documents under the vocabulary."""
    pieces, found = PieceTable(vocabulary), Fertility()
    byte_ids = pieces.is_byte
    for document in documents:
        text, ids = document.decode(), pieces.encode(document)
        found.documents += 1
        found.words += len(text.split())
        found.letters += len(text)
        found.bytes += len(document)
        found.tokens += len(ids)
        unknown, in_bytes = int((ids == vocabulary.unk_id).sum()), int(byte_ids[ids].sum())
        found.unknown += unknown
        found.in_bytes += in_bytes
        if unknown or in_bytes:
            found.letters_without_piece.update(_letters_without_piece(text, vocabulary))
    return found


def _letters_without_piece(text: str, vocabulary: Vocabulary) -> Iterable[str]:
    if PieceTable(vocabulary).kind != "sentencepiece":
        return
    pieces = cast(Any, vocabulary).tokenizer
    for piece in pieces.EncodeAsProto(text).pieces:
        # Only the last byte of a letter has a surface, which is the letter.
        if piece.id == vocabulary.unk_id or (pieces.IsByte(piece.id) and piece.surface):
            yield from piece.surface


def fertility_table(
    texts: Mapping[str, Sequence[bytes]], vocabularies: Mapping[str, Vocabulary]
) -> tuple[rich.table.Table, dict[tuple[str, str], Fertility]]:
    """Returns a table of each text under each vocabulary, and its figures by (text, vocabulary)."""
    table = rich.table.Table(box=rich.box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    for name in ("text", "vocabulary"):
        table.add_column(name, overflow="fold")
    for name in ("ids", "bytes", "tokens\nper word", "bytes\nper token", "unknown", "single\nbytes"):
        table.add_column(name, justify="right", no_wrap=True)
    figures = {}
    for text, documents in texts.items():
        for name, vocabulary in vocabularies.items():
            found = figures[text, name] = fertility(documents, vocabulary)
            shares = f"{found.unknown_share:.3%}", f"{found.in_bytes_share:.3%}"
            per = f"{found.tokens_per_word:.3f}", f"{found.bytes_per_token:.3f}"
            table.add_row(text, name, f"{vocabulary.vocab_size:,}", f"{found.bytes:,}", *per, *shares)
    return table, figures


def check_compared(files: str | None, vocabularies: str | None, column: str | Mapping[str, str] = "text") -> None:
    """Loads the vocabularies and reads the first row of each text, before `compare` needs them; InputError."""
    for path in parse_vocabularies(vocabularies):
        PieceTable.at(path)
    for pattern in parse_files(files).values():
        Texts(source_of_files(pattern, column)).check_not_empty("train")


def compare(
    path: str,
    validation: Sequence[bytes],
    files: str | None,
    vocabularies: str | None,
    column: str | Mapping[str, str] = "text",
) -> tuple[rich.table.Table, dict[tuple[str, str], Fertility]]:
    """Returns a table of the vocabulary at `path` and others on several texts, and its figures.

    The figures are by (text, file name of the vocabulary). `files` is 'ro=a.jsonl,fr=b.txt', each a name and a path
    or pattern; `vocabularies` is paths separated by commas. Raises InputError for files that do not exist.
    """
    texts = {"unseen": list(validation)} if validation else {}
    for name, pattern in parse_files(files).items():
        found = Texts(source_of_files(pattern, column))
        texts[name] = found.in_columns(found.sample("train", REPORT_BYTES)[0])
    paths = [path, *parse_vocabularies(vocabularies)]
    names = [path.rpartition("/")[2] for path in paths]
    if len(set(names)) < len(names):
        names = paths
    return fertility_table(
        texts, {name: PieceTable.at(path).vocabulary for name, path in zip(names, paths, strict=True)}
    )


def parse_files(files: str | None) -> dict[str, str]:
    """Returns {name: pattern} of text such as 'ro=a.jsonl,fr=b.txt'; InputError for any other text.

    >>> parse_files("ro=a.jsonl, fr=b.txt")
    {'ro': 'a.jsonl', 'fr': 'b.txt'}
    """
    pairs = [part.partition("=") for part in (files or "").split(",") if part.strip()]
    for name, _, pattern in pairs:
        if not name.strip() or not pattern.strip():
            raise InputError(
                f"The texts to compare on have {name!r} without a name or a path; write ro=a.jsonl,fr=b.txt."
            )
    return {name.strip(): pattern.strip() for name, _, pattern in pairs}


def parse_vocabularies(vocabularies: str | None) -> list[str]:
    """Returns the paths in text that separates them by commas, each once."""
    return list(dict.fromkeys(part.strip() for part in (vocabularies or "").split(",") if part.strip()))
