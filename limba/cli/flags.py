"""The flags of a run: gin files and overrides, or what another trainer has in their place."""

import dataclasses
import functools
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from limba import tool_registry
from limba.cli.arguments import Parser
from limba.cli.gin import GinRun, continued, read_run
from limba.cli.gin.read import hidden_macros
from limba.cli.gin.statements import REQUIRED, read
from limba.config import InputError, kinds
from limba.data.task_modules import ROOT

PROFILE_STEPS = 3  # that --profile traces when it has no value
ABOUT = r"""Trains the run that gin files describe, and resumes it from its newest checkpoint.

    limba train gin/demo.gin --gin.CORPUS='data/*.txt' --gin.VOCABULARY=byte --gin.VOCAB_SIZE=384 \
      --gin.TRAIN_STEPS=20 --gin.MODEL_DIR=runs/first

NAME in --gin.NAME=VALUE is one of the names below, or any field of limba/config/ (--gin.config.ModelConfig.emb_dim=64).
VALUE is a number, True, False, None, a string with or without quotation marks, or a Python tuple or dictionary:
--gin.TASK_FEATURE_LENGTHS="{'inputs': 512}".

A gin file is code like a script: it imports the modules that it names. Train somebody else's only if you would run
their scripts (docs/development/security.md)."""


def parse_args(
    argv: Sequence[str], command: str = "train", description: str = ABOUT, more: Callable[[Parser], None] | None = None
) -> GinRun:
    """Returns the run that the flags describe; `text` is what MODEL_DIR/config.gin will hold.

    Raises InputError, one sentence, for invalid flags or values. Prints and exits for --help.
    """
    parser = parser_of(command, description, more)
    script = script_of(argv)
    if script is not None:
        argv = script.rest
    args = parser.parse([_with_steps(argument) for argument in argv])
    folders = search_folders(args.gin_search_paths)
    if args.help:
        parser.epilog = _names_in(args.gin_file, args.gin, folders)
        parser.print_help()
        raise SystemExit(0)
    if args.profile is not None and not (args.profile.isdecimal() and int(args.profile) > 0):
        raise InputError(f"--profile={args.profile} is not a number of steps; write --profile or --profile=5.")
    if script is None and not args.gin_file:
        raise InputError(f"No gin file is given; write limba {command} gin/demo.gin or --gin_file=PATH; see --help.")
    migrate = tool_registry.find("migrate")
    if script is not None and migrate is not None:
        run = migrate.read_script(script, args.gin, folders)
    else:
        run = reader_of(args.gin_file, folders)(args.gin, folders)
    if args.profile is None:
        return run
    # After the text, since the profile belongs to this start, not to the run.
    return run._replace(config=dataclasses.replace(run.config, profile_steps=int(args.profile)))


def _with_steps(argument: str) -> str:
    """Returns --profile with its default value; argparse would take the next argument, a gin file, as its value."""
    if argument in ("--profile", "-profile"):
        return f"--profile={PROFILE_STEPS}"
    return argument


def parser_of(command: str, description: str, more: Callable[[Parser], None] | None = None) -> Parser:
    """Returns the parser of the flags that describe a run; `more` adds a command's own, for its --help."""
    parser = Parser(command, description, add_help=False)
    if more is not None:
        more(parser)
    parser.add_object("gin_file", "GIN_FILE", "a gin file; later files replace values", takes_several=True)
    migrate = tool_registry.find("migrate")
    if command == "train" and migrate is not None:
        parser.description = f"{description}{migrate.ABOUT}"
    parser.add_argument("--gin_search_paths", metavar="A,B", action="append", default=[], help="folders of gin files")
    parser.add_argument(
        "--profile", metavar="STEPS", help=f"steps to trace for MODEL_DIR/profile (default {PROFILE_STEPS})"
    )
    parser.add_argument("--gin.NAME", metavar="VALUE", help="set NAME; replaces the value of the gin files")
    parser.add_argument("-h", "--help", "--helpfull", action="store_true", help="show this and the gin files' names")
    return parser


def _names_in(files: Sequence[str], overrides: Sequence[str], search_paths: Sequence[Path]) -> str:
    """Returns the part of --help that lists the names in gin files, and the gin files."""
    files = files or ["gin/models/t5_1_1/base.gin", "gin/runs/pretrain.gin"]
    source = read(files, overrides, search_paths)
    continued.complete(source)
    macros = [binding for binding in source.bindings if not binding.field]
    # The first file that sets a name explains it; the last one decides its value.
    comments = {binding.name: binding.comment for binding in reversed(macros)}
    values = {binding.name: binding.value for binding in macros}
    hidden = hidden_macros(source)
    lines = [f"Names in {', '.join(files)}:"]
    for name, value in values.items():
        instead = hidden.get(name)
        if instead is not None:
            lines.append(f"  {name} (changes nothing: {instead.location} sets {instead.name} to {instead.value!r})")
            continue
        shown = "required" if value == REQUIRED else repr(value)
        lines.append(f"  {name} ({shown})  {comments[name]}".rstrip())
    runs = sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "gin").glob("*.gin"))
    return "\n".join([*lines, "", f"Complete runs: {', '.join(runs)}", "Models: gin/models/FAMILY/SIZE.gin"])


def search_folders(flags: Sequence[str]) -> list[Path]:
    """Returns the folders of --gin_search_paths flags, each a list with commas; InputError for one that is missing."""
    names = [folder for paths in flags for folder in paths.split(",") if folder]
    for name in names:
        kinds.check_local(name, "--gin_search_paths")
    folders = [Path(os.path.expanduser(name)) for name in names]
    for folder in folders:
        if not folder.is_dir():
            raise InputError(f"--gin_search_paths names {folder}, which is not a folder; correct it, or leave it out.")
    return folders


def reader_of(files: Sequence[str], folders: Sequence[Path]) -> Callable[..., GinRun]:
    """Returns the function that reads these gin files: another trainer's are translated."""
    migrate = tool_registry.find("migrate")
    translating = None if migrate is None else migrate.reader_of(files, folders)
    if translating is not None:
        return translating
    return functools.partial(read_run, files)


def script_of(argv: Sequence[str]) -> Any:
    """Returns the flags of another trainer's scripts in the arguments; None if there are none."""
    migrate = tool_registry.find("migrate")
    return None if migrate is None else migrate.script_of(argv)
