"""Reading and writing lines, for `generate` and `score`."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from limba.cli.use.model import whole_number
from limba.config import InputError

if TYPE_CHECKING:
    from limba.inference.load import TrainedModel

STANDARD = ("-", "stdin")
BATCHES_PER_WINDOW = 32  # lines of a window are sorted by length together, and lost if the command is stopped
Judge = Callable[[list[dict[str, Any]], int], Iterator[tuple[int, dict[str, Any], str]]]


def add_flags(parser: argparse.ArgumentParser, adds: str) -> None:
    """Adds the flags of input and output; `adds` names the fields that a JSON line of the output adds to the record."""
    parser.add_argument(
        "--input", metavar="FILE", help="one text per line, or .jsonl (also .gz, gs://); default: stdin"
    )
    parser.add_argument(
        "--output", metavar="FILE", default="stdout",
        help=f"a .jsonl file gets each record with {adds}, other files one line each (also gs://); default: stdout",
    )  # fmt: skip
    parser.add_argument("--batch_size", type=whole_number, metavar="N", help="lines per batch, over all devices")


def check_input(given: argparse.Namespace) -> None:
    """Raises InputError for a local input that does not exist, before a model is read."""
    path = given.input
    if path and path not in STANDARD and "://" not in path and not os.path.exists(path):
        raise InputError(f"The input {path} does not exist; give a .txt or .jsonl file (also .gz), or stdin.")


def process(
    given: argparse.Namespace,
    trained: TrainedModel,
    fields: Sequence[str],
    more_about: Mapping[str, Any],
    num_rows: int,
    judge: Judge,
) -> None:
    """Writes the results of `judge` for all input lines, in order; a stopped command resumes after its last line.

    Raises InputError if another command writes to the output now.
    """
    import jax

    from limba.inference import line_files
    from limba.sharding import agreement

    writes, source = jax.process_index() == 0, given.input or "stdin"
    about = {"input": source, "checkpoint": f"{trained.path} step {trained.step}", "prefix": trained.prefix}
    # Lines that somebody waits for come batch by batch.
    is_live = given.output in (*STANDARD, "stdout") or source in STANDARD
    window = num_rows if is_live else BATCHES_PER_WINDOW * num_rows
    shows = writes and not (is_live and sys.stdout.isatty())
    with (
        agreement.entered_by_first(line_files.alone(given.output)) as check,
        line_files.Output(given.output, {**about, **more_about}, writes) as output,
    ):
        total = line_files.num_lines(source) if shows else None
        read = line_files.records(source, fields)
        count = line_files.process(read, output, window, judge, shows, total, check or _nothing)
    if writes:
        print(f"{count:,} lines in {given.output}, by {about['checkpoint']}", file=sys.stderr)


def _nothing() -> None:
    """The first process checks."""
