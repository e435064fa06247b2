"""Cross entropy as sums over tokens, so that one division at the end serves any split of the batch.

`chunked_cross_entropy` never holds all logits: it computes some rows at a time, and their gradient in the same pass.
With 250,112 ids the float32 logits of 32 rows of a base model take 3.7 GB, and their gradient as much again. Each
device loops over its own rows. If the vocabulary is sharded over `model`, it computes its part of the logits, and
exchanges three numbers per token. The loop adds up the gradient itself, so no logits are computed twice.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, PartitionSpec
from jaxtyping import Array, Bool, Float, Int

from limba.config import LossConfig
from limba.model import Batch
from limba.sharding.mesh import LOGICAL_AXIS_RULES, num_batch_groups

Sums = dict[str, Float[Array, ""]]
SumsOfChunk = tuple[Float[Array, ""], Float[Array, ""], Float[Array, ""]]  # trained nats, plain nats, correct

WHOLE_LOGITS_BYTES = 2 << 30  # per device; above it 'auto' computes in chunks
CHUNK_BYTES = 1 << 30  # of one chunk's float32 logits; each chunk reads and writes the head's whole gradient


class Smoothing(NamedTuple):
    """The constants of label smoothing: on * (the target's nats) + off * (the sum of all entries' nats) - entropy.

    T5X's definition: smoothing s leaves 1 - s on the target and spreads s over the other V - 1 entries. The entropy
    of that mixture is subtracted, so that a perfect model has loss 0.

    >>> on, off, entropy = Smoothing.of(0.1, vocab_size=11)
    >>> round(on, 3), round(off, 3), round(entropy, 3)
    (0.89, 0.01, 0.555)
    """

    on: float = 1.0
    off: float = 0.0
    entropy: float = 0.0

    @classmethod
    def of(cls, smoothing: float, vocab_size: int) -> Smoothing:
        if not smoothing:
            return cls()
        share = 1.0 - smoothing
        off = smoothing / (vocab_size - 1)
        entropy = -(share * math.log(share) + (vocab_size - 1) * off * math.log(off))
        return cls(share - off, off, entropy)


def trained_nats(
    config: LossConfig, vocab_size: int, plain: Array, log_z: Array, sum_of_logits: Callable[[], Array]
) -> Float[Array, "B Q"]:
    """Returns the loss per token: its plain nats with label smoothing, and the z-loss, `z_loss * log(Z)^2`.

    Z is the softmax's normalizer. All arrays are [B, Q].
    """
    trained = plain
    if config.label_smoothing:
        on, off, entropy = Smoothing.of(config.label_smoothing, vocab_size)
        trained = on * plain + off * (vocab_size * log_z - sum_of_logits()) - entropy
    return trained + config.z_loss * jnp.square(log_z)


def cross_entropy(
    logits: Float[Array, "B Q V"], targets: Int[Array, "B Q"], config: LossConfig
) -> tuple[Float[Array, "B Q"], Float[Array, "B Q"], Bool[Array, "B Q"]]:
    """Returns per token: trained nats (z-loss, smoothing), plain nats, whether no token is likelier than the target."""
    logits = logits.astype(jnp.float32)
    vocab_size = logits.shape[-1]
    log_z = jax.nn.logsumexp(logits, axis=-1)
    # A comparison and a sum, not a gather: its gradient needs no scatter, and it shards over V.
    is_target = targets[..., None] == jnp.arange(vocab_size)[None, None]
    target_logit = jnp.sum(jnp.where(is_target, logits, 0.0), axis=-1)
    # The logsumexp computes the maximum anyway; an argmax would read all logits once more.
    correct = target_logit >= jax.lax.stop_gradient(jnp.max(logits, axis=-1))
    plain = log_z - target_logit
    trained = trained_nats(config, vocab_size, plain, log_z, lambda: jnp.sum(logits, axis=-1))
    return trained, plain, correct


def weighted_sums(per_token: tuple[Array, Array, Array], weights: Float[Array, "B Q"]) -> Sums:
    """Returns the weighted sums of what `cross_entropy` returns: `loss`, `nats`, `correct`; `tokens` sums the weights.

    >>> one = jnp.ones((1, 2))
    >>> {name: float(value) for name, value in weighted_sums((3 * one, 2 * one, one), jnp.array([[1.0, 0.0]])).items()}
    {'loss': 3.0, 'nats': 2.0, 'correct': 1.0, 'tokens': 1.0}
    """
    sums = {name: jnp.sum(x * weights) for name, x in zip(("loss", "nats", "correct"), per_token, strict=True)}
    return {**sums, "tokens": jnp.sum(weights)}


def at_predicted(batch: Batch, *arrays: Array) -> tuple[Array, ...]:
    """Returns arrays [B, L, …] at the positions with logits: the batch's `decoder_predicted_positions`, or all."""
    positions = batch.get("decoder_predicted_positions")
    if positions is None:
        return arrays
    indices = {ndim: positions.reshape(*positions.shape, *(1,) * (ndim - 2)) for ndim in (2, 3)}
    return tuple(jnp.take_along_axis(array, indices[array.ndim], axis=1) for array in arrays)


