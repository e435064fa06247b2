"""Cross entropy that never holds all logits: some rows at a time, their gradient taken in the same pass.

At 250,112 entries the float32 logits of a base model's 32 rows are 3.7 GB, their gradient as much again. Each device
works through its own rows; with the vocabulary cut over `model`, it has its part of the logits, and three numbers a
token are exchanged. What is added up over the rows is the gradient itself, so nothing has to be made twice.
"""

from __future__ import annotations

import functools
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, PartitionSpec
from jaxtyping import Array, Float, Int

from limba.config import LossConfig
from limba.sharding.mesh import LOGICAL_AXIS_RULES

Sums = tuple[Float[Array, ""], Float[Array, ""], Float[Array, ""]]

WHOLE_LOGITS_BYTES = 2 << 30  # per device; above it 'auto' takes chunks
CHUNK_BYTES = 1 << 30  # of one chunk's float32 logits; each chunk adds to the head's whole gradient


class _How(NamedTuple):
    config: LossConfig
    scale: float
    num_chunks: int
    vocab_size: int
    vocab_axis: str | None


def logits_bytes(rows: int, length: int, vocab_size: int, mesh: Mesh | None) -> int:
    """Returns what the float32 logits of a batch take on one device."""
    return 4 * rows * length * vocab_size // (_num_groups(mesh) * _vocab_parts(mesh, vocab_size))


def chunked_cross_entropy(
    states: Float[Array, "B Q D"],
    head: Float[Array, "D V"],
    targets: Int[Array, "B Q"],
    weights: Float[Array, "B Q"],
    config: LossConfig,
    mesh: Mesh | None = None,
    scale: float = 1.0,
    num_chunks: int | None = None,
) -> Sums:
    """Returns sums over the tokens, weighted: nats as trained, plain nats, hits; as `losses.cross_entropy` has them.

    The logits are `scale * states @ head`. `num_chunks` is at most the rows of a device; by default as few as keep a
    chunk below CHUNK_BYTES.
    """
    rows, length, _ = states.shape
    vocab_size = head.shape[1]
    groups, parts = _num_groups(mesh), _vocab_parts(mesh, vocab_size)
    if rows % groups:
        mesh, groups, parts = None, 1, 1  # an evaluation's few rows, wherever they lie
    if num_chunks is None:
        num_chunks = math.ceil(logits_bytes(rows, length, vocab_size, mesh) / CHUNK_BYTES)
    own_rows = rows // groups
    num_chunks = next(n for n in range(min(num_chunks, own_rows), own_rows + 1) if own_rows % n == 0)
    alone = mesh is None or mesh.size == 1
    axis = LOGICAL_AXIS_RULES["vocab"] if parts > 1 and not alone else None
    how = _How(config, scale, num_chunks, vocab_size, axis)
    return _sums(how, None if alone else mesh, states, head, targets, weights)


def _num_groups(mesh: Mesh | None) -> int:
    return 1 if mesh is None else math.prod(mesh.shape[axis] for axis in LOGICAL_AXIS_RULES["batch"])


def _vocab_parts(mesh: Mesh | None, vocab_size: int) -> int:
    parts = 1 if mesh is None else mesh.shape[LOGICAL_AXIS_RULES["vocab"]]
    return parts if vocab_size % parts == 0 else 1


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _sums(how: _How, mesh: Mesh | None, states: Array, head: Array, targets: Array, weights: Array) -> Sums:
    return _on_devices(how, mesh, False, states, head, targets, weights)[0]


def _sums_forward(how: _How, mesh: Mesh | None, *arrays: Array) -> tuple[Sums, tuple[Array, Array]]:
    return _on_devices(how, mesh, True, *arrays)


def _sums_backward(
    how: _How, mesh: Mesh | None, saved: tuple[Array, Array], gradients: Sums
) -> tuple[Array, Array, None, None]:
    to_states, to_head = saved  # of the trained sum; the others are only looked at
    return to_states * gradients[0].astype(to_states.dtype), to_head * gradients[0].astype(to_head.dtype), None, None


_sums.defvjp(_sums_forward, _sums_backward)


def _on_devices(how: _How, mesh: Mesh | None, with_gradient: bool, *arrays: Array) -> tuple[Sums, tuple | None]:
    if mesh is None:
        return _through_chunks(how, with_gradient, (), *arrays)
    batch = LOGICAL_AXIS_RULES["batch"]
    by_row, by_entry = PartitionSpec(batch), PartitionSpec(None, how.vocab_axis)
    gradient = (by_row, by_entry) if with_gradient else None
    run = jax.shard_map(
        functools.partial(_through_chunks, how, with_gradient, batch),
        mesh=mesh,
        in_specs=(by_row, by_entry, by_row, by_row),
        out_specs=(PartitionSpec(), gradient),
        check_vma=False,
    )
    return run(*arrays)


