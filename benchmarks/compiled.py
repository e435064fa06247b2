"""Compiles a training step for TPUs or GPUs that this machine lacks, and prints the compiler's cost estimates.

    python -m benchmarks.compiled --size=base --topology=v4-8 --batch=128 --inputs=512 --targets=114 --json
    python -m benchmarks.compiled --family=lm --size=1.0b --topology=v3-8 --batch=128 --targets=1024 --fsdp=8
    python -m benchmarks.compiled --family=encoder --topology=v4-8 --batch=256 --targets=512 --predicted=160
    python -m benchmarks.compiled --size=base --topology=h200-1                # or a100-8, …: NVIDIA's cards
    python -m benchmarks.compiled --size=small --topology=cpu-8 --batch=64     # of 8 simulated devices

Needs libtpu (`bash launch/setup.sh tpu`), for GPUs NVIDIA's compiler (`bash launch/setup.sh cuda12`); no chip. Cycles
are estimates of one device: they compare two programs for the same chips, they are not times.

fusion_cycles         XLA's estimates of its fusions, loops multiplied by their trip counts
kernel_cycles         Pallas calls: the bundles of their compiled schedule times the iterations of their grid; where a
                      schedule cannot be read, their FLOPs at 60 % of peak (`kernels` says which)
total_cycles          both; collectives carry no estimate, see all_reduce_mib, reduce_scatter_mib and all_gather_mib
live_gib_per_chip     arguments + outputs + temporaries - aliased
bytes_accessed        tpu only: what XLA's operations read and write, by its own count; a loop's body counts once
fusions               fusions that a device runs, loops multiplied
compile_cpu_seconds   of tracing and compiling, all threads
program_kib           the optimized program's text
traced_program        the digest of the step as it is traced, before anything is compiled, and of the versions that
                      compile it: a program with the same digest has the same figures. `--trace` prints it alone, in
                      seconds
estimated_seconds     total_cycles at the chip's clock
estimated_mfu         limba/training/metrics/flops.py's FLOPs over total_cycles at the chip's clock and peak
product_gflops        cpu only, instead of cycles: of a device's matrix products
kernels               gpu only, instead of cycles, which its compiler does not give: each Pallas call's registers, bytes
                      that they could not hold, shared memory, and the tensor cores' instructions it uses

Bytes of collectives are the sizes of their results on one device, or of a reduce-scatter's operands, times the loops. A
ring moves twice as many for an all-reduce as for an all-gather or a reduce-scatter of the same size.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import importlib.metadata
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.train_step import add_choices, check_sizes, model_of
from limba.cli import program
from limba.config import InputError, ModelConfig, OptimizerConfig, environment, optimizer_config
from limba.config.optimizer import fields_of
from limba.tools.preflight.compiled import nvidia, topologies

KERNEL_EFFICIENCY = 0.6  # of the peak, for a Pallas call whose schedule cannot be read
# In a schedule's text: a bundle, whose address is 0 or hexadecimal, with its loops; and the test that ends a loop.
BUNDLE = re.compile(r"\s*(?:0x[0-9a-f]+|0)\s+(?:[A-Z]{2})?\s*:\s*((?:> ?)*)\{")
EXIT_TEST = re.compile(r"scmp\.ge\.s32\.totalorder %\S+, (\d+) /\* loop exit test \*/")
# In StableHLO's text: a kernel for a TPU, as bytecode.
KERNEL_BYTECODE = re.compile(r"\\22body\\22: \\22[^\\]*\\22")
SET = re.compile(r"frozenset\(\{([^{}]*)\}\)")
# The packages that compile for a platform, beside jax's own.
COMPILERS = {
    "tpu": ["libtpu"],
    "gpu": ["jax-cuda12-plugin", "nvidia-cuda-nvcc-cu12", "jax-cuda13-plugin", "nvidia-cuda-nvcc"],
    "cpu": [],
}


def parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_choices(parser, size="base", batch=128, dtype="bfloat16", remat="minimal", scan=True)
    parser.add_argument(
        "--topology",
        default="v4-8",
        metavar="TOPOLOGY",  # the choices are some six hundred
        choices=[topology.name for topology in topologies.topologies()],
        help="v4-8, h100-1, cpu-8, …",
    )
    parser.add_argument("--average", type=float, help="decay of EvaluationConfig.average")
    parser.add_argument("--gradient_reduce_dtype", default="auto", choices=["auto", "float32", "bfloat16"])
    parser.add_argument("--logits", default="auto", choices=["auto", "whole", "chunked"])
    parser.add_argument("--fsdp", type=int, default=1)
    parser.add_argument("--model", type=int, default=1, help="devices that share a layer")
    parser.add_argument("--shard_update", action=argparse.BooleanOptionalAction, default=True, help="see MeshConfig")
    parser.add_argument("--packed", action=argparse.BooleanOptionalAction, default=True, help="with segment ids")
    parser.add_argument("--mixed", action="store_true", help="rows that say their own mask: causal, or both directions")
    parser.add_argument("--kernels", metavar="DIR", help=argparse.SUPPRESS)  # a process of its own: _schedules
    parser.add_argument("--save_hlo", metavar="FILE", help="write the optimized program's text")
    parser.add_argument("--trace", action="store_true", help="compile nothing; print the traced program's digest")
    args = parser.parse_args(argv)
    check_sizes(args)
    _divide_fields(args)
    return args


def _divide_fields(args: argparse.Namespace) -> None:
    """Leaves the network's fields in `args.field`, and puts the optimizer's into `args.optimizer_fields`."""
    of_network = set(fields_of(ModelConfig))
    of_optimizer = set(fields_of(OptimizerConfig)) - {"name", "schedule"}  # --optimizer, and a schedule costs nothing
    network_fields = []
    args.optimizer_fields = {}
    for field in args.field:
        name, equals, value = field.partition("=")
        if equals and name in of_network:
            network_fields.append(field)
        elif equals and name in of_optimizer:
            args.optimizer_fields[name] = _value(value)
        else:
            raise InputError(
                f"--field={field} is not NAME=VALUE with a field of ModelConfig ({', '.join(sorted(of_network))}) or of"
                f" OptimizerConfig ({', '.join(sorted(of_optimizer))})."
            )
    args.field = network_fields


def _value(text: str) -> Any:
    """Returns what a field's text says: a number, True, None, or the text itself."""
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def trace_step(args: argparse.Namespace, config: Any, devices: Any) -> Any:
    """Returns the traced training step over those devices, on abstract arrays."""
    import jax
    import numpy as np
    from jax.sharding import AxisType, Mesh

    from limba.config import LossConfig, MeshConfig
    from limba.model import Network
    from limba.sharding.mesh import batch_sharding
    from limba.training.optimizer import make_optimizer
    from limba.training.schedule import make_schedule
    from limba.training.state import abstract_state, state_shardings, trained_shardings
    from limba.training.step import Gradient, jit_train_step

    sizes = MeshConfig(fsdp=args.fsdp, model=args.model).sizes(devices.size)
    data, fsdp, _ = sizes
    groups = data * fsdp  # of devices that have the same rows
    if args.batch % (groups * args.microbatches):
        raise InputError(
            f"--batch={args.batch} does not divide into {args.microbatches} micro-batches over {groups} groups of"
            " devices; give a multiple of their product."
        )
    mesh = Mesh(devices.reshape(sizes), ("data", "fsdp", "model"), axis_types=(AxisType.Auto,) * 3)
    model = Network(config, mesh)
    choice = optimizer_config(name=args.optimizer, **args.optimizer_fields)
    parameters = trained_shardings(model, mesh, args.shard_update)
    optimizer = make_optimizer(choice, 1, shardings=parameters, average=args.average)
    schedule = make_schedule(choice.schedule, 1)
    shardings = state_shardings(model, optimizer, mesh, args.shard_update)
    state = abstract_state(model, optimizer, mesh, args.shard_update)
    batch = {
        name: jax.ShapeDtypeStruct((args.batch, length), np.int32, sharding=batch_sharding(mesh))
        for name, length in _features(args, config).items()
    }
    key = jax.ShapeDtypeStruct((), jax.random.key(0).dtype, sharding=shardings.step)
    loss = LossConfig(logits=args.logits)
    gradient = Gradient(model, loss, args.microbatches, args.gradient_reduce_dtype)
    step = jit_train_step(gradient, optimizer, schedule, shardings)
    return step.trace(state, batch, key)


