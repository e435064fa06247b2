"""The summary of a run in lines of text, and the picture of its loss, from its metrics.jsonl alone."""

from __future__ import annotations

import io
import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from etils import epath

from limba.config import RunConfig
from limba.evaluation.history import History, Table
from limba.evaluation.thinning import evenly, kept
from limba.storage.files import write_whole
from limba.training.metrics.records import bits_per_byte_by_set, duration, markdown_table

NUM_SAMPLED = 10  # evaluations whose samples are shown
MOST_POINTS = 4_000  # of a line of the picture


def history_of(config: RunConfig) -> History:
    """Returns what the run in model_dir has recorded so far."""
    history = History(epath.Path(config.model_dir))
    history.update()
    return history


def summary(config: RunConfig, history: History | None = None) -> str:
    """Returns the first and last figures of the run in model_dir, from its metrics, and its samples by step.

    KeyError if a figure that every run records is missing.
    """
    history = history or history_of(config)
    train, evaluated, written = (history.tables[kind] for kind in ("train", "validation", "text"))
    lines = []
    if len(train):
        loss, speeds = train["loss"], train["tokens_per_second"]
        first, last = (f"{step:,.0f}" for step in train.steps[[0, -1]])
        lines += [
            f"steps               {last}",
            f"training loss       {loss[0]:.3f} at step {first}, {loss[-1]:.3f} at the end",
            f"tokens per second   {np.median(speeds[1:] if len(train) > 1 else speeds):,.0f} (median of the lines"
            " after the first)",
            f"time in steps       {duration(float(np.diff(train.steps, prepend=0) @ train['seconds_per_step']))}",
        ]
    if len(evaluated):
        loss, last = evaluated["loss"], _record(evaluated, -1)
        lines += [
            f"validation loss     {loss[0]:.3f} at step {evaluated.steps[0]:,.0f}, {loss[-1]:.3f} at the end",
            f"bits per byte       {last['bits_per_byte']:.3f} of the text that the validation targets spell",
            *(f"                    {words}" for words in bits_per_byte_by_set(last)),
            f"perplexity          {last['perplexity']:.2f} a token of the validation text",
            f"token accuracy      {last['accuracy']:.1%} of the validation text",
        ]
    directory = epath.Path(config.model_dir)
    lines += [f"best step           {directory / 'best'}"] if (directory / "best").exists() else []
    lines += [
        f"checkpoints         {directory / 'checkpoints'}",
        f"figures             {directory / 'metrics.jsonl'}, {directory / 'tensorboard'}",
    ]
    if len(written):
        figures = {f"step {written.steps[place]:,.0f}": _record(written, place) for place in (0, -1)}
        lines += ["", "text generated for validation examples:", "", markdown_table(figures)]
    return "\n".join([*lines, *_samples_by_step(history.samples)])


def _record(table: Table, place: int) -> dict[str, float]:
    """Returns one record's figures."""
    found = {name: float(table[name][place]) for name in table.names}
    return {name: value for name, value in found.items() if not np.isnan(value)}


def _samples_by_step(records: Sequence[Mapping[str, Any]]) -> list[str]:
    """Returns how the model continued each prompt, at NUM_SAMPLED steps from the first to the last."""
    chosen = [records[place] for place in evenly(len(records), NUM_SAMPLED)]
    lines = []
    for prompt in dict.fromkeys(prompt for record in chosen for prompt in record["texts"]):
        doing = "filling" if "<extra_id_0>" in prompt else "continuing"
        lines += ["", f"samples, {doing} {prompt!r}:"]
        for record in chosen:
            texts = [" ".join(text.split()) for text in record["texts"].get(prompt, ())]
            lines += [f"step {record['step']:<14,} {text}" for text in texts]
    return lines


def plot_loss(
    config: RunConfig, folder: str | os.PathLike[str] | None = None, history: History | None = None
) -> epath.Path:
    """Draws training and validation loss over steps; returns the path, loss.png in the folder or in model_dir."""
    from matplotlib.figure import Figure

    history = history or history_of(config)
    path = epath.Path(folder or config.model_dir) / "loss.png"
    figure = Figure(figsize=(7, 4), dpi=120, layout="constrained")
    axes = figure.subplots()
    for kind, label, style in (("train", "training", "-"), ("validation", "validation", "o--")):
        table = history.tables[kind]
        losses = table["loss"] if "loss" in table else np.empty(0)
        places = kept(losses, MOST_POINTS)
        axes.plot(table.steps[places], losses[places], style, label=label)
    axes.set(xlabel="step", ylabel="loss (nats per target token)", title=config.data.mixture_or_task_name)
    axes.grid(alpha=0.3)
    axes.legend()
    picture = io.BytesIO()
    figure.savefig(picture, format="png")
    write_whole(path, picture.getvalue())
    return path
