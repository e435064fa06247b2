"""One optimizer update as a pure, traced function: nothing is logged, read or written here."""

import functools
from collections.abc import Callable
from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Float, PyTree

from limba.config import LossConfig
from limba.model import Batch, Network
from limba.model.trees import Parameters
from limba.sharding.mesh import LOGICAL_AXIS_RULES, is_pure_data_parallel
from limba.sharding.shard_keys import shard_key
from limba.training import losses
from limba.training.losses import Sums, cross_entropy, weighted_sums
from limba.training.optimizer import scaled_gradients
from limba.training.state import TrainState

StepMetrics = dict[str, Float[Array, ""]]
Limits = tuple[np.ndarray, ...]  # the last arguments of a step that may drop its update: its limits, float32 [2]


@dataclass(frozen=True)
class Gradient:
    """How the gradient of a batch is computed and summed.

    `reduce_dtype` is `RunConfig.gradient_reduce_dtype`. `specs` are the parameters' PartitionSpecs if the optimizer
    state and the update are sharded across devices (ZeRO-style), else None.
    """

    model: Network
    loss: LossConfig
    num_microbatches: int = 1
    reduce_dtype: str = "auto"
    specs: PyTree = None


def train_step(
    state: TrainState,
    batch: Batch,
    key: Array,
    limits: Float[Array, " 2"] | None = None,
    *,
    gradient: Gradient,
    optimizer: optax.GradientTransformation,
    schedule: optax.Schedule,
) -> tuple[TrainState, StepMetrics]:
    """Returns the next state and this step's metrics.

    With `limits`, a step whose loss or gradient norm is above them, or not finite, is dropped: only `step` advances.

    The key is the run's own and is the same for all steps: the step's number is folded into it, so that a resumed run
    repeats exactly. The gradient of the summed loss is divided once, by `losses.divisor`: the real target tokens.
    """
    targets = batch["decoder_target_tokens"]
    dropout_key = None
    if gradient.model.config.dropout_rate > 0:
        dropout_key = jax.random.fold_in(key, state.step)
    compute = functools.partial(gradients, gradient, state.params, batch, dropout_key)
    grads, sums, opt_state = scaled_gradients(compute, state.opt_state, targets.size)
    divided_by = losses.divisor(gradient.loss, sums, targets)
    grads = jax.tree.map(lambda g: g / divided_by, grads)
    updates, opt_state = optimizer.update(grads, opt_state, state.params)
    params = optax.apply_updates(state.params, updates)
    weight = jnp.maximum(sums["weights"], 1.0)  # a batch without a target has a loss of 0, and not NaN
    metrics = {
        "loss": sums["loss"] / weight,
        "cross_entropy": sums["nats"] / weight,
        "accuracy": sums["correct"] / weight,
        "target_tokens": sums["tokens"],
        "input_tokens": _count_inputs(batch),
        "learning_rate": schedule(state.step),
        "gradient_norm": optax.tree.norm(grads),
        "parameter_norm": optax.tree.norm(state.params),
        "update_norm": optax.tree.norm(updates),
    }
    if limits is not None:
        checked = jnp.stack([metrics[name] for name in ("loss", "gradient_norm", "update_norm")])
        is_kept = jnp.all(jnp.isfinite(checked)) & jnp.all(checked[:2] <= limits)
        new = (params, opt_state)
        old = (state.params, state.opt_state)
        params, opt_state = jax.tree.map(lambda new, old: jnp.where(is_kept, new, old), new, old)
    return TrainState(state.step + 1, params, opt_state), metrics


