"""Scores targets given their inputs."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import Any

from limba.cli.arguments import Parser
from limba.cli.use import lines, model
from limba.config import InputError

ABOUT = """Computes the natural log likelihood of each target given its input, including the end of sequence.

    limba score MODEL_DIR --input=pairs.jsonl --output=scored.jsonl
    limba score LANGUAGE_MODEL_DIR --input=texts.txt --fields=targets

A language model's input is a prompt; it may be empty, or left out of --fields."""


def run(argv: Sequence[str]) -> None:
    """Scores what the flags name; raises InputError."""
    parser = Parser("score", ABOUT)
    model.add_flags(parser)
    lines.add_flags(parser, "`log_likelihood`, `tokens`, `bits_per_byte` and `cut_tokens`")
    parser.add_argument("--fields", default="inputs,targets", help="fields of input and target in a .jsonl file")
    given = parser.parse(argv)
    fields = [field.strip() for field in given.fields.split(",")]
    if len(fields) > 2 or not all(fields):
        raise InputError(f"--fields is {given.fields}; give two names, such as inputs,targets.")
    lines.check_input(given)
    trained = model.opened(given)
    model.check_vocabulary(trained)
    if len(fields) < 2 and not trained.network.config.is_decoder_only:
        raise InputError(
            f"--fields is {given.fields}, and the model reads inputs too; give two names, such as inputs,targets."
        )

    def judge(records: list[dict[str, Any]], first: int) -> Iterator[tuple[int, dict[str, Any], str]]:
        del first
        pairs = [(record[fields[0]] if len(fields) > 1 else "", record[fields[-1]]) for record in records]
        for place, score in enumerate(trained.score(pairs, num_rows)):
            num_cut = trained.num_cut(*pairs[place])
            cut.append(num_cut)
            more = {} if trained.network.config.is_decoder_only else {"cut_tokens": num_cut}
            yield place, {**records[place], **score._asdict(), **more}, repr(score.log_likelihood)

    cut: list[int] = []
    num_rows = given.batch_size or trained.batch_size
    lines.process(given, trained, fields, {}, num_rows, judge)
    if any(cut):
        longer = sum(map(bool, cut))
        print(
            f"{longer:,} of the pairs were longer than the model's lengths; {sum(cut):,} of their tokens were not read,"
            " and their likelihoods are those of the rest.",
            file=sys.stderr,
        )
