"""`limba report`: summarizes a run."""

from __future__ import annotations

from collections.abc import Sequence

from limba.cli.arguments import Parser
from limba.cli.program import names_said
from limba.cli.use.model import NAMES, add_gin_flags, run_of_gin_files, upgrade_once
from limba.config import InputError, RunConfig, environment
from limba.config.errors import reason_of

ABOUT = """Prints the first and last figures of a run, bits per byte by character set, and its samples by step, from
its metrics.jsonl, and draws MODEL_DIR/loss.png. The run may still be training.

    limba report MODEL_DIR"""


def run(argv: Sequence[str]) -> None:
    """Prints the report of the run that the flags name; raises InputError."""
    parser = Parser("report", ABOUT)
    parser.add_object("model", "MODEL_DIR", "a run directory")
    add_gin_flags(parser, "MODEL_DIR")
    given = parser.parse(argv)
    if given.gin and not given.gin_file:
        raise InputError(f"--gin.{given.gin[0]} goes with --gin_file; add that, or leave it out.")
    with environment.quiet_imports():
        from limba.evaluation import report
        from limba.inference import source
        from limba.storage.files import resolved
        from limba.training.metrics.logging import read_metrics
    if given.gin_file:
        config: object = run_of_gin_files(given).config
    elif given.model is None:
        raise InputError("No run is given; write limba report MODEL_DIR.")
    else:
        directory = resolved(given.model)
        if not directory.is_dir():
            raise InputError(f"{given.model} is not a folder; name the MODEL_DIR of a run.")
        with names_said(NAMES):
            config = upgrade_once(str(directory)) or source.read_config(directory)
    if not isinstance(config, RunConfig):
        raise InputError(f"{given.model} is an imported model, not a run; name the MODEL_DIR of a run.")
    try:
        records = read_metrics(config.model_dir)
    except OSError as error:
        raise InputError(f"{config.model_dir}/metrics.jsonl cannot be read ({reason_of(error)}); check it.") from error
    if not any(record["kind"] == "train" for record in records):
        raise InputError(f"{config.model_dir} holds no figures of training yet; name the MODEL_DIR of a run.")
    try:
        text = report.summary(config)
    except (KeyError, TypeError, AttributeError, ArithmeticError) as error:
        raise InputError(
            f"{config.model_dir}/metrics.jsonl has a record that no run writes ({type(error).__name__}:"
            f" {reason_of(error)}); restore it from a copy."
        ) from error
    print(text)
    print(f"picture             {report.plot_loss(config)}")
