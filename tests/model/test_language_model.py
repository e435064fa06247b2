"""The decoder-only network: transformers' Llama and GPT-2, causality, packing, prefixes, initial values."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from limba.config import GenerationConfig, InputError
from limba.formats.names import flatten
from limba.inference import search as decoding
from limba.model import Network
from limba.model.language_model import positions_in_segments
from limba.training.metrics.flops import flops_per_sequence
from tests import tiny

KEY = jax.random.key(3)
ROWS = 2
LENGTH = 19
LAYOUTS = {
    "llama": tiny.LANGUAGE_MODEL,
    "gpt2": tiny.language_model(
        positions="learned",
        norm="layer",
        biases=("attention", "mlp"),
        mlp_activations=("gelu",),
        num_kv_heads=None,
        logits_via_embedding=True,
        max_length=64,
    ),
    "lm1b": tiny.language_model(
        positions="sinusoidal", norm="layer", biases=("mlp", "logits"), mlp_activations=("relu",), num_kv_heads=None
    ),
    "t5x": tiny.language_model(
        positions="relative", mlp_activations=("gelu", "linear"), logits_via_embedding=True, relpos_max_distance=8,
        num_relpos_buckets=8,
    ),
}  # fmt: skip


def batch(rows=3, length=16, seed=0):
    targets = np.random.default_rng(seed).integers(2, 250, (rows, length)).astype(np.int32)
    return {"decoder_target_tokens": targets, "decoder_input_tokens": np.pad(targets[:, :-1], ((0, 0), (1, 0)))}


@functools.cache
def initial(config):
    return jax.jit(Network(config).init)(KEY)


@functools.cache
def parameters(config):
    """Initial values with every bias and scale moved, so that each of them counts."""
    params = initial(config)
    return jax.tree.map(lambda x: x + 0.1 * jax.random.normal(jax.random.key(x.size), x.shape), params)


@functools.cache
def applied(config):
    return jax.jit(Network(config).apply)


def logits(config, features, params=None):
    """Returns the logits; features are padded to one shape, which is compiled once for all."""
    rows, length = features["decoder_target_tokens"].shape
    segments = np.ones((rows, length), np.int32)
    places = ((0, ROWS - rows), (0, LENGTH - length))
    whole = {name: np.pad(array, places) for name, array in {"decoder_segment_ids": segments, **features}.items()}
    output = applied(config)(parameters(config) if params is None else params, whole)
    return np.asarray(output)[:rows, :length]


@pytest.mark.slow
def test_causal_by_the_gradient():
    config = tiny.language_model(num_decoder_layers=2, logits_via_embedding=True)
    model = Network(config)
    params = parameters(config)
    features = {
        "decoder_input_tokens": jnp.arange(16, dtype=jnp.int32)[None],  # each its own row of the embedding
        "decoder_target_tokens": jnp.ones((1, 16), jnp.int32),
    }

    def summed(embedding, position):
        return model.apply({**params, "token_embedder": {"embedding": embedding}}, features)[0, position].sum()

    gradient = jax.jit(jax.grad(summed))
    for position in (0, 7, 15):
        to_rows = gradient(params["token_embedder"]["embedding"], position)
        reached = np.abs(to_rows - to_rows[-1:])[:16].max(axis=1)  # less what a tied head gives to every row
        assert (reached[: position + 1] > 0).all() and (reached[position + 1 :] == 0).all()


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.slow
def test_packed_equals_unpacked_and_padding_changes_nothing(layout):
    config = LAYOUTS[layout]
    rows = batch(2, 8)
    params = parameters(config)
    alone = logits(config, rows, params)
    packed = {name: array.reshape(1, -1) for name, array in rows.items()}
    packed["decoder_segment_ids"] = np.repeat([[1, 2]], 8, axis=1).astype(np.int32)
    together = logits(config, packed, params).reshape(2, 8, -1)
    np.testing.assert_allclose(together, alone, atol=2e-5)
    behind = {name: np.pad(array, ((0, 0), (0, 5))) for name, array in rows.items()}
    behind["decoder_input_tokens"][:, 8:] = 7  # what padding holds does not count
    behind["decoder_segment_ids"] = np.pad(np.ones((2, 8), np.int32), ((0, 0), (0, 5)))
    np.testing.assert_allclose(logits(config, behind, params)[:, :8], alone, atol=2e-5)


@pytest.mark.slow
def test_a_prefix_is_seen_whole_and_the_rest_causally():
    config = tiny.LANGUAGE_MODEL
    features = batch(2, 8)
    params = parameters(config)
    features["decoder_causal_attention"] = np.array([[1] * 5 + [0] * 3] * 2, np.int32)  # the start and 4 tokens
    before = logits(config, features, params)
    for position, reached in ((4, 0), (6, 6)):  # from the first token on, and from the token itself
        changed = {**features, "decoder_input_tokens": features["decoder_input_tokens"].copy()}
        changed["decoder_input_tokens"][0, position] = 251
        difference = np.abs(logits(config, changed, params) - before)[0].max(axis=-1)
        assert (difference[:reached] == 0).all() and (difference[reached:] > 0).all()


@pytest.mark.slow
def test_scanned_equals_unrolled_with_dropout_and_remat():
    features = batch(2, 8)

    def dropped(**changes):
        model = Network(tiny.language_model(dropout_rate=0.3, **changes))
        return np.asarray(jax.jit(model.apply)(parameters(tiny.LANGUAGE_MODEL), features, jax.random.key(1)))

    expected = dropped()
    np.testing.assert_allclose(dropped(scan_layers=False, remat="minimal"), expected, atol=2e-5)
    assert np.abs(logits(tiny.LANGUAGE_MODEL, features) - expected).max() > 0.1


@pytest.mark.parametrize("layout", [name for name in LAYOUTS if name != "t5x"])
@pytest.mark.slow
def test_first_loss_is_about_ln_v_and_half(layout):
    """But for T5X's tied head, whose embeddings of variance 1 favour the token that is read: as in T5 1.0."""
    config = LAYOUTS[layout]
    features = batch(2, 8)
    scores = logits(config, features, initial(config))
    losses = jax.nn.logsumexp(scores, axis=-1) - np.take_along_axis(
        scores, features["decoder_target_tokens"][..., None], axis=-1
    ).squeeze(-1)
    assert abs(float(losses.mean()) - np.log(config.vocab_size) - 0.5) < 0.5


