"""Times attention on the NVIDIA card that is here with other blocks, and prints the fastest of each kernel.

    python -m benchmarks.attention_blocks                                # a base encoder's: 64 rows of 512, T5's bias
    python -m benchmarks.attention_blocks --batch=8 --length=2048 --width=128 --causal --no-bias
    python -m benchmarks.attention_blocks --topology=rtx4090         # compiled for a card that is not here, not timed

One kernel at a time has other blocks; the time is of output and gradients together, the best of three, in
bfloat16. What a card cannot hold, or what computes something else, is left out. `now`: as limba/model/kernels has it.

With --topology the kernels as they are now are compiled, for all widths of heads, in bfloat16 and float32; a line of
JSON has the registers of each, the bytes that these could not hold, the shared memory and the tensor cores'
instructions. It needs NVIDIA's compiler (`bash launch/setup.sh cuda12`) and no card.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest import mock

from limba.cli import program
from limba.cli.arguments import Parser
from limba.config import InputError, environment
from limba.tools.preflight.compiled import nvidia, topologies

LIKE = 2e-2  # of the largest value: blocks add up in another order


def seconds(run: Callable[[], object], calls: int) -> float:
    """Returns the seconds of a call, the best mean of three times `calls`, after one that warms up."""
    import jax

    jax.block_until_ready(run())
    means = []
    for _ in range(3):
        began = time.perf_counter()
        jax.block_until_ready([run() for _ in range(calls)][-1])
        means.append((time.perf_counter() - began) / calls)
    return min(means)


def fastest(args: argparse.Namespace) -> None:
    """Prints, for each kernel, the blocks with the shortest times and the present ones."""
    import jax
    import jax.numpy as jnp

    from limba.model.kernels import pallas_gpu
    from limba.model.kernels.choose import compute_capability
    from limba.model.masks import Mask

    device = jax.devices()[0]
    batch = args.batch
    length = args.length
    if device.platform != "gpu" and not args.interpret:
        raise InputError("jax sees no GPU here; --interpret tries the program without one, in small sizes.")
    has_wgmma = args.interpret or 9 <= compute_capability(device) < 10
    *keys, of_bias = jax.random.split(jax.random.key(0), 5)
    heads = [jax.random.normal(key, (batch, length, args.heads, args.width), jnp.bfloat16) for key in keys]
    arrays = *heads, jax.random.normal(of_bias, (args.heads, 2 * length)) if args.bias else None
    ids = jnp.ones((batch, length), jnp.int32)
    mask = Mask(ids, ids, args.causal)
    default_blocks = pallas_gpu.Call.blocks
    call = pallas_gpu.Call(length, length, mask.rule, has_wgmma, args.interpret)

    def lowered(kernel: str, blocks: pallas_gpu.Blocks) -> jax.stages.Lowered:
        def run(query, key, value, direction, diagonals):
            choices = mask.for_kernels(), mask.rule, has_wgmma, args.interpret
            attend = lambda q, k, v, bias: pallas_gpu.pallas_attention(q, k, v, bias, *choices)
            attended, pull = jax.vjp(attend, query, key, value, diagonals)
            return attended, pull(direction)

        chosen = lambda call, name, query: blocks if name == kernel else default_blocks(call, name, query)
        with mock.patch.object(pallas_gpu.Call, "blocks", chosen):
            return jax.jit(run).lower(*arrays)

    tried = itertools.product(args.queries, args.keys, args.warps, args.stages)
    sizes = [pallas_gpu.Blocks(*size) for size in tried]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for kernel in [name for name in pallas_gpu.KERNELS if args.bias or name != "to_bias"]:
            now = default_blocks(call, kernel, heads[0])
            programs = [(blocks, lowered(kernel, blocks)) for blocks in dict.fromkeys([now, *sizes])]
            waiting = [(blocks, pool.submit(lowered_step.compile)) for blocks, lowered_step in programs]
            wanted = None
            times = {}
            for blocks, compiling in waiting:
                try:
                    run = compiling.result()
                    outputs = jax.tree.leaves(run(*arrays))
                except jax.errors.JaxRuntimeError:  # more shared memory than there is
                    continue
                wanted = wanted or outputs
                apart = [jnp.max(jnp.abs(a - b)) / jnp.max(jnp.abs(b)) for a, b in zip(outputs, wanted, strict=True)]
                if max(apart) < LIKE:
                    times[blocks] = 1e3 * seconds(lambda run=run: run(*arrays), args.calls)
            for blocks in sorted(times, key=times.__getitem__)[: args.shown]:
                print(f"{kernel:9} {tuple(blocks)!s:18} {times[blocks]:.3f} ms")
            print(f"{kernel:9} {tuple(now)!s:18} {times.get(now, float('nan')):.3f} ms  now", flush=True)


def compiled(args: argparse.Namespace) -> None:
    """Prints what NVIDIA's compiler makes of the kernels as they are, a line for each width of heads and dtype."""
    import jax
    import jax.numpy as jnp
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    from limba.model.kernels import pallas_gpu
    from limba.model.kernels.choose import compute_capability
    from limba.model.masks import Mask
    from limba.tools.preflight.compiled.program import costs_of_program

    topology = topologies.topology(args.topology, "--topology=")
    if topology.platform != "gpu" or topology.kind not in nvidia.CARDS:
        raise InputError(f"--topology={args.topology} is not a card that is described; give {', '.join(nvidia.CARDS)}.")
    with tempfile.TemporaryDirectory() as dump:
        devices = nvidia.topology_devices(f"{topology.kind}-1", dump)
        has_wgmma = 9 <= compute_capability(devices[0]) < 10
        whole = NamedSharding(Mesh(devices, ("one",)), PartitionSpec())

        def shape(*sizes: int, dtype: Any) -> jax.ShapeDtypeStruct:
            return jax.ShapeDtypeStruct(sizes, dtype, sharding=whole)

        def run(query: Any, key: Any, value: Any, direction: Any, diagonals: Any, ids: Any) -> Any:
            mask = Mask(ids, ids, args.causal)
            choices = mask.for_kernels(), mask.rule, has_wgmma, False
            attend = lambda q, k, v, bias: pallas_gpu.pallas_attention(q, k, v, bias, *choices)
            attended, pull = jax.vjp(attend, query, key, value, diagonals)
            return attended, pull(direction)

        for dtype, width in itertools.product((jnp.bfloat16, jnp.float32), pallas_gpu.WIDTHS):
            for path in Path(dump).glob("*"):
                path.unlink()
            heads = [shape(args.batch, args.length, args.heads, width, dtype=dtype)] * 4
            diagonals = shape(args.heads, 2 * args.length, dtype=jnp.float32) if args.bias else None
            ids = shape(args.batch, args.length, dtype=jnp.int32)
            compiling = jax.jit(run).trace(*heads, diagonals, ids).lower(lowering_platforms=("cuda",))
            text = compiling.compile().as_text()
            assert text is not None  # as on all platforms that jax compiles for
            kernels = nvidia.kernels(costs_of_program(text).kernels, dump)
            line = {"card": topology.kind, "width": width, "dtype": jnp.dtype(dtype).name, "kernels": kernels}
            print(json.dumps(line), flush=True)