def _features(args: argparse.Namespace, config: ModelConfig) -> dict[str, int]:
    """Returns feature -> its length of the batch that the flags describe."""
    features: dict[str, int] = {
        "decoder_input_tokens": args.targets,
        "decoder_target_tokens": args.targets,
        "decoder_loss_weights": args.targets,
    }
    if args.packed:
        features["decoder_segment_ids"] = args.targets
    if args.mixed:
        features["decoder_causal_attention"] = args.targets
    if args.predicted:
        features["decoder_predicted_positions"] = args.predicted
    if not config.is_decoder_only:
        features["encoder_input_tokens"] = args.inputs
        if args.packed:
            features["encoder_segment_ids"] = args.inputs
    return features


def compile_step(args: argparse.Namespace) -> dict[str, Any]:
    """Returns the figures of the compiled step."""
    with tempfile.TemporaryDirectory() as dump:
        return figures_of_step(args, dump)


def figures_of_step(args: argparse.Namespace, dump: str) -> dict[str, Any]:
    """Returns the figures of the compiled step; a GPU's compiler writes its kernels to the folder `dump`."""
    from limba.tools.preflight.compiled.program import costs_of_program
    from limba.training.metrics.flops import flops_per_sequence
    from limba.training.step_memory import live_bytes

    topology = topologies.topology(args.topology)
    config = model_of(args)
    devices = topologies.devices_of(topology, dump)
    began = time.perf_counter()
    cpu_began = time.process_time()
    traced = trace_step(args, config, devices)
    lowered = _lower(traced, topology)
    compiled = lowered.compile()
    compiling = {
        "compile_seconds": time.perf_counter() - began,
        "compile_cpu_seconds": time.process_time() - cpu_began,
    }
    text = compiled.as_text()
    if args.save_hlo:
        with open(args.save_hlo, "w") as file:
            file.write(text)
    costs = costs_of_program(text)
    figures = {
        "live_bytes": live_bytes(compiled),
        "live_gib_per_chip": live_bytes(compiled) / 2**30,
        "fusions": costs.fusions,
        "collectives": {
            kind: {"calls": calls, "bytes": costs.collective_bytes[kind]} for kind, calls in costs.collectives.items()
        },
        "all_reduce_mib": costs.collective_bytes["all-reduce"] / 2**20,
        "all_gather_mib": costs.collective_bytes["all-gather"] / 2**20,
        "reduce_scatter_mib": costs.collective_bytes["reduce-scatter"] / 2**20,
        "other_collectives_mib": costs.collective_bytes["other"] / 2**20,
        **compiling,
        "program_kib": len(text) / 2**10,
        "traced_program": digest(traced, lowered, topology),
    }
    if topology.platform == "gpu":
        return figures | {"kernels": nvidia.kernels(costs.kernels, dump)}
    if topology.platform == "cpu":
        return figures | {"product_gflops": costs.product_flops / 1e9, "kernels": {}}
    flops_per_cycle = KERNEL_EFFICIENCY * topology.peak_flops / (topology.clock_ghz * 1e9)
    kernels = kernel_cycles(costs.kernels, [*sys.argv[1:], "--scan"], flops_per_cycle)
    total = costs.fusion_cycles + sum(kernel["cycles"] for kernel in kernels.values())
    seconds = total / topology.clock_ghz / 1e9
    inputs = 0 if config.is_decoder_only else args.inputs
    flops = flops_per_sequence(config, inputs, args.targets, args.predicted) * args.batch
    return {
        "fusion_cycles": costs.fusion_cycles,
        "kernel_cycles": total - costs.fusion_cycles,
        "total_cycles": total,
        "bytes_accessed": int(compiled.cost_analysis()["bytes accessed"]),
        **figures,
        "estimated_seconds": seconds,
        "estimated_mfu": flops / seconds / (topology.peak_flops * devices.size),
        "kernels": kernels,
    }


