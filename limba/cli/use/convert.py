"""Converts models between Limba's, T5X's and Hugging Face's forms."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from limba.cli.arguments import Parser, with_two_dashes
from limba.cli.use import huggingface, t5x
from limba.config import InputError

FORMS = ("huggingface", "t5x", "limba", "list")
ABOUT = """Converts a model to folders for transformers and proves that each gives the same results. With --to it
writes a T5X checkpoint, writes a Limba checkpoint from a Hugging Face folder or a hub id, or lists the arrays.

    limba convert MODEL_DIR OUT --steps=all
    limba convert MODEL_DIR OUT --to=t5x
    limba convert user/name OUT --to=limba
    limba convert MODEL_DIR --to=list

Folders for transformers go to MODEL_DIR/huggingface unless OUT is given, one step_<N> for each checkpoint. Finished
folders are kept. A folder whose proof fails is renamed step_<N>.failed."""


def run(argv: Sequence[str]) -> None:
    """Converts what the flags name; raises InputError."""
    if argv[:1] in (["export"], ["import"]):  # as convert/convert.sh has them
        huggingface.run(argv)
        return
    form, parser = Parser("convert", ABOUT, add_help=False), Parser("convert", ABOUT)
    for each in (form, parser):  # the form decides which other flags there are
        each.add_argument("--to", choices=FORMS, default="huggingface", help="which form is written")
    to = form.parse_known_args(with_two_dashes(argv))[0].to
    parser.add_argument("objects", nargs="*", metavar="MODEL [OUT]", help="--model=MODEL --output=OUT mean the same")
    parser.add_argument("--model", help="a run or one checkpoint; with --to=limba a folder or hub id")
    parser.add_argument("--output", metavar="OUT", help="the folder that is written")
    parser.add_argument("--npz", metavar="FILE.npz", help="with --to=list: write all arrays there")
    if to == "huggingface":
        huggingface.add_export_flags(parser)
    else:
        parser.add_argument("--step", type=int, help="with --to=t5x: the newest unless given")
        parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16"), help="with --to=t5x")
    given = parser.parse(argv)
    given.model_dir, given.out_dir = _model_and_output(given)
    if to == "huggingface":
        huggingface.export(given)
    elif to == "list":
        t5x.list_arrays(given.model_dir, given.npz)
    elif given.out_dir is None:
        raise InputError(f"There is no OUT; write limba convert {given.model_dir} OUT --to={to}.")
    elif to == "limba":
        huggingface.import_model(given.model_dir, given.out_dir)
    else:
        from limba.export.t5x import export

        print(export(given.model_dir, given.out_dir, given.step, given.dtype))


def _model_and_output(given: argparse.Namespace) -> tuple[str, str | None]:
    """Returns MODEL and OUT, each an argument or its flag; raises InputError."""
    rest = list(given.objects)
    model = given.model or (rest.pop(0) if rest else None)
    out = given.output or (rest.pop(0) if rest else None)
    if model is None:
        raise InputError("There is no MODEL; write limba convert MODEL [OUT], or see --help.")
    if rest:
        raise InputError(f"The argument {rest[0]} is one too many; write limba convert MODEL [OUT].")
    return model, out
