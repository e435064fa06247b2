"""Times the training steps of Limba, T5X and Hugging Face's torch in turn, in one run, and prints ratios.

    python -m benchmarks.peers --t5x=CHECKOUT --torch --rounds=3
    python -m benchmarks.peers --torch --dtype=bfloat16                       # torch under autocast
    python -m benchmarks.peers --torch --compile --torch_attention=flex_attention --size=base --batch=64 \
        --dtype=bfloat16                                                      # on a GPU

T5 1.1, random tokens, Adafactor, dropout off, each in a process of its own: ours, then each peer, then
ours again, … A shared machine drifts, so the ratios are taken round by round. Of T5X its network and loss run
(`examples/t5/network.py`, `losses.py` of a checkout), under optax's Adafactor; torch needs requirements-results.txt,
and on a GPU a torch for CUDA. transformers' attention is torch's scaled_dot_product_attention, or with
--torch_attention=flex_attention torch's FlexAttention, which reads the relative bias while it computes the scores.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import types
from collections.abc import Sequence
from pathlib import Path

from benchmarks.train_step import add_sizes, median_seconds, reported
from limba.cli import program
from limba.cli.arguments import Parser
from limba.config import InputError, ModelConfig, environment

LEARNING_RATE = 1e-2
FLEX = "flex_attention"


def _sizes(args: argparse.Namespace) -> ModelConfig:
    from limba.cli.gin import read_model

    overrides = [f"DTYPE={args.dtype}", "SCAN_LAYERS=False", "REMAT=none", "DROPOUT_RATE=0.0"]
    return read_model(f"gin/models/t5_1_1/{args.size}.gin", overrides)


def _tokens(args: argparse.Namespace, vocab_size: int):
    import numpy as np

    random = np.random.default_rng(0)
    return (random.integers(3, vocab_size, (args.batch, width)) for width in (args.inputs, args.targets))


def time_t5x(args: argparse.Namespace) -> float:
    """Returns the seconds of a step of T5X's network, imported without its trainer's dependencies."""
    import jax
    import jax.numpy as jnp
    import optax

    package = types.ModuleType("t5x")
    package.__path__ = [str(Path(args.t5x) / "t5x")]
    sys.modules["t5x"] = package
    from t5x import losses  # pyright: ignore[reportMissingImports]  # the checkout that --t5x names
    from t5x.examples.t5 import network  # pyright: ignore[reportMissingImports]

    sizes = _sizes(args)
    config = network.T5Config(
        vocab_size=sizes.vocab_size,
        emb_dim=sizes.emb_dim,
        num_heads=sizes.num_heads,
        head_dim=sizes.head_dim,
        mlp_dim=sizes.mlp_dim,
        num_encoder_layers=sizes.num_encoder_layers,
        num_decoder_layers=sizes.num_decoder_layers,
        mlp_activations=("gelu", "linear"),
        dropout_rate=0.0,
        dtype=jnp.dtype(args.dtype),
    )
    model = network.Transformer(config)
    inputs, targets = map(jnp.asarray, _tokens(args, sizes.vocab_size))
    optimizer = optax.adafactor(LEARNING_RATE)
    params = model.init(jax.random.key(0), inputs, targets, targets, enable_dropout=False)["params"]

    def loss(params: dict) -> jax.Array:
        logits = model.apply({"params": params}, inputs, targets, targets, enable_dropout=False)
        return losses.compute_weighted_cross_entropy(logits, targets, jnp.ones(targets.shape), z_loss=1e-4)[0]

    def update(state: tuple) -> tuple:
        params, moments = state
        updates, moments = optimizer.update(jax.grad(loss)(params), moments, params)
        return optax.apply_updates(params, updates), moments

    update = jax.jit(update, donate_argnums=0)
    state = (params, optimizer.init(params))

    def step() -> None:
        nonlocal state
        state = jax.block_until_ready(update(state))

    return median_seconds(step, args.steps)


def time_torch(args: argparse.Namespace) -> float:
    """Returns the seconds of a step of transformers' T5 with its own Adafactor, on a GPU where torch sees one."""
    import torch
    import transformers

    if args.torch_attention == FLEX and not torch.cuda.is_available():
        raise InputError(f"--torch_attention={FLEX} has a gradient on a GPU alone, and torch sees none; give sdpa.")

    sizes = _sizes(args)
    config = transformers.T5Config(
        vocab_size=sizes.vocab_size,
        d_model=sizes.emb_dim,
        d_kv=sizes.head_dim,
        d_ff=sizes.mlp_dim,
        num_layers=sizes.num_encoder_layers,
        num_decoder_layers=sizes.num_decoder_layers,
        num_heads=sizes.num_heads,
        feed_forward_proj="gated-gelu",
        pad_token_id=0,
        dropout_rate=0.0,
        **{"tie_word_embeddings": False, "decoder_start_token_id": 0, "attn_implementation": args.torch_attention},
    )
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = transformers.T5ForConditionalGeneration(config)
    torch.nn.Module.to(model, device)
    optimizer = transformers.Adafactor(model.parameters(), lr=LEARNING_RATE, relative_step=False, warmup_init=False)
    inputs, targets = (torch.tensor(tokens, device=device) for tokens in _tokens(args, sizes.vocab_size))
    forward = torch.compile(model) if args.compile else model
    in_bfloat16 = torch.autocast(device, torch.bfloat16, enabled=args.dtype == "bfloat16")

    def step() -> None:
        with in_bfloat16:
            loss = forward(input_ids=inputs, labels=targets).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if device == "cuda":
            torch.cuda.synchronize()

    return median_seconds(step, args.steps)


