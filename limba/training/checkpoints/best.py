"""The best step of a run by an evaluation metric, saved as its own run directory; and early stopping."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping

import jax
from etils import epath

from limba.config import CheckpointConfig, ConfigError, RunConfig, plain
from limba.training.checkpoints.directory import Checkpoints, Positions
from limba.training.state import TrainState

COPIED = ("config.gin", plain.FILE, "vocabulary.model")  # of the run's files: model_dir/best is then read like a run


class Best:
    """model_dir/best: a checkpoint, and best.json with the record, which a resumed run continues."""

    def __init__(self, config: RunConfig):
        self._config, self._run = config, epath.Path(config.model_dir)
        self.directory = self._run / "best"
        self._path = self.directory / "best.json"
        self._record = json.loads(self._path.read_text()) if self._path.exists() else {}

    def judge(
        self, step: int, figures: Mapping[str, float], state: TrainState, positions: Callable[[], Positions]
    ) -> str:
        """Saves the state if its `best_metric` has improved; returns the reason to end the run, or "".

        `positions` returns the data position, which is saved with the state. Raises ConfigError if the evaluations
        do not compute this metric.
        """
        name, patience = self._config.checkpoint.best_metric, self._config.evaluation.patience
        if name is None or not figures:
            return ""
        if name not in figures:
            raise ConfigError(
                "CheckpointConfig.best_metric",
                f"is {name!r}, and the evaluation gives {', '.join(sorted(figures))}; name"
                " one of them, and set EvaluationConfig.num_examples for the metrics of generated text.",
            )
        value, record = figures[name], self._record
        sign = 1 if self._config.checkpoint.best_mode == "max" else -1
        if step > record.get("last_step", 0):
            if "value" not in record or sign * value > sign * record["value"]:
                keep = CheckpointConfig(keep=1)
                with Checkpoints(str(self.directory), keep, self._config.data) as checkpoints:
                    checkpoints.save(step, state, positions())
                record |= {"metric": name, "value": value, "step": step, "figures": dict(figures), "since": 0}
            else:
                record["since"] += 1
            record["last_step"] = step
            if jax.process_index() == 0:
                for file in (self._run / each for each in COPIED):
                    if file.exists():
                        file.copy(self.directory / file.name, overwrite=True)
                self._path.write_text(json.dumps(record, indent=1) + "\n")
        if patience is not None and record["since"] >= patience:
            return (
                f"{name} has not been better than {record['value']:.4g} of step {record['step']:,} for"
                f" {record['since']} evaluations: the run ends here, and its best step is in {self.directory}."
            )
        return ""
