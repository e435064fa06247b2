"""Weights from elsewhere as a starting point: legacy pickles, flax's files, models of the hub; and their upload."""

import dataclasses
import functools
import json
import os
import shutil

import jax
import numpy as np
import pytest
import torch
from huggingface_hub import constants

from limba.cli import convert, program
from limba.config import CheckpointConfig, DataConfig, InputError, MeshConfig, StorageError, optimizer_config
from limba.export import destinations, huggingface, merging
from limba.export.huggingface import import_folder
from limba.formats import hub_models
from limba.formats import huggingface_files as files
from limba.formats.huggingface import open_folder, open_safetensors
from limba.formats.limba_checkpoint import LimbaCheckpoint
from limba.model import Network
from limba.storage import manifest
from limba.training.checkpoints import arrays as checkpoint_arrays
from limba.training.checkpoints import initial
from limba.training.checkpoints.directory import Checkpoints
from limba.training.checkpoints.initial import load_initial
from limba.training.optimizer import make_optimizer
from limba.training.state import abstract_state
from tests import tiny
from tests.export.runs import arrays_of
from tests.export.test_export import config_of, equal
from tests.http_server import ModelHubHandler, as_hub, serving, status, truncated

CONFIG = config_of("t5_1_1")


@pytest.fixture(scope="module")
def arrays():
    return arrays_of(CONFIG)


@pytest.fixture(scope="module")
def folder(arrays, tmp_path_factory):
    """A Hugging Face folder with all three forms of the weights."""
    path = tmp_path_factory.mktemp("model")
    files.write_configs(path, CONFIG, "float32")
    files.write_pytorch(path, arrays, CONFIG)
    files.write_flax(path, arrays, CONFIG)
    stored = open_safetensors(path)
    torch.save({name: torch.tensor(stored[name]) for name in stored}, path / "pytorch_model.bin")
    (path / "spiece.model").write_bytes(b"a vocabulary")
    (path / "tf_model.h5").write_bytes(b"never read")
    return path


def only(folder, form, to):
    """A copy of the folder with one form of the weights."""
    shutil.copytree(folder, to)
    for name in {"model.safetensors", "flax_model.msgpack", "pytorch_model.bin"} - {form}:
        (to / name).unlink()
    return to


@functools.cache
def prepared(optimizer="adafactor"):
    """Shapes of a state, and one that is full of ones but for its step."""
    chain = make_optimizer(optimizer_config(name=optimizer), 10)
    abstract = abstract_state(Network(CONFIG), chain, tiny.mesh_of(MeshConfig(), 1))
    ones = jax.tree.map(lambda leaf: jax.device_put(np.ones(leaf.shape, leaf.dtype), leaf.sharding), abstract)
    return abstract, ones.replace(step=ones.step * 0)


def start_from(path, optimizer="adafactor", reset_step=False):
    abstract, fresh = prepared(optimizer)
    return load_initial(str(path), abstract, CONFIG, fresh, reset_step), fresh


@pytest.fixture
def hub_server(folder, tmp_path, monkeypatch):
    """A hub of this machine's with two models, which the library asks instead of its own."""
    shutil.copytree(folder, tmp_path / "hub" / "me" / "t5" / "main")
    only(folder, "pytorch_model.bin", tmp_path / "hub" / "me" / "private-t5" / "v1")
    (tmp_path / "hub" / "me" / "gated-t5" / "main").mkdir(parents=True)
    (tmp_path / "hub" / "me" / "empty" / "main").mkdir(parents=True)
    monkeypatch.delenv("HF_TOKEN", raising=False)
    with serving(tmp_path / "hub", handler=ModelHubHandler) as server:
        as_hub(server, tmp_path / "cache", monkeypatch)
        yield server


@pytest.mark.parametrize("form", ["model.safetensors", "flax_model.msgpack", "pytorch_model.bin"])
def test_every_form_of_weights_is_imported_exactly(form, folder, arrays, tmp_path, capsys):
    source = only(folder, form, tmp_path / "source")
    (source / "conversion.json").write_text("[")  # somebody else's
    (tmp_path / "out.importing" / "checkpoints").mkdir(parents=True)  # one that was broken off
    convert.run(["import", str(source), str(tmp_path / "out")])
    assert f"INITIAL_CHECKPOINT_PATH={tmp_path}/out" in capsys.readouterr().out
    equal(LimbaCheckpoint(tmp_path / "out" / "checkpoints" / "0"), arrays)
    assert manifest.check(tmp_path / "out" / "checkpoints" / "0") == []
    assert json.loads((tmp_path / "out" / "checkpoints" / "0" / manifest.FILE).read_text())["step"] == 0
    assert (tmp_path / "out" / "spiece.model").read_bytes() == b"a vocabulary"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "source"]


