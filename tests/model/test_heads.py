"""An encoder's own heads: transformers' classes, losses by hand, several devices, rows that compare each other."""

import dataclasses
import functools
import types

import jax
import numpy as np
import pytest
import torch
import transformers

from limba.config import InputError, LossConfig, MeshConfig
from limba.formats.architectures import config_json, kind, model_fields, rows, written
from limba.formats.names import flatten, unstack_layers
from limba.model import Network
from limba.training.step import Gradient, gradients, loss_sums
from tests import tiny
from tests.model.test_encoder import MODERNBERTS, logits
from tests.tiny import ENCODER, MODERN, masked_batch, noisy_parameters

HEADS = {
    "classes": dataclasses.replace(ENCODER, head="classes", labels=("a", "b", "c")),
    "tags": dataclasses.replace(ENCODER, head="tags", labels=("x", "y")),
    "score": dataclasses.replace(ENCODER, head="score"),
    "vectors": dataclasses.replace(ENCODER, head="vectors"),
}
OF_MODERNBERT = {
    "classes": dataclasses.replace(MODERN, head="classes", labels=("a", "b", "c")),
    "tags": dataclasses.replace(MODERNBERTS["modern, all biases"], head="tags", labels=("x", "y")),
    "score": dataclasses.replace(MODERN, head="score", pooling="first"),
    "vectors": dataclasses.replace(MODERN, head="vectors"),
}
T5 = tiny.model(vocab_size=256, emb_dim=32, num_heads=2, head_dim=16, mlp_dim=64, num_decoder_layers=0, head="vectors")
OF_T5 = {
    "classes": dataclasses.replace(T5, head="classes", labels=("a", "b", "c")),
    "tags": dataclasses.replace(T5, head="tags", labels=("x", "y"), relative_bias_per_layer=True),
    "score": dataclasses.replace(T5, head="score", pooling="first", logits_via_embedding=True),
    "vectors": T5,
}
SHAPES = {f"EuroBERT, {head}": config for head, config in HEADS.items()}
SHAPES |= {"EuroBERT, first": dataclasses.replace(HEADS["classes"], pooling="first")}
SHAPES |= {f"ModernBERT, {head}": config for head, config in OF_MODERNBERT.items()}
SHAPES |= {f"T5, {head}": config for head, config in OF_T5.items()}


def labeled(head, num_rows=8, length=16):
    """Rows of labeled texts, the last one padding, as `packing.model_features` makes them."""
    random = np.random.default_rng(1)
    tokens = random.integers(2, 250, (num_rows, length)).astype(np.int32)
    tokens[::2, -5:] = 0
    labels = np.zeros_like(tokens)
    if head == "classes":
        labels = random.integers(1, 4, (num_rows, 1)).astype(np.int32)
    elif head == "tags":
        labels = np.where(random.random(tokens.shape) < 0.5, random.integers(1, 3, tokens.shape), 0).astype(np.int32)
        labels[tokens == 0] = 0
    elif head == "score":
        labels = random.standard_normal((num_rows, 1)).astype(np.float32).view(np.int32)
    else:
        labels = random.integers(2, 250, tokens.shape).astype(np.int32)
        labels[2] = labels[1]  # the same second text
    labels = np.pad(labels, ((0, 0), (0, length - labels.shape[1])))
    tokens[-1] = labels[-1] = 0
    weights = (labels != 0).astype(np.int32)
    return {
        **dict.fromkeys(("decoder_input_tokens", "decoder_target_tokens"), tokens),
        "decoder_labels": labels,
        "decoder_loss_weights": weights,
    }


def in_transformers(config):
    """The network of transformers with the same parameters."""
    about = transformers.AutoConfig.for_model(**config_json(config, mask_id=251))
    network = getattr(transformers, config_json(config)["architectures"][0])(about).eval()
    flat = unstack_layers({name: np.asarray(each) for name, each in flatten(noisy_parameters(config)).items()})
    arrays = written(flat, config)
    weights = {row.pytorch: arrays[row.t5x].T if row.transposed else arrays[row.t5x] for row in rows(config)}
    missing, unknown = network.load_state_dict({name: torch.tensor(each) for name, each in weights.items()}, False)
    assert not unknown and all(name.endswith("embed_tokens.weight") for name in missing)  # tied
    return network, about


