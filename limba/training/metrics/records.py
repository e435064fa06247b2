"""Reads metrics.jsonl, the records of a run, and writes its figures in words.

One object a line: {"kind", "step", "time", …}. Kinds with figures: "train", "validation", "text". Others: "samples"
(`texts`: prompt -> its texts), "event" (of the guard), "start" (sizes, devices, versions), "saved", "end",
"row_lengths" (how many rows have how many tokens). A line that a killed run has left incomplete is passed over.
"""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from etils import epath

from limba.storage.files import read_bytes

METRICS = "metrics.jsonl"
LOG = "logs/train.log"  # of a run: all of its lines, also those that the console does not show
LEDGER = "skipped_batches.jsonl"  # batches that a run has dropped or passed over: training/skipped_batches.py


# Gets a step and its figures by name, as metrics.jsonl has them.
Callback = Callable[[int, dict[str, float]], object]


@dataclass(frozen=True)
class Callbacks:
    """Functions that a run's first process calls. One that returns False stops the run.

    The run saves after the step that it is in, and ends; the same call resumes it. An error that one raises stops it
    too, and is raised when the step is saved. A loss is in nats a token, `seconds_per_step` in seconds.

    >>> until = Callbacks(on_log=lambda step, figures: figures["loss"] > 2.5)  # stops at a loss of 2.5 or less
    >>> until.on_log(100, {"loss": 2.4})
    False
    """

    on_log: Callback | None = None  # at each logged line: loss, learning_rate, seconds_per_step, …
    on_evaluation: Callback | None = None  # at each evaluation: loss, accuracy, bits_per_byte, the text's metrics


def duration(seconds: float) -> str:
    """Returns a length of time in two units.

    >>> duration(7), duration(200), duration(10_000), duration(400_000)
    ('7 s', '3 min 20 s', '2 h 46 min', '4 d 15 h')
    """
    seconds = int(seconds)
    for unit, size, part, part_size in (("d", 86400, "h", 3600), ("h", 3600, "min", 60), ("min", 60, "s", 1)):
        if seconds >= size:
            return f"{seconds // size} {unit} {seconds % size // part_size} {part}"
    return f"{seconds} s"


def bits_per_byte_by_set(values: Mapping[str, float]) -> list[str]:
    """Returns a short text about each character set of the validation text; nan for one without a finite number.

    >>> figures = {"bits_per_byte/kanji": 2.5, "bytes/kanji": 30, "bits_per_byte/other": 1, "bytes/other": 10}
    >>> bits_per_byte_by_set(figures)
    ['kanji 2.500 (75 % of the bytes)', 'other 1.000 (25 %)']
    """
    counts = {name.partition("/")[2]: count for name, count in values.items() if name.startswith("bytes/")}
    shares = {name: f"{count / sum(counts.values()):.0%}".replace("%", " %") for name, count in counts.items()}
    texts = []
    for name, share in shares.items():
        bits = values.get(f"bits_per_byte/{name}", math.nan)
        texts.append(f"{name} {bits:.3f} ({share})")
    if texts:
        texts[0] = f"{texts[0].removesuffix(')')} of the bytes)"  # said once
    return texts


def markdown_table(columns: Mapping[str, Mapping[str, float]]) -> str:
    """Returns a Markdown table: a row per metric, a column per name in `columns`.

    >>> print(markdown_table({"copied": {"bleu": 1.0}, "step 10": {"bleu": 25.256, "bytes": 1200}}))
    | metric | copied | step 10 |
    | --- | --- | --- |
    | bleu | 1.000 | 25.26 |
    | bytes |  | 1,200 |
    """
    names = list(dict.fromkeys(name for figures in columns.values() for name in figures))
    lines = ["metric", *columns], ["---"] * (len(columns) + 1)

    def written(value: float | None) -> str:
        if value is None:
            return ""
        return f"{value:,}" if isinstance(value, int) else f"{value:.{3 if abs(value) < 10 else 2}f}"

    rows = [[name, *(written(figures.get(name)) for figures in columns.values())] for name in names]
    return "\n".join(f"| {' | '.join(line)} |" for line in [*lines, *rows])


NOTES = ("event", "start", "saved", "end")  # kinds of records of what has happened, also where it was undone


def read_metrics(model_dir: str) -> list[dict]:
    """Returns all records of a run in the order of steps; for a repeated step, the last record.

    The guard's return to an earlier step takes back what was recorded after that step, and so does a training record of
    an earlier step than the last one: the run has resumed from before it.
    """
    records: dict[tuple[str, int], dict] = {}
    last_trained = -1
    path = epath.Path(model_dir) / METRICS
    if not path.exists():
        return []
    for line in read_bytes(path).splitlines():
        # Skips lines that are empty, incomplete, not text, or not a record.
        with contextlib.suppress(ValueError, KeyError, TypeError, RecursionError):
            record = json.loads(line)
            if not (isinstance(record["kind"], str) and isinstance(record["step"], int)):
                continue
            if record["kind"] == "event" and "returned_to" in record:
                records = {
                    (kind, step): earlier
                    for (kind, step), earlier in records.items()
                    if kind in NOTES or step <= record["returned_to"]
                }
            if record["kind"] == "train":
                if record["step"] <= last_trained:
                    records = {
                        (kind, step): earlier
                        for (kind, step), earlier in records.items()
                        if kind in NOTES or step < record["step"]
                    }
                last_trained = record["step"]
            records[record["kind"], record["step"]] = record
    return sorted(records.values(), key=lambda record: (record["step"], record["kind"]))
