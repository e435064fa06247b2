"""Times the training step of a model on random tokens, on this machine's devices.

    python -m benchmarks.train_step --size=small --batch=8 --inputs=512 --targets=114 --dtype=float32 --json
    python -m benchmarks.train_step --family=modernbert --size=base --batch=32 --targets=1024 --predicted=320
    python -m benchmarks.train_step --family=lm --size=1.0b --batch=16 --targets=1024 --optimizer=adamw

A decoder-only model and an encoder have no inputs of their own. Prints seconds per step (median), tokens per second
(inputs and targets), peak resident memory in MB, compile seconds, the GiB that the compiler says a device holds, those
that it held where the device tells them, and the MFU where the device's peak is known.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from limba.cli import program
from limba.cli.arguments import Parser
from limba.config import InputError, ModelConfig, environment
from limba.config.optimizer import RULES

if TYPE_CHECKING:
    import numpy as np


def median_seconds(run: Callable[[], object], repeats: int) -> float:
    """Returns the median seconds of a call, the first one, which compiles, left out."""
    times = []
    for _ in range(repeats + 1):
        began = time.perf_counter()
        run()
        times.append(time.perf_counter() - began)
    return statistics.median(times[1:])


def reported(command: Sequence[str], name: str) -> float:
    """Returns a figure of the JSON that a program prints last; InputError if it fails."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        last_line = (done.stderr.strip().splitlines() or ["no output"])[-1]
        raise InputError(f"{' '.join(command)} failed: {last_line}")
    return json.loads(done.stdout.splitlines()[-1])[name]


def time_step(config: ModelConfig, args: argparse.Namespace) -> dict[str, float]:
    """Returns the figures of `args.steps` timed steps after one that compiles and one that warms up."""
    import jax
    import numpy as np

    from limba.config import LossConfig, MeshConfig, optimizer_config
    from limba.model import Network
    from limba.sharding.mesh import batch_sharding, make_mesh
    from limba.training.metrics.flops import flops_per_sequence, peak_flops_per_device
    from limba.training.optimizer import make_optimizer
    from limba.training.placement import place_batch
    from limba.training.schedule import make_schedule
    from limba.training.state import create_state, state_shardings
    from limba.training.step import Gradient, jit_train_step
    from limba.training.step_memory import live_bytes

    mesh = make_mesh(MeshConfig())
    model = Network(config, mesh)
    choice = optimizer_config(name=args.optimizer)
    optimizer = make_optimizer(choice, args.steps)
    schedule = make_schedule(choice.schedule, args.steps)
    shardings = state_shardings(model, optimizer, mesh)
    state = create_state(model, optimizer, shardings, seed=0)
    limits = (np.full(2, np.inf, np.float32),) if args.drops else ()
    gradient = Gradient(model, LossConfig(), args.microbatches)
    step = jit_train_step(gradient, optimizer, schedule, shardings, args.drops)
    batch = place_batch(random_batch(config, args), batch_sharding(mesh))
    key = jax.random.key(0)

    began = time.perf_counter()
    compiled = step.lower(state, batch, key, *limits).compile()
    compile_seconds = time.perf_counter() - began
    seconds = []
    for _ in range(args.steps + 1):
        began = time.perf_counter()
        state, metrics = compiled(state, batch, key, *limits)
        jax.block_until_ready((state, metrics))
        seconds.append(time.perf_counter() - began)
    typical = statistics.median(seconds[1:])
    inputs = 0 if config.is_decoder_only else args.inputs
    figures = {
        "seconds_per_step": typical,
        "seconds_per_step_min": min(seconds[1:]),
        "seconds_per_step_max": max(seconds[1:]),
        "tokens_per_second": args.batch * (inputs + args.targets) / typical,
        "sequences_per_second_per_device": args.batch / typical / mesh.size,
        "peak_rss_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "compile_seconds": compile_seconds,
        "loss": float(metrics["loss"]),
        "live_gib_per_chip": live_bytes(compiled) / 2**30,
    }
    memory = jax.devices()[0].memory_stats()
    if memory:  # None on a CPU
        figures["device_peak_gib"] = memory["peak_bytes_in_use"] / 2**30
    peak = peak_flops_per_device()
    if peak:
        flops = flops_per_sequence(config, inputs, args.targets, args.predicted) * args.batch
        figures["mfu"] = flops / typical / (peak * mesh.size)
    return figures


