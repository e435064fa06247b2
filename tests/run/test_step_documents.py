"""The documents of any step of a run: from the places that it keeps, before and after its checkpoints."""

import contextlib
import json
from pathlib import Path

import pytest

import tasks.demo  # noqa: F401  registers demo_span_corruption
from limba.cli import main
from limba.config import CheckpointConfig, DataConfig, EvaluationConfig, InputError, RunConfig
from limba.data.objectives import derive_lengths
from limba.data.stream.stages import open_stream
from limba.data.tasks import resolve_task
from limba.inference.step_documents import documents_of_step
from limba.run import train
from limba.training import row_reader
from limba.training.start import deal_of_run
from tests import tiny
from tests.data.text_files import write


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunConfig:
    """A run of 8 steps, which keeps the places of every third and saves every fourth."""
    monkeypatch.setattr(row_reader, "EVERY", 3)
    texts = [f"{number} " + "word " * (number % 23) for number in range(400)]
    config = RunConfig(
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
    with pytest.raises(InputError, match=r"No row of step 5 is in .*skipped_batches.jsonl: give all rows"):
        documents_of_step(config.model_dir, 5, stood_out=True)
    kept = Path(config.model_dir, "positions", "8.json.gz")
    whole = kept.read_bytes()
    kept.write_bytes(whole[:12] + bytes([whole[12] ^ 255]) + whole[13:])  # which is no OSError of gzip's
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
