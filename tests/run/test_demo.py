"""The demo's texts and tasks: prose that Python brings, no sentence of it twice, and capitals to restore."""

import json
import re
from pathlib import Path

import pytest

from limba.cli.gin import read_gin
from limba.data.dataset import TEXT, Elements
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


def test_the_demo_s_text_is_prose_of_which_nothing_stands_twice(prose: Path) -> None:
    texts = [json.loads(line)["text"] for line in prose.read_text().splitlines()]
    assert sum(map(len, texts)) > 500_000
    read: set[tuple[str, ...]] = set()
    for paragraph in (part for text in texts for part in text.split("\n\n")):
        assert len(paragraph) >= demo.SHORTEST_PARAGRAPH and "\n" not in paragraph
        assert ">>>" not in paragraph and "::" not in paragraph
        assert read.isdisjoint(shingles(paragraph)), paragraph
        read |= shingles(paragraph)


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


def test_rows_are_sentences_beginnings_in_small_letters_and_as_written() -> None:
    text = "The Python API is one. It has two Names of a long and longer kind of thing."
    rows = list(demo.small_letters(Elements([{"text": text.encode()}], {"text": TEXT})))
    assert [row["targets"].decode() for row in rows] == [
        "The Python API is one.", "The Python API", "It has two Names of a long and", "It has two Names of",
    ]  # fmt: skip
    assert all(row["inputs"] == row["targets"].lower() for row in rows)


def test_right_words_are_counted_in_their_places() -> None:
    assert demo.right_words(["The Python API", "a"], ["The python API", ""])["right_words"] == 50.0
    assert demo.right_words(["a b"], ["x a b"])["right_words"] == 0.0


@pytest.mark.parametrize(
    ("text", "expected"),
    [("The one and the Other", True), ("only small", False), ("東京 大阪 京都", False), ("ALL LOUD", False)],
)
def test_where_there_are_no_capitals_there_is_nothing_to_learn(text: str, expected: bool, tmp_path: Path) -> None:
    rows = [json.dumps({"text": text})] * 300
    (tmp_path / "a.jsonl").write_text("\n".join(rows) + "\n")
    assert demo.has_capitals(str(tmp_path / "a.jsonl")) is expected


def test_both_runs_of_the_demo_have_one_network(tmp_path: Path) -> None:
    gaps = read_gin("gin/demo_gaps.gin", MODEL_DIR=str(tmp_path / "run"))
    capitals = read_gin("gin/demo_capitals.gin", MODEL_DIR=str(tmp_path / "run" / "capitals"))
    changed = {name for name, other in vars(capitals.model).items() if vars(gaps.model)[name] != other}
    assert changed == {"dropout_rate"}
    assert gaps.evaluation.num_sentences > 0
