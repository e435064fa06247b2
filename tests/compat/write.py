"""Converts a tiny model of every family, with our own logits, text and token ids beside it: `tests/compat/run.sh`."""

from __future__ import annotations

import contextlib
import io
import json
import sys
from pathlib import Path

import numpy as np

from limba.cli import convert
from limba.config import ModelConfig, environment
from limba.data.vocabulary.load import load_vocabulary
from limba.data.vocabulary.train import train_vocabulary
from limba.export import proof as check
from tasks.demo import pydoc_corpus
from tests.export.runs import write_run

SIZES = {"emb_dim": 64, "num_heads": 4, "head_dim": 16, "mlp_dim": 96, "dtype": "float32"}
FAMILIES = {
    "t5_1_0": {"mlp_activations": ("relu",), "logits_via_embedding": True},
    "t5_1_1": {},
    "mt5": {"vocab_size": 2048},
    "deep_decoder": {"num_decoder_layers": 3},
    "umt5": {"relative_bias_per_layer": True},
    "byt5": {"vocab_size": 384, "num_encoder_layers": 3, "num_decoder_layers": 1},
}


def write(out: Path) -> None:
    pydoc_corpus(out / "corpus.jsonl")
    texts = (json.loads(line)["text"] for line in (out / "corpus.jsonl").read_text().splitlines())
    train_vocabulary(texts, 800, str(out / "pieces.model"))
    for family, fields in FAMILIES.items():
        layers = {"vocab_size": 1024, "num_encoder_layers": 2, "num_decoder_layers": 2}
        config = ModelConfig(**{**SIZES, **layers, **fields})
        arrays = write_run(out / family / "run", config)[5]
        name = "byte" if family == "byt5" else str(out / "pieces.model")
        flags = ("--no_check", "--transformers=4", f"--vocabulary={name}")
        with contextlib.redirect_stdout(io.StringIO()):
            convert.run(["export", str(out / family / "run"), str(out / family / "out"), *flags])
        vocabulary = load_vocabulary(name)
        generation = json.loads((out / family / "out" / "step_5" / "generation_config.json").read_text())
        proof = check.Proof(arrays, config, vocabulary, generation.get("suppress_tokens", ()))
        ids = {f"ids/{text}": np.array([*vocabulary.encode(text), 1]) for text in (*check.TEXTS, "naïve ☃ 語")}
        np.savez(out / family / "expected.npz", logits=proof._logits, tokens=proof._tokens, **proof._batch, **ids)


if __name__ == "__main__":
    environment.set_variables()
    write(Path(sys.argv[1]))
