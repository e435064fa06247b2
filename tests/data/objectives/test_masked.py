"""Masked language modeling: how many tokens are hidden, where and as what; whole words; what is never hidden."""

import dataclasses
from collections import defaultdict

import numpy as np
import pytest
import sentencepiece
from scipy import stats

import tasks.demo  # noqa: F401  registers demo_span_corruption
from limba.config import ConfigError, DataConfig, InputError, RunConfig
from limba.data.dataset import TOKENS, Elements
from limba.data.draws import Draws
from limba.data.objectives import masked_lm, whole_word_masked_lm
from limba.data.objectives.masked_language_modeling import ordinary_ids
from limba.data.objectives.whole_words import begins_word
from limba.data.packing import CAUSAL, PREDICTED, batched, model_features
from limba.data.registry import Feature, TaskRegistry
from limba.data.tasks import parts_of, resolve_task
from limba.data.vocabulary import ByteVocabulary, SentencePieceVocabulary
from limba.data.vocabulary.load import load_vocabulary
from limba.data.vocabulary.piece_table import PieceTable
from limba.data.vocabulary.sentinels import mask_id
from limba.data.vocabulary.tokenizers import SPACE
from tests import tiny
from tests.data.objectives.test_denoisers import real_tokens

LENGTH = 512
LIKELY = 1e-4  # of chi-square's p: a test of all fails once in thousands of seeds, and these are fixed


def made(objective, tokens, vocabulary, length=LENGTH, seed=1, **choices):
    """Returns the rows of a stream of tokens, (inputs, targets)."""
    vectors = Elements([{"targets": tokens}], {"targets": TOKENS})
    vectors.draws = Draws(seed)
    features = dict.fromkeys(("inputs", "targets"), Feature(vocabulary))
    return [(row["inputs"], row["targets"]) for row in objective(vectors, {"targets": length}, features, **choices)]


def flat(rows):
    """Returns shown ids, targets, and which of them are predicted."""
    inputs, targets = (np.concatenate(side) for side in zip(*rows, strict=True))
    return inputs % PREDICTED, targets, inputs >= PREDICTED


def likelihood(counts, expected):
    return stats.chisquare(counts, np.sum(counts) * np.asarray(expected) / np.sum(expected)).pvalue


@pytest.mark.parametrize("density", [0.15, 0.3])
@pytest.mark.parametrize("share", [0.8, 1.0])
def test_a_million_tokens_are_hidden_as_the_paper_has_it(density, share):
    vocabulary = ByteVocabulary(extra_ids=1)
    tokens = np.random.default_rng(0).integers(3, 259, 2048 * LENGTH).astype(np.int32)
    rows = made(masked_lm, tokens, vocabulary, noise_density=density, mask_share=share)
    shown, targets, hidden = flat(rows)
    assert (targets == tokens).all() and (shown[~hidden] == tokens[~hidden]).all()
    numbers = np.array([(inputs >= PREDICTED).sum() for inputs, _ in rows])
    low = int(LENGTH * density)  # a row has one of the two nearest numbers
    assert (
        likelihood(np.bincount(numbers - low, minlength=2), [low + 1 - LENGTH * density, LENGTH * density - low])
        > LIKELY
    )
    assert likelihood(hidden.reshape(-1, LENGTH).sum(axis=0), np.ones(LENGTH)) > LIKELY  # every place alike
    assert likelihood(np.bincount(targets[hidden] - 3, minlength=256), np.bincount(tokens - 3)) > LIKELY
    is_mask = shown[hidden] == 259
    is_same = shown[hidden] == targets[hidden]
    other = shown[hidden][~is_mask & ~is_same]
    if share == 1:
        assert is_mask.all()
        return
    same = 0.1 + 0.1 / 256  # a random token is the same one once in a while
    kinds = [is_mask.sum(), is_same.sum(), len(other)]
    assert likelihood(kinds, [0.8, same, 0.2 - same]) > LIKELY
    assert likelihood(np.bincount(other - 3, minlength=256), np.ones(256)) > LIKELY
    neighbours = np.mean(hidden[1:] & hidden[:-1])
    assert neighbours == pytest.approx(density * (LENGTH * density - 1) / (LENGTH - 1), rel=0.05)


