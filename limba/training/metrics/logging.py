"""Logging of a run's figures: to the console, its log, TensorBoard and metrics.jsonl in the run directory.

Units: loss and cross entropy in nats per target token; seconds; tokens per second over all devices, without padding;
bits per byte of the targets' text, in total and by character set.

Figures are not worth a run: a full disk, or a bucket in trouble, delays them and ends nothing. Whether a step can be
saved then is the checkpoints' business.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import NamedTuple

import numpy as np
from etils import epath

from limba.config import RunConfig, SentenceError, without_credentials
from limba.config.extras import without
from limba.sharding.preemption import stop_all
from limba.storage.files import make_folder
from limba.training.metrics.console import Console, Warnings, filled, shortened
from limba.training.metrics.growing_files import LOCAL, EventFiles, Lines
from limba.training.metrics.growing_files import logger as uploads_logger
from limba.training.metrics.records import LOG, METRICS, Callback, Callbacks, bits_per_byte_by_set, duration
from limba.training.metrics.records import read_metrics as read_metrics
from limba.training.metrics.weights_and_biases import WeightsAndBiases

with without("torch", "google.cloud.storage"):  # not used here, and their imports cost seconds
    from tensorboardX import SummaryWriter, record_writer

# tensorboardX's own writer to a bucket uploads the whole file at each flush, and at the first OSError its thread ends:
# `add_scalar` would then wait for ever.
for _kind in ("gs", "file"):
    record_writer.register_writer_factory(_kind, EventFiles())


class Remaining:
    """The time up to the run's last step, or to the end of its epochs where they end earlier.

    >>> remaining = Remaining(None, 3)
    >>> remaining.seconds(10, 0.5, [0.0]), remaining.seconds(30, 0.5, [0.5])
    (None, 50.0)
    >>> remaining = Remaining(1_000, 3)  # as an upper bound
    >>> remaining.seconds(10, 0.5, [0.0]), remaining.seconds(30, 0.5, [0.5])
    (495.0, 50.0)
    """

    def __init__(self, train_steps: int | None, num_epochs: int | None):
        self._train_steps = train_steps
        self._num_epochs = num_epochs
        self._first: tuple[int, float] | None = None  # a step, and the epochs up to it, at the first call

    def seconds(self, step: int, seconds_per_step: float, epochs: Sequence[float]) -> float | None:
        """Returns the seconds from a step to the end; None if they are not known yet. `epochs` are each corpus's."""
        steps = []
        if self._train_steps is not None:
            steps.append(float(self._train_steps - step))
        if self._num_epochs is not None and epochs:
            slowest = min(epochs)  # the run ends when all corpora have been read so often
            if self._first is None:
                self._first = (step, slowest)
            first_step, first_epochs = self._first
            if slowest > first_epochs:
                steps.append((self._num_epochs - slowest) / (slowest - first_epochs) * (step - first_step))
        if not steps:
            return None
        return max(0.0, min(steps)) * seconds_per_step


class _Outputs(NamedTuple):
    """The outputs of the first process."""

    board: SummaryWriter | None
    others: WeightsAndBiases | None
    lines: Lines
    log: Lines
    console: Console


