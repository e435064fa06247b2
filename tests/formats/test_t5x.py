"""T5X's checkpoints are read bit for bit, in every form they come in, and written as T5X writes them."""

import dataclasses
import functools
import json
import shutil
from pathlib import Path

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import orbax.checkpoint as ocp
import pytest

from limba.config import ConfigError, InputError, LossConfig, MeshConfig, ModelConfig, optimizer_config
from limba.formats import t5x
from limba.formats.names import flatten, unflatten, unstack_layers
from limba.model import Network
from limba.training.checkpoints.initial import check_initial, load_initial
from limba.training.losses import cross_entropy
from limba.training.optimizer import make_optimizer
from limba.training.state import TrainState, abstract_state
from tests import tiny
from tests.tiny import stack_layers

GOLDEN = Path(__file__).parent.parent / "golden"
ABOUT = json.loads((GOLDEN / "t5x_legacy_config.json").read_text())
CONFIG = ModelConfig(**{k: v for k, v in ABOUT["config"].items() if k != "float32_attention_logits"})


@pytest.fixture(scope="module")
def reference():
    with np.load(GOLDEN / "t5x_legacy_reference.npz") as arrays:
        return {name: arrays[name] for name in arrays.files}


@pytest.fixture
def legacy(tmp_path) -> Path:
    return Path(shutil.copytree(GOLDEN / "t5x_legacy", tmp_path / "run")) / "checkpoint_3"


@functools.cache
def prepared(config, optimizer="adafactor", seed=5) -> tuple[TrainState, TrainState]:
    """Shapes of a state on two devices, and a fresh one."""
    model = Network(config)
    chain = make_optimizer(optimizer_config(name=optimizer), 10)
    mesh = tiny.mesh_of(MeshConfig(fsdp=2), 2)
    return abstract_state(model, chain, mesh), tiny.state(model, chain, mesh, seed)


def loaded(path, config=CONFIG, optimizer="adafactor", reset_step=False) -> TrainState:
    abstract, fresh = prepared(config, optimizer)
    return load_initial(str(path), abstract, config, fresh, reset_step)


APPLY = jax.jit(Network(CONFIG).apply)


def logits(state, reference) -> np.ndarray:
    batch = {name.removeprefix("batch/"): array for name, array in reference.items() if name.startswith("batch/")}
    return np.asarray(APPLY(jax.device_get(state.params), batch))


def test_every_array_is_read_bit_for_bit_and_written_again(legacy, reference, tmp_path):
    stored = t5x.open_checkpoint(legacy)
    stored.check_whole()
    expected = {name.removeprefix("state/"): array for name, array in reference.items() if name.startswith("state/")}
    again = t5x.open_checkpoint(t5x.write_legacy(tmp_path / "again", 3, stored))
    again.check_whole()
    assert stored.keys() == expected.keys() == again.keys() and stored.step == again.step == 3
    for name, array in expected.items():
        assert stored.describe(name) == (array.shape, array.dtype.name)
        assert stored[name].tobytes() == again[name].tobytes() == array.tobytes(), name
        assert stored[name].dtype == again[name].dtype == array.dtype
    files = [sorted(p.relative_to(path).as_posix() for p in path.rglob("*")) for path in (legacy, Path(again.path))]
    assert files[0] == files[1]


@pytest.mark.parametrize("path", ["run", "run/checkpoint_3"])
@pytest.mark.slow
def test_logits_and_loss_are_t5x_own(legacy, reference, path):
    state = loaded(legacy.parent.parent / path)
    ours = logits(state, reference)
    np.testing.assert_allclose(ours, reference["logits"], atol=1e-5)
    nats, _, _ = cross_entropy(
        jnp.asarray(ours), jnp.asarray(reference["batch/decoder_target_tokens"]), LossConfig(ABOUT["z_loss"])
    )
    assert abs(float((nats * reference["batch/decoder_loss_weights"]).sum()) / reference["loss"] - 1) < 1e-5


