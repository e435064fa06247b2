"""What the rows of a stream take of the host's memory at least, so that what cannot fit is refused before it is read.

These are lower bounds. What passes may still not fit; what is refused would never have fitted.
"""

from __future__ import annotations

from collections.abc import Mapping

from limba.config import ConfigError, DataConfig
from limba.storage.memory import free_memory, size

BYTES_A_TOKEN = 4
BYTES_IN_A_BUFFER = 400  # of a row in a shuffle buffer, however short: Python's dictionary and an array or two


def check_rows(field: str, num_rows: int, lengths: Mapping[str, int]) -> None:
    """Raises ConfigError if a batch of the field's rows does not fit into the memory that is free."""
    per_row = BYTES_A_TOKEN * max(sum(lengths.values()), 1)
    free = free_memory()
    if num_rows * per_row > free:
        raise ConfigError(
            field,
            f"is {num_rows:,}: so many rows {dict(lengths)} take {size(num_rows * per_row)} of this host's memory at"
            f" least, and {size(free)} are free; give at most {free // per_row:,}.",
        )


def check_stream(config: DataConfig, lengths: Mapping[str, int], num_shards: int) -> None:
    """Raises ConfigError if a batch, or the shuffle buffers, of so many data shards on this host do not fit."""
    per_row = BYTES_A_TOKEN * max(sum(lengths.values()), 1)
    free = free_memory()
    needed = num_shards * config.rows_per_shard * per_row
    if needed > free:
        most = max(free // (num_shards * per_row), 1) * config.num_shards
        raise ConfigError(
            "DataConfig.batch_size",
            f"is {config.batch_size:,}: the rows {dict(lengths)} of this host take {size(needed)} at least, and"
            f" {size(free)} are free; give at most {most:,}.",
        )
    if not config.shuffle:
        return
    needed = num_shards * config.shuffle_buffer * BYTES_IN_A_BUFFER
    if needed > free:
        raise ConfigError(
            "DataConfig.shuffle_buffer",
            f"is {config.shuffle_buffer:,} rows for each of {num_shards} data shards, which take {size(needed)} of this"
            f" host's memory at least, and {size(free)} are free; give at most"
            f" {free // (num_shards * BYTES_IN_A_BUFFER):,}.",
        )
