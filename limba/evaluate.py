"""Text that a model writes for held-out examples, judged by the metric functions of their seqio tasks.

After seqio's Evaluator: targets are the examples' text, predictions what the model writes; each task's `metric_fns`
take both. The model runs on the devices' mesh, and figures are the same on every process.
"""

from __future__ import annotations

import dataclasses
import json
import math
import time
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np
import seqio
from etils import epath

from limba.config import RunConfig
from limba.data import streams
from limba.data.character_sets import SETS, CharacterSets
from limba.data.providers import parts_of
from limba.data.supervised import is_supervised
from limba.data.vocabulary import piece_bytes
from limba.infer import Writer
from limba.mesh import batch_sharding
from limba.model import Model
from limba.train_step import compile_ready_evaluation

Figures = dict[str, float]


class TextEvaluation:
    """The held-out examples of a run's tasks and what they are judged by. `tasks` is empty where none has metrics."""

    def __init__(self, config: RunConfig, task: streams.Provider, lengths: Mapping[str, int], model: Model, mesh: Any):
        parts = [part for part in parts_of(task) if part.predict_metric_fns and is_supervised(part)]
        self.tasks: list[seqio.Task] = parts if config.evaluation.num_examples else []
        self._examples = {
            part.name: streams.held_out_texts(part, lengths, config.data, config.evaluation.num_examples)
            for part in self.tasks
        }
        self._directory = epath.Path(config.model_dir) / "evaluations"
        if self.tasks:
            vocabulary = task.output_features["targets"].vocabulary
            self._writer = Writer(model, mesh, vocabulary, config.generation, config.data.batch_size)

    def __call__(self, params: Any, step: int) -> Figures:
        """Returns metric -> figure; with several tasks task/metric. Texts go to MODEL_DIR/evaluations."""
        figures = {}
        for part in self.tasks:
            found = self._judge(part, params, step)
            figures |= found if len(self.tasks) == 1 else {f"{part.name}/{name}": v for name, v in found.items()}
        return figures

    def copied(self) -> Figures:
        """Returns the figures of inputs copied as they are: the baseline of tasks that change little."""
        return {
            name if len(self.tasks) == 1 else f"{part.name}/{name}": value
            for part in self.tasks
            for name, value in _figures(part, [text for _, text, _ in self._examples[part.name]], self._targets(part))
        }

    def _targets(self, part: seqio.Task) -> list[str]:
        return [target for _, _, target in self._examples[part.name]]

    def _judge(self, part: seqio.Task, params: Any, step: int) -> Figures:
        examples = self._examples[part.name]
        inputs = [ids for ids, _, _ in examples]
        predictions = [""] * len(examples)
        for numbers in self._writer.batches(inputs):
            texts = self._writer.write(params, [inputs[number] for number in numbers], numbers)
            for number, samples in zip(numbers, texts, strict=True):
                predictions[number] = samples[0].text
        figures = dict(_figures(part, predictions, self._targets(part)))
        if jax.process_index() == 0:
            self._directory.mkdir(parents=True, exist_ok=True)
            lines = [
                {"input": text, "target": target, "prediction": prediction}
                for (_, text, target), prediction in zip(examples, predictions, strict=True)
            ]
            text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in [{"figures": figures}, *lines])
            (self._directory / f"{part.name}-{step}.jsonl").write_text(text)
        return figures


