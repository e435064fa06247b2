"""What happened in a run: its starts and saves, spikes, faults, batches that it passed over, and its end."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from limba.api import evenly, matching
from limba.tools.pages.page.runs import Run

START = "start"
RESTART = "restart"
SAVE = "save"
SPIKE = "spike"
FAULT = "fault"
SKIPPED = "skipped"
END = "end"
KINDS = (START, RESTART, SAVE, SPIKE, FAULT, SKIPPED, END)  # the order of the rows of the chart, and of one moment


class Event(NamedTuple):
    """Something that happened after a step; `time` is empty where it is not known."""

    step: int
    time: str
    kind: str
    sentence: str


def events_of(run: Run) -> list[Event]:
    """Returns the events of a run, in the order of their steps."""
    events = [*map(_of_note, run.history.notes), *_skipped_batches(run), *_set_aside(run)]
    return sorted(events, key=lambda event: (event.step, event.time, KINDS.index(event.kind)))


def thinned(events: Sequence[Event], most: int) -> list[Event]:
    """Returns at most about `most` events: the newest, but saves and spikes, of which there are many, evenly."""
    frequent = [event for event in events if event.kind in (SAVE, SPIKE)]
    others = [event for event in events if event.kind not in (SAVE, SPIKE)]
    chosen = [frequent[i] for i in evenly(len(frequent), most // 2)]
    return sorted([*others[-most // 2 :], *chosen], key=lambda event: (event.step, event.time))


def _of_note(note: Mapping[str, Any]) -> Event:
    """Returns the event of a record of metrics.jsonl that is not a line of figures."""
    step = note["step"]
    time = str(note.get("time", ""))
    if note["kind"] == "start" and step:
        return Event(step, time, RESTART, f"resumed at step {step:,}")
    if note["kind"] == "start":
        return Event(step, time, START, "started")
    if note["kind"] == "saved":
        return Event(step, time, SAVE, f"step {step:,} saved")
    if note["kind"] == "end":
        kind = FAULT if note.get("failed") else END
        return Event(step, time, kind, str(note.get("reason", "")) or f"ended at step {step:,}")
    return Event(step, time, SPIKE, _of_spike(note))


def _of_spike(note: Mapping[str, Any]) -> str:
    returned = ""
    if isinstance(note.get("returned_to"), int):
        returned = f"; returned to step {note['returned_to']:,}"
    return f"{note.get('reason', 'a spike')} ({note.get('action', 'warn')}{returned})"


def _skipped_batches(run: Run) -> Iterator[Event]:
    skipped = run.skipped()
    if not skipped:
        return
    documents = run.skipped_documents()
    for entry in skipped:
        batch = entry["batch"]
        sentence = f"batch {batch:,} was not trained on: {entry.get('reason')}"
        yield Event(batch, "", SKIPPED, sentence + _first_of(documents.get(batch, ())))


def _set_aside(run: Run) -> Iterator[Event]:
    """Yields the faults that only files tell of: rows of a step that was not finite, checkpoints that are damaged."""
    for path in matching(run.directory, "non_finite_step_*.npz"):
        with contextlib.suppress(ValueError):  # another file, whose name has no step
            step = int(path.name.split("_")[3])
            yield Event(step, "", FAULT, f"step {step:,} was not finite; its rows are in {path.name}")
    for path in matching(run.directory / "checkpoints", "*.broken*"):  # the second of a step is 100.broken-2
        with contextlib.suppress(ValueError):
            step = int(path.name.split(".")[0])
            yield Event(step, "", FAULT, f"the checkpoint of step {step:,} could not be read: {path.name}")


def _first_of(documents: Sequence[str]) -> str:
    """Returns the first of a batch's documents in words, and how many more there are.

    >>> _first_of(["ro, a.jsonl, row 7", "ro, b.jsonl, row 1"]), _first_of([])
    ('; document: ro, a.jsonl, row 7, and 1 more', '')
    """
    if not documents:
        return ""
    more = ""
    if len(documents) > 1:
        more = f", and {len(documents) - 1:,} more"
    return f"; document: {documents[0]}{more}"
