"""Shows the documents, pieces, examples and figures of a task, in colour on a console."""

from __future__ import annotations

import itertools
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import rich.console
import rich.text

from limba.api import Mixture, PieceTable, RunData, Task, Texts, UnitSource, Vocabulary
from limba.config import ConfigError, DataConfig, InputError
from limba.tools.corpus.fertility import Fertility, fertility

SPACE = "\u2581"  # SentencePiece's character for a space
SHOWN_LETTERS = 600  # letters shown of a document or a row; the rest is counted
EXAMPLES_COUNTED = 256  # rows that the padding is measured on
BAR_LETTERS = 40
PIECE_STYLES = ("black on bright_cyan", "black on bright_yellow")  # alternating, to show where pieces end
SENTINEL_STYLE = "bold white on magenta"
UNKNOWN_STYLE = "bold white on red"
BYTE_STYLE = "black on bright_red"


@dataclass
class Inspection:
    """A sample of a task's documents, some examples, and figures of both."""

    task_name: str
    split: str
    vocabulary: Vocabulary
    lengths: Mapping[str, int]
    documents: Sequence[bytes]  # the texts; where rows have several columns, row by row
    columns: Sequence[str]  # the names of a row's texts
    document_tokens: np.ndarray  # int [documents]
    examples: Sequence[Mapping[str, np.ndarray]]  # {"inputs": int32 [n], "targets": int32 [m]}
    fertility: Fertility

    def padding(self, feature: str) -> float:
        """Returns the share of padding in the feature, over the examples without the last, shorter one."""
        rows = self.examples[:-1] if len(self.examples) > 1 else self.examples
        if not rows:
            return 1.0
        filled = [min(len(row[feature]), self.lengths[feature]) for row in rows]
        return 1 - float(np.mean(filled)) / self.lengths[feature]

    def figures(self) -> dict[str, str]:
        """Returns the inspection's figures as text by name."""
        counts = self.fertility
        tokens = self.document_tokens.reshape(-1, len(self.columns))  # [documents, columns]
        figures = {"sample": f"{len(tokens):,} documents, {counts.bytes:,} bytes, {counts.tokens:,} tokens"}
        for column, of_column in zip(self.columns, tokens.T, strict=True):
            name = "tokens per document" if len(self.columns) == 1 else f"tokens of {column}"
            figures[name] = _spread(of_column)
        figures["tokens per byte"] = f"{counts.tokens_per_byte:.4f} ({counts.bytes_per_token:.3f} bytes per token)"
        figures["tokens per word"] = f"{counts.tokens_per_word:.3f}"
        features = self.examples[0] if self.examples else ()
        for feature in features:
            figures[f"padding of {feature}"] = f"{self.padding(feature):.2%} of {self.lengths[feature]}"
        figures["unknown pieces"] = f"{counts.unknown_share:.4%} of the tokens"
        figures["pieces of single bytes"] = f"{counts.in_bytes_share:.4%} of the tokens"
        letters = counts.letters_without_piece.most_common(10)
        commonest = ", ".join(f"{_letter_name(letter)} {count:,}" for letter, count in letters)
        figures["letters without a piece"] = commonest or "none"
        return figures


def inspect_task(
    task: Task, split: str, inputs_length: int, sample_bytes: int, seed: int = 0, is_sequence: bool = False
) -> Inspection:
    """Returns the inspection of a uniform sample of the split; `is_sequence`: the length is a decoder-only model's.

    Raises InputError for a mixture, a split or files that do not exist, and no text.
    """
    if isinstance(task, Mixture):
        names = ", ".join(part.name for part in task.tasks)
        raise InputError(f"{task.name} is a mixture; look at its tasks one by one: {names}.")
    documents = _documents(task, split, sample_bytes, seed)
    if not documents:
        name = getattr(task.source, "name", f"Task {task.name}")
        raise InputError(f"{name} holds no document in split {split!r}; give files with text in them.")
    lengths = _lengths(task, inputs_length, is_sequence)
    pieces = PieceTable(task.output_features["targets"].vocabulary)
    vocabulary = pieces.vocabulary
    encode = pieces.encode
    examples = _examples(task, split, documents, lengths, seed)
    if isinstance(task.source, UnitSource):
        documents = Texts(task.source).in_columns(documents)
    return Inspection(
        task_name=task.name,
        split=split,
        vocabulary=vocabulary,
        lengths=lengths,
        documents=documents,
        columns=task.source.keys if isinstance(task.source, UnitSource) else ("text",),
        document_tokens=np.array([len(encode(document)) for document in documents]),
        examples=examples,
        fertility=fertility(documents, vocabulary),
    )


