"""Encoders in a table: tasks learned by a head of their own, what a head gives, and what needs an output layer."""

import dataclasses
import json
import random
from pathlib import Path

import jax
import numpy as np
import pytest

import limba
from limba.cli import main
from limba.formats.names import flatten
from limba.tools.results import protocol
from limba.tools.results.kinds.learned import (
    Classification,
    Example,
    NamedEntities,
    PartOfSpeech,
    Parts,
    Similarity,
)
from limba.tools.results.protocol import PROTOCOL
from tests import tiny
from tests.export.runs import folder_of, write_run

ENCODER = tiny.language_model(
    vocab_size=1_024, attention_mask="bidirectional", emb_dim=32, num_heads=2, num_kv_heads=2, head_dim=16, mlp_dim=64,
    num_decoder_layers=1,
)  # fmt: skip
T5_ENCODER = tiny.model(
    vocab_size=1_024, emb_dim=32, num_heads=2, head_dim=16, mlp_dim=64, num_encoder_layers=1, num_decoder_layers=0
)
NAMES = {"Ion": "PERSON", "Ana Pop": "PERSON", "Cluj": "GPE"}
SUITE = """
kind/Classification:
  train = 'train.jsonl'
  test = 'test.jsonl'
chance/Classification:
  train = 'train.jsonl'
  test = 'test.jsonl'
  label = 'drawn'
sts/Similarity:
  train = 'train.jsonl'
  test = 'test.jsonl'
  first = 'text'
  second = 'text'
  score = 'score'
tags/PartOfSpeech:
  train = 'train.conllu'
  test = 'test.conllu'
names/NamedEntities:
  train = 'train.conllu'
  test = 'test.conllu'
"""


def write_data(folder: Path) -> None:
    """Sentences of a name and a number, whose labels follow from the name, but for one that is drawn."""
    chosen = random.Random(0)
    for part, count in (("train", 160), ("test", 60)):
        rows, sentences = [], []
        for _ in range(count):
            name, number = chosen.choice(list(NAMES)), f"{chosen.random():.4f}"
            label = NAMES[name]
            row = {"text": f"{number} {name}", "label": label, "drawn": chosen.choice(["yes", "no"])}
            rows.append(json.dumps(row | {"score": 4.5 if label == "GPE" else 1.0}))
            lines = [f"1\t{number}\t_\tNUM" + "\t_" * 5 + "\tO"]
            for place, word in enumerate(name.split()):
                tag = f"{'I' if place else 'B'}-{label}"
                lines.append(f"{place + 2}\t{word}\t_\tPROPN" + "\t_" * 5 + f"\t{tag}")
            sentences.append("\n".join(lines) + "\n")
        (folder / f"{part}.jsonl").write_text("\n".join(rows) + "\n")
        (folder / f"{part}.conllu").write_text("\n".join(sentences))


@pytest.mark.night
def test_an_encoder_learns_all_that_has_labels_twice_alike(tmp_path, vocabulary, monkeypatch, capsys) -> None:
    fast = dataclasses.replace(PROTOCOL, learning_rates=(1e-2,), epochs=5, batch_size=8)
    monkeypatch.setattr(protocol, "PROTOCOL", fast)
    monkeypatch.chdir(tmp_path)
    write_data(tmp_path)
    write_run(tmp_path / "model", ENCODER)
    (tmp_path / "model" / "spiece.model").write_bytes(vocabulary.read_bytes())
    (tmp_path / "suite.gin").write_text(SUITE)
    tables = []
    for output, tasks in (("first", "kind,chance,sts,tags,names"), ("second", "chance,tags")):
        command = ["results", "model", "--suite=./suite.gin", f"--output={output}", "--seeds=2", f"--tasks={tasks}"]
        assert main.main(command) == 0, capsys.readouterr().err
        tables.append(json.loads((tmp_path / output / "results.json").read_text()))
    first, second = tables
    assert second["cells"] == [each for each in first["cells"] if each["task"] in ("chance", "tags")]
    assert second["notes"] == [each for each in first["notes"] if each.startswith(("chance", "tags"))]
    cells = {(each["task"], each["figure"], each["column"]): each for each in first["cells"]}
    mean = {(task, figure): each["mean"] for (task, figure, column), each in cells.items() if column == "model"}
    figures = {"kind": ["accuracy", "macro F1"], "sts": ["Pearson", "Spearman"], "tags": ["accuracy"]}
    for task, names in (figures | {"names": ["span F1", "precision", "recall"]}).items():
        assert all(mean[task, name] > 70 for name in names), mean  # ranks of two numbers give 77 at most
    chance = 2.58 * 100 * (0.25 / 60) ** 0.5  # 99 % of what chance gives of 60 examples
    assert abs(mean["chance", "accuracy"] - 50) < chance, mean
    assert cells["kind", "accuracy", "model"]["seeds"] == 2
    assert cells["kind", "accuracy", "majority"]["mean"] < 80
    assert "malformed outputs of 60: 0, 0" in first["notes"][0]


