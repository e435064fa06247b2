"""A sample of a task's text: what it is made of, what a vocabulary makes of it, and one example with its gaps."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from limba.api import PieceTable, RunData, find_tool
from limba.config import RunConfig
from limba.config.errors import Open
from limba.tools.preflight.checks.verdict import Data, Line

SAMPLE_BYTES = 1_500_000
LOST, UNUSABLE = 0.001, 0.05  # shares of the letters that a vocabulary cannot spell: a warning, an error
REPEATED = 0.02  # share of repeated documents
SPOILED = 0.01  # share of documents with traces of a wrong encoding
IN_BYTES = 0.05  # share of tokens that are single bytes
OTHER = ("DataConfig.vocabulary", Open("of this text"))
ROUND_TRIPS = 100  # documents that are encoded and decoded again
EXAMPLE_LETTERS = 300
# UTF-8 that was read as Latin-1 or Windows-1252, and written as UTF-8 again: ă is then Äƒ, é Ã©.
DOUBLE_ENCODED = re.compile("[ÃÄÅÂ][\u0080-\u00bf\u0192\u0160-\u0178\u02c6\u02dc\u2013-\u2122]")


def sampled(config: RunConfig, part: Any) -> Any:
    """Returns what the corpus tool finds in a sample of a task's text; None without the tool.

    InputError if the text cannot be read.
    """
    if (inspection := find_tool("sample")) is None:
        return None
    given, length = config.data.task_feature_lengths, config.data.sequence_length
    return inspection.inspect_task(
        part, config.data.train_split, length or given["inputs"], SAMPLE_BYTES, config.data.seed, length is not None
    )


def of_documents(found: Any, data: Data) -> Iterator[Line]:
    """Yields what the sample's documents are: their number, sizes, encoding and repetitions."""
    said = found.figures()
    sizes = np.array([len(text) for text in found.documents])
    columns = ", ".join(found.columns)
    data |= {
        "columns": list(found.columns),
        "documents": len(found.documents),
        "bytes_per_document": float(sizes.mean()),
        "tokens_per_document": float(found.document_tokens.mean()),
        "tokens_per_byte": found.fertility.tokens_per_byte,
    }
    yield Line("ok", f"Column {columns}; a sample of {said['sample']}.")
    spread = f"median {np.median(sizes):,.0f}, mean {sizes.mean():,.0f}, longest {sizes.max():,}"
    tokens = "; ".join(f"{name}: {text}" for name, text in said.items() if name.startswith("tokens "))
    yield Line("ok", f"Bytes per document: {spread}; {tokens}.")
    yield from _encoding(found.documents, data)
    repeated = repeated_share(found.documents)
    data["repeated_share"] = repeated
    if repeated >= REPEATED and len(found.columns) == 1:
        text = f"{repeated:.1%} of the sampled documents are repetitions of others, but for spaces and capitals"
        yield Line("warning", f"{text}: the model learns them by heart.", "remove them from the corpus")
    else:
        yield Line("ok", f"Repeated documents in the sample: {repeated:.2%}.")


def _encoding(documents: Sequence[bytes], data: Data) -> Iterator[Line]:
    texts = [document.decode() for document in documents]
    replaced = sum("\ufffd" in text for text in texts) / len(texts)
    double = sum(len(DOUBLE_ENCODED.findall(text)) * 100 > len(text) for text in texts) / len(texts)
    data["spoiled_share"] = replaced + double
    for share, what in ((replaced, "hold U+FFFD, which a reader puts in the place of bytes that it cannot decode"),
                        (double, "look like UTF-8 that was read in another encoding (Ã© for é)")):  # fmt: skip
        if share > SPOILED:
            yield Line(
                "warning", f"{share:.1%} of the sampled documents {what}.", "convert the original files to UTF-8"
            )
    if max(replaced, double) <= SPOILED:
        yield Line("ok", "Decoding: UTF-8 throughout.")


def repeated_share(documents: Sequence[bytes]) -> float:
    """Returns the share of documents that are like an earlier one, but for spaces and capitals.

    >>> repeated_share([b"One text.", b"one  text. "])
    0.5
    """
    seen = {hashlib.blake2b(b" ".join(text.lower().split()), digest_size=8).digest() for text in documents}
    return 1 - len(seen) / len(documents)


