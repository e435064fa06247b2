"""The flags of input and output that generating, filling and scoring share, and what reads and writes their lines."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from limba.cli import model
from limba.config import InputError, environment

if TYPE_CHECKING:
    from limba.inference.load import TrainedModel

STANDARD = ("-", "stdin")
STDOUT = "stdout"
# The lines of a window are sorted by length together, for fuller batches; a stopped command loses one window's.
BATCHES_PER_WINDOW = 32
Record = dict[str, Any]  # of a line of input or output
# From the records of a window, and the number of its first line, to each record's number in the window, the record with
# what the model has added, and the line of a file that is not .jsonl.
Judge = Callable[[list[Record], int], Iterator[tuple[int, Record, str]]]


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Adds the flags of input and output."""
    group = parser.add_argument_group("input and output")
    group.add_argument("--prompt", action="append", metavar="TEXT", help="a text, instead of --input; may be repeated")
    group.add_argument(
        "--input", metavar="FILE", help="a text per line, or .jsonl, .csv, … (also .gz, gs://); default: stdin"
    )
    group.add_argument(
        "--output", metavar="FILE", default=STDOUT,
        help="a .jsonl, .ndjson or .json file gets each record of the input with `prediction` and `score`, for a T5"
        " also `input_tokens`, `cut_tokens` and `segments`; with --fill `gaps`; with --score `log_likelihood`,"
        " `tokens`, `bits_per_byte` and `cut_tokens`. Files with any other ending, such as .txt, get one line each"
        " (also gs://); .csv, .tsv, .parquet and .gz are refused. Default: stdout",
    )  # fmt: skip
    group.add_argument(
        "--fields", metavar="NAME,NAME",
        help="fields of a record that are read, such as text or translation.en; default: inputs, and with --score"
        " inputs,targets",
    )  # fmt: skip
    group.add_argument("--batch_size", type=model.whole_number, metavar="N", help="lines per batch, over all devices")


def has_file(args: argparse.Namespace) -> bool:
    """Returns whether the output is a file."""
    return args.output != STDOUT


def reads_lines(args: argparse.Namespace) -> bool:
    """Returns whether lines are read, each with a line of output, not prompts; InputError for both or neither."""
    for flag, is_given in (("--input", args.input), ("--output", has_file(args))):
        if args.prompt and is_given:
            raise InputError(f"Both --prompt and {flag} are given; give one.")
    if args.prompt:
        return False
    if args.input or args.gin_file or has_file(args):
        return True
    if sys.stdin.isatty():
        raise InputError("There is no prompt; give --prompt=TEXT, --input=FILE, or lines on standard input.")
    return False


def field_of(args: argparse.Namespace) -> str:
    """Returns the field of a record that holds the text; InputError if several are named."""
    field = "inputs" if args.fields is None else args.fields.strip()
    if not field or "," in field:
        raise InputError(f"--fields is {args.fields}; give one name, such as inputs.")
    return field


def check_files(args: argparse.Namespace) -> None:
    """Raises InputError, before a model is read, for a local input that does not exist and an output of other form."""
    path = args.input
    if path and path not in STANDARD and "://" not in path and not os.path.exists(path):
        raise InputError(f"The input {path} does not exist; give a .txt or .jsonl file (also .gz), or stdin.")
    if has_file(args):
        with environment.quiet_imports():
            from limba.inference import line_files
        line_files.check_output(args.output)


def prompts(args: argparse.Namespace) -> list[str]:
    """Returns the prompts, or the lines of standard input without the blank ones; InputError if there is none."""
    texts = args.prompt or _lines_of_stdin()
    if not texts:
        raise InputError("There is no prompt; give --prompt=TEXT, or lines on standard input.")
    return texts


def _lines_of_stdin() -> list[str]:
    from limba.inference import line_files

    lines = (record["inputs"] for record in line_files.records("stdin", ["inputs"]))
    return [line for line in lines if line.strip()]


def process(
    args: argparse.Namespace,
    trained: TrainedModel,
    fields: Sequence[str],
    more_settings: Mapping[str, object],
    num_rows: int,
    judge: Judge,
) -> None:
    """Writes the results of `judge` for all input lines, in order; a stopped command resumes after its last line.

    Raises InputError if another command writes to the output now.
    """
    import jax

    from limba.inference import line_files
    from limba.sharding import agreement

    writes = jax.process_index() == 0
    source = args.input or "stdin"
    # Written beside the output: a command with other choices does not resume it.
    settings = {"input": source, "checkpoint": f"{trained.path} step {trained.step}", "prefix": trained.prefix}
    # Lines that somebody waits for come batch by batch.
    is_live = args.output in (*STANDARD, STDOUT) or source in STANDARD
    window = num_rows if is_live else BATCHES_PER_WINDOW * num_rows
    is_on_screen = is_live and sys.stdout.isatty()  # where a progress bar would stand between the lines
    shows = writes and not is_on_screen
    with (
        agreement.entered_by_first(line_files.alone(args.output)) as check,
        line_files.Output(args.output, {**settings, **more_settings}, writes) as output,
    ):
        total = line_files.num_lines(source) if shows else None
        records = line_files.records(source, fields)
        count = line_files.process(records, output, window, judge, shows, total, check or (lambda: None))
    if writes:
        lines = "1 line" if count == 1 else f"{count:,} lines"
        print(f"{lines} in {args.output}, by {settings['checkpoint']}", file=sys.stderr)
