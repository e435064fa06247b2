"""Cross entropy as T5X defines it, and the same in chunks."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.core import jaxprs_in_params

from limba.config import ConfigError, LossConfig, MeshConfig, ModelConfig
from limba.model import Network
from limba.training.losses import (
    chunked_cross_entropy,
    cross_entropy,
    divisor,
    logits_bytes,
    token_weights,
    weighted_sums,
)
from limba.training.step import Gradient, gradients, loss_sums
from tests import tiny


@pytest.mark.core
def test_loss_is_what_t5x_defines_with_smoothing() -> None:
    rng = np.random.default_rng(0)
    logits = rng.standard_normal((2, 3, 50), np.float32) * 2
    targets = rng.integers(0, 50, (2, 3))
    config = LossConfig(z_loss=1e-2, label_smoothing=0.1)
    trained, plain, correct = cross_entropy(jnp.asarray(logits), jnp.asarray(targets), config)
    z = np.log(np.exp(logits.astype(np.float64)).sum(-1))
    log_p = logits - z[..., None]
    soft = np.full((2, 3, 50), 0.1 / 49)
    np.put_along_axis(soft, targets[..., None], 0.9, -1)
    entropy = -(0.9 * np.log(0.9) + 0.1 * np.log(0.1 / 49))
    np.testing.assert_allclose(trained, -(soft * log_p).sum(-1) - entropy + 1e-2 * z**2, rtol=1e-5)
    np.testing.assert_array_equal(correct, logits.argmax(-1) == targets)
    np.testing.assert_allclose(plain, -np.take_along_axis(log_p, targets[..., None], -1)[..., 0], rtol=1e-5)


@pytest.mark.parametrize(("mesh", "smoothing"), [(None, 0.1), (MeshConfig(2, 1, 1), 0.0), (MeshConfig(1, 2, 2), 0.1)])
@pytest.mark.slow
def test_loss_in_chunks_and_its_gradients_equal_whole_logits(mesh: MeshConfig | None, smoothing: float) -> None:
    random = np.random.default_rng(0)
    states, head = (jnp.asarray(random.standard_normal(shape), jnp.float32) for shape in ((8, 5, 16), (16, 48)))
    targets = jnp.asarray(random.integers(0, 48, (8, 5)))
    weights = jnp.asarray(random.integers(0, 2, (8, 5)), jnp.float32)
    config = LossConfig(z_loss=1e-2, label_smoothing=smoothing)
    devices = None if mesh is None else tiny.mesh_of(mesh, mesh.data * mesh.fsdp * mesh.model)

    def whole(states: jax.Array, head: jax.Array) -> tuple:
        trained, plain, correct = cross_entropy(0.5 * states @ head, targets, config)
        return tuple(jnp.sum(x * weights) for x in (trained, plain, correct))

    def chunked(states: jax.Array, head: jax.Array) -> tuple:
        return chunked_cross_entropy(states, (head, 0.5), targets, weights, config, devices, num_chunks=2)

    for wanted, sums in zip(whole(states, head), jax.jit(chunked)(states, head), strict=True):
        np.testing.assert_allclose(sums, wanted, rtol=1e-5)
    gradients = [
        jax.jit(jax.grad(lambda *xs, sums=sums: 3 * sums(*xs)[0], argnums=(0, 1)))(states, head)
        for sums in (whole, chunked)
    ]
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5), *gradients)


def relative_difference(ours: jax.Array, wanted: jax.Array) -> float:
    return float(jnp.linalg.norm(ours.astype(jnp.float32) - wanted) / jnp.linalg.norm(wanted))


@pytest.mark.parametrize(("mesh", "shortest"), [(None, 512), (MeshConfig(2, 1, 2), 512), (None, 1)])
def test_small_weights_leave_a_gradient_in_float16_whose_loss_is_scaled_after_the_chunks(
    mesh: MeshConfig | None, shortest: int
) -> None:
    random = np.random.default_rng(0)
    states, head = (jnp.asarray(random.standard_normal(shape), jnp.float32) for shape in ((8, 5, 16), (16, 4096)))
    targets = jnp.asarray(random.integers(0, 4096, (8, 5)))
    weights = jnp.full((8, 5), 1 / 512, jnp.float32)  # of sequences of 512 tokens
    weights = weights.at[0].set(0).at[0, 0].set(1 / shortest)
    devices = None if mesh is None else tiny.mesh_of(mesh, mesh.data * mesh.fsdp * mesh.model)
    loss_scale = 2.0**13

    def loss(states: jax.Array, head: jax.Array) -> jax.Array:
        sums = chunked_cross_entropy(states, (head, 0.25), targets, weights, LossConfig(), devices, num_chunks=2)
        return loss_scale * sums[0]

    wanted, wanted_gradients = jax.jit(jax.value_and_grad(loss, argnums=(0, 1)))(states, head)
    half = jax.jit(jax.value_and_grad(loss, argnums=(0, 1)))
    value, gradients = half(states.astype(jnp.float16), head.astype(jnp.float16))
    np.testing.assert_allclose(value, wanted, rtol=1e-3)
    for gradient, of_float32 in zip(gradients, wanted_gradients, strict=True):
        assert gradient.dtype == jnp.float16
        assert relative_difference(gradient, of_float32) < 0.002
    of_long_rows = [gradients[0][1:], wanted_gradients[0][1:]]
    assert relative_difference(*of_long_rows) < 0.002


def scans_of(rows: int, vocab_size: int, mesh: MeshConfig | None = None, num_chunks: int | None = None) -> list[tuple]:
    """Returns (length, rows of a chunk, ids of a device) of each loop in the loss of rows of 512 tokens of width 4."""
    shapes = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ((rows, 512, 4), (4, vocab_size), (rows, 512))]
    devices = None if mesh is None else tiny.mesh_of(mesh, mesh.data * mesh.fsdp * mesh.model)

    def sums(states: jax.Array, head: jax.Array, weights: jax.Array) -> tuple:
        targets = jnp.zeros(weights.shape, jnp.int32)
        return chunked_cross_entropy(states, (head, 1.0), targets, weights, LossConfig(), devices, num_chunks)

    return loops_of(jax.make_jaxpr(sums)(*shapes).jaxpr)


def loops_of(jaxpr: Any) -> list[tuple]:
    loops = []
    for equation in jaxpr.eqns:
        if equation.primitive.name == "scan":
            head, states = (next(v.aval.shape for v in equation.invars if len(v.aval.shape) == n) for n in (2, 4))
            loops.append((equation.params["length"], states[1], head[1]))
            continue
        for inner in jaxprs_in_params(equation.params):
            loops += loops_of(inner)
    return loops


@pytest.mark.core
def test_logits_are_made_in_the_fewest_chunks_of_a_gibibyte() -> None:
    ids = 1 << 18  # a row of 512 tokens is half a gibibyte of float32 logits
    assert logits_bytes(1, 512, ids, None) == 1 << 29
    for rows, chunks in ((1, 1), (2, 1), (4, 2), (32, 16), (9, 9), (6, 3)):  # 5 of 9 rows do not divide them
        assert scans_of(rows, ids) == [(chunks, rows // chunks, ids)]
    assert scans_of(6, 64, num_chunks=4) == [(6, 1, 64)] and scans_of(6, 64, num_chunks=3) == [(3, 2, 64)]
    assert scans_of(2, 64, num_chunks=9) == [(2, 1, 64)]  # a row at least


@pytest.mark.core
def test_a_device_makes_the_logits_of_its_rows_and_ids() -> None:
    ids = 1 << 18
    mesh = MeshConfig(2, 2, 2)
    devices = tiny.mesh_of(mesh, 8)
    assert logits_bytes(8, 512, ids, devices) == 1 << 29 and logits_bytes(8, 512, ids + 1, devices) == (1 << 30) + 4096
    assert scans_of(8, ids, mesh) == [(1, 2, ids // 2)] and scans_of(64, ids, mesh) == [(4, 4, ids // 2)]
    assert scans_of(8, ids + 1, mesh) == [(2, 1, ids + 1)]  # an odd number of ids: each device has all of them
    for chunks in (None, 6):  # rows that do not divide by the devices
        assert scans_of(6, 64, mesh, chunks) == [(chunks or 1, 6 // (chunks or 1), 64)]
    assert scans_of(6, 64, MeshConfig(1, 1, 1)) == [(1, 6, 64)] and scans_of(6, 64, MeshConfig(2, 1, 1)) == [(1, 3, 64)]


@pytest.mark.parametrize(
    ("config", "mesh"),
    [
        (tiny.model(num_encoder_layers=1), MeshConfig(2, 1, 1)),
        (tiny.model(num_encoder_layers=1, logits_via_embedding=True), MeshConfig(2, 1, 2)),
        (tiny.language_model(logits_via_embedding=True), MeshConfig(1, 1, 1)),
    ],
    ids=["untied", "tied", "decoder alone"],
)
@pytest.mark.slow
def test_network_has_the_same_gradients_with_its_loss_in_chunks(config: ModelConfig, mesh: MeshConfig) -> None:
    config = dataclasses.replace(config, num_decoder_layers=1)
    whole, chunked = (LossConfig(label_smoothing=0.1, logits=logits) for logits in ("whole", "chunked"))
    tiny.assert_same_gradients((config, mesh, whole), (config, mesh, chunked))


@pytest.mark.core
def test_sequences_weigh_the_same_packed_and_alone() -> None:
    """The mean over sequences of each one's mean loss, whether rows hold one or several; padding weighs nothing."""
    rng = np.random.default_rng(0)
    nats = rng.random((3, 6)).astype(np.float32)
    weights = np.array([[1, 1, 1, 1, 0, 0], [1, 1, 1, 1, 1, 1], [0] * 6], np.float32)
    segments = np.array([[1, 2, 2, 2, 0, 0], [1, 1, 1, 1, 2, 2], [0] * 6], np.int32)
    config = LossConfig(normalize_by="sequences")
    alone = {"decoder_loss_weights": weights}
    packed = {"decoder_loss_weights": weights, "decoder_segment_ids": segments}
    for batch, means in (
        (alone, [nats[0, :4].mean(), nats[1].mean()]),
        (packed, [nats[0, :1].mean(), nats[0, 1:4].mean(), nats[1, :4].mean(), nats[1, 4:].mean()]),
    ):
        new = token_weights(config, jax.tree.map(jnp.asarray, batch))
        sums = weighted_sums((jnp.asarray(nats),) * 3, new)
        sums["weights"] = jnp.sum(new)
        assert float(sums["weights"]) == pytest.approx(len(means))
        loss = float(sums["loss"] / divisor(config, sums, jnp.zeros((3, 6), jnp.int32)))
        assert loss == pytest.approx(float(np.mean(means)), rel=1e-6)


