"""The best step of a run by one figure of its evaluations, kept as a run directory of its own; and early stopping."""

from __future__ import annotations

import json
from collections.abc import Mapping

import jax
from etils import epath

from limba.config import CheckpointConfig, ConfigError, DataConfig
from limba.training.checkpoint import Checkpoints, Positions
from limba.training.state import TrainState


class Best:
    """model_dir/best: a checkpoint, as a run's, and best.json, from which a resumed run goes on counting."""

    def __init__(self, model_dir: str, config: CheckpointConfig, data: DataConfig, patience: int | None):
        self._config, self._data, self._patience = config, data, patience
        self.directory = epath.Path(model_dir) / "best"
        self._path = self.directory / "best.json"
        self._record = json.loads(self._path.read_text()) if self._path.exists() else {}

    def judge(self, step: int, figures: Mapping[str, float], state: TrainState, positions: Positions) -> str:
        """Keeps the state where it is better than any before; returns a sentence where the run should end, else "".

        ConfigError where the evaluations give no such figure.
        """
        name = self._config.best_metric
        if name is None:
            return ""
        if name not in figures:
            raise ConfigError(
                "CheckpointConfig.best_metric",
                f"is {name!r}, and the evaluation gives {', '.join(sorted(figures))}; name"
                " one of them, and set EvaluationConfig.num_examples for those of text.",
            )
        value, record = figures[name], self._record
        sign = 1 if self._config.best_mode == "max" else -1
        if step > record.get("last_step", 0):
            if "value" not in record or sign * value > sign * record["value"]:
                with Checkpoints(str(self.directory), CheckpointConfig(keep=1), self._data) as checkpoints:
                    checkpoints.save(step, state, positions)
                record |= {"metric": name, "value": value, "step": step, "figures": dict(figures), "since": 0}
            else:
                record["since"] += 1
            record["last_step"] = step
            if jax.process_index() == 0:
                gin_file = self.directory.parent / "config.gin"
                if gin_file.exists():  # so that the directory is read like any run's
                    (self.directory / "config.gin").write_text(gin_file.read_text())
                self._path.write_text(json.dumps(record, indent=1) + "\n")
        if self._patience is not None and record["since"] >= self._patience:
            return (
                f"{name} has not been better than {record['value']:.4g} of step {record['step']:,} for"
                f" {record['since']} evaluations: the run ends here; the best is in {self.directory}."
            )
        return ""