def _lower(traced: Any, topology: topologies.Topology) -> Any:
    """Returns the traced step in StableHLO, for the platform of the topology."""
    # The card is only described, not present, so jax must be told what to lower for.
    platforms = ("cuda",) if topology.platform == "gpu" else None
    return traced.lower(lowering_platforms=platforms)


def digest(traced: Any, lowered: Any, topology: topologies.Topology) -> str:
    """Returns a digest of the traced step and of the packages that compile it.

    The text of the kernels' bytecode is left out of StableHLO, since it has the files and lines of their code; the
    traced program says what they compute.
    """
    text = KERNEL_BYTECODE.sub("", lowered.as_text())
    versions = [f"{name} {_version(name)}" for name in ("jax", "jaxlib", *COMPILERS[topology.platform])]
    program_text = with_sorted_sets(str(traced.jaxpr))
    return hashlib.sha256("\n".join([*versions, program_text, text]).encode()).hexdigest()[:32]


def with_sorted_sets(text: str) -> str:
    """Returns the text of a traced program with the members of each set in order: each process has another one.

    >>> with_sorted_sets("names=frozenset({'dense', 'attended'}))")
    "names=frozenset({'attended', 'dense'}))"
    """
    return SET.sub(lambda match: "frozenset({" + ", ".join(sorted(match[1].split(", "))) + "})", text)


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "none"


