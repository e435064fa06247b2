"""T5X's decoder-only network: its own logits, and its checkpoints, which have other names for the embedding."""

import dataclasses
from pathlib import Path

import jax
import numpy as np
import pytest
from etils import epath

from limba.config import (
    CheckpointConfig,
    DataConfig,
    InputError,
    MeshConfig,
    ModelConfig,
    optimizer_config,
)
from limba.export import t5x as export
from limba.formats import architectures, t5x
from limba.formats.names import unflatten
from limba.formats.open import t5x_network
from limba.inference import source
from limba.model import Network
from limba.tools.migrate import from_t5x
from limba.training.checkpoints.directory import Checkpoints
from limba.training.checkpoints.initial import load_initial
from limba.training.optimizer import make_optimizer
from limba.training.state import abstract_state
from tests import tiny
from tests.tiny import stack_layers

GOLDEN = Path(__file__).parent.parent / "golden" / "t5x_decoder_only.npz"
CONFIG = ModelConfig(64, 32, 4, 8, 48, 0, 2, positions="relative", logits_via_embedding=True, dtype="float32")
EMBEDDING = "decoder/token_embedder/embedding"


def arrays(config: ModelConfig) -> dict[str, np.ndarray]:
    """Random parameters by T5X's names, drawn in their order."""
    random = np.random.default_rng(0)
    by_name = {}
    shapes = {t5x.their_name(name): shape for name, shape in architectures.shapes(config).items()}
    for name in sorted(shapes):
        values = random.standard_normal(shapes[name]).astype(np.float32)
        scale = 1
        if "embed" not in name and len(shapes[name]) > 1:
            scale = shapes[name][-2] ** -0.5
        by_name[name] = values / 10 + 1 if name.endswith("scale") else values * scale
    return by_name


def rows() -> dict[str, np.ndarray]:
    """Two packed rows: the first holds two examples, each with inputs; the second ends in padding."""
    targets = np.random.default_rng(1).integers(2, 60, (2, 12)).astype(np.int32)
    targets[1, 10:] = 0
    inputs = np.pad(targets[:, :-1], ((0, 0), (1, 0)))
    inputs[0, 7] = 0
    segments = [[1] * 7 + [2] * 5, [1] * 10 + [0] * 2]
    prefix = [[1] * 4 + [0] * 3 + [1] * 3 + [0] * 2, [1] * 5 + [0] * 7]
    return {
        "decoder_target_tokens": targets,
        "decoder_input_tokens": inputs,
        "decoder_segment_ids": np.array(segments, np.int32),
        "decoder_causal_attention": np.array(prefix, np.int32),
    }


@pytest.mark.parametrize(("is_tied", "prefix"), [(True, "full"), (False, "causal")])
def test_logits_are_t5xs_own(is_tied, prefix):
    config = dataclasses.replace(CONFIG, logits_via_embedding=is_tied, prefix_attention=prefix)
    parameters = unflatten(stack_layers({t5x.own_name(name): array for name, array in arrays(config).items()}))
    batch = rows()
    with np.load(GOLDEN) as golden:
        expected = golden[f"{'tied' if is_tied else 'untied'}_{prefix}"]
    logits = np.asarray(jax.jit(Network(config).apply)(parameters, batch))
    is_real = batch["decoder_target_tokens"] > 0
    np.testing.assert_allclose(logits[is_real], expected[is_real], atol=1e-5)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory) -> Path:
    """A checkpoint with T5X's names, averages and config.gin."""
    directory = tmp_path_factory.mktemp("theirs")
    tree: dict[str, np.ndarray] = {"state/step": np.int32(7)}
    for number, (name, array) in enumerate(arrays(CONFIG).items()):
        tree[f"target/{name}"] = array
        tree |= {f"state/param_states/{name}/{kind}": np.zeros((1,), np.float32) for kind in ("m", "v_row", "v_col")}
        tree[f"state/param_states/{name}/v"] = np.full(array.shape, number + 1, np.float32)
    t5x.write_legacy(directory, 7, tree)
    (directory / "config.gin").write_text(
        "models.DecoderOnlyModel.inputs_bidirectional_attention = False\n"
        "network.TransformerConfig.mlp_activations = ('gelu', 'linear')\n"
    )
    return directory


def test_a_checkpoint_names_its_network(checkpoint):
    assert "decoder/relpos_bias/rel_embedding" in arrays(CONFIG) and EMBEDDING in arrays(CONFIG)
    assert t5x_network(checkpoint / "checkpoint_7") == CONFIG
    assert from_t5x.read([checkpoint], CONFIG)[0] == dataclasses.replace(CONFIG, prefix_attention="causal")
    loaded = source.find(str(checkpoint)).arrays(7)
    assert loaded.keys() == {t5x.own_name(name) for name in arrays(CONFIG)}
    assert all(np.array_equal(loaded[t5x.own_name(name)], array) for name, array in arrays(CONFIG).items())


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [("('swish', 'linear')", ("silu", "linear")), ("['gelu', 'linear']", ("gelu", "linear")), ("('relu',)", ("relu",))],
)
def test_activations_have_t5xs_names(theirs, ours, tmp_path):
    (tmp_path / "config.gin").write_text(f"network.TransformerConfig.mlp_activations = {theirs}\n")
    assert from_t5x.read([epath.Path(tmp_path)], CONFIG)[0].mlp_activations == ours


def test_a_checkpoint_goes_on_bit_for_bit_and_back(checkpoint, tmp_path):
    """Parameters, Adafactor's averages and step, and the same checkpoint again when it is exported."""
    chain = make_optimizer(optimizer_config(), 10)
    abstract = abstract_state(Network(CONFIG), chain, tiny.mesh_of(MeshConfig(), 1))
    fresh = jax.tree.map(lambda leaf: jax.device_put(np.zeros(leaf.shape, leaf.dtype), leaf.sharding), abstract)
    state = load_initial(str(checkpoint), abstract, CONFIG, fresh, False)
    assert int(state.step) == 7
    data = DataConfig("imported", {"targets": 8}, batch_size=1)
    with Checkpoints(str(tmp_path / "run"), CheckpointConfig(), data) as checkpoints:
        checkpoints.save(7, state, {})
    export.export(str(tmp_path / "run"), str(tmp_path), None, "float32")
    before, after = (t5x.open_checkpoint(folder / "checkpoint_7") for folder in (checkpoint, tmp_path))
    assert before.keys() == after.keys()
    for name in before:
        assert before[name].tobytes() == after[name].tobytes(), name


def test_other_libraries_have_no_such_network():
    with pytest.raises(InputError, match="GPT-2 or Llama class has other positions than T5's relative ones"):
        architectures.kind(CONFIG)
