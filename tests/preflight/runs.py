"""Runs for the tests of the compiler: small networks in real configurations."""

from __future__ import annotations

import dataclasses
from typing import Any

from benchmarks.preflight import SMALL, small_run
from limba.config import ModelConfig, RunConfig

TINY = dataclasses.replace(
    SMALL, vocab_size=512, emb_dim=64, num_heads=2, head_dim=32, mlp_dim=128, num_encoder_layers=1, num_decoder_layers=1
)


def run(model: ModelConfig = SMALL, rows: int = 16, lengths: tuple[int, int] = (256, 64), **changes: Any) -> RunConfig:
    """Returns a run of span corruption with AdamW, whose state is 12 bytes a parameter."""
    return dataclasses.replace(small_run(rows, lengths, model), **changes)


def changed(config: RunConfig, **fields: Any) -> RunConfig:
    """Returns the run with fields of its network replaced."""
    return dataclasses.replace(config, model=dataclasses.replace(config.model, **fields))
