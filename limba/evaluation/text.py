"""Generates text for validation examples, and for prompts; computes the metrics of the examples' tasks.

The model runs on the devices' mesh, and figures are the same on every process. `limba/evaluation/task_metrics.py`
computes the metrics of what is generated.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from etils import epath
from jax.sharding import Mesh

from limba.config import EvaluationConfig, InputError, RunConfig
from limba.data import run_data
from limba.data.objectives.supervised import is_supervised, prefix_of, text_of
from limba.data.packing import FEATURES
from limba.data.registry import Task
from limba.data.tasks import Provider, parts_of
from limba.data.vocabulary.piece_table import PieceTable
from limba.data.vocabulary.shifted import offset_of, published_of
from limba.data.vocabulary.special_ids import of_run
from limba.data.vocabulary.vocabularies import Vocabulary
from limba.evaluation.task_metrics import OUTPUTS, PREDICTION, SCORE, WITH_AUX, Outputs, figures_of, metrics_of
from limba.evaluation.validation import Figures, loss_evaluation
from limba.inference.gap_pieces import first_pieces
from limba.inference.generate import Writer, Written, padded
from limba.inference.load import TrainedModel
from limba.inference.mask_filling import mask_sampler
from limba.inference.scoring import log_likelihoods
from limba.inference.token_ids import input_ids, prompt_ids
from limba.model import Network
from limba.model.trees import Parameters
from limba.sharding.mesh import batch_sharding, num_batch_groups
from limba.storage.files import make_folder, try_to_write, write_whole
from limba.training.metrics.records import markdown_table as markdown_table


class TextEvaluation:
    """The validation examples of a run's tasks, and their metrics. `tasks` is empty if none has metrics or examples.

    The texts are written to model_dir/evaluations/<task>-<step>.jsonl; a run goes on where they cannot be. With a
    `name` they are a command's output, <task>-<step>-<name>.jsonl, which overwrites no file. Raises InputError for a
    metric of a model's intermediates, and for examples that the model cannot continue.
    """

    def __init__(
        self, config: RunConfig, task: Provider, lengths: Mapping[str, int], model: Network, mesh: Mesh, name: str = ""
    ):
        parts = [part for part in parts_of(task) if metrics_of(part, config) and is_supervised(part)]
        parts = parts if config.evaluation.num_examples else []
        for part in parts:
            if any(metric.model_output_type not in OUTPUTS for metric in metrics_of(part, config)):
                raise InputError(
                    f"Task {part.name} has a metric of a model's intermediates; give metrics of predictions or scores."
                )
        examples = {
            part.name: run_data.validation_examples(part, lengths, config.data, config.evaluation.num_examples)
            for part in parts
        }
        self._examples = {
            part.name: [_as_published(part, features) for features in examples[part.name]] for part in parts
        }
        self.tasks: list[Task] = [_with_published(part) for part in parts if examples[part.name]]
        self._directory = epath.Path(config.model_dir) / "evaluations"
        self._model = model
        self._mesh = mesh
        self._name = name
        self._warns = True  # where texts cannot be written: once in an outage
        self._metrics_of = functools.partial(metrics_of, config=config)
        if self.tasks:
            vocabulary = published_of(task.output_features["targets"].vocabulary)
            self._special = of_run(vocabulary, model.config)
            size = config.evaluation.batch_size or config.data.batch_size
            self._writer = Writer(
                model, mesh, vocabulary, config.generation, size, model.config.is_decoder_only, with_prompt=False
            )
            self._writer.check([self._read(example) for examples in self._examples.values() for example in examples])

    @functools.cached_property
    def names(self) -> tuple[str, ...]:
        """The names of the figures. InputError for a metric that fails: it is computed of the targets themselves."""
        return tuple(self._joined({part.name: self._of_targets(part) for part in self.tasks}))

    def _read(self, example: Mapping[str, np.ndarray]) -> np.ndarray:
        """Returns the ids that the model reads: in a language model's rows a start precedes the inputs."""
        if not self._model.config.is_decoder_only:
            return example["inputs"]
        return np.pad(example["inputs"], (1, 0), constant_values=self._special.first)

    def _of_targets(self, part: Task) -> Figures:
        """Returns a task's figures of the targets themselves; those that are not finite too."""
        examples = self._examples[part.name]
        targets = [example["targets"] for example in examples]
        ids = list(padded(targets, len(examples), filling=self._special.filling))  # all of one length, as written
        scores = [0.0] * len(examples)
        outputs = {PREDICTION: ids, SCORE: scores, WITH_AUX: (ids, {"scores": scores})}
        return figures_of(part, self._metrics_of(part), examples, outputs, only_finite=False)

    def __call__(self, params: Parameters, step: int) -> Figures:
        """Returns metric -> figure; with several tasks task/metric. Texts are written to model_dir/evaluations."""
        return self._joined({part.name: self._judge(part, params, step) for part in self.tasks})

    def copied(self) -> Figures:
        """Returns the figures of inputs copied without the task's prefix: the baseline of tasks that change little."""
        figures = {}
        for part in self.tasks:
            examples = self._examples[part.name]
            vocabulary = part.output_features["inputs"].vocabulary
            texts = [text_of(example, "inputs", vocabulary).removeprefix(prefix_of(part)) for example in examples]
            # A task's metric classes may need ids, which a copied text does not have.
            of_texts = [metric for metric in self._metrics_of(part) if hasattr(metric, "postprocess")]
            figures[part.name] = figures_of(part, of_texts, examples, {PREDICTION: texts})
        return self._joined(figures)

    def _joined(self, figures_of_tasks: Mapping[str, Figures]) -> Figures:
        """Returns the figures of all tasks in one dict, under task/metric if there are several."""
        if len(figures_of_tasks) == 1:
            return next(iter(figures_of_tasks.values()))
        joined = {}
        for task_name, figures in figures_of_tasks.items():
            for metric, value in figures.items():
                joined[f"{task_name}/{metric}"] = value
        return joined

    def _judge(self, part: Task, params: Parameters, step: int) -> Figures:
        """Returns a task's figures of what the model generates, and of its scores if a metric asks for them."""
        examples = self._examples[part.name]
        kinds = {metric.model_output_type for metric in self._metrics_of(part)}
        outputs: dict[int, Outputs] = {}
        inputs = [self._read(example) for example in examples]
        written = self._writer.write_all(params, inputs)
        ids = [samples[0].ids for samples in written]
        if PREDICTION in kinds:
            outputs[PREDICTION] = ids
        if WITH_AUX in kinds:
            outputs[WITH_AUX] = ids, {"scores": [samples[0].score for samples in written]}
        if SCORE in kinds:
            pairs = [(read, example["targets"]) for read, example in zip(inputs, examples, strict=True)]
            is_prefix = self._model.config.is_decoder_only
            rows = self._writer.num_rows
            outputs[SCORE] = log_likelihoods(
                self._model, params, self._mesh, pairs, rows, is_prefix, special=self._special
            )
        figures = figures_of(part, self._metrics_of(part), examples, outputs)
        if jax.process_index() == 0:
            self._write(part, step, figures, [samples[0].text for samples in written])
        return figures

    def _write(self, part: Task, step: int, figures: Figures, texts: Sequence[str]) -> None:
        lines: list[dict[str, object]] = [{"figures": figures}]
        features = part.output_features
        for example, prediction in zip(self._examples[part.name], texts, strict=True):
            prompt, target = (text_of(example, name, features[name].vocabulary) for name in FEATURES)
            lines.append({"input": prompt, "target": target, "prediction": prediction})
        text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
        name = f"{part.name}-{step}"
        if self._name:  # of a command, whose output it is
            make_folder(self._directory)
            write_whole(unused(self._directory, f"{name}-{self._name}", ".jsonl"), text)
        else:
            self._warns = try_to_write(self._directory / f"{name}.jsonl", text, self._warns)


