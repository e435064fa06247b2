"""Times generation beside transformers on torch, or compares the two token for token on real text.

    python -m benchmarks.generate --rounds=3
    python -m benchmarks.generate --top_k=20 --top_p=0.9
    python -m benchmarks.generate --folder=MODEL --texts=TEXTS.jsonl --column=text --num=50

The first two: T5 1.1 of a `--size`, by default `small`, random weights, float32, a batch of 8, 64 new tokens (the end
of sequence forbidden), greedy, by `--beams`, or drawn where `--top_k` or `--top_p` is given, each in a separate
process, in turn; ratios are taken round by round. The last: a Hugging Face folder with a tokenizer, read by both,
greedy and by beams. All need requirements-results.txt.
"""

from __future__ import annotations

import argparse
import gzip
import itertools
import json
import statistics
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from benchmarks.train_step import median_seconds, reported
from limba.cli import program
from limba.cli.arguments import Parser
from limba.config import InputError, environment

SIZES = {
    "small": {"emb_dim": 512, "num_heads": 6, "head_dim": 64, "mlp_dim": 1024, "layers": 8, "vocab_size": 32_128},
    "base": {"emb_dim": 768, "num_heads": 12, "head_dim": 64, "mlp_dim": 2048, "layers": 12, "vocab_size": 32_128},
}
BEAMS = {"num_beams": 4, "length_penalty": 0.8, "early_stopping": True}
EOS = 1


def _inputs(args: argparse.Namespace) -> np.ndarray:
    random = np.random.default_rng(0)
    return random.integers(3, SIZES[args.size]["vocab_size"], (args.batch, args.inputs)).astype(np.int32)


def _is_drawn(args: argparse.Namespace) -> bool:
    return args.top_k is not None or args.top_p is not None


def time_limba(args: argparse.Namespace) -> float:
    """Returns the seconds of one batch, encoding included."""
    import jax
    import jax.numpy as jnp

    from limba.config import GenerationConfig, ModelConfig
    from limba.inference.generate import Plan, ProgramInputs, generate
    from limba.inference.search import banned_mask
    from limba.model import Network

    sizes = dict(SIZES[args.size])
    layers = dict.fromkeys(("num_encoder_layers", "num_decoder_layers"), sizes.pop("layers"))
    model = Network(ModelConfig(**sizes, **layers, dtype="float32"))
    params = jax.jit(model.init)(jax.random.key(0))
    banned = jnp.asarray(banned_mask(sizes["vocab_size"], sizes["vocab_size"], [EOS]))
    inputs = jnp.asarray(_inputs(args))
    config = GenerationConfig(
        max_tokens=args.tokens, num_beams=args.beams, sample=_is_drawn(args), top_k=args.top_k, top_p=args.top_p
    )
    program_inputs = ProgramInputs(inputs, banned, jax.random.split(jax.random.key(0), args.batch))
    return median_seconds(
        lambda: jax.block_until_ready(generate(Plan(model, config), params, program_inputs)), args.repeats
    )


def time_torch(args: argparse.Namespace) -> float:
    """Returns the seconds of one batch of transformers' `generate`."""
    import torch
    import transformers

    sizes = SIZES[args.size]
    make: Any = transformers.T5Config  # its stub lacks the fields that all configurations have
    config = make(
        vocab_size=sizes["vocab_size"],
        d_model=sizes["emb_dim"],
        d_kv=sizes["head_dim"],
        d_ff=sizes["mlp_dim"],
        num_layers=sizes["layers"],
        num_heads=sizes["num_heads"],
        feed_forward_proj="gated-gelu",
        tie_word_embeddings=False,
        decoder_start_token_id=0,
        pad_token_id=0,
        eos_token_id=EOS,
    )
    model: Any = transformers.T5ForConditionalGeneration(config).eval()
    inputs = torch.tensor(_inputs(args)).long()
    choices = {"max_new_tokens": args.tokens, "min_new_tokens": args.tokens, "num_beams": args.beams}
    if _is_drawn(args):
        choices |= {"do_sample": True, "top_k": args.top_k or 0, "top_p": args.top_p or 1.0}

    def run() -> None:
        with torch.inference_mode():
            model.generate(inputs, attention_mask=torch.ones_like(inputs), **{"do_sample": False, **choices})

    return median_seconds(run, args.repeats)


def _texts(path: str, column: str, num: int) -> list[str]:
    with (gzip.open if path.endswith(".gz") else open)(path, "rt", encoding="utf-8") as file:
        return [json.loads(line)[column] for line in itertools.islice(file, num)]


