"""The demo's task: what its T5's encoder learns about capitals, and where there is nothing to learn."""

import dataclasses
import json
import re
from pathlib import Path

import pytest

from limba.cli import demo
from limba.cli.gin import read_gin
from limba.config import RunConfig
from limba.data.tasks import source_of_files
from limba.inference.source import find
from tests import tiny
from tests.export.runs import write_run

SIZES = {"vocab_size": 4096, "emb_dim": 32, "num_heads": 2, "head_dim": 16, "mlp_dim": 64, "num_encoder_layers": 1}


def test_how_a_word_is_written() -> None:
    words = ["the", "The", "THE", "3,", "I", "Ist's", "miXed", "Über", "ΣΊΣΥΦΟΣ"]
    written = ["small", "Capital", "CAPITALS", "small", "Capital", "Capital", "miXed", "Capital", "CAPITALS"]
    assert [demo.as_written(word) for word in words] == written


@pytest.fixture
def run(corpus: Path, vocabulary: Path, tmp_path: Path) -> RunConfig:
    model = dataclasses.replace(tiny.model(), **SIZES)
    write_run(tmp_path / "run", model)
    names = {"MODEL_DIR": str(tmp_path / "run"), "CORPUS": str(corpus), "VOCABULARY": str(vocabulary)}
    return dataclasses.replace(read_gin("gin/demo.gin", **names), model=model)


@pytest.mark.slow
def test_the_demos_encoder_learns_how_words_are_written(run: RunConfig, capsys: pytest.CaptureFixture[str]) -> None:
    (step,) = find(run.model_dir).steps
    demo.restore_capitals(run, step)
    (corpus,) = Path(run.model_dir).glob(f"capitals_{step}_*.jsonl")
    rows = [json.loads(line) for line in corpus.read_text().splitlines()]
    data = run.data
    texts = source_of_files(run.data.data_files or "", data.column, data.validation_percent).texts("train")
    words = {word for text in texts for word in text.split()}
    for row in rows:
        for word, tag in zip(row["text"].split(" "), row["label"].split(" "), strict=True):
            assert word == word.lower() and (tag == "miXed" or demo.WRITTEN[tag](word) in words)
    printed = capsys.readouterr().out.partition("Words with the right capitals")[2]
    figures = re.findall(r"  ([\d.]+)% \(([\d.]+)%\) of [\d,]+ words of text that it has (?:not )?\w+, as in", printed)
    assert len(figures) == 2 and float(figures[0][0]) > float(figures[0][1])  # more than if all stay small
    demo.restore_capitals(run, step)  # what has ended is not trained again
    again = capsys.readouterr().out
    assert "resumes at step" in again and again.endswith(printed)


def test_a_text_without_capitals_has_no_such_task(
    run: RunConfig, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    small = tmp_path / "small.jsonl"
    small.write_text("".join(json.dumps({"text": "nothing here begins with one"}) + "\n" for _ in range(50)))
    data = dataclasses.replace(run.data, data_files=str(small))
    demo.restore_capitals(dataclasses.replace(run, data=data), 1)
    assert not capsys.readouterr().out
