"""The directory of one step: opened, written, committed, copied, removed and set aside.

The files of a step are written under another name. On a file system the directory gets its own by a rename, when its
manifest is written. In a bucket it has its name from the start, and the manifest, written last, is the commit.
"""

import contextlib
import errno
import json
import logging
import os
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

from etils import epath

from limba.config.errors import reason_of
from limba.config.waiting import waiting
from limba.formats.limba_checkpoint import COMMITTED, UNFINISHED, is_finished, steps_in
from limba.storage import manifest
from limba.storage.files import free_bytes, gone, make_folder
from limba.training.checkpoints import arrays
from limba.training.checkpoints.arrays import Snapshot

logger = logging.getLogger(__name__)

# What Orbax writes about the two items, so that its own manager of checkpoints opens them.
HANDLERS = {
    "data": "orbax.checkpoint._src.handlers.json_checkpoint_handler.JsonCheckpointHandler",
    "state": "orbax.checkpoint._src.handlers.standard_checkpoint_handler.StandardCheckpointHandler",
}


def working_directory(directory: epath.Path, step: int) -> epath.Path:
    """Returns where the files of a step are written before they are committed."""
    return directory / str(step) if _is_bucket(directory) else directory / f"{step}{UNFINISHED}"


def open_step(directory: epath.Path, step: int, needed: int) -> None:
    """Makes the empty directory of a step; OSError if that fails, or if fewer than the `needed` bytes are free."""
    make_folder(directory)
    work = working_directory(directory, step)
    if work.exists():
        work.rmtree()
    free = free_bytes(str(directory))
    if free is not None and free < needed:
        raise OSError(errno.ENOSPC, f"only {size_text(free)} are free, and a checkpoint takes {size_text(needed)}")
    for item in ("state", "data"):
        (work / item).mkdir(parents=True)


def write_own_arrays(directory: epath.Path, step: int, snapshot: Snapshot) -> dict[str, manifest.Entry]:
    """Writes this process's arrays; returns their manifest entries. Every process calls it, after `open_step`."""
    work = working_directory(directory, step)
    folder = f"state/{arrays.write_arrays(work / 'state', snapshot)}"
    return {f"{folder}/{name}": entry for name, entry in manifest.step_entries(work / folder).items()}


def commit_step(
    directory: epath.Path,
    step: int,
    snapshot: Snapshot,
    data: Mapping[str, object],
    known: Mapping[str, manifest.Entry],
) -> None:
    """Writes what belongs to all processes, the manifest last, and gives the directory its name.

    `known` has the entries of all arrays' files. The first process calls it when all have written theirs.
    """
    work = working_directory(directory, step)
    arrays.merge(work / "state")
    arrays.write_tree_metadata(work / "state", snapshot.tree)
    commit_files(directory, step, data, known)


def commit_files(
    directory: epath.Path, step: int, data: Mapping[str, object], known: Mapping[str, manifest.Entry] | None = None
) -> None:
    """Writes the data position and the manifest of a step whose arrays are there, and gives the directory its name."""
    work, started = working_directory(directory, step), time.time_ns()
    (work / "data" / "metadata").write_text(json.dumps(data))
    about = {
        "item_handlers": HANDLERS,
        "metrics": {},
        "performance_metrics": {},
        "init_timestamp_nsecs": started,
        "commit_timestamp_nsecs": time.time_ns(),
        "custom_metadata": {},
    }
    (work / "_CHECKPOINT_METADATA").write_text(json.dumps(about))
    manifest.write(work, known, step)
    (work / COMMITTED).write_text(f"Checkpoint commit was successful to {directory / str(step)}")
    _name_step(directory, step)