def compare(args: argparse.Namespace) -> dict[str, int]:
    """Returns search -> number of texts of which every token is the same in both."""
    import jax.numpy as jnp
    import torch
    import transformers

    from limba.config import GenerationConfig
    from limba.export.proof import quiet_libraries
    from limba.formats.huggingface import model_config, open_folder
    from limba.inference.generate import Plan, ProgramInputs, generate
    from limba.inference.load import place_parameters
    from limba.inference.search import banned_mask
    from limba.model import Network

    quiet_libraries()
    config = model_config(args.folder, dtype="float32")
    model = Network(config)
    params = place_parameters(open_folder(args.folder, config), model)
    theirs = transformers.AutoModelForSeq2SeqLM.from_pretrained(args.folder, dtype=torch.float32).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(args.folder)
    texts = _texts(args.texts, args.column, args.num)
    encoded = tokenizer(texts, truncation=True, max_length=args.inputs, padding="max_length", return_tensors="pt")
    banned = jnp.asarray(banned_mask(config.vocab_size, config.vocab_size))
    equal = {}
    for name, search in (("greedy", {}), ("beams", BEAMS)):
        chosen = GenerationConfig(max_tokens=args.tokens, **search)
        equal[name] = 0
        for start in range(0, len(texts), args.batch):
            ids, mask = (encoded[key][start : start + args.batch] for key in ("input_ids", "attention_mask"))
            inputs = ProgramInputs(jnp.asarray(ids.numpy(), jnp.int32), banned)
            ours = np.asarray(generate(Plan(model, chosen), params, inputs).tokens[:, 0])
            with torch.inference_mode():
                written = theirs.generate(
                    ids, attention_mask=mask, do_sample=False, max_new_tokens=args.tokens, **search
                ).numpy()[:, 1:]
            written = np.pad(written, ((0, 0), (0, args.tokens - written.shape[1])))
            written[np.cumsum(np.cumsum(written == EOS, axis=1), axis=1) > 1] = 0  # beams are padded with the end
            equal[name] += int((written == ours).all(axis=1).sum())
    return equal


def _run(args: argparse.Namespace, peer: str) -> float:
    names = ("size", "batch", "inputs", "tokens", "beams", "top_k", "top_p", "repeats")
    command = [sys.executable, "-m", "benchmarks.generate", f"--only={peer}"]
    given = {name: getattr(args, name) for name in names if getattr(args, name) is not None}
    return reported([*command, *(f"--{name}={value}" for name, value in given.items())], "seconds")


def main(argv: Sequence[str]) -> None:
    parser = Parser("-m benchmarks.generate", __doc__ or "", "python")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--size", choices=SIZES, default="small")
    parser.add_argument("--repeats", type=int, default=3, help="timed batches of each per round")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--inputs", type=int, default=64, help="maximum number of input tokens")
    parser.add_argument("--tokens", type=int, default=64, help="new tokens")
    parser.add_argument("--beams", type=int, default=1)
    parser.add_argument("--top_k", type=int, help="draw from so many of the likeliest tokens")
    parser.add_argument("--top_p", type=float, help="draw from the likeliest tokens of this probability")
    parser.add_argument("--folder", help="compare the texts that this Hugging Face folder generates")
    parser.add_argument("--texts", help="JSON lines (also .gz) with the inputs to compare")
    parser.add_argument("--column", default="text")
    parser.add_argument("--num", type=int, default=50, help="number of texts to compare")
    parser.add_argument("--only", choices=["limba", "torch"], help="time only this one, in this process")
    args = parser.parse_args(argv)
    names = ("rounds", "repeats", "batch", "inputs", "tokens", "beams", "num")
    if min(getattr(args, name) for name in names) < 1:
        raise InputError("Rounds, repeats, batch, inputs, tokens, beams and num must be whole numbers above 0.")
    if args.folder:
        if not args.texts:
            raise InputError("--folder compares on real text; give --texts=FILE.jsonl too.")
        for name, equal in compare(args).items():
            print(f"{name}: {equal} of {args.num} texts equal, token for token")
        return
    if args.only:
        print(json.dumps({"seconds": time_limba(args) if args.only == "limba" else time_torch(args)}))
        return
    seconds: dict[str, list[float]] = {"limba": [], "torch": []}
    for _ in range(args.rounds):
        for name, times in seconds.items():
            times.append(_run(args, name))
    ratio = statistics.median(t / o for o, t in zip(seconds["limba"], seconds["torch"], strict=True))
    for name, times in seconds.items():
        slower = f"; {ratio:.2f} times Limba's" if name == "torch" else ""
        print(f"{name:8}{statistics.median(times):7.2f} s (rounds {', '.join(f'{s:.2f}' for s in times)}){slower}")


if __name__ == "__main__":
    environment.set_variables()
    environment.use_large_pages()
    sys.exit(program.exit_code(main, sys.argv[1:]))