def main(argv: Sequence[str]) -> None:
    parser = Parser("-m benchmarks.attention_blocks", __doc__ or "", "python")
    for name, value in {"batch": 64, "length": 512, "heads": 12, "width": 64, "calls": 8, "shown": 3}.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    for name, values in {"queries": "64,128", "keys": "32,64,128", "warps": "4,8", "stages": "1,2,3"}.items():
        parser.add_argument(f"--{name}", default=values, type=lambda text: [int(number) for number in text.split(",")])
    parser.add_argument("--bias", action=argparse.BooleanOptionalAction, default=True, help="T5's relative bias")
    parser.add_argument("--causal", action="store_true")
    parser.add_argument("--interpret", action="store_true", help="without a card")
    parser.add_argument("--topology", metavar="CARD", help=f"compile for it: {', '.join(nvidia.CARDS)}")
    args = parser.parse_args(argv)
    if args.topology:
        compiled(args)
    else:
        fastest(args)


if __name__ == "__main__":
    environment.set_variables()
    if any(argument.startswith("--topology") for argument in sys.argv):
        os.environ["JAX_PLATFORMS"] = "cpu"
        os.environ.pop("JAX_COMPILATION_CACHE_DIR", None)  # what is kept leaves no registers behind
    sys.exit(program.exit_code(main, sys.argv[1:]))
