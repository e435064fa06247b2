"""Logging of a run's figures: to the console, TensorBoard and metrics.jsonl in the run directory.

Units: loss and cross entropy in nats per target token; seconds; tokens per second over all devices, without padding;
bits per byte of the targets' text, in total and by character set.
"""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

from etils import epath
from tqdm import tqdm

from limba.config.secrets import without_credentials

# Where torch is installed, tensorboardX would import it for one annotation; that takes two seconds.
_no_torch = "torch" not in sys.modules
if _no_torch:
    sys.modules["torch"] = None  # pyright: ignore[reportArgumentType]  an import of it then fails
from tensorboardX import SummaryWriter  # noqa: E402

if _no_torch:
    del sys.modules["torch"]


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
    """Returns a short text about each character set of the validation text.

    >>> figures = {"bits_per_byte/kanji": 2.5, "bytes/kanji": 30, "bits_per_byte/other": 1, "bytes/other": 10}
    >>> bits_per_byte_by_set(figures)
    ['kanji 2.500 (75 % of the bytes)', 'other 1.000 (25 %)']
    """
    counts = {name.partition("/")[2]: count for name, count in values.items() if name.startswith("bytes/")}
    shares = {name: f"{count / sum(counts.values()):.0%}".replace("%", " %") for name, count in counts.items()}
    return [
        f"{name} {values[f'bits_per_byte/{name}']:.3f} ({share}{' of the bytes' if not number else ''})"
        for number, (name, share) in enumerate(shares.items())
    ]


class _Outputs(NamedTuple):
    """The outputs of the first process."""

    board: SummaryWriter
    lines: _JsonLines
    bar: tqdm


class Metrics:
    """Writes one run's figures, where `writes` is true: in the first process.

    `start` is the step that the run resumes from. Use it as a context manager: on exit it flushes all files.
    """

    def __init__(self, model_dir: str, start: int, train_steps: int, writes: bool):
        self.train_steps, self.writes = train_steps, writes
        self._outputs: _Outputs | None = None
        if writes:
            directory, hidden = epath.Path(model_dir), not sys.stderr.isatty()
            self._outputs = _Outputs(
                SummaryWriter(logdir=str(directory / "tensorboard")),
                _JsonLines(directory),
                tqdm(total=train_steps, initial=start, unit="step", disable=hidden, dynamic_ncols=True),
            )

    def __enter__(self) -> Metrics:
        return self

    def __exit__(self, *_: object) -> None:
        for output in reversed(self._outputs or ()):
            output.close()

    def say(self, text: str) -> None:
        """Prints a sentence, above the progress bar if there is one."""
        if self.writes:
            tqdm.write(without_credentials(text), file=sys.stdout)
            sys.stdout.flush()

    def advance(self, step: int) -> None:
        """Moves the progress bar."""
        if self._outputs is not None:
            self._outputs.bar.update(step - self._outputs.bar.n)

    def write(self, kind: str, step: int, values: Mapping[str, float]) -> None:
        """Records numbers of a `kind`: "train", "validation" or "text"."""
        if self._outputs is None:
            return
        for name, value in values.items():
            self._outputs.board.add_scalar(f"{kind}/{name}", value, step)
        self._outputs.lines.append({"kind": kind, "step": step, "time": _now(), **values})

    def event(self, step: int, values: Mapping[str, Any]) -> None:
        """Records something that happened at a step, in metrics.jsonl only."""
        if self._outputs is not None:
            self._outputs.lines.append({"kind": "event", "step": step, "time": _now(), **values})

    def train_line(self, step: int, values: Mapping[str, float]) -> None:
        """Writes and prints the figures of the steps up to `step`."""
        self.write("train", step, values)
        parts = [
            f"step {step:,}/{self.train_steps:,}",
            f"loss {values['loss']:.4f}",
            f"lr {values['learning_rate']:.2e}",
            f"|grad| {values['gradient_norm']:.3g}",
            f"|param| {values['parameter_norm']:.4g}",
            f"|update| {values['update_norm']:.3g}",
            f"{values['tokens_per_second']:,.0f} tokens/s",
            f"{values['sequences_per_second_per_device']:,.1f} sequences/s/chip",
            f"data wait {values['data_wait']:.0%}",
        ]
        epochs = {name.partition("/")[2]: value for name, value in values.items() if name.startswith("epochs/")}
        parts += [f"{value:.2f} epochs{' of ' + name if len(epochs) > 1 else ''}" for name, value in epochs.items()]
        if "mfu" in values:
            parts.append(f"MFU {values['mfu']:.1%}")
        if "hbm_peak_gib" in values:
            parts.append(f"HBM {values['hbm_peak_gib']:.1f} GiB")
        left = (self.train_steps - step) * values["seconds_per_step"]
        self.say(" | ".join([*parts, f"ETA {duration(left)}"]))

    def validation_line(self, step: int, values: Mapping[str, float]) -> None:
        """Writes and prints the figures of the validation split."""
        self.write("validation", step, values)
        self.say(
            f"step {step:,} validation: loss {values['loss']:.4f} | token accuracy {values['accuracy']:.1%}"
            f" | perplexity {values['perplexity']:.2f} | {values['bits_per_byte']:.3f} bits per byte"
            f" | {values['seconds']:.1f} s"
        )
        if by_set := bits_per_byte_by_set(values):
            self.say(f"step {step:,} bits per byte: {' | '.join(by_set)}")

    def text_line(self, step: int, values: Mapping[str, float]) -> None:
        """Writes and prints the metrics of generated text."""
        self.write("text", step, values)
        figures = [f"{name} {value:.2f}" for name, value in values.items() if not name.startswith("letter/")]
        self.say(f"step {step:,} text: {' | '.join(figures)}")

    def samples(self, step: int, texts: Mapping[str, Sequence[str]]) -> None:
        """Writes and prints the texts that the model generated for each prompt."""
        if self._outputs is None:
            return
        for number, (prompt, several) in enumerate(texts.items()):
            self._outputs.board.add_text(f"samples/{number}", "\n\n".join(several), step)
            for text in several:
                self.say(f"step {step:,} sample for {prompt!r}: {text}")
        self._outputs.lines.append({"kind": "samples", "step": step, "time": _now(), "texts": dict(texts)})


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


