"""The encoder: transformers' EuroBERT, both directions, packing, masks by row, several devices."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
import transformers

from limba.config import InputError, LossConfig, MeshConfig
from limba.formats.architectures import config_json, model_fields, rows
from limba.formats.names import flatten, unstack_layers
from limba.model import Network
from limba.training.metrics.flops import flops_per_sequence
from limba.training.step import Gradient, gradients
from tests import tiny

ENCODER = tiny.language_model(attention_mask="bidirectional")
SHAPES = {
    "plain": ENCODER,
    "tied": dataclasses.replace(ENCODER, logits_via_embedding=True),
    "biases": dataclasses.replace(ENCODER, biases=("attention", "mlp", "logits"), num_kv_heads=None),
    "gelu, unrolled": dataclasses.replace(
        ENCODER, mlp_activations=("gelu", "linear"), scan_layers=False, rotary_base=250_000.0
    ),
}


@functools.cache
def parameters(config):
    params = jax.jit(Network(config).init)(jax.random.key(3))
    return jax.tree.map(lambda x: x + 0.1 * jax.random.normal(jax.random.key(x.size), x.shape), params)


def batch(rows=2, length=16, seed=0):
    """Returns rows of which some tokens are another one, as a mask is."""
    random = np.random.default_rng(seed)
    targets = random.integers(2, 250, (rows, length)).astype(np.int32)
    return {
        "decoder_target_tokens": targets,
        "decoder_input_tokens": np.where(random.random(targets.shape) < 0.2, 251, targets),
    }


def logits(config, features):
    return np.asarray(jax.jit(Network(config).apply)(parameters(config), features))


@pytest.mark.parametrize("shape", SHAPES)
def test_logits_and_states_equal_eurobert(shape):
    config = SHAPES[shape]
    about = transformers.EuroBertConfig(**config_json(config, mask_id=251))
    network = transformers.EuroBertForMaskedLM(about).eval()
    flat = unstack_layers({name: np.asarray(each) for name, each in flatten(parameters(config)).items()})
    weights = {row.pytorch: flat[row.t5x].T if row.transposed else flat[row.t5x] for row in rows(config)}
    missing, unknown = network.load_state_dict({name: torch.tensor(each) for name, each in weights.items()}, False)
    assert not unknown and set(missing) <= ({"lm_head.weight"} if config.logits_via_embedding else set())
    features = batch(2, 30)
    for array in features.values():
        array[1, 24:] = 0
    inputs = torch.tensor(features["decoder_input_tokens"])
    with torch.no_grad():
        expected = network(inputs, attention_mask=inputs > 0, output_hidden_states=True)
    real = features["decoder_target_tokens"] > 0
    ours = logits(config, features)
    states = jax.jit(functools.partial(Network(config).apply, as_states=True))(parameters(config), features)
    assert np.abs(ours[real]).max() > 0.5
    np.testing.assert_allclose(ours[real], expected.logits.numpy()[real], atol=1e-4, rtol=0)
    np.testing.assert_allclose(states[real], expected.hidden_states[-1].numpy()[real], atol=1e-4, rtol=0)
    assert model_fields(about.to_dict(), "eurobert") == {
        name: getattr(config, name) for name in model_fields(about.to_dict(), "eurobert")
    } | {"num_kv_heads": config.kv_heads}


def test_sees_both_directions_by_the_gradient():
    features = {
        "decoder_input_tokens": jnp.arange(16, dtype=jnp.int32)[None],  # each its own row of the embedding
        "decoder_target_tokens": jnp.array([[1] * 12 + [0] * 4], jnp.int32),
    }
    params = parameters(ENCODER)

    def summed(embedding, place):
        return Network(ENCODER).apply({**params, "token_embedder": {"embedding": embedding}}, features)[0, place].sum()

    for place in (0, 7, 11):
        reached = np.abs(jax.jit(jax.grad(summed))(params["token_embedder"]["embedding"], place))[:16].max(axis=1)
        assert (reached[:12] > 0).all() and (reached[12:] == 0).all()


def test_packed_equals_unpacked_and_padding_changes_nothing():
    features = batch(2, 8)
    alone = logits(ENCODER, features)
    packed = {name: array.reshape(1, -1) for name, array in features.items()}
    packed["decoder_segment_ids"] = np.repeat([[1, 2]], 8, axis=1).astype(np.int32)
    np.testing.assert_allclose(logits(ENCODER, packed).reshape(alone.shape), alone, atol=2e-5)
    behind = {name: np.pad(array, ((0, 0), (0, 5))) for name, array in features.items()}
    behind["decoder_input_tokens"][:, 8:] = 7  # what padding holds does not count
    np.testing.assert_allclose(logits(ENCODER, behind)[:, :8], alone, atol=2e-5)


def shifted(features):
    """Returns the batch as a language model reads it, each place the token before."""
    segments = features.get("decoder_segment_ids", np.ones_like(features["decoder_input_tokens"]))
    before = np.pad(features["decoder_input_tokens"], ((0, 0), (1, 0)))[:, :-1]
    begins = np.pad(segments[:, 1:] != segments[:, :-1], ((0, 0), (1, 0)), constant_values=True)
    return {**features, "decoder_input_tokens": np.where(begins, 0, before)}


@pytest.mark.parametrize("is_packed", [False, True])
@pytest.mark.parametrize("attention", ["einsum", "memory_efficient"])
def test_a_row_can_say_its_own_mask_and_is_then_that_of_its_network(is_packed, attention):
    config, features = dataclasses.replace(ENCODER, attention=attention), batch(2, 12)
    if is_packed:
        features["decoder_segment_ids"] = np.array([[1] * 5 + [2] * 7, [1] * 8 + [2] * 4], np.int32)
    both = logits(config, features)
    causal = logits(dataclasses.replace(config, attention_mask="causal"), shifted(features))
    assert np.abs(both - causal).max() > 0.1
    which = np.array([[1] * 12, [0] * 12], np.int32)
    if is_packed:  # a document of the first row is causal, too
        which[0, 5:] = 0
    mixed = logits(config, {**features, "decoder_causal_attention": which})
    np.testing.assert_allclose(mixed, np.where(which[..., None] > 0, both, causal), atol=2e-5)
    assert np.array_equal(logits(config, {**features, "decoder_causal_attention": np.ones_like(which)}), both)
    # A hybrid has one head: both masks predict from the place before.
    hybrid = dataclasses.replace(config, predicts_next=True)
    both = logits(config, shifted(features))
    np.testing.assert_allclose(logits(hybrid, features), both, atol=2e-5)
    mixed = logits(hybrid, {**features, "decoder_causal_attention": which})
    np.testing.assert_allclose(mixed, np.where(which[..., None] > 0, both, causal), atol=2e-5)


def test_a_hybrid_predicts_a_token_from_the_others_alone():
    params, hybrid = parameters(ENCODER), dataclasses.replace(ENCODER, predicts_next=True)
    tokens = jnp.arange(1, 13, dtype=jnp.int32)[None]

    def of(embedding, place, which):
        features = {"decoder_input_tokens": tokens, "decoder_target_tokens": tokens}
        features["decoder_causal_attention"] = jnp.full_like(tokens, which)
        return Network(hybrid).apply({**params, "token_embedder": {"embedding": embedding}}, features)[0, place].sum()

    for which, seen in ((1, range(12)), (0, range(6))):  # token 12 is the last one, which nothing reads
        reached = np.abs(jax.jit(jax.grad(of))(params["token_embedder"]["embedding"], 5, which)).max(axis=1)
        assert np.flatnonzero(reached).tolist() == list(seen)


def test_memory_efficient_attention_equals_the_einsum():
    features = batch(2, 24)
    einsum, lean = (
        logits(dataclasses.replace(ENCODER, attention=name), features) for name in ("einsum", "memory_efficient")
    )
    np.testing.assert_allclose(lean, einsum, atol=2e-5)


def test_eight_devices_equal_one():
    meshes = (MeshConfig(data=1), MeshConfig(data=8), MeshConfig(data=2, fsdp=2, model=2))
    tiny.assert_same_gradients(*((ENCODER, mesh, LossConfig()) for mesh in meshes))


def test_flops_count_both_directions_and_predicted_positions():
    causal = dataclasses.replace(ENCODER, attention_mask="causal")
    length, width = 64, ENCODER.num_heads * ENCODER.head_dim
    more = flops_per_sequence(ENCODER, 0, length) - flops_per_sequence(causal, 0, length)
    assert more == 3 * ENCODER.num_decoder_layers * 2 * length**2 * width
    fewer = flops_per_sequence(ENCODER, 0, length) - flops_per_sequence(ENCODER, 0, length, 8)
    assert fewer == 3 * 2 * (length - 8) * ENCODER.emb_dim * ENCODER.vocab_size


@pytest.mark.parametrize("shape", ["plain", "tied", "biases"])
@pytest.mark.parametrize("loss", [LossConfig(), LossConfig(z_loss=1e-4, label_smoothing=0.1, normalize_by="sequences")])
def test_the_gathered_head_equals_the_whole_one(shape, loss):
    """Loss and gradient of the predicted positions alone are those of all logits, in chunks too."""
    config, features = SHAPES[shape], batch(4, 24)
    features["decoder_loss_weights"] = (features["decoder_input_tokens"] == 251).astype(np.int32)
    places = np.argsort(-features["decoder_loss_weights"], axis=1, kind="stable")[:, :12].astype(np.int32)
    assert features["decoder_loss_weights"].sum(axis=1).max() <= 12

    def of(loss, batch):
        gradient = Gradient(Network(config), loss)
        found = jax.jit(lambda params, batch: gradients(gradient, params, batch, None))(parameters(config), batch)
        return jax.tree.map(np.asarray, found)

    whole = of(dataclasses.replace(loss, logits="whole"), features)
    gathered = {**features, "decoder_predicted_positions": places}
    for logits in ("whole",) if "logits" in config.biases else ("whole", "chunked"):
        found = of(dataclasses.replace(loss, logits=logits), gathered)
        jax.tree.map(
            lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-6 * np.abs(b).max()), found, whole
        )


def test_a_causal_network_does_not_shift_its_inputs_again():
    with pytest.raises(InputError, match="which is for encoders, and ModelConfig.attention_mask is 'causal'"):
        dataclasses.replace(ENCODER, attention_mask="causal", predicts_next=True)


def test_relative_positions_are_refused():
    with pytest.raises(InputError, match="look back only"):
        dataclasses.replace(ENCODER, positions="relative")
