"""Data positions: how far each shard has read its corpus, as bytes that are saved with a checkpoint.

A data position is a zip file. `about.json` names its data, counts the batches taken, and says where the shard's data
set is (`dataset.py`); the other files are the arrays of that state, the prefetched rows, and the shard's part of the
table of the corpus's files (`sources/corpus.py`).
"""

from __future__ import annotations

import functools
import hashlib
import io
import json
import logging
import math
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from limba.config import InputError, SentenceError, reason_of
from limba.data.dataset import State
from limba.data.sources.corpus import Changes, Corpora, changes, unpacked_table
from limba.data.sources.fingerprints import Mark
from limba.data.sources.units import UnitSource
from limba.data.stream.shard import FirstEpochs, Pipeline, Rows, Shard
from limba.data.tasks import Provider, unit_sources
from limba.data.vocabulary.load import content_name

logger = logging.getLogger(__name__)

FORMAT = 5
ABOUT_FILE, FILES_FILE, ROWS_FILE, STATE_FILE = "about.json", "files.json.zlib", "ahead.npz", "state.npz"
ARRAY = "of state.npz"  # in a state, in the place of an array: its number
STAGES_FILE = "stages.json"  # what the stages before gave, in a run with stages (`stages.py`)


class PositionError(SentenceError, ValueError):
    """A data position whose bytes are damaged."""


@dataclass(frozen=True)
class Saved:
    """An opened data position, of which every byte has been read and checked."""

    about: Mapping[str, Any]
    state: State  # of the shard's data set; None if the shard is read again
    rows: Rows  # prefetched
    files: Mapping[str, Mapping[int, Mark]]  # the shard's part of the table: task -> place -> mark
    stages: Mapping[str, Any]  # the content of STAGES_FILE; {} without it

    @property
    def first_epochs(self) -> FirstEpochs:
        return self.about["first_epochs"]

    def tokens(self, num_tasks: int) -> np.ndarray:
        """Returns the tokens of each task in the batches taken, int64 [num_tasks]; 0 where they are not counted."""
        return np.asarray(self.about.get("tokens", [0] * num_tasks), np.int64)


@dataclass(frozen=True)
class Resumption:
    """How to resume from data positions."""

    saved: Mapping[int, Saved]
    new_pass: FirstEpochs | None  # the epochs with which a new pass over a changed corpus begins
    notes: Sequence[str]  # sentences for the log
    change: str = ""  # what has changed in the corpus, if a new pass begins