class _JsonLines:
    """metrics.jsonl. Objects in a bucket cannot grow: there each start has its own file, uploaded every minute."""

    def __init__(self, directory: epath.Path):
        self._local = "://" not in str(directory)
        name = "metrics.jsonl" if self._local else f"metrics-{int(time.time())}.jsonl"
        self._path = directory / name
        self._file = open(self._path, "a+", encoding="utf-8") if self._local else None
        if self._file is not None and self._file.tell():
            self._file.write("\n")  # ends a line that a killed run left incomplete
        self._written, self._records = time.monotonic(), []

    def append(self, record: dict) -> None:
        line = json.dumps(record) + "\n"
        if self._file is not None:
            self._file.write(line)
            self._file.flush()
            return
        self._records.append(line)
        if time.monotonic() - self._written > 60:
            self._upload()

    def _upload(self) -> None:
        self._path.write_text("".join(self._records))
        self._written = time.monotonic()

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
        elif self._records:
            self._upload()


def read_metrics(model_dir: str) -> list[dict]:
    """Returns all records of a run in the order of steps; of a repeated step, the last record.

    The guard's return to an earlier step takes back what was recorded after that step.
    """
    records: dict[tuple[str, int], dict] = {}
    for path in sorted(epath.Path(model_dir).glob("metrics*.jsonl")):
        for line in path.read_bytes().splitlines():
            # Skipped are lines that are empty, incomplete, not text, or no record.
            with contextlib.suppress(ValueError, KeyError, TypeError, RecursionError):
                record = json.loads(line)
                if not (isinstance(record["kind"], str) and isinstance(record["step"], int)):
                    continue
                if record["kind"] == "event" and "returned_to" in record:
                    records = {at: r for at, r in records.items() if at[0] == "event" or at[1] <= record["returned_to"]}
                records[record["kind"], record["step"]] = record
    return sorted(records.values(), key=lambda record: (record["step"], record["kind"]))
