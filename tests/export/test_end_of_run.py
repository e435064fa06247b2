"""The final model of a run at its destinations: written whole and proved, repeated, and never the end of a run."""

import dataclasses
import json
from pathlib import Path

import huggingface_hub
import numpy as np
import pytest

import limba
import tasks.demo  # noqa: F401  registers the task
from limba.config import CheckpointConfig, DataConfig, EvaluationConfig, InputError, MeshConfig, RunConfig
from limba.export import destinations, end_of_run
from limba.storage import manifest
from tests import tiny
from tests.bucket_server import emulated, serving_buckets
from tests.run.test_hosts import finish, start


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, corpus: Path, vocabulary: Path) -> RunConfig:
    folder = tmp_path_factory.mktemp("end_of_run")
    data = DataConfig(
        "demo_span_corruption", {"inputs": 32}, 8, str(vocabulary), data_files=str(corpus), task_modules=("tasks.demo",)
    )
    return RunConfig(
        model=tiny.model(vocab_size=1024, emb_dim=32, num_heads=2, mlp_dim=64, num_decoder_layers=2),
        data=data,
        model_dir=str(folder / "run"),
        train_steps=2,
        mesh=MeshConfig(data=8),
        checkpoint=CheckpointConfig(every_steps=100),
        evaluation=EvaluationConfig(every_steps=100, num_batches=1),
        export_to=str(folder / "out"),
    )


class Remote(end_of_run.FolderDestination):
    """An address of fsspec's that no run directory can have."""

    def check(self) -> None:
        pass


class Flaky:
    """A destination whose first deliveries fail."""

    name = "a flaky place"

    def __init__(self, failures: int):
        self.failures = failures
        self.folders = []

    def check(self) -> None:
        pass

    def deliver(self, folder: Path, step: int) -> str:
        self.folders.append(folder)
        if len(self.folders) <= self.failures:
            raise OSError("the network is down")
        return f"flaky/{step}"


