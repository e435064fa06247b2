"""How a run stands, in one sentence before all figures: it failed, was stopped, stands still, or is done."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from limba.storage import lease
from limba.training.metrics.records import duration

SILENT = 3  # intervals without a heartbeat after which its writer is assumed to have ended


class Standing(NamedTuple):
    """A word in capitals where something is wrong, and a sentence that says why and what to type.

    >>> stopped = standing([{"kind": "start", "step": 0}, {"kind": "end", "step": 20, "stopped": True}], 20, None)
    >>> stopped.text, stopped.is_wrong
    ('STOPPED after step 20, as it was asked to. The same command resumes from step 20.', True)
    """

    word: str  # FAILED, STANDS STILL, STOPPED, ENDED or DONE
    sentence: str

    @property
    def text(self) -> str:
        """The word and the sentence."""
        return f"{self.word} {self.sentence}"

    @property
    def is_wrong(self) -> bool:
        """Whether the run needs somebody."""
        return self.word in ("FAILED", "STANDS STILL", "STOPPED")


def standing(notes: Sequence[Mapping[str, Any]], saved: int | None, age: float | None) -> Standing | None:
    """Returns how a run stands; None while it trains, and for a run that has recorded nothing.

    `notes` are the run's records of starts and ends among others, in the order in which they were written, `saved` is
    its newest checkpoint, and `age` the seconds since the heartbeat of the directory's holder, None without one.
    """
    if age is not None:  # somebody holds the directory, or was killed before it could let go
        return _silent(saved, age) if is_silent(age, lease.BEAT_SECONDS) else None
    bounds = [note for note in notes if note.get("kind") in ("start", "end")]
    if not bounds:
        return None
    last = bounds[-1]
    step = int(last["step"])
    if last["kind"] == "start":  # no end is recorded and nobody holds the directory: it may be the copy of a run
        return None
    reason = str(last.get("reason") or "")
    if last.get("failed"):
        sentence = _with_full_stop(reason or "no reason is recorded")
        return Standing("FAILED", f"after step {step:,}: {sentence} {again(saved)}")
    if last.get("stopped"):
        return Standing("STOPPED", f"after step {step:,}, as it was asked to. {again(saved)}")
    if reason:
        return Standing("ENDED", _with_full_stop(reason))
    return Standing("DONE", f"all {step:,} steps are trained.")


def is_silent(age: float, seconds_between: float) -> bool:
    """Returns whether a heartbeat that comes every `seconds_between` seconds, and is this old, has stopped.

    >>> is_silent(30.0, 12.0), is_silent(40.0, 12.0)
    (False, True)
    """
    return age > SILENT * seconds_between


def _silent(saved: int | None, age: float) -> Standing:
    return Standing(
        "STANDS STILL",
        f"or was killed: no heartbeat for {duration(age)}. If its process still runs, stop it. {again(saved)}",
    )


def again(saved: int | None) -> str:
    """Returns what the same command does next."""
    if saved is None:
        return "No step is saved: the same command begins anew."
    return f"The same command resumes from step {saved:,}."


def _with_full_stop(sentence: str) -> str:
    return sentence if sentence.endswith((".", "!", "?")) else f"{sentence}."
