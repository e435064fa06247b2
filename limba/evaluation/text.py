"""Generates text for validation examples and computes the metrics of their seqio tasks.

Examples, outputs and metrics are combined as in seqio's Evaluator: a task's `metric_fns` and `metric_objs` take
predictions, the targets' log likelihoods (`scores`), or predictions with the scores of the search (`aux_values`).
The model runs on the devices' mesh, and figures are the same on every process.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import itertools
import json
import math
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from etils import epath
from jax.sharding import Mesh

from limba.config import EvaluationConfig, InputError, RunConfig, reason_of
from limba.data import metrics, run_data
from limba.data.dataset import Step
from limba.data.objectives.supervised import is_supervised, prefix_of, text_of
from limba.data.packing import FEATURES
from limba.data.registry import Task
from limba.data.tasks import Provider, parts_of
from limba.data.vocabulary.load import PieceTable, Vocabulary
from limba.data.vocabulary.special_ids import of_run
from limba.data.vocabulary.stream import offset_of, published_of
from limba.evaluation.validation import Figures, loss_evaluation
from limba.inference import gaps
from limba.inference.generate import Writer, Written, input_ids, log_likelihoods, padded, prompt_ids
from limba.inference.load import TrainedModel
from limba.model import Network
from limba.model.trees import Parameters
from limba.sharding.mesh import batch_sharding, num_batch_groups
from limba.storage.files import make_folder, write_whole
from limba.training.metrics.records import markdown_table as markdown_table

Outputs = Sequence[Any] | np.ndarray  # of a model, one for each example
PREDICTION, SCORE, WITH_AUX = OUTPUTS = (1, 2, 3)  # seqio's ModelOutputType
OUTPUT_OF: dict[tuple[str, ...], int] = {("targets", "predictions"): PREDICTION, ("targets", "scores"): SCORE}
OUTPUT_OF[("targets", "predictions", "aux_values")] = WITH_AUX


class FunctionMetric:
    """A metric function of a task, as seqio's PassthroughLegacyMetric; InputError if it takes other arguments."""

    def __init__(self, task: Task, function: Step):
        self._task, self._function = task, function
        parameters = inspect.signature(function).parameters.values()
        needed = (p.name for p in parameters if p.default is p.empty and p.kind is p.POSITIONAL_OR_KEYWORD)
        kind = OUTPUT_OF.get(tuple(needed))
        if kind is None:
            raise InputError(
                f"A metric function of task {task.name} does not take (targets, predictions), (targets, scores) or"
                " (targets, predictions, aux_values); give its arguments these names."
            )
        self.model_output_type = kind

    def postprocess(self, text: str, **choices: object) -> object:
        """Returns what the function gets of a text."""
        change = self._task.postprocess_fn
        return text if change is None else change(text, **choices)

    def __call__(self, examples: Sequence[Mapping[str, np.ndarray]], output: Any) -> Mapping[str, Any]:
        """Returns the function's figures of the model's output: ids or texts, scores, or (ids, auxiliary values)."""
        vocabulary = self._task.output_features["targets"].vocabulary
        texts = [text_of(example, "targets", vocabulary) for example in examples]
        pairs = zip(texts, examples, strict=True)
        given: dict[str, object] = {"targets": [self.postprocess(t, example=e, is_target=True) for t, e in pairs]}
        if self.model_output_type == SCORE:
            return self._function(**given, scores=output)
        if self.model_output_type == WITH_AUX:
            output, given["aux_values"] = output
        written = [each if isinstance(each, str) else vocabulary.decode(each) for each in output]
        pairs = zip(written, examples, strict=True)
        given["predictions"] = [self.postprocess(t, example=e, is_target=False) for t, e in pairs]
        return self._function(**given)


def metrics_of(part: Task, config: RunConfig) -> list[Any]:
    """Returns a task's metrics with a run's choices; seqio's own tasks make objects of their functions themselves."""
    languages = config.card.language or ()
    languages = (languages,) if isinstance(languages, str) else languages
    found = list(part.metric_objs)
    for function in part.metric_fns if type(part) is Task else ():
        function = metrics.chosen(function, config.evaluation.bleu_tokenizer, languages)
        found.append(FunctionMetric(part, function))
    return found


