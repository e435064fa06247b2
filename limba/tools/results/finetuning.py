"""Fine-tunes a model on a task by the engine itself: each rate with one seed, the best of them with the others."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from limba.config import (
    CheckpointConfig,
    DataConfig,
    EvaluationConfig,
    GenerationConfig,
    InputError,
    OptimizerConfig,
    RestartError,
    RunConfig,
    ScheduleConfig,
    environment,
)
from limba.tools.results.kinds_learned import Example, Learned, Parts
from limba.tools.results.outcome import Outcome
from limba.tools.results.protocol import PROTOCOL

if TYPE_CHECKING:
    from limba.api import TrainedModel

TASK, MODULE = "text_to_text", "tasks.text_to_text"
STEP = 16  # lengths are multiples of it, so that tasks share compiled programs


class FineTuning:
    """A task's runs, each in a folder of its own until it is judged; they hold what `trained` was, not the model."""

    def __init__(self, trained: TrainedModel, task: Learned, parts: Parts, folder: Path):
        if trained.tokenizer is None:
            raise InputError(
                f"{trained.path} has no vocabulary beside it, without which no text is read; copy it there."
            )
        self.task, self.parts, self.folder = task, parts, folder
        self._name, self._vocabulary = trained.tokenizer
        source = trained.source
        is_best = source.best is not None and trained.path.endswith("/best")
        self._start = str(source.best if is_best else source.steps[trained.step])
        self._model = dataclasses.replace(trained.network.config, dropout_rate=PROTOCOL.dropout)

    @functools.cached_property
    def _lengths(self) -> tuple[int, int]:
        """The tokens of the longest inputs and targets, within the protocol's limits."""
        examples = (*self.parts.train, *self.parts.dev)
        longest = [
            max(len(self._vocabulary.encode(text)) for text in side) + 1
            for side in ([each.inputs for each in examples], [each.targets for each in examples])
        ]
        inputs, targets = (
            min(most, -(-size // STEP) * STEP) for size, most in zip(longest, PROTOCOL.most_tokens, strict=True)
        )
        return inputs, targets

    def outcome(self, rate: float, seed: int, on_test: bool) -> Outcome:
        """Returns the figures of one run on the development or the test part; trains it if that is not done."""
        folder = self._folder(rate, seed)
        config = self._config(folder, rate, seed)
        if not (folder / "done").exists():
            _train(config, folder.with_suffix(".log"))
            (folder / "done").touch()
        examples = self.parts.test if on_test else self.parts.dev
        return self.task.judge(examples, self._written(folder, examples), self.parts)

    def remove(self, rate: float, seed: int) -> None:
        """Removes what a run has left."""
        folder = self._folder(rate, seed)
        shutil.rmtree(folder, ignore_errors=True)
        for path in folder.parent.glob(f"{folder.name}.*"):
            path.unlink()

    def _folder(self, rate: float, seed: int) -> Path:
        return self.folder / f"rate_{rate:g}_seed_{seed}".replace(".", "_")

    def _config(self, folder: Path, rate: float, seed: int) -> RunConfig:
        from limba.api import write_whole

        corpus = {}
        for name, examples in (("train", self.parts.train), ("validation", self.parts.dev)):
            corpus[name] = str(folder.with_suffix(f".{name}.jsonl"))
            rows = [{"inputs": each.inputs, "targets": each.targets} for each in examples]
            write_whole(corpus[name], "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
        inputs, targets = self._lengths
        lengths = {"inputs": inputs, "targets": targets}
        if self._model.is_decoder_only:
            lengths = {"targets": inputs + targets, "prefix": inputs}
        return RunConfig(
            model=self._model,
            data=DataConfig(
                TASK,
                lengths,
                PROTOCOL.batch_size,
                vocabulary=self._name.path,
                extra_ids=self._name.extra_ids or 0,
                data_files=corpus,
                column={"inputs": "inputs", "targets": "targets"},
                num_epochs=PROTOCOL.epochs,
                seed=seed,
                task_modules=(MODULE,),
            ),
            model_dir=str(folder),
            train_steps=None,
            optimizer=OptimizerConfig(
                "adafactor", ScheduleConfig(base_learning_rate=rate, factors="constant", warmup_steps=0)
            ),
            checkpoint=CheckpointConfig(every_steps="epoch", keep=1, best_metric="loss", best_mode="min"),
            evaluation=EvaluationConfig(every_steps="epoch", num_batches=None, patience=PROTOCOL.patience),
            generation=GenerationConfig(max_tokens=targets),
            initial_checkpoint_path=self._start,
            reset_step=True,
            random_seed=seed,
            report_to="none",
        )

    def _written(self, folder: Path, examples: Sequence[Example]) -> list[str]:
        """Returns what the best step of a run writes for each example."""
        from limba.api import load

        model = load(str(folder))
        found = model.written([each.inputs for each in examples], model.generation)
        eos = int(model.vocabulary.eos_id or 1)
        texts = []
        for samples in found:  # a language model's text begins with its prompt, its ids do not
            ids = [int(token) for token in samples[0].ids]
            ids = ids[: ids.index(eos)] if eos in ids else ids
            texts.append(model.vocabulary.decode([token for token in ids if token > 0]))
        return texts


def _train(config: RunConfig, log: Path) -> None:
    with environment.quiet_imports():
        from limba.api import PlannedRun, import_tasks

        import_tasks(MODULE, "fine-tuning imports")
    with log.open("a") as file, contextlib.redirect_stdout(file), contextlib.redirect_stderr(file):
        result = PlannedRun(config).train()
    if result["interrupted"]:
        raise RestartError(f"Fine-tuning in {config.model_dir} was stopped; the same command goes on there.")
