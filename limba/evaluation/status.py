"""The progress of a run, from what it leaves in its directory: it may be in a bucket, and on other machines."""

from __future__ import annotations

import contextlib
import json
import math
import os
import statistics
import time
from collections.abc import Sequence
from typing import NamedTuple

import fsspec
from etils import epath

from limba.config import InputError, ModelConfig, RunConfig, foreign, plain, reason_of
from limba.evaluation.history import History, figures_read, plot_loss, summary
from limba.evaluation.standing import SILENT, Standing, standing
from limba.formats.limba_checkpoint import checkpoints_of, steps_in
from limba.formats.names import Json
from limba.storage import lease, manifest
from limba.storage.files import free_bytes, is_local, read_text, resolved
from limba.training.metrics.records import duration, read_metrics

WIDTH, HEIGHT = 64, 8  # of the curve, in characters
HOSTS_FILE = "hosts.json"  # limba/sharding/watchdog.py writes it
RECENT = 5  # logged lines whose median counts
# A process is called slow if its data takes this share of a step, and this many times as long as for most.
SLOW_SHARE, SLOW_TIMES = 0.05, 2.0


class Heartbeat(NamedTuple):
    """A file that somebody writes again and again, as it is seen now. Ages are None if there is no file."""

    content: bytes | None
    age: float | None  # in seconds
    is_watched: bool  # the age is from the reader's own clock alone


class Watched:
    """A file whose age is wanted: by its time at first, and by this process's clock once a change was seen."""

    def __init__(self, path: str):
        self._system, self._path = fsspec.core.url_to_fs(path)
        self._content: bytes | None = None
        self._changed: float | None = None
        self._has_looked = False

    def look(self) -> Heartbeat:
        """Returns what is there now; the storage's own errors if it cannot be read."""
        self._system.invalidate_cache()
        try:
            if is_local(self._system):
                foreign.check_regular(self._path)
            content = self._system.cat_file(self._path)
        except FileNotFoundError:
            return Heartbeat(None, None, False)
        now = time.monotonic()
        if self._has_looked and content != self._content:
            self._changed = now
        self._content, self._has_looked = content, True
        if self._changed is not None:
            return Heartbeat(content, now - self._changed, True)
        written = self._system.modified(self._path).timestamp()
        return Heartbeat(content, max(time.time() - written, 0.0), False)


class RunDirectory:
    """A run's directory as a reader finds it, here or in a bucket; `history` is what the run has recorded so far."""

    def __init__(self, address: str | os.PathLike[str]):
        self.path = resolved(os.fspath(address))
        self.history = History(self.path)
        self._lease = Watched(f"{self.path}/{lease.FILE}")

    def config(self) -> RunConfig | ModelConfig | None:
        """Returns what config.json describes, a run with the directory's own path; None without that file.

        InputError if it cannot be read.
        """
        file = self.path / plain.FILE
        if not file.exists():
            return None
        found = plain.from_text(read_text(file), str(file))
        return plain.moved(found, str(self.path)) if isinstance(found, RunConfig) else found

    def run(self) -> RunConfig | None:
        """Returns `config`, if that is a run's."""
        return found if isinstance(found := self.config(), RunConfig) else None

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
        seen = self._lease.look()
        return seen, lease.Owner.of(seen.content)

    def standing(self) -> Standing | None:
        """Returns how the run stands, by `history` and its lease; None while it trains. The storage's own errors."""
        return standing(self.history.notes, max(self.checkpoints(), default=None), self._lease.look().age)

    def holder(self) -> str:
        """Returns a sentence on who trains in the directory, by its lease; the storage's own errors."""
        return holder_line(self._lease.look()).removeprefix("process").strip()

    def summary(self, config: RunConfig) -> str:
        """Returns the first and last figures of `history`, and its samples by step; InputError for damaged ones."""
        with figures_read(str(self.path)):
            return summary(config, self.history)

    def plot_loss(self, config: RunConfig) -> epath.Path:
        """Draws the losses of `history` into loss.png in the directory; returns its path."""
        return plot_loss(config, None, self.history)


