"""The command `limba`: one table of commands, each a module with `run(argv)`."""

from __future__ import annotations

import importlib
from collections.abc import Sequence

from limba.cli import program
from limba.config import environment

COMMANDS = {
    "train": "limba.cli.train.train",
    "demo": "limba.cli.train.demo",
    "generate": "limba.cli.use.generate",
    "infer": "limba.cli.use.infer",
    "score": "limba.cli.use.score",
    "evaluate": "limba.cli.use.evaluate",
    "huggingface": "limba.cli.use.huggingface",
    "t5x": "limba.cli.use.t5x",
    "inspect": "limba.cli.data.inspect",
    "prepare": "limba.cli.data.prepare",
    "vocabulary": "limba.cli.data.vocabulary",
    "report": "limba.cli.runs.report",
}
ON_DEVICES = ("train", "demo", "infer", "score", "evaluate")  # the commands that are worth large pages


def main(argv: Sequence[str]) -> int:
    """Runs the command that the first argument names; returns the exit status."""
    command, *rest = argv
    environment.set_variables()
    if command in ON_DEVICES:
        environment.use_large_pages()
    return program.exit_code(importlib.import_module(COMMANDS[command]).run, rest)
