"""The steps since the last logged line, and their figures: means over tokens, speed, and the time spent waiting."""

import contextlib
import io
import math
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple, cast

import jax
import numpy as np
import psutil
from etils import epath

from limba.config import NonFiniteError, RunConfig, reason_of
from limba.data.stream.names import NO_DOCUMENTS, BatchDocuments, in_parentheses
from limba.sharding.others import OTHERS
from limba.storage.files import write_whole
from limba.training.metrics.flops import flops_per_row, peak_flops_per_device
from limba.training.metrics.logging import Metrics
from limba.training.row_reader import ShardRows
from limba.training.step import StepMetrics

AVERAGED = ("loss", "cross_entropy", "accuracy")  # over the target tokens of all steps
LAST = ("learning_rate", "gradient_norm", "parameter_norm", "update_norm")  # of the last step
SIDES = ("inputs", "targets")  # of a row
MOST_NAMED = 3  # documents in one sentence
MOST_BYTES = 1 << 28  # of a unit that are read to name a document: the run waits some seconds for them
LINES_PER_COUNT = 1_000  # logged lines after which the counts of rows are recorded again


class RecentStep(NamedTuple):
    """A step since the last logged line."""

    step: int
    rows: ShardRows
    metrics: StepMetrics  # on the devices
    documents: BatchDocuments  # of the rows


class RecentSteps:
    """The steps since the last logged line: their batches, their metrics on the devices, and the time they took.

    `metrics` gets the lengths of some steps' rows.
    """

    def __init__(self, config: RunConfig, lengths: Mapping[str, int], num_devices: int, metrics: Metrics):
        self._config = config
        self._num_devices = num_devices
        self.metrics = metrics
        self._row_lengths = dict[str, Counter[int]]()  # by side: how many rows have how many tokens
        self._num_lines = 0
        self._seconds_at_peak: float | None = None  # of a step, if the devices reached their peak: for MFU
        peak = peak_flops_per_device()
        if peak:
            self._seconds_at_peak = flops_per_row(config, lengths) * config.data.batch_size / (peak * num_devices)
        self.restart()

    def restart(self) -> None:
        """Forgets the steps and starts the clock again."""
        self._steps: list[RecentStep] = []
        self._waited = 0.0  # seconds for data
        self._began = time.monotonic()

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        """Counts the time inside as waiting for data."""
        began = time.monotonic()
        yield
        seconds = time.monotonic() - began
        self._waited += seconds
        OTHERS.waited(seconds)

    @contextlib.contextmanager
    def apart(self) -> Iterator[None]:
        """Leaves the time inside out of the steps' time."""
        began = time.monotonic()
        yield
        self._began += time.monotonic() - began

    def add(self, step: int, rows: ShardRows, metrics: StepMetrics, documents: BatchDocuments = NO_DOCUMENTS) -> None:
        """Adds a step, and the documents of its rows; its metrics may still be computing on the devices."""
        self._steps.append(RecentStep(step, rows, metrics, documents))

    def forget(self, step: int) -> None:
        """Leaves a step out of the figures."""
        self._steps = [entry for entry in self._steps if entry.step != step]

    def __len__(self) -> int:
        return len(self._steps)

    def figures(
        self, epochs: Mapping[str, float], saved_steps: Sequence[int], tokens: Mapping[str, float] | None = None
    ) -> dict[str, float]:
        """Waits for the devices and returns the figures of the steps; NonFiniteError if one is not finite.

        `epochs` has the epochs of each task so far, nan or 0 where they are not known; `tokens` the tokens of each
        task of a mixture. The error names the newest of `saved_steps`.
        """
        fetched = jax.device_get([entry.metrics for entry in self._steps])
        seconds = time.monotonic() - self._began
        number = len(fetched)
        for entry, values in zip(self._steps, fetched, strict=True):
            checked = (values["loss"], values["gradient_norm"], values["update_norm"])
            if not all(map(math.isfinite, checked)):
                raise NonFiniteError(report(self._config.model_dir, entry, values, saved_steps))
        targets = np.array([values["target_tokens"] for values in fetched])
        weights = targets / max(targets.sum(), 1.0)  # a mean over tokens, not over steps
        all_tokens = float(targets.sum()) + sum(float(values["input_tokens"]) for values in fetched)
        figures = {
            **{name: float(np.dot([values[name] for values in fetched], weights)) for name in AVERAGED},
            **{name: float(fetched[-1][name]) for name in LAST},
            "seconds_per_step": seconds / number,
            "tokens_per_second": all_tokens / seconds,
            "sequences_per_second_per_device": self._config.data.batch_size * number / seconds / self._num_devices,
            "data_wait": self._waited / seconds,
            **{f"epochs/{name}": value for name, value in epochs.items() if value > 0},
            **{f"tokens/{name}": float(round(value)) for name, value in (tokens or {}).items()},
        }
        memory = jax.local_devices()[0].memory_stats()  # None on a CPU
        if memory:
            figures["hbm_peak_gib"] = memory["peak_bytes_in_use"] / 2**30
        figures["host_memory_gib"] = psutil.Process().memory_info().rss / 2**30
        self._count_rows(self._steps[-1].step, self._steps[-1].rows)
        if self._seconds_at_peak is not None:
            figures["mfu"] = self._seconds_at_peak / figures["seconds_per_step"]
        return figures

    def _count_rows(self, step: int, rows: ShardRows) -> None:
        """Counts the rows of this process by their tokens, and records the counts: seldom, as they grow."""
        for part in rows.values():
            for side in SIDES:
                if side in part:
                    self._row_lengths.setdefault(side, Counter()).update(np.count_nonzero(part[side], -1).tolist())
        self._num_lines += 1
        is_power_of_2 = self._num_lines & (self._num_lines - 1) == 0
        if is_power_of_2 or self._num_lines % LINES_PER_COUNT == 0:
            counts = {side: sorted(lengths.items()) for side, lengths in self._row_lengths.items()}
            self.metrics.record("row_lengths", step, {"rows": counts})


def report(model_dir: str, failed: RecentStep, values: Mapping[str, float], saved_steps: Sequence[int]) -> str:
    """Saves this process's rows of the failed step; returns the error message, which names their first documents."""
    saved = f"the checkpoint at step {saved_steps[-1]} is good" if saved_steps else "nothing was saved"
    path = epath.Path(model_dir) / f"non_finite_step_{failed.step}_process_{jax.process_index()}.npz"
    arrays: dict[str, np.ndarray] = {}
    for shard, part in failed.rows.items():
        arrays |= {f"{feature}/{shard}": array for feature, array in part.items()}
    names = in_parentheses(*failed.documents.some(MOST_NAMED, MOST_BYTES))
    try:
        content = io.BytesIO()
        np.savez(content, **cast(dict, arrays))  # numpy's hints let a name be `allow_pickle`
        write_whole(path, content.getvalue())
        written = f"its batch{names} is in {path}"
    except Exception as error:  # noqa: BLE001  the sentence is worth more than the file
        written = f"its batch{names} cannot be written to {path} ({reason_of(error)})"
    return (
        f"Step {failed.step} gave loss {values['loss']:.6g}, gradient norm {values['gradient_norm']:.6g} and update"
        f" norm {values['update_norm']:.6g}; {written}, {saved}: lower ScheduleConfig.base_learning_rate, or"
        " look at the batch."
    )
