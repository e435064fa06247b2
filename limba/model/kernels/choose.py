"""The attention kernel, chosen once for a call's shapes.

Each kernel is an object with `bias(table)`, which returns the relative position bias in its layout, and a call
(projected heads, bias, mask) -> attended values. Its layout has the projections of queries, keys and values,
and back: W is H * C, and matrices are in the activations' dtype, [D, W] and `out` [W, D]. All compute
softmax(q k^T + bias) v, scores and softmax in float32. On a mesh each device attends for its own examples and heads.
"""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Float

from limba.config import ModelConfig
from limba.model.kernels.einsum import dot_product_attention, memory_efficient_attention
from limba.model.kernels.feature_major import FeatureMajor, Shapes
from limba.model.layers import ATTENDED, dense
from limba.model.masks import Mask
from limba.model.relative_bias import BiasTable
from limba.sharding.mesh import LOGICAL_AXIS_RULES, num_batch_groups

BATCH_AXES = LOGICAL_AXIS_RULES["batch"]
TRITON = "jax.experimental.pallas.triton"  # by which jax compiles the kernel; jax 0.11 says that it will be removed
OLD_TPUS = ("TPU v2", "TPU v3")  # libtpu refuses the kernel there: "Unsupported matmul RHS type" for bfloat16
COMPUTE_CAPABILITY = 8.0  # of NVIDIA's cards at least, for the Pallas kernel: an A100's; a V100 has 7.0, a T4 7.5
# Shared memory of a program, in KiB, by compute capability (CUDA C++ programming guide). Other cards: the least of all.
SHARED_KIB = {8.0: 163, 8.6: 99, 8.7: 163, 8.9: 99, 9.0: 227, 10.0: 227, 10.3: 227, 12.0: 99, 12.1: 99}
CACHE_BYTES = 8 << 20  # of scores; a CPU reads and writes larger ones from memory


class HeadsLast(Shapes):
    """Queries, keys and values are three arrays [B, L, H, C], the result is [B, Q, H, C]."""

    def project(self, x: Array, memory: Array, kernels: tuple[Array, ...]) -> tuple[Array, ...]:
        """Returns queries from `x` [B, Q, D], and keys and values from `memory` [B, K, D]."""
        flat = [dense(inputs, kernel) for inputs, kernel in zip((x, memory, memory), kernels, strict=True)]
        return tuple(array.reshape(*array.shape[:-1], self.num_heads, self.head_dim) for array in flat)

    def drop_values(self, heads: tuple[Array, ...], kept: Array, keep_rate: float) -> tuple[Array, ...]:
        """Returns the same with dropout of values: those `kept`, bool [B, K, H, 1], are scaled up, others are 0."""
        query, key, value = heads
        return query, key, jnp.where(kept, value / keep_rate, 0)

    def arrange(self, heads: tuple[Array, ...]) -> tuple[Array, ...]:
        """Returns queries, keys and values [B, L, H, C] of self-attention as this kernel reads them."""
        return heads

    def restore(self, attended: Float[Array, "B Q H C"]) -> Float[Array, "B Q H C"]:
        """Returns the kernel's result with the heads last."""
        return attended

    def join(self, attended: Float[Array, "B Q ..."], out: Float[Array, "W D"]) -> Float[Array, "B Q D"]:
        """Returns the heads' values, projected back to the model width."""
        return dense(attended.reshape(self.batch, self.queries, -1), out)


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
    """Returns kernel(heads, bias, the mask's arrays), which each device computes for its own examples and heads.

    Heads are on axis 2 of each array of `heads`, and on `head_axis` of the result. `bias` is [G, H, …], or None.
    """
    attend = lambda heads, bias, ids: kernel(heads, None if bias is None else bias[0], ids)
    mesh = call.mesh
    inputs = (heads, bias, mask.for_kernels())
    if mesh is None or mesh.size == 1:
        return attend(*inputs)
    axis = heads_axis(mesh, call.num_heads)
    ids = PartitionSpec(BATCH_AXES)
    bias_spec = None if bias is None else PartitionSpec(BATCH_AXES, axis)
    reach = None if mask.reach is None else PartitionSpec()
    specs = (PartitionSpec(BATCH_AXES, None, axis), bias_spec, (ids, ids, reach))
    attended = PartitionSpec(BATCH_AXES, *(None,) * (head_axis - 1), axis)
    # Values that are equal on all devices of a group are computed on each of them: there is nothing to check.
    return jax.shard_map(attend, mesh=mesh, in_specs=specs, out_specs=attended, check_vma=False)(*inputs)


