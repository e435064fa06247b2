"""The encoder: transformers' EuroBERT, both directions, packing, masks by row, several devices."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
import transformers

from limba.config import DataConfig, InputError, LossConfig, MeshConfig, RunConfig
from limba.evaluation.validation import evaluation_sums
from limba.formats.architectures import kind, rows, shapes, written
from limba.formats.huggingface_config import config_json, model_fields
from limba.formats.names import flatten, unflatten, unstack_layers
from limba.model import Network
from limba.model.kernels.choose import choose
from limba.model.language_model import LanguageModelLayer
from limba.model.masks import Mask
from limba.training.metrics.flops import flops_per_sequence
from limba.training.step import Gradient, gradients
from tests import tiny
from tests.tiny import ENCODER, MODERN, masked_batch, noisy_parameters

SHAPES = {
    "plain": ENCODER,
    "tied": dataclasses.replace(ENCODER, logits_via_embedding=True),
    "biases": dataclasses.replace(ENCODER, biases=("attention", "mlp", "logits"), num_kv_heads=None),
    "gelu, unrolled": dataclasses.replace(
        ENCODER, mlp_activations=("gelu", "linear"), scan_layers=False, rotary_base=250_000.0
    ),
}
MODERNBERTS = {
    "modern": MODERN,
    "modern, no bias, unrolled": dataclasses.replace(MODERN, biases=(), scan_layers=False),
    "modern, all biases": dataclasses.replace(MODERN, biases=("attention", "mlp", "logits", "head"), norm="layer"),
    "modern, untied": dataclasses.replace(MODERN, logits_via_embedding=False, mlp_activations=("gelu", "linear")),
    "modern, every second": dataclasses.replace(
        MODERN, local_attention=(8, 2, 500.0), mlp_activations=("silu", "linear")
    ),
    "modern, five windows": dataclasses.replace(MODERN, num_decoder_layers=3),  # rows of 40 tokens, in blocks
    "modern, lean": dataclasses.replace(MODERN, attention="memory_efficient", local_attention=(8, 4, 500.0)),
}
MODERNBERTS |= {
    f"modern, {name} bias": dataclasses.replace(MODERN, biases=(name,)) for name in ("attention", "mlp", "head")
}
SHAPES |= MODERNBERTS | {  # a EuroBERT's logits have a bias where its MLPs have one
    f"plain, {names[0]} bias": dataclasses.replace(ENCODER, biases=names)
    for names in (("attention",), ("mlp", "logits"))
}
# The plain rows of two networks in every run, and before a change lands those with other parameters. Packed rows are of
# the networks whose attention is computed in a way of its own; both tests have all networks at night.
OTHER_PARAMETERS = ("biases", "modern, all biases", "modern, untied")
OTHER_ATTENTIONS = ("gelu, unrolled", "modern, lean")
ATTENTIONS = ("plain", "modern", "modern, five windows")


@functools.cache
def applied(config):
    return jax.jit(Network(config).apply)


def most_weighted(features, number):
    """Returns the places of each row that have a weight, and then others."""
    return np.argsort(-features["decoder_loss_weights"], axis=1, kind="stable")[:, :number].astype(np.int32)


def logits(config, features):
    return np.asarray(applied(config)(noisy_parameters(config), features))


def of_transformers(config):
    """Returns transformers' network with these parameters, and what its config.json holds."""
    json = config_json(config, mask_id=251)
    network = getattr(transformers, json["architectures"][0])(transformers.AutoConfig.for_model(**json)).eval()
    flat = unstack_layers({name: np.asarray(array) for name, array in flatten(noisy_parameters(config)).items()})
    arrays = written(flat, config)
    weights = {row.pytorch: arrays[row.t5x].T if row.transposed else arrays[row.t5x] for row in rows(config)}
    missing, unknown = network.load_state_dict({name: torch.tensor(array) for name, array in weights.items()}, False)
    tied = {"lm_head.weight", "decoder.weight"} if config.logits_via_embedding else set()
    assert not unknown and set(missing) <= tied
    return network, json