def digest_of_step(args: argparse.Namespace) -> str:
    """Returns the digest of the step that the flags describe; nothing is compiled."""
    topology = topologies.topology(args.topology)
    with tempfile.TemporaryDirectory() as dump:
        traced = trace_step(args, model_of(args), topologies.devices_of(topology, dump))
        return digest(traced, _lower(traced, topology), topology)


def kernel_cycles(calls: Counter[str], argv: Sequence[str], flops_per_cycle: float) -> dict[str, dict[str, Any]]:
    """Returns {kernel: calls, cycles of all of them, counted_from}, each kernel compiled alone in a process of its own.

    (libtpu reads where to write schedules when it starts, and would write one for every fusion.)
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
                cycles = int(float(flops[name]) / flops_per_cycle)
                counted_from = "FLOPs at 60 % of peak"
            figures[name] = {"calls": count, "cycles": count * cycles, "counted_from": counted_from}
    return figures


def cycles_of_schedule(text: str) -> int | None:
    """Returns the cycles of a kernel's final bundles, one cycle a bundle; None if its loop cannot be read.

    The grid is one loop, marked `>`; its exit test names its iterations on one core, two of which only
    start and end the pipeline. Bundles under a condition count as if it held. A loop inside (`> >`) cannot
    be multiplied here.
    """
    # Bundles by how many loops they stand in.
    outside = 0
    inside = 0
    deeper = 0
    iterations = None
    for line in text.splitlines():
        bundle = BUNDLE.match(line)
        if not bundle:
            continue
        depth = bundle[1].count(">")
        if depth == 0:
            outside += 1
        elif depth == 1:
            inside += 1
            bound = EXIT_TEST.search(line)
            if bound:
                iterations = int(bound[1]) - 2
        else:
            deeper += 1
    if deeper:
        return None
    if iterations is not None:
        return outside + inside * iterations
    return None if inside else outside


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

    from limba.tools.preflight.compiled.step import is_program

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
            # Loops, conditions and functions hold programs among their parameters.
            for value in jax.tree.leaves(list(equation.params.values()), is_leaf=is_program):
                inner = getattr(value, "jaxpr", value)
                if hasattr(inner, "eqns"):
                    visit(inner)

    visit(jaxpr.jaxpr if hasattr(jaxpr, "jaxpr") else jaxpr)


def main(argv: Sequence[str]) -> None:
    args = parse(argv)
    if args.kernels:
        devices = topologies.devices_of(topologies.topology(args.topology), args.kernels)
        compile_kernels(trace_step(args, model_of(args), devices).jaxpr, devices.flat[0])
        return
    if args.trace:
        print(digest_of_step(args))
        return
    figures = compile_step(args)
    if args.json:
        print(json.dumps({**vars(args), **figures}))
        return
    for name, value in figures.items():
        if name in ("kernels", "collectives"):
            continue
        if isinstance(value, str):
            print(f"{name:24}{value}")
            continue
        number = f"{value:,.4g}" if value < 1e4 else f"{value / 1e6:,.1f} M"
        print(f"{name:24}{number}")
    for name, kernel in figures["kernels"].items():
        rest = ", ".join(f"{key} {value}" for key, value in kernel.items() if key not in ("calls", "cycles"))
        cycles = f"{kernel['cycles'] / 1e6:,.2f} M, " if "cycles" in kernel else ""
        print(f"  {kernel['calls']:g} x {name}: {cycles}{rest}")


if __name__ == "__main__":
    environment.set_variables()
    os.environ |= {"JAX_PLATFORMS": "cpu", "TPU_SKIP_MDS_QUERY": "1", "ALLOW_MULTIPLE_LIBTPU_LOAD": "1"}
    os.environ.pop("JAX_COMPILATION_CACHE_DIR", None)  # compile_seconds would be a read's
    sys.exit(program.exit_code(main, sys.argv[1:]))