class DataPositions:
    """Saves and restores the data positions of one stream's shards."""

    def __init__(self, pipeline: Pipeline):
        self._pipeline, self._config, self._sources = pipeline, pipeline.config, pipeline.sources
        self._packed: dict[int, bytes] = {}

    @functools.cached_property
    def _corpora(self) -> Corpora:
        """The files as this run has found them."""
        return _corpora_of(self._sources, self._config.train_split, {})

    def look(self, shards: Sequence[int]) -> None:
        """Prepares what the positions of these shards say of the corpus; `save` does it otherwise.

        Raises InputError for a file that changes or cannot be read.
        """
        corpora = self._corpora
        _ = (corpora.digest, corpora.num_files, corpora.end_bytes, self._layout)
        for shard in set(shards) - set(self._packed):
            self._packed[shard] = corpora.packed(shard, self._config.num_shards)

    def save(self, shard: Shard) -> bytes:
        """Returns the shard's position after the batches taken so far."""
        self.look([shard.index])
        corpora = self._corpora
        about = {**self._identity(shard.index), "num_batches": shard.num_batches, "exact": self._pipeline.is_exact}
        about["epochs"] = [shard.progress(name) for name in self._sources]
        if self._pipeline.deal.marks_corpora:
            about["tokens"] = shard.tokens.tolist()
        about |= {"corpus": self._layout, "files": corpora.digest, "num_files": corpora.num_files}
        about["end_bytes"] = corpora.end_bytes
        about |= {"first_epochs": shard.first_epochs, "batches_before": shard.batches_before}
        contents = {FILES_FILE: self._packed[shard.index]}
        if self._pipeline.is_exact:
            with shard.prefetch.paused() as made:
                batches = [batch[0] for batch in made if batch is not None]
                if shard.prefetch.failure is None:
                    state = shard.dataset.state()
                else:
                    num_made, state = shard.kept_state or (shard.num_batches, None)
                    about["passed"] = max(0, shard.num_batches - num_made)
                    batches = batches[: max(0, num_made - shard.num_batches)]
            arrays: list[np.ndarray] = []
            about["state"] = _plain(state, arrays)
            contents[STATE_FILE] = _npz({str(number): array for number, array in enumerate(arrays)})
            contents[ROWS_FILE] = _npz(_concatenated(batches))
        return packed({**contents, ABOUT_FILE: json.dumps(about).encode()})

    def check(self, positions: Mapping[int, bytes]) -> Resumption:
        """Opens the positions fully, and returns how to resume from them.

        Give those of all shards: together they name all files of the corpus. Raises InputError for positions of other
        data, or of a corpus that has changed with `on_changed_corpus` 'refuse'; PositionError for damaged ones.
        """
        saved = {shard: opened(position, shard) for shard, position in positions.items()}
        for shard, each in saved.items():
            self._check_identity(shard, each.about)
        if not saved:
            return Resumption(saved, None, ())
        step = max(each.about["num_batches"] + each.stages.get("begins", 0) for each in saved.values())
        sentence, notes = self._compared(saved, step)
        if not sentence:
            return Resumption(saved, None, notes)
        if self._config.on_changed_corpus == "refuse":
            raise InputError(
                f"{sentence}. Restore the original files, set DataConfig.on_changed_corpus to 'new_epoch' to start a"
                " new pass over the current ones, or start a new RunConfig.model_dir with"
                " RunConfig.initial_checkpoint_path.",
                fix=("DataConfig.on_changed_corpus", "new_epoch"),
            )
        read = np.array([each.about["epochs"] for each in saved.values()], float).max(axis=0)
        first = {name: math.floor(epochs) + 1 for name, epochs in zip(self._sources, read, strict=True)}
        numbers = ", ".join(sorted({f"{epoch:,}" for epoch in first.values()}))
        note = f"{sentence}. A new pass over the current files begins, with epoch {numbers}."
        return Resumption(saved, first, (note,), sentence)

    def restore(self, shard: Shard, saved: Saved) -> Iterator[None]:
        """Sets a newly opened shard to its position, in parts: the iterator does the work.

        If a source cannot save its position, the shard is read again from its beginning.
        """
        about, split = saved.about, self._config.train_split
        for source, epochs in zip(self._sources.values(), about["epochs"], strict=True):
            source.note_progress(split, shard.index, epochs)
        shard.num_batches, shard.tokens = about["num_batches"], saved.tokens(len(shard.tokens))
        passed = dict(zip(self._sources, about["epochs"], strict=True))
        if saved.state is None:
            yield from shard.skip(shard.num_batches, passed)
            return
        shard.dataset.restore(saved.state)
        yield from shard.resume(about["num_batches"], about.get("passed", 0), saved.rows, passed)

    def note_pass(self, shard: Shard, saved: Saved) -> None:
        """Records that a shard begins a new pass after the saved position."""
        shard.tokens = saved.tokens(len(shard.tokens))
        for name, source in self._sources.items():
            source.note_progress(self._config.train_split, shard.index, shard.first_epochs[name])

    def _check_identity(self, shard: int, about: Mapping[str, Any]) -> None:
        """Raises InputError if a position belongs to the data of another stream."""
        found = about["format"]
        if found != FORMAT:
            advice = "install a newer version" if found > FORMAT else "resume the run with the version that saved it"
            raise InputError(f"The data position has format {found}, and this version reads {FORMAT}; {advice}.")
        for name, now in {**self._identity(shard), "exact": self._pipeline.is_exact}.items():
            if about.get(name) != now:
                raise InputError(
                    f"The data position was saved with {name} {about.get(name)!r} and this run has {now!r}; change it "
                    "back, or start a new RunConfig.model_dir with RunConfig.initial_checkpoint_path to read "
                    "the data from the beginning."
                )

    def _compared(self, saved: Mapping[int, Saved], step: int) -> tuple[str, list[str]]:
        """Returns (what has changed in the corpus since the step, sentences for the log)."""
        about = next(iter(saved.values())).about
        now = _corpora_of(self._sources, self._config.train_split, about["end_bytes"])
        found, notes = Changes(), list[str]()
        for name, num_files in about["num_files"].items():
            then = {place: mark for each in saved.values() for place, mark in each.files.get(name, {}).items()}
            some = changes(then, num_files, now.files.get(name, ()))
            found.touched += some.touched
            if about["files"] != now.digest:
                found.changed += some.changed
                found.appeared += some.appeared
                found.vanished += some.vanished
        if found or about["corpus"] != self._layout:
            other_units = f"The corpus has changed since step {step:,}: it has other files or units"
            return found.sentence(step) or other_units, []
        if about["files"] != now.digest:
            notes.append(
                f"The content of the corpus's files at step {step:,} is not known here: they are taken as unchanged,"
                " since their names and sizes are."
            )
        if found.touched:
            first = found.touched[0].path
            notes.append(
                f"{len(found.touched):,} file(s) of the corpus have another time of change than at step {step:,}, such"
                f" as {first}: they are taken as unchanged, since size, beginning and end are the same."
            )
        return "", notes

    def _identity(self, shard: int) -> dict[str, object]:
        """Returns all that a position depends on but the corpus: with another choice the run would read other text.

        Names and values are a format on disk.
        """
        config, task = self._config, self._pipeline.task
        vocabulary = task.output_features["targets"].vocabulary
        sources = self._sources.values()
        return {
            "format": FORMAT, "task": task.name, "seed": config.seed, "shuffle": config.shuffle, "shard": shard,
            "num_data_shards": config.num_data_shards, "batch_size": config.batch_size, "num_epochs": config.num_epochs,
            "dealing": self._pipeline.deal.identity, "max_examples": config.max_examples,
            "task_feature_lengths": dict(self._pipeline.lengths), "objective": config.objective,
            "noise_density": config.noise_density, "mask_share": config.mask_share,
            "mean_noise_span_length": config.mean_noise_span_length, "prefix": config.prefix,
            "pack": config.pack or None, "shuffle_buffer": config.shuffle_buffer, "train_split": config.train_split,
            "vocabulary size": vocabulary.vocab_size, "vocabulary": content_name(vocabulary),
            "column": [source.column for source in sources],
            "validation_percent": [source.carved_percent(config.train_split) for source in sources],
        }  # fmt: skip

    @functools.cached_property
    def _layout(self) -> str:
        """A digest of how the files are cut into units: a corpus that has moved has the same."""
        split, layout = self._config.train_split, []
        for name, source in self._sources.items():
            places = {mark.path: place for place, mark in enumerate(source.marks(split))}
            layout.append((name, [(places[unit.path], unit.start, unit.stop) for unit in source.units(split)]))
        others = [part.name for part in self._pipeline.parts if part.name not in self._sources]
        return _digest((layout, others))


