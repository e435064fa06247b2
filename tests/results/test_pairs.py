"""Minimal pairs: likelihoods equal transformers', and layouts are read."""

import csv
import dataclasses
import json
import random
import re
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers

import limba
from limba.config import InputError
from limba.tools.results.kinds.bits import BitsPerByte
from limba.tools.results.kinds.pairs import MinimalPairs, Pair, gap, likelihoods, outcome
from limba.tools.results.scoring import open_scorers
from tests import tiny
from tests.export.runs import folder_of
from tests.formats.test_decoder_only import GPT2
from tests.tiny import MODERN

SMALL = {"vocab_size": 1_024, "emb_dim": 32, "num_heads": 2, "num_kv_heads": None, "head_dim": 16, "mlp_dim": 64}
T5 = tiny.model(**SMALL, num_encoder_layers=2, num_decoder_layers=2)


@pytest.fixture(scope="session")
def all_pairs(corpus: Path) -> list[Pair]:
    """50 pairs from real text: one word is another one."""
    chosen = random.Random(0)
    texts = [json.loads(line)["text"].split() for line in corpus.read_text().splitlines()]
    pairs = []
    while len(pairs) < 50:
        words = (text := chosen.choice(texts))[: chosen.randint(4, 12)]
        index = chosen.randrange(len(words))
        other = chosen.choice(chosen.choice(texts))
        if other != words[index] and re.fullmatch(r"\w+", other) and re.fullmatch(r"\w+", words[index]):
            changed = [*words[:index], other, *words[index + 1 :]]
            pairs.append(Pair(" ".join(words), " ".join(changed), "a" if len(pairs) % 2 else "b"))
        assert text
    return pairs


@pytest.mark.slow
def test_a_t5_finds_the_words_in_the_gap_as_likely_as_transformers(all_pairs, vocabulary, tmp_path) -> None:
    folder = folder_of(T5, vocabulary, tmp_path)
    good, bad = likelihoods(open_scorers(str(folder))[0], all_pairs)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    network = transformers.T5ForConditionalGeneration.from_pretrained(folder).eval()
    for number, pair in enumerate(all_pairs):
        first = pair[0].split()
        second = pair[1].split()
        index = next(i for i in range(len(first)) if first[i] != second[i])
        words = [first[index], second[index]]
        read = " ".join([*first[:index], "<extra_id_0>", *first[index + 1 :]])
        for word, ours in zip(words, (good[number], bad[number]), strict=True):
            labels = tokenizer(f"<extra_id_0> {word} <extra_id_1>", return_tensors="pt").input_ids
            with torch.no_grad():
                loss = network(input_ids=tokenizer(read, return_tensors="pt").input_ids, labels=labels).loss
            assert ours == pytest.approx(-float(loss) * labels.shape[1], abs=1e-4), (read, word)


LANGUAGE_MODELS = {
    "llama": tiny.language_model(**SMALL, num_decoder_layers=2),
    "gpt2": dataclasses.replace(GPT2, vocab_size=1_024),
}


# What networks of another layout compute is compared in tests/model/; here it is how a text becomes a row.
@pytest.mark.parametrize("name", ["llama", pytest.param("gpt2", marks=pytest.mark.night)])
@pytest.mark.slow
def test_a_language_model_finds_sentences_as_likely_as_transformers(name, all_pairs, vocabulary, tmp_path) -> None:
    folder = folder_of(LANGUAGE_MODELS[name], vocabulary, tmp_path)
    of_sides = likelihoods(open_scorers(str(folder))[0], all_pairs)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    network = transformers.AutoModelForCausalLM.from_pretrained(folder).eval()
    for side, ours in enumerate(of_sides):
        for pair, likelihood in zip(all_pairs, ours, strict=True):
            ids = tokenizer(pair[side], return_tensors="pt").input_ids  # begins with the start
            with torch.no_grad():
                logits = torch.log_softmax(network(ids).logits[0, :-1], dim=-1)
            theirs = logits.gather(1, ids[0, 1:, None]).sum()
            assert likelihood == pytest.approx(float(theirs), abs=1e-4), pair


