"""Tasks that were written for T5X: sources that are functions, caches, features that only the objective makes."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from etils import epath

from limba.api import Task
from limba.config import ConfigError

logger = logging.getLogger(__name__)

BUILDERS = ("json", "csv", "text", "parquet")  # names that load_dataset gives to forms of files
# t5's preprocessors that make inputs of one text: a task with one of them has no inputs of its own.
OBJECTIVES = ("span_corruption", "iid_denoising", "prefix_lm", "full_lm", "unsupervised", "denoise")


def is_objective(name: str, module: str) -> bool:
    """Returns whether a function is one of the objectives of the package t5."""
    return name in OBJECTIVES and module.startswith("t5.data")


def _function(step: Callable) -> Callable:
    """Returns the function of a preprocessor, without the choices that `functools.partial` has given it."""
    return _function(step.func) if isinstance(step, functools.partial) else step


def _is_objective(step: Callable) -> bool:
    function = _function(step)
    return is_objective(getattr(function, "__name__", ""), getattr(function, "__module__", "") or "")


def with_inputs(task: Task) -> Task:
    """Returns a task of one of t5's objectives that only registers 'targets' with 'inputs' too.

    As in T5X the inputs then have no end of sequence, which follows from a registered feature. The preprocessors see
    the task's own features.
    """
    features = dict(task.output_features)
    if "inputs" in features or "targets" not in features or not any(map(_is_objective, task.preprocessors)):
        return task
    targets = features["targets"]
    inputs = dataclasses.replace(targets, add_eos=False, required=False)
    steps = [_with_features(step, tuple(features)) for step in task.preprocessors]
    return task.replace(preprocessors=steps, output_features={"inputs": inputs, **features})


def _with_features(step: Callable, names: Sequence[str]) -> Callable:
    takes = inspect.signature(step).parameters if callable(step) else {}
    if "output_features" not in takes:
        return step

    def whole(dataset: object, output_features: Mapping[str, object]) -> object:
        return step(dataset, output_features={name: output_features[name] for name in names})

    def with_lengths(dataset: object, sequence_length: object, output_features: Mapping[str, object]) -> object:
        features = {name: output_features[name] for name in names}
        return step(dataset, sequence_length=sequence_length, output_features=features)

    return with_lengths if "sequence_length" in takes else whole


def for_files(task: Task, split: str) -> Task:
    """Returns a task whose function files may replace. They give dictionaries: a first step makes strings if it did."""
    if not _reads_function(task):
        return task
    import tensorflow as tf

    try:
        with tf.device("cpu"):
            spec = task.source.get_dataset(split, shuffle=False).element_spec
    except Exception:  # noqa: BLE001  the user's own function, whose data may not be reachable: dictionaries are usual
        return task
    is_text = isinstance(spec, tf.TensorSpec)
    return task.replace(preprocessors=[text_alone, *task.preprocessors]) if is_text else task


def _reads_function(task: Task) -> bool:
    return any(kind.__name__ == "FunctionDataSource" for kind in type(task.source).__mro__)


def text_alone(dataset: Any) -> Any:
    """Returns the texts of {"text"}, for preprocessors that take strings."""
    return dataset.map(lambda example: example["text"])


def resumable_form(task: Task) -> str | None:
    """Returns the line that makes a task resumable whose source is a function; None for other sources."""
    if not _reads_function(task):
        return None
    arguments = getattr(task.source._dataset_fn, "keywords", {}) or {}  # pyright: ignore[reportAttributeAccessIssue]
    # An argument of a partial that is a mapping with a "path" names the data set as load_dataset does.
    data_set = next((value for value in arguments.values() if isinstance(value, Mapping) and "path" in value), {})
    path = data_set.get("path", "USER/NAME")
    config = data_set.get("name")
    more = f", name={config!r}" if config else ""
    source = f'source=HubSource({path!r}{more}, column="text", splits={tuple(task.splits)!r})'
    if path in BUILDERS:  # no data set of the hub, but the form of files
        source = f'source=FileSource({data_set.get("data_files", "FILES")!r}, column="text")'
    is_spans = any(getattr(_function(step), "__name__", "") == "span_corruption" for step in task.preprocessors)
    return f"{source}, preprocessors=[tokenize_documents, span_corruption]" if is_spans else source


def warn_of_function(task: Task) -> None:
    """Logs once, in one line, how a task becomes resumable whose source is a function."""
    form = resumable_form(task)
    if form is not None:
        warn_once(task.name, form)


@functools.lru_cache(maxsize=64)
def warn_once(name: str, form: str) -> None:
    logger.warning(
        "Task %s reads a function, whose position cannot be saved: a resumed run reads all its text again. To resume at"
        " once, register it with %s (limba.data.sources, limba.data.objectives).",
        name,
        form,
    )


class CachedSource:
    """The examples of a task's cache, which seqio's `seqio_cache_tasks` has written, by split: a seqio.DataSource."""

    caching_permitted = supports_arbitrary_sharding = False

    def __init__(self, task: Any):
        prefix = "info."
        ending = ".json"
        assert task.cache_dir is not None  # as `from_cache` checks
        names = [path.name for path in epath.Path(task.cache_dir).iterdir()]
        splits = [name[len(prefix) : -len(ending)] for name in names if name.startswith(prefix)]
        # seqio has no public function for the source of a cache; `Task.get_dataset` calls this one too.
        self._sources = {split: task._get_cached_source(split) for split in sorted(splits)}
        self.splits = tuple(self._sources)

    def list_shards(self, split: str) -> Sequence[str]:
        return self._sources[split].list_shards(split)

    def get_dataset(self, split: str, *arguments, **choices) -> Any:
        return self._sources[split].get_dataset(split, *arguments, **choices)


def from_cache(task: Task, of_seqio: Any, directory: str) -> Task:
    """Returns the task with its cache in the directory as its source; ConfigError if there is no cache.

    `of_seqio` is the task as seqio's own.
    """
    import seqio

    seqio.add_global_cache_dirs([directory])
    steps = list(task.preprocessors)
    placeholders = [index for index, step in enumerate(steps) if isinstance(step, seqio.CacheDatasetPlaceholder)]
    if not placeholders or not of_seqio.cache_dir:
        why = "has no cache" if placeholders else "has no seqio.CacheDatasetPlaceholder among its preprocessors"
        raise ConfigError(
            "DataConfig.cache_dir",
            f"is {directory}, and task {task.name} {why}; make the cache there with seqio_cache_tasks, or leave"
            " DataConfig.cache_dir out.",
        )
    return task.replace(source=CachedSource(of_seqio), preprocessors=steps[placeholders[0] + 1 :])
