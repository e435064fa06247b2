"""Minimal pairs: likelihoods equal transformers', layouts are read, and a treebank's pairs are wrong where they say."""

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
from limba.cli import main
from limba.config import InputError
from limba.tools.results import make_pairs, ngrams
from limba.tools.results.kinds.bits import BitsPerByte
from limba.tools.results.kinds.pairs import MinimalPairs, Pair, gap, likelihoods, outcome
from limba.tools.results.suites import read_suite, read_task
from tests import tiny
from tests.export.runs import folder_of
from tests.formats.test_decoder_only import GPT2
from tests.tiny import MODERN

TREEBANK = """# sent_id = 1
# text = Fata merge, fetele merg.
1\tFata\tfată\tNOUN\t_\tGender=Fem|Number=Sing\t2\tnsubj\t_\t_
2\tmerge\tmerge\tVERB\t_\tMood=Ind|Number=Sing|Person=3|VerbForm=Fin\t0\troot\t_\tSpaceAfter=No
3\t,\t,\tPUNCT\t_\t_\t5\tpunct\t_\t_
4\tfetele\tfată\tNOUN\t_\tGender=Fem|Number=Plur\t5\tnsubj\t_\t_
5\tmerg\tmerge\tVERB\t_\tMood=Ind|Number=Plur|Person=3|VerbForm=Fin\t2\tparataxis\t_\tSpaceAfter=No
6\t.\t.\tPUNCT\t_\t_\t2\tpunct\t_\t_

# sent_id = 2
# text = Merge ea.
1\tMerge\tmerge\tVERB\t_\tMood=Ind|Number=Sing|Person=3|VerbForm=Fin\t0\troot\t_\t_
2\tea\tel\tPRON\t_\tGender=Fem|Number=Sing|Person=3\t1\tnsubj\t_\tSpaceAfter=No
3\t.\t.\tPUNCT\t_\t_\t1\tpunct\t_\t_
"""


@pytest.fixture(scope="session")
def given(corpus: Path) -> list[Pair]:
    """200 pairs from real text: one word is another one. Transformers computes some of them."""
    chosen = random.Random(0)
    texts = [json.loads(line)["text"].split() for line in corpus.read_text().splitlines()]
    found = []
    while len(found) < 200:
        words = (text := chosen.choice(texts))[: chosen.randint(4, 12)]
        place, other = chosen.randrange(len(words)), chosen.choice(chosen.choice(texts))
        if other != words[place] and re.fullmatch(r"\w+", other) and re.fullmatch(r"\w+", words[place]):
            changed = [*words[:place], other, *words[place + 1 :]]
            found.append(Pair(" ".join(words), " ".join(changed), "a" if len(found) % 2 else "b"))
        assert text
    return found


def test_a_t5_finds_the_words_in_the_gap_as_likely_as_transformers(given, vocabulary, tmp_path) -> None:
    folder = folder_of(tiny.model(vocab_size=1_024), vocabulary, tmp_path)
    good, bad = likelihoods(limba.load(folder), given)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    network = transformers.T5ForConditionalGeneration.from_pretrained(folder).eval()
    for number, pair in list(enumerate(given))[::4]:
        first, second, words = *(each.split() for each in pair[:2]), []
        place = next(i for i in range(len(first)) if first[i] != second[i])
        words = [first[place], second[place]]
        read = " ".join([*first[:place], "<extra_id_0>", *first[place + 1 :]])
        for word, ours in zip(words, (good[number], bad[number]), strict=True):
            labels = tokenizer(f"<extra_id_0> {word} <extra_id_1>", return_tensors="pt").input_ids
            with torch.no_grad():
                loss = network(input_ids=tokenizer(read, return_tensors="pt").input_ids, labels=labels).loss
            assert ours == pytest.approx(-float(loss) * labels.shape[1], abs=1e-4), (read, word)


LANGUAGE_MODELS = {
    "llama": tiny.language_model(vocab_size=1_024),
    "gpt2": dataclasses.replace(GPT2, vocab_size=1_024),
}


