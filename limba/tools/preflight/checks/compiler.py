"""What the compiler says about a run's training step on given chips: memory, exchanges, an estimate of speed."""

from __future__ import annotations

import contextlib
import dataclasses

from limba.api import PlannedRun, RunData
from limba.config import Fix, InputError, RunConfig
from limba.config.speed import in_time
from limba.tools.preflight.checks.estimate import divides, memory_lines
from limba.tools.preflight.checks.verdict import Line, Section
from limba.tools.preflight.compiled import arithmetic, changes, speed
from limba.tools.preflight.compiled.memory import device_bytes, in_words, size_in_words
from limba.tools.preflight.compiled.process import compiled_step
from limba.tools.preflight.compiled.topologies import Figures, Topology, limit_bytes

TITLE = "Memory and speed"
NO_KERNEL = "no-kernel"
DOES_NOT_FIT = "does-not-fit"
TIGHT = 0.95  # of the memory; evaluation and the next batch need some too
LARGEST_SHOWN = 4
DECODER: tuple[str, ...] = ("decoder_input_tokens", "decoder_target_tokens", "decoder_loss_weights")
# Cycles and memory of the unrolled step, as shares of the scanned one's: 100.7 of 132.4 M cycles, 6.29 of 8.76 GiB.
UNROLLED = (0.76, 0.72)
MEASURED_BY = (
    "python -m benchmarks.compiled --size=base --topology=v4-8 --batch=128 --inputs=512 --targets=114 --remat=minimal,"
    " without and with --no-scan"
)
MAYBE_UNROLLED = 1.4  # a scanned step above the limit, which the unrolled one may keep, is above it by less


def feature_shapes(config: RunConfig) -> dict[str, tuple[int, int]]:
    """Returns the shapes of the run's global batch, as the step gets it.

    Encoder-decoders' follow from the configuration alone. A decoder-only model's depend on its task, which may have a
    prefix; if that cannot be opened, rows are plain sequences.
    """
    inputs, targets = PlannedRun(config).row_lengths
    lengths = dict.fromkeys(DECODER, targets)
    if config.data.pack:
        lengths["decoder_segment_ids"] = targets
    if inputs:
        lengths["encoder_input_tokens"] = inputs
        if config.data.pack:
            lengths["encoder_segment_ids"] = inputs
    else:
        with contextlib.suppress(InputError, OSError):  # the section of the data says what is wrong with it
            data = RunData(config.data)
            return data.feature_shapes(data.lengths())
    return {name: (config.data.batch_size, length) for name, length in lengths.items()}


def stand_in(config: RunConfig, wanted: Topology) -> RunConfig:
    """Returns the run as it is compiled: for cards as it runs there, for others with scanned layers.

    A scan compiles in about a minute for a TPU; unrolled layers take several.
    """
    scans = True
    if wanted.platform == "gpu" and not config.model.scan_layers:
        scans = None  # the GPU's own choice, a loop, whether the run asks for it or leaves it open
    return dataclasses.replace(config, model=dataclasses.replace(config.model, scan_layers=scans))


def fits(step: Figures, wanted: Topology) -> bool:
    """Returns whether a compiled step fits: as a TPU's compiler says, for others by the memory that there is."""
    if step["fits"] is not None:
        return step["fits"]
    return device_bytes(step) <= limit_bytes(wanted)


def compiled(config: RunConfig, wanted: Topology) -> Section:
    """Returns the section 'Memory and speed': the run's training step as compiled for a topology's chips.

    Compiles once, in a process of its own. Where the compiler is not installed, one warning says so, and memory is
    estimated by arithmetic.
    """
    problems = list(divides(config, wanted))
    if problems:
        return Section(TITLE, problems)
    try:
        step = compiled_step(stand_in(config, wanted), feature_shapes(config), wanted.name)
    except InputError as error:
        return _not_compiled(config, wanted, str(error), error.fix)
    if "Mosaic" in step.get("failed", ""):  # a Pallas kernel that these chips cannot run, as on v2 and v3
        text = f"The attention kernel does not compile for {wanted.name}, so a run ends: {step['failed'][:200]}."
        return Section(TITLE, [Line("error", " ".join(text.split()), ("ModelConfig.attention", "einsum"), NO_KERNEL)])
    if "failed" in step:
        return _not_compiled(config, wanted, f"The step was not compiled for {wanted.name}: {step['failed']}.")
    lines = [_memory_line(config, step, wanted), *_details(step, wanted)]
    data: dict[str, object] = {"topology": wanted.name, "limit_bytes": limit_bytes(wanted), **step}
    if fits(step, wanted):
        of_speed, figures = _speed_lines(config, step, wanted)
        lines += of_speed
        data["estimate"] = figures
    seconds = f"{step['seconds']:.0f} s of clock, {step['cpu_seconds']:.0f} s of processor"
    lines.append(Line("ok", f"Compiled for {wanted.name} in {seconds}; no chip was used."))
    return Section(TITLE, lines, data)


