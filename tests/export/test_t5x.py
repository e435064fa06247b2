"""Ours to T5X's form and back, Adafactor's state included; what a checkpoint holds, listed and written out."""

import shutil
from pathlib import Path

import jax
import ml_dtypes
import numpy as np
import pytest

from limba.cli import convert as command
from limba.cli import program
from limba.config import CheckpointConfig, DataConfig, InputError, MeshConfig, optimizer_config
from limba.export import t5x as export
from limba.formats import t5x
from limba.model import Network
from limba.training.checkpoints.directory import Checkpoints
from limba.training.checkpoints.initial import load_initial
from limba.training.optimizer import make_optimizer
from limba.training.state import abstract_state
from tests import tiny
from tests.formats.test_t5x import CONFIG, GOLDEN


def saved(directory, **optimizer) -> Path:
    """The golden T5X checkpoint as a Limba run."""
    chain = make_optimizer(optimizer_config(**optimizer), 10)
    abstract = abstract_state(Network(CONFIG), chain, tiny.mesh_of(MeshConfig(fsdp=2), 2))
    fresh = jax.tree.map(lambda leaf: jax.device_put(np.zeros(leaf.shape, leaf.dtype), leaf.sharding), abstract)
    state = load_initial(str(GOLDEN / "t5x_legacy"), abstract, CONFIG, fresh, False)
    data = DataConfig("imported", {"inputs": 1}, batch_size=1)
    with Checkpoints(str(directory), CheckpointConfig(), data) as checkpoints:
        checkpoints.save(3, state, {})
    return directory


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    return saved(tmp_path_factory.mktemp("ours"))


def test_t5x_to_ours_to_t5x_is_bit_identical(run, tmp_path, capsys):
    command.run(["--to=t5x", str(run), str(tmp_path)])
    assert "with Adafactor state" in capsys.readouterr().out
    before = t5x.open_checkpoint(GOLDEN / "t5x_legacy" / "checkpoint_3")
    after = t5x.open_checkpoint(
        tmp_path / "checkpoint_3"
    )  # fmt: skip
    after.check_whole()
    assert before.keys() == after.keys() and after.step == 3
    for name in before:
        assert before.describe(name) == after.describe(name), name
        assert before[name].tobytes() == after[name].tobytes(), name


def test_inspect_lists_and_writes_all(run, tmp_path, capsys):
    listings = []
    for number, path in enumerate((run, run / "checkpoints" / "3", GOLDEN / "t5x_legacy" / "checkpoint_3")):
        command.run(["--to=list", str(path), f"--npz={tmp_path}/{number}.npz"])
        lines = capsys.readouterr().out.splitlines()
        listings.append([line for line in lines if line.startswith(("state/", "target/"))])
        assert "step 3, " in lines[-2]
    assert listings[0] == listings[1] == listings[2]
    assert "target/encoder/layers_1/mlp/wi_0/kernel  [128, 32]  float32" in listings[0]
    assert "state/param_states/decoder/logits_dense/kernel/v_row  [128]  float32" in listings[0]
    with np.load(tmp_path / "0.npz") as ours, np.load(tmp_path / "2.npz") as theirs:
        assert sorted(ours.files) == sorted(theirs.files) and len(ours.files) == len(listings[0])
        assert all(np.array_equal(ours[name], theirs[name]) for name in ours.files)


def test_npz_holds_bfloat16_as_float32(tmp_path):
    """.npy cannot name bfloat16: numpy would give raw bytes back."""
    values = np.array([1.5, -2.0, 3.0e38], ml_dtypes.bfloat16)
    export.write_npz({"target/a": values, "state/step": np.int32(3)}, str(tmp_path / "a.npz"))
    with np.load(tmp_path / "a.npz") as arrays:
        assert arrays["target/a"].dtype == np.float32 and arrays["state/step"].dtype == np.int32
        assert np.array_equal(arrays["target/a"], values.astype(np.float32))


@pytest.mark.parametrize("optimizer", [{"name": "adamw"}, {"name": "muon", "muon_others": "adafactor"}])
def test_another_optimizer_has_no_state_there(optimizer, tmp_path, capsys):
    """Muon leaves some parameters to Adafactor; half of a state is refused."""
    run = str(saved(tmp_path / "run", **optimizer))
    for argv in (["--to=t5x", run, str(tmp_path)], ["--to=list", run]):
        command.run(argv)
        assert "without optimizer state, which is not plain Adafactor's" in capsys.readouterr().out
    written = t5x.open_checkpoint(tmp_path / "checkpoint_3")
    assert {name.split("/")[0] for name in written} == {"target", "state"} and written.step == 3
    assert [name for name in written if name.startswith("state/")] == ["state/step"]


def test_bad_choices(run, tmp_path, capsys):
    with pytest.raises(InputError, match="is an empty folder: looked there for a Limba run"):
        command.run(["--to=t5x", str(tmp_path), str(tmp_path / "out")])
    with pytest.raises(InputError, match="no checkpoint at step 4"):
        command.run(["--to=t5x", str(run), str(tmp_path), "--step=4"])
    with pytest.raises(InputError, match="is an empty folder: looked there for a Limba run"):
        command.run(["--to=list", str(tmp_path)])
    shutil.copytree(GOLDEN / "t5x_legacy" / "checkpoint_3", tmp_path / "checkpoint_3")
    assert program.exit_code(command.run, ["--to=t5x", str(run), str(tmp_path)]) == 2
    assert "exists already" in capsys.readouterr().err