def jit_train_step(
    gradient: Gradient,
    optimizer: optax.GradientTransformation,
    schedule: optax.Schedule,
    shardings: TrainState,
    drops: bool = False,
) -> Callable[..., tuple[TrainState, StepMetrics]]:
    """Returns `train_step` jitted: the state is donated and keeps its `shardings`, metrics are replicated.

    It takes (state, batch, key), and with `drops` also `limits`. The gradient's `specs` are the specs of `shardings`.
    """
    specs = jax.tree.map(lambda sharding: sharding.spec, shardings.params)
    is_update_sharded = any("data" in spec for spec in jax.tree.leaves(specs))
    gradient = replace(gradient, specs=specs if is_update_sharded else None)
    step = functools.partial(train_step, gradient=gradient, optimizer=optimizer, schedule=schedule)
    replicated = NamedSharding(jax.tree.leaves(shardings)[0].mesh, PartitionSpec())
    if not drops:
        return jax.jit(step, donate_argnums=0, out_shardings=(shardings, replicated))

    def dropping(state: TrainState, batch: Batch, key: Array, limits: Array) -> tuple[TrainState, StepMetrics]:
        return step(state, batch, key, limits)

    return jax.jit(dropping, donate_argnums=0, out_shardings=(shardings, replicated))


def without_update(state: TrainState) -> TrainState:
    """Returns the state with the next step's number, and otherwise unchanged."""
    step = jax.jit(lambda step: step + 1, out_shardings=state.step.sharding)(state.step)
    return TrainState(step, state.params, state.opt_state)


def gradients(
    gradient: Gradient, params: Parameters, batch: Batch, dropout_key: Array | None, scale: Array | float = 1.0
) -> tuple[PyTree, Sums]:
    """Returns the gradient of `scale` x the *summed* loss and the sums, over all micro-batches and devices.

    With pure data parallelism, each device adds up the gradient of its own rows in float32. Devices are summed once,
    after the last micro-batch, in `reduce_dtype`; 'auto' is float32. A parameter that `specs` shard is gathered first,
    in the activations' dtype, and each device gets its own shard of that gradient (reduce-scatter). 'auto' is then the
    activations' dtype for one micro-batch.

    On other meshes, and for one micro-batch with neither `reduce_dtype` nor `specs`, XLA places the sums: one per
    micro-batch, in the activations' dtype. Each device draws the dropout of its rows as one device would for all rows.
    """
    mesh = gradient.model.mesh
    is_auto = gradient.reduce_dtype == "auto"
    sums_once = gradient.num_microbatches > 1 or not is_auto or gradient.specs is not None
    if mesh is None or not sums_once or not is_pure_data_parallel(mesh):
        return _over_microbatches(gradient, params, batch, dropout_key, scale)
    config = gradient.model.config
    rows = LOGICAL_AXIS_RULES["batch"]  # the mesh's axes over which a batch's rows are divided
    activations = jnp.dtype(config.dtype)
    dtype = jnp.dtype("float32" if is_auto else gradient.reduce_dtype)
    # A parameter that was gathered in the activations' dtype has a gradient of no more precision than that, until
    # several micro-batches are added up.
    shard_dtype = activations if is_auto and gradient.num_microbatches == 1 else dtype
    # Inside of shard_map each device runs the network alone, on a mesh of one.
    one_device = replace(gradient, model=Network(config, Mesh(mesh.devices[:1, :1, :1], mesh.axis_names)))
    replicated = PartitionSpec()
    specs = gradient.specs
    if specs is None:
        specs = jax.tree.map(lambda _: replicated, params)

    def gather(x: Array, spec: PartitionSpec) -> Array:
        if not spec:
            return x
        return jax.lax.all_gather(x.astype(activations), "data", axis=len(spec) - 1, tiled=True).astype(x.dtype)

    def reduce(g: Array, spec: PartitionSpec) -> Array:
        if not spec:
            return jax.lax.psum(g.astype(dtype), rows).astype(g.dtype)
        shard = jax.lax.psum_scatter(g.astype(shard_dtype), "data", scatter_dimension=len(spec) - 1, tiled=True)
        return shard.astype(g.dtype)

    def on_one_device(params: Parameters, batch: Batch, key: Array | None) -> tuple[PyTree, Sums]:
        if key is not None:
            key = shard_key(key, jax.lax.axis_index(rows), mesh.size)
        params = jax.tree.map(gather, params, specs)
        grads, sums = _over_microbatches(one_device, params, batch, key, scale)
        return jax.tree.map(reduce, grads, specs), jax.lax.psum(sums, rows)

    run = jax.shard_map(
        on_one_device,
        mesh=mesh,
        in_specs=(specs, PartitionSpec(rows), replicated),
        out_specs=(specs, replicated),
        check_vma=False,
    )
    return run(params, dict(batch), dropout_key)


