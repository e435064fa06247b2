"""Every file of gin/models/ gives the published sizes; the counts are from the papers' checkpoints."""

from pathlib import Path

import pytest

from limba.cli.flags import parse_args
from limba.config import ModelConfig

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "gin/models"
MODELS = sorted(path.relative_to(FOLDER).with_suffix("").as_posix() for path in FOLDER.glob("*/*.gin"))
SIZES = ["base", "large", "small", "tiny", "xl", "xxl"]
FAMILIES = {
    "t5_1_0": ["11b", "3b", "base", "large", "small", "tiny"],
    "t5_1_1": ["base", "large", "little", "mini", "small", "tiny", "xl", "xxl"],
    "mt5": SIZES,
    "umt5": SIZES,
    "byt5": SIZES,
    "encoder": ["base", "large", "small", "tiny"],
    "modernbert": ["base", "large", "tiny"],
    "lm": ["0.05b", "0.1b", "1.0b", "tiny"],
    "lm_modern": ["0.05b", "0.1b", "1.0b", "tiny"],
}
ENCODERS = ("encoder", "modernbert")
COUNTS = {
    ("t5_1_1/small", None): 76_961_152,
    ("t5_1_1/base", None): 247_577_856,
    ("t5_1_1/base", 64_000): 296_533_248,
    ("t5_1_1/large", 64_000): 848_423_936,
    ("t5_1_1/large", None): 783_150_080,
    ("t5_1_1/xl", None): 2_849_757_184,
    ("t5_1_1/xxl", None): 11_135_332_352,
    ("mt5/base", None): 582_401_280,
    ("mt5/small", None): 300_176_768,
    ("mt5/large", None): 1_229_581_312,
    ("t5_1_0/small", None): 60_506_624,
    ("t5_1_0/base", None): 222_903_552,
    ("t5_1_0/large", None): 737_668_096,
    ("byt5/small", None): 299_637_760,
    ("byt5/base", None): 581_653_248,
    ("modernbert/base", 50_368): 149_655_232,
    ("modernbert/large", 50_368): 395_881_664,
}
REQUIRED = {
    "MIXTURE_OR_TASK_NAME": "any",
    "TASK_FEATURE_LENGTHS": "{'inputs': 512}",
    "TRAIN_STEPS": "1",
    "MODEL_DIR": "out",
    "DROPOUT_RATE": "0.0",
}


def model_of(name: str, **overrides: object) -> ModelConfig:
    lengths = {"TASK_FEATURE_LENGTHS": "{'targets': 256}"} if name.startswith(("lm", *ENCODERS)) else {}
    lengths |= {"OBJECTIVE": "masked_lm"} if name.startswith(ENCODERS) else {}
    values = [f"--gin.{key}={value}" for key, value in {**REQUIRED, **lengths, **overrides}.items()]
    files = [f"--gin_file=gin/models/{name}.gin", "--gin_file=gin/runs/pretrain.gin"]
    return parse_args([*files, *values]).config.model


def num_parameters(model: ModelConfig) -> int:
    """Matrices, norm scales and relative biases; T5 has no other parameters."""
    if model.is_decoder_only:
        return num_parameters_of_decoder(model)
    inner = model.num_heads * model.head_dim
    attention = 4 * model.emb_dim * inner
    mlp = (len(model.mlp_activations) + 1) * model.emb_dim * model.mlp_dim
    encoder = model.num_encoder_layers * (attention + mlp + 2 * model.emb_dim)
    decoder = model.num_decoder_layers * (2 * attention + mlp + 3 * model.emb_dim)
    num_biases = model.num_encoder_layers + model.num_decoder_layers if model.relative_bias_per_layer else 2
    vocabulary = model.vocab_size * model.emb_dim * (1 if model.logits_via_embedding else 2)
    biases = num_biases * model.num_relpos_buckets * model.num_heads
    return vocabulary + encoder + decoder + biases + 2 * model.emb_dim


def num_parameters_of_decoder(model: ModelConfig) -> int:
    d = model.emb_dim
    inner = model.num_heads * model.head_dim
    shared = model.kv_heads * model.head_dim
    gates = len(model.mlp_activations)
    layer = 2 * d * (inner + shared) + (gates + 1) * d * model.mlp_dim
    layer += (gates * model.mlp_dim + d) if "mlp" in model.biases else 0
    layer += (inner + 2 * shared + d) if "attention" in model.biases else 0
    norm = 2 * d if model.norm == "layer" else d
    head = 0 if model.logits_via_embedding else d * model.vocab_size
    head += model.vocab_size if "logits" in model.biases else 0
    head += d * (d + 1 + ("head" in model.biases)) if model.is_modernbert else 0
    return model.vocab_size * d + model.num_decoder_layers * (layer + 2 * norm) + norm + head


