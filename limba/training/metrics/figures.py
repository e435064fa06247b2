"""The introduction of a run, and the figures of each logged line."""

import contextlib
import io
import math
import os
import platform
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import cast

import jax
import numpy as np
import psutil
from etils import epath

from limba import tool_registry
from limba.config import NonFiniteError, RunConfig, reason_of
from limba.config.schedule import AUTO, AUTO_STEPS
from limba.model.kernels.choose import unfit
from limba.sharding.consistency import installed
from limba.sharding.others import OTHERS
from limba.storage.files import as_typed_here, write_whole
from limba.training.metrics.flops import flops_per_sequence, peak_flops_per_device
from limba.training.metrics.logging import Metrics
from limba.training.metrics.records import LOG, duration
from limba.training.reading import ShardRows
from limba.training.step import StepMetrics

AVERAGED = ("loss", "cross_entropy", "accuracy")  # over the target tokens of all steps
SIDES = ("inputs", "targets")  # of a row
LINES_PER_COUNT = 1_000  # logged lines after which the counts of rows are recorded again
PROGRAMS = ("limba", "jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "seqio", "tensorflow", "numpy", "libtpu")
LAST = ("learning_rate", "gradient_norm", "parameter_norm", "update_norm")  # of the last step


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
        self._steps: list[tuple[int, ShardRows, StepMetrics]] = []
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

    def add(self, step: int, rows: ShardRows, metrics: StepMetrics) -> None:
        """Adds a step; its metrics may still be computing on the devices."""
        self._steps.append((step, rows, metrics))

    def forget(self, step: int) -> None:
        """Leaves a step out of the figures."""
        self._steps = [entry for entry in self._steps if entry[0] != step]

    def __len__(self) -> int:
        return len(self._steps)

    def figures(
        self, epochs: Mapping[str, float], saved_steps: Sequence[int], tokens: Mapping[str, float] | None = None
    ) -> dict[str, float]:
        """Waits for the devices and returns the figures of the steps; NonFiniteError if one is not finite.

        `epochs` has the epochs of each task so far, nan or 0 where they are not known; `tokens` the tokens of each
        task of a mixture. The error names the newest of `saved_steps`.
        """
        fetched = jax.device_get([metrics for _, _, metrics in self._steps])
        seconds = time.monotonic() - self._began
        number = len(fetched)
        for (step, rows, _), values in zip(self._steps, fetched, strict=True):
            checked = (values["loss"], values["gradient_norm"], values["update_norm"])
            if not all(map(math.isfinite, checked)):
                raise NonFiniteError(_report(self._config.model_dir, step, rows, values, saved_steps))
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
        if memory := jax.local_devices()[0].memory_stats():  # None on a CPU
            figures["hbm_peak_gib"] = memory["peak_bytes_in_use"] / 2**30
        figures["host_memory_gib"] = psutil.Process().memory_info().rss / 2**30
        self._count_rows(*self._steps[-1][:2])
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


def facts(config: RunConfig, num_parameters: int, lengths: Mapping[str, int], num_devices: int) -> dict[str, object]:
    """Returns the record of a start in metrics.jsonl: the sizes of the run, its devices, the versions of programs."""
    inputs, targets = sides(config, lengths)
    flops = flops_per_row(config, lengths) * config.data.batch_size
    return {
        "parameters": num_parameters,
        "rows_per_step": config.data.batch_size,
        "inputs_length": inputs,
        "targets_length": targets,
        "flops_per_step": flops,
        "environment": {
            "devices": f"{num_devices} x {jax.devices()[0].device_kind}",
            "processes": jax.process_count(),
            "cores of the first process": os.cpu_count(),
            "system": f"{platform.system()} {platform.release()} {platform.machine()}",
            "Python": platform.python_version(),
            **installed(PROGRAMS),
        },
    }


def introduction(config: RunConfig, num_parameters: int, start: int) -> Iterator[str]:
    """Yields the sentences that introduce a run on the console before its first step."""
    devices = jax.devices()
    where = f"resumes at step {start:,}" if start else "starts"
    end = f"up to step {config.train_steps:,}" if config.train_steps else f"for {config.data.num_epochs} epochs"
    processes = f" in {jax.process_count()} processes" if jax.process_count() > 1 else ""
    directory = as_typed_here(config.model_dir)
    machine = f"{len(devices)} x {devices[0].device_kind}{processes}"
    yield f"{directory} {where}, {end}: {num_parameters:,} parameters on {machine}"
    if sys.stdout.isatty():  # elsewhere the rows themselves are kept in a log
        yield f"all lines go to {directory}/{LOG}"
    if sentence := unfit(config.model, devices[0]):
        yield sentence
    limit = (jax.local_devices()[0].memory_stats() or {}).get("bytes_limit")  # None for the devices of a CPU
    check = tool_registry.find("check")
    if limit and check:
        yield from check.of_memory(config, devices, limit)
    if (schedule := config.optimizer.schedule).base_learning_rate == AUTO:
        steps = schedule.planned_steps or config.train_steps or 1
        least, most = AUTO_STEPS
        if not least <= steps <= most:
            yield (
                f"The highest learning rate is {schedule.in_steps(steps).base_learning_rate:.3g}, by 'auto' for"
                f" {steps:,} steps; its rule was found for {least:,} to {most:,} and is unproven here: see that |param|"
                " does not grow tenfold."
            )


def details(config: RunConfig, lengths: Mapping[str, int], start: int) -> Iterator[str]:
    """Yields the lines that follow the introduction in the log alone."""
    inputs, targets = sides(config, lengths)
    tokens = f"{inputs} inputs and {targets} targets" if inputs else f"{targets} tokens"
    predicted = config.data.num_predicted
    of_them = f", {config.data.batch_size * predicted:,} predicted at most" if predicted else ""
    yield f"A step has {config.data.batch_size} rows of {tokens}{of_them}."
    yield f"The text is read in {config.data.num_data_shards} data shards."
    if (schedule := config.optimizer.schedule).base_learning_rate == AUTO:
        steps = schedule.planned_steps or config.train_steps or 1
        yield f"The highest learning rate is {schedule.in_steps(steps).base_learning_rate:.3g}, by 'auto'."
    if config.train_steps is None or start < config.train_steps:
        yield "Compiling the step; the first line follows it."


def sides(config: RunConfig, lengths: Mapping[str, int]) -> tuple[int, int]:
    """Returns the lengths of the encoder's and the decoder's rows; a decoder-only model reads one sequence."""
    length = config.data.sequence_length
    return (0, length) if length is not None else (lengths["inputs"], lengths["targets"])


def flops_per_row(config: RunConfig, lengths: Mapping[str, int]) -> float:
    """Returns the FLOPs of training on a row."""
    return flops_per_sequence(config.model, *sides(config, lengths), config.data.num_predicted)


def advice_on(config: RunConfig, num_steps: int, step: int, figures: Mapping[str, float]) -> str:
    """Returns what the figures of `num_steps` steps up to `step` advise; "" if nothing."""
    on_data = waiting_advice(num_steps, figures["data_wait"], config.data.num_reader_processes)
    on_job = job_advice(config, num_steps, step, figures["seconds_per_step"])
    return " ".join(advice for advice in (on_data, on_job) if advice)


def waiting_advice(num_steps: int, data_wait: float, num_processes: int) -> str:
    """Returns advice if the devices waited for data in 10 or more steps and the host has free cores; else "".

    >>> waiting_advice(9, 0.5, 1) or waiting_advice(100, 0.09, 1) or waiting_advice(100, 0.5, 1_000)
    ''
    """
    num_cores = os.cpu_count() or 1
    if num_steps < 10 or data_wait < 0.1 or num_processes >= num_cores:
        return ""
    return (
        f"The devices wait for data {data_wait:.0%} of the time; raise DataConfig.num_reader_processes, which is"
        f" {num_processes} on this host of {num_cores} cores."
    )


def job_advice(config: RunConfig, num_steps: int, step: int, seconds_per_step: float) -> str:
    """Returns advice if a job of Slurm ends before the next checkpoint of a run is due; else "".

    The job's variables say when it ends. A job that is told to end saves; one whose node fails does not.
    """
    end = os.environ.get("SLURM_JOB_END_TIME", "")
    every = config.checkpoint.every_steps
    if num_steps < 10 or not end.isdigit() or isinstance(every, str):  # an epoch, whose steps are not known here
        return ""
    steps = every - step % every
    if config.train_steps is not None:
        steps = min(steps, config.train_steps - step)
    left = int(end) - time.time()
    due = steps * seconds_per_step
    if due <= left:
        return ""
    return (
        f"The job ends in {duration(max(left, 0))}, and the next checkpoint is due in {duration(due)}"
        f" (CheckpointConfig.every_steps is {every:,}): a node that fails would lose all steps until then; save more"
        " often, or ask for more time."
    )


def _report(model_dir: str, step: int, rows: ShardRows, values: Mapping[str, float], saved_steps: Sequence[int]) -> str:
    """Saves this process's rows of the failed step; returns the error message."""
    saved = f"the checkpoint at step {saved_steps[-1]} is good" if saved_steps else "nothing was saved"
    path = epath.Path(model_dir) / f"non_finite_step_{step}_process_{jax.process_index()}.npz"
    arrays = {f"{feature}/{shard}": array for shard, part in rows.items() for feature, array in part.items()}
    try:
        content = io.BytesIO()
        np.savez(content, **cast(dict, arrays))  # numpy's hints let a name be `allow_pickle`
        write_whole(path, content.getvalue())
        written = f"its batch is in {path}"
    except Exception as error:  # noqa: BLE001  the sentence is worth more than the file
        written = f"its batch cannot be written to {path} ({reason_of(error)})"
    return (
        f"Step {step} gave loss {values['loss']:.6g}, gradient norm {values['gradient_norm']:.6g} and update norm"
        f" {values['update_norm']:.6g}; {written}, {saved}: lower ScheduleConfig.base_learning_rate, or"
        " look at the batch."
    )
