"""Runs for the tests of the compiler: small networks in real configurations."""

from __future__ import annotations

import dataclasses
from typing import Any

from limba.config import DataConfig, ModelConfig, RunConfig, ScheduleConfig, optimizer_config

SMALL = ModelConfig(
    vocab_size=32768, emb_dim=512, num_heads=8, head_dim=64, mlp_dim=1024, num_encoder_layers=2, num_decoder_layers=2,
    dtype="float32", attention="einsum",
)  # fmt: skip
TINY = dataclasses.replace(
    SMALL, vocab_size=512, emb_dim=64, num_heads=2, head_dim=32, mlp_dim=128, num_encoder_layers=1, num_decoder_layers=1
)


def run(model: ModelConfig = SMALL, rows: int = 16, lengths: tuple[int, int] = (256, 64), **changes: Any) -> RunConfig:
    """Returns a run of span corruption with AdamW, whose state is 12 bytes a parameter."""
    data = DataConfig("unused", {"inputs": lengths[0], "targets": lengths[1]}, batch_size=rows)
    optimizer = optimizer_config(name="adamw", schedule=ScheduleConfig(base_learning_rate=1e-3, warmup_steps=10))
    return dataclasses.replace(RunConfig(model, data, "unused", train_steps=1000, optimizer=optimizer), **changes)


def changed(config: RunConfig, **fields: Any) -> RunConfig:
    """Returns the run with fields of its network replaced."""
    return dataclasses.replace(config, model=dataclasses.replace(config.model, **fields))
