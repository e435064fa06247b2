"""Search over networks whose best texts can be found by trying all."""

import dataclasses
import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from limba.config import GenerationConfig, InputError
from limba.inference import search as decoding

EOS = 1
V = 6
TABLE = np.random.default_rng(3).normal(0, 2, (V, V)).astype(np.float32)
LOG = np.asarray(jax.nn.log_softmax(TABLE, axis=-1))
FREE = jnp.zeros(V, bool)


def step(cache, last, position):
    """The next token depends on the last; the cache remembers every token, as a real one does."""
    assert cache.shape[0] == last.shape[0]
    cache = jax.lax.dynamic_update_index_in_dim(cache, last, position, axis=1)
    remembered = jax.lax.dynamic_index_in_dim(cache, position, axis=1, keepdims=False)
    return jnp.asarray(TABLE)[remembered], cache


def write(config, prompt, banned=FREE, seed=0):
    prompt = jnp.asarray(prompt, jnp.int32)
    cache = jnp.zeros((len(prompt), config.max_tokens), jnp.int32)
    keys = jax.random.split(jax.random.key(seed), len(prompt))
    run = jax.jit(lambda c, p, b, k: decoding.generate(step, c, p, decoding.Rules(b, config, (EOS,), k)))
    return run(cache, prompt, banned, keys)


def texts(first, length):
    """All texts behind a token, ended or of full length, with their log probabilities."""
    for ids in itertools.product(range(V), repeat=length):
        ids = list(ids)
        if EOS in ids[:-1]:
            if any(ids[ids.index(EOS) + 1 :]):
                continue
            ids = ids[: ids.index(EOS) + 1]
        yield ids, float(sum(LOG[a, b] for a, b in zip([first, *ids], ids, strict=False)))


@pytest.mark.core
def test_beams_find_the_best_texts():
    """As wide as the tree, beams miss nothing: the best of all texts by log probability over length."""
    config = GenerationConfig(max_tokens=3, num_beams=V * V, num_samples=4, early_stopping="never")
    result = write(config, [[2], [5]])
    for row, first in enumerate((2, 5)):
        ranked = sorted(texts(first, 3), key=lambda text: -text[1] / len(text[0]))[:4]
        expected = [np.pad(ids, (0, 3 - len(ids))).tolist() for ids, _ in ranked]
        assert result.tokens[row].tolist() == expected
        np.testing.assert_allclose(result.scores[row], [score / len(ids) for ids, score in ranked], rtol=1e-5)


def test_beams_go_on_beside_several_ids_that_end_a_text():
    """Each beam ends in three ways first: of twice as many candidates as beams none went on but for one text."""
    logits = jnp.log(jnp.array([1e-9, 0.30, 0.25, 0.20, 0.13, 0.12]))

    def fixed(cache, tokens, position):
        del position
        return jnp.broadcast_to(logits, (len(tokens), len(logits))), cache

    config = GenerationConfig(max_tokens=3, num_beams=2, num_samples=2, length_penalty=4.0, early_stopping="never")
    rules = decoding.Rules(jnp.zeros(6, bool), config, (1, 2, 3))
    result = decoding.generate(fixed, jnp.zeros((1, 3), jnp.int32), jnp.array([[0]]), rules)
    assert result.tokens[0].tolist() == [[4, 4, 1], [4, 5, 1]]
    expected = [sum(np.log(np.array(part))) / 3**4 for part in ((0.13, 0.13, 0.30), (0.13, 0.12, 0.30))]
    np.testing.assert_allclose(result.scores[0], expected, rtol=1e-4)