def random_batch(config: ModelConfig, args: argparse.Namespace) -> dict[str, np.ndarray]:
    """Returns the features of a batch of random tokens, as a run of this model has them."""
    import numpy as np

    from limba.data.packing import model_features

    random = np.random.default_rng(0)
    lengths = {"targets": args.targets} if config.is_decoder_only else {"inputs": args.inputs, "targets": args.targets}
    rows = {name: random.integers(3, config.vocab_size, (args.batch, width)) for name, width in lengths.items()}
    features = model_features(rows)
    if args.predicted:  # an encoder's: other tokens have no logits
        places = [np.sort(random.choice(args.targets, args.predicted, replace=False)) for _ in range(args.batch)]
        features["decoder_predicted_positions"] = np.asarray(places, np.int32)
    return features


def add_sizes(parser: argparse.ArgumentParser, **defaults: object) -> None:
    """Adds the flags of a step's shape, as `train_step`, `compiled` and `peers` have them; `defaults` replaces some."""
    parser.add_argument("--size", default="small", help="file in the family's folder, without .gin")
    parser.add_argument("--batch", type=int, default=8, help="sequences per step, over all devices")
    parser.add_argument("--inputs", type=int, default=512, help="input tokens of the encoder")
    parser.add_argument("--targets", type=int, default=114)
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16"], help="dtype of the activations")
    parser.add_argument("--remat", default="none", choices=["none", "minimal", "full"], help="for Limba only")
    parser.add_argument("--json", action="store_true", help="print JSON only")
    parser.set_defaults(**defaults)


def add_choices(parser: argparse.ArgumentParser, **defaults: object) -> None:
    """Adds `add_sizes` and what else `model_of` and a step of Limba's take."""
    parser.add_argument("--family", default="t5_1_1", help="folder in gin/models")
    parser.add_argument("--vocab", type=int, help="rows of the embedding; default: the family's")
    parser.add_argument("--optimizer", default="adafactor", choices=RULES)
    parser.add_argument("--microbatches", type=int, default=1)
    parser.add_argument("--scan", action=argparse.BooleanOptionalAction, default=False, help="scan the layers")
    parser.add_argument("--attention", default="auto")
    parser.add_argument("--predicted", type=int, help="tokens of an encoder's row that have logits; default: all")
    parser.add_argument("--field", action="append", default=[], metavar="NAME=VALUE", help="a field of ModelConfig")
    add_sizes(parser, **defaults)


def check_sizes(args: argparse.Namespace) -> None:
    """Raises InputError for a shape that no step has."""
    smallest = min(args.batch, args.inputs, args.targets, args.microbatches)
    if smallest < 1 or args.batch % args.microbatches:
        raise InputError(
            "Batch, lengths and micro-batches must be whole numbers above 0, and micro-batches must divide the batch."
        )


def model_of(args: argparse.Namespace) -> ModelConfig:
    """Returns the network that the flags name, without dropout."""
    from limba.cli.gin import read_model

    overrides = [f"DTYPE={args.dtype}", f"SCAN_LAYERS={args.scan}", f"REMAT={args.remat}", "DROPOUT_RATE=0.0"]
    if args.vocab:
        overrides.append(f"VOCAB_SIZE={args.vocab}")
    overrides += [f"config.ModelConfig.{field}" for field in args.field]
    config = read_model(f"gin/models/{args.family}/{args.size}.gin", overrides)
    return dataclasses.replace(config, attention=args.attention)


def main(argv: Sequence[str]) -> None:
    parser = Parser("-m benchmarks.train_step", __doc__ or "", "python")
    add_choices(parser)
    parser.add_argument("--drops", action="store_true", help="the step of GuardConfig.action 'skip'")
    parser.add_argument("--steps", type=int, default=5, help="timed steps")
    args = parser.parse_args(argv)
    check_sizes(args)
    if args.steps < 1:
        raise InputError(f"--steps is {args.steps}; give a whole number above 0.")
    figures = time_step(model_of(args), args)
    if args.json:
        print(json.dumps({**vars(args), **figures}))
    else:
        print("\n".join(f"{name:34}{value:,.4g}" for name, value in figures.items()))


if __name__ == "__main__":
    environment.set_variables()
    environment.use_large_pages()
    sys.exit(program.exit_code(main, sys.argv[1:]))