def device_of(mesh: Mesh | None) -> Any:
    """Returns a device of the compilation target, which may be on another machine."""
    return jax.devices()[0] if mesh is None else mesh.devices.flat[0]


def compute_capability(device: object) -> float:
    """Returns a GPU's CUDA compute capability: 8.0 for an A100, 9.0 for an H100 or H200; 0 for other vendors."""
    text = str(getattr(device, "compute_capability", ""))
    return float(text) if re.fullmatch(r"\d+\.\d+", text) else 0.0


class Einsum(HeadsLast):
    """All scores at once, by XLA; in long rows a window's scores in blocks. Runs on all platforms."""

    attention = staticmethod(dot_product_attention)

    def bias(self, table: BiasTable) -> Float[Array, "H Q K"]:
        """Returns the bias of every query and key."""
        return table.pairs(self.queries, self.keys)

    def __call__(
        self, heads: tuple[Array, ...], bias: Float[Array, "H Q K"] | None, mask: Mask
    ) -> Float[Array, "B Q H C"]:
        query, key, value = heads
        if mask.reach is not None:
            from limba.model.kernels.local import fits, local_attention  # which other networks do not need

            window = 2 * mask.reach
            if fits(self.queries, window):
                # Recomputed for the gradient: one scan over layers of both kinds would keep all scores of each.
                ids = dataclasses.replace(mask, reach=None)
                whole = jax.checkpoint(lambda q, k, v: self.attention(q, k, v, None, ids.visible()))
                nearby = jax.checkpoint(lambda q, k, v: local_attention(q, k, v, ids.visible(), window))
                return jax.lax.cond(mask.everywhere, whole, nearby, query, key, value)
        return self.attention(query, key, value, bias, mask.visible())

    def restore(self, attended: Float[Array, "B Q H C"]) -> Float[Array, "B Q H C"]:
        """Returns the same, named for `remat`, as `join` does; the Pallas kernels name their own results."""
        return checkpoint_name(attended, ATTENDED)

    def join(self, attended: Float[Array, "B Q H C"], out: Float[Array, "W D"]) -> Float[Array, "B Q D"]:
        """Returns the same, named for `remat`."""
        return super().join(checkpoint_name(attended.reshape(self.batch, self.queries, -1), ATTENDED), out)


class MemoryEfficient(Einsum):
    """One example at a time, by XLA; no scores are saved. The fastest on one CPU if all scores exceed its cache."""

    attention = staticmethod(memory_efficient_attention)


class PallasGpu(HeadsLast):
    """The kernel of `pallas_gpu.py`, for NVIDIA's cards from the A100 on."""

    def bias(self, table: BiasTable) -> Float[Array, "G H P"]:
        """Returns the bias of every distance, from -Q on, once for each group of devices; P is Q + K."""
        tables = for_each_group(table, self.mesh)
        return tables.at(np.arange(-self.queries, self.keys)).reshape(-1, self.num_heads, self.queries + self.keys)

    def __call__(
        self, heads: tuple[Array, ...], bias: Float[Array, "G H P"] | None, mask: Mask
    ) -> Float[Array, "B Q H C"]:
        from limba.model.kernels import pallas_gpu

        has_wgmma = 9 <= compute_capability(device_of(self.mesh)) < 10
        kernel = lambda heads, *rest: pallas_gpu.pallas_attention(*heads, *rest, rule=mask.rule, has_wgmma=has_wgmma)
        return attend_on_mesh(kernel, self, 2, heads, bias, mask)


class PallasTpu(FeatureMajor):
    """The kernel of `pallas_tpu.py`; without a TPU it runs (slowly) in interpret mode."""

    def bias(self, table: BiasTable) -> Float[Array, "G H K Q"]:
        """Returns the bias of every key and query, once for each group of devices."""
        pairs = for_each_group(table, self.mesh).pairs(self.keys, self.queries, keys_first=True)
        return pairs.reshape(-1, self.num_heads, self.keys, self.queries)

    def __call__(
        self, heads: tuple[Array, ...], bias: Float[Array, "G H K Q"] | None, mask: Mask
    ) -> Float[Array, "B H C Q"]:
        from limba.model.kernels import pallas_tpu

        interpret = device_of(self.mesh).platform != "tpu"
        kernel = functools.partial(pallas_tpu.pallas_attention, rule=mask.rule, interpret=interpret)
        return attend_on_mesh(kernel, self, 1, heads, bias, mask)