@pytest.mark.core
@pytest.mark.parametrize("penalty", [-1.0, 0.0, 0.6, 2.0])
def test_scores_are_log_probabilities_over_the_length_to_the_penalty(penalty):
    config = GenerationConfig(
        max_tokens=3, num_beams=V * V, num_samples=V * V, early_stopping="never", length_penalty=penalty
    )
    result = write(config, [[2]])
    known = {tuple(ids): log for ids, log in texts(2, 3)}
    length = [len(row) if EOS not in row else row.index(EOS) + 1 for row in result.tokens[0].tolist()]
    logs = [known[tuple(row[:n])] for row, n in zip(result.tokens[0].tolist(), length, strict=True)]
    np.testing.assert_allclose(result.scores[0], np.array(logs) / np.array(length) ** penalty, rtol=1e-5)
    if penalty > 0:
        best = sorted((log / len(ids) ** penalty for ids, log in known.items()), reverse=True)
        np.testing.assert_allclose(result.scores[0, :4], best[:4], rtol=1e-5)


@pytest.mark.core
def test_a_score_ends_with_its_text():
    """Beside rows that go on; greedy and drawn. Without the three ids, two of six likeliest texts end."""
    banned = jnp.asarray([True, False, True, False, False, True])
    for config in (GenerationConfig(max_tokens=6), GenerationConfig(max_tokens=6, sample=True, num_samples=8)):
        result = write(config, [[first] for first in range(V)], banned)
        lengths = set()
        for first in range(V):
            for row, score in zip(result.tokens[first].tolist(), result.scores[first], strict=True):
                ids = row[: row.index(EOS) + 1] if EOS in row else row
                lengths.add(len(ids))
                assert float(score) == pytest.approx(sum(LOG[a, b] for a, b in itertools.pairwise([first, *ids])), 1e-5)
        assert len(lengths) > 1 and max(lengths) == 6


@pytest.mark.core
def test_greedy_takes_the_likeliest_and_stops():
    result = write(GenerationConfig(max_tokens=8), [[3], [4]])
    for row, last in enumerate((3, 4)):
        expected = []
        while len(expected) < 8 and EOS not in expected:
            last = int(TABLE[last].argmax())
            expected.append(last)
        assert result.tokens[row, 0].tolist() == expected + [0] * (8 - len(expected))
        log = sum(LOG[a, b] for a, b in zip([(3, 4)[row], *expected], expected, strict=False))
        np.testing.assert_allclose(result.scores[row, 0], log, rtol=1e-5)


TABLES = np.random.default_rng(5).normal(0, 1.5, (4, V, V, V)).astype(np.float32)  # of the last two tokens
NEVER = -1e9


def step_of_two(table):
    """The next token depends on the last two, of which the cache has the first: beams must take theirs along."""

    def step(cache, last, position):
        before = jnp.where(position > 0, jnp.take(cache, jnp.maximum(position - 1, 0), axis=1), 0)
        return table[before, last], jax.lax.dynamic_update_index_in_dim(cache, last, position, axis=1)

    return step


def written(config, prompt, seed=0, banned=FREE):
    """Generates with each of the tables, through one program."""
    prompt = jnp.asarray(prompt, jnp.int32)
    cache = jnp.zeros((len(prompt), config.max_tokens), jnp.int32)
    keys = jax.random.split(jax.random.key(seed), len(prompt))
    rules = decoding.Rules(banned, config, (EOS,), keys)
    run = jax.jit(lambda table: decoding.generate(step_of_two(table), cache, prompt, rules))
    return [run(jnp.asarray(table)) for table in TABLES]


def next_logs(table, prompt, ids, size):
    """The log probabilities after a text, -inf where an n-gram would come again."""
    before = [0, prompt[-1], *ids] if ids else [0, prompt[-1]]
    logits = table[before[-2] if ids else 0, before[-1]].astype(np.float64)
    logs = logits - np.log(np.exp(logits).sum())
    known = [*prompt, *ids]
    for token in range(V):
        grams = [tuple(known[n : n + size]) for n in range(len(known) - size + 1)] if size else []
        if size and tuple([*known, token][-size:]) in grams:
            logs[token] = -np.inf
    return logs