class Metrics:
    """Writes one run's figures, where `writes` is true: in the first process.

    `start` is the step that the run resumes from; `run` says what else gets the figures, by default TensorBoard. Use it
    as a context manager: on exit it flushes all files, and records that the run has ended, unless it `only_adds`
    figures to a run's.
    """

    def __init__(
        self,
        model_dir: str,
        start: int,
        train_steps: int | None,
        writes: bool,
        run: RunConfig | None = None,
        callbacks: Callbacks | None = None,
        only_adds: bool = False,
    ):
        self._only_adds = only_adds
        self.train_steps = train_steps
        self.writes = writes
        self._remaining = Remaining(train_steps, None if run is None else run.data.num_epochs)
        self._outputs: _Outputs | None = None
        self._step = start
        self._ending = ""
        self._is_stopped = False
        self._warnings = Warnings(self.detail, uploads_logger)
        self._validation_loss: float | None = None  # the last one
        self._callbacks = callbacks or Callbacks()
        self._failure: Exception | None = None  # of a callback
        self.must_stop = False  # because a callback wants it
        if writes:
            directory = epath.Path(model_dir)
            make_folder((directory / LOG).parent)
            reports = ("tensorboard",) if run is None else run.reports
            tensorboard = None
            if "tensorboard" in reports:
                tensorboard = SummaryWriter(logdir=_address(directory / "tensorboard"))
            weights_and_biases = None
            if run is not None and "wandb" in reports:
                weights_and_biases = WeightsAndBiases(run)
            self._outputs = _Outputs(
                tensorboard,
                weights_and_biases,
                Lines(str(directory / METRICS)),
                Lines(str(directory / LOG), is_copy=True),
                Console(start, train_steps),
            )
            if logging.getLogger().handlers:  # else logging prints warnings itself, until there is a handler
                logging.getLogger().addHandler(self._warnings)

    def __enter__(self) -> Metrics:
        if self._outputs is not None and self._outputs.others is not None:
            self.say(self._outputs.others.sentence)
        return self

    def __exit__(self, _: object, error: BaseException | None, *__: object) -> None:
        ending = self._ending if error is None else _in_words(error)
        if isinstance(error, SentenceError):
            error.after_step = self._step
        reason = without_credentials(ending)
        if not self._only_adds:
            self.record("end", self._step, {"reason": reason, "failed": error is not None, "stopped": self._is_stopped})
        logging.getLogger().removeHandler(self._warnings)
        for output in reversed(self._outputs or ()):
            if output is not None:
                output.close()

    def say(self, sentence: str) -> None:
        """Prints a sentence, and keeps it in the log."""
        if self._outputs is not None:
            self._outputs.console.say(sentence)
            self.detail(sentence)

    def detail(self, line: str) -> None:
        """Keeps a line in the log alone."""
        if self._outputs is not None:
            now = datetime.now(UTC).isoformat(timespec="seconds")
            self._outputs.log.append(f"{now} {without_credentials(line)}\n")

    def advance(self, step: int) -> None:
        """Moves the line of progress."""
        self._step = step
        if self._outputs is not None:
            self._outputs.console.advance(step)

    def write(self, kind: str, step: int, values: Mapping[str, float]) -> None:
        """Records numbers of a `kind`: "train", "validation" or "text"."""
        if self._outputs is None:
            return
        if self._outputs.board is not None:
            for name, value in values.items():
                self._outputs.board.add_scalar(f"{kind}/{name}", value, step)
        if self._outputs.others is not None:
            self._outputs.others.add(kind, step, values)
        self.record(kind, step, values)

    def record(self, kind: str, step: int, values: Mapping[str, object]) -> None:
        """Records something of another `kind`, in metrics.jsonl only; a full disk does not end the run for it."""
        if self._outputs is not None:
            now = datetime.now(UTC).isoformat(timespec="seconds")
            self._outputs.lines.append(json.dumps({"kind": kind, "step": step, "time": now, **values}) + "\n")

    def saved(self, step: int, path: object) -> None:
        """Records and shows that the checkpoint of a step is complete."""
        self.record("saved", step, {})
        self.detail(f"step {step:,} saved in {path}")
        if self._outputs is not None:
            self._outputs.console.saved(step, path)

    def end(self, sentence: str, is_stopped: bool) -> None:
        """Prints why the run ends before its last step, and records that at the end; also whether it was stopped."""
        self._ending = sentence
        self._is_stopped = is_stopped
        self.say(sentence)

    def upload(self) -> None:
        """Sends the lines to a bucket now, so that a killed run loses none from before its last checkpoint."""
        if self._outputs is not None:
            self._outputs.lines.upload()

    def train_line(self, step: int, values: Mapping[str, float]) -> None:
        """Writes the figures of the steps up to `step`, and shows the loss, the speed and the remaining time."""
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
        if left is not None:
            parts.append(f"ETA {duration(left)}")
        self.detail(" | ".join(parts))
        shown = [f"loss {values['loss']:.3f}"]
        if self._validation_loss is not None:
            shown.append(f"validation {self._validation_loss:.3f}")
        shown.append(f"{values['tokens_per_second']:,.0f} tokens/s")
        if left is not None:
            shown.append(f"ETA {duration(left)}")
        if self._outputs is not None:
            self._outputs.console.progress(step, " | ".join(shown))
        self._call(self._callbacks.on_log, step, values)

    def validation_line(self, step: int, values: Mapping[str, float]) -> None:
        """Writes and prints the figures of the validation split."""
        self.write("validation", step, values)
        self._validation_loss = values["loss"]
        parts = [f"loss {values['loss']:.4f}", f"token accuracy {values['accuracy']:.1%}"]
        # A row of a terminal has no room for it.
        self.detail(f"step {step:,} validation perplexity {values['perplexity']:.2f}")
        if "bits_per_byte" in values:  # the pieces of some vocabularies do not say their bytes
            parts.append(f"{values['bits_per_byte']:.3f} bits per byte")
        self.say(f"step {step:,} validation: {' | '.join(parts)}")
        self.detail(f"step {step:,} validation took {values['seconds']:.1f} s")
        if by_set := bits_per_byte_by_set(values):
            self.detail(f"step {step:,} bits per byte: {' | '.join(by_set)}")

    def text_line(self, step: int, values: Mapping[str, float], copied: Mapping[str, float] | None = None) -> None:
        """Writes and prints the metrics of generated text, each beside `copied`, that metric of the inputs."""
        self.write("text", step, values)
        parts = []
        for name, value in values.items():
            if name.startswith("letter/"):
                continue
            floor = f" (the input, copied: {copied[name]:.2f})" if copied and name in copied else ""
            parts.append(f"{name} {value:.2f}{floor}")
        self.say(f"step {step:,} text: {' | '.join(parts)}")

    def samples(
        self, step: int, texts: Mapping[str, Sequence[str]], hidden: Mapping[str, Sequence[str]] | None = None
    ) -> None:
        """Writes the texts that the model generated for each prompt, and prints one of them: of the shortest prompt.

        `hidden` are the words that stood in the gaps of a prompt, where these are known.
        """
        if self._outputs is None:
            return
        hidden = hidden or {}
        if self._outputs.others is not None:
            self._outputs.others.add_texts(step, texts)
        shortest = min(texts, key=len, default=None)  # the row has most room for what was written
        row = ""
        for number, (prompt, several) in enumerate(texts.items()):
            if self._outputs.board is not None:
                self._outputs.board.add_text(f"samples/{number}", "\n\n".join(several), step)
            for text in several:
                self.detail(f"step {step:,} sample for {prompt!r}: {text}")
            if prompt == shortest and several:
                row = filled(prompt, several[0], hidden.get(prompt, ())) or several[0]
        if row:
            self._outputs.console.say(shortened(f"step {step:,} sample: {' '.join(row.split())}"))
        known = {"hidden": {prompt: list(words) for prompt, words in hidden.items()}} if hidden else {}
        self.record("samples", step, {"texts": dict(texts), **known})

    def evaluated(self, step: int, values: Mapping[str, float]) -> None:
        """Gives the callback the figures of the validation split and of generated text."""
        self._call(self._callbacks.on_evaluation, step, values)

    def _call(self, callback: Callback | None, step: int, values: Mapping[str, float]) -> None:
        if callback is None or not self.writes:
            return
        try:
            answer = callback(step, {name: float(value) for name, value in values.items()})
            stops = isinstance(answer, bool | np.bool) and not answer  # None, of a function without return, goes on
        except Exception as error:  # noqa: BLE001  it is the user's, and raised when the step is saved
            self._failure = error
            stops = True
        if stops and not self.must_stop:
            self.must_stop = stop_all()

    def check_callbacks(self) -> None:
        """Raises the error of a callback, if there was one."""
        if self._failure is not None:
            raise self._failure


def _address(path: epath.Path) -> str:
    return str(path) if "://" in str(path) else f"{LOCAL}{os.path.abspath(path)}"


def _in_words(error: BaseException) -> str:
    if isinstance(error, SentenceError):
        return str(error)
    words = " ".join(str(error).split())[:300]
    return f"{type(error).__name__}: {words}" if words else type(error).__name__