def loss_evaluation(
    config: RunConfig, task: streams.Provider, lengths: Mapping[str, int], model: Model, sharding: Any
) -> Callable[[Any], Figures] | None:
    """Returns a function from parameters to held-out figures, or None without held-out text.

    Bits per byte is all the targets' cross entropy over the UTF-8 bytes that they spell, so that
    models with different vocabularies compare. By character set a token's cross entropy is divided evenly among its
    bytes; of a token that spells nothing, such as the end of sequence, it is added to "other". So the sets'
    `bits_per_byte/…`, weighted by their `bytes/…`, add up to the whole.
    """
    held_out = streams.validation_batches(task, lengths, config.data, config.evaluation.num_batches)
    if not held_out:
        return None
    character_sets = CharacterSets(piece_bytes(task.output_features["targets"].vocabulary, config.model.vocab_size))
    sums_of = compile_ready_evaluation(model, config.loss, config.num_microbatches)
    num_bytes = sum(
        character_sets.num_bytes(batch["decoder_target_tokens"], batch["decoder_loss_weights"]) for batch in held_out
    )

    def placed(batch: Mapping[str, np.ndarray]) -> Mapping[str, Any]:
        counts = character_sets.counts(batch["decoder_target_tokens"])
        return streams.place_batch({**batch, "character_counts": counts}, sharding)

    def evaluate(params: Any) -> Figures:
        began = time.monotonic()
        sums = jax.device_get([sums_of(params, placed(batch)) for batch in held_out])
        total = jax.tree.map(lambda *parts: np.sum(parts, axis=0, dtype=np.float64), *sums)
        by_set = zip(SETS, total.pop("nats_by_set"), num_bytes, strict=True)
        total = {name: float(value) for name, value in total.items()}
        figures = {
            "loss": total["loss"] / total["tokens"],
            "cross_entropy": total["nats"] / total["tokens"],
            "accuracy": total["correct"] / total["tokens"],
            "perplexity": math.exp(min(total["nats"] / total["tokens"], 700.0)),
            "bits_per_byte": total["nats"] / math.log(2) / max(int(num_bytes.sum()), 1),
            "target_tokens": int(total["tokens"]),
        }
        for name, nats, count in by_set:
            if count:
                figures |= {f"bits_per_byte/{name}": nats / math.log(2) / count, f"bytes/{name}": int(count)}
        return {**figures, "seconds": time.monotonic() - began}

    return evaluate


def evaluate(
    config: RunConfig,
    task: streams.Provider,
    lengths: Mapping[str, int],
    model: Model,
    mesh: Any,
    params: Any,
    step: int,
    *,
    num_examples: int,
    split: str,
) -> tuple[Figures, Figures]:
    """Returns the figures of a trained model on a split, and of copying the inputs (none where no task has metrics)."""
    config = dataclasses.replace(
        config,
        data=dataclasses.replace(config.data, validation_split=split),
        evaluation=dataclasses.replace(config.evaluation, num_examples=num_examples),
    )
    of_loss = loss_evaluation(config, task, lengths, model, batch_sharding(mesh))
    of_text = TextEvaluation(config, task, lengths, model, mesh)
    figures = {**(of_loss(params) if of_loss else {}), **of_text(params, step)}
    return figures, of_text.copied()


def _figures(part: seqio.Task, predictions: list[str], targets: list[str]) -> list[tuple[str, float]]:
    if not targets:
        return []
    found = [pair for metric in part.predict_metric_fns for pair in metric(targets, predictions).items()]
    return [(name, float(value)) for name, value in found if math.isfinite(np.asarray(value, float))]


def markdown_table(columns: Mapping[str, Mapping[str, float]]) -> str:
    """Returns a Markdown table: a row per metric, a column per name in `columns`.

    >>> print(markdown_table({"copied": {"bleu": 1.0}, "step 10": {"bleu": 25.256, "bytes": 1200}}))
    | metric | copied | step 10 |
    | --- | --- | --- |
    | bleu | 1.000 | 25.26 |
    | bytes |  | 1,200 |
    """
    names = list(dict.fromkeys(name for figures in columns.values() for name in figures))
    lines = ["metric", *columns], ["---"] * (len(columns) + 1)

    def written(value: float | None) -> str:
        if value is None:
            return ""
        return f"{value:,}" if isinstance(value, int) else f"{value:.{3 if abs(value) < 10 else 2}f}"

    rows = [[name, *(written(figures.get(name)) for figures in columns.values())] for name in names]
    return "\n".join(f"| {' | '.join(line)} |" for line in [*lines, *rows])