def token_weights(config: LossConfig, batch: Batch) -> Float[Array, "B Q"]:
    """Returns each target token's weight in the loss: the batch's own, or with 'sequences' divided by its sequence's.

    A sequence is a row, or a segment of a packed row. One without weights stays without (T5X's AVERAGE_PER_SEQUENCE).

    >>> weights = jnp.array([[1.0, 1.0, 1.0, 0.0]])
    >>> packed = {"decoder_loss_weights": weights, "decoder_segment_ids": jnp.array([[1, 1, 2, 0]])}
    >>> token_weights(LossConfig(normalize_by="sequences"), packed).tolist()
    [[0.5, 0.5, 1.0, 0.0]]
    """
    weights = batch["decoder_loss_weights"].astype(jnp.float32)
    if config.normalize_by != "sequences":
        return weights
    if "decoder_segment_ids" in batch:
        segments = batch["decoder_segment_ids"]
        same = (segments[:, :, None] == segments[:, None, :]).astype(jnp.float32)
        totals = jnp.einsum("bqk,bk->bq", same, weights, precision=jax.lax.Precision.HIGHEST)
    else:
        totals = jnp.sum(weights, axis=-1, keepdims=True)
    return jnp.where(totals > 0, weights / jnp.where(totals > 0, totals, 1.0), 0.0)


def divisor(config: LossConfig, sums: Sums, targets: Int[Array, "B Q"]) -> Float[Array, ""]:
    """Returns what the summed loss and its gradient are divided by; see `LossConfig.normalize_by`.

    The summed `weights` are the real tokens, or with 'sequences' the sequences. At least 1.

    >>> sums, targets = {"weights": jnp.float32(3)}, jnp.ones((2, 4), jnp.int32)
    >>> [float(divisor(LossConfig(normalize_by=by), sums, targets)) for by in ("tokens", "all_tokens", None, 0.5)]
    [3.0, 8.0, 1.0, 0.5]
    """
    if config.normalize_by in ("tokens", "sequences"):
        return jnp.maximum(sums["weights"], 1.0)
    if config.normalize_by == "all_tokens":
        return jnp.float32(targets.size)
    return jnp.float32(1.0 if config.normalize_by is None else config.normalize_by)


class _Plan(NamedTuple):
    config: LossConfig
    scale: float
    num_chunks: int
    vocab_size: int
    vocab_axis: str | None


def logits_bytes(rows: int, length: int, vocab_size: int, mesh: Mesh | None) -> int:
    """Returns the bytes that a batch's float32 logits take on one device."""
    return 4 * rows * length * vocab_size // (num_batch_groups(mesh) * _vocab_parts(mesh, vocab_size))


