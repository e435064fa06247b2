"""The parameter tree of every size is T5X's: names, shapes, logical axes, counts."""

import math
from pathlib import Path

import jax
import numpy as np
import pytest
from jax.sharding import PartitionSpec

from limba.cli.gin import read_model
from limba.config import ModelConfig
from limba.formats.huggingface import flax_name, rows
from limba.formats.names import flatten, unflatten, unstack_layers
from limba.model import Network
from tests.tiny import stack_layers

ROOT = Path(__file__).parent.parent.parent
KEY = jax.random.key(0)
COUNTS = {  # parameters as published
    ("t5_1_1/small", None): 76_961_152,
    ("t5_1_1/base", None): 247_577_856,
    ("t5_1_1/base", 64_000): 296_533_248,
    ("t5_1_1/large", 64_000): 848_423_936,
    ("mt5/base", None): 582_401_280,
    ("modernbert/base", 50_368): 149_655_232,
    ("modernbert/large", 50_368): 395_881_664,
}


def config_of(size: str, vocab_size: int | None = None) -> ModelConfig:
    overrides = ["DROPOUT_RATE=0.0"] + ([f"VOCAB_SIZE={vocab_size}"] if vocab_size else [])
    return read_model(f"gin/models/{size}.gin", overrides)


def recorded_trees() -> dict[str, list[str]]:
    trees: dict[str, list[str]] = {}
    for line in (ROOT / "tests/golden/t5x_parameters.txt").read_text().splitlines():
        if line.startswith("# "):
            lines = trees.setdefault(line[2:], [])
        else:
            lines.append(line)
    return trees


TREES = recorded_trees()


@pytest.mark.parametrize("size", TREES)
def test_tree_is_t5x_s(size: str) -> None:
    model = Network(config_of(size))
    shapes = flatten(jax.eval_shape(model.init, KEY))
    axes = dict(
        zip(shapes, jax.tree.leaves(model.logical_axes(), is_leaf=lambda x: isinstance(x, PartitionSpec)), strict=True)
    )
    ours = []
    for name, shape in shapes.items():
        stacked = "/layers/" in name
        spec = tuple(axes[name])
        assert not stacked or spec[0] == "layers"
        layer_shape = shape.shape[1:] if stacked else shape.shape
        layers = shape.shape[0] if stacked else 1
        title = name.replace("/layers/", "/layers_*/")
        ours.append(f"{title} {'x'.join(map(str, layer_shape))} {','.join(spec[1:] if stacked else spec)} {layers}")
    assert sorted(ours) == sorted(TREES[size])
    assert_the_table_has_it(config_of(size), shapes)


def assert_the_table_has_it(config: ModelConfig, shapes: dict) -> None:
    """The table of Hugging Face's names is a bijection from the network's parameters, and knows their shapes."""
    expected = {}
    for name, leaf in shapes.items():
        if "/layers/" in name:
            expected |= {name.replace("/layers/", f"/layers_{i}/"): leaf.shape[1:] for i in range(leaf.shape[0])}
        else:
            expected[name] = leaf.shape
    table = rows(config)
    assert {row.t5x: row.shape for row in table} == expected
    assert len({row.pytorch for row in table}) == len({flax_name(row) for row in table}) == len(table) == len(expected)


@pytest.mark.parametrize(("size", "vocab_size"), COUNTS)
def test_published_parameter_counts(size: str, vocab_size: int | None) -> None:
    shapes = jax.eval_shape(Network(config_of(size, vocab_size)).init, KEY)
    assert sum(math.prod(s.shape) for s in jax.tree.leaves(shapes)) == COUNTS[size, vocab_size]


@pytest.mark.parametrize("size", ["tiny", "small", "base", "large", "xl", "xxl"])
def test_umt5_is_mt5_with_a_bias_in_every_layer(size: str) -> None:
    umt5 = flatten(jax.eval_shape(Network(config_of(f"umt5/{size}")).init, KEY))
    mt5 = flatten(jax.eval_shape(Network(config_of(f"mt5/{size}")).init, KEY))
    config = config_of(f"umt5/{size}")
    assert umt5.keys() - mt5.keys() == {f"{side}/layers/relpos_bias/rel_embedding" for side in ("encoder", "decoder")}
    bias = umt5["encoder/layers/relpos_bias/rel_embedding"].shape
    assert bias == (config.num_encoder_layers, config.num_heads, 32)
    assert umt5["token_embedder/embedding"].shape[0] == 256_384
    assert_the_table_has_it(config, umt5)


def test_stacking_is_undone_exactly() -> None:
    random = np.random.default_rng(0)
    ours = {"encoder/layers/mlp/wo/kernel": random.random((11, 2, 3)), "encoder/encoder_norm/scale": random.random(2)}
    theirs = unstack_layers(ours)
    assert set(theirs) == {"encoder/encoder_norm/scale", *(f"encoder/layers_{i}/mlp/wo/kernel" for i in range(11))}
    back = flatten(unflatten(stack_layers(theirs)))
    assert back.keys() == ours.keys() and all((back[name] == ours[name]).all() for name in ours)
    del theirs["encoder/layers_3/mlp/wo/kernel"]
    with pytest.raises(ValueError, match="encoder/layers/mlp/wo/kernel has layers"):
        stack_layers(theirs)
