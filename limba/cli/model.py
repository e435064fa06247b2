"""Opens the trained model that the flags of a command name."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from limba.cli.arguments import Parser
from limba.cli.flags import reader_of, search_folders
from limba.cli.gin import GinRun, read_model, read_own
from limba.cli.gin.statements import OWN_FILE
from limba.config import InputError, RunConfig, environment, named, saved_config
from limba.storage.files import read_text, resolved

if TYPE_CHECKING:
    from limba.inference.load import TrainedModel
    from limba.inference.source import Source

# What errors call fields and arguments -> the flags by which the user of a command sets them.
NAMES = {
    "`vocabulary`": "--vocabulary",
    "DataConfig.vocabulary": "--vocabulary",
    "`config`": "--gin_file",
}
# What errors call the methods of a model -> where the user of a command finds them.
METHODS = {
    "`generate`": "limba generate",
    "`fill`": "limba generate --fill",
    "`encode`": "limba.load(MODEL).encode in Python",
    "`log_likelihoods`": "limba.load(MODEL).log_likelihoods in Python",
}
MODEL = "a Limba or T5X run, one of its checkpoints, a Hugging Face folder, or a hub id"


def whole_number(text: str) -> int:
    """Returns a flag's value as an integer above 0; other values are errors."""
    if not (text.isdecimal() and int(text) > 0):
        raise argparse.ArgumentTypeError(f"{text} is not a whole number above 0")
    return int(text)


def add_flags(parser: Parser) -> None:
    """Adds the flags that name a model: MODEL, or the gin files of a run."""
    parser.add_object("model", "MODEL", MODEL)
    parser.add_argument(
        "--step", type=int, help="step of the checkpoint; default: the best one if the run keeps one, else the newest"
    )
    parser.add_argument("--vocabulary", metavar="PATH|byte", help="vocabulary that replaces the model's")
    GinFlags(parser, "MODEL")
    parser.add_argument(
        "--checkpoint", metavar="PATH",
        help="with --gin_file: the model; default: MODEL_DIR/best, its newest, or INITIAL_CHECKPOINT_PATH",
    )  # fmt: skip


def add_import_flag(parser: Parser) -> None:
    """Adds the flag that allows imports.

    >>> parser = Parser("play", "Serves a model.")
    >>> add_import_flag(parser)
    >>> parser.parse(["--import=my_tasks"]).imports
    ['my_tasks']
    """
    parser.add_argument(
        "--import", action="append", default=[], metavar="MODULE", dest="imports",
        help="package or module that the model's configuration may import, besides tasks/'s modules: its code runs",
    )  # fmt: skip


class GinFlags:
    """The flags that name a run by its gin files, instead of an object of the command that is called `replaced`.

    >>> parser = Parser("inspect", "Shows documents.")
    >>> flags = GinFlags(parser, "TASK")
    >>> args = parser.parse(["--gin_file=gin/demo.gin", "--gin.MODEL_DIR=runs/a", "--gin.BATCH_SIZE=16"])
    >>> flags.run_of(args).config.data.batch_size
    16
    """

    def __init__(self, parser: Parser, replaced: str):
        parser.add_argument(
            "--gin_file", action="append", default=[], metavar="FILE",
            help=f"gin file of the run, instead of {replaced}: MODEL_DIR/config.gin, or files of gin/",
        )  # fmt: skip
        parser.add_argument("--gin_search_paths", default="", metavar="A,B", help="folders to look for gin files in")
        parser.add_argument("--gin.NAME", metavar="VALUE", dest="_", help="set any name of the run's gin file")
        add_import_flag(parser)

    @staticmethod
    def run_of(args: argparse.Namespace) -> GinRun:
        """Returns the run that these flags describe."""
        folders = search_folders([args.gin_search_paths])
        with environment.quiet_imports():  # of the task modules
            return reader_of(args.gin_file, folders)(args.gin, folders, allowed=args.imports)