def _over_microbatches(
    gradient: Gradient, params: Parameters, batch: Batch, key: Array | None, scale: Array | float
) -> tuple[PyTree, Sums]:
    """Returns the gradient and the sums of all micro-batches, one after the other."""

    def summed_loss(params: Parameters, batch: Batch, key: Array | None) -> tuple[Array, Sums]:
        sums = loss_sums(gradient.model, gradient.loss, params, batch, key)
        return scale * sums["loss"], sums

    compute = jax.grad(summed_loss, has_aux=True)
    if gradient.num_microbatches == 1:
        return compute(params, batch, key)

    def add_one(total: tuple[PyTree, Sums], xs: tuple[Batch, Array]) -> tuple[tuple[PyTree, Sums], None]:
        rows, index = xs
        own_key = None if key is None else jax.random.fold_in(key, index)
        return jax.tree.map(jnp.add, total, compute(params, rows, own_key)), None

    micro = microbatches(batch, gradient.num_microbatches)
    first = jax.tree.map(lambda x: x[0], micro)
    shapes = jax.eval_shape(compute, params, first, key)
    zeros = jax.tree.map(lambda shape: jnp.zeros(shape.shape, shape.dtype), shapes)
    total, _ = jax.lax.scan(add_one, zeros, (micro, jnp.arange(gradient.num_microbatches)))
    return total


def microbatches(batch: Batch, number: int) -> Batch:
    """Returns each array as [M, B / M, …]; micro-batch m has the rows m, m + M, …, so that devices keep their own rows.

    >>> microbatches({"rows": jnp.arange(6)}, 2)["rows"].tolist()
    [[0, 2, 4], [1, 3, 5]]
    """
    return {name: jnp.swapaxes(x.reshape(-1, number, *x.shape[1:]), 0, 1) for name, x in batch.items()}


def loss_sums(model: Network, loss: LossConfig, params: Parameters, batch: Batch, dropout_key: Array | None) -> Sums:
    """Returns sums over the batch's real target tokens, not means, so that they can be added up.

    `loss` is what is trained (see `losses.trained_nats`), `nats` the plain cross entropy; `weights` sums the
    `losses.token_weights` of these, and `tokens` counts the target tokens.
    """
    targets = batch["decoder_target_tokens"]
    weights = losses.token_weights(loss, batch)
    counts = {"tokens": jnp.sum(batch["decoder_loss_weights"].astype(jnp.float32)), "weights": jnp.sum(weights)}
    targets, weights = losses.at_predicted(batch, targets, weights)
    if not _in_chunks(model, loss, targets):
        logits = model.apply(params, batch, dropout_key)
        return weighted_sums(cross_entropy(logits, targets, loss), weights) | counts
    states = model.apply(params, batch, dropout_key, as_states=True)
    sums = losses.chunked_cross_entropy(states, model.head(params), targets, weights, loss, model.mesh)
    return dict(zip(("loss", "nats", "correct"), sums, strict=True)) | counts


def _in_chunks(model: Network, loss: LossConfig, targets: Array) -> bool:
    """Returns whether logits are computed in chunks: as the run says, or where all of them would take much memory."""
    if loss.logits != "auto" or not model.config.has_plain_head:
        return loss.logits == "chunked"
    rows, length = targets.shape
    return losses.logits_bytes(rows, length, model.config.vocab_size, model.mesh) > losses.WHOLE_LOGITS_BYTES


def _count_inputs(batch: Batch) -> Float[Array, ""]:
    """Returns the number of real tokens that are read and not predicted: the encoder's, or a decoder's prefix."""
    if "encoder_input_tokens" in batch:
        return jnp.sum(batch.get("encoder_is_read", batch["encoder_input_tokens"]) > 0).astype(jnp.float32)
    is_read = batch.get("decoder_is_read", batch["decoder_target_tokens"])
    is_prefix = (is_read > 0) & (batch["decoder_loss_weights"] == 0)
    return jnp.sum(is_prefix).astype(jnp.float32)
