"""`limba train gin/ro_t5x_base.gin --gin.MODEL_DIR=DIR`: trains the run that gin files describe.

First of all it listens to the signals that stop a run. Then it reads the gin files, imports JAX, joins the other
processes, says what it continues from and what is wrong, and calls `limba.run.train`.
"""

import os
import shlex
import sys
from collections.abc import Sequence

from limba import tool_registry
from limba.cli.flags import parse_args
from limba.cli.gin import GinRun
from limba.config import RestartError, RunConfig, SentenceError, StorageError, environment, named
from limba.sharding import preemption

# An environment variable. "no": a script goes on after this run, and says itself what to type next.
NEXT = "LIMBA_NEXT"


def run(argv: Sequence[str]) -> None:
    """Trains the run that the flags describe, or only evaluates it; raises the `SENTENCES` of limba/cli/program.py."""
    with preemption.listening():
        with environment.quiet_imports():
            gin_run = parse_args(argv)
            if gin_run.evaluation:
                from limba.cli import evaluate

                evaluate.run(gin_run.evaluation)
                return
            import limba.run  # noqa: F401  imports JAX, whose messages are quiet here
        to_end(gin_run)


def to_end(gin_run: GinRun) -> None:
    """Joins the processes and trains a run; raises RestartError if it was asked to stop, and what `run` raises."""
    from limba.run import train
    from limba.sharding import joining, others

    with others.ending_together(), named(gin_run.names):
        joining.join_hosts(gin_run.config)
        say_what_it_continues(gin_run)
        say_what_is_wrong(gin_run)
        result = train(gin_run.config, gin_run.text)
        if not result["interrupted"]:
            joining.say_ended()
    if result["interrupted"]:
        raise RestartError(f"The run was asked to stop after step {result['step']:,}; the same command resumes it.")
    _say_outcome(gin_run.config)
    if result["failed_exports"]:
        raise StorageError(" ".join(result["failed_exports"]))


def _say_outcome(config: RunConfig) -> None:
    """Prints, in the first process, what the run came to, and what to type next."""
    from limba.evaluation import summary
    from limba.sharding.agreement import is_first
    from limba.storage.files import as_typed_here

    if not is_first():
        return
    try:
        print(summary.outcome(config))
    except (SentenceError, OSError, KeyError) as error:  # the run itself has ended well
        print(f"The figures of the run cannot be read: {error}", file=sys.stderr)
    if os.environ.get(NEXT) == "no":
        return
    directory = shlex.quote(as_typed_here(config.model_dir))
    print(f"Next: limba report {directory}   limba play {directory}   limba evaluate {directory}", flush=True)


def say_what_it_continues(gin_run: GinRun) -> None:
    """Prints, in the first process, what a run takes from the model that it continues from."""
    from limba.cli.gin import continued
    from limba.sharding.agreement import is_first

    if gin_run.continued is not None and is_first():
        for line in continued.lines(gin_run.continued, gin_run.config):
            print(line, flush=True)


def say_what_is_wrong(gin_run: GinRun) -> None:
    """Prints, in the first process, a line for each thing that the cheap half of a preflight finds wrong."""
    from limba.sharding.agreement import is_first

    if not is_first():
        return
    check = tool_registry.find("check")
    if check is None:
        return
    for line in check.at_start(gin_run.config, gin_run.names):
        print(f"Preflight: {line}", file=sys.stderr, flush=True)