def test_a_stack_is_imported_one_layer_at_a_time(folder, arrays, tmp_path, monkeypatch):
    layer_bytes = arrays["encoder/layers_0/mlp/wo/kernel"].nbytes
    monkeypatch.setattr(checkpoint_arrays, "CHUNK_BYTES", layer_bytes)
    monkeypatch.setattr(merging, "BLOCK_BYTES", layer_bytes)
    stacked_layers = initial.stacked_layers
    layers_together = set()

    def counted(name, layers, read):
        layers_together.add((name, len(layers)))
        return stacked_layers(name, layers, read)

    monkeypatch.setattr(huggingface, "stacked_layers", counted)
    import_folder(only(folder, "model.safetensors", tmp_path / "source"), tmp_path / "out")
    assert ("encoder/layers/mlp/wo/kernel", 1) in layers_together
    imported = LimbaCheckpoint(tmp_path / "out" / "checkpoints" / "0")
    equal(imported, arrays)
    assert imported.tree.rows_of_chunk("params/encoder/layers/mlp/wo/kernel") == 1
    assert imported.tree.rows_of_chunk("params/encoder/encoder_norm/scale") == CONFIG.emb_dim


def test_pickles_are_read_as_tensors_alone(folder, arrays, tmp_path):
    source = only(folder, "pytorch_model.bin", tmp_path / "source")
    weights = torch.load(source / "pytorch_model.bin")
    state, _ = start_from(source)
    kernel = state.params["encoder"]["layers"]["mlp"]["wo"]["kernel"]
    np.testing.assert_array_equal(kernel[1], arrays["encoder/layers_1/mlp/wo/kernel"])
    names = sorted(weights)  # two files and an index, in half precision, one of them of before PyTorch 1.6
    torch.save({name: weights[name].bfloat16() for name in names[::2]}, source / "pytorch_model-00001-of-00002.bin")
    torch.save(
        {name: weights[name].bfloat16() for name in names[1::2]},
        source / "pytorch_model-00002-of-00002.bin",
        _use_new_zipfile_serialization=False,
    )
    places = {name: f"pytorch_model-0000{i % 2 + 1}-of-00002.bin" for i, name in enumerate(names)}
    (source / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": places}))
    (source / "pytorch_model.bin").unlink()
    import_folder(str(source), tmp_path / "half")
    imported = LimbaCheckpoint(tmp_path / "half" / "checkpoints" / "0")
    for name, array in arrays.items():
        np.testing.assert_array_equal(imported[name], torch.tensor(array).bfloat16().float().numpy())

    class Harmful:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "harm"),)

    (source / "pytorch_model.bin.index.json").unlink()
    torch.save({**weights, "shared.weight": Harmful()}, source / "pytorch_model.bin")
    with pytest.raises(InputError, match="holds more than tensors"):
        import_folder(str(source), tmp_path / "out")
    assert not (tmp_path / "harm").exists()
    (source / "pytorch_model.bin").write_bytes((folder / "pytorch_model.bin").read_bytes()[:-5000])
    with pytest.raises(InputError, match="cannot be read as PyTorch's"):
        import_folder(str(source), tmp_path / "out")
    torch.save([1, 2], source / "pytorch_model.bin")
    with pytest.raises(InputError, match="holds no table of tensors"):
        import_folder(str(source), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_arrays_that_are_not_the_configurations(folder, tmp_path):
    for form in ("model.safetensors", "flax_model.msgpack"):
        source = only(folder, form, tmp_path / form)
        settings = json.loads((source / "config.json").read_text())
        (source / "config.json").write_text(json.dumps({**settings, "d_ff": 32}))
        with pytest.raises(InputError, match=r"mlp/wi_0/kernel as \(64, 96\), .*\(64, 32\); its config.json"):
            import_folder(str(source), tmp_path / "out")
        (source / "config.json").write_text(json.dumps(settings))
        (source / form).write_bytes((source / form).read_bytes()[:-100])
        with pytest.raises(InputError, match="is truncated|cannot be read as flax's"):
            import_folder(str(source), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_special_ids_that_a_checkpoint_does_not_have_are_refused(folder, tmp_path):
    """A checkpoint of ours has padding and the decoder's start at 0; with others it would write another text."""
    shutil.copytree(folder, tmp_path / "model")
    file = tmp_path / "model" / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"decoder_start_token_id": 5}))
    with pytest.raises(InputError, match=r"or a start of its own, .* start a run from the folder itself"):
        import_folder(tmp_path / "model", tmp_path / "out")


