"""Every objective keeps all text, corrupts as much as it says, and repeats exactly; UL2 is the paper's mixture."""

import hashlib
import json
import re
import sys
import types
from pathlib import Path

import numpy as np
import pytest
import seqio
import tensorflow as tf

from limba.config import OBJECTIVES as NAMES
from limba.config import ConfigError, DataConfig, InputError
from limba.config.data import Objective
from limba.data.dataset import TOKENS, Dataset, Elements
from limba.data.draws import Draws, Purpose
from limba.data.objectives import choice, denoisers, span_corruption, tokenize_documents, whole_words
from limba.data.objectives.choice import function_of
from limba.data.packing import PREDICTED
from limba.data.vocabulary.load import load_vocabulary
from limba.data.vocabulary.tokenizers import SPACE
from tests.data import test_documents
from tests.data.objectives.test_objectives import features

ROOT = Path(__file__).parents[3]
BYTES = seqio.ByteVocabulary(200)
TOP = BYTES.vocab_size - 1
MODES = denoisers.mode_ids(BYTES)


def made(objective, tokens, lengths, map_seed=1, vocabulary=BYTES, **choices) -> tf.data.Dataset:
    vectors = tf.data.Dataset.from_tensors({"targets": tf.constant(tokens, tf.int32)})
    with seqio.map_seed_manager(map_seed):
        return function_of(objective)(vectors, lengths, features(vocabulary), **choices)


def text(num_tokens: int) -> np.ndarray:
    places = np.arange(num_tokens)
    return np.where(places % 4 == 1, ord(" ") + 3, places % 251 + 3).astype(np.int32)


def joined(objective: str, example: dict[str, np.ndarray], vocabulary: seqio.Vocabulary = BYTES) -> list[int]:
    """Puts a row together again, knowing only where the objective's own tokens stand."""
    if NAMES[objective].is_masked:
        inputs = example["inputs"]
        targets = example["targets"]
        assert len(inputs) == len(targets) and (inputs == targets)[inputs < PREDICTED].all()
    if not NAMES[objective].has_inputs:
        return example["targets"].tolist()
    # The last row of a stream may come padded.
    inputs, targets = (np.trim_zeros(example[name], "b").tolist() for name in ("inputs", "targets"))
    assert inputs[-1] == targets[-1] == 1
    inputs = inputs[:-1]
    targets = targets[:-1]
    if objective == "ul2":
        assert inputs.pop(0) in MODES.values()
    top = vocabulary.vocab_size - 1
    spans = {}
    last = None
    for token in targets:
        if token > top - 190:
            last = token
            spans[token] = []
        else:
            spans.setdefault(last, []).append(token)
    assert list(spans) in ([None], []) or list(spans) == [top - number for number in range(len(spans))]
    if None in spans:
        return inputs + spans[None]
    result = []
    for token in inputs:
        result += spans.pop(token) if token > top - 190 else [token]
    assert not any(spans.values())  # t5 ends a row of one token with a sentinel for nothing
    return result


@pytest.mark.parametrize("num_tokens", [1, 2, 61, 5003])
@pytest.mark.parametrize("objective", NAMES)
def test_joining_gives_the_text_back(objective, num_tokens):
    lengths = {"inputs": 66 if NAMES[objective].is_masked else 64, "targets": 66}
    rows = list(made(objective, text(num_tokens), lengths).as_numpy_iterator())
    assert [token for row in rows for token in joined(objective, row)] == text(num_tokens).tolist()
    assert all(len(row[name]) <= lengths[name] and np.trim_zeros(row[name], "b").all() for row in rows for name in row)


def test_every_objective_is_tested_and_documented():
    """A new one needs a recorded digest, a case of documents, a line of the page, and its name where gin explains."""
    assert set(RECORDED) == set(NAMES), "record the digest of its rows"
    assert set(NAMES) <= {name.split()[0] for name in test_documents.OBJECTIVES}
    table = (ROOT / "docs/settings.md").read_text().partition("| `OBJECTIVE` | makes |")[2].partition("\n\n")[0]
    assert re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE) == list(NAMES)
    comment = re.search(r"^OBJECTIVE = None  # .*; (.*)$", (ROOT / "gin/runs/pretrain.gin").read_text(), re.MULTILINE)
    assert comment and comment[1].split(", ") == [name for name, objective in NAMES.items() if objective.has_inputs]