def copy_step(path: epath.Path, directory: epath.Path) -> None:
    """Copies a step into another folder `checkpoints`, where it is there when all of it is."""
    last = [name for name in (manifest.FILE, COMMITTED) if (path / name).exists()]
    names = [name for name in manifest.names(path) if name not in last]
    with waiting(f"copying {path}"):
        open_step(directory, int(path.name), sum((path / name).stat().length for name in names))
        work = working_directory(directory, int(path.name))

        def copy(name: str) -> None:
            (work / name).parent.mkdir(parents=True, exist_ok=True)
            (path / name).copy(work / name)

        with ThreadPoolExecutor(manifest.NUM_THREADS) as pool:
            list(pool.map(copy, names))
        for name in last:
            copy(name)
        _name_step(directory, int(path.name))


def _name_step(directory: epath.Path, step: int) -> None:
    """Gives the finished directory of a step its name; in a bucket it has it."""
    work = working_directory(directory, step)
    if _is_bucket(directory):
        return
    _to_disk(work)
    final = directory / str(step)
    if final.exists():  # a run that went back before this step
        remove_step(directory, step)
    work.rename(final)
    _to_disk(directory, recursive=False)


def remove_step(directory: epath.Path, step: int) -> None:
    """Removes a step: first its name or its manifest, so that what is left of it is never taken for a checkpoint."""
    path = directory / str(step)
    if _is_bucket(directory):
        for name in (manifest.FILE, COMMITTED):
            (path / name).unlink(missing_ok=True)
    else:
        removed = directory / f"{step}.removed{UNFINISHED}"
        if removed.exists():
            removed.rmtree()
        path = path.rename(removed)
    path.rmtree()


def remove_all_but(directory: epath.Path, keep: int | None) -> None:
    """Removes all but the newest steps; what cannot be removed stays, with a warning."""
    for step in sorted(steps_in(directory))[: -keep if keep else 0]:
        try:
            remove_step(directory, step)
        except Exception as error:  # noqa: BLE001  the new checkpoint is good all the same
            logger.warning("The old checkpoint %s/%d cannot be removed (%s).", directory, step, reason_of(error))


def clear_unfinished(directory: epath.Path) -> None:
    """Removes what an interrupted save has left; what cannot be removed stays."""
    with contextlib.suppress(OSError):
        for child in directory.iterdir() if directory.is_dir() else ():
            is_left = child.name.isdigit() and child.is_dir() and not is_finished(child)
            if UNFINISHED in child.name or is_left:
                with contextlib.suppress(OSError):
                    child.rmtree()


def clear_step(directory: epath.Path, step: int) -> None:
    """Removes what a failed attempt to save a step has left."""
    with contextlib.suppress(Exception):
        work = working_directory(directory, step)
        if work.exists() and not (_is_bucket(directory) and is_finished(work)):
            work.rmtree()
        for folder in (directory, directory.parent) if gone(directory) else ():  # made by a library meanwhile
            folder.rmdir()


def set_aside(path: epath.Path, ending: str = "broken") -> epath.Path:
    """Renames a step to `<step>.broken`, or to `<step>.broken-2` and so on if there is one; returns the new path."""
    number = 1
    while (aside := path.parent / f"{path.name}.{ending}{f'-{number}' if number > 1 else ''}").exists():
        number += 1
    path.rename(aside)
    return aside


def size_text(num_bytes: float) -> str:
    """Returns a number of bytes for people.

    >>> size_text(900), size_text(31_400_000), size_text(1.24e9)
    ('900 bytes', '31.4 MB', '1.2 GB')
    """
    for unit, size in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if num_bytes >= size:
            return f"{num_bytes / size:.1f} {unit}"
    return f"{num_bytes:.0f} bytes"


def _is_bucket(directory: epath.Path) -> bool:
    return "://" in str(directory)


def _to_disk(path: epath.Path, recursive: bool = True) -> None:
    """Has the file system write a directory's files and names to the disk; OSError if that fails."""
    places = [str(path)]
    if recursive:
        places += [os.path.join(folder, name) for folder, folders, files in os.walk(path) for name in folders + files]
    for place in reversed(places):
        descriptor = os.open(place, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
