"""A run directory of T5X goes on: the state bit for bit, then the losses that T5X itself recorded."""

from pathlib import Path

import jax
import numpy as np
import orbax.checkpoint as ocp
import pytest

from benchmarks.replay import recording
from limba.config import CheckpointConfig, DataConfig
from limba.export import t5x as export
from limba.formats import t5x
from limba.formats.names import unflatten
from limba.sharding.mesh import named_leaves
from limba.training.checkpoints.directory import Checkpoints
from limba.training.checkpoints.initial import load_initial
from limba.training.state import TrainState
from tests import tiny

CURVE = str(Path(__file__).parents[1] / "golden" / "curve_packed_factored")
MIDDLE = 15


@pytest.mark.slow
def test_a_run_directory_goes_on_to_the_recorded_losses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Legacy and Orbax; parameters, Adafactor's averages (factored ones too), counts and step, bit for bit."""
    monkeypatch.setattr("benchmarks.replay.make_mesh", lambda config: tiny.mesh_of(config, 2))  # each device costs
    recorded = recording(CURVE)
    state = recorded.state
    for batch in recorded.batches[:MIDDLE]:
        state, _ = recorded.step(state, batch, jax.random.key(0))
    with Checkpoints(str(tmp_path / "ours"), CheckpointConfig(), DataConfig("a", {"inputs": 1}, 1)) as checkpoints:
        checkpoints.save(MIDDLE, state, {})
    export.export(str(tmp_path / "ours"), str(tmp_path / "legacy"), None, "float32")
    stored = t5x.open_checkpoint(tmp_path / "legacy" / f"checkpoint_{MIDDLE}")
    with ocp.PyTreeCheckpointer() as checkpointer:
        tree = unflatten({name: stored[name] for name in stored})
        checkpointer.save(tmp_path / "orbax" / f"checkpoint_{MIDDLE}" / "state", tree)
    abstract = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), state)
    wanted = {name: np.array(leaf) for name, leaf in named_leaves(state).items()}
    assert any("/v_row/" in name and leaf.size > 1 for name, leaf in wanted.items())
    for form in ("legacy", "orbax"):
        fresh: TrainState = jax.tree.map(lambda x: jax.device_put(np.zeros(x.shape, x.dtype), x.sharding), abstract)
        resumed = load_initial(str(tmp_path / form), abstract, recorded.network.config, fresh, False)
        for name, leaf in named_leaves(resumed).items():
            # optax's averages that are not used hold one zero, as T5X's.
            assert np.asarray(leaf).tobytes() == wanted[name].tobytes(), (form, name)
        losses = []
        for batch in recorded.batches[MIDDLE:]:
            resumed, metrics = recorded.step(resumed, batch, jax.random.key(0))
            losses.append(float(metrics["loss"]))
        np.testing.assert_allclose(losses, recorded.losses[MIDDLE:], rtol=2e-5, err_msg=form)