def _not_compiled(config: RunConfig, wanted: Topology, sentence: str, fix: Fix | None = None) -> Section:
    """Returns the section of a step that could not be compiled, which is neither fine nor wrong.

    It warns if the memory by arithmetic is too much, which the section before leaves to the compiler.
    """
    text = f"{sentence} Memory and speed are only known by arithmetic."
    too_large = [line for line in memory_lines(config, wanted, False, {}) if line.level != "ok"]
    return Section(TITLE, [Line("warning", text, fix, "not-compiled"), *too_large])


def _memory_line(config: RunConfig, step: Figures, wanted: Topology) -> Line:
    """Returns the line of a device's memory; where it is too much, with what other choices need."""
    limit = limit_bytes(wanted)
    needed = device_bytes(step)
    text = _memory_text(config, step, wanted)
    if fits(step, wanted) and needed <= TIGHT * limit:
        return Line("ok", f"{text}.")
    by_arithmetic = arithmetic.memory(PlannedRun(config), wanted).total
    device = changes.Device(wanted, TIGHT * limit, scale=needed / by_arithmetic)
    fix = changes.that_fits(config, device)
    if fits(step, wanted):
        return Line("warning", f"{text}: evaluation may not fit beside it.", fix, DOES_NOT_FIT)
    may_fit = _is_unrolled_on_tpu(config, wanted) and needed <= MAYBE_UNROLLED * limit
    level = "warning" if may_fit else "error"
    return Line(level, f"{text}.\n{changes.table(config, device)}", fix, DOES_NOT_FIT)


def _is_unrolled_on_tpu(config: RunConfig, wanted: Topology) -> bool:
    """Returns whether the run unrolls its layers on a TPU, where it was compiled as a scan, which needs more memory."""
    return config.model.scan_layers is False and wanted.platform == "tpu"


def _memory_text(config: RunConfig, step: Figures, wanted: Topology) -> str:
    limit = limit_bytes(wanted)
    needed = device_bytes(step)
    data, fsdp, model = step["mesh"]
    verb = "does not fit: it needs" if step["fits"] is False else "needs"
    text = f"The step {verb} {size_in_words(needed)} a device of the {limit / 2**30:.2f} GiB that {wanted.name} has for"
    text += f" programs ({needed / limit:.0%}); the state is {size_in_words(step['state_bytes'])}"
    text += f"; mesh data {data} x fsdp {fsdp} x model {model}, {wanted.devices} devices on {wanted.hosts} host(s)"
    if config.model.scan_layers is False and wanted.platform != "gpu":
        text += ". Compiled with scanned layers; unrolled, as the run has them, base on v4-8 had"
        text += f" {UNROLLED[1]:.0%} of the memory ({MEASURED_BY})"
    return text


def _details(step: Figures, wanted: Topology) -> list[Line]:
    """Returns the lines of the largest arrays, and of what the devices exchange."""
    lines = []
    if step["largest"]:
        several = "; ".join(in_words(step["largest"])[:LARGEST_SHOWN])
        lines.append(Line("ok", f"The largest arrays when memory is at its peak: {several}."))
    exchanged = {kind: size for kind, size in step.get("collective_bytes", {}).items() if size}
    if exchanged:
        by_kind = ", ".join(f"{kind} {size / 2**20:,.0f} MiB" for kind, size in sorted(exchanged.items()))
        text = f"Exchanged a step, by each device: {by_kind} (operands of a reduce-scatter, else results)."
        lines.append(Line("ok", text))
    elif wanted.devices > 1 and step["fits"] is not False:
        lines.append(Line("ok", "The devices exchange nothing."))
    return lines


def _speed_lines(config: RunConfig, step: Figures, wanted: Topology) -> tuple[list[Line], Figures]:
    """Returns the lines of the estimated speed, and its figures."""
    lengths = PlannedRun(config).row_lengths
    estimate = speed.estimate(config, step, lengths, wanted)
    if _is_unrolled_on_tpu(config, wanted):
        made = f"{estimate.made}. The fast end takes {UNROLLED[0]:.0%} of that, for unrolled layers ({MEASURED_BY})"
        estimate = dataclasses.replace(estimate, fastest=estimate.fastest * UNROLLED[0], made=made)
    figures = estimate.figures(config, lengths, wanted)
    slow, fast = figures["tokens_per_second"]
    shortest, longest = figures["seconds_per_step"]
    text = f"Estimate, not a promise: {_range(_two_digits(slow), _two_digits(fast))} tokens a second"
    text += f", {_range(f'{shortest:.3g}', f'{longest:.3g}')} s a step"
    if figures["mfu"]:
        low, high = figures["mfu"]
        text += f", MFU {_range(f'{low:.0%}', f'{high:.0%}')}"
    if figures["days"]:
        text += f"; {config.train_steps:,} steps take {in_time([24 * num_days for num_days in figures['days']])}"
    lines = [Line("ok", f"{text}."), Line("ok", f"Made of {estimate.made}.")]
    if figures["mfu"] and figures["mfu"][1] > 1:
        lines.append(
            Line("warning", "The estimate's fast end is above the chips' peak: do not trust it.", code="estimate")
        )
    return lines, figures | {"made": estimate.made}


def _two_digits(number: float) -> str:
    return f"{float(f'{number:.2g}'):,.0f}"


def _range(low: str, high: str) -> str:
    return low if low == high else f"{low} to {high}"