@pytest.mark.night
def test_the_final_model_is_whole_in_every_destination(
    run: RunConfig, capfd: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second start trains nothing and finds it done; a failing place is tried again and costs only itself."""
    result = limba.train(run)
    assert run.export_to
    out = run.export_to[0]
    folder = Path(out) / "step_2"
    assert (result["exports"], result["failed_exports"]) == ([str(folder)], [])
    assert {"config.json", "model.safetensors", "tokenizer.json", "README.md"} <= {f.name for f in folder.iterdir()}
    assert json.loads((folder / "conversion.json").read_text())["checked"]
    texts = ["The parser reads a file and", "Returns a list of"]
    here, there = (limba.load(path).encode(texts) for path in (run.model_dir, folder))
    np.testing.assert_allclose(there, here, atol=1e-5)

    capfd.readouterr()
    places = [end_of_run.FolderDestination(out), Remote(f"memory://{out}"), Flaky(2), Flaky(9)]
    monkeypatch.setattr(end_of_run, "destinations", lambda config: places)
    monkeypatch.setattr(end_of_run, "PAUSES", (0.0, 0.0))
    result = limba.train(run)
    said = capfd.readouterr().out
    assert "step 2: done before" in said and said.count("the network is down") == 2 + 2 + 1
    assert result["step"] == 2 and result["exports"] == [str(folder), f"memory://{out}/step_2", "flaky/2"]
    assert result["failed_exports"] == [
        f"The model of step 2 is trained and saved in {run.model_dir}, and not exported to a flaky place"
        " (the network is down): the same command tries it again, and trains nothing."
    ]
    assert len(places[3].folders) == end_of_run.ATTEMPTS


def test_a_wrong_destination_is_refused_before_training(run: RunConfig, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    taken = dataclasses.replace(run, model_dir=str(tmp_path.with_name("new")), export_to=str(tmp_path))
    with pytest.raises(InputError, match=r"holds notes\.txt, which no conversion wrote"):
        limba.train(taken)
    odd = dataclasses.replace(taken, model=dataclasses.replace(run.model, mlp_activations=("gelu", "relu")))
    with pytest.raises(InputError, match=r"RunConfig\.export_to is set, and the network cannot be exported"):
        end_of_run.check(odd)
    with pytest.raises(InputError, match="ftp://"):
        dataclasses.replace(run, export_to="ftp://host/out")


def test_a_second_local_folder_gets_a_copy(tmp_path: Path) -> None:
    """Only the first one is written there; a copy went to buckets alone."""
    folder = tmp_path / "first" / "step_2"
    folder.mkdir(parents=True)
    destination = end_of_run.FolderDestination(str(tmp_path / "second"))
    there = tmp_path / "second" / "step_2"
    for text in ("one", "another"):
        (folder / "README.md").write_text(text)
        (folder / destinations.RECORD).write_text(json.dumps({"source": "run", "checkpoint": "a", "findings": [text]}))
        destination.check()
        assert destination.deliver(folder, 2) == str(there)
        assert (there / "README.md").read_text() == text
    assert {path.name for path in there.iterdir()} == {"README.md", destinations.RECORD}
    (folder / destinations.RECORD).write_text(json.dumps({"source": "run", "checkpoint": "b"}))
    with pytest.raises(InputError, match="second/step_2 is there already, and was made from another run or checkpoint"):
        destination.deliver(folder, 2)
    assert (there / "README.md").read_text() == "another"


def test_an_export_of_a_step_that_the_run_has_yet_to_make_is_refused_before_training(
    run: RunConfig, tmp_path: Path
) -> None:
    """MODEL_DIR was removed and EXPORT_TO was not: at the end the run would find a folder that is not its own."""
    folder = tmp_path / "out" / "step_2"
    folder.mkdir(parents=True)
    again = dataclasses.replace(run, model_dir=str(tmp_path / "run"), export_to=str(tmp_path / "out"))
    end_of_run.check(again)
    record = folder / destinations.RECORD
    sentence = r"RunConfig\.export_to is .*out/step_2 is there already, .*; remove it, or give"
    for checkpoint in (None, "0000000a"):  # without a manifest; with one
        record.write_text(json.dumps({"source": "run", "checkpoint": checkpoint}))
        with pytest.raises(InputError, match=sentence):
            end_of_run.check(again)
    end_of_run.check(dataclasses.replace(again, train_steps=3))
    inside = dataclasses.replace(again, model_dir=str(tmp_path))
    with pytest.raises(InputError, match=sentence):  # of another run, such as one that this one is a copy of
        end_of_run.check(inside)
    record.write_text(json.dumps({"source": tmp_path.name, "checkpoint": "0000000a"}))
    end_of_run.check(inside)  # in the run's own directory it is made again
    checkpoint = tmp_path / "run" / "checkpoints" / "2"
    (checkpoint / "state").mkdir(parents=True)
    (checkpoint / manifest.FILE).write_text(manifest.text({}, 2))
    end_of_run.check(again)  # it has ended, and is started once more


@pytest.mark.night
def test_what_cannot_be_written_is_said_and_ends_nothing(
    run: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process that exports fails: nobody has trained in this directory."""
    monkeypatch.setattr(end_of_run, "PAUSES", (0.0, 0.0))
    lost = dataclasses.replace(run, model_dir=str(tmp_path / "lost"), export_to=str(tmp_path / "out"))
    result = end_of_run.deliver_all(lost, {"step": 2, "interrupted": False})
    assert not result["exports"] and "lost does not exist" in result["failed_exports"][0]
    assert end_of_run.deliver_all(lost, {"step": 2, "interrupted": True})["exports"] == []


@pytest.mark.filterwarnings("ignore:Sending a large body:ResourceWarning")
def test_a_bucket_gets_the_folder_whole_and_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same checkpoint's folder is replaced, of which only what differs is sent; another one's is refused."""
    folder = tmp_path / "step_2"
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(bytes(range(256)) * 1000)
    (folder / destinations.RECORD).write_text(json.dumps({"source": "run", "checkpoint": "0000000a"}))
    (folder / "README.md").write_text("one")
    with emulated(monkeypatch) as server:
        destination = end_of_run.FolderDestination("gs://bucket/out")
        destination.check()
        assert destination.deliver(folder, 2) == "gs://bucket/out/step_2"
        sent = server.received["out/step_2/model.safetensors"]
        (folder / "README.md").write_text("another")
        assert destination.deliver(folder, 2) == "gs://bucket/out/step_2"
        assert server.data("out/step_2/README.md") == b"another" and not manifest.check("gs://bucket/out/step_2")
        assert server.received["out/step_2/model.safetensors"] == sent
        for other in ({"source": "other"}, {"source": "run", "checkpoint": "0000000b"}):  # or trained again
            (folder / destinations.RECORD).write_text(json.dumps(other))
            with pytest.raises(InputError, match="gs://bucket/out/step_2"):
                destination.deliver(folder, 2)
        without_manifest = {"source": "run", "checkpoint": None}
        (folder / destinations.RECORD).write_text(json.dumps(without_manifest))
        assert destination.deliver(folder, 2) == "gs://bucket/out/step_2"
        left = {name.partition("/")[0] for name in server.names()}
    assert left == {"out"} and not (Path.cwd() / "gs:").exists()


@pytest.mark.night
def test_two_processes_train_in_a_bucket_and_export_to_it(corpus: Path, vocabulary: Path, tmp_path: Path) -> None:
    """The first process exports, the other waits; the folder is whole, sent once, and its card complete."""
    with serving_buckets() as server:
        arguments = [
            *("-m", "limba", "train", "gin/demo.gin", f"--gin.VOCABULARY={vocabulary}", "--gin.VOCAB_SIZE=1024"),
            *(f"--gin.CORPUS={corpus}", "--gin.MODEL_DIR=gs://bucket/run", "--gin.EXPORT_TO=gs://bucket/out"),
            *("--gin.TRAIN_STEPS=2", "--gin.BATCH_SIZE=8", "--gin.TASK_FEATURE_LENGTHS={'inputs': 32}"),
            *("--gin.config.DataConfig.num_data_shards=4", "--gin.EVAL_STEPS=1", "--gin.LANGUAGE=ro,en"),
            *("--gin.LICENCE=apache-2.0", "--gin.config.CardConfig.hardware='two cores'"),
        ]
        variables = {**server.environment(), "TMPDIR": str(tmp_path)}
        (printed, _), (other, _) = finish(start(arguments, 2, 1, **variables))
        assert "step 2: the model is in gs://bucket/out/step_2" in printed and "exporting" not in other
        names = {name.removeprefix("out/step_2/") for name in server.names("out/")}
        uploads = sum(number for name, number in server.received.items() if name.startswith("out/"))
        folder = tmp_path / "step_2"
        folder.mkdir()
        for name in names:
            (folder / name).write_bytes(server.data(f"out/step_2/{name}"))
    assert {"config.json", "model.safetensors", "tokenizer.json", "README.md", "manifest.json"} <= names
    assert not manifest.check(folder) and not (Path.cwd() / "gs:").exists()
    metadata = huggingface_hub.ModelCard.load(folder / "README.md").data
    assert (metadata.language, metadata.license) == (["ro", "en"], "apache-2.0")
    assert "two cores" in (folder / "README.md").read_text()
    assert json.loads((folder / "conversion.json").read_text())["checked"]
    assert len(limba.load(folder).generate(["A text with <extra_id_0> gap."], max_tokens=4)) == 1
    assert uploads < 1.2 * sum(path.stat().st_size for path in folder.iterdir())
