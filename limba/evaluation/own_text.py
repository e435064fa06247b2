"""Whether a run that is evaluated later still finds the text that it held out."""

from __future__ import annotations

from limba.config import InputError, RunConfig
from limba.data.stream.positions import changes_since
from limba.data.tasks import Provider, unit_sources
from limba.formats.limba_checkpoint import positions_in
from limba.formats.open import LIMBA
from limba.inference.load import TrainedModel


def change_of_text(trained: TrainedModel, split: str) -> str:
    """Returns what has changed in the files of a split since the run's checkpoint was saved, or "".

    A checkpoint knows the files that the run trains on. They hold the validation split too where it is carved out of
    them; a split with files of its own is not compared, nor is text that the caller has chosen in place of the run's.
    """
    run = trained.source.run
    task = trained.task
    if trained.source.kind != LIMBA or run is None or task is None:
        return ""
    if not _names_own_text(trained, run) or not _is_of_training_files(task, split, run.data.train_split):
        return ""
    is_best = trained.source.best is not None and trained.path.endswith("/best")
    checkpoint = trained.source.best if is_best else trained.source.steps[trained.step]
    assert checkpoint is not None
    try:
        changes = changes_since(task, split, positions_in(checkpoint))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return ""  # an earlier version's position, or a checkpoint that was made without one: nothing to compare with
    return changes.sentence(f"since step {trained.step:,}") if changes else ""


def _names_own_text(trained: TrainedModel, run: RunConfig) -> bool:
    """Returns whether the configuration in use names the text that the run's own names."""
    try:
        own = trained.source.read_config()
    except InputError:  # it is gone, and another one is used in its place
        return False
    if not isinstance(own, RunConfig):
        return False
    return all(
        getattr(run.data, name) == getattr(own.data, name)
        for name in ("mixture_or_task_name", "data_files", "replay_files")
    )


def _is_of_training_files(task: Provider, split: str, train_split: str) -> bool:
    sources = unit_sources(task).values()
    return bool(sources) and all(
        source.patterns_of_split(split) == source.patterns_of_split(train_split) for source in sources
    )
