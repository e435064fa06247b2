"""The metrics of a seqio task, computed for a model's outputs as seqio's Evaluator computes them.

A task's `metric_fns` and `metric_objs` take predictions, the targets' log likelihoods (`scores`), or predictions with
the scores of the search (`aux_values`).
"""

from __future__ import annotations

import inspect
import math
import traceback
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from limba.config import InputError, RunConfig, reason_of
from limba.data import metrics
from limba.data.dataset import Step
from limba.data.metrics import Figures
from limba.data.objectives.supervised import text_of
from limba.data.registry import Task

Outputs = Sequence[Any] | np.ndarray  # of a model, one for each example

# The numbers of seqio's ModelOutputType, which its metric objects carry.
PREDICTION = 1
SCORE = 2
WITH_AUX = 3
OUTPUTS = (PREDICTION, SCORE, WITH_AUX)
# The names of a metric function's arguments tell what it takes, as in seqio.
OUTPUT_OF_ARGUMENTS: dict[tuple[str, ...], int] = {
    ("targets", "predictions"): PREDICTION,
    ("targets", "scores"): SCORE,
    ("targets", "predictions", "aux_values"): WITH_AUX,
}


def metrics_of(part: Task, config: RunConfig) -> list[Any]:
    """Returns a task's metrics with a run's choices; a task of seqio's own class has made objects of its functions."""
    languages = config.card.language or ()
    if isinstance(languages, str):
        languages = (languages,)
    objects = list(part.metric_objs)
    if type(part) is not Task:  # seqio's own
        return objects
    for function in part.metric_fns:
        with_choices = metrics.chosen(function, config.evaluation.bleu_tokenizer, languages)
        objects.append(FunctionMetric(part, with_choices))
    return objects


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
    file and line, for a metric that raises an error.
    """
    figures: Figures = {}
    if not examples:
        return figures
    for metric in metrics:
        if metric.model_output_type not in outputs:
            continue
        # A copy for each metric: user code may change what it is given.
        output = jax.tree.map(np.array, outputs[metric.model_output_type], is_leaf=lambda leaf: isinstance(leaf, list))
        try:
            values = _computed(part, metric, examples, output)
        except InputError:
            raise
        except Exception as error:
            where = traceback.extract_tb(error.__traceback__)[-1]
            raise InputError(
                f"A metric of task {part.name} raises {type(error).__name__} ({reason_of(error)}) in {where.filename},"
                f" line {where.lineno}; correct it, or set EvaluationConfig.num_examples to 0.",
                fix=("EvaluationConfig.num_examples", 0),
            ) from error
        for name, value in values.items():
            number = getattr(value, "value", value)  # seqio's Scalar holds one
            if _is_number(number, only_finite):
                figures[name] = float(number)
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


class FunctionMetric:
    """A metric function of a task, as seqio's PassthroughLegacyMetric; InputError if it takes other arguments."""

    def __init__(self, task: Task, function: Step):
        self._task = task
        self._function = function
        parameters = inspect.signature(function).parameters.values()
        needed = (p.name for p in parameters if p.default is p.empty and p.kind is p.POSITIONAL_OR_KEYWORD)
        output_type = OUTPUT_OF_ARGUMENTS.get(tuple(needed))
        if output_type is None:
            raise InputError(
                f"A metric function of task {task.name} does not take (targets, predictions), (targets, scores) or"
                " (targets, predictions, aux_values); give its arguments these names."
            )
        self.model_output_type = output_type

    def postprocess(self, text: str, **choices: object) -> object:
        """Returns what the function gets for a text: what the task's `postprocess_fn` makes of it."""
        if self._task.postprocess_fn is None:
            return text
        return self._task.postprocess_fn(text, **choices)

    def __call__(self, examples: Sequence[Mapping[str, np.ndarray]], output: Any) -> Mapping[str, Any]:
        """Returns the function's figures of the model's output: ids or texts, scores, or (ids, auxiliary values)."""
        vocabulary = self._task.output_features["targets"].vocabulary
        targets = [
            self.postprocess(text_of(example, "targets", vocabulary), example=example, is_target=True)
            for example in examples
        ]
        arguments: dict[str, object] = {"targets": targets}
        if self.model_output_type == SCORE:
            return self._function(**arguments, scores=output)
        if self.model_output_type == WITH_AUX:
            output, arguments["aux_values"] = output
        predictions = []
        for prediction, example in zip(output, examples, strict=True):
            text = prediction if isinstance(prediction, str) else vocabulary.decode(prediction)
            predictions.append(self.postprocess(text, example=example, is_target=False))
        arguments["predictions"] = predictions
        return self._function(**arguments)