def digest_of_files(task: Provider, split: str, end_bytes: Mapping[str, int]) -> str:
    """Returns what a data position says of the content of a task's files, under "files" and "end_bytes", at present."""
    return _corpora_of(unit_sources(task), split, end_bytes).digest


def opened(position: bytes, shard: int) -> Saved:
    """Returns the content of a data position; PositionError if any byte of it is damaged."""
    try:
        contents = _contents(position)
        about = json.loads(contents[ABOUT_FILE])
        is_known = about["format"] == FORMAT
        if is_known and not isinstance(about["num_batches"], int):
            raise ValueError("its number of batches is missing")
        rows: Rows = {}
        if ROWS_FILE in contents:
            rows = _arrays(contents[ROWS_FILE])
        files = unpacked_table(contents[FILES_FILE]) if is_known else {}
        stages, state = json.loads(contents.get(STAGES_FILE, b"{}")), None
        if is_known and about["exact"]:
            if missing := [name for name in (ROWS_FILE, STATE_FILE) if name not in contents]:
                raise ValueError(f"it lacks {missing[0]}")
            state = _whole(about["state"], _arrays(contents[STATE_FILE]))
    except Exception as error:  # each of these libraries has its own errors for damage
        raise PositionError(f"The data position of shard {shard} cannot be read ({reason_of(error)}).") from error
    return Saved(about, state, rows, files, stages)


