"""Logging of a run's figures: to the console, TensorBoard and metrics.jsonl in the run directory.

Units: loss and cross entropy in nats per target token; seconds; tokens per second over all devices, without padding;
bits per byte of the targets' text, in total and by character set.
"""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple, TextIO

from etils import epath
from tqdm import tqdm

from limba.config import RunConfig
from limba.config.secrets import without_credentials
from limba.storage import growing
from limba.training.metrics.bucket import EventFiles, LinesInBucket
from limba.training.metrics.weights_and_biases import WeightsAndBiases

METRICS = "metrics.jsonl"

# Where torch is installed, tensorboardX would import it for one annotation; that takes two seconds.
_no_torch = "torch" not in sys.modules
if _no_torch:
    sys.modules["torch"] = None  # pyright: ignore[reportArgumentType]  an import of it then fails
from tensorboardX import SummaryWriter, record_writer  # noqa: E402

if _no_torch:
    del sys.modules["torch"]
record_writer.register_writer_factory("gs", EventFiles())  # its own uploads the whole file at each flush


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


class Remaining:
    """The time that is left: up to the run's last step, or where that is not known, to the end of its epochs.

    >>> remaining = Remaining(None, 3)
    >>> remaining.seconds(10, 0.5, [0.0]), remaining.seconds(30, 0.5, [0.5])
    (None, 50.0)
    """

    def __init__(self, train_steps: int | None, num_epochs: int | None):
        self._train_steps, self._num_epochs = train_steps, num_epochs
        self._before: tuple[int, float] | None = None

    def seconds(self, step: int, seconds_per_step: float, epochs: Sequence[float]) -> float | None:
        """Returns the seconds left after a step; None if they are not known yet."""
        found = [] if self._train_steps is None else [float(self._train_steps - step)]
        if self._num_epochs is not None and epochs:
            (first, begun), now = self._before or (step, min(epochs)), min(epochs)
            self._before = (first, begun)
            if now > begun:
                found.append((self._num_epochs - now) / (now - begun) * (step - first))
        return max(0.0, min(found)) * seconds_per_step if found else None


class _Outputs(NamedTuple):
    """The outputs of the first process."""

    board: SummaryWriter | None
    others: WeightsAndBiases | None
    lines: _JsonLines
    bar: tqdm


class Metrics:
    """Writes one run's figures, where `writes` is true: in the first process.

    `start` is the step that the run resumes from; `run` says what else gets the figures, by default TensorBoard. Use it
    as a context manager: on exit it flushes all files.
    """

    def __init__(
        self,
        model_dir: str,
        start: int,
        train_steps: int | None,
        writes: bool,
        num_epochs: int | None = None,
        run: RunConfig | None = None,
    ):
        self.train_steps, self.writes = train_steps, writes
        self._remaining = Remaining(train_steps, num_epochs)
        self._outputs: _Outputs | None = None
        if writes:
            directory, hidden = epath.Path(model_dir), not sys.stderr.isatty()
            reports = ("tensorboard",) if run is None else run.reports
            self._outputs = _Outputs(
                SummaryWriter(logdir=str(directory / "tensorboard")) if "tensorboard" in reports else None,
                WeightsAndBiases(run) if run is not None and "wandb" in reports else None,
                _JsonLines(directory),
                tqdm(total=train_steps, initial=start, unit="step", disable=hidden, dynamic_ncols=True),
            )

    def __enter__(self) -> Metrics:
        if self._outputs is not None and self._outputs.others is not None:
            self.say(self._outputs.others.sentence)
        return self

    def __exit__(self, *_: object) -> None:
        for output in reversed(self._outputs or ()):
            if output is not None:
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
        if self._outputs.board is not None:
            for name, value in values.items():
                self._outputs.board.add_scalar(f"{kind}/{name}", value, step)
        if self._outputs.others is not None:
            self._outputs.others.add(kind, step, values)
        self._outputs.lines.append({"kind": kind, "step": step, "time": _now(), **values})

    def event(self, step: int, values: Mapping[str, Any]) -> None:
        """Records something that happened at a step, in metrics.jsonl only."""
        if self._outputs is not None:
            self._outputs.lines.append({"kind": "event", "step": step, "time": _now(), **values})

    def upload(self) -> None:
        """Sends the lines to a bucket now, so that a killed run loses none from before its last checkpoint."""
        if self._outputs is not None:
            self._outputs.lines.upload()

    def train_line(self, step: int, values: Mapping[str, float]) -> None:
        """Writes and prints the figures of the steps up to `step`."""
        self.write("train", step, values)
        parts = [
            f"step {step:,}/{self.train_steps:,}" if self.train_steps else f"step {step:,}",
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
        left = self._remaining.seconds(step, values["seconds_per_step"], list(epochs.values()))
        self.say(" | ".join([*parts, *([] if left is None else [f"ETA {duration(left)}"])]))

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
        if self._outputs.others is not None:
            self._outputs.others.add_texts(step, texts)
        for number, (prompt, several) in enumerate(texts.items()):
            if self._outputs.board is not None:
                self._outputs.board.add_text(f"samples/{number}", "\n\n".join(several), step)
            for text in several:
                self.say(f"step {step:,} sample for {prompt!r}: {text}")
        self._outputs.lines.append({"kind": "samples", "step": step, "time": _now(), "texts": dict(texts)})


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


class _JsonLines:
    """metrics.jsonl, local or at gs://…."""

    def __init__(self, directory: epath.Path):
        path = directory / METRICS
        if "://" in str(directory):
            self._output: LinesInBucket | TextIO = LinesInBucket(str(path))
            return
        self._output = open(path, "a+", encoding="utf-8")
        if self._output.tell():
            self._output.write("\n")  # ends a line that a killed run left incomplete

    def append(self, record: dict) -> None:
        line = json.dumps(record) + "\n"
        if isinstance(self._output, LinesInBucket):
            self._output.append(line)
        else:
            self._output.write(line)
            self._output.flush()

    def upload(self) -> None:
        if isinstance(self._output, LinesInBucket):
            self._output.upload()

    def close(self) -> None:
        self._output.close()


def read_metrics(model_dir: str) -> list[dict]:
    """Returns all records of a run in the order of steps; of a repeated step, the last record.

    The guard's return to an earlier step takes back what was recorded after that step.
    """
    records: dict[tuple[str, int], dict] = {}
    for path in _files(epath.Path(model_dir)):
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


def _files(directory: epath.Path) -> list[epath.Path]:
    """Returns metrics.jsonl, after the files of each start that earlier versions wrote in buckets."""
    found = sorted(directory.glob("metrics*.jsonl"))
    tail = directory / (METRICS + growing.TAIL)
    return [*found, tail] if "://" in str(directory) and tail.exists() else found