def _with_published(part: Task) -> Task:
    """Returns a task whose vocabularies have the model's ids, as what the model writes has them."""
    features = {
        name: dataclasses.replace(feature, vocabulary=published_of(feature.vocabulary))
        for name, feature in part.output_features.items()
    }
    is_same = all(feature.vocabulary is features[name].vocabulary for name, feature in part.output_features.items())
    return part if is_same else part.replace(output_features=features)


def _as_published(part: Task, example: Mapping[str, Any]) -> dict[str, Any]:
    """Returns an example with the model's ids."""
    published = dict(example)
    for name in FEATURES:
        offset = offset_of(part.output_features[name].vocabulary)
        if offset and name in published:
            published[name] = published[name] - offset
    return published


def unused(directory: epath.Path, name: str, *endings: str) -> epath.Path:
    """Returns the path of the first file, of name, name-2, …, that is in the directory with none of the endings."""
    names = itertools.chain([name], (f"{name}-{number}" for number in itertools.count(2)))
    free = next(name for name in names if not any((directory / f"{name}{ending}").exists() for ending in endings))
    return directory / f"{free}{endings[0]}"


def evaluate(trained: TrainedModel, *, num_examples: int, split: str) -> tuple[Figures, Figures]:
    """Returns the figures of a trained run on a split, and the figures of its inputs copied ({} without metrics)."""
    run = trained.source.run
    assert run is not None, "only a run has a task"
    config = dataclasses.replace(
        run,
        data=dataclasses.replace(run.data, validation_split=split, batch_size=trained.batch_size),
        evaluation=dataclasses.replace(run.evaluation, num_examples=num_examples),
    )
    model = trained.network
    mesh = trained.mesh
    lengths = trained.lengths
    task = trained.task
    assert task is not None, "a run has one"
    of_loss = loss_evaluation(config, task, lengths, model, batch_sharding(mesh))
    of_text = TextEvaluation(config, task, lengths, model, mesh, name=split)
    figures = {}
    if of_loss is not None:  # None where the split is empty
        figures |= of_loss(trained.params)
    figures |= of_text(trained.params, trained.step)
    return figures, of_text.copied()


