"""Folders for CTranslate2 and ONNX, written and run by their own packages: text and likelihoods are the model's."""

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from limba.export import targets
from limba.inference.load import load
from tests.export import table
from tests.export.runs import write_run
from tests.model.test_huggingface import our_config

TEXTS = [f"Text number {number} with <extra_id_0> gap{'s' * number}." for number in range(20)]
PAIRS = [(text, "one") for text in TEXTS]


def bytes_of(ids: Sequence[int]) -> list[int]:
    """Returns the ids of bytes: CTranslate2 has names of its own for ids that are no pieces."""
    return [i for i in ids if 2 < i < 259]


@pytest.mark.long
@pytest.mark.parametrize(("target", "dtype"), [("ct2", "float32"), ("ct2", "int8"), ("onnx", "float32")])
def test_a_target_writes_the_models_own_text(target: str, dtype: str, tmp_path: Path) -> None:
    """Needs the network once: the packages are installed in an environment that is kept."""
    config = dataclasses.replace(our_config("t5_1_1"), vocab_size=259, num_encoder_layers=2, num_decoder_layers=2)
    write_run(tmp_path / "run", config)
    model = load(tmp_path / "run", vocabulary="byte")
    model.save(tmp_path / "folder")
    out = targets.write(target, str(tmp_path / "folder"), str(tmp_path / "out"), dtype)
    ours = table.ours(model, TEXTS, PAIRS, 8)
    theirs = table.theirs(target, out, TEXTS, PAIRS, 8, dtype)
    if dtype == "float32":
        assert [bytes_of(ids) for ids in theirs.ids] == [bytes_of(ids) for ids in ours.ids]
        np.testing.assert_allclose(theirs.scores, ours.scores, rtol=1e-4)
    else:  # each weight is rounded to one of 255 values
        assert 0 < abs(sum(theirs.scores) / sum(ours.scores) - 1) < 0.01


def test_the_gaps_of_the_table_are_cut_from_the_texts(corpus: Path) -> None:
    inputs, pairs = table.gaps(corpus)
    assert len(inputs) == 20 and all(len(text.split()) == 14 for text in inputs)
    texts = {" ".join(json.loads(line)["text"].split()[:24]) for line in corpus.read_text().splitlines()}
    assert len(pairs) > 100
    for text, aim in pairs:
        words = aim.removeprefix("<extra_id_0> ").removesuffix(" <extra_id_1>")
        assert len(words.split()) == 3 and text.replace("<extra_id_0>", words) in texts