def of_tiers(quick, slow):
    """Returns all shapes, each with the mark of when it is looked at."""
    others = {name: pytest.mark.slow if name in slow else pytest.mark.night for name in SHAPES if name not in quick}
    return [pytest.param(name, marks=others.get(name, ())) for name in SHAPES]


@pytest.mark.parametrize("shape", of_tiers(("plain", "modern"), SHAPES))
def test_every_parameter_and_field_has_its_name_in_transformers(shape):
    config = SHAPES[shape]
    _, json = of_transformers(config)
    name = kind(config)
    for read in (model_fields(transformers.AutoConfig.for_model(**json).to_dict(), name), model_fields(json, name)):
        assert read.pop("num_kv_heads", config.kv_heads) == config.kv_heads
        assert read == {field: getattr(config, field) for field in read}
        assert config == dataclasses.replace(config, **read)


def of_padded_rows(shape):
    """Returns the rows, a mask of their tokens, and what transformers computes of them: logits and states."""
    features = masked_batch(2, 40 if shape == "modern, five windows" else 30)
    for array in features.values():
        array[1, 24:] = 0
    network, _ = of_transformers(SHAPES[shape])
    inputs = torch.tensor(features["decoder_input_tokens"])
    with torch.no_grad():
        expected = network(inputs, attention_mask=inputs > 0).logits.numpy()
        states = network.model(inputs, attention_mask=inputs > 0).last_hidden_state.numpy()
    return features, features["decoder_target_tokens"] > 0, expected, states


@pytest.mark.parametrize("shape", of_tiers(("plain", "modern"), OTHER_PARAMETERS))
@pytest.mark.slow
def test_logits_and_states_equal_transformers(shape):
    config = SHAPES[shape]
    features, real, expected, expected_states = of_padded_rows(shape)
    apply = Network(config).apply
    both = jax.jit(lambda params, features: (apply(params, features), apply(params, features, as_states=True)))
    ours, states = (np.asarray(output) for output in both(noisy_parameters(config), features))
    assert np.abs(ours[real]).max() > 0.5
    np.testing.assert_allclose(ours[real], expected[real], atol=1e-4, rtol=0)
    np.testing.assert_allclose(states[real], expected_states[real], atol=1e-4, rtol=0)


@pytest.mark.parametrize("shape", of_tiers(ATTENTIONS, OTHER_ATTENTIONS))
def test_a_packed_document_has_the_logits_that_transformers_gives_it_alone(shape):
    config = SHAPES[shape]
    features, real, expected, _ = of_padded_rows(shape)
    packed = {field: array.reshape(1, -1) for field, array in features.items()}
    segments = np.repeat([[1, 2]], real.shape[1], axis=1)
    packed["decoder_segment_ids"] = np.where(packed["decoder_target_tokens"] > 0, segments, 0)
    joined = logits(config, packed).reshape(expected.shape)
    np.testing.assert_allclose(joined[real], expected[real], atol=1e-4, rtol=0)


@pytest.mark.slow
def test_sees_both_directions_by_the_gradient():
    features = {
        "decoder_input_tokens": jnp.arange(16, dtype=jnp.int32)[None],  # each its own row of the embedding
        "decoder_target_tokens": jnp.array([[1] * 12 + [0] * 4], jnp.int32),
    }
    params = noisy_parameters(ENCODER)

    def summed(embedding, position):
        return (
            Network(ENCODER).apply({**params, "token_embedder": {"embedding": embedding}}, features)[0, position].sum()
        )

    for position in (0, 7, 11):
        reached = np.abs(jax.jit(jax.grad(summed))(params["token_embedder"]["embedding"], position))[:16].max(axis=1)
        assert (reached[:12] > 0).all() and (reached[12:] == 0).all()


def test_packed_equals_unpacked_and_padding_changes_nothing():
    features = masked_batch(2, 8)
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


