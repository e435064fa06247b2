"""The report of a run: a summary with samples, a plot of the loss, and gaps that the model fills."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from etils import epath

from limba.config import RunConfig
from limba.data import validation
from limba.data.vocabulary.load import num_sentinels, sentinel_ids
from limba.evaluation.text import markdown_table
from limba.inference.generate import greedy
from limba.inference.infill import join_infill, masked_text
from limba.inference.load import load
from limba.inference.source import find
from limba.training.metrics.logging import bits_per_byte_by_set, duration, read_metrics

NUM_SAMPLED = 10  # evaluations whose samples are shown


def summary(config: RunConfig) -> str:
    """Returns the first and last figures of the run in model_dir, from its metrics, and its samples by step."""
    records = read_metrics(config.model_dir)
    train = [record for record in records if record["kind"] == "train"]
    evaluated = [record for record in records if record["kind"] == "validation"]
    lines = []
    if train:
        first, last = train[0], train[-1]
        steady = [record["tokens_per_second"] for record in train[1:]] or [last["tokens_per_second"]]
        lines += [
            f"steps               {last['step']:,}",
            f"training loss       {first['loss']:.3f} at step {first['step']:,}, {last['loss']:.3f} at the end",
            f"tokens per second   {np.median(steady):,.0f} (median of the lines after the first)",
            f"time in steps       {duration(sum(_seconds(train)))}",
        ]
    if evaluated:
        first, last = evaluated[0], evaluated[-1]
        lines += [
            f"validation loss     {first['loss']:.3f} at step {first['step']:,}, {last['loss']:.3f} at the end",
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
    written = [record for record in records if record["kind"] == "text"]
    if written:
        chosen = {f"step {record['step']:,}": record for record in (written[0], written[-1])}
        figures = {step: {n: v for n, v in of.items() if isinstance(v, float)} for step, of in chosen.items()}
        lines += ["", "text generated for validation examples:", "", markdown_table(figures)]
    samples = [record for record in records if record["kind"] == "samples"]
    return "\n".join([*lines, *_samples_by_step(samples)])


def _samples_by_step(records: Sequence[Mapping[str, Any]]) -> list[str]:
    """Returns how the model continued each prompt, at NUM_SAMPLED steps from the first to the last."""
    places = np.unique(np.linspace(0, len(records) - 1, min(len(records), NUM_SAMPLED)).round().astype(int))
    chosen = [records[place] for place in places]
    lines = []
    for prompt in dict.fromkeys(prompt for record in chosen for prompt in record["texts"]):
        lines += ["", f"samples, continuing {prompt!r}:"]
        for record in chosen:
            texts = [" ".join(text.split()) for text in record["texts"].get(prompt, ())]
            lines += [f"step {record['step']:<14,} {text}" for text in texts]
    return lines


def _seconds(train: Sequence[Mapping[str, Any]]) -> list[float]:
    steps = np.diff([0, *(record["step"] for record in train)])
    return [float(n * record["seconds_per_step"]) for n, record in zip(steps, train, strict=True)]


def plot_loss(config: RunConfig, folder: str | os.PathLike[str] | None = None) -> epath.Path:
    """Draws training and validation loss over steps; returns the path, loss.png in the folder or in model_dir."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    records = read_metrics(config.model_dir)
    path = epath.Path(folder or config.model_dir) / "loss.png"
    figure, axes = plt.subplots(figsize=(7, 4), dpi=120, layout="constrained")
    for kind, label, style in (("train", "training", "-"), ("validation", "validation", "o--")):
        chosen = [record for record in records if record["kind"] == kind]
        axes.plot([record["step"] for record in chosen], [record["loss"] for record in chosen], style, label=label)
    axes.set(xlabel="step", ylabel="loss (nats per target token)", title=config.data.mixture_or_task_name)
    axes.grid(alpha=0.3)
    axes.legend()
    with path.open("wb") as file:
        figure.savefig(file, format="png")
    plt.close(figure)
    return path


def infills(config: RunConfig, num: int = 3) -> list[tuple[str, str, str]]:
    """Returns (text, its gaps in [brackets]; the same with the gaps as the model fills them; with <extra_id_0> …).

    The texts are validation examples of the run; its newest checkpoint fills the gaps.
    """
    source = find(config.model_dir, config)
    trained = load(source, step=max(source.steps), config=config)
    batches = validation.validation_batches(trained.task, trained.lengths, config.data, 1)
    if not batches:
        return []
    inputs = batches[0]["encoder_input_tokens"]
    chosen = np.flatnonzero(inputs.any(axis=1))[:num]
    vocabulary = trained.vocabulary
    num_ids, eos_id = vocabulary.vocab_size, int(vocabulary.eos_id)
    length = trained.lengths["targets"]
    filled = np.asarray(greedy(trained.network, trained.params, inputs[chosen], length, num_ids, eos_id))
    sentinels = np.array(sentinel_ids(vocabulary, num_sentinels(vocabulary)))
    return [
        (
            join_infill(inputs[row], batches[0]["decoder_target_tokens"][row], sentinels, vocabulary, eos_id),
            join_infill(inputs[row], filled[i], sentinels, vocabulary, eos_id),
            masked_text(inputs[row], sentinels, vocabulary, eos_id),
        )
        for i, row in enumerate(chosen)
    ]