def test_a_new_objective_is_its_module_and_a_line_of_the_table(monkeypatch, tmp_path):
    """The tokens of a row the other way round, for both kinds of networks: known to all that asks for objectives."""
    module = types.ModuleType("limba.data.objectives.made_up")

    def backwards(dataset, sequence_length, output_features):
        rows = dataset.unbatch().batch(sequence_length["inputs"] - 1, drop_remainder=True)
        ends = lambda row: tf.concat([row, [1]], 0)
        return rows.map(lambda row: {"inputs": ends(row["targets"]), "targets": ends(row["targets"][::-1])})

    module.backwards = backwards
    module.backwards_lengths = lambda lengths: {"inputs": lengths["inputs"], "targets": lengths["inputs"]}
    monkeypatch.setitem(sys.modules, module.__name__, module)
    with pytest.raises(ConfigError, match="DataConfig.objective is 'backwards'; choose one of span_corruption"):
        DataConfig("demo", {"inputs": 16}, 4, objective="backwards")
    monkeypatch.setitem(NAMES, "backwards", Objective("made_up", for_decoder=True))
    (row, *_) = made("backwards", text(60), {"inputs": 16}).as_numpy_iterator()
    assert row["targets"].tolist() == [*row["inputs"][-2::-1], 1]
    task = seqio.Task(
        "backwards",
        seqio.FunctionDataSource(lambda split, shuffle_files, seed=None: None, ["train"]),
        {name: seqio.Feature(BYTES) for name in ("inputs", "targets")},
        [tokenize_documents, span_corruption],
    )
    chosen = choice.with_objective(task, "backwards")
    assert chosen.preprocessors == (tokenize_documents, backwards) or [*chosen.preprocessors][-1] is backwards
    assert choice.derive_lengths(chosen, {"inputs": 16}) == {"inputs": 16, "targets": 16}
    assert choice.reads_prefix(chosen, {"targets": 16}) and not choice.reads_prefix(task, {"targets": 16})
    assert choice.of_one_sequence(chosen, packed=False).preprocessors
    assert DataConfig("demo", {"targets": 16}, 4, objective="backwards").sequence_length == 16
    monkeypatch.setitem(NAMES, "backwards", Objective("made_up"))
    with pytest.raises(ConfigError, match="without inputs; choose one of prefix_lm, lm_adaptation, causal_lm"):
        DataConfig("demo", {"targets": 16}, 4, objective="backwards")
    with pytest.raises(ConfigError, match="is backwards, whose inputs an encoder reads; set DataConfig.objective to"):
        choice.of_one_sequence(chosen, packed=False)


@pytest.mark.parametrize("denoiser", denoisers.UL2, ids=str)
def test_denoisers_corrupt_as_in_the_papers_table(denoiser):
    raw, longest = denoisers.denoiser_lengths(512, denoiser)
    num_rows = 6_000 if denoiser.mean_noise_span_length else 20_000
    tokens = np.full([num_rows, raw], 5, np.int32)
    words = Draws(seed=1).words(Purpose.ROWS)
    if denoiser.mean_noise_span_length is None:
        _, (_, is_end) = denoisers.split_end(tokens, words, denoiser.noise_density)
        ends = is_end.sum(1)
        assert ends.mean() / raw == pytest.approx(0.25, rel=0.02)
        assert ends.min() == 1
        assert ends.max() == longest - 1
        # Uniform: each tenth of the lengths has a tenth of the rows.
        np.testing.assert_allclose(np.histogram(ends, 10, (0, longest))[0] / num_rows, 0.1, atol=0.015)
        return
    density = denoiser.noise_density
    mean = denoiser.mean_noise_span_length
    (inputs, stays), (targets, target_stays) = denoisers.corrupt_spans(tokens, words, density, mean, TOP)
    num_spans = ((targets > TOP - 190) & target_stays).sum(1)
    noise = ((targets == 5) & target_stays).sum(1)
    assert noise.sum() / (num_rows * raw) == pytest.approx(denoiser.noise_density, rel=0.02)
    assert noise.sum() / num_spans.sum() == pytest.approx(denoiser.mean_noise_span_length, rel=0.02)
    assert set(num_spans) <= {num_spans.min(), num_spans.min() + 1}
    assert stays.sum(1).max() + 2 <= 512
    assert target_stays.sum(1).max() + 1 == longest
    assert (((inputs > TOP - 190) & stays).sum(1) == num_spans).all()


