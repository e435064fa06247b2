"""One process writes an output: exports, imports and saved models; what a killed one left does not get in the way."""

from pathlib import Path

import pytest

import limba
from limba.cli import convert
from limba.config import InputError
from limba.formats import t5x
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
