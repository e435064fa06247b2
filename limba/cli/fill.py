"""`limba fill`: the words that a model would write in the gaps of texts, with their probabilities."""

from __future__ import annotations

import argparse
import itertools
import json
import sys
from collections.abc import Sequence

from limba.cli import generate, model
from limba.cli.arguments import Parser
from limba.config import InputError, environment, named

ABOUT = """Fills the gaps of texts: prints the likeliest words of each gap with their probabilities. A gap is ___, or
<extra_id_0>, <extra_id_1>, … in order.

    limba fill MODEL_DIR 'The module ___ a file.'
    limba fill MODEL_DIR --file=in.txt --top=3 --json

Without TEXT and --file it reads the lines of standard input."""
AT_ONCE = 256  # lines that are answered together


@named({**model.NAMES, "top": "--top"})
def run(argv: Sequence[str]) -> None:
    """Prints the fills of each text; raises InputError."""
    parser = Parser("fill", ABOUT)
    parser.add_argument("objects", nargs="*", metavar="MODEL TEXT", help=f"{model.MODEL}; then texts with gaps")
    parser.add_argument("--top", type=model.whole_number, default=5, metavar="N", help="fills of each gap; default: 5")
    parser.add_argument("--file", metavar="FILE", help="a text per line, or .jsonl with `inputs` (also .gz, gs://)")
    parser.add_argument(
        "--json", action="store_true", help="print an object per text: `text`, and the fills of its `gaps`"
    )
    parser.add_argument("--step", type=int, help="step of a run; default: its best, else its newest")
    parser.add_argument("--vocabulary", metavar="PATH|byte", help="vocabulary that replaces the model's")
    model.add_import_flag(parser)
    given = parser.parse(argv)
    if not given.objects:
        raise InputError("There is no model; write limba fill MODEL 'A text with a ___.'")
    path, *texts = given.objects
    if texts and given.file:
        raise InputError("Both a text and --file are given; give one.")
    if not texts and not given.file and sys.stdin.isatty():
        raise InputError(f"There is no text; write limba fill {path} 'A text with a ___.', or --file=FILE.")
    with environment.quiet_imports():
        from limba.inference import line_files
        from limba.inference.gaps import with_sentinels
        from limba.inference.load import load
    for text in texts:
        with_sentinels(text)  # raises before minutes are spent on a model
    generate.check_input(argparse.Namespace(input=given.file))
    trained = load(path, step=given.step, vocabulary=given.vocabulary, imports=given.imports)
    read = texts or (record["inputs"] for record in line_files.records(given.file or "stdin", ["inputs"]))
    lines = (line for line in read if line.strip())
    while several := list(itertools.islice(lines, AT_ONCE)):
        for text, gaps in zip(several, trained.fill(several, given.top), strict=True):
            if given.json:
                fills = [[{"text": fill.text, "probability": fill.probability} for fill in gap] for gap in gaps]
                print(json.dumps({"text": text, "gaps": fills}, ensure_ascii=False), flush=True)
                continue
            print(f"== {text}")
            for number, gap in enumerate(gaps, 1):
                print(f"{number}. " + ", ".join(f"{fill.text} ({fill.probability:.2%})" for fill in gap), flush=True)
