"""The directory of one step: opened, written, committed, copied, removed and set aside.

A step is `state/` (the arrays), `data/metadata` (JSON), and `manifest.json` with the checksums of their files. On a
file system they are written under the name `<step>.unfinished`, and the directory gets its own by a rename, when all of
them are on the disk. In a bucket it has its name from the start, and the manifest, written last, is the commit.
"""

import contextlib
import errno
import json
import logging
import os
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor

from etils import epath

from limba.config.errors import reason_of
from limba.config.waiting import waiting
from limba.formats.limba_checkpoint import is_finished, steps_in
from limba.storage import manifest
from limba.storage.files import free_bytes, gone, make_folder
from limba.training.checkpoints import arrays
from limba.training.checkpoints.arrays import Snapshot

logger = logging.getLogger(__name__)

UNFINISHED = ".unfinished"  # in the name of a directory that is being written or removed,
UNFINISHED_BEFORE = ".orbax-checkpoint-tmp"  # and what it was when the steps of tests/golden/run were written


def working_directory(directory: epath.Path, step: int) -> epath.Path:
    """Returns where the files of a step are written before they are committed."""
    if _is_bucket(directory):
        return directory / str(step)
    return directory / f"{step}{UNFINISHED}"


def open_step(directory: epath.Path, step: int, needed: int) -> None:
    """Makes the empty directory of a step; OSError if that fails, or if fewer than the `needed` bytes are free."""
    make_folder(directory)
    work = working_directory(directory, step)
    if work.exists():
        _remove_files(work)
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
    data: Mapping[str, object],
    known: Mapping[str, manifest.Entry],
    may_commit: Callable[[], None],
) -> None:
    """Merges the arrays of all processes, writes the data position and the manifest, and makes all of it a checkpoint.

    `known` has the entries of files that are in the manifest as they are; the others are read. The first process calls
    it when all have written their arrays. `may_commit` is called when nothing but the commit is left to do: it raises
    an error if the directory is another run's by now.
    """
    work = working_directory(directory, step)
    arrays.merge(work / "state")
    (work / "data" / "metadata").write_text(json.dumps(data))
    _commit(directory, step, manifest.text_of(work, known, step), may_commit)


def _commit(directory: epath.Path, step: int, listed: str, may_commit: Callable[[], None]) -> None:
    """Makes a checkpoint of a step whose files are all there but the manifest, whose text is `listed`."""
    work = working_directory(directory, step)
    if _is_bucket(directory):
        may_commit()
        (work / manifest.FILE).write_text(listed)
        return
    (work / manifest.FILE).write_text(listed)
    _to_disk(work)
    may_commit()
    final = directory / str(step)
    replaced = None
    if final.exists():  # from before the run went back
        replaced = _without_name(directory, step)
    work.rename(final)
    _sync(str(directory))
    if replaced is not None:  # only now, since this may take a while
        with contextlib.suppress(OSError):  # the next start removes it
            replaced.rmtree()


def copy_step(path: epath.Path, directory: epath.Path, may_commit: Callable[[], None]) -> None:
    """Copies a step into another folder `checkpoints`, where it is there when all of it is."""
    step = int(path.name)
    names = [name for name in manifest.names(path) if name != manifest.FILE]
    needed = sum((path / name).stat().length for name in names)
    with waiting(f"copying {path}"):
        open_step(directory, step, needed)
        work = working_directory(directory, step)

        def copy(name: str) -> None:
            (work / name).parent.mkdir(parents=True, exist_ok=True)
            (path / name).copy(work / name)

        with ThreadPoolExecutor(manifest.NUM_THREADS) as pool:
            list(pool.map(copy, names))
        _commit(directory, step, (path / manifest.FILE).read_text(), may_commit)


def remove_step(directory: epath.Path, step: int) -> None:
    """Removes a step: first its name or its manifest, so that what is left of it is never taken for a checkpoint."""
    if _is_bucket(directory):
        _remove_files(directory / str(step))
    else:
        _without_name(directory, step).rmtree()


def _without_name(directory: epath.Path, step: int) -> epath.Path:
    """Renames a step on a file system, so that it is not a checkpoint any more; returns the new path."""
    removed = directory / f"{step}.removed{UNFINISHED}"
    if removed.exists():
        removed.rmtree()
    return (directory / str(step)).rename(removed)


def _remove_files(path: epath.Path) -> None:
    """Removes a directory of a step, the manifest first: without it, a bucket holds no checkpoint."""
    (path / manifest.FILE).unlink(missing_ok=True)
    path.rmtree()


def remove_all_but(directory: epath.Path, keep: int | None) -> None:
    """Removes all but the newest steps; what cannot be removed stays, with a warning."""
    if keep is None:
        return
    try:
        steps = sorted(steps_in(directory))
    except Exception as error:  # noqa: BLE001  the new checkpoint is good all the same
        logger.warning("The old checkpoints in %s cannot be removed (%s).", directory, reason_of(error))
        return
    for step in steps[:-keep]:
        try:
            remove_step(directory, step)
        except Exception as error:  # noqa: BLE001  the new checkpoint is good all the same
            logger.warning("The old checkpoint %s/%d cannot be removed (%s).", directory, step, reason_of(error))


def clear_unfinished(directory: epath.Path) -> None:
    """Removes what an interrupted save has left; what cannot be removed stays."""
    with contextlib.suppress(Exception):  # a bucket's client has errors of its own
        if not directory.is_dir():
            return
        for child in directory.iterdir():
            is_unfinished = UNFINISHED in child.name or UNFINISHED_BEFORE in child.name
            if _is_bucket(directory) and child.name.isdigit() and child.is_dir():
                is_unfinished = not is_finished(child)
            if is_unfinished:
                with contextlib.suppress(OSError):
                    child.rmtree()


def clear_step(directory: epath.Path, step: int) -> None:
    """Removes what a failed attempt to save a step has left."""
    with contextlib.suppress(Exception):
        work = working_directory(directory, step)
        is_committed = _is_bucket(directory) and is_finished(work)
        if work.exists() and not is_committed:
            work.rmtree()
        if gone(directory):  # a library has made the folders anew in the place of those that are away
            directory.rmdir()
            directory.parent.rmdir()


def set_aside(path: epath.Path, ending: str = "broken") -> epath.Path:
    """Renames a step to `<step>.broken`, or to `<step>.broken-2` and so on if there is one; returns the new path."""
    aside = path.parent / f"{path.name}.{ending}"
    number = 1
    while aside.exists():
        number += 1
        aside = path.parent / f"{path.name}.{ending}-{number}"
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


def _to_disk(folder: epath.Path) -> None:
    """Has the file system write a folder's files and names to the disk; OSError if that fails."""
    for inside, folders, files in os.walk(folder, topdown=False):
        for name in folders + files:
            _sync(os.path.join(inside, name))
    _sync(str(folder))


def _sync(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