class TextEvaluation:
    """The validation examples of a run's tasks, and their metrics. `tasks` is empty if none has metrics or examples.

    The texts are written to model_dir/evaluations/<task>-<step>.jsonl. With `name` they get that name too, and replace
    no file.
    Raises InputError for a metric of a model's intermediates, and for examples that the model cannot continue.
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
        self._examples = {part.name: [_as_published(part, each) for each in examples[part.name]] for part in parts}
        self.tasks: list[Task] = [_with_published(part) for part in parts if examples[part.name]]
        self._directory = epath.Path(config.model_dir) / "evaluations"
        self._model, self._mesh, self._name = model, mesh, name
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
        found = {}
        for part in self.tasks:
            examples, vocabulary = self._examples[part.name], part.output_features["inputs"].vocabulary
            texts = [text_of(example, "inputs", vocabulary).removeprefix(prefix_of(part)) for example in examples]
            # A task's metric classes may need ids; a copied text has none.
            of_texts = [metric for metric in self._metrics_of(part) if hasattr(metric, "postprocess")]
            found[part.name] = figures_of(part, of_texts, examples, {PREDICTION: texts})
        return self._joined(found)

    def _joined(self, found: Mapping[str, Figures]) -> Figures:
        if len(found) == 1:
            return next(iter(found.values()))
        return {f"{name}/{metric}": value for name, figures in found.items() for metric, value in figures.items()}

    def _judge(self, part: Task, params: Parameters, step: int) -> Figures:
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
            is_prefix, rows = self._model.config.is_decoder_only, self._writer.num_rows
            outputs[SCORE] = log_likelihoods(
                self._model, params, self._mesh, pairs, rows, is_prefix, special=self._special
            )
        figures = figures_of(part, self._metrics_of(part), examples, outputs)
        if jax.process_index() == 0:
            self._write(part, step, figures, [samples[0].text for samples in written])
        return figures

    def _write(self, part: Task, step: int, figures: Figures, texts: Sequence[str]) -> None:
        make_folder(self._directory)
        lines: list[dict[str, object]] = [{"figures": figures}]
        features = part.output_features
        for example, prediction in zip(self._examples[part.name], texts, strict=True):
            given, target = (text_of(example, name, features[name].vocabulary) for name in FEATURES)
            lines.append({"input": given, "target": target, "prediction": prediction})
        text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
        path = self._directory / f"{part.name}-{step}.jsonl"
        write_whole(unused(self._directory, f"{path.stem}-{self._name}", ".jsonl") if self._name else path, text)


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
    found = dict(example)
    for name in FEATURES:
        offset = offset_of(part.output_features[name].vocabulary)
        if offset and name in found:
            found[name] = found[name] - offset
    return found


def unused(directory: epath.Path, name: str, *endings: str) -> epath.Path:
    """Returns the path of the first file, of name, name-2, …, that is in the directory with none of the endings."""
    names = itertools.chain([name], (f"{name}-{number}" for number in itertools.count(2)))
    free = next(name for name in names if not any((directory / f"{name}{ending}").exists() for ending in endings))
    return directory / f"{free}{endings[0]}"


def figures_of(
    part: Task,
    metrics: Sequence[Step],
    examples: Sequence[Mapping[str, np.ndarray]],
    outputs: Mapping[int, Outputs],
    only_finite: bool = True,
) -> Figures:
    """Returns the figures of seqio's Evaluator for a task's examples and a model's outputs of each kind.

    The task's `postprocess_fn` is applied. Metrics of a kind that the outputs lack are left out, and so are values
    that are not numbers (texts, pictures), or not finite ones if `only_finite`. Raises InputError, which names the
    place, for a metric that raises an error.
    """
    figures: Figures = {}
    for metric in metrics if examples else ():
        if metric.model_output_type not in outputs:
            continue
        output = jax.tree.map(np.array, outputs[metric.model_output_type], is_leaf=lambda leaf: isinstance(leaf, list))
        try:
            found = _computed(part, metric, examples, output)
        except InputError:
            raise
        except Exception as error:
            where = traceback.extract_tb(error.__traceback__)[-1]
            raise InputError(
                f"A metric of task {part.name} raises {type(error).__name__} ({reason_of(error)}) in {where.filename},"
                f" line {where.lineno}; correct it, or set EvaluationConfig.num_examples to 0.",
                fix=("EvaluationConfig.num_examples", 0),
            ) from error
        numbers = {name: getattr(value, "value", value) for name, value in found.items()}  # seqio's Scalar holds one
        figures |= {name: float(value) for name, value in numbers.items() if _is_number(value, only_finite)}
    return figures


def _computed(part: Task, metric: Any, examples: Sequence[Mapping[str, np.ndarray]], output: Any) -> Mapping[str, Any]:
    if isinstance(metric, FunctionMetric):
        return metric(examples, output)
    judged = metric.from_model_output(examples, output, part.output_features)
    if hasattr(judged, "actual_compute"):  # seqio's CollectingMetric
        return judged.actual_compute(examples, part.output_features)[0]
    return judged.compute()


def _is_number(value: Any, only_finite: bool) -> bool:
    try:
        return np.ndim(value) == 0 and (math.isfinite(value) or not only_finite)
    except TypeError:
        return False


def evaluate(trained: TrainedModel, *, num_examples: int, split: str) -> tuple[Figures, Figures]:
    """Returns the figures of a trained run on a split, and those of copied inputs (none if no task has metrics)."""
    run = trained.source.run
    assert run is not None, "only a run has a task"
    config = dataclasses.replace(
        run,
        data=dataclasses.replace(run.data, validation_split=split, batch_size=trained.batch_size),
        evaluation=dataclasses.replace(run.evaluation, num_examples=num_examples),
    )
    model, mesh, lengths = trained.network, trained.mesh, trained.lengths
    task = trained.task
    assert task is not None, "a run has one"
    of_loss = loss_evaluation(config, task, lengths, model, batch_sharding(mesh))
    of_text = TextEvaluation(config, task, lengths, model, mesh, name=split)
    figures = {**(of_loss(trained.params) if of_loss else {}), **of_text(trained.params, trained.step)}
    return figures, of_text.copied()


def sampler(
    network: Network, mesh: Mesh, vocabulary: Vocabulary, config: EvaluationConfig, is_prefix: bool = False
) -> Callable[[Parameters], dict[str, list[str]]] | None:
    """Returns a function from the parameters to each prompt's texts; None without prompts.

    A decoder-only model continues a prompt, with `is_prefix` read as the inputs of its rows; a T5 fills its gaps
    (<extra_id_0> and so on), whose texts are then in [brackets]. A fill begins with a word or a good part of one
    (`gaps.is_word`), so that no gap is left empty. Raises InputError for a prompt that the model cannot take.
    """
    prompts, continues = config.prompts, network.config.is_decoder_only
    if not prompts:
        return None
    vocabulary = published_of(vocabulary)
    if network.config.is_encoder:
        return gaps.mask_sampler(network, mesh, vocabulary, prompts)
    groups = num_batch_groups(mesh)
    sampling = config.sampling if continues else dataclasses.replace(config.sampling, ban_sentinels=False)
    rows = -(-len(prompts) // groups) * groups
    writer = Writer(network, mesh, vocabulary, sampling, rows, is_prefix, gaps=gaps.first_pieces(network, vocabulary))
    ids, special = prompt_ids if continues else input_ids, of_run(vocabulary, network.config)
    inputs = [ids(prompt, vocabulary, special) for prompt in prompts]
    writer.check(inputs)
    table = PieceTable(vocabulary)

    def text_of(read: np.ndarray, written: Written) -> str:
        return written.text if continues else table.filled(read.tolist(), written.ids.tolist())

    def texts(params: Parameters) -> dict[str, list[str]]:
        found = zip(prompts, inputs, writer.write_all(params, inputs), strict=True)
        return {prompt: [text_of(read, each) for each in several] for prompt, read, several in found}

    return texts
