"""The state of a run in lines of text, for `limba status`: how it stands, its figures, its files, its processes."""

from __future__ import annotations

import contextlib
import json
import os
import statistics
import time
from collections.abc import Sequence

import fsspec
from etils import epath

from limba.config import InputError, RunConfig, reason_of
from limba.evaluation.history import figures_read
from limba.evaluation.run_directory import Heartbeat, RunDirectory, WatchedFile, heartbeat_text, holder_text
from limba.evaluation.run_state import standing
from limba.evaluation.text_curve import text_curve
from limba.formats.limba_checkpoint import steps_in
from limba.formats.names import Json
from limba.storage import lease, manifest
from limba.training.metrics.records import duration

HOSTS_FILE = "hosts.json"  # what process 0 knows of the others; limba/sharding/watchdog.py writes it
NUM_RECENT = 5  # logged lines whose median speed is shown
# A process is called slow if it waits for its data for this share of a step, and this many times as long as most do.
SLOW_SHARE = 0.05
SLOW_TIMES = 2.0


class Status(RunDirectory):
    """A run directory that is looked at once, or again and again."""

    def __init__(self, address: str | os.PathLike[str]):
        super().__init__(address)
        self._hosts = WatchedFile(f"{self.path}/{HOSTS_FILE}")
        self.owner: lease.Owner | None = None  # who trains in the directory, as it was last seen

    def lines(self) -> list[str]:
        """Returns the state of the run in lines of text; InputError if the directory holds no run."""
        try:
            holder, self.owner = self.look_at_lease()
            hosts = self._hosts.look()
            records = self.records()
            self.history.update()
            config = self.run()
            newest = max(steps_in(self.path / "checkpoints").items(), default=None)
        except InputError:
            raise
        except Exception as error:  # a bucket's client has errors of its own
            raise InputError(
                f"{self.path} cannot be read ({reason_of(error)}); check the path, your rights and the network."
            ) from error
        if config is None and not records and holder.content is None:
            raise InputError(f"{self.path} is not a run directory; give the directory of a run.")
        train = [record for record in records if record["kind"] == "train"]
        with figures_read(str(self.path)):
            lines = [
                *self._standing_line(newest, holder),
                f"run          {self.path}",
                *(_training_lines(train, config) if train else [_line_without_steps(newest, holder)]),
                *_stage_line(train, config),
                *_validation_line(records),
                _checkpoint_line(newest),
                *_room_line(newest, self.free_bytes()),
                f"process      {holder_text(holder, self.owner)}",
                *_process_lines(hosts, holder, self.owner),
            ]
            if len(train) > 1:
                lines += ["", *text_curve([(record["step"], record["loss"]) for record in train])]
        return lines

    def _standing_line(self, newest: tuple[int, epath.Path] | None, holder: Heartbeat) -> list[str]:
        """Returns how the run stands in a line, in capitals where it needs somebody; nothing while it trains."""
        saved = None if newest is None else newest[0]
        run_standing = standing(self.history.notes, saved, holder.age)
        return [] if run_standing is None else [run_standing.text]


# Each function below returns the lines of one subject, [] where there is nothing to tell. `newest` is the step and the
# directory of the newest checkpoint.


def _line_without_steps(newest: tuple[int, epath.Path] | None, holder: Heartbeat) -> str:
    """Returns the line in place of `_training_lines` where no step is recorded."""
    if holder.content is not None:  # somebody holds the directory
        return "step         none yet: the run starts, or compiles its step"
    if newest is None:
        return "step         none yet"
    return "step         not known: no step is recorded here, as in a run's best/ or without its metrics.jsonl"


def _training_lines(train: Sequence[Json], config: RunConfig | None) -> list[str]:
    """Returns the step, the time to the end, the loss and the speed."""
    last = train[-1]
    recent = train[-NUM_RECENT:]
    seconds_per_step = statistics.median(record["seconds_per_step"] for record in recent)
    last_step = config.train_steps if config else None  # None too for a run that ends with its epochs
    total = f" of {last_step:,}" if last_step else ""
    lines = [f"step         {last['step']:,}{total}, logged at {last['time'].replace('+00:00', ' UTC')}"]
    seconds_left = (last_step - last["step"]) * seconds_per_step if last_step else 0.0
    if seconds_left > 0:
        lines.append(
            f"ETA          {duration(seconds_left)} at {seconds_per_step:.3g} s a step, without evaluations and new"
            " starts"
        )
    lines.append(f"loss         {last['loss']:.4f}")
    tokens = statistics.median(record["tokens_per_second"] for record in recent)
    mfu = f", MFU {last['mfu']:.1%}" if "mfu" in last else ", MFU unknown for these devices"
    lines.append(f"speed        {tokens:,.0f} tokens/s{mfu}, {last['data_wait']:.0%} of the time waiting for data")
    return lines


