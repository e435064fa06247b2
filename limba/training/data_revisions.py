"""The commits of a run's hub data sets, which its first start saves and each later one reads."""

from __future__ import annotations

import json

from etils import epath

from limba.config import InputError
from limba.data.registry import Provider
from limba.data.tasks import pinned_as_saved, revisions
from limba.sharding.agreement import is_first, together
from limba.storage.files import read_text, write_whole


def pinned_for_run(task: Provider, model_dir: str) -> Provider:
    """Returns the task with its hub data sets pinned to the commits of the run's first start, saved in model_dir.

    Otherwise a saved data position would be wrong once the data set changes.
    """
    path = epath.Path(model_dir) / "data_revisions.json"
    with together():
        if is_first():
            known = _revisions_in(path) if path.exists() else {}
            if commits := revisions(task, known):
                write_whole(path, json.dumps({**known, **commits}, indent=1) + "\n")
    with together():
        if not path.exists():
            return task
        return pinned_as_saved(task, _revisions_in(path))


def _revisions_in(path: epath.Path) -> dict[str, str]:
    try:
        known = json.loads(read_text(path))
        if isinstance(known, dict) and all(isinstance(revision, str) for revision in known.values()):
            return known
    except (ValueError, RecursionError) as error:
        if isinstance(error, InputError):
            raise
    raise InputError(
        f"{path}, which names the commits of the run's data sets, is damaged; restore it from a copy: with other"
        " commits the data positions of its checkpoints would be wrong."
    )
