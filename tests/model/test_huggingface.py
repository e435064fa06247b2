"""Logits equal Hugging Face's T5, T5 1.1, mT5, umT5 and ByT5, weights copied, in float32."""

import jax
import numpy as np
import pytest
import torch
import transformers

from limba.config import ModelConfig
from limba.formats.names import flatten, unflatten
from limba.model import Network
from limba.model.relative_bias import relative_position_buckets
from tests.tiny import stack_layers

SIZES = {
    "d_model": 64,
    "d_kv": 16,
    "d_ff": 96,
    "num_heads": 4,
    "num_layers": 3,
    "num_decoder_layers": 2,
    "vocab_size": 256,
}
FAMILIES = {
    "t5_1_0": (transformers.T5Config, transformers.T5ForConditionalGeneration, "relu", True),
    "t5_1_1": (transformers.T5Config, transformers.T5ForConditionalGeneration, "gated-gelu", False),
    "mt5": (transformers.MT5Config, transformers.MT5ForConditionalGeneration, "gated-gelu", False),
    "umt5": (transformers.UMT5Config, transformers.UMT5ForConditionalGeneration, "gated-gelu", False),
    "byt5": (transformers.T5Config, transformers.T5ForConditionalGeneration, "gated-gelu", False),
}


def reference_model(family: str) -> torch.nn.Module:
    config_type, model_type, feed_forward, tied = FAMILIES[family]
    torch.manual_seed(0)
    config = config_type(**SIZES, feed_forward_proj=feed_forward, tie_word_embeddings=tied, dropout_rate=0.0)
    model = model_type(config).eval()
    if not tied:
        # transformers 5 forces tying onto some of these classes: give the head its own weights, and
        # keep the scaling of tied logits off.
        model.config.tie_word_embeddings = False
        model.config.scale_decoder_outputs = False
        model.lm_head.weight = torch.nn.Parameter(torch.randn(SIZES["vocab_size"], SIZES["d_model"]) * 0.1)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "layer_norm" in name:
                parameter.add_(0.1 * torch.randn_like(parameter))
            if "relative_attention_bias" in name:
                parameter.copy_(torch.randn_like(parameter))
    return model


def our_config(family: str) -> ModelConfig:
    _, _, feed_forward, tied = FAMILIES[family]
    return ModelConfig(
        vocab_size=SIZES["vocab_size"],
        emb_dim=SIZES["d_model"],
        num_heads=SIZES["num_heads"],
        head_dim=SIZES["d_kv"],
        mlp_dim=SIZES["d_ff"],
        num_encoder_layers=SIZES["num_layers"],
        num_decoder_layers=SIZES["num_decoder_layers"],
        mlp_activations=("relu",) if feed_forward == "relu" else ("gelu", "linear"),
        logits_via_embedding=tied,
        relative_bias_per_layer=family == "umt5",
        dtype="float32",
    )


def copied_parameters(model: torch.nn.Module, config: ModelConfig) -> dict:
    weights = {name: value.detach().numpy() for name, value in model.state_dict().items()}
    tree = {"token_embedder/embedding": weights["shared.weight"]}
    if not config.logits_via_embedding:
        tree["decoder/logits_dense/kernel"] = weights["lm_head.weight"].T
    sublayers = {
        "encoder": [
            ("SelfAttention", "attention", "pre_attention_layer_norm"),
            ("DenseReluDense", "mlp", "pre_mlp_layer_norm"),
        ],
        "decoder": [
            ("SelfAttention", "self_attention", "pre_self_attention_layer_norm"),
            ("EncDecAttention", "encoder_decoder_attention", "pre_cross_attention_layer_norm"),
            ("DenseReluDense", "mlp", "pre_mlp_layer_norm"),
        ],
    }
    renamed = {"q": "query", "k": "key", "v": "value", "o": "out"}
    for side, parts in sublayers.items():
        tree[f"{side}/{side}_norm/scale"] = weights[f"{side}.final_layer_norm.weight"]
        layers = config.num_encoder_layers if side == "encoder" else config.num_decoder_layers
        for i in range(layers):
            for j, (theirs, ours, norm) in enumerate(parts):
                prefix = f"{side}.block.{i}.layer.{j}."
                tree[f"{side}/layers_{i}/{norm}/scale"] = weights[prefix + "layer_norm.weight"]
                for name, value in weights.items():
                    if not name.startswith(f"{prefix}{theirs}."):
                        continue
                    last = name.split(".")[-2]
                    if last == "relative_attention_bias":
                        layer = f"layers_{i}/" if config.relative_bias_per_layer else ""
                        tree[f"{side}/{layer}relpos_bias/rel_embedding"] = value.T
                    else:
                        tree[f"{side}/layers_{i}/{ours}/{renamed.get(last, last)}/kernel"] = value.T
    return unflatten(stack_layers(tree))


# In a loop, too, where each layer has positions of its own; the others' loops are of the night.
LOOPS = [pytest.param(family, False, marks=[pytest.mark.night] * (family != "umt5")) for family in FAMILIES]


@pytest.mark.parametrize(("family", "scan_layers"), [*((family, True) for family in FAMILIES), *LOOPS])
@pytest.mark.slow
def test_logits_equal_hugging_face(family: str, scan_layers: bool) -> None:
    reference = reference_model(family)
    config = our_config(family)
    config = ModelConfig(**{**vars(config), "scan_layers": scan_layers})
    parameters = copied_parameters(reference, config)
    shapes = jax.eval_shape(Network(config).init, jax.random.key(0))
    assert {n: s.shape for n, s in flatten(shapes).items()} == {n: a.shape for n, a in flatten(parameters).items()}

    random = np.random.default_rng(1)
    inputs = random.integers(2, 256, (2, 150))
    targets = random.integers(2, 256, (2, 40))
    inputs[1, 120:] = 0
    shifted = np.concatenate([np.zeros((2, 1), int), targets[:, :-1]], axis=1)
    with torch.no_grad():
        expected = reference(
            input_ids=torch.tensor(inputs),
            attention_mask=torch.tensor(inputs > 0),
            decoder_input_ids=torch.tensor(shifted),
        ).logits.numpy()
    batch = {
        "encoder_input_tokens": inputs.astype(np.int32),
        "decoder_input_tokens": shifted.astype(np.int32),
        "decoder_target_tokens": targets.astype(np.int32),
    }
    logits = np.asarray(jax.jit(Network(config).apply)(parameters, batch))
    assert np.abs(expected).max() > 0.5
    np.testing.assert_allclose(logits, expected, atol=1e-4, rtol=0)


@pytest.mark.parametrize("bidirectional", [True, False])
def test_relative_position_buckets_equal_hugging_face(bidirectional: bool) -> None:
    distances = np.arange(-3000, 3001)
    expected = transformers.models.t5.modeling_t5.T5Attention._relative_position_bucket(
        torch.tensor(distances), bidirectional, 32, 128
    )
    ours = relative_position_buckets(distances, bidirectional=bidirectional, num_buckets=32, max_distance=128)
    np.testing.assert_array_equal(ours, expected.numpy())