class Status(RunDirectory):
    """A run directory that is looked at once, or again and again."""

    def __init__(self, address: str | os.PathLike[str]):
        super().__init__(address)
        self._hosts = Watched(f"{self.path}/{HOSTS_FILE}")
        self.owner: lease.Owner | None = None  # who trains in the directory, as it was last seen

    def lines(self) -> list[str]:
        """Returns the state of the run in lines of text; InputError if the directory holds no run."""
        try:
            (holder, self.owner), hosts = self.look_at_lease(), self._hosts.look()
            records, config = self.records(), self.run()
            saved = max(steps_in(self.path / "checkpoints").items(), default=None)
        except InputError:
            raise
        except Exception as error:  # a bucket's client has errors of its own
            raise InputError(
                f"{self.path} cannot be read ({reason_of(error)}); check the path, your rights and the network."
            ) from error
        if config is None and not records and holder.content is None:
            raise InputError(f"{self.path} holds no run; name the directory of one.")
        train = [record for record in records if record["kind"] == "train"]
        with figures_read(str(self.path)):
            lines = [
                *_first_line(records, saved, holder),
                f"run          {self.path}",
                *_figures(train, config),
                *_stages(train, config),
                *_validation(records),
                self._saved(saved),
                *self._room(saved),
                holder_line(holder),
                *_processes(hosts, holder),
            ]
            if len(train) > 1:
                lines += ["", *curve([(record["step"], record["loss"]) for record in train])]
        return lines

    def _saved(self, saved: tuple[int, epath.Path] | None) -> str:
        if saved is None:
            return "checkpoint   none yet"
        age = ""
        with contextlib.suppress(Exception):  # the manifest is written last
            system, path = fsspec.core.url_to_fs(f"{saved[1]}/manifest.json")
            age = f", {duration(max(time.time() - system.modified(path).timestamp(), 0.0))} ago by the file's time"
        return f"checkpoint   step {saved[0]:,}{age}"

    def _room(self, saved: tuple[int, epath.Path] | None) -> list[str]:
        """Returns a line about the next checkpoint's room, if its size and the directory's room are known."""
        free = free_bytes(str(self.path))
        if saved is None or free is None:
            return []
        try:
            size = manifest.size_of(saved[1])[1]
        except (OSError, ValueError):  # damaged
            return []
        text = f"a checkpoint takes {size / 1e9:,.2f} GB, and {free / 1e9:,.2f} GB are free"
        return [f"room         {text if free >= size else f'NONE for the next checkpoint: {text}'}"]


def _first_line(records: Sequence[Json], saved: tuple[int, epath.Path] | None, holder: Heartbeat) -> list[str]:
    """Returns how the run stands in a line, in capitals where it needs somebody; nothing while it trains."""
    notes = [record for record in records if record["kind"] in ("start", "end")]
    found = standing(notes, None if saved is None else saved[0], holder.age)
    return [] if found is None else [found.text]


def _figures(train: Sequence[Json], config: RunConfig | None) -> list[str]:
    if not train:
        return ["step         none yet: the run starts, or compiles its step"]
    last, recent = train[-1], train[-RECENT:]
    speed = statistics.median(record["seconds_per_step"] for record in recent)
    total = f" of {config.train_steps:,}" if config else ""
    left = (config.train_steps - last["step"]) * speed if config else math.nan
    lines = [f"step         {last['step']:,}{total}, logged at {last['time'].replace('+00:00', ' UTC')}"]
    if left > 0:
        lines.append(f"ETA          {duration(left)} at {speed:.3g} s a step, without evaluations and new starts")
    lines.append(f"loss         {last['loss']:.4f}")
    tokens = statistics.median(record["tokens_per_second"] for record in recent)
    mfu = f", MFU {last['mfu']:.1%}" if "mfu" in last else ", MFU unknown for these devices"
    lines.append(f"speed        {tokens:,.0f} tokens/s{mfu}, {last['data_wait']:.0%} of the time waiting for data")
    return lines


def _stages(train: Sequence[Json], config: RunConfig | None) -> list[str]:
    """Returns a line about the stage of the data that is read, and the next one; nothing for a run without stages."""
    if config is None or not config.data.stages:
        return []
    *_, (since, name) = read = config.data.stages_before(train[-1]["step"] if train else 0)
    line = f"stage        {len(read)} of {1 + len(config.data.stages)}: {name} since step {since:,}"
    following = config.data.named_stages[len(read) : len(read) + 1]
    return [", ".join([line, *(f"{later} from step {begins:,} on" for begins, later in following)])]


def _validation(records: Sequence[Json]) -> list[str]:
    found = [record for record in records if record["kind"] == "validation"]
    return [f"validation   loss {found[-1]['loss']:.4f} at step {found[-1]['step']:,}"] if found else []