def beams_of(table, prompt, config):
    """Beam search by lists, by the documented rule of transformers' `_beam_search`; the best first."""
    many = config.num_beams
    penalty = config.length_penalty
    stopping = config.early_stopping
    running = [(0.0, [])] + [(NEVER, [])] * (many - 1)
    finished = []
    improvable = True
    for length in range(1, config.max_tokens + 1):
        if not improvable or (stopping is True and len(finished) == many):
            break
        candidates = [
            (score + log, [*ids, token])
            for score, ids in running
            for token, log in enumerate(next_logs(table, prompt, ids, config.no_repeat_ngram_size))
        ]
        top = sorted(candidates, key=lambda candidate: -candidate[0])[: 2 * many]
        ends = [ids[-1] == EOS or length == config.max_tokens for _, ids in top]
        running = [candidate for candidate, end in zip(top, ends, strict=True) if not end][:many]
        new = [(score / length**penalty, ids) for (score, ids), end in zip(top[:many], ends, strict=False) if end]
        finished = sorted(finished + new, key=lambda candidate: -candidate[0])[:many]
        if running:
            far = config.max_tokens if stopping == "never" and penalty > 0 else length
            improvable = len(finished) < many or running[0][0] / far**penalty > finished[-1][0]
    return finished


@pytest.mark.core
@pytest.mark.parametrize(
    ("penalty", "stopping", "size"),
    [
        *[(1.0, False, 0), (2.0, True, 0), (0.6, "never", 0), (-1.0, "never", 0), (0.0, False, 2), (-1.0, False, 0)],
        *[(0.0, "never", 1), (2.0, "never", 3)],
    ],
)
def test_beams_are_those_of_lists(penalty, stopping, size):
    config = GenerationConfig(
        max_tokens=5, num_beams=3, num_samples=2, length_penalty=penalty, early_stopping=stopping,
        no_repeat_ngram_size=size,
    )  # fmt: skip
    prompts = [[-1, -1, 2], [3, 4, 0], [5, 5, 5]]
    for table, result in zip(TABLES, written(config, prompts), strict=True):
        for row, prompt in enumerate(prompts):
            wanted = beams_of(table, prompt, config)[:2]
            assert result.tokens[row].tolist() == [np.pad(ids, (0, 5 - len(ids))).tolist() for _, ids in wanted]
            np.testing.assert_allclose(result.scores[row], [score for score, _ in wanted], rtol=1e-5)


@pytest.mark.core
@pytest.mark.parametrize("size", [0, 1, 2, 3])
def test_greedy_texts_are_those_of_lists(size):
    """A score is the free network's, whatever is not allowed."""
    config = GenerationConfig(max_tokens=5, no_repeat_ngram_size=size)
    prompts = [[-1, -1, 2], [3, 4, 0], [5, 5, 5]]
    for table, result in zip(TABLES, written(config, prompts), strict=True):
        for row, prompt in enumerate(prompts):
            ids = []
            log = 0.0
            while len(ids) < 5 and EOS not in ids:
                ids.append(int(np.argmax(next_logs(table, prompt, ids, size))))
                log += next_logs(table, prompt, ids[:-1], 0)[ids[-1]]
            assert result.tokens[row, 0].tolist() == ids + [0] * (5 - len(ids))
            assert float(result.scores[row, 0]) == pytest.approx(log, rel=1e-5)


@pytest.mark.core
@pytest.mark.parametrize("ends", [True, False])
@pytest.mark.parametrize("choices", [{}, {"num_beams": 3}, {"sample": True, "num_samples": 2}])
def test_a_search_in_parts_is_the_whole_one(choices, ends):
    config = GenerationConfig(max_tokens=5, **choices)
    prompt = jnp.array([[-1, 2], [3, 4]], jnp.int32)
    keys = jax.random.split(jax.random.key(0), 2)
    step = step_of_two(jnp.asarray(TABLES[0]))
    banned = FREE if ends else FREE.at[EOS].set(True)
    state = decoding.start(jnp.zeros((2, 5), jnp.int32), prompt, config)
    rules = decoding.Rules(banned, config, (EOS,), keys)
    advance = jax.jit(lambda state, until: decoding.advance(step, state, until, 2, rules))
    for until in (1, 3, 5):
        state = advance(state, until)
        assert ends or (state.position == until and decoding.is_over(state, config) == (until == 5))
    assert decoding.is_over(state, config)
    assert jnp.min(state.cache) >= 0  # a row that has ended is fed padding, not what no network knows
    result = decoding.result(state, 2, config)
    (whole, *_) = written(config, prompt, banned=banned)
    np.testing.assert_array_equal(result.tokens, whole.tokens)
    np.testing.assert_array_equal(result.scores, whole.scores)


