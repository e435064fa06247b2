"""The choice of a task's objective, the sequence lengths that follow from it, and the task's preprocessors in turn.

Raffel et al. 2020 (arXiv:1910.10683, section 3) compare most objectives; docs/settings.md shows what each makes.
"""

from __future__ import annotations

import difflib
import functools
import importlib
import inspect
import itertools
import logging
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from limba.config import OBJECTIVES, ConfigError, extras
from limba.data import bridge, user_code
from limba.data.dataset import TOKENS, Dataset, Step
from limba.data.draws import Draws
from limba.data.objectives.language_modeling import as_one_sequence, lm_adaptation_lengths
from limba.data.objectives.supervised import is_supervised, own
from limba.data.objectives.token_blocks import check_targets, tokenize_documents, unwrapped
from limba.data.packing import FEATURES
from limba.data.registry import Mixture, Task, parts_of
from limba.data.vocabulary.shifted import StreamVocabulary

PADDED = 0.05  # a larger share of padding in every row of targets is logged
CAUSAL_LM = "causal_lm"


def examples_of(task: Task, lengths: Mapping[str, int], documents: Dataset, draws: Draws) -> Dataset:
    """Returns the documents after the task's preprocessors, whose random choices are these draws.

    As in seqio, those before the place of a cache get no lengths.
    """
    steps = list(task.preprocessors)
    cache_index = _place_of_cache(task)
    if is_without_tensorflow(task):  # each border to TensorFlow is slow
        steps = [own(step) for step in steps]
    dataset = documents
    dataset.draws = draws
    if cache_index is not None:
        dataset = _applied(task, steps[:cache_index], dataset, None)
        steps = steps[cache_index + 1 :]
    return _applied(task, steps, dataset, lengths)


def is_without_tensorflow(task: Task) -> bool:
    """Returns whether all preprocessors of a task are run here: ours, and seqio's where we have them too."""
    cache_index = _place_of_cache(task)
    return all(number == cache_index or is_plain(own(step)) for number, step in enumerate(task.preprocessors))


def _place_of_cache(task: Task) -> int | None:
    """Returns which of the preprocessors is the place of seqio's cache, which does nothing."""
    names = [type(step).__name__ for step in task.preprocessors]
    return names.index("CacheDatasetPlaceholder") if "CacheDatasetPlaceholder" in names else None


def _applied(task: Task, steps: list[Step], dataset: Dataset, lengths: Mapping[str, int] | None) -> Dataset:
    arguments = {"sequence_length": lengths, "output_features": task.output_features}
    for are_plain, group in itertools.groupby(steps, is_plain):
        if not are_plain:
            failure = functools.partial(user_code.failure_of, task)
            with extras.needed_by(f"A preprocessor in TensorFlow of task {task.name}"), user_code.of_task(task):
                applied = bridge.applied(list(group), dataset, arguments, failure)
            applied.draws = dataset.draws
            applied.rows_per_block = dataset.rows_per_block
            dataset = applied
            continue
        for step in group:
            known = inspect.signature(step).parameters
            choices = {name: value for name, value in arguments.items() if name in known}
            before = _before_each_side(task)
            if not before or objective_of(step) is None:
                dataset = step(dataset, **choices)
                continue
            if lengths is not None:
                choices["sequence_length"] = {name: length - len(before) for name, length in lengths.items()}
            dataset = _beginning_with(before, step(dataset, **choices))
    return dataset


def _before_each_side(task: Task) -> tuple[int, ...]:
    """Returns what the template of a T5's folder for transformers puts before a text: its inputs, and its targets.

    Most have nothing there. The ids before the text of one sequence are put there with its documents.
    """
    vocabulary = task.output_features["targets"].vocabulary
    if not isinstance(vocabulary, StreamVocabulary) or vocabulary.is_one_sequence:
        return ()
    return vocabulary.begins


