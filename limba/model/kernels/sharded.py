"""The Pallas kernel on a mesh: each device attends for its own examples and heads."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Float

from limba.mesh import LOGICAL_AXIS_RULES
from limba.model.kernels.pallas_tpu import fits, pallas_attention
from limba.model.masks import Mask


@dataclasses.dataclass(frozen=True)
class PallasAttention:
    """Attention by `pallas_tpu` over the devices of `mesh`; None is one device."""

    mesh: Mesh | None
    num_heads: int

    @property
    def batch_axes(self) -> tuple[str, ...]:
        return () if self.mesh is None else LOGICAL_AXIS_RULES["batch"]

    @property
    def heads_axis(self) -> str | None:
        """The mesh axis that heads are cut along; None where they do not divide: all devices then do all heads."""
        axis = LOGICAL_AXIS_RULES["heads"]
        return axis if self.mesh is not None and self.num_heads % self.mesh.shape[axis] == 0 else None

    @property
    def num_groups(self) -> int:
        """Groups of devices with examples of their own."""
        sizes = 1
        for axis in self.batch_axes:
            sizes *= self.mesh.shape[axis]
        return sizes

    def takes(self, batch: int, keys: int) -> bool:
        return batch % self.num_groups == 0 and fits(keys)

    def for_each_group(self, array: Float[Array, "H N"]) -> Float[Array, "G H N"]:
        """Returns a copy for each group of devices."""
        copies = jnp.broadcast_to(array[None], (self.num_groups, *array.shape))
        if self.mesh is None or self.mesh.size == 1:
            return copies
        spec = PartitionSpec(self.batch_axes, self.heads_axis)
        return jax.lax.with_sharding_constraint(copies, NamedSharding(self.mesh, spec))

    def __call__(
        self, projections: tuple[Float[Array, "B _ H C _"], ...], bias: Float[Array, "G H K Q"] | None, mask: Mask
    ) -> Float[Array, "B H C Q"]:
        """Returns what `pallas_attention` does; run by an interpreter, slowly, where there is no TPU."""
        platform = jax.default_backend() if self.mesh is None else self.mesh.devices.flat[0].platform

        def attend(projections: tuple, bias: Array | None, query_ids: Array, key_ids: Array) -> Array:
            bias = None if bias is None else bias[0]
            return pallas_attention(projections, bias, query_ids, key_ids, mask.causal, platform != "tpu")

        arrays = (projections, bias, mask.query_ids, mask.key_ids)
        if self.mesh is None or self.mesh.size == 1:
            return attend(*arrays)
        batch, heads = self.batch_axes, self.heads_axis
        ids = PartitionSpec(batch)
        specs = (PartitionSpec(batch, None, heads), PartitionSpec(batch, heads), ids, ids)
        specs = specs if bias is not None else (specs[0], None, ids, ids)
        # What is alike on all devices of a group is so because each computes it: there is nothing to check.
        mapped = jax.shard_map(
            attend, mesh=self.mesh, in_specs=specs, out_specs=PartitionSpec(batch, heads), check_vma=False
        )
        return mapped(*arrays)
