"""Checkpoints to Hugging Face's folders and back: the flags of `export` and `import`."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path

from limba.cli.arguments import Parser
from limba.cli.use import model
from limba.config import CardConfig, InputError, environment, kinds
from limba.config.errors import named, worded

EXPORT = """Turns Limba or T5X checkpoints into folders for transformers, and proves that they give the same results.

    limba convert export MODEL_DIR [OUT_DIR] [--steps=all] [--dtype=bfloat16]
    limba convert export MODEL_DIR --push=user/name --dry-run

OUT_DIR (default MODEL_DIR/huggingface) gets one folder step_<N> for each checkpoint. Finished folders are kept. A
folder whose proof fails is renamed step_<N>.failed."""
IMPORT = """Makes a Limba checkpoint at step 0 from a Hugging Face folder or a model of the hub.

    limba convert import DIR OUT
    limba convert import user/name[@revision] OUT

It reads model.safetensors, flax_model.msgpack and pytorch_model.bin, of which it runs nothing. A private model needs
HF_TOKEN. OUT is for INITIAL_CHECKPOINT_PATH, which also takes the first two forms, and hub ids, directly."""
NAMES = {f"CardConfig.{name}": f"--{name}" for name in ("language", "licence", "datasets")}
NAMES |= {"`config`": "--config", "`vocabulary`": "--vocabulary"}
USAGE = "usage: limba convert export|import ...; add --help to either for details."


def add_export_flags(parser: Parser) -> None:
    """Adds the flags of writing folders for transformers."""
    parser.add_argument("--steps", default="latest", help="latest, all, or numbers such as 1000,2000")
    parser.add_argument("--formats", default="pytorch,flax", help="pytorch, flax, or pytorch,flax")
    parser.add_argument("--dtype", default="float32", help="float32 or bfloat16")
    parser.add_argument(
        "--config",
        metavar="FILE.gin",
        help="network that replaces the run's configuration; give --vocabulary too",
    )
    parser.add_argument("--vocabulary", help="vocabulary that replaces the run's: a SentencePiece model, byte, or none")
    parser.add_argument("--extra_ids", type=int, help="number of sentinels to add to --vocabulary")
    model.add_import_flag(parser)
    parser.add_argument("--no-check", action="store_true", help="skip the proof")
    parser.add_argument("--licence", help="licence for the model card, by the hub's name: apache-2.0")
    parser.add_argument("--hardware", help="training hardware for the model card")
    parser.add_argument("--language", default="", help="languages for the model card, by their codes: ro or en,ms")
    parser.add_argument("--datasets", default="", help="data sets for the model card; default: the task's on the hub")
    parser.add_argument(
        "--dropout", type=float, default=0.1, help="dropout in config.json, which fine-tuning uses (default 0.1)"
    )
    parser.add_argument(
        "--trained_weights", action="store_true",
        help="of a run that evaluates an average of its weights: the weights as they were trained",
    )  # fmt: skip
    parser.add_argument(
        "--transformers", type=int, choices=(4, 5), default=5,
        help="version that will load the folder (default 5); only for an untied umT5 they differ",
    )  # fmt: skip
    parser.add_argument("--trc", action="store_true", help="thank the TPU Research Cloud in the model card")
    parser.add_argument("--push", metavar="USER/NAME", help="upload to the hub with the token in HF_TOKEN")
    parser.add_argument("--dry-run", action="store_true", help="with --push: show what would be uploaded")


@named(NAMES)
def export(given: argparse.Namespace) -> None:
    """Writes, proves and uploads what the flags name; raises InputError."""
    formats = tuple(part.strip() for part in given.formats.split(","))
    if not set(formats) <= {"pytorch", "flax"}:
        raise InputError(f"--formats is {given.formats}; give pytorch, flax, or pytorch,flax.")
    if given.dtype not in ("float32", "bfloat16"):
        raise InputError(f"--dtype is {given.dtype}; give float32 or bfloat16.")
    if given.extra_ids is not None and given.extra_ids < 0:
        raise InputError(f"--extra_ids is {given.extra_ids}; give a number of sentinels, 0 or more.")
    if not 0 <= given.dropout < 1:
        raise InputError(f"--dropout is {given.dropout}; give a share from 0 to below 1.")
    if given.dry_run and not given.push:
        raise InputError("--dry-run shows what --push would upload; add --push=user/name.")
    if given.push:
        from limba.export.card import check_target, push

        check_target(given.push, given.dry_run)
    with environment.quiet_imports():
        from limba.export import huggingface
    card = CardConfig(given.language or None, given.licence, given.datasets or None, given.hardware, given.trc)
    source = model.find(given.model_dir, given.config, imports=given.imports)
    out = given.out_dir or f"{source.directory}/huggingface"
    choices = huggingface.Choices(
        formats, given.dtype, given.vocabulary, given.extra_ids, not given.no_check, card, given.dropout,
        not given.trained_weights, given.transformers,
    )  # fmt: skip
    steps = huggingface.chosen_steps(given.steps, source.steps)
    if "://" in out:
        if given.push:
            raise InputError(f"--push uploads local folders, and OUT_DIR is {out}; push in a command of its own.")
        huggingface.export_to_bucket(source, out, steps, choices)
        return
    folders = huggingface.export(source, Path(os.path.expanduser(out)).resolve(), steps, choices)
    if given.push:
        push(given.push, folders, given.dry_run)


def import_model(source: str, out: str) -> None:
    """Makes a Limba checkpoint and prints its path; raises InputError."""
    with environment.quiet_imports():
        from limba.export.huggingface import import_folder
    kinds.check_local(out, "OUT")
    sentence = import_folder(source, Path(os.path.expanduser(out)).resolve())
    print(worded(sentence, {"RunConfig.initial_checkpoint_path": "INITIAL_CHECKPOINT_PATH"}))


def run(argv: Sequence[str]) -> None:
    """Exports or imports, as the first argument says; raises InputError."""
    command, *rest = argv or ["--help"]
    if command in ("-h", "--help"):
        print(USAGE)
    elif command == "export":
        parser = Parser("export", EXPORT, "limba convert")
        parser.add_argument("model_dir", metavar="MODEL_DIR", help="a Limba or T5X run, or one of its checkpoints")
        parser.add_argument("out_dir", metavar="OUT_DIR", nargs="?")
        add_export_flags(parser)
        export(parser.parse(rest))
    elif command == "import":
        parser = Parser("import", IMPORT, "limba convert")
        parser.add_argument("source", metavar="DIR|user/name", help="a Hugging Face folder, or a hub id")
        parser.add_argument("out", metavar="OUT", help="a new run directory; its checkpoint is OUT/checkpoints/0")
        given = parser.parse(rest)
        import_model(given.source, given.out)
    else:
        raise InputError(f"The command {command} is not known; give export or import.")
