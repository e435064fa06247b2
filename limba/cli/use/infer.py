"""Writes text: `python -m launch.infer --gin_file=MODEL_DIR/config.gin --input=FILE`; --help says more."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterator, Sequence
from typing import Any

from limba.cli.use import trained_model

ABOUT = """usage: python -m launch.infer --gin_file=FILE [--input=FILE] [--output=FILE] [--gin.NAME=VALUE ...]

Writes a text for each line of the input, in order. Broken off, the same command goes on.

    --input=FILE|stdin         (gs:// too) a text per line, or .jsonl (also .gz); default stdin
    --field=inputs             of .jsonl that holds the text
    --output=FILE|stdout       (gs:// too) .jsonl gives the record with `prediction` and `score`, else a line of text
    --batch_size=N             inputs at once, over all devices; default BATCH_SIZE"""
FLAGS = {"input": "stdin", "output": "stdout", "field": "inputs", "batch_size": "", "checkpoint": ""}
BATCHES_PER_WINDOW = 32


def run(argv: Sequence[str]) -> None:
    """Writes the texts that the flags ask for; raises ConfigError."""
    flags, rest = trained_model.split_flags(argv, FLAGS, ABOUT)
    trained = trained_model.load(rest, flags["checkpoint"])
    import jax

    from limba.inference import files as text_files
    from limba.inference import generate as infer

    generation = trained.config.generation
    num_rows = int(flags["batch_size"] or trained.config.data.batch_size)
    writer = infer.Writer(trained.model, trained.mesh, trained.vocabulary, generation, num_rows)
    writes = jax.process_index() == 0
    about = {
        "input": flags["input"],
        "checkpoint": f"{trained.path} step {trained.step}",
        "prefix": trained.prefix,
        "generation": dataclasses.asdict(generation),
    }
    output = text_files.Output(flags["output"], about, writes)
    if writes and output.num_done:
        print(f"{output.num_done:,} lines are there already.", file=sys.stderr)

    def judge(records: list[dict[str, Any]], first: int) -> Iterator[tuple[int, dict[str, Any], str]]:
        texts = [record[flags["field"]] for record in records]
        length = trained.lengths["inputs"]
        inputs = [infer.encode(trained.prefix + text, trained.vocabulary, length) for text in texts]
        blank = [i for i, text in enumerate(texts) if not text.strip()]
        yield from ((i, {**records[i], "prediction": "", "score": 0.0}, "") for i in blank)
        for places in writer.batches(inputs, [i for i in range(len(texts)) if i not in set(blank)]):
            written = writer.write(trained.params, [inputs[i] for i in places], [first + i for i in places])
            for place, samples in zip(places, written, strict=True):
                all_of_it = [{"text": sample.text, "score": sample.score} for sample in samples]
                more = {"samples": all_of_it} if len(samples) > 1 else {}
                best = {"prediction": samples[0].text, "score": samples[0].score}
                yield place, {**records[place], **best, **more}, samples[0].text

    source = text_files.records(flags["input"], [flags["field"]])
    shows = writes and sys.stderr.isatty()
    count = text_files.process(source, output, BATCHES_PER_WINDOW * num_rows, judge, shows)
    output.close()
    if writes:
        print(f"{count:,} lines in {flags['output']}, by {about['checkpoint']}", file=sys.stderr)