def test_ul2_mixes_the_seven_evenly_and_names_each():
    raws = [denoisers.denoiser_lengths(128, denoiser)[0] for denoiser in denoisers.UL2]
    assert len(set(raws)) == 7
    tokens = text(4 * 5 * sum(raws))
    rows = list(made("ul2", tokens, {"inputs": 128}).as_numpy_iterator())
    assert len(rows) == 140
    orders = set()
    for start in range(0, 140, 7):
        cycle = [raws.index(len(joined("ul2", row))) for row in rows[start : start + 7]]
        assert sorted(cycle) == list(range(7))
        orders.add(tuple(cycle))
        for row, number in zip(rows[start:], cycle, strict=False):
            assert row["inputs"][0] == MODES[denoisers.UL2[number].mode]
    assert len(orders) > 15
    assert {len(row["inputs"]) for row in rows if row["inputs"][0] != MODES["S"]} <= {127, 128}


def test_shares_and_modes_can_be_changed():
    half = tuple(
        denoisers.Denoiser(d.mode, d.mean_noise_span_length, d.noise_density, 6 if d.mode == "S" else 1)
        for d in denoisers.UL2
    )
    rows = list(made("ul2", text(12_000), {"inputs": 64}, denoisers=half).as_numpy_iterator())
    whole = rows[: len(rows) // 12 * 12]
    assert sum(row["inputs"][0] == MODES["S"] for row in whole) == len(whole) // 2
    plain = list(made("ul2", text(3_000), {"inputs": 64}, mode_tokens=False).as_numpy_iterator())
    assert not any(row["inputs"][0] in MODES.values() for row in plain)


def test_modes_are_the_last_sentinels(vocabulary):
    loaded = load_vocabulary(str(vocabulary), 100)
    ids = [denoisers.mode_ids(loaded)[mode] for mode in "RSX"]
    assert [loaded.tokenizer.IdToPiece(token) for token in ids] == [f"▁<extra_id_{n}>" for n in (97, 98, 99)]


def test_what_ul2_cannot_do_is_refused():
    with pytest.raises(InputError, match="needs 131 .* vocabulary has 100; set DataConfig.extra_ids to 131"):
        made("ul2", text(9), {"inputs": 512}, vocabulary=seqio.ByteVocabulary(100))
    made("ul2", text(9), {"inputs": 384}, vocabulary=seqio.ByteVocabulary(100))
    with pytest.raises(InputError, match="mode tokens needs 3"):
        made("ul2", text(9), {"inputs": 64}, vocabulary=seqio.ByteVocabulary(2))
    with pytest.raises(InputError, match=r"'targets' 256, and UL2 of 512 inputs needs 512"):
        made("ul2", text(9), {"inputs": 512, "targets": 256})
    with pytest.raises(InputError, match="too short for UL2"):
        made("ul2", text(9), {"inputs": 12})
    with pytest.raises(InputError, match="not possible"):
        denoisers.Denoiser("Q", 3.0, 0.15)


def real_tokens(corpus, vocabulary) -> np.ndarray:
    texts = [json.loads(line)["text"] for line in corpus.read_text().splitlines()]
    dataset = tokenize_documents(tf.data.Dataset.from_tensor_slices({"text": texts}), features(vocabulary))
    return np.concatenate([part["targets"] for part in dataset.as_numpy_iterator()])


@pytest.mark.slow
def test_whole_words_are_whole(corpus, vocabulary):
    loaded = load_vocabulary(str(vocabulary), 100)
    tokens = real_tokens(corpus, loaded)
    rows = list(made("whole_word_span_corruption", tokens, {"inputs": 256}, vocabulary=loaded).as_numpy_iterator())
    assert [token for row in rows for token in joined_words(row, loaded)[0]] == tokens.tolist()
    mask = np.concatenate([joined_words(row, loaded)[1] for row in rows])
    assert mask.mean() == pytest.approx(0.15, rel=0.02)
    pieces = [loaded.tokenizer.IdToPiece(number) for number in range(loaded.vocab_size)]
    distance = 0
    legal = []
    for token in tokens.tolist():
        distance = 0 if pieces[token].startswith(SPACE) else distance + 1
        legal.append(distance % whole_words.LONGEST_WORD == 0)
    edges = np.flatnonzero(mask[1:] != mask[:-1]) + 1
    assert len(edges) > 5_000
    assert all(legal[edge] for edge in edges)
    # t5's spans break words: the same test finds them.
    usual = list(made("span_corruption", tokens[:50_000], {"inputs": 256}, vocabulary=loaded).as_numpy_iterator())
    broken = np.concatenate([joined_words(row, loaded)[1] for row in usual])
    assert not all(legal[edge] for edge in np.flatnonzero(broken[1:] != broken[:-1]) + 1)
    fill = np.mean([len(row["inputs"]) for row in rows]) / 256
    assert fill > 0.9


def joined_words(row: dict[str, np.ndarray], vocabulary: seqio.Vocabulary) -> tuple[list[int], list[bool]]:
    """Returns the row's tokens and which of them are noise."""
    first = vocabulary.vocab_size - 100
    parts = np.split(row["targets"][:-1], np.flatnonzero(row["targets"][:-1] >= first))
    spans = {int(part[0]): part[1:].tolist() for part in parts if len(part)}
    tokens = []
    mask = []
    for token in row["inputs"][:-1].tolist():
        span = spans.get(token)
        tokens += [token] if span is None else span
        mask += [False] if span is None else [True] * len(span)
    return tokens, mask


def test_words_without_a_marker_are_cut_and_lost_nowhere():
    tokens = np.full([3000], 100, np.int32)
    tokens[[0, 2500, 2999]] = 35  # a space before two enormous words
    rows = list(made("whole_word_span_corruption", tokens, {"inputs": 64}).as_numpy_iterator())
    assert [token for row in rows for token in joined("whole_word_span_corruption", row)] == tokens.tolist()
    assert sum((row["targets"] == 100).sum() for row in rows) / 3000 == pytest.approx(0.15, rel=0.15)
    with pytest.raises(InputError, match="mark where words begin"):
        whole_words.begins_word(seqio.PassThroughVocabulary(300))


def test_splits_are_where_they_should_be():
    rows = list(made("prefix_lm", text(64 * 32 * 40), {"inputs": 64}).as_numpy_iterator())
    prefixes = np.array([len(row["inputs"]) - 1 for row in rows])
    assert prefixes.min() == 1
    assert prefixes.max() == 63
    np.testing.assert_allclose(np.histogram(prefixes, 7, (1, 64))[0] / len(rows), 1 / 7, atol=0.03)
    adapted = list(made("lm_adaptation", text(100 * 9), {"inputs": 64, "targets": 38}).as_numpy_iterator())
    causal = list(made("causal_lm", text(64 * 9), {"inputs": 64}).as_numpy_iterator())
    assert {(len(row["inputs"]), len(row["targets"])) for row in adapted} == {(64, 38)}
    assert {len(row["targets"]) for row in causal} == {64}
    assert len(adapted) == len(causal) == 9
    assert set(causal[0]) == {"targets"}
    with pytest.raises(InputError, match="split of prefix_lm is 'middle', not 'random'; lm_adaptation splits in the m"):
        made("prefix_lm", text(9), {"inputs": 64}, split="middle")
    with pytest.raises(InputError, match=r"'targets' 32, and prefix LM of 64 inputs needs 64"):
        made("prefix_lm", text(9), {"inputs": 64, "targets": 32})


def digest(rows: list[dict[str, np.ndarray]]) -> str:
    data = b"".join(np.trim_zeros(row[name], "b").astype("<i4").tobytes() for row in rows for name in sorted(row))
    return hashlib.blake2b(data, digest_size=6).hexdigest()


# Of 3,000 tokens at 64 inputs under seed 1: a change here changes the rows of every run that resumes with another
# version.
RECORDED = {
    "span_corruption": "a7024b385053",
    "whole_word_span_corruption": "50b61d1fc028",
    "ul2": "b9d8f21b847c",
    "prefix_lm": "5dfd40680528",
    "lm_adaptation": "3a3d7e1d4871",
    "causal_lm": "6946cc437382",
    "masked_lm": "efa304fe208e",
    "whole_word_masked_lm": "71f1372eafa9",
}


@pytest.mark.parametrize("objective", NAMES)
def test_rows_are_the_same_for_ever_and_shards_differ(objective):
    one, again, other = (
        list(made(objective, text(3_000), {"inputs": 64}, seed).as_numpy_iterator()) for seed in (1, 1, 8)
    )
    assert digest(one) == digest(again) == RECORDED[objective]
    if objective not in ("lm_adaptation", "causal_lm"):
        assert digest(one) != digest(other)


@pytest.mark.parametrize("objective", NAMES)
def test_a_saved_data_position_resumes_exactly(objective):
    def dataset() -> Dataset:
        vectors = Elements([{"targets": text(9_000)}], {"targets": TOKENS})
        return function_of(objective)(vectors, {"inputs": 64}, features(BYTES))

    whole = list(dataset().read())
    place = json.loads(json.dumps(whole[36].place))
    expected = [item.value for item in whole[37:]]
    values = [item.value for item in dataset().read(place)]
    assert len(expected) > 30
    assert digest(values) == digest(expected)
    assert len(values) == len(expected)
