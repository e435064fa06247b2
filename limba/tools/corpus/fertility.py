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
    pieces = PieceTable(vocabulary)
    is_byte = pieces.is_byte
    counts = Fertility()
    for document in documents:
        text = document.decode()
        ids = pieces.encode(document)
        num_unknown = int((ids == vocabulary.unk_id).sum())
        num_in_bytes = int(is_byte[ids].sum())
        counts.documents += 1
        counts.words += len(text.split())
        counts.letters += len(text)
        counts.bytes += len(document)
        counts.tokens += len(ids)
        counts.unknown += num_unknown
        counts.in_bytes += num_in_bytes
        if num_unknown or num_in_bytes:
            counts.letters_without_piece.update(_letters_without_piece(text, vocabulary))
    return counts


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
            counts = fertility(documents, vocabulary)
            figures[text, name] = counts
            table.add_row(
                text,
                name,
                f"{vocabulary.vocab_size:,}",
                f"{counts.bytes:,}",
                f"{counts.tokens_per_word:.3f}",
                f"{counts.bytes_per_token:.3f}",
                f"{counts.unknown_share:.3%}",
                f"{counts.in_bytes_share:.3%}",
            )
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
        corpus = Texts(source_of_files(pattern, column))
        texts[name] = corpus.in_columns(corpus.sample("train", REPORT_BYTES)[0])
    paths = [path, *parse_vocabularies(vocabularies)]
    names = [path.rpartition("/")[2] for path in paths]
    if len(set(names)) < len(names):  # two files of one name
        names = paths
    opened = {name: PieceTable.at(path).vocabulary for name, path in zip(names, paths, strict=True)}
    return fertility_table(texts, opened)


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
