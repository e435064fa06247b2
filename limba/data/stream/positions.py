"""Data positions: where each shard of a stream is, as JSON that is saved with a checkpoint.

A position has four parts. `about` names the data it belongs to, and is the same for all shards. `files` is the shard's
part of the table of the corpus's files (`sources/corpus.py`). `place` is where the shard is (`shard.py`). `stage` says
what the stages before gave, in a run with stages (`stages.py`).
"""

from __future__ import annotations

import base64
import functools
import hashlib
import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from limba.config import InputError, SentenceError, reason_of
from limba.data.objectives.supervised import prefix_of
from limba.data.sources.corpus import WHILE_READ, Changes, Corpora, changed_while_read, changes, unpacked_table
from limba.data.sources.fingerprints import Mark
from limba.data.sources.units import UnitSource
from limba.data.stream.shard import FirstEpochs, Recipe, ShardPlace
from limba.data.tasks import Provider, unit_sources
from limba.data.vocabulary.addresses import content_name

logger = logging.getLogger(__name__)

FORMAT = 6
ORDER = 1  # in which a corpus is read, and what is drawn; a position of another order cannot be read on
Position = Mapping[str, Any]  # of one shard


class PositionError(SentenceError, ValueError):
    """A data position that lacks a part, or has one that is damaged."""


@dataclass(frozen=True)
class Saved:
    """An opened data position."""

    about: Mapping[str, Any]
    place: ShardPlace
    skip: int  # batches after the place that the run has read too
    files: Mapping[str, Mapping[int, Mark]]  # the shard's part of the table: task -> place -> mark
    stage: Mapping[str, Any]  # {} in a run without stages

    @property
    def batch(self) -> int:
        return self.place.batch + self.skip


@dataclass(frozen=True)
class Resumption:
    """How to resume from data positions."""

    saved: Mapping[int, Saved]
    new_pass: FirstEpochs | None  # the epochs with which a new pass over a changed corpus begins
    notes: Sequence[str]  # sentences for the log
    change: str = ""  # what has changed in the corpus, if a new pass begins


