"""The directory of one step: opened, written, committed, copied, removed and set aside.

A step is `state/` (the arrays), `data/metadata` (JSON), and `manifest.json` with the checksums of their files. On a
file system they are written under the name `<step>.<attempt>.unfinished`, and the directory gets its own by a rename,
when all of them are on the disk. In a bucket it has its name from the start, and the manifest, written last, is the
commit; the arrays are in folders of their attempt.
"""

import contextlib
import errno
import json
import logging
import os
import secrets
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import tensorstore as ts
from etils import epath

from limba.config.errors import RestartError, reason_of
from limba.config.waiting import waiting
from limba.formats.limba_checkpoint import steps_in
from limba.storage import literal_names, manifest
from limba.storage.failures import waited
from limba.storage.files import free_bytes, gone, key_value_store, make_folder
from limba.training.checkpoints import arrays
from limba.training.checkpoints.arrays import Snapshot

logger = logging.getLogger(__name__)

UNFINISHED = ".unfinished"  # in the name of a directory that is being written or removed
REPLACED = ".replaced"  # ends the name of a step while another one takes its name


@dataclass(frozen=True)
class Attempt:
    """One attempt to write a step, with a name that no other attempt has, of this run or of another one.

    A process that stood still may go on with its attempt when another run has saved the same step.
    """

    directory: epath.Path  # `checkpoints`
    step: int
    name: str

    @property
    def path(self) -> epath.Path:
        """Where the files are written before they are committed."""
        if _is_bucket(self.directory):
            return self.directory / str(self.step)
        return self.directory / f"{self.step}.{self.name}{UNFINISHED}"

    def has(self, name: str) -> bool:
        """Returns whether a file of the step, by its relative path, belongs to this attempt and not to another one."""
        is_in_store = name.startswith(f"state/{arrays.STORE}")
        return not is_in_store or f".{self.name}/" in name


def new_attempt(directory: epath.Path, step: int) -> Attempt:
    """Returns an attempt to write a step; nothing is written yet."""
    return Attempt(directory, step, secrets.token_hex(8))


def open_step(attempt: Attempt, needed: int, may_commit: Callable[[], None]) -> None:
    """Makes the empty directory of a step; OSError if that fails, or if fewer than the `needed` bytes are free.

    What other attempts have left of this step is removed. `may_commit` raises an error if the directory is another
    run's by now, and is called before that.
    """
    directory = attempt.directory
    make_folder(directory)
    if _is_bucket(directory):
        # Looked for before the lease is asked: what a successor writes while this process stands still is not among it.
        left = literal_names.objects_in(attempt.path)
        may_commit()
        _remove_objects(attempt.path, left)
    else:
        may_commit()
        restore_replaced(directory)
        for child in directory.iterdir():
            if child.name.startswith(f"{attempt.step}.") and UNFINISHED in child.name:
                with contextlib.suppress(OSError):  # a process that stood still may go on to write there
                    child.rmtree()
    free = free_bytes(str(directory))
    if free is not None and free < needed:
        raise OSError(errno.ENOSPC, f"only {size_text(free)} are free, and a checkpoint takes {size_text(needed)}")
    for item in ("state", "data"):
        # Where a bucket has real folders, those of an earlier attempt are there, empty.
        (attempt.path / item).mkdir(parents=True, exist_ok=True)


def write_own_arrays(attempt: Attempt, snapshot: Snapshot) -> dict[str, manifest.Entry]:
    """Writes this process's arrays; returns their manifest entries. Every process calls it, after `open_step`."""
    state = attempt.path / "state"
    store = arrays.write_arrays(state, snapshot, attempt.name)
    entries = manifest.step_entries(state / store)
    return {f"state/{store}/{name}": entry for name, entry in entries.items()}


def commit_step(
    attempt: Attempt,
    data: Mapping[str, object],
    known: Mapping[str, manifest.Entry],
    may_commit: Callable[[], None],
) -> None:
    """Merges the arrays of all processes, writes the data position and the manifest, and makes all of it a checkpoint.

    `known` has the entries of files that are in the manifest as they are; the others are read. The first process calls
    it when all have written their arrays. `may_commit` raises an error if the directory is another run's by now: it is
    called before anything is written under a name that attempts share, and when nothing but the commit is left to do.
    """
    may_commit()
    _write(attempt.path / "state" / arrays.MERGED, arrays.merge(attempt.path / "state", attempt.name))
    _write(attempt.path / "data" / "metadata", json.dumps(data).encode())
    listed = manifest.text_of(attempt.path, known, attempt.step, attempt.has)
    _commit(attempt, listed, may_commit)


