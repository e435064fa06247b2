"""Files of each format's odd forms, made by the libraries that people make them with.

Each gives the texts that its own library reads, or one sentence; and in each room (training, generation, results) the
same texts, or a sentence.
"""

import bz2
import csv
import gzip
import io
import json
import lzma
import re
from collections.abc import Callable, Sequence
from pathlib import Path

import pandas
import pyarrow
import pyarrow.parquet
import pytest
import zstandard

from limba.config import InputError
from limba.data.sources import FileSource, listing, notices, readers
from limba.inference import line_files
from limba.tools.results import files as results_files

TEXTS = [
    "One, two; three | four\tfive.",
    'He said "yes", and "no".',
    "Two\u2028lines\u0085of\x0bone\x0ctext.",
    "ășțâî 日本語 हिन्दी",
    '"In quotes"',
    "The last one has a word more.",
]
MULTILINE = ["One\ntwo", "Three\r\nfour, five", 'six "seven"\n\neight']
PLAIN = ["First text, of words", "Second text, of words", "Third text, of words"]
DEEP = '{"text": ' + "[" * 100_000 + "]" * 100_000 + "}\n"
Maker = Callable[[Path], object]


def in_csv(texts: Sequence[str], header: Sequence[str] = ("id", "text"), **choices: str) -> str:
    file = io.StringIO(newline="")
    writer = csv.writer(file, **choices)
    writer.writerow(header)
    writer.writerows([number, text] for number, text in enumerate(texts))
    return file.getvalue()


def by_pandas(texts: Sequence[str], **choices: object) -> Maker:
    frame = pandas.DataFrame({"id": range(len(texts)), "text": texts})
    return lambda path: frame.to_csv(path, index=False, **choices)


def in_json(texts: Sequence[str]) -> str:
    return "".join(json.dumps({"id": n, "text": text}, ensure_ascii=False) + "\n" for n, text in enumerate(texts))


def table(**columns: object) -> Maker:
    return lambda path: pyarrow.parquet.write_table(pyarrow.table(columns), path)


def packed(module: object, content: str) -> Maker:
    return lambda path: path.write_bytes(module.compress(content.encode()))