def _run(module: str, args: argparse.Namespace, *more: str) -> float:
    """Returns the seconds per step that a process of its own reports."""
    names = ("size", "dtype", "batch", "inputs", "targets", "steps")
    shape = [f"--{name}={getattr(args, name)}" for name in names]
    return reported([sys.executable, "-m", module, *shape, "--json", *more], "seconds_per_step")


def main(argv: Sequence[str]) -> None:
    parser = Parser("-m benchmarks.peers", __doc__ or "", "python")
    add_sizes(parser)
    parser.add_argument("--t5x", help="a checkout of T5X")
    parser.add_argument("--torch", action="store_true", help="Hugging Face transformers on torch")
    parser.add_argument("--compile", action="store_true", help="torch.compile of transformers' model")
    parser.add_argument("--torch_attention", choices=["sdpa", FLEX, "eager"], default="sdpa", help="transformers' own")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=3, help="timed steps of each per round")
    parser.add_argument("--only", choices=["t5x", "torch"], help="time only this peer, in this process")
    args = parser.parse_args(argv)
    if min(args.rounds, args.steps, args.batch, args.inputs, args.targets) < 1:
        raise InputError("Rounds, steps, batch and lengths must be whole numbers above 0.")
    if args.t5x and not (Path(args.t5x) / "t5x/examples/t5/network.py").is_file():
        raise InputError(f"--t5x={args.t5x} is not a checkout of T5X: it has no t5x/examples/t5/network.py.")
    if args.only:
        print(json.dumps({"seconds_per_step": time_t5x(args) if args.only == "t5x" else time_torch(args)}))
        return
    peers = {"t5x": ["--only=t5x", f"--t5x={args.t5x}"]} if args.t5x else {}
    if args.torch:
        compiles = ["--compile"] if args.compile else []
        peers["torch"] = ["--only=torch", f"--torch_attention={args.torch_attention}", *compiles]
    if not peers:
        raise InputError("No peer is named; give --t5x=CHECKOUT, --torch, or both.")
    seconds: dict[str, list[float]] = {"limba": [], **{name: [] for name in peers}}
    for _ in range(args.rounds):
        seconds["limba"].append(_run("benchmarks.train_step", args, f"--remat={args.remat}"))
        for name, more in peers.items():
            seconds[name].append(_run("benchmarks.peers", args, *more))
    ratios = {
        name: [theirs / ours for theirs, ours in zip(seconds[name], seconds["limba"], strict=True)] for name in peers
    }
    if args.json:
        print(json.dumps({"seconds_per_step": seconds, "times_slower_than_limba": ratios}))
        return
    for name, times in seconds.items():
        slower = f"; {statistics.median(ratios[name]):.2f} times Limba's" if name in ratios else ""
        print(f"{name:8}{statistics.median(times):7.2f} s/step (rounds {', '.join(f'{s:.2f}' for s in times)}){slower}")


if __name__ == "__main__":
    environment.set_variables()
    environment.use_large_pages()
    sys.exit(program.exit_code(main, sys.argv[1:]))
