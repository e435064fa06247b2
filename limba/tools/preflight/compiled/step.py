"""The process that compiles one training step; `process.py` starts it, since a process has one set of XLA's flags.

It reads a request, JSON, and writes an answer, JSON, to files; all else that it prints is of libraries.
"""

from __future__ import annotations

import json
import os
import re
import sys
import time
import traceback
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from limba.config import InputError, RunConfig, plain
from limba.config.errors import is_out_of_memory

if TYPE_CHECKING:
    from limba.api import PlannedRun

Json = dict[str, Any]

SIZE = re.compile(r"([\d.]+)([KMG])")
UNITS = {"K": 2**10, "M": 2**20, "G": 2**30}


def figures(config: RunConfig, feature_shapes: Mapping[str, tuple[int, int]], name: str, dump: str) -> Json:
    """Returns the figures of the run's step compiled for a topology, whose devices this process describes.

    "fits" is what the compiler says, of a TPU; None for others, whose compilers know no limit. Sizes are bytes of one
    device: "live_bytes" as jax's analysis has them, "reported_bytes" as a TPU's compiler counts them, which is less.
    Times are of this process: "seconds" of the clock and "cpu_seconds" of all threads.
    """
    from limba.tools.preflight.compiled import topologies

    began, cpu_began = time.perf_counter(), time.process_time()
    topology = topologies.topology(name)
    devices = topologies.devices_of(topology, dump)
    from limba.api import PlannedRun

    found = _of_step(PlannedRun(config), feature_shapes, devices, topology.platform, dump)
    seconds = {"seconds": time.perf_counter() - began, "cpu_seconds": time.process_time() - cpu_began}
    return found | seconds


def _of_step(
    run: PlannedRun, feature_shapes: Mapping[str, tuple[int, int]], devices: Any, platform: str, dump: str
) -> Json:
    """Returns the figures of the compiled step, or of one that its compiler refuses."""
    import jax

    from limba.tools.preflight.compiled import host_memory, memory, program

    start = host_memory.seen()
    step = run.step_on(devices, feature_shapes)
    state_bytes = step.state_bytes
    found: Json = {"mesh": step.mesh_sizes, "state_bytes": state_bytes}
    init_bytes = step.init_bytes() if platform == "cpu" else 0
    after_init = host_memory.seen()
    traced = step.traced()
    kernels = kernel_flops(traced.jaxpr)
    try:
        compiled = traced.lower(lowering_platforms=("cuda",) if platform == "gpu" else None).compile()
    except jax.errors.JaxRuntimeError as error:
        if not is_out_of_memory(error):
            raise
        needed = max(needed_bytes(str(error)), memory.peak_bytes(dump), state_bytes)
        largest = memory.largest(dump, "")
        return found | {"fits": False, "live_bytes": needed, "said": str(error)[:2000], "largest": largest}
    after_step, each = host_memory.seen(), devices.size if platform == "cpu" else 0
    text = compiled.as_text() or ""
    analysis, costs = compiled.memory_analysis(), program.costs_of_program(text)
    assert analysis is not None  # as every platform that has an ahead-of-time compiler gives it
    arrays = (each * init_bytes, each * state_bytes, each * (step.live_bytes(compiled) + costs.packed_bytes))
    process = host_memory.process_bytes(start, after_init, after_step, *arrays)
    return found | {
        "fits": True if platform == "tpu" else None,
        "live_bytes": step.live_bytes(compiled),
        "reported_bytes": memory.reported_bytes(dump) if platform == "tpu" else 0,
        "process_bytes": process if platform == "cpu" else None,
        "argument_bytes": analysis.argument_size_in_bytes,
        "temporary_bytes": analysis.temp_size_in_bytes,
        "collective_bytes": dict(costs.collective_bytes),
        "fusion_cycles": costs.fusion_cycles,
        "product_flops": costs.product_flops,
        "kernel_flops": sum(kernels.get(kernel, 0.0) * number for kernel, number in costs.kernels.items()),
        "program_kib": len(text) / 2**10,
        "largest": memory.largest(dump, text),
    }


def needed_bytes(said: str) -> int:
    """Returns the bytes that a program needs, from the sentence of a TPU's compiler; 0 if it names none.

    >>> needed_bytes("Used 20.25G of 15.48G hbm.") / 2**30, needed_bytes("HLO temporaries (937.50G) exceeds") / 2**30
    (20.25, 937.5)
    """
    found = re.search(r"Used ([\d.]+[KMG]) of", said) or re.search(r"temporaries \(([\d.]+[KMG])\)", said)
    if not found:
        return 0
    size = SIZE.fullmatch(found[1])
    return int(float(size[1]) * UNITS[size[2]]) if size else 0


def kernel_flops(jaxpr: Any) -> dict[str, float]:
    """Returns {Pallas kernel: FLOPs of one call on one device}, as the kernels themselves say."""
    import jax

    found: dict[str, float] = {}

    def visit(jaxpr: Any) -> None:
        for equation in jaxpr.eqns:
            if equation.primitive.name == "pallas_call":
                cost = equation.params.get("cost_estimate")
                found[equation.params["name"]] = float(cost.flops) if cost else 0.0
                continue
            inner = jax.tree.leaves(list(equation.params.values()), is_leaf=is_program)
            for value in inner:
                if is_program(value):
                    visit(getattr(value, "jaxpr", value))

    visit(getattr(jaxpr, "jaxpr", jaxpr))
    return found


def is_program(value: object) -> bool:
    """Returns whether a parameter of an operation is a traced program."""
    return hasattr(value, "eqns") or hasattr(value, "jaxpr")


def _answer(request: Json) -> Json:
    shapes = {name: tuple(shape) for name, shape in request["feature_shapes"].items()}
    try:
        config = plain.from_text(request["config"], "the request")
        assert isinstance(config, RunConfig)
        return figures(config, shapes, request["topology"], request["dump"])  # pyright: ignore[reportArgumentType]
    except InputError as error:
        return {"error": str(error), "fix": error.fix}
    except Exception as error:  # noqa: BLE001  whatever a compiler raises is told by the process that asked
        traceback.print_exc()
        return {"failed": f"{type(error).__name__}: {str(error)[:600]}"}


if __name__ == "__main__":
    with open(sys.argv[1]) as file:
        asked = json.load(file)
    answer = _answer(asked)
    with open(asked["answer"], "w") as file:
        json.dump(answer, file)
    sys.stdout.flush()
    os._exit(0)  # libtpu's threads have nothing to end