def _commit(attempt: Attempt, listed: str, may_commit: Callable[[], None]) -> None:
    """Makes a checkpoint of a step whose files are all there but the manifest, whose text is `listed`."""
    work = attempt.path
    if _is_bucket(attempt.directory):
        may_commit()
        _write(work / manifest.FILE, listed.encode())
        return
    _write(work / manifest.FILE, listed.encode())
    _to_disk(work)
    may_commit()
    _take_name(work, attempt.directory / str(attempt.step))


def _write(path: epath.Path, content: bytes) -> None:
    """Writes a file whose name all attempts at a step share.

    In a bucket, where they share the directory too, it is written only if it is not there, in one request: an attempt
    that stood still changes nothing of a step that is committed. FileExistsError if another one has written it.
    """
    if not _is_bucket(path):
        path.write_bytes(content)
        return
    store = waited(ts.KvStore.open(key_value_store(path.parent)))
    seen = waited(store.read(path.name))
    if seen.state == "missing":
        written = waited(store.write(path.name, content, if_equal=seen.stamp.generation))
        if written.generation:
            return
        seen = waited(store.read(path.name))  # of another attempt, or of this one, whose first answer was lost
    if seen.value != content:
        raise FileExistsError(f"another process has written {path}")


def _take_name(work: epath.Path, final: epath.Path) -> None:
    """Gives a whole step its name. One that has it, from before the run went back, is there until the new one is."""
    replaced = final.with_name(final.name + REPLACED)
    has_replaced = final.exists()
    if has_replaced:
        if replaced.exists():
            with contextlib.suppress(OSError):
                _remove_folder(replaced)
        final.rename(replaced)  # a start after a kill gives it its name back: `restore_replaced`
    try:
        work.rename(final)
    except OSError:
        if has_replaced:
            replaced.rename(final)
        raise
    _sync(str(final.parent))
    if has_replaced:  # only now, since this may take a while
        with contextlib.suppress(OSError):  # the next start removes it
            _remove_folder(replaced)


def restore_replaced(directory: epath.Path) -> None:
    """Gives a step its name back that lost it to another one which did not get it, since the process was killed."""
    if _is_bucket(directory) or not directory.is_dir():
        return
    for replaced in literal_names.matching(directory, f"*{REPLACED}"):
        final = replaced.with_name(replaced.name.removesuffix(REPLACED))
        if not final.name.isdigit():  # a user's own
            continue
        if not final.exists():
            replaced.rename(final)
        else:
            with contextlib.suppress(OSError):
                _remove_folder(replaced)


def copy_step(path: epath.Path, directory: epath.Path, may_commit: Callable[[], None]) -> None:
    """Copies a step into another folder `checkpoints`, where it is there when all of it is."""
    names = [name for name in manifest.names(path) if name != manifest.FILE]
    needed = sum((path / name).stat().length for name in names)
    attempt = new_attempt(directory, int(path.name))
    with waiting(f"copying {path}"):
        open_step(attempt, needed, may_commit)

        def copy(name: str) -> None:
            target = attempt.path / name
            target.parent.mkdir(parents=True, exist_ok=True)
            (path / name).copy(target)

        with ThreadPoolExecutor(manifest.NUM_THREADS) as pool:
            list(pool.map(copy, names))
        _commit(attempt, (path / manifest.FILE).read_text(), may_commit)


def remove_step(directory: epath.Path, step: int) -> None:
    """Removes a step: first its name or its manifest, so that its remains are never taken for a checkpoint."""
    path = directory / str(step)
    if _is_bucket(directory):
        _remove_objects(path, literal_names.objects_in(path))
    else:
        _remove_folder(path)


def _remove_folder(path: epath.Path) -> None:
    """Removes a folder on a file system: first its name, so that what cannot be removed is never a step again."""
    removed = path.with_name(f"{path.name}.{secrets.token_hex(8)}.removed{UNFINISHED}")
    path.rename(removed)
    removed.rmtree()


