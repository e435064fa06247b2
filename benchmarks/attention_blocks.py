"""Times attention on the NVIDIA card that is here with other blocks, and prints the fastest of each kernel.

    python -m benchmarks.attention_blocks                                # a base encoder's: 64 rows of 512, T5's bias
    python -m benchmarks.attention_blocks --batch=8 --length=2048 --width=128 --causal --no-bias

One kernel at a time has other blocks; the time is of output and gradients together, the best of three, in
bfloat16. What a card cannot hold, or what computes something else, is left out. `now`: as limba/model/kernels has it.
"""

from __future__ import annotations

import argparse
import itertools
import os
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from unittest import mock

from limba.cli import program
from limba.cli.arguments import Parser
from limba.config import InputError, environment

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
    own = pallas_gpu.Call.blocks
    call = pallas_gpu.Call(length, length, mask.rule, has_wgmma, args.interpret)

    def lowered(kernel: str, blocks: pallas_gpu.Blocks) -> jax.stages.Lowered:
        def run(query, key, value, direction, diagonals):
            choices = mask.for_kernels(), mask.rule, has_wgmma, args.interpret
            attend = lambda q, k, v, bias: pallas_gpu.pallas_attention(q, k, v, bias, *choices)
            attended, pull = jax.vjp(attend, query, key, value, diagonals)
            return attended, pull(direction)

        chosen = lambda call, name, query: blocks if name == kernel else own(call, name, query)
        with mock.patch.object(pallas_gpu.Call, "blocks", chosen):
            return jax.jit(run).lower(*arrays)

    tried = itertools.product(args.queries, args.keys, args.warps, args.stages)
    sizes = [pallas_gpu.Blocks(*each) for each in tried]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for kernel in [name for name in pallas_gpu.KERNELS if args.bias or name != "to_bias"]:
            now = own(call, kernel, heads[0])
            programs = [(blocks, lowered(kernel, blocks)) for blocks in dict.fromkeys([now, *sizes])]
            waiting = [(blocks, pool.submit(each.compile)) for blocks, each in programs]
            wanted = None
            times = {}
            for blocks, compiling in waiting:
                try:
                    run = compiling.result()
                    found = jax.tree.leaves(run(*arrays))
                except jax.errors.JaxRuntimeError:  # more shared memory than there is
                    continue
                wanted = wanted or found
                apart = [jnp.max(jnp.abs(a - b)) / jnp.max(jnp.abs(b)) for a, b in zip(found, wanted, strict=True)]
                if max(apart) < LIKE:
                    times[blocks] = 1e3 * seconds(lambda run=run: run(*arrays), args.calls)
            for blocks in sorted(times, key=times.__getitem__)[: args.shown]:
                print(f"{kernel:9} {tuple(blocks)!s:18} {times[blocks]:.3f} ms")
            print(f"{kernel:9} {tuple(now)!s:18} {times.get(now, float('nan')):.3f} ms  now", flush=True)


def main(argv: Sequence[str]) -> None:
    parser = Parser("-m benchmarks.attention_blocks", __doc__ or "", "python")
    for name, value in {"batch": 64, "length": 512, "heads": 12, "width": 64, "calls": 8, "shown": 3}.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    for name, values in {"queries": "64,128", "keys": "32,64,128", "warps": "4,8", "stages": "1,2,3"}.items():
        parser.add_argument(f"--{name}", default=values, type=lambda text: [int(each) for each in text.split(",")])
    parser.add_argument("--bias", action=argparse.BooleanOptionalAction, default=True, help="T5's relative bias")
    parser.add_argument("--causal", action="store_true")
    parser.add_argument("--interpret", action="store_true", help="without a card")
    fastest(parser.parse_args(argv))


if __name__ == "__main__":
    environment.set_variables()
    sys.exit(program.exit_code(main, sys.argv[1:]))
