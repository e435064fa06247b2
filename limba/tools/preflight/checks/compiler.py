"""What the compiler says of a run's training step on given chips: memory, exchanges, an estimate of speed, changes."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from limba.api import PlannedRun, RunData, RunDirectory
from limba.config import Fix, InputError, RunConfig
from limba.config.speed import in_time
from limba.tools.preflight.checks.estimate import divides
from limba.tools.preflight.checks.verdict import Line, Section
from limba.tools.preflight.compiled import changes, speed
from limba.tools.preflight.compiled.memory import device_bytes, in_words, size_in_words
from limba.tools.preflight.compiled.process import compiled_step
from limba.tools.preflight.compiled.topologies import Figures, Topology, limit_bytes, topologies, topology

__all__ = [
    "Topology", "advice", "compiled", "device_bytes", "feature_shapes", "fits", "limit_bytes", "topologies", "topology"
]  # fmt: skip

TITLE, ADVICE = "Memory and speed", "Advice"
NO_KERNEL = "no-kernel"
TIGHT = 0.95  # of the memory; evaluation and the next batch need some too
LARGEST_SHOWN = 4
DECODER = ("decoder_input_tokens", "decoder_target_tokens", "decoder_loss_weights")
# Cycles and memory of the unrolled step, as shares of the scanned one's: 104.5 of 136.1 M cycles, 6.28 of 8.76 GiB.
UNROLLED = (0.77, 0.72)
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
    rows, packed = config.data.batch_size, config.data.pack
    names = [*DECODER, *(["decoder_segment_ids"] if packed else [])]
    lengths = dict.fromkeys(names, targets)
    if inputs:
        names = ["encoder_input_tokens", *(["encoder_segment_ids"] if packed else [])]
        lengths |= dict.fromkeys(names, inputs)
        return {name: (rows, length) for name, length in lengths.items()}
    try:
        data = RunData(config.data)
        return data.feature_shapes(data.lengths())
    except (InputError, OSError):  # the section of the data says what is wrong with it
        return {name: (rows, length) for name, length in lengths.items()}


def stand_in(config: RunConfig, wanted: Topology) -> RunConfig:
    """Returns the run; with scanned layers, which compile in about a minute for a TPU, where it unrolls them.

    Those take minutes. Cards compile what runs there.
    """
    scans = config.model.scan_layers or wanted.platform != "gpu" or None
    return dataclasses.replace(config, model=dataclasses.replace(config.model, scan_layers=scans))


def fits(found: Figures, wanted: Topology) -> bool:
    """Returns whether a compiled step fits: as a TPU's compiler says, for others by the memory that there is."""
    return device_bytes(found) <= limit_bytes(wanted) if found["fits"] is None else found["fits"]


def compiled(config: RunConfig, topology: str | Topology, calibrate: str | None = None) -> Section:
    """Returns the section 'Memory and speed': the run's training step as compiled for a topology's chips.

    Compiles once, in a process of its own. `calibrate` is the directory of
    a run on the same chip, whose speed replaces the estimate. Where the compiler is not installed, one warning says so.
    Raises InputError for an unknown topology, or a directory that cannot calibrate, before anything is compiled.
    """
    wanted = _topology(topology)
    measured = _calibrated(config, wanted, calibrate) if calibrate is not None else None
    if problems := list(divides(config, wanted)):
        return Section(TITLE, problems)
    try:
        found = compiled_step(stand_in(config, wanted), feature_shapes(config), wanted.name)
    except InputError as error:
        return Section(TITLE, [_not_compiled(str(error), error.fix)])
    if "Mosaic" in found.get("failed", ""):  # a Pallas kernel that these chips cannot run, as on v2 and v3
        text = f"The attention kernel does not compile for {wanted.name}, so a run ends: {found['failed'][:200]}."
        return Section(TITLE, [Line("error", " ".join(text.split()), ("ModelConfig.attention", "einsum"), NO_KERNEL)])
    if "failed" in found:
        return Section(TITLE, [_not_compiled(f"The step was not compiled for {wanted.name}: {found['failed']}.")])
    lines = [_memory_line(config, found, wanted), *_details(found, wanted)]
    data: dict[str, object] = {"topology": wanted.name, "limit_bytes": limit_bytes(wanted), **found}
    if fits(found, wanted):
        more, figures = _speed_lines(config, found, wanted, measured)
        lines += more
        data["estimate"] = figures
    seconds = f"{found['seconds']:.0f} s of clock, {found['cpu_seconds']:.0f} s of processor"
    lines.append(Line("ok", f"Compiled for {wanted.name} in {seconds}; no chip was used."))
    return Section(TITLE, lines, data)


def advice(config: RunConfig, topology: str | Topology, minutes: float | None = None) -> Section:
    """Returns the section 'Advice': changes in order of their cost, compiled while `minutes` last (None: no limit).

    Each is the run with few fields changed. Raises InputError for an unknown topology.
    """
    wanted = _topology(topology)
    if list(divides(config, wanted)):
        return Section(ADVICE, [Line("ok", "Nothing was compiled: the mesh or the batch does not divide.")])
    run, limit = stand_in(config, wanted), limit_bytes(wanted)
    lines, data = changes.tried(run, wanted, feature_shapes, limit, lambda found: fits(found, wanted), minutes)
    return Section(ADVICE, lines, data)


def _topology(given: str | Topology) -> Topology:
    return topology(given) if isinstance(given, str) else given


def _not_compiled(sentence: str, fix: Fix | None = None) -> Line:
    """Returns a warning: what could not be compiled is neither fine nor wrong."""
    return Line("warning", f"{sentence} Memory and speed are not known; all other sections are.", fix, "not-compiled")