@pytest.mark.parametrize("shape", SHAPES)
def test_outputs_and_loss_equal_transformers(shape):
    config, head = SHAPES[shape], SHAPES[shape].head
    network, about = in_transformers(config)
    features = labeled(head)
    inputs = torch.tensor(features["decoder_input_tokens"][:-1])
    mask, labels = (inputs > 0).long(), features["decoder_labels"][:-1]
    of = Network(config)
    both = jax.jit(lambda *args: (of.apply(*args), loss_sums(of, LossConfig(z_loss=0.0), *args, None)))
    outputs, sums = both(noisy_parameters(config), features)
    ours = np.asarray(outputs)[:-1]
    with torch.no_grad():
        if head == "vectors":
            of_both = [network(each, attention_mask=(each > 0).long()) for each in (inputs, torch.tensor(labels))]
            first, other = (
                torch.nn.functional.normalize(
                    (found.last_hidden_state * m[..., None]).sum(1) / m.sum(1, keepdim=True), dim=1
                )
                for found, m in zip(of_both, (mask, (torch.tensor(labels) > 0).long()), strict=True)
            )
            cosines = first @ other.T / 0.05
            cosines[1, 2] = cosines[2, 1] = -torch.inf  # the same text is no wrong answer
            loss = torch.nn.functional.cross_entropy(cosines, torch.arange(len(first)), reduction="sum")
            assert float(sums["tokens"]) == 7
        else:
            given = torch.tensor(labels).long() - 1
            given[given < 0] = -100
            if head != "tags":
                given = given[:, 0]
            if head == "score":
                given = torch.tensor(labels[:, :1].copy().view(np.float32))
            if config.is_t5_encoder and head != "tags":  # its class gives logits of tokens
                outputs, weights = network(inputs, attention_mask=mask).logits, mask[..., None]
                pooled = (outputs * weights).sum(1) / weights.sum(1) if config.pooling == "mean" else outputs[:, 0]
                of = torch.nn.functional.cross_entropy if head == "classes" else torch.nn.functional.mse_loss
                found = types.SimpleNamespace(logits=pooled, loss=of(pooled, given))
            else:
                found = network(inputs, attention_mask=mask, labels=given)
            real = inputs.numpy() > 0 if head == "tags" else np.ones(ours.shape[:2], bool)
            assert np.abs(ours[real]).max() > 0.5
            expected = found.logits.numpy().reshape(ours.shape)[real]
            np.testing.assert_allclose(ours[real], expected, atol=1e-4, rtol=0)
            loss = found.loss * float(sums["tokens"])
            assert float(sums["tokens"]) == (labels != 0).sum()
    np.testing.assert_allclose(float(sums["loss"]), float(loss), rtol=1e-5)
    fields = model_fields(about.to_dict(), kind(config))
    if config.is_t5_encoder and head == "vectors":  # it is the encoder alone, too
        assert fields["num_decoder_layers"] == 0 and "head" not in fields
        return
    assert fields.get("head") == head and tuple(fields.get("labels", ())) == config.labels
    assert fields.get("pooling", "mean") == config.pooling


@pytest.mark.parametrize("head", ["tags", "score"])
def test_packed_tags_are_those_of_each_text_alone_and_padding_changes_nothing(head):
    config = OF_MODERNBERT[head]
    features = {name: array[:2] for name, array in labeled(head).items()}
    alone, real = logits(config, features), features["decoder_target_tokens"] > 0
    real = real if head == "tags" else np.ones(alone.shape[:2], bool)
    longer = {name: np.pad(array, ((0, 0), (0, 7))) for name, array in features.items()}
    np.testing.assert_allclose(logits(config, longer)[:, : alone.shape[1]][real], alone[real], atol=2e-5)
    if head == "tags":
        packed = {name: array.reshape(1, -1) for name, array in features.items()}
        packed["decoder_segment_ids"] = np.where(real, [[1], [2]], 0).reshape(1, -1)
        found = logits(config, packed).reshape(alone.shape)
        np.testing.assert_allclose(found[real], alone[real], atol=2e-5)


@pytest.mark.parametrize(
    ("head", "mesh"),
    [
        ("tags", MeshConfig(data=2, fsdp=2, model=2)),
        ("vectors", MeshConfig(data=8)),  # each row is compared with those of all devices
        pytest.param("tags", MeshConfig(data=8), marks=pytest.mark.night),
        pytest.param("vectors", MeshConfig(data=2, fsdp=2, model=2), marks=pytest.mark.night),
    ],
)
def test_eight_devices_equal_one(head, mesh):
    features, found = labeled(head, 16), []
    for sizes in (MeshConfig(data=1), mesh):
        devices = tiny.mesh_of(sizes, int(np.prod(sizes.sizes(1 if sizes.data == 1 else 8))))
        gradient = Gradient(Network(HEADS[head], devices), LossConfig())
        run = jax.jit(lambda params, rows, gradient=gradient: gradients(gradient, params, rows, None))
        found.append(jax.tree.map(np.asarray, run(noisy_parameters(HEADS[head]), features)))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-4 * max(1, np.abs(b).max())), found[1], found[0])


def test_hidden_states_are_those_of_the_encoder_without_the_head():
    features = masked_batch(2, 12)
    body = {name: part for name, part in noisy_parameters(HEADS["classes"]).items() if name != "head"}
    states = functools.partial(Network(HEADS["classes"]).apply, as_states=True)
    whole = jax.jit(states)(noisy_parameters(HEADS["classes"]), features)
    vectors = jax.jit(Network(HEADS["vectors"]).apply)(body, features)
    np.testing.assert_allclose(np.asarray(whole).mean(axis=1), vectors[:, 0], atol=1e-5)


def test_wrong_heads_are_one_sentence():
    with pytest.raises(InputError, match="is 'classes', which encoders have: set attention_mask to 'bidirectional'"):
        tiny.language_model(head="classes", labels=("a", "b"))
    with pytest.raises(InputError, match="give each label once"):
        dataclasses.replace(ENCODER, head="classes", labels=("a", "a"))
    with pytest.raises(InputError, match="none to a head other than classes and tags"):
        dataclasses.replace(ENCODER, labels=("a",))
    for config, other, poolings in (
        (HEADS["classes"], "mean", "'late' or 'bos'"),
        (OF_MODERNBERT["classes"], "late", "'cls' or 'mean'"),
    ):
        about = config_json(config)
        for wrong in ({"classifier_pooling": other}, {"problem_type": "multi_label_classification"}):
            with pytest.raises(InputError, match=f"only one label a text and {poolings} are read"):
                model_fields({**about, **wrong}, kind(config))
    about = config_json(HEADS["classes"])
    two = {name: value for name, value in about.items() if name != "id2label"}  # which transformers does not write
    assert model_fields(two, "eurobert")["labels"] == ("LABEL_0", "LABEL_1")
