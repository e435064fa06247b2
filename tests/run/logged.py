"""What a run has logged."""

from pathlib import Path

from limba.config import RunConfig
from limba.training.metrics.logging import read_metrics


def losses_of(run: RunConfig | Path) -> dict[int, float]:
    """Returns the losses of the steps that a run, or the run in a directory, has logged."""
    directory = run.model_dir if isinstance(run, RunConfig) else str(run)
    return {record["step"]: record["loss"] for record in read_metrics(directory) if record["kind"] == "train"}