@pytest.mark.slow
def test_the_optimizer_goes_on_where_it_can(legacy, reference):
    state = loaded(legacy)
    assert int(state.step) == 3
    leaves = {
        jax.tree_util.keystr(p, simple=True, separator="/"): v for p, v in jax.tree.leaves_with_path(state.opt_state)
    }
    assert {int(x) for name, leaf in leaves.items() if name.endswith("count") for x in np.ravel(leaf)} == {3}
    for kind in ("v_row", "v_col"):  # square: T5X's rows run along the width, the first axis here
        expected = reference[f"state/state/param_states/decoder/logits_dense/kernel/{kind}"]
        np.testing.assert_array_equal(leaves[f"0//0/{kind}/decoder/logits_dense/kernel"], expected)
    # The embedding's width is its second axis: of a square one optax's rows are T5X's columns.
    expected = reference["state/state/param_states/token_embedder/embedding/v_col"]
    np.testing.assert_array_equal(leaves["0//0/v_row/token_embedder/embedding"], expected)
    adam = loaded(legacy, optimizer="adamw")
    counts = {
        jax.tree_util.keystr(p, simple=True, separator="/"): v for p, v in jax.tree.leaves_with_path(adam.opt_state)
    }
    assert sorted(int(v) for name, v in counts.items() if name.endswith("count")) == [
        0,
        3,
    ]  # Adam's own, the schedule's
    reset = loaded(legacy, reset_step=True)
    assert int(reset.step) == 0 and not any(np.any(leaf) for leaf in jax.tree.leaves(reset.opt_state))
    jax.tree.map(np.testing.assert_array_equal, reset.params, state.params)


@pytest.mark.slow
def test_factored_averages_mean_what_optax_means(tmp_path):
    """After one step they are means of the squared gradient, by T5X's definition along the width and across it."""
    config = tiny.model(emb_dim=128, mlp_dim=256, num_heads=4, head_dim=32, vocab_size=256)
    chain = make_optimizer(optimizer_config(), 10)
    abstract, state = prepared(config)
    random = np.random.default_rng(0)
    gradient = jax.tree.map(lambda x: jnp.asarray(random.standard_normal(x.shape), jnp.float32), state.params)
    _, opt_state = jax.jit(chain.update)(gradient, state.opt_state, state.params)
    squares = {name: np.square(array) for name, array in unstack_layers(flatten(jax.device_get(gradient))).items()}
    names = unstack_layers(flatten(jax.device_get(state.params)))
    tree = {f"target/{name}": array for name, array in names.items()}
    for name, square in squares.items():
        empty = np.zeros((1,), np.float32)
        averages = {"v_row": empty, "v_col": empty, "v": square, "m": empty}
        if square.ndim == 2 and min(square.shape) >= 128:
            width = 1 if name.endswith(("embedding", "out/kernel", "wo/kernel")) else 0
            averages |= {"v_row": square.mean(1 - width), "v_col": square.mean(width), "v": empty}
        tree |= {f"state/param_states/{name}/{kind}": value for kind, value in averages.items()}
    path = t5x.write_legacy(tmp_path, 1, {**tree, "state/step": np.int32(1)})
    restored = load_initial(str(path), abstract, config, state, False)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), restored.opt_state, opt_state)


@pytest.mark.slow
def test_bfloat16_and_orbax_forms(legacy, reference, tmp_path):
    stored = t5x.open_checkpoint(legacy)
    half = t5x.open_checkpoint(t5x.write_legacy(tmp_path / "half", 3, stored, dtype="bfloat16"))
    name = "target/decoder/logits_dense/kernel"
    assert half.describe(name)[1] == "bfloat16"
    assert (half[name] == stored[name].astype(ml_dtypes.bfloat16)).all()
    assert np.abs(logits(loaded(half.path), reference) - reference["logits"]).max() < 0.05
    tree = unflatten({name: stored[name] for name in stored})
    directory = tmp_path / "orbax" / "checkpoint_3"
    with ocp.PyTreeCheckpointer() as checkpointer:
        checkpointer.save(directory / "state", tree)
    orbax = t5x.open_checkpoint(directory)
    orbax.check_whole()
    assert orbax.keys() == stored.keys() and orbax.step == 3
    assert all(np.array_equal(orbax[name], stored[name]) for name in stored)
    np.testing.assert_allclose(logits(loaded(tmp_path / "orbax"), reference), reference["logits"], atol=1e-5)


