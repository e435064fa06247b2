"""The figures of a proof on numbers alone: what passes, which texts differ, and what the network reads."""

import math
from typing import Any

import numpy as np
import pytest

from limba.data.vocabulary.special_ids import SpecialIds
from limba.export import proof
from limba.export.proof import Figures, Proof

pytestmark = pytest.mark.core
EOS = 1


@pytest.mark.parametrize(
    ("logits", "loss", "astray", "passed"),
    [
        (0.1, 0.1, 0, True),
        (0.11, 0.0, 0, False),
        (0.0, 0.11, 0, False),
        (0.0, 0.0, 1, False),
        (math.nan, 0.0, 0, False),
        (0.0, math.nan, 0, False),
    ],
)
def test_every_figure_has_to_be_within_the_limit(logits: float, loss: float, astray: int, passed: bool) -> None:
    figures = Figures("a reader", logits, loss, 1, 2, astray, 0.1)
    assert figures.passed == passed
    assert ("(passed, limit 1e-01)" in str(figures)) == passed and "greedy text equal in 1 of 2" in str(figures)


def test_a_loss_is_the_mean_of_nats_in_float64() -> None:
    random = np.random.default_rng(0)
    logits = random.standard_normal((7, 9)).astype(np.float32) * 50 + 500
    targets = random.integers(0, 9, 7)
    nats = [
        math.log(sum(math.exp(x - row[t]) for x in row.tolist()))
        for row, t in zip(logits.astype(float), targets, strict=True)
    ]
    assert proof._loss(logits, targets) == pytest.approx(float(np.mean(nats)), rel=1e-12)


class Letters:
    """A vocabulary of characters; the sentinels are its last ids."""

    vocab_size = 3000
    eos_id = 1

    def encode(self, text: str) -> list[int]:
        return [3 + ord(letter) % 2000 for letter in text]


def texts_of(vocabulary: Letters | None, most: int) -> list[list[int]]:
    if vocabulary is not None:
        return [[*vocabulary.encode(text)[:most], EOS] for text in proof.TEXTS]
    random = np.random.default_rng(0)
    return [[*random.integers(2, 100, 64 - 8 * row).tolist()[:most], EOS] for row in range(4)]


@pytest.mark.parametrize("vocabulary", [Letters(), None])
def test_rows_of_a_network_with_a_window_are_full_of_the_sentences_again_and_again(vocabulary: Any) -> None:
    rows = proof.texts_of(vocabulary, 100, 512)["decoder_input_tokens"]
    assert (rows > 0).sum(axis=1).tolist() == [512, 505, 497, 489] and rows[3, 488] == EOS
    if vocabulary is not None:
        once = vocabulary.encode(proof.TEXTS[3])
        assert rows[3, :488].tolist() == (once * 8)[:488]


@pytest.mark.parametrize("vocabulary", [Letters(), None])
def test_a_batch_has_the_sentences_with_a_third_in_a_gap(vocabulary: Letters | None) -> None:
    top = 100 if vocabulary is None else 3000
    batch = proof.batch_of(vocabulary, top)
    for row, (*ids, end) in enumerate(texts_of(vocabulary, 62)):
        third = len(ids) // 3
        inputs = [*ids[:third], top - 1, *ids[2 * third :], end]
        targets = [top - 1, *ids[third : 2 * third], top - 2, end]
        assert batch["encoder_input_tokens"][row].tolist() == inputs + [0] * (64 - len(inputs))
        targets += [0] * (32 - len(targets))
        assert batch["decoder_target_tokens"][row].tolist() == targets
        assert batch["decoder_input_tokens"][row].tolist() == [0, *targets[:-1]]
    assert {array.dtype for array in batch.values()} == {np.dtype(np.int32)}
    whole = proof.prompts_of(vocabulary, 100)
    for row, ids in enumerate(texts_of(vocabulary, 63)):
        targets = ids + [0] * (64 - len(ids))
        assert whole["decoder_target_tokens"][row].tolist() == targets
        assert whole["decoder_input_tokens"][row].tolist() == [0, *targets[:-1]]


def proof_of(logits: np.ndarray, tokens: list[list[int]], followed: np.ndarray) -> Any:
    """A proof whose source has these logits [2, 3, V] and this greedy text [2, 3], and the logits at it."""
    made: Any = object.__new__(Proof)
    made._batch = {"decoder_target_tokens": np.array([[3, 4, 0], [2, 0, 0]])}
    made._logits = logits
    made._tokens = np.array(tokens)
    made._followed = followed
    made._special = SpecialIds(ends=(EOS,))
    made._banned = [5]
    made._config = type("Config", (), {"vocab_size": 6, "is_encoder": False})
    return made


def test_figures_are_of_the_real_tokens_relative_to_the_largest_logit() -> None:
    random = np.random.default_rng(0)
    source = random.standard_normal((2, 3, 8)).astype(np.float32)
    text = [[2, 3, EOS], [4, 4, 2]]
    for size in (0.1, 40.0):
        logits = source * np.float32(size)
        made = proof_of(logits, text, logits)
        written = logits.copy()
        written[0, 1, 7] += 0.5
        written[0, 2] += 100.0  # padding
        figures = made._figures("a reader", written, np.array(text), 1e-3)
        real = logits[[0, 0, 1], [0, 1, 0]].astype(float)
        changed = real.copy()
        changed[1, 7] += 0.5
        unit = max(1.0, float(np.abs(real).max()))
        losses = [proof._loss(scores, np.array([3, 4, 2])) for scores in (real, changed)]
        assert figures.logits == pytest.approx(0.5 / unit, rel=1e-5)
        assert figures.loss == pytest.approx(abs(losses[1] - losses[0]) / max(1.0, losses[0]), rel=1e-3)
        assert (figures.reader, figures.texts_equal, figures.texts, figures.texts_astray) == ("a reader", 2, 2, 0)


def test_a_text_goes_astray_where_the_source_was_sure() -> None:
    """Up to twice the tolerance of the unit is a near tie, at the first token that differs."""
    followed = np.zeros((2, 3, 8), np.float32)
    followed[0, 1, 3] = 3.0
    followed[0, 2] = 50.0
    logits = np.full((2, 3, 8), -10.0, np.float32)  # a unit of 10
    made = proof_of(logits, [[2, 3, EOS], [4, 4, 2]], followed)
    for tolerance, astray in ((0.1, 1), (0.149, 1), (0.151, 0)):
        figures = made._figures("a reader", logits, np.array([[2, 4, 2], [4, 4, 2]]), tolerance)
        assert (figures.texts_equal, figures.texts_astray) == (1, astray)
    assert made._lead(0, np.array([2, 4, 2])) == 3.0


def test_greedy_text_ends_and_takes_what_is_allowed() -> None:
    followed = np.zeros((2, 3, 8), np.float32)
    followed[:, :, 7] = 9.0  # padding rows
    followed[:, :, 5] = 8.0  # banned
    followed[:, :, 2] = 1.0  # allowed
    followed[0, 1, 4] = 2.0
    made = proof_of(followed, [[2, EOS, 3], [2, 3, EOS]], followed)
    assert made._greedy(followed).tolist() == [[2, 4, 0], [2, 2, 2]]  # nothing after the end
    assert followed[0, 0, 5] == 8.0