def test_whole_words_are_hidden_whole_and_as_many_tokens(corpus, vocabulary):
    loaded = load_vocabulary(str(vocabulary), 1)
    tokens = real_tokens(corpus, loaded)
    rows = made(whole_word_masked_lm, tokens, loaded, mask_share=1.0)
    shown, targets, hidden = flat(rows)
    assert (targets == tokens).all() and (shown[hidden] == loaded.vocab_size - 1).all()
    assert hidden.mean() == pytest.approx(0.15, rel=0.01)
    begins = np.array([PieceTable(loaded).name(number).startswith(SPACE) for number in range(loaded.vocab_size)])
    edges = np.flatnonzero(hidden[1:] != hidden[:-1]) + 1
    inner = edges[(edges % LENGTH > 0)]
    is_start = begins[tokens[inner]]
    distance = np.arange(len(tokens)) - np.maximum.accumulate(np.where(begins[tokens], np.arange(len(tokens)), 0))
    assert len(inner) > 5_000 and (is_start | (distance[inner] >= 16)).all()
    by_piece = flat(made(masked_lm, tokens, loaded))[2]
    broken = np.flatnonzero(by_piece[1:] != by_piece[:-1]) + 1
    assert not begins[tokens[broken]].all()


def chances(counts, most):
    """Returns {numbers taken of each size: chance}, of `counts` {size: words}: next is any that is left and fits."""
    level = {(0,) * len(counts): 1.0}
    shares = defaultdict(float)
    while level:
        following = defaultdict(float)
        for taken, chance in level.items():
            room = most - sum(size * number for size, number in zip(counts, taken, strict=True))
            left = [counts[size] - number if size <= room else 0 for size, number in zip(counts, taken, strict=True)]
            shares[taken] += chance * (not any(left))
            for index, number in enumerate(left):
                if number:
                    more = (*taken[:index], taken[index] + 1, *taken[index + 1 :])
                    following[more] += chance * number / sum(left)
        level = following
    return shares