@pytest.mark.parametrize(
    ("attention", "is_packed"),
    [
        ("einsum", False),
        ("memory_efficient", True),
        pytest.param("einsum", True, marks=pytest.mark.night),
        pytest.param("memory_efficient", False, marks=pytest.mark.night),
    ],
)
@pytest.mark.slow
def test_a_row_can_say_its_own_mask_and_is_then_that_of_its_network(attention, is_packed):
    config = dataclasses.replace(ENCODER, attention=attention)
    features = masked_batch(2, 12)
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
    hybrid = dataclasses.replace(config, attention_mask="hybrid")
    both = logits(config, shifted(features))
    np.testing.assert_allclose(logits(hybrid, features), both, atol=2e-5)
    mixed = logits(hybrid, {**features, "decoder_causal_attention": which})
    np.testing.assert_allclose(mixed, np.where(which[..., None] > 0, both, causal), atol=2e-5)


@pytest.mark.slow
def test_a_hybrid_predicts_a_token_from_the_others_alone():
    params = noisy_parameters(ENCODER)
    hybrid = dataclasses.replace(ENCODER, attention_mask="hybrid")
    tokens = jnp.arange(1, 13, dtype=jnp.int32)[None]

    def of(embedding, position, which):
        features = {"decoder_input_tokens": tokens, "decoder_target_tokens": tokens}
        features["decoder_causal_attention"] = jnp.full_like(tokens, which)
        return (
            Network(hybrid).apply({**params, "token_embedder": {"embedding": embedding}}, features)[0, position].sum()
        )

    for which, seen in ((1, range(12)), (0, range(6))):  # token 12 is the last one, which nothing reads
        reached = np.abs(jax.jit(jax.grad(of))(params["token_embedder"]["embedding"], 5, which)).max(axis=1)
        assert np.flatnonzero(reached).tolist() == list(seen)


def test_memory_efficient_attention_equals_the_einsum():
    features = masked_batch(2, 24)
    einsum, lean = (
        logits(dataclasses.replace(ENCODER, attention=name), features) for name in ("einsum", "memory_efficient")
    )
    np.testing.assert_allclose(lean, einsum, atol=2e-5)


CUT = MeshConfig(data=2, fsdp=2, model=2)


@pytest.mark.parametrize(
    ("kind", "mesh"),
    [
        ("masks of the rows' own", CUT),
        pytest.param("all positions", CUT, marks=pytest.mark.slow),
        pytest.param("gathered positions", MeshConfig(data=8), marks=pytest.mark.slow),
        pytest.param("all positions", MeshConfig(data=8), marks=pytest.mark.night),
        pytest.param("gathered positions", CUT, marks=pytest.mark.night),
        pytest.param("masks of the rows' own", MeshConfig(data=8), marks=pytest.mark.night),
    ],
)
@pytest.mark.slow
def test_eight_devices_equal_one(kind, mesh):
    features = masked_batch(8, 24)
    features["decoder_loss_weights"] = (features["decoder_input_tokens"] == 251).astype(np.int32)
    if kind == "gathered positions":
        features["decoder_predicted_positions"] = most_weighted(features, 12)
    elif kind != "all positions":
        features["decoder_causal_attention"] = np.repeat(np.arange(8) % 3 > 0, 24).reshape(8, 24).astype(np.int32)
        features["decoder_loss_weights"] |= 1 - features["decoder_causal_attention"]
    tiny.assert_same_gradients(
        *((ENCODER, layout, LossConfig()) for layout in (MeshConfig(1), mesh)), features=features
    )


def test_every_third_layer_sees_all_and_the_others_four_to_each_side():
    params = noisy_parameters(MODERN)
    x = jax.random.normal(jax.random.key(0), (1, 24, MODERN.emb_dim))
    weights = jax.tree.map(lambda array: array[0], params["decoder"]["layers"])
    positions = jnp.arange(24)[None]
    ids = jnp.ones((1, 24), jnp.int32)
    mask = Mask(ids, ids)
    attend = choose(MODERN, None, 1, 24, 24)
    reached = []

    @jax.jit
    @jax.grad
    def gradient(x, number):
        inputs = (x, attend, None, positions, mask, number, True)
        return LanguageModelLayer(MODERN).apply({"params": weights}, *inputs)[0, 12].sum()

    for number in range(4):
        reached.append(np.flatnonzero(np.abs(gradient(x, number))[0].max(axis=1)).tolist())
    assert reached == [[*range(24)], [*range(8, 17)], [*range(8, 17)], [*range(24)]]


