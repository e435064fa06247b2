"""Scores targets: `python -m launch.score --gin_file=MODEL_DIR/config.gin --input=FILE.jsonl`; --help says more."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Sequence
from typing import Any

from limba.cli.use import trained_model

ABOUT = """usage: python -m launch.score --gin_file=FILE --input=FILE.jsonl [--output=FILE] [--gin.NAME=VALUE ...]

Gives the natural logarithm of each target's probability given its input, the end of sequence included.

    --input=FILE               .jsonl (also .gz) with inputs and targets
    --fields=inputs,targets    the fields that hold them
    --output=FILE|stdout       (gs:// too) .jsonl gives the record with `log_likelihood`, `tokens` and `bits_per_byte`,
                               else the log likelihood alone
    --batch_size=N             pairs at once, over all devices; default BATCH_SIZE"""
FLAGS = {"input": "stdin", "output": "stdout", "fields": "inputs,targets", "batch_size": "", "checkpoint": ""}
BATCHES_PER_WINDOW = 32


def run(argv: Sequence[str]) -> None:
    """Scores what the flags name; raises ConfigError."""
    flags, rest = trained_model.split_flags(argv, FLAGS, ABOUT)
    trained = trained_model.load(rest, flags["checkpoint"])
    import jax

    from limba.inference import files as text_files
    from limba.inference import generate as infer

    fields = [field.strip() for field in flags["fields"].split(",")]
    num_rows = int(flags["batch_size"] or trained.config.data.batch_size)
    writes = jax.process_index() == 0
    about = {"input": flags["input"], "checkpoint": f"{trained.path} step {trained.step}", "prefix": trained.prefix}
    output = text_files.Output(flags["output"], about, writes)

    def judge(records: list[dict[str, Any]], first: int) -> Iterator[tuple[int, dict[str, Any], str]]:
        del first
        pairs = [
            (
                infer.encode(trained.prefix + record[fields[0]], trained.vocabulary, trained.lengths["inputs"]),
                infer.encode(record[fields[1]], trained.vocabulary, trained.lengths["targets"]),
            )
            for record in records
        ]
        order = sorted(range(len(pairs)), key=lambda i: -len(pairs[i][0]))
        for start in range(0, len(order), num_rows):
            places = order[start : start + num_rows]
            chosen = [pairs[i] for i in places]
            found = infer.log_likelihoods(trained.model, trained.params, trained.mesh, chosen, num_rows)
            for place, value in zip(places, map(float, found), strict=True):
                num_bytes = max(1, len(records[place][fields[1]].encode()))
                figures = {
                    "log_likelihood": value,
                    "tokens": len(pairs[place][1]),
                    "bits_per_byte": -value / math.log(2) / num_bytes,
                }
                yield place, {**records[place], **figures}, repr(value)

    source = text_files.records(flags["input"], fields)
    count = text_files.process(source, output, BATCHES_PER_WINDOW * num_rows, judge, writes and sys.stderr.isatty())
    output.close()
    if writes:
        print(f"{count:,} lines in {flags['output']}, by {about['checkpoint']}", file=sys.stderr)