def test_positions_begin_anew_in_each_segment():
    segments = jnp.array([[1, 1, 1, 2, 2, 3, 0, 0], [1] * 8])
    assert positions_in_segments(segments).tolist() == [[0, 1, 2, 0, 1, 0, 0, 1], list(range(8))]


def test_grouped_heads_have_fewer_keys_and_flops():
    shapes = flatten(jax.eval_shape(Network(tiny.LANGUAGE_MODEL).init, KEY))
    assert shapes["decoder/layers/self_attention/key/kernel"].shape == (3, 128, 64)
    assert shapes["decoder/layers/self_attention/query/kernel"].shape == (3, 128, 128)
    whole = flops_per_sequence(tiny.language_model(num_kv_heads=None), 0, 16)
    assert whole - flops_per_sequence(tiny.LANGUAGE_MODEL, 0, 16) == 3 * 3 * 16 * 2 * 2 * 128 * 64


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"relative_bias_per_layer": True}, "is for encoder-decoders"),
        ({"prefix_attention": "none"}, "choose one of full, causal"),
        ({"num_kv_heads": 3}, "does not divide"),
        ({"biases": ("norm",)}, "choose from attention, mlp, logits, head"),
        ({"biases": ("logits",), "logits_via_embedding": True}, "a tied head has no bias"),
        ({"head_dim": 15}, "an even number"),
        ({"attention": "flash"}, "choose one of auto, einsum, memory_efficient, pallas"),
        ({"num_encoder_layers": 2}, "an encoder-decoder has 'relative'"),
    ],
)
def test_bad_layouts_are_said(changes, said):
    with pytest.raises(InputError, match=said):
        tiny.language_model(**changes)


@pytest.mark.parametrize(("layout", "is_prefix"), [("llama", False), ("gpt2", False), ("t5x", False), ("t5x", True)])
@pytest.mark.slow
def test_cached_generation_equals_uncached_token_for_token(layout, is_prefix):
    """With `is_prefix` the ids of a prompt attend to all of it, as inputs do in training."""
    config = LAYOUTS[layout]
    model = Network(config)
    params = parameters(config)
    random = np.random.default_rng(5)
    prompts = [[0, *random.integers(2, 250, length).tolist()] for length in (6, 3)]
    width = 8
    tokens = 10
    prompt = np.full((2, width), -1, np.int32)
    for row, ids in enumerate(prompts):
        prompt[row, width - len(ids) :] = ids
    banned = jnp.zeros(config.vocab_size, bool)

    @jax.jit
    def written(params):
        step, cache = model.cached_language_model(params, jnp.asarray(prompt), tokens, is_prefix, by_rows=True)
        rules = decoding.Rules(banned, GenerationConfig(max_tokens=tokens), (1,))
        return decoding.generate(step, cache, jnp.asarray(prompt), rules)

    token_ids = np.asarray(written(params).tokens)[:, 0]
    for row, ids in enumerate(prompts):
        is_read = np.arange(LENGTH)[None] < (len(ids) if is_prefix else 0)
        for token in token_ids[row]:
            inputs = np.zeros((1, LENGTH), np.int32)
            inputs[0, : len(ids)] = ids
            features = {"decoder_input_tokens": inputs, "decoder_target_tokens": np.ones_like(inputs)}
            features["decoder_causal_attention"] = is_read.astype(np.int32)
            assert int(token) == int(logits(config, features, params)[0, len(ids) - 1].argmax())
            if token == 1:
                break
            ids = [*ids, int(token)]
