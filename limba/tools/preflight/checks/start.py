"""The cheap half of a preflight, with which each run begins: it reads no text, and takes well under two seconds.

What a check needs is imported in it: the status of a run asks for this machine alone, and wants no TensorFlow.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

from limba.config import RunConfig, SentenceError, StorageError
from limba.tools.preflight.checks.verdict import Line, Section


class Device(Protocol):
    """What is asked of a device of jax."""

    device_kind: str
    platform: str
    process_index: int


def at_start(config: RunConfig, names: Mapping[str, str]) -> list[str]:
    """Returns a line for each thing that the cheap half of a preflight finds wrong with a run that starts."""
    lines = Section("", found_wrong(config)).worded(names).lines
    return [f"{line.text} Fix: {'; '.join(line.fixes({}).splitlines())}" for line in lines]


def of_memory(config: RunConfig, devices: Sequence[Device], limit: float) -> list[str]:
    """Returns the findings about a step's memory, by arithmetic, on these devices of jax, each with `limit` bytes."""
    from limba.config import hardware
    from limba.tools.preflight.checks.estimate import memory_lines
    from limba.tools.preflight.compiled.topologies import Topology

    full = devices[0].device_kind
    chip = hardware.of_device_kind(full)
    hosts = len({device.process_index for device in devices})
    peak = 0.0 if chip is None else chip.tflops * 1e12
    name = f"{full}-{len(devices)}"
    here = Topology(name, devices[0].platform, len(devices), hosts, limit / 2**30, peak, chip=chip)
    said = []
    for line in memory_lines(config, here, False, {}):
        sentence = line.text.partition("\n")[0]  # the log has no table of other choices
        fix = line.fixes({})
        said.append(f"{sentence} Fix: {fix}" if fix else sentence)
    return said


def of_this_machine(pid: int | None) -> list[str]:
    """Returns what a preflight would say against the next start here of a run; `pid` is the process that trains it."""
    from limba.tools.preflight.checks.environment import wrong_for_a_start

    return [f"{line.level:<12} {line.text} Fix: {line.fixes({})}" for line in wrong_for_a_start(pid)]


def found_wrong(config: RunConfig) -> list[Line]:
    """Returns what is wrong with a run that can start: its changes, vocabulary, and schedule.

    Errors that stop the run are reported by the run itself: this function raises nothing.
    """
    from limba.tools.preflight.checks.objective import schedule_warnings

    lines = list[Line]()
    for check in (_changed, schedule_warnings, _vocabulary):
        with contextlib.suppress(SentenceError, StorageError, OSError, ValueError):
            lines += [line for line in check(config) if line.level == "warning"]
    return lines


def _changed(config: RunConfig) -> Iterator[Line]:
    """Yields one line about what a resumed run would learn differently than before."""
    from limba.api import RunDirectory
    from limba.tools.preflight.checks.differences import differences, saved_run

    saved = saved_run(config.model_dir) if "://" not in config.model_dir else None
    if saved is None or not RunDirectory(config.model_dir).checkpoints():
        return
    changes = [difference for difference in differences(config, saved) if not difference.is_free]
    if changes:
        text = "; ".join(map(str, changes))
        yield Line(
            "warning", f"This resumed run is changed: {text}.", (changes[0].field, changes[0].before), "changed-run"
        )


def _vocabulary(config: RunConfig) -> Iterator[Line]:
    """Yields what rows without a piece cost, if the vocabulary is a local file."""
    from limba.api import PieceTable
    from limba.tools.preflight.checks.vocabulary import UNUSED, unused_share

    path = config.data.vocabulary
    if path is None or "://" in path:
        return
    # A checkpoint's rows are as they are, and a vocabulary that is trained first is not there yet.
    if config.initial_checkpoint_path or config.data.new_vocabulary_size:
        return
    pieces = PieceTable.at(path, config.data.extra_ids)
    rows = config.model.vocab_size
    fitting = pieces.fitting_rows
    if rows <= fitting:
        return
    share = unused_share(config, fitting, None)
    if share >= UNUSED:
        text = f"The model has {rows:,} rows for {pieces.vocabulary.vocab_size:,} ids: those without a piece take"
        text += f" {share:.0%} of a step's FLOPs."
        yield Line("warning", text, ("ModelConfig.vocab_size", fitting), "unused-rows")