def _lengths(task: Task, length: int, is_sequence: bool) -> dict[str, int]:
    """Returns the lengths of all features, derived from the one that is known."""
    lengths = {"targets": length} if is_sequence else {"inputs": length}
    try:
        return RunData(DataConfig(task.name, lengths, 1), task).lengths()
    except ConfigError as error:
        # The targets' length of a user-defined objective cannot be derived; the error's fix has one.
        if not is_sequence and isinstance(error.fix, tuple) and isinstance(error.fix[1], Mapping):
            return dict(error.fix[1])
        raise


def _documents(task: Task, split: str, sample_bytes: int, seed: int) -> list[bytes]:
    if isinstance(task.source, UnitSource):
        return Texts.of_task(task).sample(split, sample_bytes, seed=seed)[0]
    if split not in task.source.splits:
        raise InputError(f"Task {task.name} has no split {split!r}; it has {', '.join(task.source.splits)}.")
    documents = []
    size = 0
    data = RunData(DataConfig(task.name, {"inputs": 1}, 1), task)
    for example in data.elements(task, split):
        texts = example if isinstance(example, Mapping) else {"text": example}  # some functions give the text alone
        text = next((texts[key] for key in ("text", "targets") if isinstance(texts.get(key), bytes)), None)
        if text is None:
            raise InputError(
                f"Task {task.name} gives {', '.join(texts)} and no 'text'; set DataConfig.data_files to its files."
            )
        documents.append(text)
        size += len(text)
        if size >= sample_bytes:
            break
    return documents


def _examples(
    task: Task, split: str, documents: Sequence[bytes], lengths: Mapping[str, int], seed: int
) -> list[Mapping[str, np.ndarray]]:
    data = RunData(DataConfig(task.name, lengths, 1), task)
    return list(itertools.islice(data.examples(documents, lengths, split, seed), EXAMPLES_COUNTED))


