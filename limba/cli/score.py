"""`limba generate --score`: log likelihoods of given texts under a model."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator

from limba.cli import line_flags, model
from limba.cli.line_flags import Record
from limba.config import InputError

FIELDS = "inputs,targets"


def run(args: argparse.Namespace) -> None:
    """Writes the log likelihood of each target given its input; raises InputError."""
    fields = _fields(args)
    line_flags.check_files(args)
    trained = model.opened(args)
    model.check_vocabulary(trained)
    is_language_model = trained.network.config.is_decoder_only
    if len(fields) < 2 and not is_language_model:
        raise InputError(
            f"--fields is {args.fields}, and the model reads inputs too; give two names, such as {FIELDS}."
        )
    num_rows = args.batch_size or trained.batch_size
    cut: list[int] = []  # tokens of each pair that were not read

    def judge(records: list[Record], first: int) -> Iterator[tuple[int, Record, str]]:
        del first  # line numbers are not needed here
        pairs = []
        for record in records:
            inputs = record[fields[0]] if len(fields) > 1 else ""
            pairs.append((inputs, record[fields[-1]]))
        for number, score in enumerate(trained.score(pairs, num_rows)):
            num_cut = trained.num_cut(*pairs[number])
            cut.append(num_cut)
            scored = {**records[number], **score._asdict()}
            if not is_language_model:
                scored["cut_tokens"] = num_cut
            yield number, scored, repr(score.log_likelihood)

    line_flags.process(args, trained, fields, {}, num_rows, judge)
    if any(cut):
        longer = sum(map(bool, cut))
        print(
            f"{longer:,} of the pairs were longer than the model's lengths; {sum(cut):,} of their tokens were not read,"
            " and their likelihoods are of the rest only.",
            file=sys.stderr,
        )


def _fields(args: argparse.Namespace) -> list[str]:
    """Returns the fields of input and target, or of the target alone; raises InputError."""
    written = FIELDS if args.fields is None else args.fields
    fields = [field.strip() for field in written.split(",")]
    if len(fields) > 2 or not all(fields):
        raise InputError(f"--fields is {written}; give two names, such as {FIELDS}.")
    return fields
