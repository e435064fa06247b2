"""The board's text: documents divided by their hash into training, search-evaluation and final-evaluation parts."""

from __future__ import annotations

import glob
import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.board.sizes import VOCABULARY
from limba.config import InputError
from limba.storage.files import write_whole

PERMILLE = {"final": 20, "search": 20}  # of the documents; the others are trained on
SENTINELS = 100
VOCABULARY_LETTERS = 5_000_000  # of the training part, that the vocabulary is trained on
COVERAGES = (0.9995, 0.99)  # of its letters that have a piece: the first that VOCABULARY has room for
Document = Mapping[str, str]  # text, file, and author or package
ABOUT = "division.json"  # written last: a division without it is made again


@dataclass(frozen=True)
class Text:
    """A corpus's divided text in a folder of its own. Only `final` gives the path of the final part."""

    name: str
    folder: Path

    @property
    def train(self) -> Path:
        """The documents that are trained on."""
        return self.folder / "train.jsonl"

    @property
    def vocabulary(self) -> Path:
        """The SentencePiece model, trained on the training part."""
        return self.folder / "vocabulary.model"

    def evaluated(self, final: bool) -> Path:
        """Returns the part that a run is evaluated on: the search's, or the final one."""
        return self.folder / ("final.jsonl" if final else "search.jsonl")


def part_of(text: str) -> tuple[int, str]:
    """Returns a document's place, by which the parts are ordered, and its part. The same text is in the same part.

    >>> part_of("Ein Text."), part_of("Ein Text.") == part_of("Ein Text!")
    ((12549177246098319625, 'train'), False)
    """
    order = int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")
    left = order % 1_000
    for part, size in PERMILLE.items():
        if left < size:
            return order, part
        left -= size
    return order, "train"


def write_corpus(
    to: Path, name: str, documents: Sequence[Mapping[str, str]], facts: Mapping[str, Any]
) -> dict[str, Any]:
    """Writes to/NAME.jsonl, and to/NAME.json with facts about it; returns the latter."""
    content = "".join(json.dumps(document, ensure_ascii=False) + "\n" for document in documents).encode()
    digest = hashlib.sha256(content).hexdigest()
    said = {**facts, "documents": len(documents), "bytes": len(content), "sha256": digest}
    to.mkdir(parents=True, exist_ok=True)
    write_whole(str(to / f"{name}.jsonl"), content)
    write_whole(str(to / f"{name}.json"), json.dumps(said, indent=1) + "\n")
    return said


def _files(patterns: str) -> list[str]:
    paths_by_pattern = [sorted(glob.glob(os.path.expanduser(part.strip()))) for part in patterns.split(",")]
    paths: list[str] = []
    for pattern, files in zip(patterns.split(","), paths_by_pattern, strict=True):
        if not files:
            raise InputError(f"--corpus is {patterns}, and no file is named {pattern.strip()}; correct the path.")
        paths += files
    return paths


def divided(patterns: str, board: Path) -> Text:
    """Returns the divided text of a corpus, which is divided, and its vocabulary trained, at the first call.

    Later calls read neither the corpus nor the parts. Raises InputError for files that do not exist, that have too few
    documents, or that differ from the first call.
    """
    files = _files(patterns)
    name = re.sub(r"[^\w-]+", "_", Path(files[0]).name.split(".")[0])
    text = Text(name, board / "text" / name)
    facts = {"files": {os.path.abspath(path): os.path.getsize(path) for path in files}}
    facts_file = text.folder / ABOUT
    if facts_file.exists():
        known = json.loads(facts_file.read_text(encoding="utf-8"))
        if known["files"] != facts["files"]:
            raise InputError(
                f"{facts_file} was made of other files, or these have changed since; give another --board, whose runs"
                " are then compared with each other."
            )
        return text
    text.folder.mkdir(parents=True, exist_ok=True)
    facts["documents"] = _divide(files, text)
    _train_vocabulary(text)
    write_whole(str(facts_file), json.dumps(facts, indent=1) + "\n")
    return text


def _documents(files: list[str]) -> Iterator[tuple[str, str]]:
    """Yields each document with its author, whose documents are all in one part; "" where the files name none."""
    from limba.data.sources.json_rows import json_records
    from limba.data.sources.lines import line_at
    from limba.data.sources.listing import Unit
    from limba.data.tasks import source_of_files

    if not all(path.endswith(".jsonl") for path in files):
        yield from ((document, "") for document in source_of_files(files, "text", 0.0).texts("train"))
        return
    for path in files:
        with open(path, "rb") as file:
            for offset, row in json_records(Unit(path), file):
                fields = row if isinstance(row, dict) else {}
                text = fields.get("text")
                if not isinstance(text, str):
                    raise InputError(f'{path} {line_at(path, offset)} has no text; write one {{"text": "…"}} a line.')
                author = fields.get("author")
                yield text.encode(errors="replace").decode(), "" if author is None else str(author)


def _divide(files: list[str], text: Text) -> dict[str, int]:
    """Writes the parts, each in the order of its documents' hashes; returns the number of documents of each."""
    parts: dict[str, dict[int, str]] = {part: {} for part in ("train", *PERMILLE)}
    for document, author in _documents(files):
        order, part = part_of(document)
        parts[part_of(author)[1] if author else part][order] = document
    empty = [part for part, documents in parts.items() if not documents]
    if empty:
        raise InputError(
            f"--corpus is {', '.join(files)}, and its {sum(map(len, parts.values())):,} documents leave none for"
            f" {' and '.join(empty)}; give a corpus of some hundred documents."
        )
    for part, documents in parts.items():
        with open(text.folder / f"{part}.jsonl", "w", encoding="utf-8") as file:
            for _, document in sorted(documents.items()):
                file.write(json.dumps({"text": document}, ensure_ascii=False) + "\n")
    return {part: len(documents) for part, documents in parts.items()}


def _train_vocabulary(text: Text) -> None:
    """Trains the vocabulary on the first documents of the training part."""
    from limba.data.vocabulary.train import train_vocabulary

    def texts():
        letters = 0
        with open(text.train, encoding="utf-8") as file:
            for line in file:
                document = json.loads(line)["text"]
                letters += len(document)
                yield document
                if letters > VOCABULARY_LETTERS:
                    return

    text.vocabulary.unlink(missing_ok=True)
    for coverage in COVERAGES:
        try:
            train_vocabulary(texts(), VOCABULARY - SENTINELS, str(text.vocabulary), character_coverage=coverage)
        except InputError:
            if coverage == COVERAGES[-1]:
                raise
        else:
            break
