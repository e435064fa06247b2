"""Runs that meet poisoned text: the batch is dropped or passed over, named, and the same again from its ledger."""

import dataclasses
import json
import random
import shutil
from pathlib import Path

import jax
import numpy as np
import pytest

import tasks.demo  # noqa: F401  registers the task
from limba.config import (
    CheckpointConfig,
    DataConfig,
    GuardConfig,
    InputError,
    NonFiniteError,
    RunConfig,
    ScheduleConfig,
    optimizer_config,
)
from limba.inference.step_documents import documents_of_step
from limba.model import Network
from limba.run import train
from limba.sharding.mesh import make_mesh
from limba.training.checkpoints.directory import Checkpoints, Restored
from limba.training.metrics.logging import read_metrics
from limba.training.optimizer import make_optimizer
from limba.training.skipped_batches import FILE, entries_of
from limba.training.state import abstract_state
from tests import tiny
from tests.run.logged import losses_of
from tests.run.test_hosts import finish, start

WORDS = "the of and to in was he that it his her with as had for she not at but be on they have him which"
LENGTH = 208  # bytes of a document: it fills a shard's 4 rows of a batch
POISONED = (56, 256)  # the documents of one batch's two shards
LAST = 70


@pytest.fixture(scope="module")
def poisoned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """English words without order, and two documents of rare bytes."""
    path = tmp_path_factory.mktemp("corpus") / "poisoned.jsonl"
    choices = random.Random(0)
    texts = [" ".join(choices.choices(WORDS.split(), k=LENGTH))[:LENGTH] for _ in range(400)]
    for number in POISONED:
        texts[number] = "".join(chr(choices.randrange(0x4E00, 0x9FFF)) for _ in range(LENGTH // 3)) + "!"
    path.write_text("".join(json.dumps({"text": text}, ensure_ascii=False) + "\n" for text in texts))
    return path


def config_of(directory: Path, corpus: Path, action: str, **data: object) -> RunConfig:
    return RunConfig(
        model=tiny.model(
            vocab_size=384, emb_dim=64, num_heads=2, mlp_dim=64, num_encoder_layers=1, num_decoder_layers=1
        ),
        data=DataConfig(
            "demo_span_corruption",
            {"inputs": 48},
            batch_size=8,
            vocabulary="byte",
            data_files=str(corpus),
            validation_percent=0.0,
            num_data_shards=2,
            shuffle=False,
            **data,
        ),
        model_dir=str(directory),
        train_steps=LAST,
        optimizer=optimizer_config(schedule=ScheduleConfig(warmup_steps=100, base_learning_rate=0.3)),
        checkpoint=CheckpointConfig(every_steps=20),
        log_every_steps=1,
        guard=GuardConfig(action, window=40),
    )


def restored(config: RunConfig, step: int = LAST) -> Restored:
    mesh = make_mesh(config.mesh)
    abstract = abstract_state(Network(config.model, mesh), make_optimizer(config.optimizer, 1), mesh)
    with Checkpoints(config.model_dir, config.checkpoint, config.data) as checkpoints:
        return checkpoints.restore_step(step, abstract)


def assert_same_run(one: RunConfig, other: RunConfig) -> None:
    """Bit for bit: parameters, optimizer state, the guard's window, and every logged loss."""
    first = restored(one)
    second = restored(other)
    for a, b in zip(jax.tree.leaves(first.state), jax.tree.leaves(second.state), strict=True):
        np.testing.assert_array_equal(np.asarray(a), np.asarray(b))
    assert first.notes == second.notes and losses_of(one) == losses_of(other)


def ledger_of(config: RunConfig) -> list[dict]:
    return read_lines(Path(config.model_dir) / FILE)


def read_lines(path: Path) -> list[dict]:
    return entries_of(path.read_text(), str(path))


def from_step_40(config: RunConfig, directory: Path, keeps_ledger: bool) -> RunConfig:
    """A copy of the run as a crash after step 40 leaves it."""
    shutil.copytree(config.model_dir, directory)
    for step in (60, LAST):
        shutil.rmtree(directory / "checkpoints" / str(step))
    if not keeps_ledger:
        (directory / FILE).unlink()
    return dataclasses.replace(config, model_dir=str(directory))


@pytest.mark.night
def test_a_poisoned_batch_is_dropped_and_its_documents_named(
    poisoned: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = config_of(tmp_path / "run", poisoned, "skip")
    assert train(config)["step"] == LAST
    (entry,) = ledger_of(config)
    batch = entry["batch"]
    assert 40 < batch < LAST and entry["action"] == "skip" and entry["loss"] > 1.3 * losses_of(config)[batch - 1]
    assert [(row["shard"], row["row"]) for row in entry["rows"]] == [(s, r) for s in range(2) for r in range(4)]
    assert list(losses_of(config)) == [step for step in range(1, LAST + 1) if step != batch]
    events = [record for record in read_metrics(config.model_dir) if record["kind"] == "event"]
    assert [(event["step"], event["action"]) for event in events] == [(batch, "skip")]
    said = capsys.readouterr().out
    assert f"Step {batch} is dropped: its loss " in said

    found_again = from_step_40(config, tmp_path / "found again", keeps_ledger=False)
    train(found_again)
    assert [line | {"rows": []} for line in ledger_of(found_again)] == [entry | {"rows": []}]
    assert_same_run(found_again, config)
    resumed = from_step_40(config, tmp_path / "resumed", keeps_ledger=True)
    train(resumed)
    assert_same_run(resumed, config)
    replay = config_of(tmp_path / "given", poisoned, "skip", skip=str(tmp_path / "run" / FILE))
    train(replay)
    assert_same_run(replay, config)
    assert not (tmp_path / "given" / FILE).exists()

    # The ledger names the documents of each row, and so does a later look at the run.
    named = [(row["shard"], document["document"]) for row in entry["rows"] for document in row["documents"]]
    assert set(named) == {(0, POISONED[0]), (1, POISONED[1])}
    assert all(poisoned.name in document["unit"] for row in entry["rows"] for document in row["documents"])
    # A document is counted in its part of the file, which the bytes name.
    assert f"of shard 0 ({poisoned.name}[0:65536], document {POISONED[0]});" in said
    texts = [json.loads(line)["text"] for line in poisoned.read_text().splitlines()]
    documents = documents_of_step(config.model_dir, batch, stood_out=True)
    assert {document.text for row in documents for document in row.documents} == {texts[number] for number in POISONED}


@pytest.mark.slow
def test_a_run_returns_to_the_checkpoint_before_a_spike(poisoned: Path, tmp_path: Path) -> None:
    config = config_of(tmp_path / "run", poisoned, "rewind")
    config = dataclasses.replace(config, log_every_steps=7)  # the spike is seen up to 7 steps later
    assert train(config)["step"] == LAST
    before, spike, after = ledger_of(config)
    batch = spike["batch"]
    assert [before["batch"], after["batch"]] == [batch - 1, batch + 1] and before["loss"] is None
    assert len(spike["rows"]) == 8 and not before["rows"] and not after["rows"]
    (event,) = [record for record in read_metrics(config.model_dir) if record["kind"] == "event"]
    assert event["step"] == batch and event["returned_to"] in (40, 60) and event["returned_to"] < batch - 1
    replay = config_of(tmp_path / "given", poisoned, "rewind", skip=str(tmp_path / "run" / FILE))
    replay = dataclasses.replace(replay, log_every_steps=7)
    train(replay)
    assert_same_run(replay, config)


@pytest.mark.night
def test_a_run_in_which_nothing_is_finite_ends(poisoned: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("limba.config.schedule.MOST_RATE", 1e31)
    schedule = ScheduleConfig("linear", base_learning_rate=1e30, warmup_steps=0)
    config = config_of(tmp_path / "run", poisoned, "rewind")
    config = dataclasses.replace(config, optimizer=optimizer_config(schedule=schedule), log_every_steps=50)
    with pytest.raises(NonFiniteError, match="has returned to the start 3 times"):
        train(config)
    entries = ledger_of(config)
    assert [entry["batch"] for entry in entries] == [1, 2, 3, 4, 5, 6]
    assert entries[0]["reason"] == "its update norm is inf"


@pytest.mark.night
def test_two_processes_drop_the_same_batch_as_one(poisoned: Path, tmp_path: Path) -> None:
    def arguments(directory: Path) -> list[str]:
        values = {
            "VOCABULARY": "'byte'",
            "CORPUS": f"'{poisoned}'",
            "TASK_FEATURE_LENGTHS": "{'inputs': 48}",
            "BATCH_SIZE": 8,
            "VOCAB_SIZE": 384,
            "TRAIN_STEPS": LAST,
            "LOG_PERIOD": 1,
            "WARMUP_STEPS": 100,
            "LEARNING_RATE": 0.3,
            "SHUFFLE_TRAIN_EXAMPLES": False,
            "CHECKPOINT_PERIOD": 20,
            "CHECKPOINTS_KEPT": 5,
            "EVAL_PERIOD": 1_000,
            "config.DataConfig.num_data_shards": 2,
            "config.DataConfig.validation_percent": 0.0,
            "config.GuardConfig.action": "'skip'",
            "config.ModelConfig.num_encoder_layers": 1,
            "config.ModelConfig.num_decoder_layers": 1,
            "config.GuardConfig.window": 40,
            "MODEL_DIR": f"'{directory}'",
        }
        return ["--gin_file=gin/demo.gin", *(f"--gin.{name}={value}" for name, value in values.items())]

    for processes, devices in ((2, 2), (1, 4)):
        outputs = finish(start(["-m", "limba", "train", *arguments(tmp_path / str(processes))], processes, devices))
        assert sum("is dropped: its loss" in line for line in outputs[0][0].splitlines()) == 1
    two, one = (read_lines(tmp_path / name / FILE) for name in ("2", "1"))
    assert [entry["batch"] for entry in two] == [entry["batch"] for entry in one]
    rows = [[(row["shard"], row["row"]) for row in entry["rows"]] for entry in (*two, *one)]
    assert rows[0] == rows[1] and len(rows[0]) == 8
    again = tmp_path / "again"
    shutil.copytree(tmp_path / "2", again)
    for step in (60, LAST):
        shutil.rmtree(again / "checkpoints" / str(step))
    outputs = finish(start(["-m", "limba", "train", *arguments(again)], 2, 2))
    assert "is dropped" not in outputs[0][0]
    figures = [losses_of(path) for path in (again, tmp_path / "2")]
    assert figures[0] == figures[1] and two[0]["batch"] not in figures[0]


def test_a_ledger_that_is_not_there_ends_before_compiling(
    poisoned: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jax, "jit", lambda *_, **__: pytest.fail("compiled"))
    with pytest.raises(InputError, match=r"DataConfig.skip is .*nothing.jsonl, which cannot be read"):
        train(config_of(tmp_path / "run", poisoned, "off", skip=str(tmp_path / "nothing.jsonl")))
