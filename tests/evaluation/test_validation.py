"""Validation loss by character set."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from limba.config import LossConfig
from limba.data.vocabulary.character_sets import SETS, CharacterSets
from limba.data.vocabulary.load import load_vocabulary
from limba.data.vocabulary.spelling import piece_bytes
from limba.evaluation.validation import jit_evaluation
from limba.model import Network
from tests import tiny


@pytest.mark.slow
def test_cross_entropy_by_character_set(vocabulary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Against the text itself: each piece's nats go, byte by byte, to the characters that the bytes are of."""
    text = "The sea 海 is はとても wide。"
    expected = {"海": "kanji", **dict.fromkeys("はとても", "hiragana"), **dict.fromkeys(" 。", "other")}
    sets = [expected.get(letter, "latin") for letter in f" {text}" for _ in letter.encode()]
    loaded = load_vocabulary(str(vocabulary), 0)
    ids = [*loaded.encode(text), 1]
    assert sum(map(loaded.tokenizer.IsByte, ids)) == 3 * 6
    model = Network(tiny.language_model(vocab_size=896, num_decoder_layers=1))
    params = tiny.parameters(model.config)
    targets = np.array([ids, ids], np.int32)
    batch = {"decoder_target_tokens": targets, "decoder_input_tokens": np.pad(targets[:, :-1], ((0, 0), (1, 0)))}
    batch |= {
        "decoder_loss_weights": np.array([[1] * len(ids), [0] * len(ids)]),
        "character_counts": CharacterSets(piece_bytes(loaded, 896)).counts(targets),
    }
    batch = jax.tree.map(jnp.asarray, batch)
    nats = -np.asarray(jax.nn.log_softmax(model.apply(params, batch)))[0, np.arange(len(ids)), ids]
    by_set = dict.fromkeys(SETS, 0.0)
    for number, value in zip(ids[:-1], nats, strict=False):
        size = (
            1 if loaded.tokenizer.IsByte(number) else len(loaded.tokenizer.IdToPiece(number).replace("▁", " ").encode())
        )
        for name in sets[:size]:
            by_set[name] += float(value) / size
        del sets[:size]
    assert not sets
    by_set["other"] += float(nats[-1])  # the end of sequence
    monkeypatch.setattr("limba.training.losses.WHOLE_LOGITS_BYTES", 1)  # so that each row is a part
    sums = jit_evaluation(model, LossConfig(logits="chunked"), 1)(params, batch)
    np.testing.assert_allclose(sums["nats_by_set"], list(by_set.values()), rtol=1e-5)
    assert float(sums["nats"]) == pytest.approx(sum(by_set.values()), rel=1e-6)
