"""A kernel on a mesh: each device attends for its own examples and heads."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array

from limba.model.kernels.layouts import Shapes
from limba.model.masks import Mask
from limba.model.relative_bias import BiasTable
from limba.sharding.mesh import LOGICAL_AXIS_RULES, num_batch_groups

BATCH_AXES = LOGICAL_AXIS_RULES["batch"]


def heads_axis(mesh: Mesh, num_heads: int) -> str | None:
    """Returns the mesh axis of the heads; None if it does not divide them: every device then has all heads."""
    axis = LOGICAL_AXIS_RULES["heads"]
    return axis if num_heads % mesh.shape[axis] == 0 else None


def for_each_group(bias: BiasTable, mesh: Mesh | None) -> BiasTable:
    """Returns the tables of all groups of devices in one, [G * H, buckets].

    Each group accumulates the gradient of its table over all layers; only the tables' gradients are reduced.
    """
    num_heads, num_buckets = bias.table.shape
    copies = jnp.broadcast_to(bias.table[None], (num_batch_groups(mesh), num_heads, num_buckets))
    if mesh is not None and mesh.size > 1:
        spec = PartitionSpec(BATCH_AXES, heads_axis(mesh, num_heads))
        copies = jax.lax.with_sharding_constraint(copies, NamedSharding(mesh, spec))
    return dataclasses.replace(bias, table=copies.reshape(-1, num_buckets))


def attend_on_mesh(
    kernel: Callable[..., Array], call: Shapes, head_axis: int, heads: tuple[Array, ...], bias: Array | None, mask: Mask
) -> Array:
    """Returns kernel(heads, bias, query ids, key ids), which each device computes for its own examples and heads.

    Heads are on axis 2 of each array of `heads`, and on `head_axis` of the result. `bias` is [G, H, …], or None.
    """
    attend = lambda heads, bias, *ids: kernel(heads, None if bias is None else bias[0], *ids)
    mesh, inputs = call.mesh, (heads, bias, mask.query_ids, mask.key_ids)
    if mesh is None or mesh.size == 1:
        return attend(*inputs)
    axis, ids = heads_axis(mesh, call.num_heads), PartitionSpec(BATCH_AXES)
    bias_spec = None if bias is None else PartitionSpec(BATCH_AXES, axis)
    specs = (PartitionSpec(BATCH_AXES, None, axis), bias_spec, ids, ids)
    attended = PartitionSpec(BATCH_AXES, *(None,) * (head_axis - 1), axis)
    # Values that are equal on all devices of a group are computed on each of them: there is nothing to check.
    return jax.shard_map(attend, mesh=mesh, in_specs=specs, out_specs=attended, check_vma=False)(*inputs)
