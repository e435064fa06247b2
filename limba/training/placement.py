"""Places rows on devices: the shards that a process reads, and its rows as parts of global arrays."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import jax
import numpy as np

from limba.config import ConfigError, DataConfig
from limba.data.packing import model_features
from limba.data.vocabulary.shifted import RowIds

Slices = tuple[slice, ...]


def shards_of_this_process(sharding: jax.sharding.Sharding, config: DataConfig) -> list[int]:
    """Returns the logical shards whose rows are on this process's devices, in order.

    Raises ConfigError if the devices divide the batch unevenly, or if a shard is on two processes.
    """
    rows = _local_rows(sharding, config.batch_size)
    rows_per_shard = config.rows_per_shard
    shards = sorted({row // rows_per_shard for row in rows})
    if len(rows) != len(shards) * rows_per_shard:
        starts = [row for row in rows if row - 1 not in rows]
        whole = int(np.gcd.reduce([*starts, len(rows), config.batch_size]))
        raise ConfigError(
            "DataConfig.num_data_shards",
            f"{config.num_data_shards} gives shards of {rows_per_shard} rows, which are on the devices of several"
            f" processes; give {config.batch_size // whole}, or a multiple of it that divides DataConfig.batch_size.",
        )
    return shards


def _local_rows(sharding: jax.sharding.Sharding, num_rows: int) -> list[int]:
    try:
        indices = sharding.addressable_devices_indices_map((num_rows, 1))
    except ValueError as error:
        raise ConfigError(
            "DataConfig.batch_size",
            f"{num_rows} does not divide over the mesh's data and fsdp axes; make it a multiple of their product.",
        ) from error
    return sorted({row for index in indices.values() if index for row in range(*index[0].indices(num_rows))})


def global_batch(
    rows_by_shard: Mapping[int, Mapping[str, np.ndarray]],
    sharding: jax.sharding.Sharding,
    config: DataConfig,
    row_ids: RowIds | None = None,
) -> dict[str, jax.Array]:
    """Returns the model features int32 [batch_size, L] as global arrays, from this host's shards.

    `row_ids` are the ids with a role in the task's vocabulary. Row r belongs to shard r // rows_per_shard, so the batch
    does not depend on how many hosts made it.
    """
    rows_per_shard = config.rows_per_shard
    shards = sorted(rows_by_shard)
    first_row = np.zeros([config.batch_size // rows_per_shard], np.int64)  # of each shard, in the local rows
    first_row[shards] = rows_per_shard * np.arange(len(shards))
    choices = (config.sequence_length, config.num_predicted, row_ids)
    features = [model_features(rows_by_shard[shard], *choices) for shard in shards]

    def place(name: str) -> jax.Array:
        local = np.concatenate([rows[name] for rows in features])

        def part(index: Slices) -> np.ndarray:
            rows = np.arange(*index[0].indices(config.batch_size))
            return local[first_row[rows // rows_per_shard] + rows % rows_per_shard][:, index[1]]

        return _array((config.batch_size, local.shape[1]), sharding, part)

    return {name: place(name) for name in features[0]}


def place_batch(batch: Mapping[str, np.ndarray], sharding: jax.sharding.Sharding) -> dict[str, jax.Array]:
    """Returns a batch, of which every host has all rows, as global arrays."""
    return {name: _array(value.shape, sharding, value.__getitem__) for name, value in batch.items()}


def _array(shape: tuple[int, ...], sharding: jax.sharding.Sharding, part: Callable[[Slices], np.ndarray]) -> jax.Array:
    """Returns a global array; `part` maps a slice to its data on this process's devices."""
    return jax.make_array_from_callback(shape, sharding, part)  # pyright: ignore[reportArgumentType] never None