def sampler(
    network: Network,
    mesh: Mesh,
    vocabulary: Vocabulary,
    config: EvaluationConfig,
    is_prefix: bool = False,
    input_end: int | None = None,
) -> Callable[[Parameters], dict[str, list[str]]] | None:
    """Returns a function from the parameters to each prompt's texts; None without prompts.

    A decoder-only model continues a prompt, with `is_prefix` read as the inputs of its rows. One that learns pairs,
    whose inputs have an `input_end`, writes a target. A T5 fills a prompt's gaps (<extra_id_0> and so on), whose texts
    are then in [brackets]. A fill begins with a word or a good part of one (`gap_pieces.is_word`), so that no gap is
    left empty. Raises InputError for a prompt that the model cannot take.
    """
    prompts = config.prompts
    continues = network.config.is_decoder_only
    if not prompts:
        return None
    vocabulary = published_of(vocabulary)
    if network.config.is_encoder:
        return mask_sampler(network, mesh, vocabulary, prompts)
    groups = num_batch_groups(mesh)
    sampling = config.sampling if continues else dataclasses.replace(config.sampling, ban_sentinels=False)
    rows = -(-len(prompts) // groups) * groups
    special = dataclasses.replace(of_run(vocabulary, network.config), input_end=input_end)
    writer = Writer(
        network,
        mesh,
        vocabulary,
        sampling,
        rows,
        is_prefix,
        with_prompt=input_end is None,
        gaps=first_pieces(network, vocabulary),
        special=special,
    )
    ids = prompt_ids if continues else input_ids
    inputs = [ids(prompt, vocabulary, special) for prompt in prompts]
    writer.check(inputs)
    table = PieceTable(vocabulary)

    def text_of(read: np.ndarray, written: Written) -> str:
        return written.text if continues else table.filled(read.tolist(), written.ids.tolist())

    def texts(params: Parameters) -> dict[str, list[str]]:
        answers = zip(prompts, inputs, writer.write_all(params, inputs), strict=True)
        return {prompt: [text_of(read, written) for written in several] for prompt, read, several in answers}

    return texts