@pytest.mark.night
@pytest.mark.parametrize("normalize_by", ["tokens", "sequences", "all_tokens", None, 100.0])
def test_normalization_does_not_depend_on_microbatches_or_chunks(normalize_by: str | float | None) -> None:
    model = Network(tiny.model())
    params = model.init(jax.random.key(0))
    batch = jax.tree.map(jnp.asarray, tiny.batch())
    figures = []
    for parts, logits in ((1, "whole"), (4, "whole"), (1, "chunked")):
        loss = LossConfig(normalize_by=normalize_by, logits=logits)
        grads, sums = gradients(Gradient(model, loss, parts), params, batch, None)
        by = divisor(loss, sums, batch["decoder_target_tokens"])
        figures.append((float(sums["loss"] / by), float(jnp.linalg.norm(jax.tree.leaves(grads)[0]) / by)))
        assert float(sums["tokens"]) == float(batch["decoder_loss_weights"].sum())
    np.testing.assert_allclose(figures, [figures[0]] * 3, rtol=1e-5)


@pytest.mark.slow
def test_metrics_stay_means_of_tokens() -> None:
    model = Network(tiny.model())
    params = model.init(jax.random.key(0))
    batch = jax.tree.map(jnp.asarray, tiny.batch())
    tokens, summed = (loss_sums(model, LossConfig(normalize_by=by), params, batch, None) for by in ("tokens", None))
    assert float(tokens["loss"]) == float(summed["loss"]) and float(tokens["weights"]) == float(summed["weights"])