AttentionKernel = Einsum | MemoryEfficient | PallasGpu | PallasTpu


def choose(config: ModelConfig, mesh: Mesh | None, batch: int, queries: int, keys: int) -> AttentionKernel:
    """Returns the kernel that computes attention of these sizes: `config.attention`, or with 'auto' the fastest.

    `mesh` is where it will run; its devices need not be on this machine. The einsum is used where the Pallas kernels
    are not: where they have an obstacle, which `unfit` names, and for batches that the devices do not divide. No run
    has such batches, since its checks refuse them, and other commands fill theirs up.
    """
    device = device_of(mesh)
    divides = batch % num_batch_groups(mesh) == 0
    if divides and _wants_pallas(config, device) and not _obstacle(config, device, keys):
        kind = PallasGpu if device.platform == "gpu" else PallasTpu
        return kind(mesh, batch, queries, keys, config.num_heads, config.head_dim)
    is_lean = config.attention == "memory_efficient"
    if config.attention == "auto" and device.platform == "cpu":
        # On several devices a loop over examples would gather them. Measured in benchmarks/README.md.
        devices = jax.device_count() if mesh is None else mesh.size
        is_lean = devices == 1 and 4 * batch * config.num_heads * queries * keys > CACHE_BYTES
    kind = MemoryEfficient if is_lean else Einsum
    return kind(mesh, batch, queries, keys, config.num_heads, config.head_dim)


def unfit(config: ModelConfig, device: Any, keys: int) -> str:
    """Returns a sentence if the Pallas kernel is wanted on this device and cannot take rows of `keys`; else ""."""
    obstacle = _obstacle(config, device, keys) if _wants_pallas(config, device) else ""
    return f"Attention is computed by the einsum: the Pallas kernel {obstacle}." if obstacle else ""


def _wants_pallas(config: ModelConfig, device: Any) -> bool:
    return config.attention == "pallas" or (config.attention == "auto" and device.platform in ("tpu", "gpu"))


def _obstacle(config: ModelConfig, device: Any, keys: int) -> str:
    """Returns why the Pallas kernel cannot take so many keys of this network here, as a part of a sentence, or ""."""
    if device.platform == "gpu":
        return _of_card(config, device)  # which takes rows of any length
    return _of_tpu(config, device, keys)


def _of_tpu(config: ModelConfig, device: Any, keys: int) -> str:
    from limba.model.kernels import pallas_tpu

    if device.device_kind in OLD_TPUS:
        return f"needs a TPU v4 or newer, and this is {device.device_kind}"
    if not pallas_tpu.fits(keys, None):
        return f"takes at most {pallas_tpu.MOST_KEYS:,} keys, and the longest rows have {keys:,}"
    if config.local_attention is not None:
        window = config.local_attention[0]
        most = pallas_tpu.WIDEST_WINDOW
        if not pallas_tpu.fits(keys, window // 2):
            return f"takes windows of at most {most} tokens, and ModelConfig.local_attention has {window:,}"
    return ""


def _of_card(config: ModelConfig, device: Any) -> str:
    capability = compute_capability(device)
    if capability < COMPUTE_CAPABILITY:
        wanted = f"an NVIDIA card of compute capability {COMPUTE_CAPABILITY:g} or newer (A100)"
        return f"needs {wanted}, and this is {device.device_kind}"
    if find_spec(TRITON) is None:
        return f"needs {TRITON}, which jax {jax.__version__} does not have; jax 0.12 has it"
    from limba.model.kernels import pallas_gpu  # Pallas takes a second to import, and a CPU uses none of it

    if config.head_dim not in pallas_gpu.WIDTHS:
        widths = ", ".join(map(str, pallas_gpu.WIDTHS))
        return f"takes heads of {widths}, and ModelConfig.head_dim is {config.head_dim}"
    needed = pallas_gpu.shared_kib(capability, jnp.dtype(config.dtype).itemsize, config.head_dim)
    there = SHARED_KIB.get(capability, min(SHARED_KIB.values()))
    if needed > there:
        has = "has" if capability in SHARED_KIB else "is not known to have more than"
        return (
            f"needs {needed:g} KiB of shared memory for heads of {config.head_dim} in {config.dtype}, and"
            f" {device.device_kind} {has} {there}"
        )
    return ""