def chunked_cross_entropy(
    states: Float[Array, "B Q D"],
    head: tuple[Float[Array, "D V"], float],
    targets: Int[Array, "B Q"],
    weights: Float[Array, "B Q"],
    config: LossConfig,
    mesh: Mesh | None = None,
    num_chunks: int | None = None,
) -> SumsOfChunk:
    """Returns weighted sums over the tokens of what `losses.cross_entropy` returns: nats as trained, plain, correct.

    `head` is (matrix, scale): the logits are `scale * states @ matrix`. `num_chunks` is at most the rows of a device;
    by default the fewest that keep a chunk below CHUNK_BYTES.
    """
    rows, length, _ = states.shape
    matrix, scale = head
    vocab_size = matrix.shape[1]
    groups = num_batch_groups(mesh)
    parts = _vocab_parts(mesh, vocab_size)
    if rows % groups:  # a validation's few rows, on any device
        mesh = None
        groups = 1
    if num_chunks is None:
        num_chunks = math.ceil(logits_bytes(rows, length, vocab_size, mesh) / CHUNK_BYTES)
    own_rows = rows // groups
    num_chunks = next(n for n in range(min(num_chunks, own_rows), own_rows + 1) if own_rows % n == 0)
    alone = mesh is None or mesh.size == 1
    axis = LOGICAL_AXIS_RULES["vocab"] if parts > 1 and not alone else None
    plan = _Plan(config, scale, num_chunks, vocab_size, axis)
    return _sums(plan, None if alone else mesh, states, matrix, targets, weights)


def _vocab_parts(mesh: Mesh | None, vocab_size: int) -> int:
    parts = 1 if mesh is None else mesh.shape[LOGICAL_AXIS_RULES["vocab"]]
    return parts if vocab_size % parts == 0 else 1


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _sums(plan: _Plan, mesh: Mesh | None, states: Array, head: Array, targets: Array, weights: Array) -> SumsOfChunk:
    return _on_devices(plan, mesh, False, states, head, targets, weights)[0]


def _sums_forward(
    plan: _Plan, mesh: Mesh | None, states: Array, head: Array, targets: Array, weights: Array
) -> tuple[SumsOfChunk, tuple]:
    enlarged = None
    if states.dtype == jnp.float16:
        enlarged = _enlargement(weights)
        weights = weights * enlarged
    sums, gradient = _on_devices(plan, mesh, True, states, head, targets, weights)
    if enlarged is not None:
        sums = jax.tree.map(lambda total: total / enlarged, sums)
    return sums, (gradient, enlarged)


def _enlargement(weights: Float[Array, "B Q"]) -> Float[Array, ""]:
    """Returns a power of two that makes the largest weight 256 to 512.

    A float16 loss is scaled only after the chunks have computed its gradient. Where the weights are small, as with
    normalize_by='sequences', most of the gradient would be rounded to nothing before that. Beside a sequence of one
    token, whose weight is 1, another of 512 tokens still has its own; the gradient's sums are far from float16's end.
    """
    largest = jnp.max(weights)
    _, exponent = jnp.frexp(jnp.where(largest > 0, largest, 1.0))
    return jnp.ldexp(jnp.float32(1), 9 - exponent)


def _sums_backward(
    plan: _Plan, mesh: Mesh | None, saved: tuple[tuple[Array, Array], Array | None], gradients: SumsOfChunk
) -> tuple[Array, Array, None, None]:
    (to_states, to_head), enlarged = saved  # of the trained sum; the others are figures, not trained
    factor = gradients[0]
    if enlarged is not None:
        factor = factor / enlarged
    to_head = (to_head * factor.astype(to_head.dtype)).astype(to_states.dtype)
    return to_states * factor.astype(to_states.dtype), to_head, None, None


_sums.defvjp(_sums_forward, _sums_backward)


def _on_devices(
    plan: _Plan, mesh: Mesh | None, with_gradient: bool, *arrays: Array
) -> tuple[SumsOfChunk, tuple | None]:
    if mesh is None:
        return _through_chunks(plan, with_gradient, (), *arrays)
    batch = LOGICAL_AXIS_RULES["batch"]
    by_row = PartitionSpec(batch)
    by_entry = PartitionSpec(None, plan.vocab_axis)
    gradient = (by_row, by_entry) if with_gradient else None
    run = jax.shard_map(
        functools.partial(_through_chunks, plan, with_gradient, batch),
        mesh=mesh,
        in_specs=(by_row, by_entry, by_row, by_row),
        out_specs=(PartitionSpec(), gradient),
        check_vma=False,
    )
    return run(*arrays)


