"""`limba report`: summarizes runs, and shows them on a page that stands alone or follows them live."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from limba.api import GinFlags, Parser
from limba.config import InputError, RunConfig, environment, kinds, untrusted_files
from limba.tools.pages import serving

if TYPE_CHECKING:
    from limba.api import RunDirectory
    from limba.tools.pages.page.runs import Run

ABOUT = """Prints the first and last figures of a run, bits per byte by character set, and its samples by step, from
its metrics.jsonl; draws MODEL_DIR/loss.png; and writes MODEL_DIR/report.html, a page that needs no network: charts over
steps, tokens, hours and FLOPs, samples by step, events, configuration. The run may still be training. Several runs are
shown side by side, in the first one's compared.html.

    limba report MODEL_DIR
    limba report MODEL_DIR OTHER_MODEL_DIR --output=page.html
    limba report MODEL_DIR --serve

With --serve nothing is written: the page is served on this machine and follows the run. With --host it is served to
others too, and asks for a token."""
PAGE = "report.html"
COMPARED = "compared.html"
MOST_RUNS = 8
READ = 4_096  # bytes of a file, in which the mark of our pages is looked for


def run(argv: Sequence[str]) -> None:
    """Prints the report of the runs that the flags name and writes or serves their page; raises InputError."""
    flags = _flags(argv)
    token = serving.checked(flags.host, flags.port, flags.token, "--serve")
    runs = _runs(flags)
    for page_run in runs:
        page_run.update()
    if flags.serves:
        _serve(runs, flags, token)
        return
    if not any(len(page_run.train) for page_run in runs):
        raise InputError(
            f"{runs[0].directory} has no figures of training yet: its run starts, compiles its step, or ended before"
            " the first line; ask again later, or give --serve, which waits for them."
        )
    _check_output(flags.output)
    for page_run in runs:
        _print(page_run, flags.output, is_only=len(runs) == 1)
    print(f"report              {_write(runs, flags.output)}")


def _flags(argv: Sequence[str]) -> argparse.Namespace:
    """Returns the flags, with `serves` and `port` for the two meanings of --serve; InputError if they do not fit."""
    parser = Parser("report", ABOUT)
    parser.add_object("model", "MODEL_DIR", "directories of runs, local or gs://…", takes_several=True)
    parser.add_argument(
        "--serve", nargs="?", const="", metavar="PORT",
        help=f"serve the page and follow the run; default of PORT: the first free one from {serving.FIRST_PORT} on",
    )  # fmt: skip
    serving.add_flags(parser)
    parser.add_argument("--output", metavar="FILE", help=f"the page's file; default: MODEL_DIR/{PAGE}")
    GinFlags(parser, "MODEL_DIR")
    flags = parser.parse(argv)
    if flags.gin and not flags.gin_file:
        raise InputError(f"--gin.{flags.gin[0]} goes with --gin_file; add that, or leave it out.")
    flags.model = flags.model or []
    flags.serves = flags.serve is not None
    flags.port = None
    if flags.serve and flags.serve.lstrip("-").isdecimal():
        flags.port = int(flags.serve)
    elif flags.serve:  # limba report --serve MODEL_DIR, which argparse reads as the port
        flags.model.append(flags.serve)
    if not flags.model and not flags.gin_file:
        raise InputError("No run is given; write limba report MODEL_DIR.")
    if flags.gin_file and flags.model:
        raise InputError(f"Both {flags.model[0]} and --gin_file are given; give one.")
    flags.model = list(dict.fromkeys(flags.model))
    if len(flags.model) > MOST_RUNS:
        raise InputError(f"{len(flags.model)} runs are given; give at most {MOST_RUNS}, which can still be told apart.")
    if not flags.serves and (flags.token is not None or flags.host != serving.HERE):
        raise InputError("--host and --token go with --serve; add that, or leave them out.")
    if flags.serves and flags.output is not None:
        raise InputError("--output goes without --serve, which writes nothing; leave one out.")
    return flags


def _runs(flags: argparse.Namespace) -> list[Run]:
    with environment.quiet_imports():
        from limba.api import RunDirectory
        from limba.tools.pages.page.runs import Run
    directories = []
    configs = []
    if flags.gin_file:
        configs.append(GinFlags.run_of(flags).config)
        directories.append(RunDirectory(configs[0].model_dir))
    for name in flags.model:
        directory = RunDirectory(name)
        directories.append(directory)
        configs.append(_config(name, directory))
    labels = _labels([config.model_dir for config in configs])
    keeps_config = bool(flags.gin_file)
    return [Run(*parts, keeps_config) for parts in zip(labels, directories, configs, strict=True)]


def _config(name: str, directory: RunDirectory) -> RunConfig:
    """Returns the configuration of a run; InputError if the directory is not the directory of a run."""
    if not directory.path.is_dir():
        raise InputError(f"{name} is not a folder; name the MODEL_DIR of a run.")
    config = directory.config()
    if config is None:
        raise InputError(
            f"{directory.path} has no config.json: it is not a run, or one that has not begun; name the MODEL_DIR of a"
            " run."
        )
    if not isinstance(config, RunConfig):
        raise InputError(f"{name} is an imported model, not a run; name the MODEL_DIR of a run.")
    return config


def _labels(directories: Sequence[str]) -> list[str]:
    """Returns short names for runs, with as many folders as tell them apart.

    >>> _labels(["/runs/ro"]), _labels(["gs://b/x/ro", "/y/ro/"]), _labels(["/a", "/a"])
    (['ro'], ['x/ro', 'y/ro'], ['a', 'a (2)'])
    """
    parts = [[part for part in directory.split("/") if part] or [directory] for directory in directories]
    most_folders = max(map(len, parts), default=1)
    for count in range(1, most_folders + 1):
        labels = ["/".join(names[-count:]) for names in parts]
        if len(set(labels)) == len(labels):
            return labels
    # The same directory is given twice, in two spellings: its labels are numbered.
    labels = []
    times = Counter[str]()
    for names in parts:
        times[names[-1]] += 1
        labels.append(names[-1] if times[names[-1]] == 1 else f"{names[-1]} ({times[names[-1]]})")
    return labels


def _check_output(output: str | None) -> None:
    """Raises InputError for a file that exists and is not a report: it would be overwritten."""
    from limba.tools.pages.page.page import MARK

    if output is None or "://" in output:
        return
    path = Path(output).expanduser()
    if path.is_dir():
        raise InputError(f"--output is {output}, a folder; name a file in it, such as {path / PAGE}.")
    if not path.exists():
        return
    is_report = untrusted_files.is_regular(path) and MARK.encode() in untrusted_files.bytes_of(path, READ)
    if not is_report:
        raise InputError(f"--output is {output}, which exists and is not a report; name another file.")


def _print(run: Run, output: str | None, is_only: bool) -> None:
    """Prints a run's summary, and draws its loss into its directory, unless the page goes elsewhere."""
    if not len(run.train):
        print(f"run                 {run.directory}: no figures yet\n")
        return
    summary = run.run_directory.summary(run.config)
    if run.standing is not None:
        print(run.standing.text)
    if not is_only:
        print(f"run                 {run.directory}")
    print(summary)
    for problem in run.problems:
        print(f"note                {problem}")
    if output is None:
        print(f"picture             {run.run_directory.plot_loss(run.config)}")
        if not is_only:
            print()


def _write(runs: Sequence[Run], output: str | None) -> str:
    """Writes the page; returns its path."""
    from limba.api import write_whole
    from limba.tools.pages.page.page import page_of

    if output is None:
        path = str(runs[0].directory / (PAGE if len(runs) == 1 else COMPARED))
    else:
        kinds.check_address(output, "The path")
        path = output if "://" in output else str(Path(output).expanduser().resolve())
    write_whole(path, page_of(runs))
    return path


def _serve(runs: Sequence[Run], flags: argparse.Namespace, token: str | None) -> None:
    from limba.tools.pages.page.server import ReportServer

    def make(port: int) -> ReportServer:
        return ReportServer(flags.host, port, runs, token)

    with serving.listening(make, flags.host, flags.port, "--serve") as server:
        serving.serve(server)