class DataPositions:
    """Makes and checks the data positions of one stream's shards."""

    def __init__(self, recipe: Recipe):
        self._recipe = recipe
        self._config = recipe.config
        self._sources = recipe.sources
        self._packed: dict[int, str] = {}

    @functools.cached_property
    def _corpora(self) -> Corpora:
        """The files as this run has found them."""
        return _corpora_of(self._sources, self._config.train_split, {})

    def look(self, shards: Sequence[int]) -> None:
        """Prepares what the positions of these shards say of the corpus; `of_shard` does it otherwise.

        Raises InputError for a file that changes or cannot be read.
        """
        corpora = self._corpora
        _ = self._about
        for shard in set(shards) - set(self._packed):
            packed = corpora.packed(shard, self._config.num_shards)
            self._packed[shard] = base64.b64encode(packed).decode()

    def of_shard(self, shard: int, place: ShardPlace) -> Position:
        """Returns the position of a shard that is at this place."""
        self.look([shard])
        return {"about": self._about, "files": self._packed[shard], "shard": shard, "place": place._asdict()}

    @functools.cached_property
    def _about(self) -> Mapping[str, Any]:
        corpora = self._corpora
        return {
            **self._identity(),
            "corpus": self._layout,
            "files": corpora.digest,
            "num_files": corpora.num_files,
            "end_bytes": corpora.end_bytes,
        }

    def check(self, positions: Mapping[int, Position]) -> Resumption:
        """Opens the positions fully, and returns how to resume from them.

        Give the positions of all shards: together they name all files of the corpus. Raises InputError for positions of
        other data, or of a corpus that has changed with `on_changed_corpus` 'refuse'; PositionError for damaged ones.
        """
        for shard, position in positions.items():
            self._check_identity(shard, position)
        saved = {shard: opened(position, shard) for shard, position in positions.items()}
        if not saved:
            return Resumption(saved, None, ())
        step = max(each.batch + each.stage.get("begins", 0) for each in saved.values())
        sentence, notes = self._compared(saved, f"since step {step:,}")
        if not sentence:
            return Resumption(saved, None, notes)
        if self._config.on_changed_corpus == "refuse":
            raise InputError(
                f"{sentence}. Restore the original files, set DataConfig.on_changed_corpus to 'new_epoch' to start a"
                " new pass over the current ones, or start a new RunConfig.model_dir with"
                " RunConfig.initial_checkpoint_path.",
                fix=("DataConfig.on_changed_corpus", "new_epoch"),
            )
        first = {
            name: math.floor(max(each.place.epochs.get(name, 0.0) for each in saved.values())) + 1
            for name in self._sources
        }
        numbers = ", ".join(sorted({f"{epoch:,}" for epoch in first.values()}))
        note = f"{sentence}. A new pass over the current files begins, with epoch {numbers}."
        return Resumption(saved, first, (note,), sentence)

    def check_unchanged(self, positions: Mapping[int, Position]) -> Resumption:
        """Opens positions of a run that has not ended, and returns how to read on from them.

        Raises InputError for a changed corpus, whatever `on_changed_corpus` says: the run's other processes read it as
        it was. These may be the positions of some shards only.
        """
        saved = {shard: opened(position, shard) for shard, position in positions.items()}
        if all(each.about == self._about for each in saved.values()):
            return Resumption(saved, None, ())
        sentence, _ = self._compared(saved, WHILE_READ)
        raise changed_while_read(sentence or _other_units(WHILE_READ))

    def _check_identity(self, shard: int, position: Position) -> None:
        """Raises InputError if a position belongs to the data of another stream."""
        identity = position["about"]
        for name, now in {**self._identity(), "shard": shard}.items():
            then = position.get(name) if name == "shard" else identity.get(name)
            if name == "prefix" and now is None and all(then == prefix_of(part) for part in self._recipe.parts):
                continue  # the task's own, which the run had named
            if then != now:
                raise InputError(
                    f"The data position was saved with {name} {then!r} and this run has {now!r}; change it "
                    "back, or start a new RunConfig.model_dir with RunConfig.initial_checkpoint_path to read "
                    "the data from the beginning."
                )

    def _compared(self, saved: Mapping[int, Saved], since: str) -> tuple[str, list[str]]:
        """Returns (what has changed in the corpus, sentences for the log); `since` is such as "since step 110"."""
        identity = next(iter(saved.values())).about
        now = _corpora_of(self._sources, self._config.train_split, identity["end_bytes"])
        all_changes = Changes()
        notes = list[str]()
        for name, num_files in identity["num_files"].items():
            then: dict[int, Mark] = {}
            for position in saved.values():
                then.update(position.files.get(name, {}))
            some = changes(then, num_files, now.files.get(name, ()))
            if identity["files"] == now.digest:
                some = Changes(touched=some.touched)
            all_changes.add(some)
        if all_changes or identity["corpus"] != self._layout:
            return all_changes.sentence(since) or _other_units(since), []
        if identity["files"] != now.digest:
            notes.append(
                f"Whether the content of the corpus's files has changed {since} is not known here: they are taken as"
                " unchanged, since their names and sizes are."
            )
        if all_changes.touched:
            first = all_changes.touched[0].path
            notes.append(
                f"{len(all_changes.touched):,} file(s) of the corpus have another time of change {since}, such as"
                f" {first}: they are taken as unchanged, since size, beginning and end are the same."
            )
        return "", notes

    def _identity(self) -> dict[str, object]:
        """Returns all that a position depends on but the corpus: with another choice the run would read other text.

        Names and values are a format on disk.
        """
        config = self._config
        task = self._recipe.task
        vocabulary = task.output_features["targets"].vocabulary
        sources = self._sources.values()
        return {
            "format": FORMAT, "order": ORDER, "exact": self._recipe.is_exact, "task": task.name, "seed": config.seed,
            "shuffle": config.shuffle,
            "num_data_shards": config.num_data_shards, "batch_size": config.batch_size, "num_epochs": config.num_epochs,
            "dealing": self._recipe.deal.identity, "max_examples": config.max_examples,
            "task_feature_lengths": dict(self._recipe.lengths), "objective": config.objective,
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
        split = self._config.train_split
        layout = []
        for name, source in self._sources.items():
            places = {mark.path: index for index, mark in enumerate(source.marks(split))}
            layout.append((name, [(places[unit.path], unit.start, unit.stop) for unit in source.units(split)]))
        others = [part.name for part in self._recipe.parts if part.name not in self._sources]
        return _digest((layout, others))


def digest_of_files(task: Provider, split: str, end_bytes: Mapping[str, int]) -> str:
    """Returns what a data position says of the content of a task's files, under "files" and "end_bytes", at present."""
    return _corpora_of(unit_sources(task), split, end_bytes).digest


def changes_since(task: Provider, split: str, positions: Mapping[int, Position]) -> Changes:
    """Returns how the files of a split differ at present from the ones that positions of all shards name.

    Only tasks that the positions know are compared. The split must be read from the files that the run has trained on.
    Raises InputError for a file that changes or cannot be read; PositionError for damaged positions.
    """
    saved = {shard: opened(position, shard) for shard, position in positions.items()}
    found = Changes()
    if not saved:
        return found
    identity = next(iter(saved.values())).about
    num_files = identity["num_files"]
    sources = {name: source for name, source in unit_sources(task).items() if name in num_files}
    now = _corpora_of(sources, split, identity["end_bytes"])
    if now.digest == identity["files"]:
        return found
    for name in sources:
        then: dict[int, Mark] = {}
        for position in saved.values():
            then.update(position.files.get(name, {}))
        found.add(changes(then, num_files[name], now.files[name]))
    return found


def of_another_order(positions: Mapping[int, Position], step: int) -> str:
    """Returns a sentence if the text begins anew after a step, since the positions are of another order; else "".

    Raises InputError for positions that a newer version has saved.
    """
    for position in positions.values():
        identity = position["about"]
        form = identity.get("format", 0)
        order = identity.get("order", 0)
        if form > FORMAT:
            raise InputError(
                f"The data position has format {form}, and this version reads {FORMAT}; install a newer version."
            )
        if form < FORMAT or order != ORDER:
            which = f"format {form}, this version's is {FORMAT}"
            if form == FORMAT:
                which = f"order {order}, this version's is {ORDER}"
            return (
                f"The text begins anew at step {step:,}: this version reads it in another order than the one that"
                f" saved the checkpoint (data position of {which}). Weights, optimizer and step are resumed."
            )
    return ""


def opened(position: Position, shard: int) -> Saved:
    """Returns the content of a data position; PositionError where a part is missing or damaged."""
    try:
        files = unpacked_table(base64.b64decode(position["files"], validate=True))
        place = ShardPlace(**position["place"])
        stage = position.get("stage", {})
        if not isinstance(place.batch, int):
            raise ValueError("its number of batches is missing")
        return Saved(position["about"], place, position.get("skip", 0), files, stage)
    except Exception as error:  # the libraries that read it have their own errors for damage
        raise PositionError(f"The data position of shard {shard} cannot be read ({reason_of(error)}).") from error


def advanced(position: Position, num_batches: int) -> Position:
    """Returns a shard's data position so many batches later, where the shard cannot be asked.

    A resumed run makes these batches, and leaves them out.
    """
    return {**position, "skip": position.get("skip", 0) + num_batches}


def check_one_corpus(positions: Mapping[int, Position]) -> None:
    """Raises InputError if positions that are saved together belong to different data."""
    first = min(positions, default=0)
    for shard, position in sorted(positions.items()):
        if position["about"] != positions[first]["about"]:
            raise InputError(
                f"Data shards {first} and {shard} read different text, as if the corpus had changed while the processes"
                " of the run opened it, so no position in it can be saved; start the same command again when nothing"
                " writes to the corpus any more."
            )


def _other_units(since: str) -> str:
    return f"The corpus has changed {since}: it has other files or units"


def _corpora_of(sources: Mapping[str, UnitSource], split: str, end_bytes: Mapping[str, int]) -> Corpora:
    return Corpora({name: source.marks(split, end_bytes.get(name) or None) for name, source in sources.items()})


def _digest(value: object) -> str:
    return hashlib.blake2b(repr(value).encode(), digest_size=8).hexdigest()
