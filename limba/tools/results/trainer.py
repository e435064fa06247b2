"""Fine-tunes a model of transformers on a task by transformers' own classes and Trainer; no code of a model is run.

torch and transformers are an extra: this module is imported where a suite has a task to fine-tune on.
"""

from __future__ import annotations

import contextlib
import math
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import transformers

from limba.config import InputError
from limba.tools.results.foreign_models import OpenModel
from limba.tools.results.kinds.fine_tuned import Example, Learned, Parts, Similarity, evenly
from limba.tools.results.outcome import Outcome, Prediction
from limba.tools.results.protocol import Protocol

IGNORED = -100  # a label that no loss counts
MOST_SAMPLED = 200  # training examples that are tokenized before anything is trained
Feature = dict[str, Any]  # lists of ids, and a label, a score or a list of labels


class Setting(NamedTuple):
    """What a search chooses: the highest rate, and the epochs over which it falls to 0."""

    rate: float
    epochs: int


class FineTuning:
    """A task as a model reads it, and its trainings."""

    def __init__(self, model: OpenModel, task: Learned, parts: Parts, protocol: Protocol, folder: Path):
        self.model = model
        self.task = task
        self.parts = parts
        self._protocol = protocol
        self._folder = folder  # of a training's checkpoints; it is removed again
        self.longest = min(protocol.most_tokens, model.check(task.is_tagged))  # of a text, in tokens
        values = [example.answer for example in parts.train] if isinstance(task, Similarity) else [0.0]
        self._mean = float(np.mean(np.array(values, np.float64)))
        self._deviation = float(np.std(np.array(values, np.float64))) or 1.0
        sample = self._read(evenly(parts.train, MOST_SAMPLED))
        ids = set[int]()
        for reading in sample:
            ids.update(reading.feature["input_ids"])
        model.check_knows(ids, f"the training part of {task.name}")

    def outcome(self, setting: Setting, seed: int, on_test: bool, is_random: bool) -> Outcome:
        """Returns the figures of one training on the development part, or its predictions of the test part too.

        `is_random`: it begins with random weights of the model's shape.
        """
        model = self.model.network(self.task.is_tagged, self.parts.labels, seed, is_random)
        train = self._read(self.parts.train)
        dev = self._read(self.parts.dev)
        shutil.rmtree(self._folder, ignore_errors=True)  # of a training that was stopped

        def figure(evaluation: transformers.EvalPrediction) -> dict[str, float]:
            predicted = self._predictions(self.parts.dev, dev, np.asarray(evaluation.predictions))
            return {"figure": self.task.judge(self.parts.dev, predicted)[self.task.main]}

        trainer = transformers.Trainer(
            model=model,
            args=self._arguments(setting, seed),
            train_dataset=[example.feature for example in train],  # pyright: ignore[reportArgumentType]
            eval_dataset=[example.feature for example in dev],  # pyright: ignore[reportArgumentType]
            data_collator=self._collator(),
            compute_metrics=figure,
            preprocess_logits_for_metrics=_chosen,
            callbacks=[transformers.EarlyStoppingCallback(self._protocol.patience)],
        )
        trainer.remove_callback(transformers.PrinterCallback)
        with self._fitting():
            trainer.train()
        curve = _curve(trainer.state.log_history)
        best = max(range(len(curve)), key=lambda index: (curve[index]["development"], -index))
        development = curve[best]["development"]
        notes = {"development": development, "epoch": best + 1, "epochs": len(curve)}
        predictions = list[Prediction]()
        figures = {self.task.main: development}
        if on_test:
            test = self._read(self.parts.test)
            trainer.compute_metrics = None  # of the development part
            with self._fitting():
                predicted_test = trainer.predict([example.feature for example in test])  # pyright: ignore[reportArgumentType]
            predictions = self._predictions(self.parts.test, test, np.asarray(predicted_test.predictions))
            figures = self.task.judge(self.parts.test, predictions)
            notes["cut"] = sum(example.is_cut for example in test)
        shutil.rmtree(self._folder, ignore_errors=True)
        return Outcome(figures, notes=notes, curve=curve, predictions=predictions)

    @contextlib.contextmanager
    def _fitting(self) -> Iterator[None]:
        """Raises InputError where a GPU's memory does not hold the model with a batch."""
        try:
            yield
        except torch.OutOfMemoryError as error:
            raise InputError(
                f"{self.model.name} does not fit into the GPU's memory on the task {self.task.name}, with"
                f" {self._protocol.batch_size} texts of at most {self.longest} tokens at once; take a larger GPU, or"
                " the CPU with CUDA_VISIBLE_DEVICES=, or --tasks without it."
            ) from error

    def _arguments(self, setting: Setting, seed: int) -> transformers.TrainingArguments:
        batch = self._protocol.batch_size
        steps = math.ceil(len(self.parts.train) / batch) * setting.epochs
        arguments = transformers.TrainingArguments(
            output_dir=str(self._folder),
            per_device_train_batch_size=batch,
            per_device_eval_batch_size=2 * batch,
            learning_rate=setting.rate,
            num_train_epochs=setting.epochs,
            lr_scheduler_type="linear",
            warmup_steps=math.ceil(self._protocol.warmup_share * steps),
            weight_decay=self._protocol.weight_decay,
            optim="adamw_torch",
            eval_strategy="epoch",
            logging_strategy="epoch",
            save_strategy="best",
            save_total_limit=1,
            save_only_model=True,
            load_best_model_at_end=True,
            metric_for_best_model="figure",
            greater_is_better=True,
            seed=seed,
            report_to="none",
            disable_tqdm=True,
            dataloader_pin_memory=torch.cuda.is_available(),
        )
        # Else the Trainer takes a batch for each GPU that it sees, and the protocol is another one there.
        arguments._n_gpu = min(arguments.n_gpu, 1)
        return arguments

    def _collator(self) -> Any:
        tokenizer = self.model.tokenizer
        if self.task.is_tagged:
            return transformers.DataCollatorForTokenClassification(tokenizer)
        return transformers.DataCollatorWithPadding(tokenizer)

    def _read(self, examples: Sequence[Example]) -> list[Read]:
        read = self._sentence if self.task.is_tagged else self._text
        readings = [read(example) for example in examples]
        self.model.check_ids(max(max(reading.feature["input_ids"], default=0) for reading in readings))
        return readings

    def _text(self, example: Example) -> Read:
        """Returns the ids of a text or of two, with the number of the class or the score in deviations."""
        ids = self.model.tokenizer(*example.texts, truncation=True, max_length=self.longest)
        whole = self.model.tokenizer(*example.texts, verbose=False)
        answer = example.answer
        if isinstance(answer, str):
            label = self.parts.labels.index(answer)
        else:
            assert isinstance(answer, float), "a score"
            label = (answer - self._mean) / self._deviation
        return Read({**ids, "labels": label}, (), len(whole["input_ids"]) > len(ids["input_ids"]))

    def _sentence(self, example: Example) -> Read:
        """Returns the ids of a sentence's words with spaces between them; a word's label is at its first token."""
        ids, first_tokens, is_cut = self.model.words(example.texts, self.longest)
        labels = [IGNORED] * len(ids["input_ids"])
        for token, tag in zip(first_tokens, example.tags, strict=True):
            if token is not None and labels[token] == IGNORED:
                labels[token] = self.parts.labels.index(tag)
        return Read({**ids, "labels": labels}, tuple(first_tokens), is_cut)

    def _predictions(self, examples: Sequence[Example], read: Sequence[Read], outputs: np.ndarray) -> list[Prediction]:
        """Returns the classes, the scores or the tags of some examples; a word without a token has an empty tag."""
        labels = self.parts.labels
        if not labels:
            return [float(score) for score in np.nan_to_num(outputs, posinf=0.0, neginf=0.0)]  # of one that diverged
        if not self.task.is_tagged:
            return [labels[label] for label in outputs]
        predictions = list[Prediction]()
        for row, example in zip(outputs, read, strict=True):
            predictions.append(["" if token is None else labels[row[token]] for token in example.first_tokens])
        return predictions


class Read(NamedTuple):
    """An example as a model reads it."""

    feature: Feature
    first_tokens: Sequence[int | None]  # of each word's first token; None: it has none, or was cut off
    is_cut: bool


def _chosen(logits: torch.Tensor | tuple[torch.Tensor, ...], labels: torch.Tensor) -> torch.Tensor:
    """Returns the most likely label, or the score: what is kept of the logits."""
    logits = logits[0] if isinstance(logits, tuple) else logits
    return logits.squeeze(-1) if logits.shape[-1] == 1 else logits.argmax(-1)


def _curve(history: Sequence[Mapping[str, float]]) -> list[dict[str, float]]:
    """Returns the loss and the development part's figure of each epoch."""
    losses = {round(entry["epoch"]): entry["loss"] for entry in history if "loss" in entry}
    return [
        {"epoch": entry["epoch"], "loss": losses[round(entry["epoch"])], "development": entry["eval_figure"]}
        for entry in history
        if "eval_figure" in entry
    ]