@pytest.mark.parametrize("name", LANGUAGE_MODELS)
def test_a_language_model_finds_sentences_as_likely_as_transformers(name, given, vocabulary, tmp_path) -> None:
    folder = folder_of(LANGUAGE_MODELS[name], vocabulary, tmp_path)
    found = likelihoods(limba.load(folder), given)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    network = transformers.AutoModelForCausalLM.from_pretrained(folder).eval()
    for side, ours in enumerate(found):
        for pair, likelihood in list(zip(given, ours, strict=True))[::4]:
            ids = tokenizer(pair[side], return_tensors="pt").input_ids  # begins with the start
            with torch.no_grad():
                logits = torch.log_softmax(network(ids).logits[0, :-1], dim=-1)
            theirs = logits.gather(1, ids[0, 1:, None]).sum()
            assert likelihood == pytest.approx(float(theirs), abs=1e-4), pair


SMALL = {"vocab_size": 1_024, "emb_dim": 32, "num_heads": 2, "num_kv_heads": None, "head_dim": 16, "mlp_dim": 64}
ENCODERS = {"eurobert": tiny.language_model(**SMALL, attention_mask="bidirectional")}
ENCODERS["modernbert"] = dataclasses.replace(MODERN, **SMALL)


@pytest.mark.parametrize("name", ENCODERS)
def test_an_encoder_finds_sentences_as_likely_as_transformers_word_by_word(name, given, vocabulary, tmp_path) -> None:
    folder = folder_of(ENCODERS[name], vocabulary, tmp_path)
    pairs = given[:20]
    found = likelihoods(limba.load(folder), pairs)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    network = transformers.AutoModelForMaskedLM.from_pretrained(folder).eval()
    assert "Bert" in type(network).__name__
    num_hidden = []
    for side, ours in enumerate(found):
        for pair, likelihood in zip(pairs, ours, strict=True):
            ids = tokenizer(pair[side], return_tensors="pt").input_ids[0]
            words = np.cumsum([each.startswith("▁") for each in tokenizer.convert_ids_to_tokens(ids[:-1])])
            rows = ids.repeat(len(words), 1)  # a row for each token but the end of sequence
            for place, word in enumerate(words):
                later = [i for i in range(place, len(words)) if words[i] == word]
                rows[place, later] = tokenizer.mask_token_id
                num_hidden.append(len(later))
            with torch.no_grad():
                logits = torch.log_softmax(network(rows).logits, dim=-1)
            theirs = sum(logits[place, place, ids[place]] for place in range(len(words)))
            assert likelihood == pytest.approx(float(theirs), abs=1e-4), pair
    assert max(num_hidden) > 2 and np.mean(num_hidden) > 1.2, "words of several tokens"


def test_an_encoder_scores_a_text_after_another_by_what_it_would_fill(vocabulary, tmp_path) -> None:
    trained = limba.load(folder_of(ENCODERS["eurobert"], vocabulary, tmp_path))
    word = next(word for word in ("the", "of", "is", "module") if len(trained.vocabulary.encode(word)) == 1)
    whole, last, empty = trained.log_likelihoods([("", f"One of {word}"), ("One of", word), ("One of", "")])
    assert whole < last < 0 == empty
    fills = {fill.text: fill.probability for fill in trained.fill("One of <mask>", top=1_000)[0]}
    assert last == pytest.approx(np.log(fills[word]), abs=1e-4)


