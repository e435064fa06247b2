"""A run's directory as a reader finds it: its configuration, records, checkpoints, and who trains in it.

The directory may be in a bucket, and the run on another machine. Nothing is written here but a picture.
"""

from __future__ import annotations

import os
import time
from typing import NamedTuple

import fsspec
from etils import epath

from limba.config import InputError, ModelConfig, RunConfig, saved_config, untrusted_files
from limba.evaluation.history import History, figures_read
from limba.evaluation.run_state import Standing, is_silent, standing
from limba.evaluation.summary import plot_loss, summary
from limba.formats.limba_checkpoint import checkpoints_of
from limba.formats.open import is_hub_address
from limba.storage import lease
from limba.storage.files import free_bytes, is_local, read_text, resolved
from limba.training.metrics.records import duration, read_metrics


class RunDirectory:
    """A run's directory, here or in a bucket; `history` is what the run has recorded so far.

    >>> directory = RunDirectory("runs/demo")
    >>> list(directory.checkpoints()), directory.run().train_steps, directory.holder()
    ([9], 9, 'none: nothing trains here now')
    """

    def __init__(self, address: str | os.PathLike[str]):
        if is_hub_address(os.fspath(address)):
            raise InputError(
                f"{address} is an address of files on the hub, where no run is kept; give a run's directory."
            )
        self.path = resolved(os.fspath(address))
        self.history = History(self.path)
        self._lease = WatchedFile(f"{self.path}/{lease.FILE}")

    def config(self) -> RunConfig | ModelConfig | None:
        """Returns what config.json describes, a run with the directory's own path; None without that file.

        InputError if it cannot be read.
        """
        file = self.path / saved_config.FILE
        if not file.exists():
            return None
        config = saved_config.from_text(read_text(file), str(file))
        if isinstance(config, RunConfig):
            return saved_config.moved(config, str(self.path))  # the directory may have been copied since
        return config

    def run(self) -> RunConfig | None:
        """Returns `config` if it is a run's, else None."""
        config = self.config()
        return config if isinstance(config, RunConfig) else None

    def checkpoints(self) -> dict[int, epath.Path]:
        """Returns step -> directory of the finished checkpoints, oldest first; damaged ones too."""
        return checkpoints_of(self.path)

    def free_bytes(self) -> int | None:
        """Returns the free bytes where the directory is or will be; None for a bucket."""
        return free_bytes(str(self.path))

    def records(self) -> list[dict]:
        """Returns all records of metrics.jsonl in the order of steps."""
        return read_metrics(str(self.path))

    def look_at_lease(self) -> tuple[Heartbeat, lease.Owner | None]:
        """Returns the lease's newest heartbeat, and who holds it; the storage's own errors."""
        heartbeat = self._lease.look()
        owner = lease.read_owner(f"{self.path}/{lease.FILE}", heartbeat.content)
        return heartbeat, owner

    def standing(self) -> Standing | None:
        """Returns how the run stands, by `history` and its lease; None while it trains. The storage's own errors."""
        newest = max(self.checkpoints(), default=None)
        return standing(self.history.notes, newest, self._lease.look().age)

    def holder(self) -> str:
        """Returns in words who trains in the directory, by its lease; the storage's own errors."""
        return holder_text(*self.look_at_lease())

    def summary(self, config: RunConfig) -> str:
        """Returns the first and last figures of `history`, and its samples by step; InputError for damaged ones."""
        with figures_read(str(self.path)):
            return summary(config, self.history)

    def plot_loss(self, config: RunConfig) -> epath.Path:
        """Draws the losses of `history` into loss.png in the directory; returns its path."""
        return plot_loss(config, None, self.history)


class Heartbeat(NamedTuple):
    """A file that somebody writes again and again, at the moment when it was looked at."""

    content: bytes | None  # None if there is no file
    age: float | None  # in seconds, since the file last changed; None if there is no file
    is_watched: bool  # the age is by this process's own clock alone


class WatchedFile:
    """A file whose age is wanted: by its time at first, and by this process's clock once a change was seen.

    The time of a file is another machine's, whose clock may differ. A change that this process sees needs no second
    clock, so the longer somebody watches, the better the age.
    """

    def __init__(self, path: str):
        self._system, self._path = fsspec.core.url_to_fs(path)
        self._state: tuple[bytes, float] | None = None  # the content and the file's time, when it was last looked at
        self._changed: float | None = None  # when a change was last seen, by time.monotonic
        self._has_looked = False

    def look(self) -> Heartbeat:
        """Returns what is there now; the storage's own errors if it cannot be read."""
        self._system.invalidate_cache()
        try:
            if is_local(self._system):
                untrusted_files.check_regular(self._path)  # a pipe would be waited for
            content = self._system.cat_file(self._path)
            written = self._system.modified(self._path).timestamp()
        except FileNotFoundError:
            return Heartbeat(None, None, False)
        now = time.monotonic()
        if self._has_looked and self._state != (content, written):
            self._changed = now
        self._state = (content, written)
        self._has_looked = True
        if self._changed is not None:
            return Heartbeat(content, now - self._changed, True)
        return Heartbeat(content, max(time.time() - written, 0.0), False)


def holder_text(heartbeat: Heartbeat, owner: lease.Owner | None) -> str:
    """Returns in words who trains in a directory, by its lease."""
    if heartbeat.content is None or heartbeat.age is None:
        return "none: nothing trains here now"
    who = owner or "of an unknown program"
    how = "seen here" if heartbeat.is_watched else "by the file's time and this machine's clock"
    guess = ""
    if is_silent(heartbeat.age, lease.BEAT_SECONDS):
        guess = ": it has ended, stands still, or cannot write"
    return f"{who}; {heartbeat_text(heartbeat.age, lease.BEAT_SECONDS)} ({how}){guess}"


def heartbeat_text(age: float, seconds_between: float) -> str:
    """Returns in words how old a heartbeat is that comes every `seconds_between` seconds."""
    if is_silent(age, seconds_between):
        return f"NO HEARTBEAT for {duration(age)}"
    return f"alive, heartbeat {duration(age)} ago"
