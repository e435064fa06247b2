"""Shows what a run has come to: `python -m launch.report --gin_file=MODEL_DIR/config.gin`; --help says more."""

from __future__ import annotations

from collections.abc import Sequence

from limba.config import InputError, environment

ABOUT = """usage: python -m launch.report --gin_file=MODEL_DIR/config.gin

Prints a run's first and last figures, bits per byte by character set, and what it wrote by step, from its
metrics.jsonl, and draws MODEL_DIR/loss.png. The run may still go on."""


def run(argv: Sequence[str]) -> None:
    """Prints the report of the run that the flags describe; raises ConfigError."""
    if any(argument in ("-h", "--help") for argument in argv):
        print(ABOUT)
        return
    with environment.quiet_imports():
        from limba.cli.flags import parse_args

        config, _ = parse_args(argv)
        from limba.evaluation import report
        from limba.training.logging import read_metrics
    if not any(record["kind"] == "train" for record in read_metrics(config.model_dir)):
        raise InputError(f"{config.model_dir} holds no figures of training yet; name the MODEL_DIR of a run.")
    print(report.summary(config))
    print(f"picture             {report.plot_loss(config)}")
