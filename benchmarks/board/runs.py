"""The board's runs: each is a Limba run in a directory of its own, and a line of results.jsonl when it has ended."""

from __future__ import annotations

import datetime
import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.board import recipes, sizes
from benchmarks.board.text import Text
from limba.config import InputError, NonFiniteError, RestartError

if TYPE_CHECKING:
    from limba.config import RunConfig

RESULTS = "results.jsonl"
EVALUATIONS = 20  # in a run, evenly
EVALUATED_ROWS = 32  # of a batch of evaluation, for all sizes
EVALUATED_BATCHES = 12
SHARDS = sizes.ROWS_MULTIPLE  # which fill a batch in turn
SAVES = 4  # in a run, evenly: what a killed run loses at most is a part of this many


@dataclass(frozen=True)
class Trial:
    """One run of the board. Two trials with equal fields are the same run."""

    recipe: str
    corpus: str  # the name of its text
    depth: int
    steps: int
    seed: int = 0  # of the initial values, the order of the documents and the masks; the same for all recipes
    settings: Mapping[str, Any] = field(default_factory=dict)
    final: bool = False  # whether the final part is evaluated, and not the search's

    @property
    def key(self) -> str:
        """The name of the run's directory.

        >>> Trial("adafactor", "de", 2, 600, settings={"learning_rate": 2.0}, final=True).key
        'de-d2-600-adafactor-54e6cbc6-s0-final'
        """
        digest = hashlib.blake2b(json.dumps(dict(self.settings), sort_keys=True).encode(), digest_size=4).hexdigest()
        parts = [self.corpus, f"d{self.depth}", str(self.steps), self.recipe]
        if self.settings:
            parts.append(digest)
        parts.append(f"s{self.seed}")
        if self.final:
            parts.append("final")
        return "-".join(parts)


def config_of(trial: Trial, text: Text, board: Path) -> RunConfig:
    """Returns the run's configuration; raises the errors of the recipe's and the size's fields."""
    import tasks.demo  # noqa: F401  pyright: ignore[reportUnusedImport]  registers the task
    from limba.config import CheckpointConfig, DataConfig, EvaluationConfig, LossConfig, RunConfig

    size = sizes.size_of(trial.depth)
    recipe = recipes.recipe_of(trial.recipe)
    model = size.model()
    lengths = {"inputs": sizes.INPUTS}
    data_fields = {}
    if recipe.is_encoder:
        model = size.encoder("bidirectional" if recipe.hybrid is None else "hybrid")
        lengths = {"targets": sizes.INPUTS}
        data_fields = {"objective": "masked_lm", "noise_density": 0.3, "causal_share": recipe.hybrid}
        if recipe.causal is not None:
            border = round(recipe.causal * trial.steps)
            data_fields |= {"objective": "causal_lm", "stages": ((border, "demo_span_corruption", "masked_lm"),)}
    data = DataConfig(
        "demo_span_corruption",
        lengths,
        trial.settings.get(recipes.ROWS, size.rows),
        vocabulary=str(text.vocabulary),
        data_files={"train": str(text.train), "validation": str(text.evaluated(trial.final))},
        seed=trial.seed,
        num_data_shards=SHARDS,
        task_modules=("tasks.demo",),
        **data_fields,
    )
    every = max(1, trial.steps // EVALUATIONS)
    return RunConfig(
        model,
        data,
        str(board / "runs" / trial.key),
        trial.steps,
        recipes.optimizer_of(recipe, trial.settings, size, trial.steps),
        loss=LossConfig(normalize_by="tokens" if recipe.hybrid is None else "sequences"),
        checkpoint=CheckpointConfig(max(1, trial.steps // SAVES), keep=2),
        evaluation=EvaluationConfig(every, EVALUATED_BATCHES, EVALUATED_ROWS),
        log_every_steps=every,
        random_seed=trial.seed,
        report_to="none",
    )


def results(board: Path) -> dict[str, dict[str, Any]]:
    """Returns the results of the board by their runs' keys, without a line that a killed process left incomplete."""
    path = board / RESULTS
    if not path.exists():
        return {}
    by_key = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            result = json.loads(line)
            by_key[result["key"]] = result
        except (ValueError, KeyError, TypeError):
            continue
    return by_key


def run(trial: Trial, text: Text, board: Path) -> dict[str, Any]:
    """Returns the result of a trial: the known one, or the result of its run, which is resumed or started.

    Raises RestartError if the run was asked to stop; the errors of `limba.train`. A run whose loss is not finite has a
    result too: `status` is then 'diverged'.
    """
    known = results(board).get(trial.key)
    if known:
        return known
    config = config_of(trial, text, board)
    import jax

    from limba.run import train

    status = "finished"
    try:
        ended = train(config)
        if ended["interrupted"]:
            raise RestartError(f"{trial.key} was asked to stop; the same command resumes it.")
    except NonFiniteError:
        status = "diverged"
    jax.clear_caches()  # else a search keeps the programs of all its runs
    return record({"key": trial.key, "status": status, **said_of(trial), **measured(config)}, board)


def record(result: dict[str, Any], board: Path) -> dict[str, Any]:
    """Appends a result to the board; returns it."""
    with open(board / RESULTS, "a+b") as file:  # begins a new line, also after one that was cut
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - 1))
        start = b"" if file.read(1) in (b"\n", b"") else b"\n"
        file.write(start + json.dumps(result, ensure_ascii=False).encode() + b"\n")
    return result


def said_of(trial: Trial) -> dict[str, Any]:
    """Returns the part of a result that names its trial, and the time."""
    return {
        "recipe": trial.recipe, "corpus": trial.corpus, "depth": trial.depth, "steps": trial.steps,
        "seed": trial.seed, "settings": dict(trial.settings), "final": trial.final,
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M"),
    }  # fmt: skip


def measured(config: RunConfig) -> dict[str, Any]:
    """Returns what a run has recorded: its sizes, and validation loss and bits per byte with the seconds until then.

    The seconds are spent in steps: without evaluations, and without a start's first step, which is compiled.
    """
    from limba.evaluation.history import history_of

    history = history_of(config)
    start = next((note for note in history.notes if note["kind"] == "start"), {})
    train = history.tables["train"]
    evaluated = history.tables["validation"]
    if not len(train):
        raise InputError(f"{config.model_dir} has recorded no step; delete it, and the same command starts it again.")
    spans = np.diff(train.steps, prepend=0)
    per_step = train["seconds_per_step"]
    median = float(np.median(per_step[1:] if len(train) > 1 else per_step))
    passed = np.cumsum(spans * np.where(spans == 1, np.minimum(per_step, median), per_step))
    has_curve = len(evaluated) > 0
    passes = [train.last(name) for name in train.names if name.startswith("epochs/")]
    return {
        "parameters": start.get("parameters"),
        "flops_per_step": start.get("flops_per_step"),
        "rows": config.data.batch_size,
        "seconds_per_step": round(median, 4),
        "passes": round(max(passes), 3) if passes else None,  # not known in short runs
        "parameter_norm": [round(float(train["parameter_norm"][at]), 2) for at in (0, -1)],  # at its start and end
        "devices": start.get("environment", {}).get("devices", ""),
        "curve": {
            "steps": evaluated.steps.astype(int).tolist(),
            "loss": evaluated["loss"].round(5).tolist() if has_curve else [],
            "bits_per_byte": evaluated["bits_per_byte"].round(5).tolist() if has_curve else [],
            "seconds": np.interp(evaluated.steps, train.steps, passed).round(1).tolist() if has_curve else [],
        },
    }