@pytest.mark.slow
def test_eight_devices_equal_one_with_windows():
    tiny.assert_same_gradients(*((MODERN, mesh, LossConfig()) for mesh in (MeshConfig(data=1), MeshConfig(2, 2, 2))))


def test_flops_count_both_directions_and_predicted_positions():
    causal = dataclasses.replace(ENCODER, attention_mask="causal")
    length = 64
    width = ENCODER.num_heads * ENCODER.head_dim
    more = flops_per_sequence(ENCODER, 0, length) - flops_per_sequence(causal, 0, length)
    assert more == 3 * ENCODER.num_decoder_layers * 2 * length**2 * width
    fewer = flops_per_sequence(ENCODER, 0, length) - flops_per_sequence(ENCODER, 0, length, 8)
    assert fewer == 3 * 2 * (length - 8) * ENCODER.emb_dim * ENCODER.vocab_size


SMOOTH = LossConfig(z_loss=1e-4, label_smoothing=0.1, normalize_by="sequences")


@pytest.mark.parametrize(
    ("shape", "loss"),
    [
        ("modern", SMOOTH),
        pytest.param("plain", LossConfig(), marks=pytest.mark.slow),
        pytest.param("plain", SMOOTH, marks=pytest.mark.night),
        pytest.param("modern", LossConfig(), marks=pytest.mark.night),
        *(
            pytest.param(shape, loss, marks=pytest.mark.night)
            for shape in ("tied", "biases")
            for loss in (LossConfig(), SMOOTH)
        ),
    ],
)
@pytest.mark.slow
def test_the_gathered_head_equals_the_whole_one(shape, loss):
    """Loss and gradient of the predicted positions alone equal the ones from all logits, in chunks too."""
    config = SHAPES[shape]
    features = masked_batch(4, 24)
    features["decoder_loss_weights"] = (features["decoder_input_tokens"] == 251).astype(np.int32)
    places = most_weighted(features, 12)
    assert features["decoder_loss_weights"].sum(axis=1).max() <= 12

    def of(loss, batch):
        gradient = Gradient(Network(config), loss)
        grads = jax.jit(lambda params, batch: gradients(gradient, params, batch, None))(noisy_parameters(config), batch)
        return jax.tree.map(np.asarray, grads)

    whole = of(dataclasses.replace(loss, logits="whole"), features)
    gathered = {**features, "decoder_predicted_positions": places}
    for logits in ("whole",) if not config.has_plain_head else ("whole", "chunked"):
        of_chunks = of(dataclasses.replace(loss, logits=logits), gathered)
        jax.tree.map(
            lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-6 * np.abs(b).max()), of_chunks, whole
        )


@pytest.mark.parametrize("shape", ["plain", "modern"])
def test_the_evaluation_of_predicted_positions_is_that_of_all_logits(shape):
    network = Network(SHAPES[shape])
    features = masked_batch(4, 24)
    features["decoder_loss_weights"] = (features["decoder_input_tokens"] == 251).astype(np.int32)
    features["character_counts"] = np.random.default_rng(1).integers(1, 4, (4, 24, 5)).astype(np.int32)
    places = most_weighted(features, 12)
    sums = jax.jit(functools.partial(evaluation_sums, network, LossConfig(), noisy_parameters(SHAPES[shape])))
    whole = sums(features)
    of_predicted = sums({**features, "decoder_predicted_positions": places})
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), of_predicted, whole)
    assert whole["tokens"] == features["decoder_loss_weights"].sum() > 0