def _remove_objects(path: epath.Path, objects: literal_names.Objects) -> None:
    """Removes these objects of a step, the manifest first: without it, a bucket holds no checkpoint.

    FileExistsError if another process has committed the step, or an object of it, since they were listed.
    """
    listed = {name: about for name, about in objects.items() if name.endswith(f"/{path.name}/{manifest.FILE}")}
    others = {name: about for name, about in objects.items() if name not in listed}
    literal_names.remove_objects(path, listed)
    literal_names.remove_objects(path, others)


def old_steps(steps: Iterable[int], saved: int, keep: int) -> list[int]:
    """Returns which steps are removed once `saved` is there: all up to it but the newest `keep`.

    A later step is left alone: it is damaged, and could not be renamed when the run went back.

    >>> old_steps([15, 20, 25, 40], saved=25, keep=2)
    [15]
    """
    return sorted(step for step in steps if step <= saved)[:-keep]


def remove_old(
    directory: epath.Path, saved: int, keep: int | None, may_commit: Callable[[], None] = lambda: None
) -> None:
    """Removes the `old_steps`, the oldest first; what cannot be removed stays, with a warning.

    `may_commit` as in `open_step`, asked before each of them: a successor may have begun from one of these steps.
    """
    if keep is None:
        return
    try:
        steps = old_steps(steps_in(directory), saved, keep)
    except Exception as error:  # noqa: BLE001  the new checkpoint is good all the same
        logger.warning("The old checkpoints in %s cannot be removed (%s).", directory, reason_of(error))
        return
    for step in steps:
        try:
            may_commit()
            remove_step(directory, step)
        except RestartError:
            raise
        except Exception as error:  # noqa: BLE001  the new checkpoint is good all the same
            logger.warning("The old checkpoint %s/%d cannot be removed (%s).", directory, step, reason_of(error))


def clear_unfinished(directory: epath.Path, may_commit: Callable[[], None] = lambda: None) -> None:
    """Removes what interrupted saves have left, for the holder of the run's lease; what cannot be removed stays.

    `may_commit` as in `open_step`.
    """
    with contextlib.suppress(Exception):  # a bucket's client has errors of its own
        if not directory.is_dir():
            return
        for child in directory.iterdir():
            if _is_bucket(directory):
                if child.name.isdigit() and child.is_dir():
                    _clear_uncommitted(child, may_commit)
            elif UNFINISHED in child.name:
                with contextlib.suppress(OSError):
                    child.rmtree()


def _clear_uncommitted(path: epath.Path, may_commit: Callable[[], None]) -> None:
    """Removes the objects of a step in a bucket that has no manifest."""
    objects = literal_names.objects_in(path)  # before the lease is asked, as in `open_step`
    is_committed = any(name.endswith(f"/{path.name}/{manifest.FILE}") for name in objects)
    if is_committed or not objects:
        return
    may_commit()
    with contextlib.suppress(OSError):
        literal_names.remove_objects(path, objects)


def clear_step(attempt: Attempt) -> None:
    """Removes what a failed attempt has left under names of its own, so that it may be called without the lease.

    In a bucket the answer to the commit itself may be lost: a step that is committed stays.
    """
    with contextlib.suppress(Exception):
        if _is_bucket(attempt.directory):
            listed = attempt.path / manifest.FILE
            if listed.exists() and f".{attempt.name}/" in listed.read_text():
                return
            for store in literal_names.matching(attempt.path / "state", f"{arrays.STORE}*.{attempt.name}"):
                literal_names.remove_folder(store)
        elif attempt.path.exists():
            attempt.path.rmtree()
        if gone(attempt.directory):  # a library has made new folders where the old ones were removed
            attempt.directory.rmdir()
            attempt.directory.parent.rmdir()


def set_aside(path: epath.Path, ending: str = "broken") -> epath.Path:
    """Renames a step to `<step>.broken`, or to `<step>.broken-2` and so on if there is one; returns the new path."""
    aside = path.parent / f"{path.name}.{ending}"
    number = 1
    while aside.exists():
        number += 1
        aside = path.parent / f"{path.name}.{ending}-{number}"
    literal_names.rename_folder(path, aside)
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
