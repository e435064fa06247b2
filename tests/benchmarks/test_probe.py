"""The probe of parts of speech: its intervals, and that it finds what frozen states say of words."""

from pathlib import Path

import numpy as np
import pytest

from benchmarks import probe
from limba.inference.load import load
from tests.run.test_finetune_encoder import encoder as encoder
from tests.run.test_finetune_encoder import written


def test_intervals_are_those_of_resampled_sentences() -> None:
    words, right = np.full(100, 10), np.repeat([4, 6], 50)
    share, lowest, highest = probe.interval(right, words)
    assert share == 0.5 and highest - share == pytest.approx(1.96 * 0.1 / 10, rel=0.1)
    assert share - lowest == pytest.approx(highest - share, rel=0.1)
    assert probe.interval(right - right, words) == (0.0, 0.0, 0.0)


def test_states_tell_the_tags_of_words(tmp_path: Path, encoder: Path, vocabulary: Path) -> None:
    written(tmp_path, "tags")
    train, test = (probe.read(str(tmp_path / f"{split}.conllu")) for split in ("train", "validation"))
    assert len(train) == 96 and train[0][1][0] == "DET" and len(train[0][0]) == 5
    model = load(encoder, vocabulary=str(vocabulary))
    found = probe.probe(model, train, test)
    assert found["majority tag"][0] == pytest.approx(0.4) and found["encoder"][0] > 0.95
    assert found["encoder - majority tag"][1] > 0.4