def show(inspection: Inspection, console: rich.console.Console, num: int) -> None:
    """Prints `num` documents with their pieces, `num` examples, the figures and the histogram of lengths."""
    in_colour = console.is_terminal and not console.no_color
    encode = PieceTable(inspection.vocabulary).encode
    painter = _Painter(inspection.vocabulary, "" if in_colour else "|")
    width = len(inspection.columns)
    order = np.random.RandomState(0).permutation(len(inspection.documents) // width)[:num]
    for number, row in enumerate(order.tolist(), 1):
        for name, document in zip(
            inspection.columns, inspection.documents[row * width : (row + 1) * width], strict=True
        ):
            text = document.decode()
            ids = encode(document)
            size = f"{len(text):,} letters, {len(document):,} bytes, {len(ids):,} tokens"
            console.rule(f"document {number}{f', {name}' if width > 1 else ''}: {size}", style="green")
            console.print(_cut(rich.text.Text(text)))
            console.print(rich.text.Text("pieces ", "green") + _cut(painter.painted(ids)))
    for number, row in enumerate(inspection.examples[:num], 1):
        sizes = ", ".join(f"{name} {len(row[name])} of {inspection.lengths[name]}" for name in row)
        console.rule(f"example {number}: {sizes}", style="blue")
        for name in row:
            console.print(rich.text.Text(f"{name} ", "blue") + _cut(painter.painted(row[name]), 3 * SHOWN_LETTERS))
    console.rule(f"{inspection.task_name}, split {inspection.split}", style="yellow")
    for name, value in inspection.figures().items():
        console.print(rich.text.Text(f"{name:<24}", "yellow") + rich.text.Text(value))
    console.print(rich.text.Text("document lengths, tokens", "yellow"))
    for line in histogram(inspection.document_tokens):
        console.print(rich.text.Text(line))


def _spread(tokens: np.ndarray) -> str:
    return f"median {np.median(tokens):,.0f}, mean {tokens.mean():,.1f}, longest {tokens.max():,}"


def _letter_name(letter: str) -> str:
    shown = letter if letter.isprintable() and not unicodedata.combining(letter) else ""
    return f"{shown} U+{ord(letter):04X}".strip()


class _Painter:
    """Returns ids as coloured text: pieces in alternating colours; sentinels, unknown and single bytes in their own."""

    def __init__(self, vocabulary: Vocabulary, separator: str):
        self._vocabulary = vocabulary
        self._separator = separator  # between pieces, where there is no colour to show their ends
        self._table = PieceTable(vocabulary)
        self._is_byte = self._table.is_byte
        self._sentinels = {id: number for number, id in enumerate(self._table.sentinels)}

    def painted(self, ids: np.ndarray) -> rich.text.Text:
        """Returns the pieces of these ids, each in its colour."""
        text = rich.text.Text()
        for number, name, style in self._pieces(ids):
            if text:
                text.append(self._separator)
            text.append(name, style or PIECE_STYLES[number % 2])
        return text

    def _pieces(self, ids: np.ndarray) -> Iterator[tuple[int, str, str | None]]:
        """Yields (number, text, style) of each piece; without a style its number chooses one of PIECE_STYLES."""
        if self._table.kind == "bytes":
            yield from self._letters(ids)
            return
        for number, id in enumerate(ids.tolist()):
            if id in self._sentinels:
                yield number, f"<{self._sentinels[id]}>", SENTINEL_STYLE
            elif id == self._vocabulary.unk_id:
                yield number, "<unk>", UNKNOWN_STYLE
            elif self._table.kind == "sentencepiece":
                name = self._table.name(id).replace(SPACE, "_")
                yield number, name, BYTE_STYLE if self._is_byte[id] else None
            else:
                yield number, self._vocabulary.decode([id]), None

    def _letters(self, ids: np.ndarray) -> Iterator[tuple[int, str, str | None]]:
        """Yields the text between sentinels as one piece: a single byte may be a part of a letter."""
        special = {number: self._table.name(number) for number in (0, 1, 2)}
        pending: list[int] = []
        for number, id in enumerate(ids.tolist()):
            if id not in special and id not in self._sentinels:
                pending.append(id)
                continue
            if pending:
                yield number, self._vocabulary.decode(pending), PIECE_STYLES[0]
                pending = []
            if id in self._sentinels:
                yield number, f"<{self._sentinels[id]}>", SENTINEL_STYLE
            else:
                yield number, special[id], None
        if pending:
            yield len(ids), self._vocabulary.decode(pending), PIECE_STYLES[0]


def _cut(text: rich.text.Text, letters: int = SHOWN_LETTERS) -> rich.text.Text:
    if len(text) <= letters:
        return text
    return text[:letters] + rich.text.Text(f" … {len(text) - letters:,} letters more", "dim")


def bins(lengths: np.ndarray) -> np.ndarray:
    """Returns edges at 0, 1, 2, 4, 8, … tokens, up to more than the longest."""
    top = max(int(lengths.max()), 1).bit_length()
    return np.array([0, *(1 << power for power in range(top + 1))])


def histogram(lengths: np.ndarray) -> list[str]:
    """Returns one line per bin of documents' lengths, from the shortest document's bin on.

    >>> print(*histogram(np.array([3, 5, 6])), sep="|")
         2 to 3           1  ####################|     4 to 7           2  ########################################
    """
    edges = bins(lengths)
    counts, _ = np.histogram(lengths, edges)
    lines = []
    for count, low, high in zip(counts.tolist(), edges.tolist(), edges[1:].tolist(), strict=False):
        if count or lines:
            lines.append(f"{low:>6,} to {high - 1:<6,} {count:>6,}  {'#' * round(BAR_LETTERS * count / counts.max())}")
    return lines
