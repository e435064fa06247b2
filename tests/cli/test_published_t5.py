"""t5-small as it is published goes through the commands of a masked-language-model script."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

import limba
from limba.cli.flags import parse_args
from limba.run import train
from tests import published_t5


def trains(folder: Path, corpus: Path, workdir: Path, flags: list[str]) -> dict:
    """Two steps of a script's flags from a model in a folder; what the run reports."""
    workdir.mkdir()
    texts = [json.loads(line)["text"] for line in corpus.read_text().splitlines()]
    (workdir / "corpus.txt").write_text("\n".join(" ".join(text.split()) for text in texts))
    argv = ["--model_name_or_path", str(folder), "--train_file", str(workdir / "corpus.txt"), "--do_train", "--do_eval"]
    argv += ["--output_dir", str(workdir / "output"), "--max_seq_length", "64", "--learning_rate", "5e-5", *flags]
    config, operative, *_ = parse_args([*argv, "--gin.config.DataConfig.num_data_shards=8"])
    assert config.initial_checkpoint_path == str(folder)
    return train(config, operative)


def gap(folder: Path, theirs: torch.nn.Module) -> float:
    """The largest difference of a logit between transformers and Limba."""
    inputs = [100, 7, 23, 42, 1]
    targets = [50, 61, 1]
    with torch.no_grad():
        wanted = theirs(input_ids=torch.tensor([inputs]), labels=torch.tensor([targets])).logits.numpy()[0]
    logits = limba.load(folder).logits_of_ids([(np.int32(inputs), np.int32(targets))])[0]
    return float(np.abs(logits - wanted).max())


@pytest.mark.slow
def test_the_published_names_give_the_logits_of_transformers(tmp_path: Path) -> None:
    theirs = published_t5.write(tmp_path, **published_t5.SMALL)
    assert gap(tmp_path, theirs) < 1e-5


@pytest.mark.slow
def test_a_script_trains_from_the_published_names(corpus: Path, vocabulary: Path, tmp_path: Path) -> None:
    published_t5.write(tmp_path / "t5-small", vocabulary, **published_t5.SMALL)
    flags = ["--max_steps", "2", "--per_device_train_batch_size", "1"]
    figures = trains(tmp_path / "t5-small", corpus, tmp_path / "run", flags)
    assert figures["step"] == 2 and np.isfinite(figures["validation"]["loss"])


@pytest.mark.night
def test_the_published_sizes(corpus: Path, vocabulary: Path, tmp_path: Path) -> None:
    """60 million parameters, 32,128 rows; two steps."""
    folder = tmp_path / "t5-small"
    theirs = published_t5.write(folder, vocabulary)
    assert sum(parameter.numel() for parameter in theirs.parameters()) == 60_506_624
    assert gap(folder, theirs) < 1e-4
    figures = trains(folder, corpus, tmp_path / "run", ["--max_steps", "2", "--per_device_train_batch_size", "1"])
    assert figures["step"] == 2 and np.isfinite(figures["validation"]["loss"])