def test_the_share_of_right_pairs_has_parts_and_an_interval(given) -> None:
    good, bad = np.zeros(200), np.tile([1.0, 1.0, -1.0, 1.0], 50)
    found = outcome(given, good, bad)
    assert found.figures == {"accuracy": 25.0} and found.parts == {"a": 0.0, "b": 50.0}
    low, high = found.intervals["accuracy"]
    assert 17 < low < 21 and 29 < high < 33, "1.96 x the deviation of a share of 200: 6"
    low, high = found.intervals["b"]
    assert 38 < low < 43 and 57 < high < 62 and found.intervals["a"] == [0, 0], "of a share of 100: 10"


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


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("good\tx\nA\tB\n", "line 1 has the columns good, x; give sen and wrong_sen"),
        ("good\tbad\nA\n", "line 2 has 1 fields and the header 2"),
        ("good\tbad\nA\tA\n", "line 2: the columns good and bad hold no two sentences that differ"),
        ("", "line 1 has the columns none"),
    ],
)
def test_another_layout_is_said_by_line_and_column(text, says, tmp_path) -> None:
    (tmp_path / "pairs.tsv").write_text(text)
    with pytest.raises(InputError, match=re.escape(says)):
        MinimalPairs("pairs", "pairs.tsv").read(str(tmp_path))


def test_a_treebank_gives_the_other_form_of_a_verb(tmp_path, capsys) -> None:
    (tmp_path / "a.conllu").write_text(TREEBANK)
    assert main.main(["results", "make-pairs", f"{tmp_path}/a.conllu", f"--output={tmp_path}/pairs.tsv"]) == 0
    assert "3  pairs of 2 sentences" in capsys.readouterr().out
    found = MinimalPairs("pairs", "pairs.tsv").read(str(tmp_path))
    assert [pair.bad for pair in found] == ["Fata merg, fetele merg.", "Fata merge, fetele merge.", "Merg ea."]
    assert {pair.phenomenon for pair in found} == {"subject-verb number"}


def test_a_treebank_in_another_layout_is_said(tmp_path) -> None:
    (tmp_path / "a.conllu").write_text("1\tFata\n")
    with pytest.raises(InputError, match="line 1 has 2 columns, and CoNLL-U has 10"):
        list(make_pairs.trees_of(tmp_path / "a.conllu"))


def test_n_grams_are_probabilities_and_find_what_they_have_read_likely() -> None:
    model = ngrams.trained_on("ana are mere\nana are pere\n", 4)
    for context in (b"", b"an", b"zz"):
        assert sum(model._probability(context, byte) for byte in range(256)) == pytest.approx(1)
    assert model.nats("ana are mere") < model.nats("eram ana ere")


def test_n_grams_have_not_read_the_right_sentence_that_they_score() -> None:
    rows = [("ana are mere", "ana au mere"), ("ana are  mere", "ana am mere"), ("ei au pere", "ei are pere")]
    one, other = (ngrams.trained_on(rows[place][0], 6) for place in (0, 2))
    found = ngrams.nats_of(rows, None)
    assert found[0].tolist() == [other.nats(each) for each in rows[0]], "the second half's sentence alone is read"
    assert found[2].tolist() == [ngrams.trained_on(rows[1][0], 6).nats(each) for each in rows[2]]
    assert found[1, 0] == other.nats(rows[1][0]) != one.nats(rows[1][0]), "one sentence of two pairs is in one half"
    given = ngrams.trained_on("eu am mere", 6)
    assert ngrams.nats_of(rows, "ana are mere\neu am mere\n")[2].tolist() == [given.nats(each) for each in rows[2]]
    assert ngrams.nats_of(rows[:1], None)[0] == pytest.approx([12 * np.log(256), 11 * np.log(256)])


@pytest.mark.parametrize("name", ["ro", "nb", "any"])
def test_pairs_and_bits_of_each_suite_that_is_shipped_have_a_floor_of_n_grams(name, tmp_path) -> None:
    tasks = [each for each in read_suite(name).tasks if isinstance(each, MinimalPairs | BitsPerByte)]
    for file in (each for task in tasks for each in task.files):
        (tmp_path / file).write_text("good\tbad\n" + "".join(f"ana are {n} mere\tana au {n} mere\n" for n in range(9)))
    for task in tasks:
        (figure,) = read_task(task, str(tmp_path)).floors()["n-grams"].values()
        assert (figure == 100) if isinstance(task, MinimalPairs) else (0 < figure < 4)
    assert len(tasks) == (2 if name == "any" else 1)
