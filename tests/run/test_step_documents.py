"""The documents of any step of a run: from the places that it keeps, before and after its checkpoints."""

import contextlib
import dataclasses
import json
from pathlib import Path

import pytest
import seqio
import tensorflow as tf

import tasks.demo  # noqa: F401  registers demo_span_corruption
from limba.cli import main
from limba.config import CheckpointConfig, DataConfig, EvaluationConfig, InputError, RunConfig
from limba.data.objectives import derive_lengths, span_corruption, tokenize_documents
from limba.data.stream.stages import open_stream
from limba.data.tasks import resolve_task
from limba.inference.step_documents import documents_of_step
from limba.run import train
from limba.training import history
from limba.training.checkpoints.directory import position_item
from limba.training.history import History
from limba.training.start import deal_of_run, write_config
from tests import tiny
from tests.data.text_files import write


def config_of(tmp_path: Path) -> RunConfig:
    """A run of 8 steps that saves every fourth."""
    texts = [f"{number} " + "word " * (number % 23) for number in range(400)]
    return RunConfig(
        model=tiny.model(vocab_size=384, num_encoder_layers=1, num_decoder_layers=1),
        data=DataConfig(
            "demo_span_corruption",
            {"inputs": 48},
            batch_size=8,
            vocabulary="byte",
            data_files=str(write(tmp_path / "corpus.jsonl", texts)),
            validation_percent=0.0,
            num_data_shards=2,
        ),
        model_dir=str(tmp_path / "run"),
        train_steps=8,
        checkpoint=CheckpointConfig(every_steps=4, keep=1),
        evaluation=EvaluationConfig(every_steps=100),
    )


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunConfig:
    """The run after its end; it has kept the places of every third step."""
    monkeypatch.setattr(history, "EVERY", 3)
    config = config_of(tmp_path)
    train(config)
    return config


def names_of(rows: list) -> list[tuple]:
    return [(row.shard, row.row, [(one.unit, one.row, one.text) for one in row.documents]) for row in rows]


@pytest.mark.slow
def test_the_documents_of_a_step_are_those_of_its_rows(config: RunConfig, capsys: pytest.CaptureFixture[str]) -> None:
    """Of the first steps, of those between two places that are kept, and of those that a resumed run will read."""
    task = resolve_task(config.data)
    lengths = derive_lengths(task, config.data.task_feature_lengths)
    deal = deal_of_run(config, task, lengths)
    expected = {}
    with contextlib.closing(open_stream(task, lengths, config.data, range(2), deal)) as stream:
        for step in range(1, 12):
            next(stream)
            documents = stream.documents()
            expected[step] = [
                (shard, row, [(one.unit, one.row, one.text) for one in documents.of_row(shard, row)])
                for shard in range(2)
                for row in range(4)
            ]
    assert sorted(path.name for path in Path(config.model_dir, "positions").iterdir()) == ["4.json.gz", "8.json.gz"]
    for step in (1, 3, 4, 5, 7, 8, 11):
        assert names_of(documents_of_step(config.model_dir, step)) == expected[step], step
    capsys.readouterr()
    assert main.main(["inspect", config.model_dir, "--step=5"]) == 0
    table = capsys.readouterr().out.splitlines()[2:]
    cells = [line.split("|") for line in table]
    shown = [(int(shard), int(row), int(number)) for _, shard, row, _, _, number, *_ in cells]
    assert shown == [(shard, row, number) for shard, row, named in expected[5] for _, number, _ in named]


@pytest.mark.slow
def test_what_cannot_be_found_is_said(config: RunConfig, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="There is no step 0: steps count from 1"):
        documents_of_step(config.model_dir, 0)
    with pytest.raises(
        InputError, match=r"Step 1,000,000 is too far behind the end of \S+: it ends with step 8, .* up to 1,008\."
    ):
        documents_of_step(config.model_dir, 1_000_000)
    with pytest.raises(InputError, match=r"No row of step 5 is in .*skipped_batches.jsonl: give all rows"):
        documents_of_step(config.model_dir, 5, stood_out=True)
    kept = Path(config.model_dir, "positions", "8.json.gz")
    whole = kept.read_bytes()
    kept.write_bytes(whole[:12] + bytes([whole[12] ^ 255]) + whole[13:])  # gzip does not raise OSError for it
    with pytest.raises(InputError, match=r"^\S+/positions/8\.json\.gz cannot be read \(.*\); restore it, or "):
        documents_of_step(config.model_dir, 8)
    kept.write_bytes(whole)
    position = Path(config.model_dir, "checkpoints", "8", "data", "metadata")
    whole = position.read_bytes()
    position.write_bytes(whole[:-9])
    with pytest.raises(InputError, match=r"^The data position in \S+/checkpoints/8 cannot be read \("):
        documents_of_step(config.model_dir, 5)
    position.write_bytes(whole)
    texts = [json.loads(line)["text"] for line in (tmp_path / "corpus.jsonl").read_text().splitlines()]
    write(tmp_path / "corpus.jsonl", texts[::-1])
    with pytest.raises(InputError, match=r"corpus.jsonl has changed since step 8: .* Restore the original files"):
        documents_of_step(config.model_dir, 5)