def test_every_family_has_its_sizes() -> None:
    assert [f"{family}/{size}" for family in sorted(FAMILIES) for size in FAMILIES[family]] == MODELS


@pytest.mark.parametrize(("name", "rows"), COUNTS)
def test_counts_are_the_published_ones(name: str, rows: int | None) -> None:
    model = model_of(name, **({"VOCAB_SIZE": rows} if rows else {}))
    assert num_parameters(model) == COUNTS[name, rows]


@pytest.mark.parametrize("name", MODELS)
def test_headers_say_the_count(name: str) -> None:
    header = (FOLDER / f"{name}.gin").read_text(encoding="utf-8").splitlines()[0]
    assert f" {num_parameters(model_of(name)):,} parameters" in header


@pytest.mark.parametrize("name", MODELS)
def test_families_differ_as_they_should(name: str) -> None:
    family, size = name.split("/")
    model = model_of(name)
    if family.startswith("lm"):
        check_language_model(model, size, modern=family == "lm_modern")
        return
    if family == "encoder":
        check_encoder(model, size)
        return
    if family == "modernbert":
        check_modernbert(model, size)
        return
    assert model.vocab_size == {"mt5": 250_112, "umt5": 256_384, "byt5": 384}.get(family, 32_128)
    assert model.vocab_size % 128 == 0
    assert model.logits_via_embedding == (family == "t5_1_0")
    assert model.mlp_activations == (("relu",) if family == "t5_1_0" else ("gelu", "linear"))
    assert model.relative_bias_per_layer == (family == "umt5")
    if family in ("mt5", "umt5"):
        t5 = model_of(f"t5_1_1/{size}")
        assert (t5.emb_dim, t5.mlp_dim, t5.num_heads, t5.num_encoder_layers) == (
            model.emb_dim,
            model.mlp_dim,
            model.num_heads,
            model.num_encoder_layers,
        )


def check_encoder(model: ModelConfig, size: str) -> None:
    """EuroBERT-210m's and 610m's shapes (arXiv:2503.05500, table 1), and a Llama's layers."""
    assert model.is_encoder and model.vocab_size == 32_000 and not model.logits_via_embedding
    assert (model.positions, model.norm, model.biases, model.rotary_base) == ("rotary", "rms", (), 250_000.0)
    assert model.mlp_activations == ("silu", "linear") and model.layer_norm_epsilon == 1e-5
    published = {"base": (12, 768, 12, 12, 3072), "large": (26, 1152, 18, 6, 4096)}
    shape = (model.num_decoder_layers, model.emb_dim, model.num_heads, model.kv_heads, model.mlp_dim)
    assert shape == published.get(size, shape)
    assert model.head_dim * model.num_heads == model.emb_dim


def check_modernbert(model: ModelConfig, size: str) -> None:
    """ModernBERT's shapes (arXiv:2412.13663, table 4), and transformers' default configuration."""
    assert model.is_encoder and model.vocab_size == 32_000 and model.logits_via_embedding
    assert (model.positions, model.norm, model.biases) == ("rotary", "layer_scale", ("logits",))
    assert (model.rotary_base, model.local_attention) == (160_000.0, (32 if size == "tiny" else 128, 3, 10_000.0))
    assert model.mlp_activations == ("gelu_exact", "linear") and model.layer_norm_epsilon == 1e-5
    published = {"base": (22, 768, 12, 1152), "large": (28, 1024, 16, 2624)}
    shape = (model.num_decoder_layers, model.emb_dim, model.num_heads, model.mlp_dim)
    assert shape == published.get(size, shape)
    assert model.head_dim * model.num_heads == model.emb_dim


def check_language_model(model: ModelConfig, size: str, modern: bool) -> None:
    """As published, and the same sizes as a Llama."""
    assert model.vocab_size == 30_080 and model.is_decoder_only and not model.logits_via_embedding
    published = {"0.05b": (6, 512, 8, 2048), "0.1b": (12, 768, 12, 3072), "1.0b": (18, 2048, 16, 8192)}
    if size in published:
        layers, width, heads, mlp = published[size]
        assert (model.num_decoder_layers, model.emb_dim, model.num_heads) == (layers, width, heads)
        assert model.head_dim * heads == width and (modern or model.mlp_dim == mlp)
    if modern:
        assert (model.positions, model.norm, model.biases) == ("rotary", "rms", ())
        assert model.mlp_activations == ("silu", "linear") and model.kv_heads < model.num_heads
    else:
        assert (model.positions, model.norm, model.biases) == ("sinusoidal", "layer", ("mlp",))
