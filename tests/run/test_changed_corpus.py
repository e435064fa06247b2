"""A run whose corpus has changed is refused by the file's name, or begins a new pass; credentials reach no file."""

import dataclasses
import gzip
from collections.abc import Callable
from pathlib import Path

import pytest

import tasks.demo  # noqa: F401  registers the task
from limba.config import CheckpointConfig, ConfigError, DataConfig, EvaluationConfig, InputError, MeshConfig, RunConfig
from limba.run import train
from limba.training.start import write_config
from tests import tiny
from tests.run.logged import losses_of


@pytest.fixture
def config(tmp_path: Path, corpus: Path) -> RunConfig:
    path = tmp_path / "corpus.jsonl.gz"
    path.write_bytes(gzip.compress(corpus.read_bytes()))
    return RunConfig(
        model=tiny.model(
            vocab_size=384, emb_dim=32, num_heads=2, mlp_dim=64, num_encoder_layers=1, num_decoder_layers=1
        ),
        data=DataConfig(
            "demo_span_corruption",
            {"inputs": 32},
            batch_size=8,
            vocabulary="byte",
            data_files=str(path),
            num_data_shards=4,
        ),
        model_dir=str(tmp_path / "run"),
        train_steps=2,
        mesh=MeshConfig(8, 1, 1),
        checkpoint=CheckpointConfig(every_steps=2),
        evaluation=EvaluationConfig(every_steps=50, num_batches=1),
        log_every_steps=1,
    )


def with_data(config: RunConfig, steps: int, **changes: object) -> RunConfig:
    return dataclasses.replace(config, train_steps=steps, data=dataclasses.replace(config.data, **changes))


@pytest.mark.night
def test_a_changed_corpus_is_refused_or_begins_a_new_pass(config: RunConfig, tmp_path: Path, caplog) -> None:
    train(config)
    path = Path(str(config.data.data_files))
    then = path.stat().st_size
    path.write_bytes(gzip.compress(b'{"text": "another text"}\n' * 3000))
    resumed = with_data(config, 4)
    with pytest.raises(InputError, match=f"^{path} has changed since step 2: {then:,} bytes then, .* now. Restore"):
        train(resumed)
    assert sorted(losses_of(config)) == [1, 2] and not list((tmp_path / "run" / "checkpoints").glob("*broken*"))
    train(with_data(config, 4, on_changed_corpus="new_epoch"))
    assert sorted(losses_of(config)) == [1, 2, 3, 4]
    assert [record for record in caplog.records if "A new pass over the current files begins" in record.message]
    caplog.clear()
    train(with_data(config, 6))  # since step 4 nothing has changed
    assert sorted(losses_of(config)) == [1, 2, 3, 4, 5, 6] and "new pass" not in caplog.text


def test_fewer_documents_than_shards_are_found_before_anything_is_compiled(
    config: RunConfig, tmp_path: Path, monkeypatch
) -> None:
    (tmp_path / "few.txt").write_text("one\ntwo\nthree\n")

    def compiled(*_: object) -> Callable:
        raise AssertionError("a step is compiled")

    monkeypatch.setattr("limba.training.update.jit_train_step", compiled)
    with pytest.raises(InputError, match="few.txt holds 3 document.* none for data shard 3 of 4") as refusal:
        train(with_data(config, 2, data_files=str(tmp_path / "few.txt"), validation_percent=0.0))
    assert not isinstance(refusal.value, ConfigError)


def test_config_files_have_no_credentials(config: RunConfig, tmp_path: Path) -> None:
    address = "https://ana:SECRET@example.org/a.txt?token=SECRET"
    (tmp_path / "run").mkdir()
    write_config(with_data(config, 2, data_files=address), f"CORPUS = {address!r}\nBATCH_SIZE = 8\n")
    text = (tmp_path / "run" / "config.gin").read_text()
    assert text == "CORPUS = 'https://***@example.org/a.txt?token=***'\nBATCH_SIZE = 8\n"
    assert "SECRET" not in (tmp_path / "run" / "config.json").read_text()