SENTENCES = [{"en": text, "nb": text[::-1]} for text in PLAIN]
# name: (what makes it, its column, the texts of it or what the sentence says)
# fmt: off
ODD: dict[str, tuple[str | bytes | Maker, str, list[str] | str]] = {
    "usual.csv": (in_csv(TEXTS), "text", TEXTS),
    "pandas.csv": (by_pandas(TEXTS), "text", TEXTS),
    "semicolon.csv": (by_pandas(TEXTS, sep=";"), "text", TEXTS),
    "excel.csv": ("sep=;\r\n" + in_csv(TEXTS, delimiter=";"), "text", TEXTS),
    "excel_wide.csv": ("sep=;\nid;text\n1;One;two\n", "text", "line 3 has 3 fields and the header 2"),
    "excel_caret.csv": ("sep=^\r\n" + in_csv(TEXTS, delimiter="^"), "text", TEXTS),
    "excel_nothing.csv": ("sep=\r\n" + in_csv(TEXTS), "text", "line 2 has 2 fields and the header 1"),
    "no_header.csv": ("It was a dark night.\nThe rain fell.\n", "text", "begins with 'It was a dark night.', which"),
    "tab.csv": (by_pandas(TEXTS, sep="\t"), "text", TEXTS),
    "bar.csv": (by_pandas(TEXTS, sep="|"), "text", TEXTS),
    "space.csv": ('id, text\n1, One text\n2, "Two, texts"\n', "text", ["One text", "Two, texts"]),
    "unquoted.csv": ("id,text\n1,One, two\n2,Three, four\n", "text", "line 2 has 3 fields and the header 2"),
    "unquoted_alone.csv": ("text\nOne, two\n", "text", "line 2 has 2 fields and the header 1"),
    "alone.csv": ("text\nOne; two\nThree\n", "text", ["One; two", "Three"]),
    "short.csv": ("id,text\n1,One\n2\n", "text", "line 3 has 1 fields and the header 2"),
    "lines.csv": (in_csv(MULTILINE), "text", MULTILINE),
    "crlf.csv": (in_csv(PLAIN, lineterminator="\r\n"), "text", PLAIN),
    "blank.csv": (in_csv(PLAIN).replace("\r\n", "\n\n"), "text", PLAIN),
    "spaces.csv": (in_csv(PLAIN).replace("\r\n", "\n  \n"), "text", PLAIN),
    "cr.csv": (in_csv(PLAIN, lineterminator="\r"), "text", r"is not csv \(a carriage return stands alone"),
    "mark.csv": ("\ufeff" + in_csv(PLAIN), "text", PLAIN),
    "utf16.csv": (in_csv(PLAIN).encode("utf-16"), "text", "is not UTF-8"),
    "long.csv": (in_csv(["x" * 300_000, "y"]), "text", ["x" * 300_000, "y"]),
    "open.csv": ('id,text\n1,"One\n2,Two\n', "text", "is not csv"),
    "after.csv": ('id,text\n1,"One" two\n', "text", "is not csv"),
    "twice.csv": ("text,text\nOne,Two\n", "text", "has 2 columns 'text'"),
    "ids.csv": ("id,body\n1,One text\n2,Two texts\n", "text", "no column"),
    "comma_in_name.csv": ('"Name, full"\nOne text\nTwo texts\n', "text", ["One text", "Two texts"]),
    "gzip.csv.gz": (packed(gzip, in_csv(TEXTS)), "text", TEXTS),
    "bzip2.csv.bz2": (packed(bz2, in_csv(TEXTS)), "text", TEXTS),
    "xz.jsonl.xz": (packed(lzma, in_json(TEXTS)), "text", TEXTS),
    "zstd.jsonl.zst": (packed(zstandard, in_json(TEXTS)), "text", TEXTS),
    "pandas.tsv": (by_pandas([text.replace("\t", " ") for text in TEXTS], sep="\t"), "text",
                   [text.replace("\t", " ") for text in TEXTS]),
    "raw.tsv": ('id\ttext\n1\t"Yes" she said, "no"\n2\t5" pipe\n', "text", ['"Yes" she said, "no"', '5" pipe']),
    "lines.tsv": (by_pandas(MULTILINE, sep="\t"), "text", "line 2 has 2 fields|line 3 has 1 fields"),
    "commas.tsv": ("id,text\n1,One\n", "text", "with no tab in it"),
    "cr.tsv": ("id\ttext\r1\tOne\r2\tTwo\r", "text", "line 1 has a carriage return alone"),
    "usual.jsonl": (in_json(TEXTS), "text", TEXTS),
    "crlf.jsonl": (in_json(PLAIN).replace("\n", "\r\n"), "text", PLAIN),
    "mark.jsonl": ("\ufeff" + in_json(PLAIN), "text", PLAIN),
    "blank.jsonl": (in_json(PLAIN).replace("\n", "\n\n"), "text", PLAIN),
    "array.json": (json.dumps([{"text": text} for text in TEXTS], indent=1), "text", TEXTS),
    "texts.json": (json.dumps(TEXTS), "text", TEXTS),
    "data.json": (json.dumps({"version": 1, "data": [{"text": text} for text in TEXTS]}), "text", TEXTS),
    "columns.json": (json.dumps({"text": TEXTS, "id": list(range(6)), "source": "web"}), "text", TEXTS),
    "unequal.json": (json.dumps({"text": TEXTS, "id": [1]}), "text", "have different numbers of texts"),
    "pandas.json": (lambda path: pandas.DataFrame({"text": PLAIN}).to_json(path), "text", PLAIN),
    "indent.json": (json.dumps({"text": TEXTS, "id": list(range(6))}, indent=2), "text", TEXTS),
    "mark_indent.json": ("\ufeff" + json.dumps({"text": PLAIN}, indent=2), "text", PLAIN),
    "indent.json.gz": (packed(gzip, json.dumps({"text": PLAIN}, indent=2)), "text", PLAIN),
    "one.json": (json.dumps({"text": PLAIN[0]}, indent=2), "text", PLAIN[:1]),
    "two.json": (2 * json.dumps({"text": PLAIN[0]}, indent=2), "text", "write one object in each line"),
    "cut.json": (json.dumps({"text": PLAIN}, indent=2)[:-20], "text", "line . is not JSON"),
    "blank.json": ("\n\n" + json.dumps({"text": PLAIN}), "text", PLAIN),
    "blank_two.json": ("\n\n" + 2 * (json.dumps({"text": PLAIN}) + "\n"), "text", 2 * [" ".join(PLAIN)]),
    "inner_null.jsonl": ('{"a": null}\n{"a": {"b": "One"}}\n', "a.b", ["One"]),
    "words.json": (json.dumps({"words": [text.split() for text in PLAIN]}), "words[]", PLAIN),
    "split.json": (json.dumps({"train": [{"text": text} for text in PLAIN]}), "train.text", PLAIN),
    "null.json": (json.dumps({"text": [PLAIN[0], None]}), "text", PLAIN[:1]),
    "records.json": (
        lambda path: pandas.DataFrame({"text": TEXTS}).to_json(path, orient="records", lines=True), "text", TEXTS
    ),
    "two_arrays.json": (2 * (json.dumps([{"text": PLAIN[0]}]) + "\n"), "text", "another value follows its array"),
    "after.json": ('[{"text": "a"}] and more', "text", "another value follows its array"),
    "comma.json": ('[{"text": "a"},]', "text", "is not JSON"),
    "commas.json": ('[{"text": "a"},,{"text": "b"}]', "text", "is not JSON"),
    "no_comma.json": ('[{"text": "a"} {"text": "b"}]', "text", "have no comma between"),
    "first.json": ('[{"text": "a"}\n,\n{"text": "b"}\n]\n\n', "text", ["a", "b"]),
    "data_after.json": ('{"data": [{"text": "a"}], "version": {"of": [1]}}\n', "text", ["a"]),
    "data_open.json": ('{"data": [{"text": "a"}], "version": ', "text", "does not end the object"),
    "array.jsonl": (json.dumps([{"text": text} for text in PLAIN]), "text", "one JSON array must have"),
    "arrays.json": (json.dumps([["One text"], ["Two texts"]]), "text", "its array holds arrays, and has to hold"),
    "indent.jsonl": (json.dumps({"text": PLAIN[0]}, indent=2), "text", "an object over several lines: write one"),
    "deep.jsonl": (DEEP, "text", r"is not JSON \(it is nested too deeply\)"),
    "utf16.jsonl": (in_json(PLAIN).encode("utf-16"), "text", "is not UTF-8"),
    "half.jsonl": ('{"text": "\\ud800 is half"}\n', "text", ["? is half"]),
    "number.jsonl": ('{"text": 5}\n', "text", "int"),
    "packed.jsonl": (packed(gzip, in_json(PLAIN)), "text", r"holds gzip \(\.gz\)"),
    "cut.jsonl.gz": (lambda path: path.write_bytes(gzip.compress(in_json(TEXTS).encode())[:-9]), "text", "cannot be"),
    "lines.txt": ("".join(f"{text}\n" for text in TEXTS), "text", TEXTS),
    "crlf.txt": ("\r\n".join(PLAIN), "text", PLAIN),
    "mark.txt": ("\ufeff" + "\n".join(PLAIN), "text", PLAIN),
    "cr_within.txt": ("One\rtwo\nThree\n", "text", ["One\rtwo", "Three"]),
    "cr.txt": ("\r".join(PLAIN), "text", "carriage returns alone"),
    "utf16le.txt": ("Старый рыбак ждал.\nПаром.\n".encode("utf-16-le"), "text", "is not UTF-8"),
    "latin1.txt": ("déjà vu\n".encode("latin-1"), "text", "is not UTF-8"),
    "binary.parquet": (table(text=pyarrow.array([text.encode() for text in TEXTS])), "text", TEXTS),
    "bytes.parquet": (table(text=pyarrow.array([b"\xff\xfe"])), "text", "bytes"),
    "large.parquet": (table(text=pyarrow.array(TEXTS, pyarrow.large_string())), "text", TEXTS),
    "dictionary.parquet": (table(text=pyarrow.array(TEXTS).dictionary_encode()), "text", TEXTS),
    "nested.parquet": (table(translation=SENTENCES), "translation.en", PLAIN),
    "missing.parquet": (table(translation=SENTENCES), "translation.de", "'translation.en', 'translation.nb'|no column"),
    "struct.parquet": (table(text=SENTENCES), "text", "'text.en', 'text.nb'|no text"),
    "deeper.parquet": (table(a=[{"b": {"c": text}} for text in PLAIN]), "a.b.c", PLAIN),
    "dotted.parquet": (table(a=[{"b": {"c.d": text}} for text in PLAIN]), "a.b.c.d", PLAIN),
    "structs.parquet": (table(turns=[SENTENCES]), "turns.en", "which has no fields|no column|no text"),
    "twice.parquet": (
        lambda path: pyarrow.parquet.write_table(pyarrow.Table.from_arrays([PLAIN, TEXTS[:3]], ["text", "text"]), path),
        "text", "has 2 columns 'text'",
    ),
    "absent.parquet": (table(body=PLAIN), "text", "no column"),
    "no.parquet": (b"PAR1 but nothing else", "text", "cannot be read as parquet"),
}
# fmt: on