def test_a_model_of_the_hub_starts_a_run(hub_server, arrays, tmp_path, monkeypatch, caplog):
    hub_server.fail("me/t5/main/model.safetensors", truncated)
    state, _ = start_from("me/t5")
    np.testing.assert_array_equal(state.params["token_embedder"]["embedding"], arrays["token_embedder/embedding"])
    sent = {name.rpartition("/")[2] for client, name in hub_server.bytes_sent if client == "hub"}
    assert sent == {
        "config.json", "generation_config.json", "spiece.model", "model.safetensors",
    }  # fmt: skip
    monkeypatch.setenv("HF_TOKEN", "good")
    import_folder("me/private-t5@v1", tmp_path / "private")
    equal(LimbaCheckpoint(tmp_path / "private" / "checkpoints" / "0"), arrays)
    (tmp_path / "me" / "t5").mkdir(parents=True)
    with monkeypatch.context() as inside:  # what lies at a path of that name goes first
        inside.chdir(tmp_path)
        with pytest.raises(InputError, match="names no model: me/t5 is an empty folder"):
            start_from("me/t5")
    hub_server.server_close()
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    assert open_folder(hub_models.download("me/t5"), CONFIG).keys() == arrays.keys()
    assert "cannot be reached for me/t5" in caplog.text


def test_hub_ids_that_cannot_be_read(hub_server, tmp_path, monkeypatch, capsys):
    def refused(source, message, status=InputError.exit_status):
        with pytest.raises(InputError, match=message):
            start_from(source)
        assert program.exit_code(convert.run, ["import", source, str(tmp_path / "out")]) == status
        assert len(capsys.readouterr().err.strip().splitlines()) == 1

    refused("me/absent", "no local file me/absent, and the hub has no model of that name, or it is private.*HF_TOKEN")
    refused("me/private-t5@v1", "or it is private")
    refused("me/gated-t5", "accept its terms|accept them")
    refused("me/t5@v2", "has no revision v2")
    refused("me/empty", "has no model.safetensors, flax_model.msgpack or pytorch_model.bin")
    refused("me--/t5", "neither a local path nor a valid hub id")
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    refused("me/t5", "hub cannot be reached: .*check the network", StorageError.exit_status)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    refused("me/t5", "hub cannot be reached")
    refused("nothing-here", "names no model: nothing-here does not exist")


def test_another_optimizer_may_begin_where_the_step_is_reset(folder, arrays, tmp_path):
    import_folder(str(folder), tmp_path / "imported")
    state, fresh = start_from(tmp_path / "imported", "adamw")  # of step 0: no average is lost
    kernel = state.params["encoder"]["layers"]["mlp"]["wo"]["kernel"]
    np.testing.assert_array_equal(kernel[1], arrays["encoder/layers_1/mlp/wo/kernel"])
    jax.tree.map(np.testing.assert_array_equal, state.opt_state, fresh.opt_state)

    trained = dataclasses.replace(state, step=jax.numpy.full_like(state.step, 7))
    with Checkpoints(str(tmp_path / "run"), CheckpointConfig(), DataConfig("t", {"inputs": 1}, batch_size=1)) as kept:
        kept.save(7, trained, {})
    assert int(start_from(tmp_path / "run", "adamw")[0].step) == 7
    with pytest.raises(InputError, match="a different optimizer: .*reset_step=True"):
        start_from(tmp_path / "run")
    reset, fresh = start_from(tmp_path / "run", reset_step=True)
    assert int(reset.step) == 0
    jax.tree.map(np.testing.assert_array_equal, reset.params, state.params)
    jax.tree.map(np.testing.assert_array_equal, reset.opt_state, fresh.opt_state)
    wider = dataclasses.replace(CONFIG, mlp_dim=32)
    with pytest.raises(InputError, match="which has another network"):
        other = abstract_state(Network(wider), make_optimizer(optimizer_config(), 10), tiny.mesh_of(MeshConfig(), 1))
        load_initial(str(tmp_path / "run"), other, wider, fresh, True)


def test_uploads_resume_where_they_were_interrupted(hub_server, folder, tmp_path, monkeypatch, capsys):
    folders = {}
    for step in (9, 10):
        folders[step] = only(folder, "model.safetensors", tmp_path / f"step_{step}")
        (folders[step] / "README.md").write_text(f"step {step}")
    monkeypatch.setenv("HF_TOKEN", "bad")
    with pytest.raises(InputError, match="does not accept this upload .asked with the token in HF_TOKEN: HTTP 401"):
        destinations.check_target("me/new", dry_run=False)
    monkeypatch.setenv("HF_TOKEN", "good")
    destinations.check_target("me/new", dry_run=False)
    hub_server.fail("/api/models/me/new/commit/step_10", status(400), methods=("POST",))
    with pytest.raises(InputError, match="The upload to me/new failed .*run the command again"):
        destinations.push("me/new", folders, dry_run=False)
    first = hub_server.bytes_sent["commit", "step_9"]
    destinations.push("me/new", folders, dry_run=False)
    assert hub_server.bytes_sent["commit", "step_9"] == first  # nothing is sent twice
    assert capsys.readouterr().out.count("uploaded to me/new, revision step_9") == 2
    for revision, step in (("step_9", 9), ("step_10", 10), ("main", 10)):
        there = hub_server.folder / "me" / "new" / revision
        assert (there / "README.md").read_text() == f"step {step}"
        assert (there / "model.safetensors").read_bytes() == (folder / "model.safetensors").read_bytes()
