"""The documents of a step of a run, found from the places that the run keeps, without reading a shard again."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from etils import epath

from limba.config import InputError, RunConfig, reason_of
from limba.data.objectives import derive_lengths
from limba.data.stream.names import BatchDocuments, NamedDocument
from limba.data.stream.positions import DataPositions, Position, of_another_order
from limba.data.stream.shard import Made, Recipe, Shard, ShardPlace
from limba.data.stream.stages import task_of_stage
from limba.formats import limba_checkpoint
from limba.formats.open import read_config
from limba.inference import source
from limba.storage.files import read_text, resolved
from limba.training.data_revisions import pinned_for_run
from limba.training.history import kept_before
from limba.training.skipped_batches import FILE, entries_of
from limba.training.start import deal_of_run

logger = logging.getLogger(__name__)

Positions = Mapping[int, Position]  # of all shards
MANY_BATCHES = 1_000  # that are made again before a step's own; this takes minutes


@dataclass(frozen=True)
class RowDocuments:
    """The documents that a row of a batch was made of, in order."""

    shard: int
    row: int
    documents: Sequence[NamedDocument]


def documents_of_step(
    model: str, step: int, stood_out: bool = False, imports: Sequence[str] = ()
) -> list[RowDocuments]:
    """Returns the documents of each row of a step's batch, by data shard; `stood_out`: of the ledger's rows only.

    The corpus must be the one that the run has read. Steps after the newest checkpoint are read on from it: they are
    what a resumed run will read. Raises InputError for another directory, for a step before the run's text began or
    far behind its end, for a corpus that has changed, and for a task whose source nobody can number: it is not one of
    limba.data.sources, and divides itself among the data shards. A source of others that the run deals document by
    document is read again from its beginning.

    >>> documents_of_step("runs/demo", 0)
    Traceback (most recent call last):
    limba.config.errors.InputError: There is no step 0: steps count from 1.
    """
    directory = resolved(model)
    config = read_config(directory)
    if not isinstance(config, RunConfig):
        raise InputError(f"{model} is an imported model, not a run; name the directory of a run.")
    if step < 1:
        raise InputError(f"There is no step {step}: steps count from 1.")
    run_of = source.Source(model, directory, {}, source.LIMBA, model=config.model, run=config, imports=tuple(imports))
    data = config.data
    begins = data.stage_of(step - 1)
    first = pinned_for_run(source.task_of(run_of), config.model_dir)
    lengths = derive_lengths(first, data.task_feature_lengths)
    task = first
    if begins:
        task = pinned_for_run(task_of_stage(begins, first, lengths, data), config.model_dir)
    recipe = Recipe(task, lengths, data.of_stages[begins], deal_of_run(config, task, lengths, begins))
    if not recipe.is_exact:
        _check_dealt(recipe)
    rows_of_ledger = _rows_of_ledger(directory / FILE, step) if stood_out else None
    known, places = _places_before(str(directory), recipe, step, begins)
    if step - known > MANY_BATCHES:
        last = config.train_steps  # None: the text ends the run, and nobody knows where before it is read
        if last is not None and step > last:
            raise InputError(
                f"Step {step:,} is too far behind the end of {model}: it ends with step {last:,}, and its text is known"
                f" up to step {known:,}; give a step up to {max(last, known + MANY_BATCHES):,}."
            )
        logger.warning(
            "The newest data position before step %s is that of step %s: the %s batches between are made again.",
            *(f"{number:,}" for number in (step, known, step - known)),
        )
    rows_of_step = []
    for shard, made in _made(recipe, places, step - known):
        documents = BatchDocuments({shard: made.documents}, recipe)
        for row in range(len(made.documents)):
            if rows_of_ledger is None or (shard, row) in rows_of_ledger:
                rows_of_step.append(RowDocuments(shard, row, [*documents.of_row(shard, row)]))
    if not rows_of_step:
        raise InputError(f"There is no step {step}: the text of {model} ends before it.")
    return rows_of_step


def _check_dealt(recipe: Recipe) -> None:
    """Raises InputError if a source of others gives a shard documents that have no number in the source."""
    Shard(recipe, 0)  # opens them
    for part in recipe.parts:
        if part.name not in recipe.sources and part.name not in recipe.opened:
            raise InputError(
                f"The documents of task {part.name} have no names: its source is not one of limba.data.sources, and"
                " divides itself among the data shards; set DataConfig.data_files to its files."
            )


def _made(recipe: Recipe, places: Mapping[int, tuple[ShardPlace, int]], num_batches: int) -> Iterator[tuple[int, Made]]:
    """Yields (shard, its batch that is `num_batches` after its place and those that it skips), where it has one.

    Shards that share a source are read at the same pace, so that none waits for another one's documents.
    """
    shards = range(recipe.config.num_shards)
    groups = [[shard] for shard in shards] if recipe.is_exact else [list(shards)]
    for group in groups:
        shard_of = {shard: Shard(recipe, shard) for shard in group}  # all of them, before one is read
        readings = dict[int, Iterator[Made]]()
        num_left = dict[int, int]()
        for shard in group:
            place, skip = places.get(shard, (ShardPlace.beginning(), 0))
            readings[shard] = shard_of[shard].read(place)
            num_left[shard] = skip + num_batches
        while readings:
            for shard, reading in list(readings.items()):
                made = next(reading, None)
                num_left[shard] -= 1
                if made is None:  # the shard has ended
                    del readings[shard]
                elif num_left[shard] == 0:
                    del readings[shard]
                    yield shard, made


def _rows_of_ledger(path: epath.Path, step: int) -> set[tuple[int, int]]:
    """Returns (shard, row) of the rows that stood out in a step; InputError if the run has not dropped it."""
    entries = entries_of(read_text(path), str(path)) if path.exists() else []
    of_step = [entry for entry in entries if entry["batch"] == step]
    rows = {(row["shard"], row["row"]) for entry in of_step for row in entry["rows"]}
    if not rows:
        raise InputError(f"No row of step {step} is in {path}: give all rows.")
    return rows


def _places_before(
    directory: str, recipe: Recipe, step: int, begins: int
) -> tuple[int, Mapping[int, tuple[ShardPlace, int]]]:
    """Returns the last step whose places are known, and shard -> (place, batches after it that were read too).

    They belong to the step's own stage, and to the last pass over files that have changed; without any, the beginning
    of the stage.
    """
    since = begins  # the text has been read in the present order since this step
    of_stage: dict[int, Positions] = {}  # step of a checkpoint -> its positions
    for saved_step, path in limba_checkpoint.checkpoints_of(resolved(directory)).items():
        try:
            data = limba_checkpoint.read_data(path)
            positions = limba_checkpoint.positions_of(data)
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise InputError(
                f"The data position in {path} cannot be read ({reason_of(error)}); the run itself puts such a"
                " checkpoint aside when it resumes."
            ) from error
        if of_another_order(positions, saved_step):
            since = max(since, saved_step)
            continue
        since = max(since, data.get("notes", {}).get("guard", {}).get("data_start", 0))
        if _is_of_stage(positions, begins):
            of_stage[saved_step] = positions
    known: dict[int, Positions] = dict(of_stage)
    kept = kept_before(directory, step)
    if kept is not None and len(kept[1]) == recipe.config.num_shards and _is_of_stage(kept[1], begins):
        known.setdefault(*kept)
    num_before = 0  # batches before the last pass
    latest: Positions = {}
    if known:
        latest = of_stage[max(of_stage)] if of_stage else known[max(known)]
        num_before = _batches_before(latest)
    if of_stage:
        _check_corpus(recipe, latest)
    since += num_before
    if step <= since:
        raise InputError(
            f"The text of this run begins anew after step {since:,}, with another order or other files: the documents"
            f" of step {step:,} cannot be found any more."
        )
    of_pass = [number for number in known if number < step and _batches_before(known[number]) == num_before]
    if not of_pass or not recipe.is_exact:
        return since, {shard: (ShardPlace(**position["place"]).begun(), 0) for shard, position in latest.items()}
    last = max(of_pass)
    places = {}
    for shard, position in known[last].items():
        place = ShardPlace(**position["place"])
        places[shard] = (place, position.get("skip", 0))
    return last, places


def _batches_before(positions: Positions) -> int:
    """Returns the batches that a run had read before its last pass over files that had changed."""
    return max(position["place"]["batches_before"] for position in positions.values())


def _is_of_stage(positions: Positions, begins: int) -> bool:
    return all(position.get("stage", {}).get("begins", 0) == begins for position in positions.values())


def _check_corpus(recipe: Recipe, positions: Positions) -> None:
    """Raises InputError if the corpus is not the one that the run has read."""
    resumption = DataPositions(recipe).check(positions)
    if resumption.new_pass is not None:
        raise InputError(f"{resumption.change}; restore the original files.")