class ReadRun:
    """What a run reads and writes of its text, without a model: batches, data positions, and kept places."""

    def __init__(self, config: RunConfig):
        self.config = config
        self.expected: dict[int, list[tuple]] = {}  # step -> its documents
        self.history = History(config.model_dir)
        Path(config.model_dir).mkdir()
        write_config(config, "")

    def read(self, first: int, last: int, positions: dict, keep: int, save: int) -> dict:
        """Reads the batches of some steps from the positions on; returns the positions of the step that it saves."""
        data = self.config.data
        task = resolve_task(data)
        lengths = derive_lengths(task, data.task_feature_lengths)
        deal = deal_of_run(self.config, task, lengths)
        saved = {}
        with contextlib.closing(open_stream(task, lengths, data, range(2), deal)) as stream:
            stream.begin(first - 1, positions or None)
            for step in range(first, last + 1):
                next(stream)
                documents = stream.documents()
                self.expected[step] = [
                    (shard, row, [(one.unit, one.row, one.text) for one in documents.of_row(shard, row)])
                    for shard in range(2)
                    for row in range(4)
                ]
                if step == keep:
                    self.history.add(step, stream.positions())
                if step == save:
                    saved = stream.positions()
                    self.save(step, saved)
        return saved

    def save(self, step: int, positions: dict) -> None:
        self.history.write(step)
        folder = Path(self.config.model_dir, "checkpoints", str(step))
        for name in ("data/metadata", "state/manifest.ocdbt"):
            (folder / name).parent.mkdir(parents=True)
        (folder / "state" / "manifest.ocdbt").touch()
        (folder / "data" / "metadata").write_text(json.dumps(position_item(self.config.data, positions)))


@pytest.mark.parametrize("keep", [3, 6])
def test_the_documents_after_a_change_of_the_corpus_are_those_of_the_files_of_now(tmp_path: Path, keep: int) -> None:
    """Though older checkpoints, and older places that were kept, are of the files before."""
    config = config_of(tmp_path)
    run = ReadRun(dataclasses.replace(config, data=dataclasses.replace(config.data, on_changed_corpus="new_epoch")))
    before = run.read(1, 5, {}, keep, save=4)
    texts = [json.loads(line)["text"] for line in (tmp_path / "corpus.jsonl").read_text().splitlines()]
    write(tmp_path / "corpus.jsonl", [f"new {text}" for text in texts])
    run.read(5, 10, before, keep, save=8)
    for step in range(5, 11):
        assert names_of(documents_of_step(config.model_dir, step)) == run.expected[step], step
    with pytest.raises(InputError, match="begins anew after step 4, with another order or other files"):
        documents_of_step(config.model_dir, 4)


def streamed(split: str, shuffle_files: bool, seed: int | None = None) -> tf.data.Dataset:
    texts = [f"{number} " + "word " * (number % 23) for number in range(400)]
    return tf.data.Dataset.from_tensor_slices({"text": texts})


@pytest.fixture
def of_a_function(tmp_path: Path) -> RunConfig:
    """A run of a function of its user's, as streams a corpus for T5X."""
    seqio.TaskRegistry.remove("streamed_texts")
    feature = seqio.Feature(seqio.ByteVocabulary(100))
    seqio.TaskRegistry.add(
        "streamed_texts",
        source=seqio.FunctionDataSource(streamed, splits=("train",)),
        preprocessors=[tokenize_documents, span_corruption],
        output_features={"inputs": feature, "targets": feature},
    )
    config = config_of(tmp_path)
    data = dataclasses.replace(config.data, mixture_or_task_name="streamed_texts", data_files=None)
    return dataclasses.replace(config, data=data)


@pytest.mark.slow
def test_the_documents_of_a_function_are_named_by_their_numbers(
    of_a_function: RunConfig, capsys: pytest.CaptureFixture[str]
) -> None:
    """The run has dealt them, so they are known again: before and after the checkpoint, and kept places do not help."""
    run = ReadRun(of_a_function)
    saved = run.read(1, 7, {}, keep=3, save=5)
    run.read(6, 9, saved, keep=0, save=0)
    for step in (1, 4, 5, 6, 9):
        assert names_of(documents_of_step(of_a_function.model_dir, step)) == run.expected[step], step
    capsys.readouterr()
    assert main.main(["inspect", of_a_function.model_dir, "--step=6"]) == 0
    table = capsys.readouterr().out.splitlines()[2:]
    expected = []
    for shard, row, named in run.expected[6]:
        expected += [f"| {shard} | {row} | streamed_texts | {unit} | {number} |  |" for unit, number, _ in named]
    assert table == expected and "epoch 1 of task streamed_texts" in table[0]


def test_documents_that_a_source_divides_itself_have_no_names(of_a_function: RunConfig) -> None:
    data = dataclasses.replace(of_a_function.data, num_data_shards=1)
    config = dataclasses.replace(of_a_function, data=data)
    Path(config.model_dir).mkdir()
    write_config(config, "")
    with pytest.raises(InputError, match="The documents of task streamed_texts have no names: .* divides itself among"):
        documents_of_step(config.model_dir, 1)


def test_documents_of_a_function_have_no_names_after_tensorflow(of_a_function: RunConfig) -> None:
    task = seqio.TaskRegistry.get("streamed_texts")
    seqio.TaskRegistry.remove("streamed_texts")
    in_tensorflow = lambda dataset: dataset.map(lambda document: document)
    seqio.TaskRegistry.add(
        "streamed_texts",
        source=task.source,
        preprocessors=[in_tensorflow, *task.preprocessors],
        output_features=task.output_features,
    )
    Path(of_a_function.model_dir).mkdir()
    write_config(of_a_function, "")
    with pytest.raises(InputError, match="The documents of task streamed_texts have no names: .* in TensorFlow; set"):
        documents_of_step(of_a_function.model_dir, 1)
