"""The process that compiles one training step; `process.py` starts it, since a process has one set of XLA's flags.

It reads a request from a JSON file and writes its answer to another one; what it prints comes from libraries.
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

from limba.config import InputError, RunConfig, saved_config
from limba.config.errors import is_out_of_memory

if TYPE_CHECKING:
    from limba.api import PlannedRun

Json = dict[str, Any]

# How a TPU's compiler says what a program that does not fit would need.
NEEDED = (re.compile(r"Used ([\d.]+)([KMG]) of"), re.compile(r"temporaries \(([\d.]+)([KMG])\)"))
UNITS = {"K": 2**10, "M": 2**20, "G": 2**30}


def figures(config: RunConfig, feature_shapes: Mapping[str, tuple[int, int]], name: str, dump: str) -> Json:
    """Returns the figures of the run's step compiled for a topology, whose devices this process describes.

    "fits" is what a TPU's compiler says; None for others, whose compilers know no limit. Sizes are bytes of one device:
    "live_bytes" by jax's analysis, "reported_bytes" as a TPU's compiler counts them, which is less. Times are seconds
    of this process: "seconds" by the clock and "cpu_seconds" of all threads.
    """
    from limba.tools.preflight.compiled import topologies

    began = time.perf_counter()
    cpu_began = time.process_time()
    topology = topologies.topology(name)
    devices = topologies.devices_of(topology, dump)
    from limba.api import PlannedRun  # imports jax, which has to find the devices

    result = _of_step(PlannedRun(config), feature_shapes, devices, topology.platform, dump)
    result["seconds"] = time.perf_counter() - began
    result["cpu_seconds"] = time.process_time() - cpu_began
    return result


def _of_step(
    run: PlannedRun, feature_shapes: Mapping[str, tuple[int, int]], devices: Any, platform: str, dump: str
) -> Json:
    """Compiles the step; returns what its program says, or that a TPU's compiler finds it too large."""
    import jax

    from limba.tools.preflight.compiled import memory, program

    step = run.step_on(devices, feature_shapes)
    result: Json = {"mesh": step.mesh_sizes, "state_bytes": step.state_bytes}
    traced = step.traced()
    kernels = kernel_flops(traced.jaxpr)
    # The card is only described, not present, so jax must be told what to lower for.
    platforms = ("cuda",) if platform == "gpu" else None
    try:
        compiled = traced.lower(lowering_platforms=platforms).compile()
    except jax.errors.JaxRuntimeError as error:
        if not is_out_of_memory(error):
            raise
        needed = max(needed_bytes(str(error)), memory.peak_bytes(dump), step.state_bytes)
        return result | {"fits": False, "live_bytes": needed, "largest": memory.largest(dump, "")}
    text = compiled.as_text() or ""
    costs = program.costs_of_program(text)
    return result | {
        "fits": True if platform == "tpu" else None,
        "live_bytes": step.live_bytes(compiled),
        "reported_bytes": memory.reported_bytes(dump) if platform == "tpu" else 0,
        "collective_bytes": dict(costs.collective_bytes),
        "fusion_cycles": costs.fusion_cycles,
        "product_flops": costs.product_flops,
        "kernel_flops": sum(kernels.get(kernel, 0.0) * number for kernel, number in costs.kernels.items()),
        "largest": memory.largest(dump, text),
    }


def needed_bytes(sentence: str) -> int:
    """Returns the bytes that a program needs, from the sentence of a TPU's compiler; 0 if it names none.

    >>> needed_bytes("Used 20.25G of 15.48G hbm.") / 2**30, needed_bytes("HLO temporaries (937.50G) exceeds") / 2**30
    (20.25, 937.5)
    """
    for pattern in NEEDED:
        match = pattern.search(sentence)
        if match:
            number, unit = match.groups()
            return int(float(number) * UNITS[unit])
    return 0


def kernel_flops(jaxpr: Any) -> dict[str, float]:
    """Returns {Pallas kernel: FLOPs of one call on one device}, as the kernels themselves say."""
    import jax

    flops: dict[str, float] = {}

    def visit(jaxpr: Any) -> None:
        for equation in jaxpr.eqns:
            if equation.primitive.name == "pallas_call":
                cost = equation.params.get("cost_estimate")
                flops[equation.params["name"]] = float(cost.flops) if cost else 0.0
                continue
            # Loops, conditions and functions hold programs among their parameters.
            for value in jax.tree.leaves(list(equation.params.values()), is_leaf=is_program):
                if is_program(value):
                    visit(getattr(value, "jaxpr", value))

    visit(getattr(jaxpr, "jaxpr", jaxpr))
    return flops


def is_program(value: object) -> bool:
    """Returns whether a parameter of an operation is a traced program."""
    return hasattr(value, "eqns") or hasattr(value, "jaxpr")


def _answer(request: Json) -> Json:
    shapes = {name: tuple(shape) for name, shape in request["feature_shapes"].items()}
    try:
        config = saved_config.from_text(request["config"], "the request")
        assert isinstance(config, RunConfig)
        return figures(config, shapes, request["topology"], request["dump"])  # pyright: ignore[reportArgumentType]
    except InputError as error:
        return {"error": str(error), "fix": error.fix}
    except Exception as error:  # noqa: BLE001  whatever a compiler raises is reported by the process that asked
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
