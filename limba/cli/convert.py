"""`limba convert`: models between Limba's, T5X's and Hugging Face's forms, and T5X's gin files as Limba's."""

import argparse
import os
from collections.abc import Sequence
from pathlib import Path

from limba import tool_registry
from limba.cli import model
from limba.cli.arguments import Parser, with_two_dashes
from limba.config import CardConfig, InputError, environment, kinds, named
from limba.config.errors import worded

FORMS = ("huggingface", "t5x", "limba", "list")
ABOUT = """Converts a model to folders for transformers and proves that each gives the same results. With --to it
writes a T5X checkpoint, writes a Limba checkpoint from a Hugging Face folder or a hub id, or lists the arrays.

    limba convert MODEL_DIR OUT --steps=all
    limba convert MODEL_DIR --push=user/name --dry_run
    limba convert MODEL_DIR OUT --to=t5x
    limba convert user/name[@revision] OUT --to=limba
    limba convert MODEL_DIR --to=list
    limba convert --gin THEIRS.gin > OURS.gin

Folders for transformers go to MODEL_DIR/huggingface unless OUT is given, one step_<N> for each checkpoint. Finished
folders are kept, unless the command now asks for something else. A folder whose proof fails is renamed
step_<N>.failed.

A Hugging Face folder has model.safetensors, flax_model.msgpack or pytorch_model.bin, of which nothing is run; a private
model needs HF_TOKEN. INITIAL_CHECKPOINT_PATH takes T5X's and Hugging Face's models directly."""
# What errors call fields and arguments -> the flags by which the user sets them.
NAMES = {
    "CardConfig.language": "--language",
    "CardConfig.licence": "--licence",
    "CardConfig.datasets": "--datasets",
    "`config`": "--config",
    "`vocabulary`": "--vocabulary",
}


def run(argv: Sequence[str]) -> None:
    """Converts what the flags name; raises InputError."""
    if "--gin" in with_two_dashes(argv):
        migrate = tool_registry.find("migrate")
        if migrate is None:
            raise InputError("--gin needs limba/tools/migrate/, which is not here; install Limba whole.")
        migrate.print_gin(argv)
        return
    if argv[:1] == ["export"]:  # as convert/convert.sh names its two directions
        argv = argv[1:]
    elif argv[:1] == ["import"]:
        argv = [*argv[1:], "--to=limba"]
    to = _form_of(argv)
    args = _parser(to).parse(argv)
    args.model_dir, args.out_dir = _model_and_output(args)
    if to == "huggingface":
        export(args)
    elif to == "list":
        list_arrays(args.model_dir, args.npz)
    elif args.out_dir is None:
        raise InputError(f"There is no OUT; write limba convert {args.model_dir} OUT --to={to}.")
    elif to == "limba":
        import_model(args.model_dir, args.out_dir)
    else:
        from limba.export import t5x

        print(t5x.export(args.model_dir, args.out_dir, args.step, args.dtype))


def _form_of(argv: Sequence[str]) -> str:
    """Returns one of FORMS, which decides what other flags there are."""
    parser = Parser("convert", ABOUT, add_help=False)
    _add_form(parser)
    return parser.parse_known_args(with_two_dashes(argv))[0].to


def _add_form(parser: Parser) -> None:
    parser.add_argument("--to", choices=FORMS, default="huggingface", help="which form is written")


def _parser(to: str) -> Parser:
    """Returns the parser of the flags that belong to a form."""
    parser = Parser("convert", ABOUT)
    _add_form(parser)
    parser.add_argument("objects", nargs="*", metavar="MODEL [OUT]", help="--model=MODEL --output=OUT mean the same")
    parser.add_argument("--model", help="a run or one checkpoint; with --to=limba a folder or hub id")
    parser.add_argument("--output", metavar="OUT", help="the folder that is written")
    parser.add_argument(
        "--gin", action="store_true", help="print gin files of T5X as one of Limba's; --gin --help has its flags"
    )
    parser.add_argument("--npz", metavar="FILE.npz", help="with --to=list: write all arrays there")
    if to == "huggingface":
        add_export_flags(parser)
    else:
        parser.add_argument("--step", type=int, help="with --to=t5x: the newest unless given")
        parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16"), help="with --to=t5x")
    return parser


def _model_and_output(args: argparse.Namespace) -> tuple[str, str | None]:
    """Returns MODEL and OUT, each an argument or its flag; raises InputError."""
    rest = list(args.objects)
    model = args.model or (rest.pop(0) if rest else None)
    out = args.output or (rest.pop(0) if rest else None)
    if model is None:
        raise InputError("There is no MODEL; write limba convert MODEL [OUT], or see --help.")
    if rest:
        raise InputError(f"The argument {rest[0]} is one too many; write limba convert MODEL [OUT].")
    return model, out


