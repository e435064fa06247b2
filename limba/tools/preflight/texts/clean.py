"""`limba clean`: writes a corpus without the faults that preflight has found in it."""

from __future__ import annotations

import ast
import contextlib
import gzip
import json
import os
from collections.abc import Sequence

from limba.api import Parser, Texts, UnitSource, source_of_files
from limba.config import InputError, did_you_mean, kinds
from limba.tools.preflight.texts import faults

ABOUT = """Writes the documents of files as JSON lines, without what breaks the rules that preflight names.

    limba clean 'data/*.jsonl' --output=clean.jsonl --rules=markup,duplicates

Documents of which nothing is left are left out. It is one process, and keeps 8 bytes and more of each document for
duplicates, 160 and more for near-duplicates. Rules: """
SAMPLE_BYTES = 1_500_000  # by which lines are found that recur


def run(argv: Sequence[str]) -> None:
    """Writes the cleaned text and prints how many documents are left; raises InputError."""
    known = (*faults.RULES, faults.ONE_DOCUMENT, faults.EMPTY)
    parser = Parser("clean", ABOUT + ", ".join(known))
    parser.add_argument("files", metavar="FILES", help="a path or pattern, several separated by commas, or user/name")
    parser.add_argument("--output", required=True, metavar="FILE", help="a new .jsonl or .jsonl.gz")
    parser.add_argument("--rules", required=True, metavar="markup,duplicates")
    parser.add_argument("--column", default="text", help="column with the text, or {'inputs': 'en', 'targets': 'ms'}")
    given = parser.parse(argv)
    rules = given.rules.split(",")
    for rule in rules:
        if rule not in known:
            raise InputError(f"--rules has {rule!r}, which is no rule{did_you_mean(rule, known)}")
    kinds.check_local(given.output, "--output")
    if os.path.exists(given.output) or not given.output.endswith((".jsonl", ".jsonl.gz")):
        raise InputError(f"--output={given.output} must be the name of a new .jsonl or .jsonl.gz file.")
    with contextlib.suppress(ValueError, SyntaxError):
        given.column = ast.literal_eval(given.column) if given.column.startswith("{") else given.column
    source = source_of_files(given.files, given.column, 0.0)
    read, written = _write(source, rules, given.output)
    print(f"{given.output}: {written:,} of {read:,} documents. Read it with --gin.CORPUS={given.output}")


def _write(source: UnitSource, rules: Sequence[str], output: str) -> tuple[int, int]:
    """Returns the documents read and written; the file has its name when it is whole."""
    num_texts, read, written = len(source.keys), 0, 0
    sample = [document.decode() for document in Texts(source).sample("train", SAMPLE_BYTES)[0]]
    changes = [faults.change_by(code, sample, num_texts) for code in faults.RULES if code in rules]
    with (gzip.open if output.endswith(".gz") else open)(f"{output}.tmp", "wt", encoding="utf-8") as file:
        for unit in source.units("train"):
            for documents in source.chunks("train", unit):
                for document in documents:
                    read, row = read + 1, document.decode()
                    for change in changes:
                        row = change(row) if row else row
                    for part in faults.parts(row) if faults.ONE_DOCUMENT in rules else [row] if row.strip() else []:
                        texts = part.split(faults.SEPARATOR) if num_texts > 1 else [part]
                        json.dump(dict(zip(source.columns, texts, strict=True)), file, ensure_ascii=False)
                        file.write("\n")
                        written += 1
    os.replace(f"{output}.tmp", output)
    return read, written