def _stage_line(train: Sequence[Json], config: RunConfig | None) -> list[str]:
    """Returns a line about the stage of the data that is read, and the next one; nothing for a run without stages."""
    if config is None or not config.data.stages:
        return []
    begun = config.data.stages_before(train[-1]["step"] if train else 0)
    since, name = begun[-1]
    line = f"stage        {len(begun)} of {1 + len(config.data.stages)}: {name} since step {since:,}"
    to_come = config.data.named_stages[len(begun) :]
    if to_come:
        begins, next_name = to_come[0]
        line += f", {next_name} from step {begins:,} on"
    return [line]


def _validation_line(records: Sequence[Json]) -> list[str]:
    evaluations = [record for record in records if record["kind"] == "validation"]
    if not evaluations:
        return []
    last = evaluations[-1]
    return [f"validation   loss {last['loss']:.4f} at step {last['step']:,}"]


def _checkpoint_line(newest: tuple[int, epath.Path] | None) -> str:
    if newest is None:
        return "checkpoint   none yet"
    step, directory = newest
    age = ""
    # The manifest is written last, so its time is when the checkpoint was finished. Without it only the age is unknown.
    with contextlib.suppress(Exception):
        system, path = fsspec.core.url_to_fs(f"{directory}/manifest.json")
        age = f", {duration(max(time.time() - system.modified(path).timestamp(), 0.0))} ago by the file's time"
    return f"checkpoint   step {step:,}{age}"


def _room_line(newest: tuple[int, epath.Path] | None, free: int | None) -> list[str]:
    """Returns a line about the room for the next checkpoint, where its size and the free bytes are known."""
    if newest is None or free is None:
        return []
    try:
        size = manifest.size_of(newest[1])[1]
    except (OSError, ValueError):  # damaged
        return []
    text = f"a checkpoint takes {size / 1e9:,.2f} GB, and {free / 1e9:,.2f} GB are free"
    if free < size:
        text = f"NONE for the next checkpoint: {text}"
    return [f"room         {text}"]


def _process_lines(hosts: Heartbeat, holder: Heartbeat, owner: lease.Owner | None) -> list[str]:
    """Returns a line for each process of a run of several, and one that names the slow one."""
    if hosts.content is None or hosts.age is None or holder.content is None:
        return []
    try:
        record = json.loads(hosts.content)
        seconds_between = float(record["written_every_seconds"])
        processes = record["processes"]
        if owner is not None and record["pid"] != owner.pid:
            return []  # the file is an earlier start's
        rows = [_process_line(process, hosts.age, seconds_between) for process in processes]
    except (ValueError, TypeError, KeyError, AttributeError):
        return [f"processes    {HOSTS_FILE} is damaged; it is written again within a minute"]
    return [f"processes    {len(rows)}, as process 0 has heard of them", *rows, *slow_line(processes)]


def _process_line(process: Json, age: float, seconds_between: float) -> str:
    """Returns a process's line; `age` is the file's, and its silence began before the file was written."""
    silence = age + float(process["silent_seconds"])
    text = f"  {process['process']:>3} on {process['host']}: {heartbeat_text(silence, seconds_between)}"
    if "seconds_per_step" in process:
        waits = f"{process['seconds_for_data']:.3g} s of them for its data"
        return f"{text}, step {process['step']:,}, {process['seconds_per_step']:.3g} s a step, {waits}"
    if process.get("step"):
        return f"{text}, step {process['step']:,}"
    return f"{text}, no step yet"


def slow_line(processes: Sequence[Json]) -> list[str]:
    """Returns a line that names the process whose data takes much longer than most processes' data.

    [] for fewer than two processes whose times are known.

    >>> waits = (0.01, 0.01, 0.4)
    >>> slow_line([{"process": i, "host": "h", "seconds_per_step": 1, "seconds_for_data": w}
    ...            for i, w in enumerate(waits)])
    ['slow         process 2 on h waits 0.4 s a step for its data, most wait 0.01 s: the others wait for it']
    """
    known = [process for process in processes if "seconds_for_data" in process]
    if len(known) < 2:
        return []
    usual = statistics.median_low(process["seconds_for_data"] for process in known)
    slowest = max(known, key=lambda process: process["seconds_for_data"])
    waits = slowest["seconds_for_data"]
    if waits < SLOW_TIMES * usual or waits < SLOW_SHARE * slowest["seconds_per_step"]:
        return ["slow         none: no process waits longer for its data than the others"]
    return [
        f"slow         process {slowest['process']} on {slowest['host']} waits {waits:.3g} s a step for its data, most"
        f" wait {usual:.3g} s: the others wait for it"
    ]