def advanced(position: bytes, num_batches: int, rows_per_batch: int) -> bytes:
    """Returns a shard's data position so many batches later, where the shard cannot be asked: a resume leaves them out.

    The counts of epochs and of a mixture's tokens stay those of `position`.
    """
    contents = _contents(position)
    about = json.loads(contents[ABOUT_FILE])
    about["num_batches"] += num_batches
    if ROWS_FILE in contents:
        ahead = _arrays(contents[ROWS_FILE])
        contents[ROWS_FILE] = _npz({name: value[num_batches * rows_per_batch :] for name, value in ahead.items()})
        num_ahead = max(map(len, ahead.values()), default=0) // rows_per_batch
        about["passed"] = about.get("passed", 0) + max(0, num_batches - num_ahead)
    return packed({**contents, ABOUT_FILE: json.dumps(about).encode()})


def _plain(state: State, arrays: list[np.ndarray]) -> object:
    """Returns a state as JSON, with its arrays appended to `arrays` and their numbers in their places."""
    if isinstance(state, np.ndarray):
        arrays.append(state)
        return {ARRAY: len(arrays) - 1}
    if isinstance(state, dict):
        return {name: _plain(value, arrays) for name, value in state.items()}
    return [_plain(value, arrays) for value in state] if isinstance(state, list) else state


def _whole(plain: object, arrays: Mapping[str, np.ndarray]) -> State:
    """Returns the state of `_plain`."""
    if isinstance(plain, dict):
        if ARRAY in plain:
            return arrays[str(plain[ARRAY])]
        return {name: _whole(value, arrays) for name, value in plain.items()}
    return [_whole(value, arrays) for value in plain] if isinstance(plain, list) else plain


def _npz(arrays: Mapping[str, np.ndarray]) -> bytes:
    found = io.BytesIO()
    np.savez(found, **arrays)  # pyright: ignore[reportArgumentType]  numpy's stub takes `allow_pickle` for one of them
    return found.getvalue()


def _arrays(content: bytes) -> dict[str, np.ndarray]:
    with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
        return dict(arrays)


def with_stages(position: bytes, stages: Mapping[str, object]) -> bytes:
    """Returns a data position that also says what the stages before gave."""
    return packed({**_contents(position), STAGES_FILE: json.dumps(stages).encode()})


def _contents(position: bytes) -> dict[str, bytes]:
    """Returns file name -> content; an error of `zipfile` where a checksum does not fit."""
    with zipfile.ZipFile(io.BytesIO(position)) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def packed(contents: Mapping[str, bytes]) -> bytes:
    """Returns a data position with these files."""
    found = io.BytesIO()
    with zipfile.ZipFile(found, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in contents.items():
            archive.writestr(name, content, zipfile.ZIP_STORED if name == FILES_FILE else None)
    return found.getvalue()


def _corpora_of(sources: Mapping[str, UnitSource], split: str, end_bytes: Mapping[str, int]) -> Corpora:
    return Corpora({name: source.marks(split, end_bytes.get(name) or None) for name, source in sources.items()})


def _digest(value: object) -> str:
    return hashlib.blake2b(repr(value).encode(), digest_size=8).hexdigest()


def _concatenated(batches: Sequence[Rows]) -> Rows:
    return {name: np.concatenate([rows[name] for rows in batches]) for name in (batches[0] if batches else ())}
