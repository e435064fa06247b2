"""Checks of a run that need no data: too many shards for one process, a directory that is a file or not there."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from limba.config import CheckpointConfig, ConfigError, DataConfig, RunConfig
from limba.training.checks import MOST_SHARDS, check_best_metric, check_num_shards, check_writable
from tests import tiny


def config(directory: Path) -> RunConfig:
    data = DataConfig("any", {"inputs": 64}, batch_size=1024, num_data_shards=1024)
    return RunConfig(tiny.model(), data, str(directory), train_steps=10)


def test_a_new_run_opens_no_thousand_pipelines(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"DataConfig\.num_data_shards is 1,024, .* 1,024 pipelines.*; give at most 512"
    ):
        check_num_shards(range(1024), config(tmp_path))
    check_num_shards(range(MOST_SHARDS), config(tmp_path))  # as on two hosts
    (tmp_path / "checkpoints" / "5").mkdir(parents=True)
    check_num_shards(range(1024), config(tmp_path))  # a run that has begun so may go on


def test_a_directory_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for name in ("file", "file/below"):
        with pytest.raises(ConfigError, match=r"RunConfig\.model_dir is x, and .*file.* cannot be written \("):
            check_writable(str(tmp_path / name), "RunConfig.model_dir", "x")
    check_writable(str(tmp_path / "new" / "folder"), "RunConfig.model_dir", "x")
    assert list((tmp_path / "new" / "folder").iterdir()) == []


def test_bleu_by_other_words_than_a_run_goes_by_is_named_with_the_choice_that_keeps_it(tmp_path: Path) -> None:
    run = dataclasses.replace(config(tmp_path), checkpoint=CheckpointConfig(best_metric="bleu"))
    with pytest.raises(ConfigError, match=r"the evaluation gives 'bleu-zh'; name that one, or set .* to '13a'") as told:
        check_best_metric(run, ("loss", "bleu-zh"))
    assert told.value.fix == ("EvaluationConfig.bleu_tokenizer", "13a")
    check_best_metric(run, ("loss", "bleu"))
