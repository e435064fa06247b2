"""`limba report`: summarizes runs, and shows them on a page that stands alone or follows them live."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from limba.api import GinFlags, Parser
from limba.config import InputError, RunConfig, environment, foreign, kinds
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
PAGE, COMPARED = "report.html", "compared.html"
MOST_RUNS = 8
READ = 4_096  # bytes of a file by which a page of ours is known


def run(argv: Sequence[str]) -> None:
    """Prints the report of the runs that the flags name and writes or serves their page; raises InputError."""
    given = _given(argv)
    token = serving.checked(given.host, given.port, given.token, "--serve")
    with environment.quiet_imports():
        from limba.api import RunDirectory
        from limba.tools.pages.page.runs import Run
    if given.gin_file:
        config = GinFlags.run_of(given).config
        found = [(RunDirectory(config.model_dir), config)]
    else:
        found = [(directory := RunDirectory(name), _config(name, directory)) for name in given.model]
    labels = _labels([config.model_dir for _, config in found])
    runs = [Run(label, *each) for label, each in zip(labels, found, strict=True)]
    for each in runs:
        each.update()
    if given.serves:
        _serve(runs, given, token)
        return
    if not any(len(each.train) for each in runs):
        raise InputError(
            f"{runs[0].directory} holds no figures of training yet: its run starts, compiles its step, or ended before"
            " the first line; ask again later, or give --serve, which waits for them."
        )
    _check_output(given.output)
    for each in runs:
        _print(each, given.output, is_only=len(runs) == 1)
    print(f"report              {_write(runs, given.output)}")


def _given(argv: Sequence[str]) -> argparse.Namespace:
    parser = Parser("report", ABOUT)
    parser.add_object("model", "MODEL_DIR", "directories of runs, local or gs://…", takes_several=True)
    parser.add_argument(
        "--serve", nargs="?", const="", metavar="PORT",
        help=f"serve the page and follow the run; default of PORT: the first free one from {serving.FIRST_PORT} on",
    )  # fmt: skip
    serving.add_flags(parser)
    parser.add_argument("--output", metavar="FILE", help=f"the page's file; default: MODEL_DIR/{PAGE}")
    GinFlags(parser, "MODEL_DIR")
    given = parser.parse(argv)
    if given.gin and not given.gin_file:
        raise InputError(f"--gin.{given.gin[0]} goes with --gin_file; add that, or leave it out.")
    given.model, given.serves, given.port = given.model or [], given.serve is not None, None
    if given.serve and given.serve.lstrip("-").isdecimal():
        given.port = int(given.serve)
    elif given.serve:  # limba report --serve MODEL_DIR
        given.model.append(given.serve)
    if not given.model and not given.gin_file:
        raise InputError("No run is given; write limba report MODEL_DIR.")
    if given.gin_file and given.model:
        raise InputError(f"Both {given.model[0]} and --gin_file are given; give one.")
    given.model = list(dict.fromkeys(given.model))
    if len(given.model) > MOST_RUNS:
        raise InputError(f"{len(given.model)} runs are given; give at most {MOST_RUNS}, which still can be told apart.")
    if not given.serves and (given.token is not None or given.host != serving.HERE):
        raise InputError("--host and --token go with --serve; add that, or leave them out.")
    if given.serves and given.output is not None:
        raise InputError("--output goes without --serve, which writes nothing; leave one out.")
    return given


def _config(name: str, directory: RunDirectory) -> RunConfig:
    """Returns the configuration of a run; InputError if the directory holds none."""
    if not directory.path.is_dir():
        raise InputError(f"{name} is not a folder; name the MODEL_DIR of a run.")
    config = directory.config()
    if config is None:
        raise InputError(
            f"{directory.path} has no config.json: it holds no run, or one that has not begun; name the MODEL_DIR of a"
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
    for count in range(1, max(map(len, parts), default=1) + 1):
        labels = ["/".join(each[-count:]) for each in parts]
        if len(set(labels)) == len(labels):
            return labels
    return [f"{label} ({labels[:i].count(label) + 1})" if label in labels[:i] else label
            for i, label in enumerate("/".join(each[-1:]) for each in parts)]  # fmt: skip


def _check_output(output: str | None) -> None:
    """Raises InputError for a file that is there and is no page of ours."""
    from limba.tools.pages.page.page import MARK

    if output is None or "://" in output:
        return
    path = Path(output).expanduser()
    if path.is_dir():
        raise InputError(f"--output is {output}, a folder; name a file in it, such as {path / PAGE}.")
    if path.exists() and not (foreign.is_regular(path) and MARK.encode() in foreign.bytes_of(path, READ)):
        raise InputError(f"--output is {output}, which exists and is no report; name another file.")


def _print(each: Run, output: str | None, is_only: bool) -> None:
    """Prints a run's summary, and draws its loss into its directory, or beside the page where that is named."""
    if not len(each.train):
        print(f"run                 {each.directory}: no figures yet\n")
        return
    text = each.found.summary(each.config)
    if each.standing is not None:
        print(each.standing.text)
    if not is_only:
        print(f"run                 {each.directory}")
    print(text)
    for problem in each.problems:
        print(f"note                {problem}")
    if output is None:
        print(f"picture             {each.found.plot_loss(each.config)}" + ("" if is_only else "\n"))


def _write(runs: Sequence[Run], output: str | None) -> str:
    from limba.api import write_whole
    from limba.tools.pages.page.page import page_of

    place = str(runs[0].directory / (PAGE if len(runs) == 1 else COMPARED))
    if output is not None:
        kinds.check_address(output, "The path")
        place = output if "://" in output else str(Path(output).expanduser().resolve())
    write_whole(place, page_of(runs))
    return place


def _serve(runs: Sequence[Run], given: argparse.Namespace, token: str | None) -> None:
    from limba.tools.pages.page.page import ReportServer

    def make(port: int) -> ReportServer:
        return ReportServer(given.host, port, runs, token)

    with serving.listening(make, given.host, given.port, "--serve") as server:
        serving.serve(server)