def _through_chunks(
    plan: _Plan,
    with_gradient: bool,
    batch_axes: tuple[str, ...],
    states: Float[Array, "B Q D"],
    head: Float[Array, "D V"],
    targets: Int[Array, "B Q"],
    weights: Float[Array, "B Q"],
) -> tuple[SumsOfChunk, tuple[Array, Array] | None]:
    """Returns a device's sums, added up over all devices, and the gradient of the trained one."""

    def add_one(total: tuple, chunk: tuple[Array, ...]) -> tuple[tuple, Array | None]:
        sums, to_head = total
        states, targets, weights = chunk
        chunk_sums, to_logits = _of_chunk(plan, states, head, targets, weights)
        sums = jax.tree.map(jnp.add, sums, chunk_sums)
        if not with_gradient:
            return (sums, to_head), None
        to_logits = (to_logits * plan.scale).astype(head.dtype)
        to_head += jnp.einsum("bqd,bqv->dv", states, to_logits, preferred_element_type=jnp.float32)
        to_states = jnp.einsum("bqv,dv->bqd", to_logits, head, preferred_element_type=jnp.float32)
        if plan.vocab_axis is not None:
            to_states = jax.lax.psum(to_states, plan.vocab_axis)
        return (sums, to_head), to_states.astype(states.dtype)

    chunks = jax.tree.map(
        lambda x: x.reshape(plan.num_chunks, -1, *x.shape[1:]), (states, targets, weights.astype(jnp.float32))
    )
    start = ((jnp.float32(0),) * 3, jnp.zeros(head.shape, jnp.float32) if with_gradient else None)
    (sums, to_head), to_states = jax.lax.scan(add_one, start, chunks)
    sums = jax.lax.psum(sums, batch_axes) if batch_axes else sums
    if to_head is None or to_states is None:
        return sums, None
    if head.dtype != jnp.float16:  # where the sum over all tokens, which is not scaled yet, may overflow
        to_head = to_head.astype(head.dtype)  # as elsewhere, gradients are reduced in the activations' dtype
    return sums, (to_states.reshape(states.shape), jax.lax.psum(to_head, batch_axes) if batch_axes else to_head)


def _of_chunk(plan: _Plan, states: Array, head: Array, targets: Array, weights: Array) -> tuple[SumsOfChunk, Array]:
    """Returns the sums over a chunk, and the trained sum's gradient to this device's part of the logits."""
    config = plan.config
    axis = plan.vocab_axis

    def everywhere(x: Array, reduce: str = "psum") -> Array:
        return x if axis is None else getattr(jax.lax, reduce)(x, axis)

    logits = jnp.einsum("bqd,dv->bqv", states, head, preferred_element_type=jnp.float32) * plan.scale
    first = 0 if axis is None else jax.lax.axis_index(axis) * head.shape[1]
    is_target = (targets - first)[..., None] == jnp.arange(head.shape[1])[None, None]
    highest = everywhere(jnp.max(logits, axis=-1), "pmax")
    exponentials = jnp.exp(logits - highest[..., None])
    total = everywhere(jnp.sum(exponentials, axis=-1))
    log_z = jnp.log(total) + highest
    target_logit = everywhere(jnp.sum(jnp.where(is_target, logits, 0.0), axis=-1))
    plain = log_z - target_logit
    on, off, _ = Smoothing.of(config.label_smoothing, plan.vocab_size)
    trained = trained_nats(config, plan.vocab_size, plain, log_z, lambda: everywhere(jnp.sum(logits, axis=-1)))
    correct = (target_logit >= highest).astype(jnp.float32)
    sums = jnp.sum(trained * weights), jnp.sum(plain * weights), jnp.sum(correct * weights)
    # The gradient of log Z in `trained` times the softmax, then the target's logit, then smoothing.
    of_log_z = weights * (on + off * plan.vocab_size + 2 * config.z_loss * log_z)
    to_logits = exponentials * (of_log_z / total)[..., None]
    to_logits = to_logits - jnp.where(is_target, (on * weights)[..., None], 0.0)
    return sums, to_logits - (off * weights)[..., None] if off else to_logits