ENCODERS = {"eurobert": tiny.language_model(**SMALL, attention_mask="bidirectional")}
ENCODERS["modernbert"] = dataclasses.replace(MODERN, **SMALL)


@pytest.mark.parametrize("name", ["eurobert", pytest.param("modernbert", marks=pytest.mark.night)])
@pytest.mark.slow
def test_an_encoder_finds_sentences_as_likely_as_transformers_word_by_word(
    name, all_pairs, vocabulary, tmp_path
) -> None:
    folder = folder_of(ENCODERS[name], vocabulary, tmp_path)
    pairs = all_pairs[:20]
    of_sides = likelihoods(open_scorers(str(folder))[0], pairs)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    network = transformers.AutoModelForMaskedLM.from_pretrained(folder).eval()
    assert "Bert" in type(network).__name__
    num_hidden = []
    for side, ours in enumerate(of_sides):
        for pair, likelihood in zip(pairs, ours, strict=True):
            ids = tokenizer(pair[side], return_tensors="pt").input_ids[0]
            words = np.cumsum([piece.startswith("▁") for piece in tokenizer.convert_ids_to_tokens(ids[:-1])])
            rows = ids.repeat(len(words), 1)  # a row for each token but the end of sequence
            for index, word in enumerate(words):
                later = [i for i in range(index, len(words)) if words[i] == word]
                rows[index, later] = tokenizer.mask_token_id
                num_hidden.append(len(later))
            with torch.no_grad():
                logits = torch.log_softmax(network(rows).logits, dim=-1)
            theirs = sum(logits[index, index, ids[index]] for index in range(len(words)))
            assert likelihood == pytest.approx(float(theirs), abs=1e-4), pair
    assert max(num_hidden) > 2 and np.mean(num_hidden) > 1.2, "words of several tokens"


def test_an_encoder_scores_a_text_after_another_by_what_it_would_fill(vocabulary, tmp_path) -> None:
    trained = limba.load(folder_of(ENCODERS["eurobert"], vocabulary, tmp_path))
    word = next(word for word in ("the", "of", "is", "module") if len(trained.vocabulary.encode(word)) == 1)
    whole, last, empty = trained.log_likelihoods([("", f"One of {word}"), ("One of", word), ("One of", "")])
    assert whole < last < 0 == empty
    fills = {fill.text: fill.probability for fill in trained.fill("One of <mask>", top=1_000)[0]}
    assert last == pytest.approx(np.log(fills[word]), abs=1e-4)


def test_the_share_of_right_pairs_has_parts_and_an_interval() -> None:
    pairs = [Pair("It is here", "It are here", "a" if number % 2 else "b") for number in range(200)]
    good = np.zeros(200)
    bad = np.tile([1.0, 1.0, -1.0, 1.0], 50)
    result = outcome(pairs, good, bad)
    assert result.figures == {"accuracy": 25.0} and result.parts == {"a": 0.0, "b": 50.0}
    low, high = result.intervals["accuracy"]
    assert 17 < low < 21 and 29 < high < 33, "1.96 x the deviation of a share of 200: 6"
    low, high = result.intervals["b"]
    assert 38 < low < 43 and 57 < high < 62 and result.intervals["a"] == [0, 0], "of a share of 100: 10"


@pytest.mark.parametrize(
    ("good", "bad", "read", "words"),
    [
        ("Who sees him?", "Who see him?", "Who <extra_id_0> him?", ("sees", "see")),
        ("彼が行く", "彼を行く", "彼 <extra_id_0> 行く", ("が", "を")),
        ("It is here", "It here", "<extra_id_0> here", ("It is", "It")),
    ],
)
def test_what_differs_becomes_the_gap(good, bad, read, words) -> None:
    assert gap(good, bad) == (read, words)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("multi.tsv", "idx\tsen\twrong_sen\tphenomenon\n0\tA b.\tA c.\tSV-#\n"),
        ("blimp.jsonl", '{"sentence_good": "A b.", "sentence_bad": "A c.", "UID": "SV-#"}\n'),
        ("jblimp.jsonl", '{"good_sentence": "A b.", "bad_sentence": "A c.", "phenomenon": "SV-#"}\n'),
        ("own.tsv", "good\tbad\tphenomenon\nA b.\tA c.\tSV-#\n"),
    ],
)
def test_layouts_are_known_by_their_columns(name, text, tmp_path) -> None:
    (tmp_path / name).write_text(text)
    assert MinimalPairs("pairs", name).read(str(tmp_path)) == [Pair("A b.", "A c.", "SV-#")]