def add_export_flags(parser: Parser) -> None:
    """Adds the flags of writing folders for transformers."""
    parser.add_argument(
        "--steps",
        help="best, latest, all, or numbers such as 1000,2000; default: the best if the run keeps one, else the latest",
    )
    parser.add_argument("--formats", default="pytorch,flax", help="pytorch, flax, or pytorch,flax")
    parser.add_argument("--dtype", default="float32", help="float32 or bfloat16")
    parser.add_argument(
        "--config", metavar="FILE.gin", help="network that replaces the run's configuration; give --vocabulary too"
    )
    parser.add_argument("--vocabulary", help="vocabulary that replaces the run's: a SentencePiece model, byte, or none")
    parser.add_argument("--extra_ids", type=int, help="number of sentinels to add to --vocabulary")
    model.add_import_flag(parser)
    parser.add_argument("--no_check", action="store_true", help="skip the proof")
    parser.add_argument("--licence", help="licence for the model card, by the hub's name: apache-2.0")
    parser.add_argument("--hardware", help="training hardware for the model card")
    parser.add_argument("--language", default="", help="languages for the model card, by their codes: ro or en,ms")
    parser.add_argument("--datasets", default="", help="data sets for the model card; default: the task's on the hub")
    parser.add_argument("--dropout", type=float, default=0.1, help="config.json's dropout, to fine-tune (default 0.1)")
    parser.add_argument(
        "--trained_weights", action="store_true",
        help="of a run that evaluates an average of its weights: the weights as they were trained",
    )  # fmt: skip
    parser.add_argument(
        "--transformers", type=int, choices=(4, 5), default=5,
        help="version that will load the folder (default 5); they differ only for an untied umT5",
    )  # fmt: skip
    parser.add_argument(
        "--encoder_only", action="store_true", help="only the encoder of a T5, as T5EncoderModel, for vectors"
    )
    parser.add_argument("--trc", action="store_true", help="thank the TPU Research Cloud in the model card")
    parser.add_argument("--push", metavar="USER/NAME", help="upload to the hub with the token in HF_TOKEN")
    parser.add_argument("--dry_run", action="store_true", help="with --push: show what would be uploaded")


@named(NAMES)
def export(args: argparse.Namespace) -> None:
    """Writes, proves and uploads what the flags name; raises InputError."""
    formats = tuple(part.strip() for part in args.formats.split(","))
    if not set(formats) <= {"pytorch", "flax"}:
        raise InputError(f"--formats is {args.formats}; give pytorch, flax, or pytorch,flax.")
    if args.dtype not in ("float32", "bfloat16"):
        raise InputError(f"--dtype is {args.dtype}; give float32 or bfloat16.")
    if args.extra_ids is not None and args.extra_ids < 0:
        raise InputError(f"--extra_ids is {args.extra_ids}; give a number of sentinels, 0 or more.")
    if not 0 <= args.dropout < 1:
        raise InputError(f"--dropout is {args.dropout}; give a share from 0 to below 1.")
    if args.dry_run and not args.push:
        raise InputError("--dry_run shows what --push would upload; add --push=user/name.")
    if args.push:
        from limba.export.destinations import check_target, push

        check_target(args.push, args.dry_run)
    with environment.quiet_imports():
        from limba.export import huggingface
        from limba.export.record import Choices
    card = CardConfig(args.language or None, args.licence, args.datasets or None, args.hardware, args.trc)
    source = model.find(args.model_dir, args.config, imports=args.imports)
    folder = "encoder" if args.encoder_only else "huggingface"
    out = args.out_dir or f"{source.directory}/{folder}"
    choices = Choices(
        formats=formats,
        dtype=args.dtype,
        vocabulary=args.vocabulary,
        extra_ids=args.extra_ids,
        checks=not args.no_check,
        card=card,
        dropout=args.dropout,
        average=not args.trained_weights,
        transformers=args.transformers,
        encoder_only=args.encoder_only,
    )
    steps = huggingface.chosen_steps(args.steps, source.steps, source.best_step)
    newest = max(source.steps)
    if args.steps is None and steps != [newest]:
        print(f"step {steps[0]:,}: the run's best one; --steps=latest is step {newest:,}", flush=True)
    if "://" in out:
        if args.push:
            raise InputError(f"--push uploads local folders, and OUT_DIR is {out}; push in a command of its own.")
        huggingface.export_to_bucket(source, out, steps, choices)
        return
    folders = huggingface.export(source, Path(os.path.expanduser(out)).resolve(), steps, choices)
    if args.push:
        push(args.push, folders, args.dry_run)


def import_model(source: str, out: str) -> None:
    """Makes a Limba checkpoint and prints its path; raises InputError."""
    with environment.quiet_imports():
        from limba.export.huggingface import import_folder
    kinds.check_local(out, "OUT")
    sentence = import_folder(source, Path(os.path.expanduser(out)).resolve())
    print(worded(sentence, {"RunConfig.initial_checkpoint_path": "INITIAL_CHECKPOINT_PATH"}))


def list_arrays(path: str, npz: str | None) -> None:
    """Prints the arrays of a checkpoint, and writes them to a .npz file if one is named; raises InputError."""
    if npz:
        kinds.check_local(npz, "--npz")
    import numpy as np

    from limba.export import t5x

    tree, where = t5x.open_tree(path)
    total = 0
    for name in sorted(tree):
        shape, dtype = tree.describe(name)
        if name.startswith("target/"):  # parameters; the rest is the optimizer's state
            total += int(np.prod(shape))
        print(f"{name}  {list(shape)}  {dtype}")
    state = "" if getattr(tree, "has_optimizer", True) else f", {t5x.NO_STATE}"
    print(f"{where}: step {int(np.asarray(tree['state/step'])):,}, {total:,} parameters{state}")
    if npz:
        t5x.write_npz(tree, npz)
        print(f"arrays: {npz}")
