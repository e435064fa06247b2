"""Files of another layout than a task's: one sentence with the file, the line and the column."""

import dataclasses
import gzip
import json
import re
import struct
import zipfile
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

from limba.config import InputError
from limba.tools.results import files
from limba.tools.results.kinds.fine_tuned import Classification, Learned, NamedEntities, PartOfSpeech, Similarity

TEXTS = Classification("task", "train.jsonl", "test.jsonl")
TABLE = Classification("task", "train.tsv", "test.tsv")
NAMES = NamedEntities("task", "train.json", "test.json")
TAGS = PartOfSpeech("task", "train.conllu", "test.conllu")
NAMED_COLUMN = NamedEntities("task", "train.conllup", "test.conllup", tags="RONEC:CLASS")
ROW = '{"text": "one", "label": "yes"}\n'


@pytest.mark.parametrize(
    ("task", "content", "says"),
    [
        (TEXTS, "[1]", "train.jsonl line 1 is not an object with columns; a file that is one JSON array must"),
        (TEXTS, f"{ROW}one\n", "train.jsonl line 2 is not JSON ("),
        (TEXTS, f'{ROW}{{"text": "two"}}', "train.jsonl line 2 has no column label; it has text."),
        (TEXTS, ROW.encode() + b"\xff", "train.jsonl is not UTF-8 at byte 32 (line 2); convert it"),
        (TEXTS, "\n", "train.jsonl of the task task has no examples; name another file."),
        (TABLE, "text\tkind\n", "train.tsv line 1 has no column label; it has text, kind."),
        (TABLE, "text\tlabel\none\tyes\ntwo\n", "train.tsv line 3 has 1 fields and the header 2; correct the line."),
        (NAMES, '[{"tokens": ["a"], "ner_tags": []}]', "train.json entry 1: tokens and ner_tags are not two lists"),
        (
            NAMES,
            '[{"tokens": ["a"], "tags": ["O"]}]',
            "train.json entry 1 has no column ner_tags; it has tokens, tags.",
        ),
        (NAMES, '[{"tokens": ["a"], "ner_tags": [3]}]', "train.json entry 1 has the tag 3, and the task task 0 names"),
        (TAGS, "# text = a\n1\ta\n", "train.conllu line 2 has 2 columns and no column 3; name a file of another"),
        (TAGS, "1\ta\t_\tX\n2\tb\t_\t\n", "train.conllu line 1: the tag of the word 'b' is empty; write it there."),
        (
            NAMES,
            '[{"tokens": ["a"], "ner_tags": ["B-"]}]',
            "train.json entry 1: 'B-' is not an IOB2 tag (O, B-PERSON, I-PERSON); name another column.",
        ),
        (
            NAMED_COLUMN,
            "# global.columns = ID FORM\n1\ta\n",
            "train.conllup line 2: the file has no column RONEC:CLASS",
        ),
    ],
)
def test_another_layout_is_said_with_its_line_and_column(
    task: Learned, content: str | bytes, says: str, tmp_path: Path
) -> None:
    for name in task.files:
        (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(InputError, match=re.escape(says)):
        task.read(str(tmp_path))


@pytest.mark.parametrize("name", ["train.jsonl.gz", "train.jsonl.zip"])
def test_a_file_that_was_cut_cannot_be_read(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(gzip.compress(ROW.encode() * 9)[:-12])
    with pytest.raises(InputError, match=re.escape(f"{name} cannot be read (") + r".*\); copy it again\."):
        Classification("task", name, name).read(str(tmp_path))


def test_a_label_that_training_lacks_is_said_with_its_line(tmp_path: Path) -> None:
    rows = [{"text": f"text {number}", "label": ("no", "yes")[number % 2]} for number in range(30)]
    (tmp_path / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "test.jsonl").write_text(ROW + json.dumps({"text": "two", "label": "maybe"}))
    with pytest.raises(InputError) as caught:
        TEXTS.read(str(tmp_path))
    says = (
        "test.jsonl line 2 has the label maybe, which no example of train.jsonl has; it has no, yes: correct the file"
    )
    assert says in str(caught.value)
    (tmp_path / "train.conllu").write_text("".join(f"1\tword{n}\t_\tNOUN\n\n" for n in range(30)))
    (tmp_path / "test.conllu").write_text("1\ta\t_\tNOUN\n\n# text = b\n1\tb\t_\tVERB\n")
    with pytest.raises(InputError, match="test.conllu line 4 has the label VERB, which no example of train.conllu"):
        TAGS.read(str(tmp_path))


def test_parquet_of_another_layout_is_said_with_its_row_and_a_cut_one_cannot_be_read(tmp_path: Path) -> None:
    task = Classification("task", "train.parquet", "test.parquet")
    path = tmp_path / "train.parquet"
    pyarrow.parquet.write_table(pyarrow.table({"text": ["one"], "kind": [1]}), path)
    with pytest.raises(InputError, match="train.parquet row 1 has no column label; it has text, kind"):
        task.read(str(tmp_path))
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(InputError, match=r"train.parquet cannot be read as parquet \(.*\); check the file\."):
        task.read(str(tmp_path))


@pytest.mark.parametrize(
    ("name", "content", "text"),
    [
        ("a.conllu", "# text = One here.\n1\tOne\n\n# text = Two.\n1\tTwo\n", "One here.\nTwo."),
        ("a.conllu", "1\tOne\n2\there\n\n1\tTwo\n", "One here\nTwo"),
        ("a.jsonl", '{"text": "One."}\n{"text": "Two."}\n', "One.\nTwo."),
        ("a.txt", "One.\nTwo.", "One.\nTwo."),
    ],
)
def test_prose_is_that_of_sentences_columns_or_the_file(name: str, content: str, text: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(content)
    assert files.prose_of(tmp_path / name) == text


def test_tokens_of_wikiann_begin_with_their_language_and_tags_may_be_numbers(tmp_path: Path) -> None:
    (tmp_path / "train.tsv").write_text("ro:Ana\tB-PER\nro:din\tO\nro:Cluj\tB-LOC\n\nro:a:b\tO\n")
    names = NamedEntities("ner", "train.tsv", "train.tsv", tokens=0, tags=1)
    assert [example.texts for example in names.examples(tmp_path / "train.tsv")] == [("Ana", "din", "Cluj"), ("a:b",)]
    (tmp_path / "train.jsonl").write_text('{"tokens": ["Ana", "din"], "ner_tags": [1, 0]}\n')
    numbered = dataclasses.replace(names, names=("O", "B-PER"))
    assert [list(example.tags) for example in numbered.examples(tmp_path / "train.jsonl")] == [["B-PER", "O"]]
    with pytest.raises(InputError, match=re.escape("line 1 has the tag 1, and the task ner 0 names; add them")):
        list(names.examples(tmp_path / "train.jsonl"))


DEEP = "[" * 200_000
HALF = '{"text": "a \\ud800", "label": "yes"}'
SCORES = Similarity("task", "train.tsv", "test.tsv")


@pytest.mark.parametrize(
    ("task", "content", "says"),
    [
        (TEXTS, DEEP, "train.jsonl line 1 "),
        (TEXTS, f'{{"text": {DEEP}', "train.jsonl line 1 "),
        (dataclasses.replace(TEXTS, train="train.json"), DEEP, "train.json"),
        (SCORES, "sentence1\tsentence2\tlabel\na\tb\tNaN\n", "train.tsv line 2: the column label is not a finite"),
        (SCORES, "sentence1\tsentence2\tlabel\na\tb\t1e999\n", "train.tsv line 2: the column label is not a finite"),
        (TEXTS, '{"text": null, "label": "yes"}', "train.jsonl line 1: the column text holds null, not a text"),
        (TEXTS, '{"text": "a", "label": 0.5}', "train.jsonl line 1: the column label holds 0.5"),
    ],
)
def test_a_damaged_file_is_one_sentence_with_its_row(task: Learned, content: str, says: str, tmp_path: Path) -> None:
    for name in task.files:
        (tmp_path / name).write_text(content)
    with pytest.raises(InputError, match=re.escape(says)) as caught:
        task.read(str(tmp_path))
    assert "\n" not in str(caught.value)


def test_a_long_cell_is_read_and_half_a_letter_is_a_question_mark(tmp_path: Path) -> None:
    (tmp_path / "long.tsv").write_text(f"text\tlabel\n{'a' * 200_000}\tyes\n")
    (example,) = TABLE.examples(tmp_path / "long.tsv")
    assert example.texts == ("a" * 200_000,) and example.answer == "yes"
    (tmp_path / "half.jsonl").write_text(HALF)
    (example,) = TEXTS.examples(tmp_path / "half.jsonl")
    assert example.texts == ("a ?",)


def test_an_archive_that_cannot_be_unpacked_is_one_sentence(tmp_path: Path) -> None:
    for flag, compression in ((1, 0), (0, 97)):  # a password, and a method that no library knows
        with zipfile.ZipFile(tmp_path / "train.jsonl.zip", "w") as archive:
            archive.writestr("train.jsonl", ROW)
        packed = bytearray((tmp_path / "train.jsonl.zip").read_bytes())
        for mark, offset in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
            begin = packed.index(mark) + offset
            packed[begin : begin + 4] = struct.pack("<HH", flag, compression)
        (tmp_path / "train.jsonl.zip").write_bytes(packed)
        with pytest.raises(InputError, match=re.escape("train.jsonl.zip cannot be read (")) as caught:
            Classification("task", "train.jsonl.zip", "train.jsonl.zip").read(str(tmp_path))
        assert "\n" not in str(caught.value)


def test_rows_and_sentences_belong_to_their_documents(tmp_path: Path) -> None:
    (tmp_path / "a.conllu").write_text(
        "1\tz\t_\tX\n\n# newdoc id = b\n1\ta\t_\tX\n\n1\tb\t_\tX\n\n#newdoc\n1\tc\t_\tX\n"
    )
    documents = [example.document for example in TAGS.examples(tmp_path / "a.conllu")]
    assert len(documents) == 4 and documents[1] == documents[2] and len(set(documents)) == 3
    rows = [{"text": f"{n}", "label": "x", "document": n // 2} for n in range(4)]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, rows)))
    assert [example.document for example in TEXTS.examples(tmp_path / "a.jsonl")] == ["0", "0", "1", "1"]
    (tmp_path / "b.tsv").write_text("text\tlabel\na\tx\nb\tx\n")
    assert len({example.document for example in TABLE.examples(tmp_path / "b.tsv")}) == 2


def test_a_tag_that_only_the_tenth_example_has_is_of_the_training_part_too(tmp_path: Path) -> None:
    tags = ["X", *["NOUN"] * 29]  # the first of each ten becomes the development part
    (tmp_path / "train.conllu").write_text("".join(f"1\tword{n}\t_\t{tag}\n\n" for n, tag in enumerate(tags)))
    (tmp_path / "test.conllu").write_text("1\ta\t_\tX\n\n")
    parts = TAGS.read(str(tmp_path))
    assert parts.labels == ("NOUN", "X") and parts.dev[0].tags == ("X",) and len(parts.train) == 27


def test_one_label_alone_is_nothing_to_learn(tmp_path: Path) -> None:
    for name in TAGS.files:
        (tmp_path / name).write_text("".join(f"1\t{name}{n}\t_\tNOUN\n\n" for n in range(20)))
    with pytest.raises(InputError, match="train.conllu of the task task has no label but NOUN; name another file"):
        TAGS.read(str(tmp_path))


def test_what_is_no_file_is_not_called_missing(tmp_path: Path) -> None:
    (tmp_path / "train.jsonl").mkdir()
    with pytest.raises(InputError, match=r"train.jsonl is not a regular file; name the folder"):
        TEXTS.read(str(tmp_path))


def test_a_word_of_digits_stays_where_the_first_column_is_the_word(tmp_path: Path) -> None:
    """Scores, years and prices were taken for the ids of CoNLL-U's ranges and empty nodes, and `#` for a comment."""
    words = ["Ajax", "won", "2-1", "in", "1998-99", "#", "3.5"]
    named = tmp_path / "test.txt"
    for separator in (" ", "\t"):
        named.write_text("".join(f"{word}{separator}O\n" for word in words))
        (sentence,) = files.sentences(named, 0, -1)
        assert [cells[0] for cells in sentence.cells] == words
    treebank = tmp_path / "test.conllu"
    treebank.write_text("# text = du bon\n1-2\tdu\n1\tde\n# a note\n2\tle\n2.1\t_\n3\tbon\n")
    (sentence,) = files.sentences(treebank, 1)
    assert [cells[0] for cells in sentence.cells] == ["de", "le", "bon"]
