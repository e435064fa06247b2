"""One optimizer update: pure and traced, no logging, no input or output."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Float

from limba.config import LossConfig
from limba.model import Network
from limba.sharding.mesh import LOGICAL_AXIS_RULES, is_pure_data_parallel
from limba.training.chunked_loss import WHOLE_LOGITS_BYTES, chunked_cross_entropy, logits_bytes
from limba.training.losses import cross_entropy
from limba.training.state import TrainState

Batch = Mapping[str, Array]
Sums = dict[str, Float[Array, ""]]
Metrics = dict[str, Float[Array, ""]]


def loss_sums(model: Network, loss: LossConfig, params: Any, batch: Batch, dropout_key: Array | None) -> Sums:
    """Returns sums over the batch's real target tokens: never means, so that they can be added up.

    `loss` is what is trained (nats, z-loss and smoothing included), `nats` the plain cross entropy,
    `correct` and `tokens` counts.
    """
    targets, weights = batch["decoder_target_tokens"], batch["decoder_loss_weights"].astype(jnp.float32)
    if _in_chunks(model, loss, targets):
        states, (head, scale) = model.apply_to_states(params, batch, dropout_key), model.head(params)
        sums = chunked_cross_entropy(states, head, targets, weights, loss, model.mesh, scale)
        return dict(zip(("loss", "nats", "correct"), sums, strict=True), tokens=jnp.sum(weights))
    trained, plain, correct = cross_entropy(model.apply(params, batch, dropout_key), targets, loss)
    return {
        "loss": jnp.sum(trained * weights),
        "nats": jnp.sum(plain * weights),
        "correct": jnp.sum(correct * weights),
        "tokens": jnp.sum(weights),
    }


def _in_chunks(model: Network, loss: LossConfig, targets: Array) -> bool:
    if loss.logits != "auto" or "logits" in model.config.biases:
        return loss.logits == "chunked"
    return logits_bytes(*targets.shape, model.config.vocab_size, model.mesh) > WHOLE_LOGITS_BYTES


def gradients(
    model: Network,
    loss: LossConfig,
    params: Any,
    batch: Batch,
    dropout_key: Array | None,
    num_microbatches: int,
    reduce_in: str = "auto",
    specs: Any = None,
) -> tuple[Any, Sums]:
    """Returns the gradient of the loss *sum* and the sums, added up over micro-batches and devices.

    On a mesh of data alone each device adds up its own rows' gradient in float32, and devices add up theirs once, in
    `reduce_in`. Parameters that `specs` cuts over `data` are gathered first, in the activations' dtype, and of their
    gradient a device has its share alone. Elsewhere, and with neither specs, micro-batches nor `reduce_in`, XLA places
    the reductions: of each micro-batch, in the dtype of the activations; 'auto' is that dtype for one micro-batch's
    shares, else float32.
    """
    mesh, once = model.mesh, num_microbatches > 1 or reduce_in != "auto" or specs is not None
    if not once or mesh is None or not is_pure_data_parallel(mesh):
        return _over_microbatches(model, loss, params, batch, dropout_key, num_microbatches)
    rows, activations = LOGICAL_AXIS_RULES["batch"], jnp.dtype(model.config.dtype)
    dtype = jnp.dtype("float32" if reduce_in == "auto" else reduce_in)
    share_dtype = activations if reduce_in == "auto" and num_microbatches == 1 else dtype
    alone = Network(model.config, Mesh(mesh.devices[:1, :1, :1], mesh.axis_names))
    whole = PartitionSpec()
    specs = jax.tree.map(lambda _: whole, params) if specs is None else specs

    def gathered(x: Array, spec: PartitionSpec) -> Array:
        if not spec:
            return x
        return jax.lax.all_gather(x.astype(activations), "data", axis=len(spec) - 1, tiled=True).astype(x.dtype)

    def reduced(g: Array, spec: PartitionSpec) -> Array:
        if not spec:
            return jax.lax.psum(g.astype(dtype), rows).astype(g.dtype)
        share = jax.lax.psum_scatter(g.astype(share_dtype), "data", scatter_dimension=len(spec) - 1, tiled=True)
        return share.astype(g.dtype)

    def on_one_device(params: Any, batch: Batch, key: Array | None) -> tuple[Any, Sums]:
        key = None if key is None else jax.random.fold_in(key, jax.lax.axis_index(rows))
        params = jax.tree.map(gathered, params, specs)
        grads, sums = _over_microbatches(alone, loss, params, batch, key, num_microbatches)
        return jax.tree.map(reduced, grads, specs), jax.lax.psum(sums, rows)

    inputs, outputs = (specs, PartitionSpec(rows), whole), (specs, whole)
    run = jax.shard_map(on_one_device, mesh=mesh, in_specs=inputs, out_specs=outputs, check_vma=False)
    return run(params, dict(batch), dropout_key)


def _over_microbatches(
    model: Network, loss: LossConfig, params: Any, batch: Batch, dropout_key: Array | None, num_microbatches: int
) -> tuple[Any, Sums]:
    def trained_loss(params: Any, batch: Batch, key: Array | None) -> tuple[Array, Sums]:
        sums = loss_sums(model, loss, params, batch, key)
        return sums["loss"], sums

    gradient = jax.grad(trained_loss, has_aux=True)
    if num_microbatches == 1:
        return gradient(params, batch, dropout_key)

    def add_one(total: tuple[Any, Sums], xs: tuple[Batch, Array]) -> tuple[tuple[Any, Sums], None]:
        micro, index = xs
        key = None if dropout_key is None else jax.random.fold_in(dropout_key, index)
        return jax.tree.map(jnp.add, total, gradient(params, micro, key)), None

    micro = jax.tree.map(lambda x: _strided(x, num_microbatches), dict(batch))
    zeros = jax.tree.map(
        lambda s: jnp.zeros(s.shape, s.dtype),
        jax.eval_shape(gradient, params, jax.tree.map(lambda x: x[0], micro), dropout_key),
    )
    total, _ = jax.lax.scan(add_one, zeros, (micro, jnp.arange(num_microbatches)))
    return total


def _strided(x: Array, num_microbatches: int) -> Array:
    """Returns [M, B / M, …], micro-batch m being rows m, m + M, …: each device then keeps its own
    rows, where contiguous blocks would have to be gathered from a share of the devices."""
    rows = x.reshape(x.shape[0] // num_microbatches, num_microbatches, *x.shape[1:])
    return jnp.swapaxes(rows, 0, 1)


def train_step(
    state: TrainState,
    batch: Batch,
    key: Array,
    *,
    model: Network,
    optimizer: optax.GradientTransformation,
    schedule: optax.Schedule,
    loss: LossConfig,
    num_microbatches: int,
    gradient_reduce_dtype: str = "auto",
    specs: Any = None,
) -> tuple[TrainState, Metrics]:
    """Returns the next state and this step's metrics; `gradient_reduce_dtype` and `specs` as in `gradients`.

    The key is the run's own and never advances: the step's number is folded in, so that a resumed
    run repeats exactly. The loss sum and its gradient are divided once, by the real target tokens.
    """
    dropout_key = jax.random.fold_in(key, state.step) if model.config.dropout_rate > 0 else None
    how = (num_microbatches, gradient_reduce_dtype, specs)
    grads, sums = gradients(model, loss, state.params, batch, dropout_key, *how)
    tokens = jnp.maximum(sums["tokens"], 1.0)
    grads = jax.tree.map(lambda g: g / tokens, grads)
    updates, opt_state = optimizer.update(grads, state.opt_state, state.params)
    params = optax.apply_updates(state.params, updates)
    metrics = {
        "loss": sums["loss"] / tokens,
        "cross_entropy": sums["nats"] / tokens,
        "accuracy": sums["correct"] / tokens,
        "target_tokens": sums["tokens"],
        "input_tokens": _count_inputs(batch),
        "learning_rate": schedule(state.step),
        "gradient_norm": optax.tree.norm(grads),
        "parameter_norm": optax.tree.norm(state.params),
        "update_norm": optax.tree.norm(updates),
    }
    return TrainState(state.step + 1, params, opt_state), metrics


def _count_inputs(batch: Batch) -> Float[Array, ""]:
    """Returns the real tokens that are read and not learnt: the encoder's, or a prefix in the decoder."""
    if "encoder_input_tokens" in batch:
        return jnp.sum(batch["encoder_input_tokens"] > 0).astype(jnp.float32)
    is_prefix = (batch["decoder_target_tokens"] > 0) & (batch["decoder_loss_weights"] == 0)
    return jnp.sum(is_prefix).astype(jnp.float32)