@pytest.mark.slow
def test_a_scanned_tree_is_read_as_the_network_it_is(tmp_path):
    """As examples/scalable_t5 has it: layers on axis 1, heads apart, a bias in every layer."""
    config = tiny.model(relative_bias_per_layer=True)
    _, state = prepared(config, seed=0)
    tree = {"state/step": np.int32(9)}
    for name, array in flatten(jax.device_get(state.params)).items():
        if "/layers/" in name:
            side = name.split("/")[0]
            array = np.moveaxis(array, 0, 1)  # [D, N, …]
            if name.endswith(("query/kernel", "key/kernel", "value/kernel")):
                array = array.reshape(*array.shape[:2], config.num_heads, config.head_dim)
            elif name.endswith("out/kernel"):  # [H * C, N, D] to [H, N, C, D]
                array = array.reshape(config.num_heads, config.head_dim, *array.shape[1:]).swapaxes(1, 2)
            name = name.replace("/layers/", f"/{side}/")
        tree[f"target/{name}"] = array
    path = t5x.write_legacy(tmp_path, 9, tree)
    jax.tree.map(np.testing.assert_array_equal, loaded(path, config).params, state.params)
    with pytest.raises(InputError, match="relative bias in every layer"):
        loaded(path, tiny.MODEL)
    stored = t5x.open_checkpoint(path)
    for side in ("encoder", "decoder"):
        field = f"num_{side}_layers"
        there = getattr(config, field)
        for configured in (there - 1, there + 1):
            sentence = f"{path} has {there} layers in .*/{side}/.*, and ModelConfig.{field} is {configured}; set it to"
            with pytest.raises(InputError, match=f"{sentence} {there}.$") as caught:
                t5x.unscanned(stored, dataclasses.replace(config, **{field: configured}))
            assert caught.value.fix == (f"ModelConfig.{field}", there)


def test_layers_numbered_from_zero_or_not_at_all():
    with pytest.raises(ValueError, match="all layers from 0 on"):
        stack_layers({"a/layers_1/b": np.zeros(2)})


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda path: shutil.rmtree(path / "target.decoder.decoder_norm.scale"), "decoder_norm/scale"),
        (lambda path: (path / "target.decoder.layers_0.mlp.wo.kernel" / "0.0").unlink(), "wo/kernel has 0 of its 1"),
        (lambda path: (path / "target.decoder.layers_0.mlp.wo.kernel" / "0.0").write_bytes(b"x"), "wo/kernel"),
        (lambda path: (path / "checkpoint").write_bytes(b"no msgpack"), "not a T5X checkpoint index"),
    ],
)
def test_a_checkpoint_cut_short_is_named(legacy, damage, message):
    damage(legacy)
    with pytest.raises(InputError, match=message):
        loaded(legacy)


def test_a_checkpoint_of_mesh_tensorflow_is_told_where_its_model_lies_for_t5x():
    """The names come from T5X's docs/models.md, and from the lists of ByT5 and mT5 for Mesh TensorFlow."""
    public = "gs://t5-data/pretrained_models"
    there = r"Mesh TensorFlow.* gs://t5-data/pretrained_models/t5x/"
    for path, name in (
        (f"{public}/byt5/large/model.ckpt-1000000", "byt5_large/checkpoint_1000000"),
        (f"{public}/mt5/xxl/model.ckpt-1000000", "mt5_xxl/checkpoint_1000000"),
        ("/somewhere/model.ckpt-1000700", "mt5_base/checkpoint_1000700"),
    ):
        with pytest.raises(ConfigError, match=f"{there}{name}\\."):
            check_initial(path)