def training(path: Path, column: str) -> list[str]:
    units = listing.list_units(listing.list_files([str(path)]))
    return [text.decode() for unit in units for chunk in readers.read_chunks(unit, column) for text in chunk]


def generation(path: Path, column: str) -> list[str]:
    return [record[column] for record in line_files.records(str(path), [column]) if record[column].strip()]


def results(path: Path, column: str) -> list[str]:
    if path.suffix == ".txt":
        return [line for line in results_files.lines_of(path) if line.strip()]
    return [results_files.text_in(where, row, column) for where, row in results_files.rows(path, [column])]


def read(room: Callable[[Path, str], list[str]], path: Path, column: str) -> list[str] | str:
    try:
        return room(path, column)
    except InputError as error:
        sentence = str(error)
        assert path.name in sentence and "\n" not in sentence
        return sentence


@pytest.mark.parametrize("name", ODD)
def test_odd_files_give_the_texts_of_their_own_library_or_a_sentence(name: str, tmp_path: Path) -> None:
    made, column, expected = ODD[name]
    path = tmp_path / name
    if callable(made):
        made(path)
    else:
        path.write_bytes(made.encode() if isinstance(made, str) else made)
    result = read(training, path, column)
    if isinstance(expected, str):
        assert isinstance(result, str) and re.search(expected, result), result
    else:
        assert result == expected
    for room in (generation, results):
        other = read(room, path, column)
        assert isinstance(other, str) or other == expected, room


