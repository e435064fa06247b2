"""The Pallas kernels on a mesh: each device attends for its own examples and heads."""

from __future__ import annotations

import dataclasses
import re

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Float

from limba.model.kernels import pallas_gpu, pallas_tpu
from limba.model.masks import Mask
from limba.sharding.mesh import LOGICAL_AXIS_RULES


@dataclasses.dataclass(frozen=True)
class PallasAttention:
    """Attention by `pallas_gpu` on GPUs, else by `pallas_tpu`, over the devices of `mesh`; None is one device."""

    mesh: Mesh | None
    num_heads: int

    @property
    def device(self) -> jax.Device:
        return jax.devices()[0] if self.mesh is None else self.mesh.devices.flat[0]

    @property
    def on_gpu(self) -> bool:
        return self.device.platform == "gpu"

    @property
    def compute_capability(self) -> float:
        """NVIDIA's number for what a GPU can do: 8.0 an A100, 9.0 an H100 or H200; 0 where it has none."""
        text = str(getattr(self.device, "compute_capability", ""))
        return float(text) if re.fullmatch(r"\d+\.\d+", text) else 0.0

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

    def takes(self, batch: int, keys: int, head_dim: int) -> bool:
        if self.on_gpu:
            fits = self.compute_capability >= pallas_gpu.COMPUTE_CAPABILITY and head_dim in pallas_gpu.WIDTHS
        else:
            fits = pallas_tpu.fits(keys)
        return fits and batch % self.num_groups == 0

    def for_each_group(self, array: Float[Array, "H N"]) -> Float[Array, "G H N"]:
        """Returns a copy for each group of devices."""
        copies = jnp.broadcast_to(array[None], (self.num_groups, *array.shape))
        if self.mesh is None or self.mesh.size == 1:
            return copies
        spec = PartitionSpec(self.batch_axes, self.heads_axis)
        return jax.lax.with_sharding_constraint(copies, NamedSharding(self.mesh, spec))

    def __call__(
        self,
        arrays: tuple[Float[Array, "B _ H _ _"], ...] | tuple[Float[Array, "B _ H C"], ...],
        bias: Float[Array, "G H K Q"] | Float[Array, "G H P"] | None,
        mask: Mask,
    ) -> Float[Array, "B H C Q"] | Float[Array, "B Q H C"]:
        """Returns what the platform's `pallas_attention` does of the arrays that it takes.

        Where there is neither a TPU nor a GPU an interpreter runs that of `pallas_tpu`, slowly.
        """
        on_gpu, on_tpu, has_wgmma = self.on_gpu, self.device.platform == "tpu", 9 <= self.compute_capability < 10

        def attend(arrays: tuple, bias: Array | None, query_ids: Array, key_ids: Array) -> Array:
            bias = None if bias is None else bias[0]
            if on_gpu:
                return pallas_gpu.pallas_attention(*arrays, bias, query_ids, key_ids, mask.causal, has_wgmma)
            return pallas_tpu.pallas_attention(arrays, bias, query_ids, key_ids, mask.causal, not on_tpu)

        inputs = (arrays, bias, mask.query_ids, mask.key_ids)
        if self.mesh is None or self.mesh.size == 1:
            return attend(*inputs)
        batch, heads = self.batch_axes, self.heads_axis
        ids = PartitionSpec(batch)
        specs = (PartitionSpec(batch, None, heads), None if bias is None else PartitionSpec(batch, heads), ids, ids)
        attended = PartitionSpec(batch, None, heads) if on_gpu else PartitionSpec(batch, heads)
        # What is alike on all devices of a group is so because each computes it: there is nothing to check.
        mapped = jax.shard_map(attend, mesh=self.mesh, in_specs=specs, out_specs=attended, check_vma=False)
        return mapped(*inputs)
