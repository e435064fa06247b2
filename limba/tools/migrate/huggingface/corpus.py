"""The translation of a script's configuration: its corpus, and the number of steps that its epochs are.

Steps, shares of steps and whole batches are counted from the run with the user's `--gin.` overrides: `Translation.run`.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from limba.config import DataConfig, InputError, RunConfig
from limba.tools.migrate.huggingface.values import Values

BYTES_COUNTED = 50_000_000  # of text, from which the rest of a corpus is estimated
NEVER = 10**9  # steps
STEPS_OF_RUN = ("TRAIN_STEPS", "config.RunConfig.train_steps")  # the gin names that set RunConfig.train_steps


class Translation:
    """A script's values, and the gin bindings made of them: name -> (value, the key that it comes from).

    `overrides` are the values that the user gives gin names beside the script's keys. `run` is the run with them.
    """

    run: RunConfig  # set before anything is counted from it; see `translation._run_so_far`
    counts_epochs = False  # whether TRAIN_STEPS follows from the epochs; see `set_length_of_run`

    def __init__(
        self,
        values: Values,
        source: str,
        notes: Sequence[str] = (),
        overrides: Mapping[str, object] = MappingProxyType({}),
    ):
        self.values = values
        self.source = source
        self.notes = list(notes)
        self.overrides = overrides
        self.bindings: dict[str, tuple[Any, str]] = {}

    def set(self, name: str, value: object, key: str) -> None:
        """Binds a gin name; InputError if another key has given it another value."""
        before = self.bindings.get(name)
        if before is not None and before[0] != value:
            raise InputError(f"{self.source} gives {before[1]} and {key} different values; leave one out.")
        self.bindings[name] = (value, key)

    def get(self, *names: str) -> tuple[Any, str]:
        """Returns the value of the first of the keys that has one, and that key; else (None, the first key)."""
        for key in names:
            if self.values.get(key) is not None:
                return self.values[key], key
        return None, names[0]

    def one_of(self, *names: str) -> tuple[Any, str]:
        """Returns `get` of keys with one meaning; InputError if two of them have different values."""
        value, key = self.get(*names)
        for other in names:
            if self.values.get(other) not in (None, value):
                raise InputError(f"{self.source} gives {key} and {other} different values; leave one out.")
        return value, key

    @functools.cached_property
    def steps_per_epoch(self) -> float:
        """The optimizer steps of one pass over the corpus."""
        return steps_per_epoch(self.run.data)

    @property
    def trains(self) -> bool:
        """False for a configuration that only evaluates."""
        return self.values.get("do_train") is not False


def set_corpus(translation: Translation) -> None:
    """Sets CORPUS and its column: local files, or a data set of the hub by its full name."""
    train, key = translation.get("train_file")
    validation, validation_key = translation.get("validation_file")
    dataset, dataset_key = translation.get("dataset_name")
    only_evaluates = not translation.trains and train is None and validation is not None
    if (train is None) == (dataset is None) and not only_evaluates:
        parts = "both" if train else "neither"
        raise InputError(f"{translation.source} must give one of train_file and dataset_name; it gives {parts}.")
    if dataset is not None:
        translation.set("CORPUS", _data_set(translation, dataset), dataset_key)
    elif only_evaluates:
        translation.set("CORPUS", {"validation": validation}, validation_key)
    else:
        translation.set("CORPUS", {"train": train, "validation": validation} if validation else train, key)
    column, key = translation.get("text_column_name")
    if column is not None:
        # Limba keeps the name `tokens` for a column of ids; `tokens[]` are words.
        translation.set("COLUMN", "tokens[]" if column == "tokens" else column, key)


def _data_set(translation: Translation, name: str) -> object:
    """Returns what CORPUS names: user/name:configuration@revision, or the files of a local folder by split."""
    from limba.storage import servers

    configuration, _ = translation.get("dataset_config_name")
    folder = os.path.expanduser(name)
    if os.path.isdir(folder):
        return _files_of(folder, configuration)
    revision, _ = translation.get("dataset_revision")
    full = servers.full_name(name, "dataset")
    if configuration:
        full += f":{configuration}"
    if revision:
        full += f"@{revision}"
    return full


def _files_of(folder: str, configuration: str | None) -> dict[str, str]:
    """Returns the files of a data set in a local folder, by split, as the library `datasets` finds them."""
    from limba.data.sources import HubSource

    source = HubSource(os.path.abspath(folder), configuration)
    splits = [split for split in ("train", "validation") if split == "train" or not source.is_carved(split)]
    return {split: ",".join(source.patterns_of_split(split)) for split in splits}


def set_length_of_run(translation: Translation) -> None:
    """Sets TRAIN_STEPS, or NUM_EPOCHS for whole epochs; TRAIN_STEPS is NEVER until `count_epochs`."""
    steps, key = translation.one_of("max_steps", "max_train_steps")
    if not translation.trains:
        translation.set("TRAIN_STEPS", 1, "do_train, without which nothing is trained")
        return
    if steps is not None and steps > 0:
        translation.set("TRAIN_STEPS", steps, key)
        return
    epochs, key = translation.get("num_train_epochs")
    epochs = 3.0 if epochs is None else epochs
    if not epochs > 0:
        raise InputError(f"{translation.source} gives {key} {epochs!r}; give a number above 0, or max_steps.")
    translation.counts_epochs = True
    translation.set("TRAIN_STEPS", NEVER, f"{key} {epochs:g}, by the corpus's size")
    if epochs == int(epochs):
        translation.set("NUM_EPOCHS", int(epochs), key)


def count_epochs(translation: Translation) -> None:
    """Sets TRAIN_STEPS to what the run has with the overrides, and counts the epochs if nothing else ends it."""
    train_steps = translation.run.train_steps
    override = next((name for name in STEPS_OF_RUN if name in translation.overrides), None)
    if train_steps is not None and override is not None:
        # NUM_EPOCHS stays: a run that resumes must have the same, also after a first try of a few steps.
        translation.bindings["TRAIN_STEPS"] = (train_steps, f"--gin.{override}")
        return
    if train_steps is not None and not translation.counts_epochs:
        return
    epochs = translation.run.data.num_epochs
    key = "NUM_EPOCHS"
    if epochs is None or epochs == translation.bindings.get("NUM_EPOCHS", (None,))[0]:
        epochs, key = translation.get("num_train_epochs")
        epochs = 3.0 if epochs is None else epochs
    steps = int(epochs * translation.steps_per_epoch) + 1
    translation.bindings["TRAIN_STEPS"] = (steps, f"{key} {epochs:g}, by the corpus's size")


def steps_per_epoch(data: DataConfig) -> float:
    """Returns the optimizer steps of one pass over the corpus, estimated from its first files."""
    from limba.api import source_of_files

    if data.data_files is None or data.vocabulary is None or "inputs" not in data.task_feature_lengths:
        raise InputError(
            "An epoch's steps are counted from CORPUS, VOCABULARY and the inputs of TASK_FEATURE_LENGTHS, of which"
            " --gin. takes one away; give max_steps, and periods in steps."
        )
    source = source_of_files(data.data_files, data.column, data.validation_percent)
    count, tokens_per_row = _counter(data, data.vocabulary)
    most = data.max_examples
    total = num_bytes = num_read = num_documents = 0
    units = source.units("train")
    for num_read, unit in enumerate(units, 1):  # noqa: B007
        for documents in source.chunks("train", unit):
            documents = documents if most is None else documents[: most - num_documents]
            num_documents += len(documents)
            total += count(documents)
            num_bytes += sum(map(len, documents))
            if num_documents == most:
                break
        if num_bytes > BYTES_COUNTED or num_documents == most:
            break
    if not total:
        raise InputError(f"train_file {data.data_files} holds no text; give files with text in them.")
    num_of_corpus = num_documents * len(units) / num_read
    num_chosen = num_of_corpus if most is None else min(most, num_of_corpus)
    return total / num_documents * num_chosen / tokens_per_row / data.batch_size


def _counter(data: DataConfig, vocabulary: str) -> tuple[Callable[[Sequence[bytes]], int], float]:
    """Returns (a function from documents to their tokens' number, the tokens of one row of span corruption)."""
    from limba.api import PieceTable
    from limba.data.objectives.spans import raw_and_targets

    encode = PieceTable.at(vocabulary).encode
    density = 0.15 if data.noise_density is None else data.noise_density
    span = 3.0 if data.mean_noise_span_length is None else data.mean_noise_span_length
    raw = raw_and_targets(data.task_feature_lengths["inputs"], density, span)[0]

    return lambda documents: sum(len(encode(text)) for text in documents), raw