def test_what_a_modernbert_cannot_be_is_one_sentence():
    for changes, sentence in (
        ({"local_attention": (7, 3, 500.0)}, "local_attention is \\(7, 3, 500.0\\); give an even number of tokens"),
        ({"local_attention": (8, 0, 500.0)}, "a number of layers, and a base above 1, such as"),
        ({"attention_mask": "hybrid"}, "a hybrid is also a language model, of Llama's layout"),
        ({"attention_mask": "causal"}, "which is for encoders, and ModelConfig.attention_mask is 'causal'"),
        ({"local_attention": None, "biases": ("head",)}, "holds 'head', which a ModernBERT has"),
        ({"local_attention": None}, "a tied head has no bias: remove one of them"),
    ):
        with pytest.raises(InputError, match=sentence):
            dataclasses.replace(MODERN, **changes)
    for changes, sentence in (
        ({"norm": "rms"}, "has layer or layer_scale norms, and ModelConfig.norm is 'rms'"),
        ({"num_kv_heads": 2}, "has keys for every head"),
    ):
        with pytest.raises(InputError, match=sentence):
            config_json(dataclasses.replace(MODERN, **changes))
    json = config_json(MODERN)
    for changes, sentence in (
        ({"classifier_activation": "relu"}, "activations in config.json are gelu and relu"),
        ({"layer_types": ["full_attention", "sliding_attention", "full_attention", "full_attention"]}, "do not repeat"),
        ({"rope_parameters": {"full_attention": {"rope_type": "yarn"}}}, "scales the rotary positions"),
    ):
        with pytest.raises(InputError, match=sentence):
            model_fields(json | changes, "modernbert")


def test_a_classifiers_activation_is_nothing_to_an_encoder_that_is_read_alone():
    json = {**config_json(MODERN), "classifier_activation": "relu"}
    for name in ("ModernBertModel", "ModernBertForTokenClassification"):
        fields = model_fields(json | {"architectures": [name]}, "modernbert")
        assert not fields["has_logits"] and fields["mlp_activations"] == ("gelu_exact", "linear")


def test_relative_positions_are_refused():
    with pytest.raises(InputError, match="looks back only"):
        dataclasses.replace(ENCODER, positions="relative")


@pytest.mark.parametrize("shape", ["plain", "modern, all biases"])
def test_without_logits_an_encoder_has_the_same_states_and_no_output_layer(shape):
    whole = SHAPES[shape]
    alone = dataclasses.replace(whole, has_logits=False)
    features = masked_batch()
    parameters = noisy_parameters(whole)
    names = flatten(jax.eval_shape(Network(alone).init, jax.random.key(0)))
    zeros = {name: np.zeros(leaf.shape, np.float32) for name, leaf in names.items()}
    assert {name for name in flatten(parameters) if "logits_dense" in name or "head_" in name} == set(
        flatten(parameters)
    ) - set(names)
    assert {name: leaf.shape for name, leaf in unstack_layers(zeros).items()} == shapes(alone)
    own_parameters = unflatten({name: array for name, array in flatten(parameters).items() if name in names})
    states = jax.jit(functools.partial(Network(whole).apply, as_states=True))(parameters, features)
    np.testing.assert_array_equal(jax.jit(Network(alone).apply)(own_parameters, features), states)


def test_only_encoders_are_without_logits_and_no_run_trains_them():
    with pytest.raises(InputError, match=r"has_logits is False, which is for encoders, and .* set it to True"):
        tiny.model(has_logits=False)
    with pytest.raises(InputError, match="which is for encoders"):
        tiny.language_model(has_logits=False)
    assert not tiny.model(num_decoder_layers=0).has_logits
    masked = DataConfig("a", {"targets": 16}, batch_size=8, objective="masked_lm")
    with pytest.raises(InputError, match="has_logits is False: the network gives hidden states, and no objective"):
        RunConfig(dataclasses.replace(ENCODER, has_logits=False), masked, "runs/a", 10)
    with pytest.raises(InputError, match="num_decoder_layers is 0: the encoder of a T5 alone, which has no objective"):
        RunConfig(tiny.model(num_decoder_layers=0), DataConfig("a", {"inputs": 16}, batch_size=8), "runs/a", 10)
