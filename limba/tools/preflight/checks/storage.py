"""Where a run is kept: whether it can be written, who uses it, its checkpoints, room for more, a bucket's region."""

from __future__ import annotations

import contextlib
import os
import re
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from limba.api import PlannedRun, RunDirectory, size_text
from limba.config import ConfigError, Fix, InputError, Open, RunConfig, reason_of
from limba.config.environment import is_tpu_vm
from limba.tools.preflight.checks.findings import gathered, reached_by
from limba.tools.preflight.checks.verdict import Data, Line, Section

TITLE = "Storage"
METADATA_SECONDS = 1.0  # for an answer of Google's metadata server, which is on the same host
# Location of a bucket in several regions -> how the names of their zones begin.
MULTI_REGIONS = {"US": ("us-", "northamerica-"), "EU": ("europe-",), "ASIA": ("asia-",)}
DAMAGED = "damaged-checkpoint"
NO_ROOM = "no-room"
VERIFY = "limba status MODEL_DIR --verify  # names the damaged files; restore them from a copy"
SILENT_SECONDS = 90.0  # after so long without a heartbeat a run has ended; the clocks of two machines may differ


def storage(config: RunConfig) -> Section:
    """Returns the section about a run's directory, its checkpoints and its other destinations.

    A directory that does not exist is made, written to, and removed again. Where a bucket cannot be written, nothing
    else is asked of it, since each answer that does not come takes half a minute.
    """
    run = PlannedRun(config)
    first = gathered(TITLE, lambda _: _writable(run, config.model_dir, "RunConfig.model_dir"))
    if "://" in config.model_dir and any(line.level == "error" for line in first.lines):
        return Section(TITLE, [reached_by(line, "RunConfig.model_dir") for line in first.lines])
    others = gathered(
        TITLE,
        lambda _: _held(config.model_dir),
        lambda data: _checkpoints(run, data),
        lambda data: _initial(run, data),
        lambda data: _room(run, data),
        lambda data: _region(config.model_dir, data),
        lambda _: _destinations(run),
    )
    return Section(TITLE, [*first.lines, *others.lines], others.data)


def _writable(run: PlannedRun, directory: str, field: str) -> Iterator[Line]:
    """Yields whether a directory can be written; folders that are made to try it are removed again."""
    absent = [] if "://" in directory else _absent(directory)
    try:
        run.check_writable(directory, field)
    finally:
        for path in absent:
            with contextlib.suppress(OSError):
                path.rmdir()
    yield Line("ok", f"{directory} can be written.")


def _absent(directory: str) -> list[Path]:
    """Returns the folders of a path that do not exist yet, the innermost first."""
    innermost = Path(directory).expanduser().absolute()
    return [path for path in (innermost, *innermost.parents) if not path.exists()]


def _held(model_dir: str) -> Iterator[Line]:
    """Yields who trains in the directory now, by its lease."""
    lease, owner = RunDirectory(model_dir).look_at_lease()
    if lease.age is None:
        return
    is_held = lease.age < SILENT_SECONDS
    if owner is not None and owner.is_here:
        is_held = owner.is_alive
    if is_held:
        who = owner or "a process of an unknown program"
        text = f"{model_dir} is in use by {who}, whose heartbeat is {lease.age:.0f} s old."
        yield Line("error", text, ("RunConfig.model_dir", Open("another directory, or end that run")), "in-use")
    else:
        text = f"The run in {model_dir} by {owner or 'a process'} stopped without ending; a new start takes over."
        yield Line("ok", text)


def _checkpoints(run: PlannedRun, data: Data) -> Iterator[Line]:
    """Yields whether the newest checkpoint was saved by this run, and which parameters differ if not."""
    checkpoints = RunDirectory(run.config.model_dir).checkpoints()
    data["checkpoints"] = list(checkpoints)
    if not checkpoints:
        yield Line("ok", "No checkpoint yet: the run starts at step 0.")
        return
    step, path = max(checkpoints.items())
    try:
        damage = run.check_checkpoint(path)
    except ConfigError:  # it is after the last step
        raise
    except InputError as error:
        yield Line("error", str(error), _saved_fields(run.config, error.field), "other-checkpoint")
        return
    except ValueError as error:
        yield Line("error", f"The checkpoint at step {step:,} cannot be read ({reason_of(error)}).", VERIFY, DAMAGED)
        return
    if damage:
        text = f"The checkpoint at step {step:,} is damaged: {damage}; a start takes the one before it."
        yield Line("warning", text, VERIFY, DAMAGED)
        return
    yield Line("ok", f"The checkpoint at step {step:,} has this run's parameters and optimizer state.")


def _initial(run: PlannedRun, data: Data) -> Iterator[Line]:
    """Yields whether there is a checkpoint where a new run begins from one; a model of the hub is not downloaded."""
    path = run.config.initial_checkpoint_path
    if path is None or data["checkpoints"]:
        return
    if run.check_initial(path):
        yield Line("ok", f"The run begins from the checkpoint in {path}.")
    else:
        yield Line("ok", f"The run begins from {path} on the hub, which its start downloads.")