def test_banned_ids_and_repeated_ngrams_are_not_written():
    banned = jnp.asarray(decoding.banned_mask(V, V - 1, [EOS, 3]))
    assert banned.tolist() == [False, True, False, True, False, True]
    for beams in (1, 3):
        free = GenerationConfig(max_tokens=5, num_beams=beams)
        blocked = dataclasses.replace(free, no_repeat_ngram_size=2)
        for config, repeats in ((free, True), (blocked, False)):  # a walk over three ids can go on for five
            tokens = write(config, [[-1, 2], [0, 4]], banned).tokens[:, 0]
            assert set(np.unique(tokens)) <= {0, 2, 4}
            pairs = [
                list(itertools.pairwise([*start, *row]))
                for start, row in zip([[2], [0, 4]], tokens.tolist(), strict=True)
            ]
            assert any(len(pair) > len(set(pair)) for pair in pairs) == repeats


@pytest.mark.slow
def test_draws_follow_the_probabilities_and_the_input_alone():
    config = GenerationConfig(max_tokens=1, sample=True, num_samples=4000, temperature=1.5)
    drawn = np.asarray(write(config, [[2]]).tokens[0, :, 0])
    expected = np.asarray(jax.nn.softmax(TABLE[2] / 1.5))
    np.testing.assert_allclose(np.bincount(drawn, minlength=V) / 4000, expected, atol=0.03)
    order = np.argsort(-TABLE[2])
    top_k = write(dataclasses.replace(config, top_k=2), [[2]]).tokens[0, :, 0]
    assert set(np.unique(top_k)) == set(order[:2].tolist())
    needed = int(np.searchsorted(np.cumsum(expected[order]), 0.8)) + 1
    top_p = write(dataclasses.replace(config, top_p=0.8), [[2]]).tokens[0, :, 0]
    assert set(np.unique(top_p)) == set(order[:needed].tolist())

    longer = GenerationConfig(max_tokens=5, sample=True, num_samples=2)
    pair = write(longer, [[2], [4]])
    keys = jax.random.split(jax.random.key(0), 2)
    rules = decoding.Rules(FREE, longer, (EOS,), keys[1:])
    alone = decoding.generate(step, jnp.zeros((1, 5), jnp.int32), jnp.array([[4]], jnp.int32), rules)
    assert pair.tokens[1].tolist() == alone.tokens[0].tolist()


@pytest.mark.parametrize(
    ("choices", "word"),
    [
        ({"sample": True, "num_beams": 4}, "num_beams"),
        ({"num_samples": 2}, "num_samples"),
        ({"top_k": 5}, "sample"),
        ({"sample": True, "top_p": 1.5}, "top_p"),
        ({"early_stopping": "always"}, "early_stopping"),
        ({"sample": True, "temperature": -1}, "temperature"),
        ({"temperature": -1.0}, "give a number above 0, or 0 for greedy"),
        ({"temperature": math.nan}, "give a finite number"),
        ({"temperature": 0, "num_samples": 3}, "more than GenerationConfig.num_beams 1; raise that, or sample"),
        ({"max_tokens": 0}, "max_tokens"),
    ],
)
def test_choices_that_cannot_work_are_named(choices, word):
    with pytest.raises(InputError, match=word):
        GenerationConfig(**choices)