def _memory_line(config: RunConfig, found: Figures, wanted: Topology) -> Line:
    limit, live = limit_bytes(wanted), device_bytes(found)
    data, fsdp, model = found["mesh"]
    what = f"The step {'needs' if found['fits'] is not False else 'does not fit: it needs'} {size_in_words(live)}"
    where = f"a device of the {limit / 2**30:.2f} GiB that {wanted.name} has for programs ({live / limit:.0%})"
    mesh = f"mesh data {data} x fsdp {fsdp} x model {model}, {wanted.devices} devices on {wanted.hosts} host(s)"
    state = f"the state is {size_in_words(found['state_bytes'])}"
    text = f"{what} {where}; {state}; {mesh}"
    if config.model.scan_layers is False and wanted.platform != "gpu":
        text += (
            f". Compiled with scanned layers; unrolled, as the run has them, base on v4-8 had {UNROLLED[1]:.0%} of the"
            f" memory ({MEASURED_BY})"
        )
    if fits(found, wanted):
        if live > TIGHT * limit:
            return Line("warning", f"{text}: evaluation may not fit beside it.", _first_fix(config), "does-not-fit")
        return Line("ok", f"{text}.")
    maybe = config.model.scan_layers is False and live <= MAYBE_UNROLLED * limit and wanted.platform == "tpu"
    return Line("warning" if maybe else "error", f"{text}.", _first_fix(config), "does-not-fit")


def _first_fix(config: RunConfig) -> Fix:
    """Returns the cheapest change of the run that saves memory; it has not been compiled."""
    if config.model.remat != "full":
        return "ModelConfig.remat", "minimal" if config.model.remat == "none" else "full"
    return "RunConfig.num_microbatches", 2 * config.num_microbatches


def _details(found: Figures, wanted: Topology) -> list[Line]:
    lines = []
    if found.get("process_bytes"):
        lines.append(_process_line(found, limit_bytes(wanted) * wanted.devices))
    if found["largest"]:
        several = "; ".join(in_words(found["largest"])[:LARGEST_SHOWN])
        lines.append(Line("ok", f"The largest arrays when memory is at its peak: {several}."))
    exchanged = {kind: size for kind, size in found.get("collective_bytes", {}).items() if size}
    if exchanged:
        each = ", ".join(f"{kind} {size / 2**20:,.0f} MiB" for kind, size in sorted(exchanged.items()))
        lines.append(
            Line("ok", f"Exchanged a step, by each device: {each} (operands of a reduce-scatter, else results).")
        )
    elif wanted.devices > 1 and found["fits"] is not False:
        lines.append(Line("ok", "The devices exchange nothing."))
    return lines


def _process_line(found: Figures, memory: float) -> Line:
    """Returns the line of what the whole process takes on a CPU, beside this machine's memory."""
    size = found["process_bytes"]
    text = f"The process grows by about {size_in_words(size)}, with what compiling leaves in it"
    if size <= memory:
        return Line("ok", f"{text}.")
    text += f", and this machine has {size_in_words(memory)}."
    return Line("warning", text, "use a machine with more memory", "does-not-fit")


def _speed_lines(
    config: RunConfig, found: Figures, wanted: Topology, measured: speed.Estimate | None
) -> tuple[Sequence[Line], Figures]:
    lengths = PlannedRun(config).row_lengths
    estimate = measured or speed.estimate(config, found, lengths, wanted)
    lines: list[Line] = []
    if measured is None and config.model.scan_layers is False and wanted.platform == "tpu":
        made = f"{estimate.made}. The fast end takes {UNROLLED[0]:.0%} of that, for unrolled layers ({MEASURED_BY})"
        estimate = dataclasses.replace(estimate, fastest=estimate.fastest * UNROLLED[0], made=made)
    figures = estimate.figures(config, lengths, wanted)
    (low, high), (fast, slow) = figures["tokens_per_second"], figures["seconds_per_step"]
    kind = "Estimate" if measured is None else "By a measured run"
    text = f"{kind}, not a promise: {_span(low, high)} tokens a second, {_range(f'{fast:.3g}', f'{slow:.3g}')} s a step"
    if figures["mfu"]:
        text += f", MFU {_range(*(f'{share:.0%}' for share in figures['mfu']))}"
    if figures["days"]:
        text += f"; {config.train_steps:,} steps take {in_time([24 * each for each in figures['days']])}"
    if figures["mfu"] and figures["mfu"][1] > 1:
        lines.append(Line("warning", "The estimate's fast end is above the peak: do not trust it.", code="estimate"))
    return [Line("ok", f"{text}."), Line("ok", f"Made of {estimate.made}."), *lines], figures | {"made": estimate.made}


def _calibrated(config: RunConfig, wanted: Topology, model_dir: str) -> speed.Estimate:
    """Returns the estimate by a run on the same chips; InputError if its directory holds none, or one on others."""
    return speed.calibrated(config, PlannedRun(config).row_lengths, wanted, model_dir, _run_in(model_dir))


def _span(low: float, high: float) -> str:
    return _range(*(f"{float(f'{each:.2g}'):,.0f}" for each in (low, high)))


def _range(low: str, high: str) -> str:
    return low if low == high else f"{low} to {high}"


def _run_in(model_dir: str) -> RunConfig:
    """Returns the run of a directory; InputError if it holds none."""
    found = RunDirectory(model_dir).config()
    if found is None:
        raise InputError(f"{model_dir}, to calibrate by, holds no config.json; name the directory of a run.")
    if not isinstance(found, RunConfig):
        raise InputError(f"{model_dir} describes a network and no run; name the directory of a run.")
    return found