def test_a_file_of_multiblimp_is_read_as_it_is_published(tmp_path) -> None:
    """As pandas writes it: an index, columns that are not read, and quotes around a field with a quote in it."""
    columns = ["", "sen", "wrong_sen", "prefix", "child", "swap_head", "feature_vals", "phenomenon"]
    quoted = ['Ea zice: "da".', 'Ea zic: "da".', "Ea", "Ea", "zic", "SG -> PL", "SV-#"]
    plain = ["Copiii merg.", "Copiii merge.", "Copiii", "Copiii", "merge", "PL -> SG", "SV-#"]
    with (tmp_path / "data.tsv").open("w", newline="") as file:
        table = csv.writer(file, delimiter="\t", lineterminator="\n")
        table.writerows([columns, ["0", *quoted], ["1", *plain]])
    assert '"Ea zice: ""da""."' in (tmp_path / "data.tsv").read_text()
    pairs = MinimalPairs("pairs", "data.tsv").read(str(tmp_path))
    assert pairs == [Pair(*quoted[:2], "SV-#"), Pair(*plain[:2], "SV-#")]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("good\tx\nA\tB\n", "line 1 has the columns good, x; give sen and wrong_sen"),
        ("good\tbad\nA\n", "line 2 has 1 fields and the header 2"),
        ("good\tbad\nA\tA\n", "line 2: the columns good and bad need two sentences that differ"),
        ("", "has no rows; copy it again"),
    ],
)
def test_another_layout_is_said_by_line_and_column(text, says, tmp_path) -> None:
    (tmp_path / "pairs.tsv").write_text(text)
    with pytest.raises(InputError, match=re.escape(says)):
        MinimalPairs("pairs", "pairs.tsv").read(str(tmp_path))


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        (
            "p.jsonl",
            '{"good": "A b", "bad": NaN}',
            "line 1: the column bad holds nan, of type float, not a text",
        ),
        ("p.jsonl", '{"good": "A \\ud800", "bad": "A ?"}', "p.jsonl line 1: the columns good and bad need two sen"),
        (
            "p.jsonl",
            '{"good": "A", "bad": "B", "phenomenon": null}',
            "line 1: the column phenomenon holds null",
        ),
        ("p.jsonl", "[" * 100_000, "p.jsonl line 1 is not JSON (it is nested too deeply)"),
        ("p.tsv", "good\tbad\n", "p.tsv has no rows; copy it again"),
        ("p.jsonl", "", "p.jsonl has no rows; copy it again"),
    ],
)
def test_damaged_pairs_are_one_sentence_before_anything_is_measured(name, content, says, tmp_path) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(InputError) as caught:
        MinimalPairs("pairs", name).read(str(tmp_path))
    assert says in str(caught.value) and "\n" not in str(caught.value), caught.value


def test_odd_letters_and_long_cells_are_read_and_can_be_written(tmp_path) -> None:
    """Half a letter becomes a question mark; a cell may be longer than Python's own reader of tables allows."""
    (tmp_path / "p.jsonl").write_text('{"good": "A b", "bad": "A c", "phenomenon": "x\\ud800"}\n')
    (pair,) = MinimalPairs("pairs", "p.jsonl").read(str(tmp_path))
    assert pair.phenomenon.encode() == b"x?"
    long = "x " * 100_000
    (tmp_path / "p.tsv").write_text(f"good\tbad\n{long}a\t{long}b\n")
    assert MinimalPairs("pairs", "p.tsv").read(str(tmp_path)) == [Pair(f"{long}a", f"{long}b", "all")]


@pytest.mark.parametrize("texts", [5, (), (5,), ("",), None])
def test_texts_that_are_no_names_of_files_are_refused(texts) -> None:
    with pytest.raises(InputError, match=r"BitsPerByte\.texts is "):
        BitsPerByte("text", texts)