def _through_chunks(
    how: _How,
    with_gradient: bool,
    batch_axes: tuple[str, ...],
    states: Float[Array, "B Q D"],
    head: Float[Array, "D V"],
    targets: Int[Array, "B Q"],
    weights: Float[Array, "B Q"],
) -> tuple[Sums, tuple[Array, Array] | None]:
    """Returns a device's sums, added up over all devices, and the gradient of the trained one."""

    def add_one(total: tuple, chunk: tuple[Array, ...]) -> tuple[tuple, Array | None]:
        sums, to_head = total
        states, targets, weights = chunk
        chunk_sums, to_logits = _of_chunk(how, states, head, targets, weights)
        sums = jax.tree.map(jnp.add, sums, chunk_sums)
        if not with_gradient:
            return (sums, to_head), None
        to_logits = (to_logits * how.scale).astype(head.dtype)
        to_head += jnp.einsum("bqd,bqv->dv", states, to_logits, preferred_element_type=jnp.float32)
        to_states = jnp.einsum("bqv,dv->bqd", to_logits, head, preferred_element_type=jnp.float32)
        if how.vocab_axis is not None:
            to_states = jax.lax.psum(to_states, how.vocab_axis)
        return (sums, to_head), to_states.astype(states.dtype)

    chunks = jax.tree.map(
        lambda x: x.reshape(how.num_chunks, -1, *x.shape[1:]), (states, targets, weights.astype(jnp.float32))
    )
    start = ((jnp.float32(0),) * 3, jnp.zeros(head.shape, jnp.float32) if with_gradient else None)
    (sums, to_head), to_states = jax.lax.scan(add_one, start, chunks)
    gradient = None
    if with_gradient:
        to_head = to_head.astype(head.dtype)  # as elsewhere, gradients are reduced in the activations' dtype
        gradient = (to_states.reshape(states.shape), jax.lax.psum(to_head, batch_axes) if batch_axes else to_head)
    return (jax.lax.psum(sums, batch_axes) if batch_axes else sums), gradient


def _of_chunk(how: _How, states: Array, head: Array, targets: Array, weights: Array) -> tuple[Sums, Array]:
    """Returns the sums over a chunk, and the gradient of the trained one to this device's part of the logits."""
    config, axis = how.config, how.vocab_axis

    def everywhere(x: Array, reduce: str = "psum") -> Array:
        return x if axis is None else getattr(jax.lax, reduce)(x, axis)

    logits = jnp.einsum("bqd,dv->bqv", states, head, preferred_element_type=jnp.float32) * how.scale
    first = 0 if axis is None else jax.lax.axis_index(axis) * head.shape[1]
    is_target = (targets - first)[..., None] == jnp.arange(head.shape[1])[None, None]
    highest = everywhere(jnp.max(logits, axis=-1), "pmax")
    exponentials = jnp.exp(logits - highest[..., None])
    total = everywhere(jnp.sum(exponentials, axis=-1))
    log_z = jnp.log(total) + highest
    target_logit = everywhere(jnp.sum(jnp.where(is_target, logits, 0.0), axis=-1))
    plain = log_z - target_logit
    trained, on, off, entropy = plain, 1.0, 0.0, 0.0
    if config.label_smoothing:
        share = 1.0 - config.label_smoothing
        off = config.label_smoothing / (how.vocab_size - 1)
        entropy = -(share * math.log(share) + (how.vocab_size - 1) * off * math.log(off))
        on = share - off
        trained = on * plain + off * (how.vocab_size * log_z - everywhere(jnp.sum(logits, axis=-1))) - entropy
    trained = trained + config.z_loss * jnp.square(log_z)
    sums = tuple(jnp.sum(x * weights) for x in (trained, plain, (target_logit >= highest).astype(jnp.float32)))
    # Of log Z in `trained`, spread by the softmax; then the target's own share, and smoothing's everywhere.
    of_log_z = weights * (on + off * how.vocab_size + 2 * config.z_loss * log_z)
    to_logits = exponentials * (of_log_z / total)[..., None]
    to_logits = to_logits - jnp.where(is_target, (on * weights)[..., None], 0.0)
    return sums, to_logits - (off * weights)[..., None] if off else to_logits