def of_pieces(found: Any, data: Data) -> Iterator[Line]:
    """Yields what the vocabulary loses of the sample's text, and changes in it."""
    counted = found.fertility
    letters = sum(counted.letters_without_piece.values())
    lost = letters / max(counted.letters, 1) if counted.unknown and not counted.in_bytes else 0.0
    if PieceTable(found.vocabulary).kind != "sentencepiece":
        lost = counted.unknown / max(counted.letters, 1)
    data |= {"unknown_share": counted.unknown_share, "unspelled_share": lost, "in_bytes_share": counted.in_bytes_share}
    commonest = ", ".join(f"{letter} U+{ord(letter):04X}" for letter, _ in counted.letters_without_piece.most_common(8))
    if lost >= LOST:
        text = f"The vocabulary cannot spell {lost:.2%} of the text's letters ({commonest}): they are lost as <unk>"
        level = "error" if lost >= UNUSABLE else "warning"
        yield Line(
            level,
            f"{text}, {counted.unknown_share:.2%} of the tokens.",
            OTHER,
        )
    else:
        text = f"Unknown pieces: {counted.unknown_share:.4%} of the tokens; {lost:.4%} of the letters cannot be spelled"
        yield Line("ok", f"{text}{f' ({commonest})' if lost else ''}.")
    if counted.in_bytes_share >= IN_BYTES:
        text = f"{counted.in_bytes_share:.1%} of the tokens are single bytes of letters without a piece ({commonest})"
        yield Line("warning", f"{text}: rows hold less text.", OTHER)
    yield from _round_trip(found, data)


def _round_trip(found: Any, data: Data) -> Iterator[Line]:
    """Yields how many documents come back changed, and shows the first change."""
    encode, changed, example = PieceTable(found.vocabulary).encode, 0, ""
    texts = [" ".join(document.decode().split()) for document in found.documents[:ROUND_TRIPS]]
    for text in texts:
        back = " ".join(str(found.vocabulary.decode(encode(text.encode()).tolist())).split())
        if back != text:
            changed += 1
            example = example or _difference(text, back)
    data["changed_share"] = changed / len(texts)
    if changed:
        text = f"{changed} of {len(texts)} documents come back from the vocabulary with other letters: {example}"
        yield Line("ok", f"{text}; a model writes them so.")
    else:
        yield Line("ok", f"{len(texts)} documents come back from the vocabulary as they were, but for spaces.")


def _difference(text: str, back: str) -> str:
    place = next((i for i, pair in enumerate(zip(text, back, strict=False)) if pair[0] != pair[1]), len(back))
    return f"{text[max(place - 8, 0) : place + 8]!r} as {back[max(place - 8, 0) : place + 8]!r}"


def of_example(config: RunConfig, part: Any, found: Any, data: Data) -> Iterator[Line]:
    """Yields one example as the model reads it, and joined again."""
    if not found.examples:
        yield Line("error", "The preprocessors make no example of the sampled documents.", "give more text")
        return
    row, words, pieces = found.examples[0], found.vocabulary, PieceTable(found.vocabulary)
    is_pair = not RunData(config.data, part).fills_gaps
    if is_pair or "inputs" not in row or not pieces.num_sentinels:
        shown = [f"{name}: {_cut(str(words.decode(_ids(ids))))}" for name, ids in row.items()]
        yield Line("ok", "An example:\n" + "\n".join(shown))
        return
    inputs, targets = (pieces.masked(row[name].tolist()) for name in ("inputs", "targets"))
    joined = joined_tokens(row, set(pieces.sentinels), pieces.eos_id)
    data["example"] = {"inputs": inputs, "targets": targets}
    stream = np.concatenate([pieces.encode(text) for text in found.documents[:64]])
    shown = f"An example:\ninputs: {_cut(inputs)}\ntargets: {_cut(targets)}\njoined: {_cut(str(words.decode(joined)))}"
    if contains(stream, np.array(joined)):
        yield Line("ok", f"{shown}\nJoined again it is the text, token by token.")
    else:
        yield Line(
            "ok", f"{shown}\nThe objective, or its order of documents, is one whose rows are not one text in a row."
        )


def _ids(ids: np.ndarray) -> list[int]:
    return [number for number in ids.tolist() if number > 0]


def _cut(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= EXAMPLE_LETTERS else f"{text[:EXAMPLE_LETTERS]} …"


def joined_tokens(row: Mapping[str, np.ndarray], sentinels: set[int], eos: int) -> list[int]:
    """Returns the inputs with each sentinel replaced by its span of the targets.

    >>> row = {"inputs": np.array([5, 99, 6, 98, 1]), "targets": np.array([99, 7, 8, 98, 9, 1])}
    >>> joined_tokens(row, {98, 99}, 1)
    [5, 7, 8, 6, 9]
    """
    spans: dict[int, list[int]] = {}
    current: list[int] = []
    for token in row["targets"].tolist():
        if token in sentinels:
            current = spans.setdefault(token, [])
        elif token not in (0, eos):
            current.append(token)
    joined = []
    for token in row["inputs"].tolist():
        joined += spans.get(token, []) if token in sentinels else [token] if token not in (0, eos) else []
    return joined


def contains(stream: np.ndarray, part: np.ndarray) -> bool:
    """Returns whether the part occurs in the stream, without a gap."""
    if not len(part) or len(part) > len(stream):
        return False
    starts = np.nonzero(stream[: len(stream) - len(part) + 1] == part[0])[0]
    return any(np.array_equal(stream[start : start + len(part)], part) for start in starts)