def _beginning_with(before: tuple[int, ...], rows: Dataset) -> Dataset:
    begin = np.array(before, np.int32)
    names = [name for name in FEATURES if name in rows.spec]

    def framed(row: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        return {**row, **{name: np.concatenate([begin, row[name]]) for name in names}}

    return rows.map(framed, {**rows.spec, **dict.fromkeys(names, TOKENS)})


def is_plain(step: Step) -> bool:
    """Returns whether a preprocessor takes data sets of ours, and not only TensorFlow's."""
    return getattr(unwrapped(step), "is_plain", False)


logger = logging.getLogger(__name__)


def function_of(objective: str, ending: str = "") -> Step:
    """Returns the preprocessor of an objective; with the ending "_lengths" the function to its rows' lengths."""
    module = importlib.import_module(f"{__package__}.{OBJECTIVES[objective].module}")
    return getattr(module, objective + ending)


def objective_of(step: Callable[..., object]) -> str | None:
    """Returns the name of the objective that a preprocessor is; None if it is another step."""
    return next((name for name in OBJECTIVES if unwrapped(step) is function_of(name)), None)


def has_only_gaps(task: Task | Mixture) -> bool:
    """Returns whether each part of a task has an objective that teaches a T5 to fill gaps, and nothing else."""
    for part in parts_of(task):
        names = [name for name in map(objective_of, part.preprocessors) if name is not None]
        if not names or not all(OBJECTIVES[name].has_only_gaps for name in names):
            return False
    return True


def with_objective(task: Task, name: str) -> Task:
    """Returns the task with its objective replaced by the named one, with that one's default choices.

    For one without inputs, causal LM, documents also end with the end-of-sequence id. Raises ConfigError for an
    unknown name, and for a task without exactly one objective of `limba.data.objectives`.

    >>> from limba.data.objectives import span_corruption
    >>> task = Task("nb", None, features, [tokenize_documents, span_corruption])
    >>> derive_lengths(with_objective(task, "ul2"), {"inputs": 512})
    {'inputs': 512, 'targets': 512}
    """
    if name not in OBJECTIVES:
        near = difflib.get_close_matches(name, OBJECTIVES, n=1)
        hint = f"did you mean {near[0]}? It" if near else "it"
        sentence = f"is {name!r}; {hint} must be one of {', '.join(OBJECTIVES)}."
        raise ConfigError("DataConfig.objective", sentence, ("DataConfig.objective", near[0]) if near else None)
    steps = list(task.preprocessors)
    places = [index for index, step in enumerate(steps) if objective_of(step)]
    if len(places) != 1:
        raise ConfigError(
            "DataConfig.objective",
            f"is {name!r} and task {task.name} has {len(places) or 'no'} objectives of limba.data.objectives that it"
            " could replace; register the task with tokenize_documents and span_corruption, or leave"
            " DataConfig.objective None.",
        )
    steps[places[0]] = function_of(name)
    if not OBJECTIVES[name].has_inputs:  # its rows have no end of sequence of their own
        steps = [
            functools.partial(step, append_eos=True) if unwrapped(step) is tokenize_documents else step
            for step in steps
        ]
    return task.replace(preprocessors=steps)


def with_noise(task: Task, **choices: float | None) -> Task:
    """Returns the task with the choices, fields of DataConfig, that are not None set in its objective.

    Raises ConfigError if its objective has no such choice.
    """
    chosen = {name: value for name, value in choices.items() if value is not None}
    steps = list(task.preprocessors)
    for index, step in enumerate(steps if chosen else ()):
        if objective_of(step) and set(chosen) <= set(inspect.signature(unwrapped(step)).parameters):
            steps[index] = functools.partial(step, **chosen)
            return task.replace(preprocessors=steps)
    if chosen:
        first, *others = (f"DataConfig.{name}" for name in chosen)
        raise ConfigError(
            first,
            f"{' '.join(['and', *others, 'are']) if others else 'is'} set, and the objective of task {task.name} has no"
            " such choice; set DataConfig.objective to span_corruption, or for an encoder masked_lm, or leave it out.",
        )
    return task


def of_one_sequence(task: Task, packed: bool, is_masked: bool = False) -> Task:
    """Returns the task for a decoder-only model or, `is_masked`, an encoder; ConfigError for others' objectives.

    A language model reads a start before each example. Where an example is a document, the template of a folder for
    transformers gives it no other one.

    >>> from limba.data.objectives import causal_lm
    >>> from limba.data.sources import FileSource
    >>> only_targets = {"targets": features["targets"]}
    >>> task = Task("nb", FileSource("nb.txt"), only_targets, preprocessors=[tokenize_documents, causal_lm])
    >>> of_one_sequence(task, packed=True).preprocessors[1].keywords
    {'whole_documents': True}
    """
    steps = []
    names = [name for name, entry in OBJECTIVES.items() if entry.for_decoder]
    begins = is_masked or isinstance(task.output_features["targets"].vocabulary, StreamVocabulary)
    is_document = packed and not is_masked and CAUSAL_LM in map(objective_of, task.preprocessors)
    for step in task.preprocessors:
        objective = objective_of(step)
        if objective and objective not in names:
            raise ConfigError(
                "DataConfig.task_feature_lengths",
                f"gives only targets, and the objective of task {task.name} is {objective}, whose inputs an encoder"
                f" reads; set DataConfig.objective to one of {', '.join(names)}.",
            )
        if objective and OBJECTIVES[objective].is_masked != is_masked:
            raise ConfigError(
                "DataConfig.objective",
                f"is not set, and task {task.name} has {objective}, which encoders learn; set it to that and"
                " ModelConfig.attention_mask to 'bidirectional', or to causal_lm.",
                ("DataConfig.objective", objective),
            )
        if unwrapped(step) is tokenize_documents:
            step = functools.partial(step, append_eos=True, begins=begins, follows_start=is_document)
        steps.append(as_one_sequence(step, packed))
    return task.replace(preprocessors=steps)


def reads_prefix(task: Task | Mixture, lengths: Mapping[str, int]) -> bool:
    """Returns whether each row that a decoder-only model learns has inputs, which it reads and does not predict.

    So it is for pairs, prefix LM and LM adaptation, and not for causal LM. `lengths` are the configured ones, which may
    say it: a task of another trainer makes the rows that they ask for.
    """
    if "prefix" in lengths:
        return lengths["prefix"] > 0
    return all(
        is_supervised(part)
        or any(OBJECTIVES[name].has_prefix for name in map(objective_of, part.preprocessors) if name)
        for part in parts_of(task)
    )


def derive_lengths(task: Task | Mixture, lengths: Mapping[str, int]) -> dict[str, int]:
    """Returns {"inputs", "targets"}, or only {"targets"}; targets that are not given follow from the objective.

    {"targets": L}, alone or with "prefix", is the length of a decoder-only model's sequence; the result is then the
    maximum length of each part. Raises ConfigError for lengths that are too short, and for missing targets if the
    task's objective is not one of `limba.data.objectives`. Targets longer than needed stay, with a warning.

    >>> from limba.data.objectives import span_corruption
    >>> task = Task("nb", None, features, [tokenize_documents, span_corruption])
    >>> derive_lengths(task, {"inputs": 512})
    {'inputs': 512, 'targets': 114}
    """
    needed_by_parts = [_lengths_needed(part, lengths) for part in parts_of(task)]
    parts = [needed for needed in needed_by_parts if needed]
    targets_length = lengths.get("targets")
    if "inputs" not in lengths:
        return _lengths_of_one_sequence(task, lengths, parts)
    if not parts:
        if targets_length is None:
            raise ConfigError(
                "DataConfig.task_feature_lengths",
                f"has no 'targets', and task {task.name} has no objective from which they follow; add 'targets'.",
                ("DataConfig.task_feature_lengths", {"inputs": lengths["inputs"], "targets": lengths["inputs"]}),
            )
        return {"inputs": lengths["inputs"], "targets": targets_length}
    needed = max(part["targets"] for part in parts)
    check_targets("the task's objective", lengths, needed)
    if targets_length is not None and targets_length - needed > PADDED * targets_length:
        logger.warning(
            "DataConfig.task_feature_lengths gives 'targets' %d and %d are used: %.0f %% of the targets are padding.",
            targets_length,
            needed,
            100 * (targets_length - needed) / targets_length,
        )
    inputs = {"inputs": lengths["inputs"]} if any("inputs" in part for part in parts) else {}
    return {**inputs, "targets": targets_length or needed}


def _lengths_of_one_sequence(
    task: Task | Mixture, lengths: Mapping[str, int], needed: Sequence[Mapping[str, int]]
) -> dict[str, int]:
    """Returns the lengths of the parts of a decoder-only model's row; `needed` are the lengths of Limba's objectives.

    A task without such an objective gets these very lengths, as T5X gives them to it, and its rows are joined later:
    {"inputs", "targets"} with a "prefix", and only {"targets"} where that is 0.
    """
    prefix = lengths.get("prefix")
    if prefix is not None and any(part.get("inputs", 0) != prefix for part in needed):
        raise ConfigError(
            "DataConfig.task_feature_lengths",
            f"gives 'prefix', which rows of pairs have, and task {task.name} has another objective; leave it out.",
        )
    if prefix == 0:
        return {"targets": lengths["targets"]}
    sides = [name for name in ("inputs", "targets") if any(name in part for part in needed)]
    if sides:
        return {name: max(part.get(name, 0) for part in needed) for name in sides}
    has_inputs = prefix is not None or all(map(is_supervised, parts_of(task)))
    return lm_adaptation_lengths(lengths) if has_inputs else {"targets": lengths["targets"]}


def _lengths_needed(task: Task, lengths: Mapping[str, int]) -> dict[str, int] | None:
    for step in task.preprocessors:
        if name := objective_of(step):
            needed = function_of(name, "_lengths")
            choices = step.keywords if isinstance(step, functools.partial) else {}
            known = inspect.signature(needed).parameters
            fields = {name: value for name, value in choices.items() if name in known}
            num_before = len(_before_each_side(task))
            of_text = needed({name: length - num_before for name, length in lengths.items()}, **fields)
            return {name: length + num_before for name, length in of_text.items()}
    return None
