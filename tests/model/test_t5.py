"""Properties of the network that no reference is needed for."""

import dataclasses
import functools
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from limba.config import LossConfig
from limba.model import Network, stack
from limba.training.losses import cross_entropy
from tests import tiny

KEY = jax.random.key(3)


@functools.cache
def applied(config):
    return jax.jit(Network(config).apply)


def logits(config, batch, dropout_key=None):
    return np.asarray(applied(config)(tiny.parameters(config), batch, dropout_key))


@pytest.mark.slow
def test_first_loss_is_about_ln_v() -> None:
    batch = tiny.batch()
    params = jax.jit(Network(tiny.MODEL).init)(KEY)
    first_logits = applied(tiny.MODEL)(params, batch, None)
    trained, _, _ = cross_entropy(first_logits, jnp.asarray(batch["decoder_target_tokens"]), LossConfig())
    weights = batch["decoder_loss_weights"]
    loss = float((trained * weights).sum() / weights.sum())
    assert abs(loss - np.log(tiny.MODEL.vocab_size)) < 1.0


@pytest.mark.slow
def test_scanned_equals_unrolled_with_dropout_and_remat() -> None:
    batch = tiny.batch()
    config = tiny.model(num_encoder_layers=1, num_decoder_layers=2, dropout_rate=0.3)
    expected = logits(config, batch, jax.random.key(1))
    for changes in ({"remat": "full"}, {"remat": "minimal", "scan_layers": False}):
        other = logits(dataclasses.replace(config, **changes), batch, jax.random.key(1))
        np.testing.assert_allclose(other, expected, atol=2e-5)
    assert np.abs(logits(config, batch) - expected).max() > 0.1  # dropout does something


@pytest.mark.parametrize(("platform", "chosen", "scans"), [("gpu", None, 0), ("gpu", True, 2), ("tpu", None, 2)])
def test_unless_chosen_a_gpu_runs_a_loop_over_the_layers(
    platform: str, chosen: bool | None, scans: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stack, "device_of", lambda mesh: SimpleNamespace(platform=platform))
    config = tiny.model(scan_layers=chosen)
    program = jax.make_jaxpr(Network(config).apply)(tiny.parameters(config), tiny.batch(), None)
    assert [equation.primitive.name for equation in program.eqns].count("scan") == scans


def test_padding_changes_nothing() -> None:
    batch = tiny.batch()
    longer = {name: np.pad(array, ((0, 0), (0, 7))) for name, array in batch.items()}
    real = batch["decoder_target_tokens"] > 0
    np.testing.assert_allclose(
        logits(tiny.MODEL, longer)[:, : real.shape[1]][real], logits(tiny.MODEL, batch)[real], atol=1e-5
    )


@pytest.mark.core
def test_decoder_is_causal() -> None:
    batch = tiny.batch()
    changed = {name: array.copy() for name, array in batch.items()}
    changed["decoder_input_tokens"][1, 6] = 99
    difference = np.abs(logits(tiny.MODEL, changed) - logits(tiny.MODEL, batch))[1].max(axis=-1)
    assert (difference[:6] == 0).all() and (difference[6:] > 0).all()


@pytest.mark.parametrize("per_layer", [False, True])
@pytest.mark.slow
def test_packed_equals_unpacked(per_layer: bool) -> None:
    config = tiny.model(relative_bias_per_layer=per_layer)
    rows = tiny.batch(2, inputs=12, targets=5)
    rows = {name: np.maximum(array, 1) if name.endswith("tokens") else array for name, array in rows.items()}
    rows["decoder_input_tokens"][:, 0] = 0
    packed = {name: array.reshape(1, -1) for name, array in rows.items()}
    packed["encoder_segment_ids"] = np.repeat([[1, 2]], 12, axis=1).astype(np.int32)
    packed["decoder_segment_ids"] = np.repeat([[1, 2]], 5, axis=1).astype(np.int32)
    together = logits(config, packed).reshape(2, 5, -1)
    np.testing.assert_allclose(together, logits(config, rows), atol=1e-5)


def test_bfloat16_computes_near_float32_with_float32_logits() -> None:
    model = Network(tiny.model(dtype="bfloat16"))
    params = tiny.parameters(model.config)
    assert {leaf.dtype for leaf in jax.tree.leaves(jax.eval_shape(model.init, KEY))} == {jnp.dtype("float32")}
    ours = jax.jit(model.apply)(params, tiny.batch())
    assert ours.dtype == jnp.float32
    assert np.abs(np.asarray(ours) - logits(tiny.MODEL, tiny.batch())).mean() < 0.05


@pytest.mark.slow
def test_initial_values_have_t5x_standard_deviations() -> None:
    d = 256
    width = 64
    inner = 512
    config = tiny.model(vocab_size=1024, emb_dim=d, num_heads=8, head_dim=width, mlp_dim=1024)
    params = jax.jit(Network(config).init)(KEY)
    layers = params["encoder"]["layers"]
    expected = {
        "embedding": (params["token_embedder"]["embedding"], 1.0),
        "query": (layers["attention"]["query"]["kernel"], (d * width) ** -0.5),
        "key": (layers["attention"]["key"]["kernel"], d**-0.5),
        "out": (layers["attention"]["out"]["kernel"], inner**-0.5),
        "wi_0": (layers["mlp"]["wi_0"]["kernel"], d**-0.5),
        "wo": (layers["mlp"]["wo"]["kernel"], 1024**-0.5),
        "logits": (params["decoder"]["logits_dense"]["kernel"], d**-0.5),
    }
    for name, (array, deviation) in expected.items():
        assert abs(np.std(array) / deviation - 1) < 0.02, name
