"""What a run has logged."""

import json
from pathlib import Path

from limba.config import RunConfig
from limba.training.metrics.logging import read_metrics


def losses_of(run: RunConfig | Path) -> dict[int, float]:
    """Returns the losses of the steps that a run, or the run in a directory, has logged."""
    directory = run.model_dir if isinstance(run, RunConfig) else str(run)
    return {record["step"]: record["loss"] for record in read_metrics(directory) if record["kind"] == "train"}


def records_so_far(directory: Path) -> list[dict]:
    """Returns what a run that may go on has recorded; of its last line it may have written a part only."""
    path = directory / "metrics.jsonl"
    if not path.exists():
        return []
    whole, _, _ = path.read_text().rpartition("\n")
    return [json.loads(line) for line in whole.splitlines() if line]
