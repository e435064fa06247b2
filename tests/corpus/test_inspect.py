"""The inspection's figures match the text, and what is printed shows pieces, sentinels and what is lost."""

import io
import re
from pathlib import Path

import numpy as np
import pytest
import rich.console
import seqio

from limba.config import InputError
from limba.data.registry import Mixture
from limba.tools.corpus import inspect
from limba.tools.corpus.inspection import bins, histogram, inspect_task, show
from limba.tools.corpus.task_flags import TaskRecipe

EVERYTHING = 10**9
GOLDEN = Path(__file__).parent.parent / "golden"


def task_of(files, vocabulary, validation_percent=1.0):
    return TaskRecipe(None, None, str(files), "text", str(vocabulary), validation_percent)()


def printed(inspection, num=1, **choices):
    output = io.StringIO()
    show(inspection, rich.console.Console(file=output, width=100, soft_wrap=True, highlight=False, **choices), num)
    return output.getvalue()


def test_figures_are_those_of_the_corpus(corpus, vocabulary):
    task = task_of(corpus, vocabulary)
    inspection = inspect_task(task, "train", 128, EVERYTHING)
    texts = list(task.source.texts("train"))
    loaded = task.output_features["targets"].vocabulary
    num_tokens = sum(len(loaded.encode(text)) for text in texts)
    num_bytes = sum(len(text.encode()) for text in texts)
    shown = inspection.figures()
    assert shown["sample"] == f"{len(texts):,} documents, {num_bytes:,} bytes, {num_tokens:,} tokens"
    assert shown["tokens per byte"].startswith(f"{num_tokens / num_bytes:.4f} ({num_bytes / num_tokens:.3f} bytes")
    assert shown["padding of inputs"] == "0.00% of 128"
    assert shown["padding of targets"].startswith("0.00% of ")
    assert shown["unknown pieces"] == "0.0000% of the tokens"
    assert inspection.document_tokens.sum() == num_tokens


def test_what_has_no_piece_is_named(tmp_path, vocabulary):
    path = tmp_path / "odd.txt"
    path.write_text("snowmen ☃☃☃ and a mark \u0301\n" * 30)
    inspection = inspect_task(task_of(path, vocabulary), "train", 32, EVERYTHING)
    letters = inspection.figures()["letters without a piece"]
    assert letters.startswith("☃ U+2603 90")
    assert "U+0301 30" in letters


def test_short_examples_are_padding(tmp_path, vocabulary):
    path = tmp_path / "short.txt"
    path.write_text("a few words\n")
    inspection = inspect_task(task_of(path, vocabulary, 0.0001), "train", 512, EVERYTHING)
    (row,) = inspection.examples
    assert inspection.padding("inputs") == pytest.approx(1 - len(row["inputs"]) / 512)
    assert inspection.padding("inputs") > 0.95


def test_pieces_and_sentinels_are_shown(corpus, vocabulary):
    inspection = inspect_task(task_of(corpus, vocabulary), "train", 64, 100_000)
    plain = printed(inspection, num=2)
    assert "\x1b" not in plain
    assert plain.count("document ") >= 2 and "example 2: inputs 64 of 64, targets " in plain
    pieces = re.search(r"^pieces (.*)$", plain, re.MULTILINE)[1]
    text = plain.splitlines()[1]
    assert pieces.count("|") > 50
    assert pieces.replace("|", "").replace("_", " ").split()[:5] == text.split()[:5]
    inputs, targets = (re.search(rf"^{name} (.*)$", plain, re.MULTILINE)[1] for name in ("inputs", "targets"))
    for row in (inputs, targets):
        assert row.index("<0>") < row.index("<1>") < row.index("<2>")
    assert targets.startswith("<0>") and targets.endswith("</s>")
    coloured = printed(inspection, force_terminal=True, color_system="truecolor")
    assert "\x1b[1;37;45m<0>" in coloured  # sentinels bold on magenta
    assert "\x1b" not in re.sub(r"\x1b\[[0-9;]*m", "", coloured)
    assert "|" not in re.search("pieces (.*)", coloured)[1]
    no_colour = printed(inspection, force_terminal=True, no_color=True)
    assert not re.search(r"\x1b\[[0-9;]*(3\d|4\d|9\d|10\d)m", no_colour)


def test_bytes_are_shown_as_letters(corpus):
    inspection = inspect_task(task_of(corpus, "byte"), "train", 64, 100_000)
    assert inspection.fertility.bytes_per_token == 1.0
    plain = printed(inspection)
    inputs = re.search(r"^inputs (.*)$", plain, re.MULTILINE)
    assert inputs is None or "<0>" in plain


def test_histogram_counts_each_document_once():
    lengths = np.array([0, 1, 2, 3, 4, 7, 8, 1_000, 1_023, 1_024])
    assert np.histogram(lengths, bins(lengths))[0].sum() == len(lengths)
    lines = histogram(lengths)
    assert [line.split("  #")[0].split() for line in lines[-2:]] == [
        ["512", "to", "1,023", "2"],
        ["1,024", "to", "2,047", "1"],
    ]
    assert sum(int(line.split()[3]) for line in lines) == len(lengths)


def test_what_cannot_be_looked_at_is_a_sentence(corpus, vocabulary, tmp_path):
    task = task_of(corpus, vocabulary)
    with pytest.raises(InputError, match="no split 'test'"):
        inspect_task(task, "test", 64, 1_000)
    with pytest.raises(InputError, match="too short for span corruption"):
        inspect_task(task, "train", 2, 1_000)
    (tmp_path / "empty.txt").write_text("\n")
    with pytest.raises(InputError, match=r"/empty.txt holds no document"):
        inspect_task(task_of(tmp_path / "empty.txt", vocabulary), "train", 64, 1_000)
    with pytest.raises(InputError, match="one by one: demo_span_corruption"):
        inspect_task(Mixture("both", [(task, 1.0)]), "train", 64, 1_000)


def test_a_run_in_place_of_files_is_a_sentence():
    with pytest.raises(InputError, match=r"run/run is a run; give --step=N for the documents of one of its steps"):
        inspect.run([str(GOLDEN / "run" / "run")])


@pytest.mark.parametrize(
    "files",
    [str(GOLDEN / "t5x_legacy"), "https://example.org/a.txt", "s3://bucket/*.jsonl", "zip://*.txt::a.zip", "a.txt"],
)
def test_files_without_a_vocabulary_are_a_sentence(files):
    with pytest.raises(InputError, match=r"^Files without a task have no vocabulary; give --vocabulary=PATH or byte.$"):
        inspect.run([files])


def test_other_sources_are_shown_too(tmp_path, vocabulary):
    path = tmp_path / "lines.txt"
    path.write_text("a line of text\n" * 40)
    feature = task_of(path, vocabulary).output_features["targets"]
    legacy = seqio.Task(
        "legacy",
        source=seqio.TextLineDataSource({"train": str(path)}),
        preprocessors=[
            lambda dataset: dataset.map(lambda line: {"inputs": line, "targets": line}),
            seqio.preprocessors.tokenize,
        ],
        output_features={"inputs": feature, "targets": feature},
    )
    with pytest.raises(InputError, match="no split 'validation'"):
        inspect_task(legacy, "validation", 64, 1_000)