def test_a_million_tokens_of_words_of_known_lengths_are_hidden_by_the_rule_of_whole_words(vocabulary):
    """How many words of each length are hidden in a row, and where in it; one of 20 pieces is one of 16 and of 4."""
    loaded = load_vocabulary(str(vocabulary), 1)
    random = np.random.default_rng(0)
    rows = 2048
    counts = {1: 152, 3: 80, 4: 6, 16: 6}  # of a row, in its own order
    sizes = random.permuted(np.tile(np.repeat([1, 3, 20], [152, 80, 6]), (rows, 1)), axis=1).ravel()
    starts = np.cumsum(sizes) - sizes
    begins = begins_word(loaded)
    usual = ordinary_ids(loaded)
    tokens = random.choice(np.flatnonzero(usual & ~begins), rows * LENGTH).astype(np.int32)
    tokens[starts] = random.choice(np.flatnonzero(usual & begins), len(starts))
    _, targets, hidden = flat(made(whole_word_masked_lm, tokens, loaded))
    starts = np.sort(np.concatenate([starts, starts[sizes == 20] + 16]))
    sizes = np.diff(starts, append=rows * LENGTH)
    taken = hidden[starts]
    assert (targets == tokens).all() and (np.add.reduceat(hidden, starts) == taken * sizes).all()
    parts = [(weight, chances(counts, most)) for weight, most in ((0.2, 76), (0.8, 77))]  # 76.8 on average
    for index, (size, count) in enumerate(counts.items()):
        of_size = np.zeros(count + 1)
        for weight, by_numbers in parts:
            for numbers, chance in by_numbers.items():
                of_size[numbers[index]] += weight * chance
        low, *_, high = np.flatnonzero(rows * of_size >= 5)  # fewer and more are counted with these
        in_row = (taken & (sizes == size)).reshape(rows, -1).sum(axis=1).clip(low, high)
        expected = np.bincount(np.arange(count + 1).clip(low, high), of_size)[low:]
        assert likelihood(np.bincount(in_row - low, minlength=high - low + 1), expected) > LIKELY
        where = np.array(
            [np.bincount(starts[(sizes == size) & chosen] % LENGTH // 16, minlength=32) for chosen in (taken, ~taken)]
        )
        assert stats.chi2_contingency(where[:, where.any(axis=0)]).pvalue > LIKELY


def test_what_spells_nothing_is_never_hidden_nor_shown(corpus, vocabulary):
    loaded = load_vocabulary(str(vocabulary), 100)
    tokens = np.where(
        np.arange(60_000) % 7 == 0, int(loaded.eos_id or 1), np.resize(real_tokens(corpus, loaded), 60_000)
    )
    tokens[::11] = loaded.unk_id
    for objective in (masked_lm, whole_word_masked_lm):
        shown, targets, hidden = flat(made(objective, tokens.astype(np.int32), loaded, noise_density=0.5))
        usual = np.array(["<" not in PieceTable(loaded).name(number) for number in range(loaded.vocab_size)])
        assert usual[targets[hidden]].mean() > 0.99 and not np.isin(targets[hidden], [1, 2]).any()
        assert not np.isin(shown[hidden], [0, 1, 2]).any()
        assert (shown[hidden] > loaded.vocab_size - 101).sum() == (shown[hidden] == loaded.vocab_size - 1).sum()
        is_ordinary = ordinary_ids(loaded)[tokens]
        assert hidden[is_ordinary].mean() == pytest.approx(0.5, rel=0.01)


def test_packed_documents_are_masked_one_by_one_and_become_features():
    vocabulary = ByteVocabulary(extra_ids=1)
    documents = [np.array([*range(10, 10 + size), 1], np.int32) for size in (40, 25, 100, 7)]
    vectors = Elements([{"targets": document} for document in documents], {"targets": TOKENS})
    features = dict.fromkeys(("inputs", "targets"), Feature(vocabulary))
    lengths = {"inputs": 80, "targets": 80}
    examples = masked_lm(vectors, lengths, features, noise_density=0.4, mask_share=1.0, whole_documents=True)
    (rows,) = batched(examples, lengths, 8, whole=False, packed=True)
    shown = model_features(rows, 80, num_predicted=32)
    names = ("target_tokens", "input_tokens", "loss_weights", "segment_ids", "predicted_positions")
    assert set(shown) == {f"decoder_{name}" for name in names}
    targets, inputs, weights, segments, places = (shown[f"decoder_{name}"] for name in names)
    in_rows = [targets[row][segments[row] == number] for row in range(len(targets)) for number in (1, 2, 3)]
    assert sorted(len(in_row) for in_row in in_rows if len(in_row)) == [8, 21, 26, 41, 80]  # the long one is cut
    assert ((inputs == 259) == (weights == 1)).all() and (inputs == targets)[weights == 0].all()
    assert weights[targets == 1].sum() == weights[targets == 0].sum() == 0
    share = weights.sum() / (targets > 1).sum()
    assert share == pytest.approx(0.4, abs=0.03)
    assert places.shape == (len(targets), 32) and all(len(set(row)) == 32 for row in places.tolist())
    assert np.take_along_axis(weights, places, axis=1).sum() == weights.sum()
    few = model_features(rows, 80, num_predicted=8)["decoder_loss_weights"]  # the first ones of each row
    assert (few.sum(axis=1) == np.minimum(weights.sum(axis=1), 8)).all()
    assert (few == weights * (np.cumsum(weights, axis=1) <= 8)).all()


def test_spans_are_hidden_together_and_as_many_tokens():
    vocabulary = ByteVocabulary(extra_ids=1)
    tokens = np.random.default_rng(0).integers(3, 259, 512 * LENGTH).astype(np.int32)
    rows = made(masked_lm, tokens, vocabulary, mean_noise_span_length=3.0)
    _, targets, hidden = flat(rows)
    assert (targets == tokens).all() and hidden.mean() == pytest.approx(0.15, rel=0.005)
    counts = hidden.reshape(-1, LENGTH)
    assert likelihood(np.bincount(counts.sum(axis=1) - 76, minlength=2), [0.2, 0.8]) > LIKELY
    borders = np.flatnonzero(np.diff(np.pad(counts, ((0, 0), (1, 1))).astype(int).ravel()))
    lengths = np.diff(borders)[::2]
    # Of geometric runs cut at 16, each beside others that are hidden as often as all are; a row's last ones are short.
    mean = (1 - (2 / 3) ** 16) * 3 / (1 - 0.15)
    assert lengths.mean() == pytest.approx(mean, rel=0.05)
    one_by_one = flat(made(masked_lm, tokens, vocabulary, mean_noise_span_length=1.0))[2]
    assert (one_by_one == flat(made(masked_lm, tokens, vocabulary))[2]).all()


@pytest.mark.parametrize("objective", [masked_lm, whole_word_masked_lm])
def test_a_share_of_the_texts_is_causal_and_the_others_are_masked_as_without_it(objective, corpus, vocabulary):
    loaded = load_vocabulary(str(vocabulary), 1)
    tokens = real_tokens(corpus, loaded)[: 200 * 64]
    plain, mixed, causal = (made(objective, tokens, loaded, 64, causal_share=share) for share in (0.0, 0.3, 1.0))
    is_causal = np.array([(inputs % PREDICTED >= CAUSAL).all() for inputs, _ in mixed])
    assert np.flatnonzero(is_causal).tolist()[:5] == [3, 6, 9, 13, 16] and is_causal.sum() == 60
    for one, other, alone, reads in zip(plain, mixed, causal, is_causal, strict=True):
        for name in (0, 1):
            assert np.array_equal(other[name], (alone if reads else one)[name])
        assert np.array_equal(alone[0], alone[1] + PREDICTED + CAUSAL)
    rows = {name: np.stack([row[index] for row in mixed]) for index, name in enumerate(("inputs", "targets"))}
    features = model_features(rows, 64, num_predicted=64)
    assert "decoder_predicted_positions" not in features
    assert (features["decoder_causal_attention"] == ~is_causal[:, None]).all()
    assert (features["decoder_loss_weights"][is_causal] == 1).all()
    assert (features["decoder_input_tokens"][is_causal] == features["decoder_target_tokens"][is_causal]).all()
    others = {name: values[~is_causal] for name, values in rows.items()}
    for name, masked_values in model_features(others, 64, num_predicted=32).items():
        if name in features:
            assert np.array_equal(features[name][~is_causal], masked_values), name


def test_the_mask_is_the_vocabulary_s_own_or_the_first_sentinel(corpus, vocabulary, tmp_path):
    assert mask_id(ByteVocabulary(extra_ids=7)) == 265 and mask_id(ByteVocabulary(extra_ids=0)) == 258
    plain = str(vocabulary)
    masking = str(tmp_path / "own.model")
    assert mask_id(SentencePieceVocabulary(plain, extra_ids=1)) == 800
    with pytest.raises(InputError, match="no <mask> and no <extra_id_0> to hide tokens with; set DataConfig.extra_ids"):
        mask_id(SentencePieceVocabulary(plain, extra_ids=0))
    texts = corpus.read_text().splitlines()[:50]
    sentencepiece.SentencePieceTrainer.Train(
        sentence_iterator=iter(texts), model_prefix=masking.removesuffix(".model"), vocab_size=300, pad_id=0, eos_id=1,
        unk_id=2, bos_id=-1, hard_vocab_limit=False, user_defined_symbols=["<mask>"],
    )  # fmt: skip
    masked = SentencePieceVocabulary(masking, extra_ids=3)
    assert masked.tokenizer.IdToPiece(mask_id(masked)) == "<mask>"
    assert not ordinary_ids(masked)[mask_id(masked)]


def test_encoders_learn_masked_rows_and_others_do_not(tmp_path):
    encoder = tiny.language_model(attention_mask="bidirectional")
    data = DataConfig("demo_span_corruption", {"targets": 32}, 8, "byte", extra_ids=1, data_files="corpus.jsonl")
    masked = dataclasses.replace(data, objective="masked_lm")
    assert RunConfig(encoder, masked, str(tmp_path), 1).data.is_masked
    for model, of_run in ((encoder, data), (encoder, dataclasses.replace(data, objective="causal_lm"))):
        with pytest.raises(ConfigError, match="an encoder, which is 'bidirectional', learns masked_lm or"):
            RunConfig(model, of_run, str(tmp_path), 1)
    with pytest.raises(ConfigError, match="and ModelConfig.attention_mask 'causal'; an encoder"):
        RunConfig(tiny.LANGUAGE_MODEL, masked, str(tmp_path), 1)
    (task,) = parts_of(resolve_task(masked))
    own_task = TaskRegistry.add(
        "masked_of_its_own", task.source, preprocessors=task.preprocessors, output_features=task.output_features
    )
    with pytest.raises(ConfigError, match="is not set, and task masked_of_its_own has masked_lm"):
        resolve_task(dataclasses.replace(data, mixture_or_task_name=own_task.name))
