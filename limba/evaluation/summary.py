"""A run summed up from its metrics.jsonl: in lines of text, in one sentence, and as a picture of its losses."""

from __future__ import annotations

import io
import os
from collections.abc import Sequence

import numpy as np
from etils import epath

from limba.config import RunConfig
from limba.evaluation.downsampling import evenly, keep_extremes
from limba.evaluation.history import History, Table, history_of
from limba.formats.names import Json
from limba.storage.files import write_whole
from limba.training.metrics.records import bits_per_byte_by_set, duration, markdown_table

NUM_SAMPLED = 10  # evaluations whose samples are shown
MOST_POINTS = 4_000  # of a line of the picture, which is 840 pixels wide


def summary(config: RunConfig, history: History | None = None) -> str:
    """Returns the first and last figures of the run in model_dir, from its metrics, and its samples by step.

    KeyError if a figure that every run records is missing.
    """
    history = history or history_of(config)
    lines = [
        *_training_lines(history),
        *_validation_lines(history.tables["validation"]),
        *_file_lines(epath.Path(config.model_dir)),
    ]
    generated = history.tables["text"]
    if len(generated):
        figures = {f"step {generated.steps[row]:,.0f}": _record(generated, row) for row in (0, -1)}
        lines += ["", "text generated for validation examples:", "", markdown_table(figures)]
    return "\n".join([*lines, *_samples_by_step(history.samples)])


def outcome(config: RunConfig) -> str:
    """Returns one sentence on the run in model_dir: its losses at the beginning and the end, and its time.

    KeyError if a figure that every run records is missing.
    """
    history = history_of(config)
    parts = []
    train = history.tables["train"]
    if len(train):
        loss = train["loss"]
        time = duration(_seconds_in_steps(history))
        num_steps = train.steps[-1] - history.first_step
        parts.append(f"Loss {loss[0]:.3f} to {loss[-1]:.3f} in {num_steps:,.0f} steps, {time}")
    validation = history.tables["validation"]
    if len(validation):
        loss = validation["loss"]
        since = f"{loss[0]:.3f} to " if len(loss) > 1 else ""
        parts.append(f"validation {since}{loss[-1]:.3f}")
    return "; ".join(parts) or "The run had no step to take."


def _training_lines(history: History) -> list[str]:
    train = history.tables["train"]
    if not len(train):
        return []
    loss = train["loss"]
    first, last = (f"{step:,.0f}" for step in train.steps[[0, -1]])
    speeds = train["tokens_per_second"]
    if len(speeds) > 1:
        speeds = speeds[1:]  # the first line's time may include compiling
    return [
        f"steps               {last}",
        f"training loss       {loss[0]:.3f} at step {first}, {loss[-1]:.3f} at the end",
        f"tokens per second   {np.median(speeds):,.0f} (median of the lines after the first)",
        f"time in steps       {duration(_seconds_in_steps(history))}",
    ]


def _seconds_in_steps(history: History) -> float:
    """Returns the time of all steps: a record's seconds per step are the mean since the record before it."""
    return float(history.steps_per_line() @ history.tables["train"]["seconds_per_step"])


def _validation_lines(validation: Table) -> list[str]:
    if not len(validation):
        return []
    loss = validation["loss"]
    lines = [f"validation loss     {loss[0]:.3f} at step {validation.steps[0]:,.0f}, {loss[-1]:.3f} at the end"]
    # `last` and not `_record`, which drops NaN: the last evaluation of a run that has diverged has no finite number.
    if "bits_per_byte" in validation:
        bits = validation.last("bits_per_byte")
        lines.append(f"bits per byte       {bits:.3f} of the text that the validation targets spell")
        lines += [f"                    {words}" for words in bits_per_byte_by_set(_record(validation, -1))]
    lines.append(f"perplexity          {validation.last('perplexity'):.2f} a token of the validation text")
    lines.append(f"token accuracy      {validation.last('accuracy'):.1%} of the validation text")
    return lines


def _file_lines(directory: epath.Path) -> list[str]:
    lines = []
    if (directory / "best").exists():
        lines.append(f"best step           {directory / 'best'}")
    lines.append(f"checkpoints         {directory / 'checkpoints'}")
    lines.append(f"figures             {directory / 'metrics.jsonl'}, {directory / 'tensorboard'}")
    return lines


def _record(table: Table, row: int) -> dict[str, float]:
    """Returns the figures that one record of a table has."""
    figures = {name: float(table[name][row]) for name in table.names}
    return {name: value for name, value in figures.items() if not np.isnan(value)}


def _samples_by_step(records: Sequence[Json]) -> list[str]:
    """Returns how the model continued each prompt, at NUM_SAMPLED steps from the first to the last."""
    chosen = [records[index] for index in evenly(len(records), NUM_SAMPLED)]
    # A dict as a set that keeps the order: a run that was resumed with other prompts has more than the newest record.
    prompts = dict.fromkeys(prompt for record in chosen for prompt in record["texts"])
    lines = []
    for prompt in prompts:
        doing = "filling" if "<extra_id_0>" in prompt else "continuing"
        lines += ["", f"samples, {doing} {prompt!r}:"]
        for record in chosen:
            for text in record["texts"].get(prompt, ()):
                in_one_line = " ".join(text.split())
                lines.append(f"step {record['step']:<14,} {in_one_line}")
    return lines


def plot_loss(
    config: RunConfig, folder: str | os.PathLike[str] | None = None, history: History | None = None
) -> epath.Path:
    """Draws training and validation loss over steps; returns the path, loss.png in the folder or in model_dir."""
    from matplotlib.figure import Figure  # slow to import, and only the picture needs it

    history = history or history_of(config)
    path = epath.Path(folder or config.model_dir) / "loss.png"
    figure = Figure(figsize=(7, 4), dpi=120, layout="constrained")
    axes = figure.subplots()
    for kind, label, style in (("train", "training", "-"), ("validation", "validation", "o--")):
        table = history.tables[kind]
        losses = table["loss"] if "loss" in table else np.empty(0)
        chosen = keep_extremes(losses, MOST_POINTS)
        axes.plot(table.steps[chosen], losses[chosen], style, label=label)
    axes.set(xlabel="step", ylabel="loss (nats per target token)", title=config.data.mixture_or_task_name)
    axes.grid(alpha=0.3)
    axes.legend()
    picture = io.BytesIO()
    figure.savefig(picture, format="png")
    write_whole(path, picture.getvalue())
    return path