@pytest.mark.slow
@pytest.mark.parametrize("network", [ENCODER, T5_ENCODER], ids=["EuroBERT", "T5"])
def test_what_a_head_has_learned_is_what_the_model_gives(network, vocabulary, tmp_path) -> None:
    trained = limba.load(folder_of(network, vocabulary, tmp_path / "model"))
    texts = ["The first", "The second of them, which is longer than eight tokens, and goes on"]
    words = [["One", "of", "them"], ["is", "here"]]
    for head, given in (("classes", texts), ("score", texts), ("tags", words)):
        labels = () if head == "score" else ("no", "yes", "so")
        tuning = trained.tuning(0.0, 4, (head, *labels))
        targets = {"classes": ["yes", "so"], "score": ["0.0", "-1.5"], "tags": ["no yes so", "yes yes"]}[head]
        joined = [each if isinstance(each, str) else " ".join(each) for each in given]
        pairs = [tuning.pair(*each, (512, 8)) for each in zip(joined, targets, strict=True)]
        state = tuning.begin(seed=1)
        before = tuning.loss(state.params, pairs)
        (part,) = tuning.parts(pairs)
        assert part.widths[1] >= max(len(ids) for ids, _ in pairs), "a row holds the whole text"
        for _ in range(3):
            state = tuning.update(state, pairs, part, 1e-3, jax.random.key(0))
        assert tuning.loss(state.params, pairs) < before
        network = type(trained.network)(
            dataclasses.replace(trained.network.config, head=head, labels=labels), trained.mesh
        )
        model = dataclasses.replace(trained, network=network, params=state.params)
        if head == "tags":
            expected = [" ".join(each) for each in model.tag(words)]
        elif head == "classes":
            expected = [next(iter(each)) for each in model.classify(texts)]
        else:
            expected = [pytest.approx(each["score"], abs=1e-5) for each in model.classify(texts)]
        found = tuning.write(state.params, pairs, 8)
        assert ([float(each) for each in found] if head == "score" else found) == expected, head
        kernel = lambda seed: np.asarray(tuning.begin(seed).params["head"]["classifier"]["kernel"])  # noqa: B023
        assert (kernel(1) == kernel(1)).all() and (kernel(1) != kernel(2)).any(), "a seed draws the head"


def test_a_sentence_that_is_cut_lacks_tags_and_words_with_spaces_are_one(vocabulary, tmp_path) -> None:
    trained = limba.load(folder_of(ENCODER, vocabulary, tmp_path / "model"))
    task = PartOfSpeech("tags", "train", "test")
    example = Example("", "NUM X", "here", ("1 000", "x"), ("NUM", "X"))
    parts = Parts([example], [], [], 0, ("NUM", "X"))
    tuning = trained.tuning(0.0, 4, task.of_head(parts))
    whole, cut = (tuning.pair(*task.labeled(example, parts), (length, 8)) for length in (64, 5))
    assert np.flatnonzero(whole[1]).size == 2 and np.flatnonzero(cut[1]).size == 1 and len(cut[0]) == 5
    written = tuning.write(tuning.begin().params, [cut], 8)
    assert task.judge([example], written, parts).notes == {"malformed": 1}
    drawn, own = (flatten(tuning.begin(3, is_random).params) for is_random in (True, False))
    alike = {name for name in drawn if (np.asarray(drawn[name]) == np.asarray(own[name])).all()}
    assert "head/classifier/kernel" in alike and alike < drawn.keys() == own.keys(), "random weights, one head"


def test_names_become_tags_and_tags_names() -> None:
    task = NamedEntities("names", "train", "test")
    tokens = ("Ana", "Pop", "din", "Cluj")
    example = Example("", "", "here", tokens, spans=(("PERSON", 0, 2), ("GPE", 3, 4)))
    parts = Parts([example], [], [example], 0, ("GPE", "PERSON"))
    assert task.of_head(parts) == ("tags", "O", "B-GPE", "I-GPE", "B-PERSON", "I-PERSON")
    assert task.labeled(example, parts) == ("Ana Pop din Cluj", "B-PERSON I-PERSON O B-GPE")
    given = [task.as_text(example, "B-PERSON I-PERSON O B-GPE")]
    for chosen in ([example], []):  # a quick table trains on few examples, which need not have each label
        judged = task.judge([example], given, parts._replace(train=chosen))
        assert judged.figures["span F1"] == 100 and judged.notes == {"malformed": 0}
    rare = Classification("text", "train", "test").judge([Example("", "x", "")], ["x"], Parts([], [], [], 0, ("x",)))
    assert rare.figures["accuracy"] == 100 and rare.notes == {"malformed": 0}
    numbers = [Example("", "", "", value=value) for value in (1.0, 3.0)]
    assert Similarity("sts", "a", "b").labeled(numbers[1], Parts(numbers, [], [], 0))[1] == "1.0"


def test_labels_are_those_of_the_whole_training_part(tmp_path) -> None:
    """Of which `--quick` and `most` take some examples."""
    rows = [{"text": f"text {place}", "label": "rare" if place == 2 else "common"} for place in range(30)]
    (tmp_path / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "test.jsonl").write_text(json.dumps({"text": "another", "label": "rare"}) + "\n")
    task = Classification("kind", "train.jsonl", "test.jsonl", most=3)
    parts = task.read(str(tmp_path))
    assert {each.targets for each in parts.train} == {"common"}
    assert task.of_head(parts) == ("classes", "common", "rare")


def test_an_encoder_without_an_output_layer_scores_no_texts(vocabulary, tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    folder_of(dataclasses.replace(ENCODER, head="score"), vocabulary, tmp_path / "model")
    (tmp_path / "pairs.tsv").write_text("good\tbad\nOne is.\tOne are.\n")
    (tmp_path / "suite.gin").write_text("a/MinimalPairs.file = 'pairs.tsv'\n")
    assert main.main(["results", "model", "--suite=./suite.gin"]) == 2
    error = capsys.readouterr().err
    assert "model is an encoder, which scores no text" in error and error.count("\n") == 1, error
