"""Measures how vocabularies fit text: tokens per word, bytes per token, unknown letters."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import rich.box
import rich.table
import seqio

from limba.data.vocabulary.load import encoder, is_byte_piece


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


def fertility(documents: Iterable[bytes], vocabulary: seqio.Vocabulary) -> Fertility:
    """Returns the counts of these UTF-8 documents under the vocabulary."""
    encode, found = encoder(vocabulary), Fertility()
    byte_ids = is_byte_piece(vocabulary)
    for document in documents:
        text, ids = document.decode(), encode(document)
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


def _letters_without_piece(text: str, vocabulary: seqio.Vocabulary) -> Iterable[str]:
    if not isinstance(vocabulary, seqio.SentencePieceVocabulary):
        return
    pieces = vocabulary.tokenizer
    for piece in pieces.EncodeAsProto(text).pieces:
        # Only the last byte of a letter has a surface, which is the letter.
        if piece.id == vocabulary.unk_id or (pieces.IsByte(piece.id) and piece.surface):
            yield from piece.surface


def fertility_table(
    texts: Mapping[str, Sequence[bytes]], vocabularies: Mapping[str, seqio.Vocabulary]
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
