"""Changes of a run that save memory or time, compiled one after the other in order of what they cost."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator, Sequence

from limba.api import PlannedRun, RunData
from limba.config import ConfigError, Fix, InputError, MeshConfig, RunConfig
from limba.tools.preflight.checks.objective import needed_targets
from limba.tools.preflight.checks.verdict import Line
from limba.tools.preflight.compiled import speed
from limba.tools.preflight.compiled.memory import device_bytes, size_in_words
from limba.tools.preflight.compiled.process import compiled_step
from limba.tools.preflight.compiled.topologies import Figures, Topology

Shapes = Callable[[RunConfig], dict[str, tuple[int, int]]]
MOST_MICROBATCHES = 64
PARTS_OF_MESH = 4  # micro-batches beside a mesh that is not enough alone
MULTIPLE = 128  # of a vocabulary's rows: a TPU's registers have 128 lanes
NOT_COMPILED = "not-compiled"
ROOM = 0.9  # of the memory, up to which a step is planned


@dataclasses.dataclass(frozen=True)
class Change:
    """A changed run, and the values of the fields that were changed."""

    name: str
    config: RunConfig
    fixes: tuple[Fix, ...]


def widest_data(mesh: MeshConfig) -> MeshConfig:
    """Returns pure data parallelism over all devices, for a mesh that does not divide them."""
    return dataclasses.replace(mesh, data=-1, fsdp=1, model=1, auto=False)


def tried(
    config: RunConfig,
    wanted: Topology,
    shapes: Shapes,
    limit: float,
    fits: Callable[[Figures], bool],
    minutes: float | None,
) -> tuple[list[Line], dict[str, object]]:
    """Returns the lines of what was compiled and what was not, and the same as figures.

    If the run does not fit, changes are added to each other until one fits. If it fits, each is compared with it alone.
    Nothing is begun that would, at the pace of what came before, end after `minutes`.
    """
    began, longest = time.monotonic(), 0.0
    lines: list[Line] = []
    records: list[Figures] = []

    def compile_one(change: Change) -> Figures | None:
        nonlocal longest
        started = time.monotonic()
        if minutes is not None and started - began + longest > 60 * minutes:
            return None
        found = compiled_step(change.config, shapes(change.config), wanted.name)
        longest = max(longest, time.monotonic() - started)
        return found

    try:
        own = compile_one(Change("the run", config, ()))
    except InputError as error:
        return [Line("warning", f"{error} So no changes were compiled.", code=NOT_COMPILED)], {}
    if own is None or "failed" in own:
        return [
            Line(
                "warning",
                f"The step itself was not compiled: {(own or {}).get('failed', 'no time')}.",
                code=NOT_COMPILED,
            )
        ], {}
    it_fits = fits(own)
    for change in savings(config) if it_fits else ladder(config, own, wanted, limit):
        done = not it_fits and any(record.get("fits") for record in records)
        found = None if done else compile_one(change)
        record: dict[str, object] = {"fix": change.fixes, "name": change.name, "tried": found is not None}
        if found is not None and "failed" not in found:
            record |= {"fits": fits(found), "live_bytes": device_bytes(found), "seconds": found["seconds"]}
            record["time"] = (
                _time_beside(change.config, config, found, own, wanted) if fits(found) and it_fits else None
            )
            lines.append(_line(change, record, own, limit, it_fits))
        elif found is not None:
            lines.append(Line("warning", f"{change.name}: {found['failed']}.", list(change.fixes), NOT_COMPILED))
        records.append(record)
    left = [record["name"] for record in records if not record["tried"]]
    if left:
        lines.append(Line("ok", f"Not tried: {'; '.join(left)}."))
    if not it_fits and not any(record.get("fits") for record in records):
        lines.append(
            Line(
                "error",
                "None of the changes that were compiled fits; use more chips, or a smaller model.",
                code="does-not-fit",
            )
        )
    lines += _of_data(config)
    return lines, {"topology": wanted.name, "run_fits": it_fits, "live_bytes": device_bytes(own), "changes": records}


def _line(change: Change, record: Figures, own: Figures, limit: float, run_fits: bool) -> Line:
    size = f"{size_in_words(record['live_bytes'])} a device of {size_in_words(limit)}"
    before = f"{size_in_words(device_bytes(own))} before"
    verdict = "fits" if record["fits"] else "does not fit"
    text = f"{change.name}: {verdict}, {size} ({before})"
    if record.get("time") is not None:
        more = record["time"] - 1
        text += (
            f", {abs(more):.0%} {'less' if more < 0 else 'more'} time by the estimate"
            if abs(more) >= 0.005
            else ", as fast"
        )
    is_waste = run_fits and record["fits"] and (record.get("time") or 1.0) < 0.95
    level = "warning" if is_waste else "ok"
    helps = record["fits"] if not run_fits else (record.get("time") or 1.0) < 0.995
    return Line(level, f"{text}.", list(change.fixes) if helps else None, "cheaper-step")


def _time_beside(changed: RunConfig, config: RunConfig, found: Figures, own: Figures, wanted: Topology) -> float | None:
    """Returns the changed step's estimated time beside the run's; None on cards, whose compiler gives no time."""
    if wanted.platform == "gpu":
        return None
    both = []
    for run, figures in ((changed, found), (config, own)):
        if wanted.platform == "cpu":
            both.append(figures["product_flops"])
        else:
            both.append(speed.estimate(run, figures, PlannedRun(run).row_lengths, wanted).slowest)
    return both[0] / both[1] if both[1] else None


def ladder(config: RunConfig, own: Figures, wanted: Topology, limit: float) -> Iterator[Change]:
    """Yields changes for a step that does not fit, each with those before it, from what costs least speed.

    Those that cannot suffice by the sizes of the state and of the step are left out.
    """
    state, live = own["state_bytes"], device_bytes(own)
    config = dataclasses.replace(config, mesh=dataclasses.replace(config.mesh, auto=False))
    lines: tuple[Fix, ...] = ()
    for change in _exact_lengths(config):
        config, lines = change.config, change.fixes
        yield change
    full = lines
    if state < ROOM * limit:
        for remat in {"none": ("minimal", "full"), "minimal": ("full",)}.get(config.model.remat, ()):
            config = dataclasses.replace(config, model=dataclasses.replace(config.model, remat=remat))
            full = (*lines, ("ModelConfig.remat", remat))
            yield Change(f"remat {remat}", config, full)
        lines = full
        data, fsdp, _ = config.mesh.sizes(wanted.devices)
        least = (live - state) / max(ROOM * limit - state, 1.0) / 4  # remat full saves much of it, by then
        parts = 2 * config.num_microbatches
        while parts <= MOST_MICROBATCHES and config.data.batch_size % (parts * data * fsdp) == 0:
            if parts >= min(least, MOST_MICROBATCHES // 2):
                changed = dataclasses.replace(config, num_microbatches=parts)
                yield Change(f"{parts} micro-batches", changed, (*lines, ("RunConfig.num_microbatches", parts)))
            parts *= 2
    if config.model.remat != "full":
        config = dataclasses.replace(config, model=dataclasses.replace(config.model, remat="full"))
        lines = (*lines, ("ModelConfig.remat", "full"))
    yield from _meshes(config, wanted, lines)


def _meshes(config: RunConfig, wanted: Topology, lines: tuple[Fix, ...]) -> Iterator[Change]:
    """Yields fsdp over all devices, then the model axis beside it."""
    for model in (1, 2, 4, 8):
        fsdp = wanted.devices // model
        if wanted.devices % model or config.model.num_heads % model or (model > 1 and model >= wanted.devices):
            continue
        mesh = dataclasses.replace(config.mesh, data=-1, fsdp=fsdp, model=model)
        if wanted.devices == 1 or (mesh.fsdp, mesh.model) == (config.mesh.fsdp, config.mesh.model):
            continue
        own = (("MeshConfig.fsdp", fsdp), *((("MeshConfig.model", model),) if model > 1 else ()))
        rows = dataclasses.replace(config, mesh=mesh)
        name = f"fsdp {fsdp}" + (f" x model {model}" if model > 1 else "")
        for parts in (1, PARTS_OF_MESH):
            total = parts * rows.num_microbatches
            if rows.data.batch_size % (fsdp * total) == 0:
                also = (("RunConfig.num_microbatches", total),) if parts > 1 else ()
                changed = dataclasses.replace(rows, num_microbatches=total)
                yield Change(name + (f", {total} micro-batches" if also else ""), changed, (*lines, *own, *also))


def savings(config: RunConfig) -> Iterator[Change]:
    """Yields changes that may make a step faster that fits, each alone."""
    yield from _exact_lengths(config)
    model = config.model
    if model.vocab_size % MULTIPLE:
        rows = -(-model.vocab_size // MULTIPLE) * MULTIPLE
        changed = dataclasses.replace(config, model=dataclasses.replace(model, vocab_size=rows))
        yield Change(f"a vocabulary of {rows:,} rows", changed, (("ModelConfig.vocab_size", rows),))
    weaker = {"full": "minimal", "minimal": "none"}.get(model.remat)
    if weaker:
        changed = dataclasses.replace(config, model=dataclasses.replace(model, remat=weaker))
        yield Change(f"remat {weaker}", changed, (("ModelConfig.remat", weaker),))
    if config.num_microbatches > 1:
        changed = dataclasses.replace(config, num_microbatches=config.num_microbatches // 2)
        parts = changed.num_microbatches
        yield Change(f"{parts} micro-batches", changed, (("RunConfig.num_microbatches", parts),))
    if (config.mesh.fsdp, config.mesh.model) != (1, 1):
        changed = dataclasses.replace(config, mesh=widest_data(config.mesh))
        yield Change("pure data parallelism", changed, (("MeshConfig.fsdp", 1), ("MeshConfig.model", 1)))


def _exact_lengths(config: RunConfig) -> Iterator[Change]:
    """Yields the run without padding after its targets, if it corrupts spans and gives longer ones than they fill."""
    given = dict(config.data.task_feature_lengths)
    if config.data.objective not in (None, "span_corruption") or set(given) != {"inputs", "targets"}:
        return
    alone = dataclasses.replace(config.data, task_feature_lengths={"inputs": given["inputs"]})
    try:
        filled = PlannedRun(dataclasses.replace(config, data=alone)).row_lengths[1]
    except ConfigError:  # these inputs have no exact row
        return
    if given["targets"] > filled and _corrupts_spans(config, filled):
        exact = given | {"targets": filled}
        changed = dataclasses.replace(config, data=dataclasses.replace(config.data, task_feature_lengths=exact))
        yield Change(f"targets of {filled}", changed, (("DataConfig.task_feature_lengths", exact),))


def _corrupts_spans(config: RunConfig, filled: int) -> bool:
    """Returns whether the run's task fills so many targets, as T5's span corruption does; False if it cannot open."""
    if config.data.objective == "span_corruption":
        return True
    try:
        return needed_targets(RunData(config.data), config.data.task_feature_lengths["inputs"]) == filled
    except (InputError, OSError):
        return False


def _of_data(config: RunConfig) -> Sequence[Line]:
    """Returns what packing would save: the share of padding in some rows of the run's data."""
    if config.data.pack:
        return []
    try:
        data = RunData(config.data)
        lengths = data.lengths()
        rows = next(data.rows(lengths), {})
    except (InputError, OSError):
        return []
    arrays = [rows[name] for name in lengths if name in rows]
    share = sum(int((each == 0).sum()) for each in arrays) / max(1, sum(each.size for each in arrays))
    if share < 0.1:
        return [Line("ok", f"Packing would save little: {share:.0%} of the tokens of the first rows are padding.")]
    return [
        Line(
            "warning",
            f"Packing several examples into a row saves up to {share:.0%} of the work: so much of the first rows is"
            " padding. It was not compiled; a packed step costs about as much as this one.",
            ("DataConfig.pack", True),
            "padding",
        )
    ]
