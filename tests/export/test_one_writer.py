"""One process writes an output: exports, imports and saved models; what a killed one left does not get in the way."""

from pathlib import Path

import numpy as np
import pytest

import limba
from limba.cli import convert
from limba.config import InputError
from limba.formats import t5x
from limba.formats.t5x import open_checkpoint
from limba.storage.lease import FILE, held
from limba.storage.lease_places import this_process
from tests import tiny
from tests.export.runs import write_run
from tests.storage.leases import file_of


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("one") / "run"
    write_run(path, tiny.model(vocab_size=384), steps=(3,))
    return path


def test_an_export_and_an_import_have_one_writer(run: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    again = tmp_path / "again"
    export = ["export", str(run), str(out), "--formats=pytorch", "--no_check"]
    with held(str(out)), pytest.raises(InputError, match=f"Another process uses {out} now"):
        convert.run(export)
    here = this_process()
    dead = file_of(here._replace(start=here.start - 1))  # one that was killed
    (out / FILE).write_text(dead)
    convert.run(export)
    assert [path.name for path in out.iterdir()] == ["step_3"]

    (tmp_path / "again.lease").write_text(dead)
    bring = ["import", str(out / "step_3"), str(again)]
    with held(str(again), beside=True), pytest.raises(InputError, match=f"uses {again} now"):
        convert.run(bring)
    convert.run(bring)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["again", "out"]


def test_a_saved_model_and_a_t5x_checkpoint_have_one_writer(run: Path, tmp_path: Path, monkeypatch) -> None:
    model = limba.load(run, vocabulary="byte")
    final = tmp_path / "t5x" / f"checkpoint_{model.step}"
    with held(str(final), beside=True), pytest.raises(InputError, match=f"process uses {final} now"):
        t5x.write_legacy(tmp_path / "t5x", model.step, {})
    assert model.save(tmp_path / "new", format="t5x").name == f"checkpoint_{model.step}"
    assert [path.name for path in (tmp_path / "new").iterdir()] == [f"checkpoint_{model.step}"]

    folder = tmp_path / "folder"
    emptiness = Path.iterdir  # the other one comes between the look and the lease
    with held(str(folder)):
        monkeypatch.setattr(Path, "iterdir", lambda path: iter(()) if path == folder else emptiness(path))
        with pytest.raises(InputError, match=f"Another process uses {folder} now"):
            model.save(folder)
        monkeypatch.undo()
        assert [path.name for path in folder.iterdir()] == [FILE]
    model.save(folder)
    names = sorted(path.name for path in folder.iterdir())
    assert "config.json" in names and "model.safetensors" in names and not any("writing" in name for name in names)


@pytest.mark.parametrize("network", ["umT5", "Llama", "GPT-2", "encoder"])
def test_a_network_without_a_flax_class_is_not_saved_for_flax(network: str, tmp_path: Path) -> None:
    """Nothing could load the only file of its weights."""
    configs = {
        "umT5": tiny.model(relative_bias_per_layer=True),
        "Llama": tiny.language_model(),
        "GPT-2": tiny.language_model(positions="learned", norm="layer", mlp_activations=("gelu",), num_kv_heads=None),
        "encoder": tiny.ENCODER,
    }
    write_run(tmp_path / "run", configs[network])
    model = limba.load(tmp_path / "run")
    with pytest.raises(InputError, match='has no Flax class of this network; give the format "huggingface"'):
        model.save(tmp_path / "folder", format="flax")
    assert not (tmp_path / "folder").exists()


def test_a_decoder_of_t5_s_layout_is_saved_for_t5x_by_its_names(tmp_path: Path) -> None:
    write_run(tmp_path / "run", tiny.model(num_encoder_layers=0, num_decoder_layers=2, positions="relative"))
    model = limba.load(tmp_path / "run")
    saved = Path(model.save(tmp_path / "new", format="t5x"))
    assert "target/decoder/token_embedder/embedding" in open_checkpoint(saved)
    read = limba.load(saved, config=model.config).arrays()
    assert all(np.array_equal(read[name], array) for name, array in model.arrays().items())