@pytest.mark.parametrize("value", ["token", 0, -1.0, True])
def test_wrong_normalization_is_refused(value: object) -> None:
    with pytest.raises(ConfigError, match="LossConfig.normalize_by"):
        LossConfig(normalize_by=value)  # pyright: ignore[reportArgumentType]


@pytest.mark.core
def test_a_loss_is_divided_by_what_is_asked_for() -> None:
    targets = jnp.ones((2, 4), jnp.int32)
    for by, wanted in (("tokens", 3.0), ("sequences", 3.0), ("all_tokens", 8.0), (None, 1.0), (0.5, 0.5)):
        assert float(divisor(LossConfig(normalize_by=by), {"weights": jnp.float32(3)}, targets)) == wanted
    for few in (0.0, 0.5, 1.0, 1.5):  # a batch of padding alone
        assert float(divisor(LossConfig(), {"weights": jnp.float32(few)}, targets)) == max(few, 1.0)


@pytest.mark.core
@pytest.mark.parametrize("packed", [False, True])
def test_sequences_of_small_weights_weigh_as_others(packed: bool) -> None:
    batch = {"decoder_loss_weights": jnp.array([[0.25, 0.25, 0.0, 0.0], [0.0] * 4, [1.0, 2.0, 3.0, 2.0]])}
    if packed:
        batch["decoder_segment_ids"] = jnp.array([[1, 1, 0, 0], [1, 1, 1, 0], [1, 1, 1, 1]])
    weights_found = token_weights(LossConfig(normalize_by="sequences"), batch)
    np.testing.assert_allclose(weights_found, [[0.5, 0.5, 0, 0], [0] * 4, [0.125, 0.25, 0.375, 0.25]], rtol=1e-6)
    np.testing.assert_array_equal(token_weights(LossConfig(), batch), batch["decoder_loss_weights"])
    sums = weighted_sums((jnp.full((3, 4), 3.0), jnp.full((3, 4), 2.0), jnp.ones((3, 4), bool)), weights_found)
    assert {name: round(float(total), 5) for name, total in sums.items()} == {
        "loss": 6.0, "nats": 4.0, "correct": 2.0, "tokens": 2.0,
    }  # fmt: skip
