"""`limba generate --fill`: a model fills the gaps of texts with the likeliest words."""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from limba.cli import line_flags, model
from limba.cli.line_flags import Record
from limba.config import InputError, environment, named

if TYPE_CHECKING:
    from limba.inference.gap_pieces import Fill
    from limba.inference.load import TrainedModel

NUM_FILLS = 5  # of each gap, unless --top says another number
AT_ONCE = 256  # texts that are answered together


@named({**model.NAMES, "`top`": "--top"})
def run(args: argparse.Namespace) -> None:
    """Prints the fills of each text, or writes them to a .jsonl file; raises InputError."""
    reads_lines = line_flags.reads_lines(args)
    field = line_flags.field_of(args)
    top = args.top or NUM_FILLS
    with environment.quiet_imports():
        from limba.inference import line_files
        from limba.inference.gap_filling import with_sentinels
    if line_flags.has_file(args) and not args.output.lower().endswith(line_files.JSON_LINES):
        raise InputError(f"--output is {args.output}; with --fill it is a .jsonl file, or left out for stdout.")
    for prompt in args.prompt or ():
        with_sentinels(prompt)  # raises for a prompt without a gap, before minutes are spent on a model
    line_flags.check_files(args)
    trained = model.opened(args, in_float32=lambda source: True)
    if line_flags.has_file(args):
        _write_lines(args, trained, field, top)
        return
    if reads_lines:
        texts: Iterator[str] = (record[field] for record in line_files.records(args.input or "stdin", [field]))
    else:
        texts = iter(line_flags.prompts(args))
    show(texts, trained, top)


def show(texts: Iterator[str], trained: TrainedModel, top: int) -> None:
    """Prints each text that is not blank, with one line for each of its gaps."""
    not_blank = (text for text in texts if text.strip())
    while several := list(itertools.islice(not_blank, AT_ONCE)):
        for text, gaps in zip(several, trained.fill(several, top), strict=True):
            print(f"== {text}")
            for number, gap in enumerate(gaps, 1):
                fills = ", ".join(f"{fill.text} ({fill.probability:.2%})" for fill in gap)
                print(f"{number}. {fills}", flush=True)


def _write_lines(args: argparse.Namespace, trained: TrainedModel, field: str, top: int) -> None:
    """Writes each record of the input with `gaps`, the fills of each gap; a blank text has none."""

    def judge(records: list[Record], first: int) -> Iterator[tuple[int, Record, str]]:
        del first  # line numbers are not needed here
        texts = [record[field] for record in records]
        not_blank = [number for number, text in enumerate(texts) if text.strip()]
        fills = trained.fill([texts[number] for number in not_blank], top)
        gaps_of = dict(zip(not_blank, fills, strict=True))
        for number, record in enumerate(records):
            gaps = [_as_json(gap) for gap in gaps_of.get(number, ())]
            yield number, {**record, "gaps": gaps}, ""

    num_rows = args.batch_size or trained.batch_size
    line_flags.process(args, trained, [field], {"fill": {"top": top}}, num_rows, judge)


def _as_json(gap: Sequence[Fill]) -> list[Record]:
    return [{"text": fill.text, "probability": fill.probability} for fill in gap]