def test_what_is_guessed_of_a_file_is_said_once(tmp_path: Path, caplog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notices, "TOLD", set())
    # Of excel.csv nothing is guessed.
    for name in ("semicolon.csv", "excel.csv", "space.csv", "columns.json", "cr_within.txt"):
        made, column, expected = ODD[name]
        folder = tmp_path / name.partition(".")[0]
        folder.mkdir()
        for copy in ("a", "b"):
            path = folder / f"{copy}{Path(name).suffix}"
            made(path) if callable(made) else path.write_text(made, newline="")
            assert training(path, column) == expected
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 4
    for sentence, words in zip(said, ("semicolons", "a space behind", "6 documents", "carriage return"), strict=True):
        assert words in sentence
    pyarrow.parquet.write_table(pyarrow.table({"words": [["to", "be"]]}), tmp_path / "a.parquet")
    assert training(tmp_path / "a.parquet", "words[]") == ["to be"] and len(caplog.records) == 4
    assert training(tmp_path / "a.parquet", "words") == ["to be"]
    assert "lists of texts in column 'words'" in caplog.text


def test_libraries_read_the_same(tmp_path: Path) -> None:
    """The texts that are expected above come from pandas and pyarrow themselves."""
    readers_of = {
        ".csv": lambda path, sep: pandas.read_csv(path, sep=sep, dtype=str, keep_default_na=False),
        ".parquet": lambda path, sep: pyarrow.parquet.read_table(path).to_pandas(),
    }
    names = {
        "usual.csv": ",",
        "semicolon.csv": ";",
        "bar.csv": "|",
        "lines.csv": ",",
        "blank.csv": ",",
        "mark.csv": ",",
    }
    for name, separator in {**names, "large.parquet": "", "dictionary.parquet": ""}.items():
        made, column, expected = ODD[name]
        path = tmp_path / name
        made(path) if callable(made) else path.write_bytes(made.encode())
        assert readers_of[path.suffix](path, separator)[column].tolist() == expected, name


def test_only_a_line_without_anything_is_no_row_of_csv(tmp_path: Path) -> None:
    """The output of a command has a line for each row that pandas sees."""
    path = tmp_path / "blank.csv"
    path.write_text('inputs\na\n\u3000\n" "\n\u00a0\n  \n\n""\nb\n')
    expected = pandas.read_csv(path, keep_default_na=False)["inputs"].tolist()
    assert [record["inputs"] for record in line_files.records(str(path), ["inputs"])] == expected
    assert expected == ["a", "\u3000", " ", "\u00a0", "", "b"]
    assert training(path, "inputs") == ["a", "b"]


def test_a_row_of_empty_fields_between_tabs_is_a_row_of_csv(tmp_path: Path) -> None:
    path = tmp_path / "tabs.csv"
    path.write_text("id\ttext\tz\n1\ta\tx\n\t\t\n  \n2\tb\ty\n")
    expected = pandas.read_csv(path, sep="\t", keep_default_na=False)["text"].tolist()
    assert [record["text"] for record in line_files.records(str(path), ["text"])] == expected == ["a", "", "b"]
    assert training(path, "text") == ["a", "b"]
    path.write_text("id\ttext\tz\n1\ta\tx\n\t\n")
    with pytest.raises(InputError, match="line 3 has 2 fields and the header 3"):
        training(path, "text")


def test_a_source_of_files_reads_them_too(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    by_pandas(TEXTS * 20, sep=";")(path)
    texts = [document["text"].decode() for document in FileSource(str(path)).documents("train", num_epochs=1)]
    assert set(texts) == set(TEXTS) and len(texts) > 100