def _saved_fields(config: RunConfig, owner: str) -> list[Fix]:
    """Returns the fields of a class, such as ModelConfig, with the values of the run in model_dir that differ."""
    from limba.tools.preflight.checks.differences import differences, saved_run

    saved = None
    with contextlib.suppress(InputError):
        saved = saved_run(config.model_dir)
    if saved is None:
        return []
    fixes: list[Fix] = []
    for difference in differences(config, saved):
        if difference.field.startswith(owner) and not difference.is_free:
            fixes.append((difference.field, difference.before))
    return fixes


def _room(run: PlannedRun, data: Data) -> Iterator[Line]:
    """Yields the size of a checkpoint, times those kept, against the free space."""
    directory = RunDirectory(run.config.model_dir)
    size = run.num_bytes
    number = _most_checkpoints(run.config)
    free = directory.free_bytes()
    data |= {"checkpoint_bytes": size, "parameters": run.num_parameters, "free_bytes": free}
    kept = "all" if number is None else f"at most {number} at a time, {size_text(number * size)}"
    text = f"A checkpoint takes {size_text(size)}, {kept}"
    if free is None:
        yield Line("ok", f"{text}; a bucket has room.")
        return
    # Those that are there already take no more room. Without a limit, two must fit: the last, and the one being saved.
    wanted = max(1, (number or 2) - len(directory.checkpoints())) * size
    text += f"; {size_text(free)} are free in {run.config.model_dir}"
    if free < size:
        yield Line("error", f"{text}: not one fits.", ("RunConfig.model_dir", Open("where there is room")), NO_ROOM)
    elif free < wanted:
        most = max(1, free // size - 1)
        yield Line("warning", f"{text}: not all fit.", ("CheckpointConfig.keep", most), NO_ROOM)
    else:
        yield Line("ok", f"{text}.")


def _most_checkpoints(config: RunConfig) -> int | None:
    """Returns how many checkpoints there are at most at a time, with the one that is being saved; None: no limit."""
    every = config.checkpoint.every_steps
    keep = config.checkpoint.keep
    limits = []
    if isinstance(every, int) and config.train_steps:
        limits.append(config.train_steps // every + 1)
    if keep:
        limits.append(keep + 1)
    return min(limits, default=None)


def _region(model_dir: str, data: Data) -> Iterator[Line]:
    """Yields the region of the bucket beside the zone of this machine."""
    if not model_dir.startswith("gs://"):
        return
    bucket = model_dir.removeprefix("gs://").partition("/")[0]
    zone = zone_here()
    try:
        location = bucket_location(bucket)
    except Exception as error:  # noqa: BLE001  a bucket's client has errors of its own
        yield Line("ok", f"This account cannot see the region of gs://{bucket} ({reason_of(error)}).")
        return
    data |= {"bucket_location": location, "zone": zone}
    if zone is None:
        yield Line("ok", f"gs://{bucket} is in {location}; this machine is not in a Google zone. Take a TPU there.")
    elif is_near(location, zone):
        yield Line("ok", f"gs://{bucket} is in {location}, this machine in {zone}.")
    else:
        text = f"gs://{bucket} is in {location}, this machine in {zone}: saving and reading are slow, and traffic costs"
        fix = ("RunConfig.model_dir", Open(f"a bucket in {region_of(zone)}"))
        yield Line("warning", f"{text} money.", fix, "far-bucket")


def region_of(zone: str) -> str:
    """Returns the region of a zone.

    >>> region_of("us-central2-b")
    'us-central2'
    """
    return zone.rpartition("-")[0]


def is_near(location: str, zone: str) -> bool:
    """Returns whether a bucket's location is, or holds, the region of a zone.

    >>> is_near("US-CENTRAL2", "us-central2-b"), is_near("EU", "europe-west4-a"), is_near("US-EAST1", "us-central2-b")
    (True, True, False)
    """
    if location.lower() == region_of(zone):
        return True
    return zone.startswith(MULTI_REGIONS.get(location.upper(), ()))


def bucket_location(bucket: str) -> str:
    """Returns where a Google bucket is, as US-CENTRAL2; raises the client's own errors."""
    import fsspec

    return str(fsspec.filesystem("gs").info(bucket)["location"])


def zone_here() -> str | None:
    """Returns the zone of this machine in Google's cloud; None elsewhere."""
    host = os.environ.get("GCE_METADATA_HOST")
    if host is None and not (is_tpu_vm() or _is_googles()):
        return None
    address = f"http://{host or 'metadata.google.internal'}/computeMetadata/v1/instance/zone"
    request = urllib.request.Request(address, headers={"Metadata-Flavor": "Google"})
    with contextlib.suppress(OSError), urllib.request.urlopen(request, timeout=METADATA_SECONDS) as answer:
        match = re.search(r"zones/([\w-]+)", answer.read().decode())
        if match:
            return match[1]
    return None


def _is_googles() -> bool:
    with contextlib.suppress(OSError):
        return "Google" in Path("/sys/class/dmi/id/product_name").read_text()
    return False


def _destinations(run: PlannedRun) -> Iterator[Line]:
    """Yields whether the destinations of the run can be written."""
    destinations = run.check_destinations()
    if destinations:
        yield Line("ok", f"The model goes to {', '.join(destinations)} at the end.")
