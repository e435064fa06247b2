"""Each small file that a run or an export reads again, damaged alone: a sentence, or it is made again."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from limba.cli.main import main
from limba.config import CheckpointConfig, DataConfig, InputError, RunConfig
from limba.export.record import differences
from limba.training import data_revisions
from limba.training.best import Best
from limba.training.skipped_batches import FILE, SkippedBatches, entries_of
from tests import tiny

JUNK = {
    "empty": b"",
    "cut": b'{"value": 1.0, "st',
    "bytes": b"\xff\xfe\x00",
    "list": b"[1]",
    "null": b"null",
    "deep": b"[" * 100_000,
    "words": b'{"value": "low", "step": 1, "rows": 1}',
}


@pytest.fixture(params=JUNK.values(), ids=list(JUNK))
def junk(request: pytest.FixtureRequest) -> bytes:
    return request.param


@pytest.fixture
def config(tmp_path: Path) -> RunConfig:
    data = DataConfig("any", {"inputs": 64}, batch_size=8, num_data_shards=4)
    checkpoint = CheckpointConfig(best_metric="loss")
    return RunConfig(tiny.model(), data, str(tmp_path), train_steps=10, checkpoint=checkpoint)


def test_the_record_of_the_best_step(config: RunConfig, junk: bytes, tmp_path: Path) -> None:
    (tmp_path / "best").mkdir()
    (tmp_path / "best" / "best.json").write_bytes(junk)
    with pytest.raises(InputError, match=r"best\.json is not (the record of a best step|text in UTF-8)"):
        Best(config)


def test_a_record_of_the_best_step_that_is_whole(config: RunConfig, tmp_path: Path) -> None:
    (tmp_path / "best").mkdir()
    path = tmp_path / "best" / "best.json"
    mode = config.checkpoint.best_mode
    record = {"metric": "loss", "mode": mode, "value": 2.0, "step": 5, "figures": {}, "since": 1, "last_step": 10}
    never_finite = {"metric": "loss", "mode": mode, "since": 1, "last_step": 10}
    for text in (record, never_finite):
        path.write_text(json.dumps(text))
        assert Best(config)._record == text
    for part in ("metric", "mode", "since", "last_step", "step"):
        path.write_text(json.dumps({name: value for name, value in record.items() if name != part}))
        with pytest.raises(InputError, match=r"best\.json is not the record of a best step"):
            Best(config)


def test_the_commits_of_data_sets(junk: bytes, tmp_path: Path) -> None:
    (tmp_path / "data_revisions.json").write_bytes(junk)
    with pytest.raises(InputError, match=r"data_revisions\.json.* (is damaged|is not text in UTF-8)"):
        data_revisions.pinned_for_run(SimpleNamespace(name="any", tasks=[]), str(tmp_path))


def test_the_ledger(config: RunConfig, junk: bytes, tmp_path: Path, capfd: pytest.CaptureFixture) -> None:
    (tmp_path / FILE).write_bytes(junk)
    if not junk:
        assert 1 not in SkippedBatches(config)
        return
    with pytest.raises(InputError, match=r"is not a batch of a ledger|is not text in UTF-8"):
        SkippedBatches(config)
    capfd.readouterr()
    assert main(["inspect", str(tmp_path), "--step=1", "--rows=stood_out"]) == 2
    assert len(capfd.readouterr().err.splitlines()) == 1


@pytest.mark.parametrize("rows", [[1], [{}], [{"shard": "a", "row": 1}], 5])
def test_rows_of_a_ledger(rows: object) -> None:
    with pytest.raises(InputError, match=r"Line 1 of a is not a batch of a ledger"):
        entries_of(json.dumps({"batch": 3, "rows": rows}), "a")


def test_the_configuration(junk: bytes, tmp_path: Path, capfd: pytest.CaptureFixture) -> None:
    (tmp_path / "checkpoints" / "5").mkdir(parents=True)
    (tmp_path / "config.json").write_bytes(junk)
    for command in (["report"], ["status", "--verify"]):
        capfd.readouterr()
        assert main([*command, str(tmp_path)]) == 2
        said = capfd.readouterr()
        assert len([*said.out.splitlines(), *said.err.splitlines()]) == 1  # --verify says of each step what it is


def test_the_record_of_an_export(junk: bytes, tmp_path: Path) -> None:
    wanted = {"source": "run", "formats": ["pytorch"], "checked": True, "card": {}}
    with pytest.raises(InputError, match=r"has a conversion\.json that no export has written; give another directory"):
        differences(junk, wanted, tmp_path)
