"""The least memory that generation and scoring need, so that what cannot fit is refused before it is tried.

These are lower bounds: a cache, the logits of one step, the rows that are read. A request that passes may still not
fit, and ends with the device's own error; a request that is refused could never fit.
"""

from __future__ import annotations

import sys
from typing import Any

from jax.sharding import Mesh

from limba.config import ConfigError, GenerationConfig, InputError, ModelConfig
from limba.formats.t5x import numpy_dtype
from limba.storage.memory import free_memory, size

FLOAT_BYTES = 4
ID_BYTES = 4
LEAST_MAX_TOKENS = 16  # a smaller max_tokens is not proposed


def memory_of(mesh: Mesh) -> int:
    """Returns the bytes that the mesh's devices have; of CPUs, those that are free on this host."""
    if not mesh.local_devices:  # a compiler's mesh, of devices that are not here
        return sys.maxsize
    limits = [_limit_of(device) for device in mesh.local_devices]
    hosts = max(1, len({device.process_index for device in mesh.devices.flat}))
    return hosts * (sum(limits) if all(limits) else free_memory())


def _limit_of(device: Any) -> int:
    """Returns the bytes of a device; 0 if it does not say."""
    try:
        return (device.memory_stats() or {}).get("bytes_limit", 0)
    except RuntimeError:  # jax's own, of a device that has no such figures
        return 0


def check_generation(network: ModelConfig, config: GenerationConfig, num_rows: int, mesh: Mesh) -> None:
    """Raises ConfigError or InputError if so many rows of so many tokens do not fit into the memory.

    The sentence names the first of these that alone would make it fit, and how much of it: fewer tokens, fewer beams or
    samples, fewer texts at a time.
    """
    width = max(config.num_beams, config.num_samples)
    free = memory_of(mesh)
    per_token = bytes_per_token(network)
    logits_bytes = num_rows * width * network.vocab_size * FLOAT_BYTES
    needed = logits_bytes + num_rows * width * config.max_tokens * per_token
    if needed <= free:
        return
    several = f" with {width:,} beams or samples each" if width > 1 else ""
    what = f"{num_rows:,} texts at a time{several} take {size(needed)} at least, and {size(free)} are free"
    most_tokens = (free - logits_bytes) // (num_rows * width * per_token)
    if most_tokens >= LEAST_MAX_TOKENS:
        raise ConfigError(
            "GenerationConfig.max_tokens", f"is {config.max_tokens:,}: {what}; give at most {most_tokens:,}."
        )
    per_text = network.vocab_size * FLOAT_BYTES + config.max_tokens * per_token
    most_width = free // (num_rows * per_text)
    if width > 1 and most_width:
        field = "num_beams" if config.num_beams > 1 else "num_samples"
        raise ConfigError(f"GenerationConfig.{field}", f"is {width:,}: {what}; give at most {most_width:,}.")
    most_texts = free // (width * per_text)
    if most_texts:
        raise InputError(f"Generation does not fit: {what}; give at most {most_texts:,} texts at a time.")
    raise ConfigError(
        "GenerationConfig.max_tokens", f"is {config.max_tokens:,}: {what}; give a smaller number, and fewer texts."
    )


def bytes_per_token(network: ModelConfig) -> int:
    """Returns the bytes of one token of one text: its keys and values in each layer, and its id."""
    layers = network.num_decoder_layers or network.num_encoder_layers
    heads = network.num_kv_heads or network.num_heads
    return 2 * layers * heads * network.head_dim * numpy_dtype(network.dtype).itemsize + ID_BYTES


def check_scoring(network: ModelConfig, num_rows: int, mesh: Mesh) -> None:
    """Raises InputError if the logits of so many of the shortest rows do not fit into the memory."""
    free = memory_of(mesh)
    per_row = 2 * network.vocab_size  # of one token, in bfloat16
    if num_rows * per_row > free:
        raise InputError(
            f"A batch of {num_rows:,} texts takes {size(num_rows * per_row)} at least, and {size(free)} are free; give"
            f" at most {max(1, free // per_row):,} at a time."
        )


def check_fills(network: ModelConfig, num_rows: int, width: int, top: int, mesh: Mesh) -> None:
    """Raises InputError if so many fills of so many texts, of which `width` tokens are read, do not fit."""
    free = memory_of(mesh)
    per_fill = num_rows * (width * network.emb_dim + 4 * network.vocab_size) * FLOAT_BYTES
    if top * per_fill > free:
        raise InputError(
            f"top is {top:,}: so many fills of {num_rows} texts take {size(top * per_fill)} at least, and {size(free)}"
            f" are free; give at most {max(1, free // per_fill):,}."
        )