def jit_train_step(
    model: Network,
    optimizer: optax.GradientTransformation,
    schedule: optax.Schedule,
    loss: LossConfig,
    num_microbatches: int,
    shardings: TrainState,
    gradient_reduce_dtype: str = "auto",
) -> Callable[[TrainState, Batch, Array], tuple[TrainState, Metrics]]:
    """Returns `train_step` jitted: state donated and kept in place, metrics whole on every device."""
    specs = jax.tree.map(lambda sharding: sharding.spec, shardings.params)
    shares = any("data" in spec for spec in jax.tree.leaves(specs))

    def step(state: TrainState, batch: Batch, key: Array) -> tuple[TrainState, Metrics]:
        return train_step(
            state,
            batch,
            key,
            model=model,
            optimizer=optimizer,
            schedule=schedule,
            loss=loss,
            num_microbatches=num_microbatches,
            gradient_reduce_dtype=gradient_reduce_dtype,
            specs=specs if shares else None,
        )

    whole = NamedSharding(shardings.step.mesh, PartitionSpec())
    return jax.jit(step, donate_argnums=0, out_shardings=(shardings, whole))


def evaluation_sums(model: Network, loss: LossConfig, params: Any, batch: Batch) -> dict[str, Array]:
    """Returns `loss_sums` without dropout, and `nats_by_set`, the plain cross entropy by character set.

    `character_counts` of the batch, [B, Q, S], are the bytes that each target has in each of S sets: its nats are
    divided among them evenly.
    """
    targets, weights = batch["decoder_target_tokens"], batch["decoder_loss_weights"].astype(jnp.float32)
    trained, plain, correct = cross_entropy(model.apply(params, batch), targets, loss)
    counts = batch["character_counts"].astype(jnp.float32)
    nats_per_byte = plain * weights / jnp.sum(counts, axis=-1)
    return {
        "loss": jnp.sum(trained * weights),
        "nats": jnp.sum(plain * weights),
        "correct": jnp.sum(correct * weights),
        "tokens": jnp.sum(weights),
        "nats_by_set": jnp.einsum("bq,bqs->s", nats_per_byte, counts),
    }


def jit_evaluation(model: Network, loss: LossConfig, num_microbatches: int) -> Callable[[Any, Batch], dict[str, Array]]:
    """Returns the jitted `evaluation_sums` of one batch; in more parts than in training where its logits need them."""

    def evaluate(params: Any, batch: Batch) -> dict[str, Array]:
        parts = _held_out_parts(model, *batch["decoder_target_tokens"].shape, num_microbatches)
        micro = jax.tree.map(lambda x: _strided(x, parts), dict(batch))
        sums = jax.lax.map(lambda part: evaluation_sums(model, loss, params, part), micro)
        return jax.tree.map(lambda x: jnp.sum(x, axis=0), sums)

    return jax.jit(evaluate)


def _held_out_parts(model: Network, rows: int, length: int, parts: int) -> int:
    """Returns into how many parts a batch goes so that a device can hold a part's logits, a row a device at least."""
    together = 1 if model.mesh is None else model.mesh.shape["data"] * model.mesh.shape["fsdp"]
    while (
        rows % (2 * parts * together) == 0
        and logits_bytes(rows // parts, length, model.config.vocab_size, model.mesh) > WHOLE_LOGITS_BYTES
    ):
        parts *= 2
    return parts