def holder_line(seen: Heartbeat) -> str:
    """Returns who trains in the directory, by its lease."""
    if seen.content is None or seen.age is None:
        return "process      none: nothing trains here now"
    how = "seen here" if seen.is_watched else "by the file's time and this machine's clock"
    guess = ": it has ended, stands still, or cannot write" if seen.age > SILENT * lease.BEAT_SECONDS else ""
    owner = lease.Owner.of(seen.content) or "of an unknown program"
    return f"process      {owner}; {_beat(seen.age, lease.BEAT_SECONDS)} ({how}){guess}"


def _beat(age: float, every: float) -> str:
    return f"alive, heartbeat {duration(age)} ago" if age <= SILENT * every else f"NO HEARTBEAT for {duration(age)}"


def _processes(seen: Heartbeat, holder: Heartbeat) -> list[str]:
    """Returns a line for each process of a run of several, and one about who is slow."""
    if seen.content is None or seen.age is None or holder.content is None:
        return []
    try:
        record = json.loads(seen.content)
        every, each = float(record["written_every_seconds"]), record["processes"]
        owner = lease.Owner.of(holder.content)
        if owner is not None and record["pid"] != owner.pid:
            return []  # of an earlier start
        rows = [_row(one, seen.age, every) for one in each]
    except (ValueError, TypeError, KeyError, AttributeError):
        return [f"processes    {HOSTS_FILE} is damaged; it is written again within a minute"]
    return [f"processes    {len(rows)}, as process 0 has heard of them", *rows, *slow(each)]


def _row(one: Json, age: float, every: float) -> str:
    text = f"  {one['process']:>3} on {one['host']}: {_beat(age + float(one['silent_seconds']), every)}"
    if "seconds_per_step" not in one:
        return f"{text}, step {one['step']:,}" if one.get("step") else f"{text}, no step yet"
    waits = f"{one['seconds_for_data']:.3g} s of them for its data"
    return f"{text}, step {one['step']:,}, {one['seconds_per_step']:.3g} s a step, {waits}"


def slow(each: Sequence[Json]) -> list[str]:
    """Returns a line that names the process whose data takes much longer than that of most; none if there is none.

    >>> waits = (0.01, 0.01, 0.4)
    >>> slow([{"process": i, "host": "h", "seconds_per_step": 1, "seconds_for_data": w} for i, w in enumerate(waits)])
    ['slow         process 2 on h waits 0.4 s a step for its data, most wait 0.01 s: the others wait for it']
    """
    known = [one for one in each if "seconds_for_data" in one]
    if len(known) < 2:
        return []
    usual = statistics.median_low(one["seconds_for_data"] for one in known)
    worst = max(known, key=lambda one: one["seconds_for_data"])
    waits = worst["seconds_for_data"]
    if waits < SLOW_TIMES * usual or waits < SLOW_SHARE * worst["seconds_per_step"]:
        return ["slow         none: no process waits longer for its data than the others"]
    return [
        f"slow         process {worst['process']} on {worst['host']} waits {waits:.3g} s a step for its data, most wait"
        f" {usual:.3g} s: the others wait for it"
    ]


def curve(points: Sequence[tuple[int, float]], width: int = WIDTH, height: int = HEIGHT) -> list[str]:
    """Returns (step, loss) points as a drawing of characters: a column is the mean of its steps.

    >>> print("\\n".join(curve([(1, 4.0), (2, 3.0), (3, 2.0), (4, 2.0)], width=4, height=3)))
      4.000 |*
      3.000 | *
      2.000 |  **
            +----
             step 1 to 4
    """
    points = [(step, loss) for step, loss in points if math.isfinite(loss)]
    if not points:
        return []
    first, last = points[0][0], points[-1][0]
    columns: list[list[float]] = [[] for _ in range(width)]
    for step, loss in points:
        columns[min((step - first) * width // max(last - first + 1, 1), width - 1)].append(loss)
    means = [statistics.fmean(column) if column else None for column in columns]
    low, high = min(m for m in means if m is not None), max(m for m in means if m is not None)
    rows = [[" "] * width for _ in range(height)]
    for place, mean in enumerate(means):
        if mean is not None:
            rows[round((high - mean) / (high - low) * (height - 1)) if high > low else height - 1][place] = "*"
    labels = [high - (high - low) * number / max(height - 1, 1) for number in range(height)]
    lines = [f"{label:>7.3f} |{''.join(row)}".rstrip() for label, row in zip(labels, rows, strict=True)]
    return [*lines, f"{'':>7} +{'-' * width}", f"{'':>9}step {first:,} to {last:,}"]