@pytest.mark.slow
def test_other_networks_are_refused(legacy):
    with pytest.raises(InputError, match="lacks decoder/layers_2"):
        loaded(legacy, ModelConfig(**{**vars(CONFIG), "num_decoder_layers": 3}))
    with pytest.raises(InputError, match=r"\(128, 128\) in it and .*256.* in this run; set ModelConfig.vocab_size"):
        loaded(legacy, ModelConfig(**{**vars(CONFIG), "vocab_size": 256}))
    with pytest.raises(InputError, match="names no model: .* is not a model: looked there"):
        loaded(legacy.parent.parent)


def shapes_of(encoder: int, decoder: int, plain: bool, tied: bool, bias_in_layers: bool, inside: bool) -> dict:
    """Names and shapes of T5X: width 16, 3 heads of 4, 24 in the MLP, 40 ids, 32 buckets."""
    shapes = {f"{'decoder/' if inside else ''}token_embedder/embedding": (40, 16)}
    for side, number in (("encoder", encoder), ("decoder", decoder)):
        for i in range(number):
            attention = "self_attention" if side == "decoder" else "attention"
            shapes[f"{side}/layers_{i}/{attention}/query/kernel"] = (16, 12)
            for name in ("wi",) if plain else ("wi_0", "wi_1"):
                shapes[f"{side}/layers_{i}/mlp/{name}/kernel"] = (16, 24)
            if bias_in_layers:
                shapes[f"{side}/layers_{i}/relpos_bias/rel_embedding"] = (3, 32)
        if number and not bias_in_layers:
            shapes[f"{side}/relpos_bias/rel_embedding"] = (3, 32)
    return shapes if tied else {**shapes, "decoder/logits_dense/kernel": (16, 40)}


@pytest.mark.core
@pytest.mark.parametrize("plain", [False, True])
@pytest.mark.parametrize("bias_in_layers", [False, True])
def test_shapes_tell_the_network(plain, bias_in_layers):
    kinds = [(2, 3, False, False), (3, 1, True, False)]
    for encoder, decoder, tied, inside in kinds if bias_in_layers else [*kinds, (0, 2, True, True)]:
        network = t5x.network_of(shapes_of(encoder, decoder, plain, tied, bias_in_layers, inside), "there")
        assert (network.vocab_size, network.emb_dim, network.num_heads, network.head_dim, network.mlp_dim) == (
            40,
            16,
            3,
            4,
            24,
        )
        assert (network.num_encoder_layers, network.num_decoder_layers) == (encoder, decoder)
        assert network.mlp_activations == (("relu",) if plain else ("gelu", "linear"))
        assert (network.logits_via_embedding, network.relative_bias_per_layer) == (tied, bias_in_layers)
        assert (network.num_relpos_buckets, network.dtype) == (32, "float32")
    for name in ("token_embedder/embedding", "decoder/logits_dense/kernel"):
        theirs = t5x.their_name(f"target/{name}")
        assert t5x.own_name(theirs) == f"target/{name}" and t5x.their_name(theirs) == theirs
    assert t5x.their_name("token_embedder/embedding") == "decoder/token_embedder/embedding"


@pytest.mark.core
def test_shapes_of_scanned_layers_tell_the_network():
    """Layers on axis 1, heads apart, the bias of each layer in them."""
    scanned = {
        "decoder/decoder/relpos_bias/rel_embedding": (3, 5, 32),
        "decoder/decoder/self_attention/query/kernel": (16, 5, 3, 4),
        "decoder/decoder/mlp/wi_0/kernel": (16, 5, 24),
        "encoder/encoder/mlp/wi_0/kernel": (16, 4, 24),
    }
    network = t5x.network_of({"token_embedder/embedding": (40, 16), **scanned}, "there")
    assert (network.num_encoder_layers, network.num_decoder_layers, network.head_dim, network.mlp_dim) == (4, 5, 4, 24)
    assert network.num_heads == 3 and network.relative_bias_per_layer
    with pytest.raises(InputError, match="there has no array token_embedder/embedding"):
        t5x.network_of(scanned, "there")