def find(path: str, gin_file: str | None = None, gin: Sequence[str] = (), imports: Sequence[str] = ()) -> Source:
    """Like `limba.inference.source.find`, for models that gin describes too.

    `gin_file` describes the network; `gin` (NAME=VALUE) overrides values of the run's config.gin. Files of
    the run are data: a module that they name is imported only if it belongs to Limba, to tasks/ or to `imports`.
    """
    from limba.formats.open import LIMBA, open_path
    from limba.inference import source

    if gin_file is not None:
        return source.find(path, read_model(gin_file, gin), allowed=imports)
    if not gin:
        return source.find(path, allowed=imports)
    opened = open_path(path, with_weights=False)
    file = opened.directory / OWN_FILE
    if opened.kind != LIMBA or not file.exists():
        raise InputError(
            f"--gin.{gin[0].partition('=')[0]} changes a run's config.gin, and {path} has none; leave it out."
        )
    with environment.quiet_imports():  # of the task modules
        run = read_own(read_text(file), str(file), gin, imports).config
    return source.find(path, saved_config.moved(run, str(opened.directory)), allowed=imports)


def check_vocabulary(trained: TrainedModel) -> None:
    """Raises InputError if the model has no vocabulary."""
    with named(NAMES):
        trained.vocabulary  # noqa: B018  the property raises


def check_names_one_model(args: argparse.Namespace) -> None:
    """Raises InputError if the flags name no model, or two."""
    if args.model and args.checkpoint:
        raise InputError(f"Both MODEL ({args.model}) and --checkpoint ({args.checkpoint}) are given; give one.")
    if not (args.model or args.checkpoint or args.gin_file):
        raise InputError("No model is given; name a run, a folder or a hub id, or --gin_file=MODEL_DIR/config.gin.")


def opened(args: argparse.Namespace, in_float32: Callable[[Source], bool] = lambda source: False) -> TrainedModel:
    """Returns the model that the flags name, in its run's dtype; InputError if they name none.

    `in_float32` decides whether a model that is named without gin files computes in float32.
    """
    with environment.quiet_imports():
        from limba.inference import source
        from limba.inference.load import load
        from limba.sharding import joining
        from limba.sharding.mesh import make_mesh
    joining.join_hosts()
    check_names_one_model(args)
    path = args.checkpoint or args.model
    if not args.gin_file:
        with named(NAMES):
            chosen = find(path, gin=args.gin, imports=args.imports)
            config = None if in_float32(chosen) else chosen.run
            return load(chosen, step=args.step, config=config, vocabulary=args.vocabulary)
    run = GinFlags.run_of(args)
    # An error names the vocabulary as the user has: by its flag or by its gin name.
    names = {**run.names, **NAMES} if args.vocabulary else {**NAMES, **run.names}
    with named(names):
        chosen = source.find(path or _default_checkpoint(run.config), run.config, allowed=args.imports)
        step = args.step
        if step is None and path:  # a path that was named: its newest checkpoint, not its best one
            step = max(chosen.steps)
        mesh = None
        if any(
            "MeshConfig" in override for override in args.gin
        ):  # the user's own mesh is kept even if it does not fit
            mesh = make_mesh(run.config.mesh)
        return load(chosen, step=step, config=run.config, vocabulary=args.vocabulary, mesh=mesh)


def _default_checkpoint(run: RunConfig) -> str:
    """Returns the path of a run's newest checkpoint, or of its initial checkpoint."""
    from limba.formats.limba_checkpoint import checkpoints_of

    for path in (run.model_dir, f"{run.model_dir}/best"):
        if checkpoints_of(resolved(path)):
            return path
    if run.initial_checkpoint_path:
        return run.initial_checkpoint_path
    raise InputError(f"MODEL_DIR {run.model_dir} holds no checkpoint; give --checkpoint=PATH, or its MODEL_DIR.")
