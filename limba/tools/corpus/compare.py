"""`limba vocabulary compare`: how vocabularies split a text, and what each costs in a model."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np

from limba.api import Parser
from limba.config import InputError, environment, named
from limba.tools.corpus import task_flags

ABOUT = """Shows how vocabularies split a text, which of their rows it never uses, and what each costs.

    limba vocabulary compare google/mt5-base mt5-base-ro --corpus='data/*.jsonl'
    limba vocabulary compare mine.model byte --corpus='data/*.txt' --emb_dim=512 --json

A vocabulary is a SentencePiece model, a tokenizer.json, byte, or a model's. Parameters are counted of the embedding and
of the output layer; FLOPs are the output layer's in a training step of --tokens tokens that are predicted."""
NAMES = {"DataConfig.data_files": "--corpus", "DataConfig.column": "--column", "DataConfig.vocabulary": "A vocabulary"}
SAMPLE_BYTES = 10_000_000
HEADINGS = {
    "vocabulary": "vocabulary",
    "rows": "rows",
    "tokens_per_word": "tokens\nper word",
    "bytes_per_token": "bytes\nper token",
    "single_bytes": "single\nbytes",
    "unknown": "unknown",
    "coverage": "coverage",
    "unused_rows": "rows never\nused",
    "parameters": "parameters",
    "step_flops": "TFLOPs\na step",
}


@dataclass(frozen=True)
class Figures:
    """What a text is under one vocabulary, and what the vocabulary costs."""

    vocabulary: str
    rows: int
    tokens_per_word: float
    bytes_per_token: float
    single_bytes: float  # share of the tokens that are one byte of a letter
    unknown: float  # share of the tokens whose text is lost
    coverage: float  # share of the tokens that are neither
    unused_rows: int  # rows that no token of the text has
    parameters: int
    step_flops: float

    @property
    def cells(self) -> list[str]:
        """The figures as the table shows them, in the order of HEADINGS."""
        return [
            self.vocabulary,
            f"{self.rows:,}",
            f"{self.tokens_per_word:.3f}",
            f"{self.bytes_per_token:.3f}",
            f"{self.single_bytes:.3%}",
            f"{self.unknown:.3%}",
            f"{self.coverage:.3%}",
            f"{self.unused_rows:,}",
            f"{self.parameters:,}",
            f"{self.step_flops / 1e12:,.2f}",
        ]


@named(NAMES)
def run(argv: Sequence[str]) -> None:
    """Prints the table, or with --json its figures; raises InputError."""
    parser = Parser("vocabulary compare", ABOUT)
    parser.add_object("vocabularies", "A B", "vocabularies or models", takes_several=True)
    parser.add_argument("--corpus", metavar="FILES", help="text to tokenize: a path or a pattern, or hf://…")
    parser.add_argument("--column", default="text", help="column or key of FILES with the text")
    parser.add_argument("--sample_bytes", type=int, default=SAMPLE_BYTES, help="bytes of text that are tokenized")
    parser.add_argument("--tokens", type=int, default=65_536, help="predicted tokens of a step")
    parser.add_argument("--emb_dim", type=int, default=768, help="width for a vocabulary without a model")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    args = parser.parse(argv)
    if not args.vocabularies or not args.corpus:
        raise InputError("Something is missing; write limba vocabulary compare A B --corpus='data/*.jsonl'.")
    for name in ("sample_bytes", "tokens", "emb_dim"):
        number = getattr(args, name)
        if number < 1:
            raise InputError(f"--{name} is {number}; give a number above 0.")
    with environment.quiet_imports():
        from limba.api import Texts, source_of_files

    opened = [_opened(path, args.emb_dim) for path in args.vocabularies]
    texts = Texts(source_of_files(args.corpus, args.column))
    with task_flags.reading() as progress:
        documents = texts.in_columns(texts.sample("train", args.sample_bytes, progress=progress)[0])
    if not documents:
        raise InputError(f"{args.corpus} holds no text; give files with documents.")
    with task_flags.reading("cutting into pieces"):
        figures = [_figures(vocabulary, documents, args.tokens) for vocabulary in opened]
    if not args.json:
        _print(figures)
        return
    document = {
        "corpus": args.corpus,
        "documents": len(documents),
        "bytes": sum(map(len, documents)),
        "step_tokens": args.tokens,
        "vocabularies": [asdict(row) for row in figures],
    }
    print(json.dumps(document, indent=2))


@dataclass(frozen=True)
class _Opened:
    """A vocabulary, and the matrices that a model has for it."""

    name: str
    vocabulary: object
    rows: int
    emb_dim: int
    matrices: int  # embedding and output layer; 1 where they are one


def _opened(path: str, emb_dim: int) -> _Opened:
    """Returns the vocabulary at a path, with the sizes of its model if it has one; InputError if it cannot be read.

    Without a model it is counted at `emb_dim`, with two matrices. Weights are neither read nor downloaded.
    """
    from limba.api import PieceTable, num_tables, opened_source, vocabulary_of

    is_file = os.path.isfile(os.path.expanduser(path)) or path.endswith((".model", ".json"))
    if path == "byte" or is_file:
        pieces = PieceTable.at(path)
        pieces.read()  # finds a wrong file now
        return _Opened(path, pieces.vocabulary, pieces.fitting_rows, emb_dim, 2)
    source = opened_source(path, weights=False)
    model = source.model
    return _Opened(path, vocabulary_of(source), model.vocab_size, model.emb_dim, num_tables(source))


def _figures(opened: _Opened, documents: Sequence[bytes], step_tokens: int) -> Figures:
    """Returns the figures of documents under a vocabulary."""
    from limba.api import PieceTable, Vocabulary, spells_bytes

    vocabulary = opened.vocabulary
    assert isinstance(vocabulary, Vocabulary)
    table = PieceTable(vocabulary)
    counts = np.zeros([max(opened.rows, vocabulary.vocab_size)], np.int64)
    words = 0
    for document in documents:
        np.add.at(counts, np.asarray(table.encode(document)), 1)
        words += len(document.decode().split())
    tokens = max(1, int(counts.sum()))
    is_byte = spells_bytes(vocabulary)  # by id
    single = int(counts[: len(is_byte)][is_byte].sum()) / tokens
    unknown = 0.0
    if vocabulary.unk_id is not None:
        unknown = int(counts[vocabulary.unk_id]) / tokens
    size = opened.rows * opened.emb_dim
    return Figures(
        vocabulary=opened.name,
        rows=opened.rows,
        tokens_per_word=tokens / max(1, words),
        bytes_per_token=sum(map(len, documents)) / tokens,
        single_bytes=single,
        unknown=unknown,
        coverage=1 - single - unknown,
        unused_rows=int((counts[: opened.rows] == 0).sum()),
        parameters=opened.matrices * size,
        # Two FLOPs for a weight and a token, and twice as many for the gradients.
        step_flops=6.0 * step_tokens * size,
    )


def _print(figures: Sequence[Figures]) -> None:
    """Prints the figures as a table."""
    import rich.box
    import rich.console
    import rich.table

    table = rich.table.Table(box=rich.box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    for name in HEADINGS.values():
        is_name = name == "vocabulary"
        table.add_column(name, overflow="fold", no_wrap=not is_name, justify="left" if is_name else "right")
    for row in figures:
        table.add_row(*row.cells)
    console = rich.console.Console(highlight=False)
    if not console.is_terminal:
        console.width = 160  # rich's 80 columns of a file would break the names
    console.print(table)
