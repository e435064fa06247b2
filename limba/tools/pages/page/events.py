"""What happened to a run, in the order of its steps: starts, saves, spikes, faults, skipped batches."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from limba.api import evenly
from limba.tools.pages.page.runs import Run

START, RESTART, SAVE, SPIKE, FAULT, SKIPPED, END = KINDS = (
    "start", "restart", "save", "spike", "fault", "skipped", "end"
)  # fmt: skip


class Event(NamedTuple):
    """Something that happened after a step; `time` is empty where it is not known."""

    step: int
    time: str
    kind: str
    said: str


def events_of(run: Run) -> list[Event]:
    """Returns the events of a run, in the order of their steps."""
    return sorted(_events(run), key=lambda each: (each.step, each.time, KINDS.index(each.kind)))


def _events(run: Run) -> Iterator[Event]:
    notes, skipped = run.history.notes, run.skipped()
    for note in notes:
        step, time = note["step"], str(note.get("time", ""))
        if note["kind"] == "start":
            yield Event(step, time, *((RESTART, f"resumed at step {step:,}") if step else (START, "started")))
        elif note["kind"] == "saved":
            yield Event(step, time, SAVE, f"step {step:,} saved")
        elif note["kind"] == "end":
            reason = str(note.get("reason", ""))
            yield Event(step, time, FAULT if note.get("failed") else END, reason or f"ended at step {step:,}")
        else:
            yield Event(step, time, SPIKE, _spike(note))
    documents = run.skipped_documents() if skipped else {}
    for entry in skipped:
        said = f"batch {entry['batch']:,} was not trained on: {entry.get('reason')}"
        yield Event(entry["batch"], "", SKIPPED, said + _named(documents.get(entry["batch"], ())))
    for path in run.directory.glob("non_finite_step_*.npz"):
        with contextlib.suppress(ValueError):
            step = int(path.name.split("_")[3])
            yield Event(step, "", FAULT, f"step {step:,} was not finite; its rows are in {path.name}")
    for path in (run.directory / "checkpoints").glob("*.broken"):
        with contextlib.suppress(ValueError):
            step = int(path.name.split(".")[0])
            yield Event(step, "", FAULT, f"the checkpoint of step {step:,} could not be read: {path.name}")


def _spike(note: dict[str, Any]) -> str:
    returned = f"; returned to step {note['returned_to']:,}" if isinstance(note.get("returned_to"), int) else ""
    return f"{note.get('reason', 'a spike')} ({note.get('action', 'warn')}{returned})"


def _named(places: Sequence[str]) -> str:
    """Returns the first of a batch's documents in words, and how many more there are.

    >>> _named(["ro, a.jsonl, row 7", "ro, b.jsonl, row 1"]), _named([])
    ('; document: ro, a.jsonl, row 7, and 1 more', '')
    """
    more = f", and {len(places) - 1:,} more" if len(places) > 1 else ""
    return f"; document: {places[0]}{more}" if places else ""


def thinned(events: Sequence[Event], most: int) -> list[Event]:
    """Returns at most about `most` events: of saves and spikes some, of the others the newest."""
    rare = [each for each in events if each.kind not in (SAVE, SPIKE)][-most // 2 :]
    often = [each for each in events if each.kind in (SAVE, SPIKE)]
    chosen = [often[place] for place in evenly(len(often), most // 2)]
    return sorted([*rare, *chosen], key=lambda each: (each.step, each.time))
