"""The schedules of a TPU's Pallas kernels: each compiled alone, and its bundles counted."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any


def kernel_cycles(calls: Counter[str], argv: Sequence[str], flops_per_cycle: float) -> dict[str, dict[str, Any]]:
    """Returns {kernel: calls, cycles of all of them, counted_from}, each kernel compiled alone in a process of its own.

    (libtpu reads where to write schedules when it starts, and would write those of every fusion.)
    """
    if not calls:
        return {}
    with tempfile.TemporaryDirectory() as folder:
        flags = f"--xla_jf_dump_to={folder} --xla_jf_dump_llo_text=true"
        variables = os.environ | {"LIBTPU_INIT_ARGS": flags + " --xla_jf_dump_llo_pass_label_regex=final_bundles"}
        command = [sys.executable, "-m", "benchmarks.compiled", *argv, f"--kernels={folder}"]
        done = subprocess.run(command, env=variables, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(done.stderr[-2000:])
        flops = dict(line.split("\t")[1:] for line in done.stdout.splitlines() if line.startswith("KERNEL\t"))
        figures: dict[str, dict[str, Any]] = {}
        for name, count in calls.items():
            schedules = sorted(Path(folder).glob(f"*-{name}.[0-9]*final_bundles.txt"))
            schedules = [path for path in schedules if "analysis" not in path.name]
            cycles = cycles_of_schedule(schedules[-1].read_text()) if schedules else None
            counted_from = "compiled schedule"
            if cycles is None:
                cycles, counted_from = int(float(flops[name]) / flops_per_cycle), "FLOPs at 60 % of peak"
            figures[name] = {"calls": count, "cycles": count * cycles, "counted_from": counted_from}
    return figures


def cycles_of_schedule(text: str) -> int | None:
    """Returns the cycles of a kernel's final bundles, one cycle a bundle; None if its loop cannot be read.

    The grid is one loop, marked `>`; its exit test names its iterations on one core, two of which only
    start and end the pipeline. Bundles under a condition count as if it held. A loop inside (`> >`) cannot
    be multiplied here.
    """
    inside = outside = deeper = 0
    iterations = None
    for line in text.splitlines():
        bundle = re.match(r"\s*0x[0-9a-f]+\s+(?:[A-Z]{2})?\s*:\s*((?:> ?)*)\{", line) or re.match(
            r"\s*0\s+(?:[A-Z]{2})?\s*:\s*((?:> ?)*)\{", line
        )
        if not bundle:
            continue
        depth = bundle[1].count(">")
        outside, inside, deeper = outside + (depth == 0), inside + (depth == 1), deeper + (depth > 1)
        if depth == 1 and (bound := re.search(r"scmp\.ge\.s32\.totalorder %\S+, (\d+) /\* loop exit test \*/", line)):
            iterations = int(bound[1]) - 2
    if iterations is None or deeper:
        return None if inside or deeper else outside
    return outside + inside * iterations


def _compile_alone(equation: Any, name: str, shapes: list[Any]) -> None:
    import jax

    def call(*xs: Any) -> Any:
        return equation.primitive.bind(*xs, **equation.params)

    call.__name__ = name  # which the schedule's file is named after
    jax.jit(call).lower(*shapes).compile()


def compile_kernels(jaxpr: Any, device: Any) -> None:
    """Compiles each Pallas call of a traced program alone for `device`, and prints its name and FLOPs."""
    import jax
    import numpy as np
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    whole = NamedSharding(Mesh(np.array([device]), ("one",)), PartitionSpec())
    seen: set[str] = set()

    def visit(jaxpr: Any) -> None:
        for equation in jaxpr.eqns:
            if equation.primitive.name == "pallas_call":
                name = equation.params["name"]
                if name not in seen:
                    seen.add(name)
                    shapes = [jax.ShapeDtypeStruct(x.aval.shape, x.aval.dtype, sharding=whole) for x in equation.invars]
                    _compile_alone(equation, name, shapes)
                    cost = equation.params.get("cost_estimate")
                    print(f"KERNEL\t{name}\t{cost.flops if cost else 0}", flush=True)
                continue
            for value in jax.tree.leaves(
                list(equation.params.values()), is_leaf=lambda x: hasattr(x, "eqns") or hasattr(x, "jaxpr")
            ):
                inner = getattr(value, "jaxpr", value)
                if hasattr(inner, "eqns"):
                    visit(inner)

    visit(jaxpr.jaxpr if hasattr(jaxpr, "jaxpr") else jaxpr)
