"""The demo's text: prose that Python brings, no sentence of it twice."""

import json
import re
from pathlib import Path

import pytest

from limba.cli.gin import read_gin
from limba.data.tasks import source_of_files
from tasks import demo


@pytest.fixture(scope="module")
def prose(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("prose") / "prose.jsonl"
    assert demo.prose_corpus(path) > 500
    return path


def shingles(text: str) -> set[tuple[str, ...]]:
    """The words in a row of each paragraph that no other paragraph may have."""
    words = re.findall(r"\w+", text.lower())
    return {tuple(words[at : at + demo.SHINGLE_WORDS]) for at in range(len(words) - demo.SHINGLE_WORDS + 1)}


@pytest.mark.slow
def test_the_demo_s_text_is_prose_of_which_nothing_stands_twice(prose: Path) -> None:
    texts = [json.loads(line)["text"] for line in prose.read_text().splitlines()]
    assert sum(map(len, texts)) > 500_000
    read: set[tuple[str, ...]] = set()
    for paragraph in (part for text in texts for part in text.split("\n\n")):
        assert len(paragraph) >= demo.SHORTEST_PARAGRAPH and "\n" not in paragraph
        assert ">>>" not in paragraph and "::" not in paragraph
        assert read.isdisjoint(shingles(paragraph)), paragraph
        read |= shingles(paragraph)


@pytest.mark.slow
def test_validation_text_shares_no_words_in_a_row_with_training_text(prose: Path) -> None:
    config = read_gin("gin/demo_gaps.gin", MODEL_DIR="run", CORPUS=str(prose))
    source = source_of_files(str(prose), "text", config.data.validation_percent)
    parts = {
        split: [part for text in source.texts(split) for part in text.split("\n\n")]
        for split in ("train", "validation")
    }
    of_training = set().union(*map(shingles, parts["train"]))
    of_validation = set().union(*map(shingles, parts["validation"]))
    assert len(of_validation) > 2_000 and of_validation.isdisjoint(of_training)


def test_the_demo_s_run_shows_sentences_with_gaps() -> None:
    assert read_gin("gin/demo_gaps.gin", MODEL_DIR="run").evaluation.num_sentences > 0


@pytest.mark.slow
def test_the_second_task_s_pairs_are_phrases_without_their_spaces(prose: Path) -> None:
    config = read_gin("gin/demo_spaces.gin", MODEL_DIR="run", CORPUS=str(prose))
    documents = source_of_files(str(prose), "text", config.data.validation_percent).documents(
        "validation", shuffle=False, num_epochs=1
    )
    pairs = [(pair["inputs"].decode(), pair["targets"].decode()) for pair in demo.without_spaces(documents)]
    assert len(pairs) > 500
    for without, phrase in pairs:
        assert without == phrase.replace(" ", "") and without.isalpha() and without.islower()
        assert len(phrase.split()) >= demo.LEAST_WORDS
        assert len(phrase) < config.data.task_feature_lengths["targets"]  # with the end of sequence nothing is cut
