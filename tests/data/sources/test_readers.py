"""Each document of a file is read once, by exactly one unit, in chunks that do not depend on what was read before."""

import base64
import bz2
import errno
import gzip
import json
import lzma
import math
import subprocess
from pathlib import Path

import fsspec
import numpy as np
import pandas
import pyarrow
import pyarrow.parquet
import pyarrow.parquet.encryption
import pytest
import zstandard

from limba.config import InputError
from limba.data.sources import (
    FileSource,
    chunk_reader,
    json_documents,
    json_rows,
    listing,
    notices,
    parquet,
    readers,
    remote,
    tables,
)
from limba.data.sources.chunk_reader import ChunkReader
from limba.data.sources.failures import UnitError
from limba.data.sources.remote import PATIENT, ReadPolicy
from limba.inference import line_files
from tests.data.text_files import TEXTS, write


def read_all(units: list[listing.Unit], column: str | tuple[str, ...] = "text") -> list[str]:
    return [text.decode() for unit in units for chunk in readers.read_chunks(unit, column) for text in chunk]


@pytest.mark.parametrize(
    "suffix",
    [
        ".txt",
        ".jsonl",
        ".json",
        ".csv",
        ".parquet",
        ".txt.gz",
        ".jsonl.gz",
        ".csv.gz",
        ".txt.zst",
        ".jsonl.zst",
        ".csv.zst",
    ],
)
def test_every_format_gives_every_document_once(tmp_path, suffix):
    path = write(tmp_path / f"corpus{suffix}")
    assert read_all(listing.list_units(listing.list_files([str(path)]))) == TEXTS


@pytest.mark.parametrize("size", [1, 7, 64, 1000, 1 << 20])
@pytest.mark.parametrize("ending", ["\n", "\r\n"])
def test_byte_ranges_part_the_lines(tmp_path, size, ending):
    lines = ["first", "", "a", "é" * 40, " ", "last without an end"]
    path = tmp_path / "lines.txt"
    path.write_bytes(ending.join(lines).encode())
    total = path.stat().st_size
    units = [listing.Unit(str(path), start, min(start + size, total)) for start in range(0, total, size)]
    assert read_all(units) == [line for line in lines if line.strip()]


RECORDS = [{"id": n, "text": text, "nested": {"ro": text[::-1]}} for n, text in enumerate(TEXTS)]


@pytest.mark.parametrize("suffix", [".json", ".json.gz", ".json.zst"])
@pytest.mark.parametrize("indent", [None, 1])
@pytest.mark.parametrize("form", ["array", "data", "texts"])
def test_a_json_file_may_be_one_array(tmp_path, suffix, indent, form, monkeypatch):
    monkeypatch.setattr(json_documents, "PIECE_BYTES", 1000)  # records are cut, and letters within
    content = {"array": RECORDS, "data": {"version": "1.0", "data": RECORDS}, "texts": TEXTS}[form]
    path = tmp_path / f"c{suffix}"
    opened = {".gz": gzip.open, ".zst": zstandard.open}.get(path.suffix, open)
    with opened(path, "wt", encoding="utf-8") as file:
        file.write(json.dumps(content, indent=indent, ensure_ascii=indent is None))
    units = listing.list_units(listing.list_files([str(path)]))
    assert len(units) == 1 and read_all(units) == TEXTS
    if form != "texts":
        assert read_all(units, "nested.ro") == [text[::-1] for text in TEXTS]
    reader = ChunkReader("text")
    assert reader(units[0], 0) == ChunkReader("text")(units[0], 0)


# A line, and the text that json reads in its column "text".
ODD_LINES = {
    "half of a surrogate pair": (rb'{"text": "a\ud800b"}', "a?b"),
    "half of a surrogate pair in a name": (rb'{"\udc00": 1, "text": "a"}', "a"),
    "a pair": (rb'{"text": "\ud83d\ude00"}', "😀"),
    "not a number": (b'{"score": NaN, "text": "a"}', "a"),
    "infinity": (b'{"score": [Infinity, -Infinity, 1e400], "text": "a"}', "a"),
    "a number of more than 64 bits": (b'{"id": 123456789012345678901234567890, "text": "a"}', "a"),
    "a name twice": (b'{"text": "first", "text": "last"}', "last"),
    "a name twice, a null before": (b'{"text": null, "text": "last"}', "last"),
    "NUL": (rb'{"text": "a\u0000b"}', "a\0b"),
    "space around": (b' \t{"text": "a"} \r', "a"),
    "deep": (b'{"x": ' + b"[" * 500 + b"]" * 500 + b', "text": "a"}', "a"),
}


@pytest.mark.parametrize("name", ODD_LINES)
def test_each_line_that_json_reads_gives_json_s_text(tmp_path, name):
    line, text = ODD_LINES[name]
    path = tmp_path / "odd.jsonl"
    usual = [b'{"text": "%d"}' % number for number in range(3)]
    path.write_bytes(b"\n".join([usual[0], line, *usual[1:], line]))
    assert read_all([listing.Unit(str(path), 0, path.stat().st_size)]) == ["0", text, "1", "2", text]


def test_json_reads_only_the_lines_that_orjson_cannot(tmp_path, monkeypatch):
    path = tmp_path / "odd.jsonl"
    odd = ["", '{"text": null}', '{"text": "b", "score": NaN}']
    path.write_text("\n".join(['{"text": "a"}', *odd, '{"text": "c"}', '{"meta": 1}', '{"text": "d"}']))
    read = []
    loads = json_rows.json.loads
    monkeypatch.setattr(json_rows.json, "loads", lambda text: read.append(text) or loads(text))
    unit = listing.Unit(str(path), 0, path.stat().st_size)
    with open(path, "rb") as file:
        records = [record for _, record in json_rows.json_records(unit, file, "text")]
    assert records == [b"a", {"text": None}, {"text": "b", "score": pytest.approx(math.nan, nan_ok=True)}, b"c",
                       {"meta": 1}, {"text": "d"}]  # fmt: skip
    assert read == [*odd[1:], '{"meta": 1}', '{"text": "d"}'], "after a line without the column, json reads alone"


@pytest.mark.parametrize(
    ("value", "held"), [("123456789012345678901234567890", "int"), ("1e400", "float"), ("[[1]]", "list")]
)
def test_a_value_that_is_no_text_is_named_as_json_reads_it(tmp_path, value, held):
    path = tmp_path / "odd.jsonl"
    path.write_text(f'{{"text": "a"}}\n{{"text": {value}}}\n')
    with pytest.raises(InputError, match=f"odd.jsonl line 2 holds {held} in column 'text', not text"):
        read_all([listing.Unit(str(path), 0, path.stat().st_size)])


@pytest.mark.parametrize("line", [b'{"text": "a"', b'{"text": "\x01"}', b'{"text": "\xff"}', b'{"text": 01}', b"[1] 2"])
def test_a_line_that_json_refuses_is_refused_in_our_sentence(tmp_path, line):
    path = tmp_path / "odd.jsonl"
    path.write_bytes(b'{"text": "a"}\n' + line + b"\n")
    with pytest.raises(InputError, match=r"odd.jsonl (line 2 is not JSON|is not UTF-8 at byte \d+ \(line 2\))"):
        read_all([listing.Unit(str(path), 0, path.stat().st_size)])


def test_long_records_of_an_array_are_read_whole(tmp_path):
    texts = ["ș" * 3_000_000, "short", "x" * 2_000_000]
    path = tmp_path / "long.json"
    path.write_text(json.dumps([{"text": text} for text in texts], ensure_ascii=False), encoding="utf-8")
    assert read_all(listing.list_units(listing.list_files([str(path)]))) == texts


def test_lines_whose_column_is_a_list_are_lines(tmp_path):
    path = tmp_path / "words.json"
    path.write_text("".join(json.dumps({"data": text.split()}) + "\n" for text in TEXTS))
    assert read_all(listing.list_units(listing.list_files([str(path)])), "data") == [" ".join(t.split()) for t in TEXTS]


@pytest.mark.parametrize("suffix", ["jsonl", "parquet"])
def test_lists_of_words_and_of_ids(tmp_path, suffix):
    words = [["to", "be"], [], ["or", "not"]]
    ids = [[5, 6], [7], [8, 9, 300]]
    path = tmp_path / f"c.{suffix}"
    if suffix == "parquet":
        rows = {"words": words, "tokens": ids, "translation": [{"ro": "a"}, {"ro": "b"}, {"ro": "c"}]}
        pyarrow.parquet.write_table(pyarrow.table(rows), path)
    else:
        path.write_text("".join(json.dumps({"words": w, "tokens": i}) + "\n" for w, i in zip(words, ids, strict=True)))
    units = listing.list_units(listing.list_files([str(path)]))
    assert read_all(units, "words") == read_all(units, "words[]") == ["to be", "or not"]
    cells = [row for unit in units for chunk in readers.read_chunks(unit, "tokens") for row in chunk]
    assert [np.frombuffer(row, "<i4").tolist() for row in cells] == ids
    if suffix == "parquet":
        assert read_all(units, "translation.ro") == ["a", "b", "c"]


@pytest.mark.parametrize("name", ["c.jsonl", "c.json", "texts.json", "c.csv", "c.tsv", "c.txt", "c.parquet"])
def test_text_in_a_column_of_ids_is_refused_and_read_where_the_column_says_so(name, tmp_path):
    path = tmp_path / name
    texts = ["12 34 56 78", "the cat"]
    if name == "c.parquet":
        pyarrow.parquet.write_table(pyarrow.table({"tokens": texts}), path)
    elif name.endswith("json"):
        path.write_text(json.dumps(texts if name == "texts.json" else [{"tokens": text} for text in texts]))
    else:
        lines = [json.dumps({"tokens": text}) for text in texts] if name == "c.jsonl" else texts
        header = ["tokens"] if name in ("c.csv", "c.tsv") else []
        path.write_text("".join(f"{line}\n" for line in [*header, *lines]))
    units = listing.list_units(listing.list_files([str(path)]))
    with pytest.raises(InputError, match=f"{name}.* text.* 'tokens',? .*a name for ids"):
        read_all(units, "tokens")
    assert read_all(units, "tokens[]") == texts


@pytest.mark.parametrize("suffix", ["jsonl", "parquet"])
def test_only_the_one_column_called_tokens_holds_ids(tmp_path, suffix):
    def units(**columns: list) -> list[listing.Unit]:
        path = tmp_path / f"c.{suffix}"
        if suffix == "parquet":
            pyarrow.parquet.write_table(pyarrow.table(columns), path)
        else:
            rows = zip(*columns.values(), strict=True)
            path.write_text("".join(json.dumps(dict(zip(columns, row, strict=True))) + "\n" for row in rows))
        return listing.list_units(listing.list_files([str(path)]))

    (pairs,) = units(tokens=[[5, 6], [7]], tags=[["A", "B"], ["C"]])
    (chunk,) = readers.read_chunks(pairs, ("tokens", "tags"))
    assert chunk == [b"5 6\0A B", b"7\0C"]
    (ids,) = units(tokens=[[], [5], None])
    (chunk,) = readers.read_chunks(ids, "tokens")
    assert [np.frombuffer(row, "<i4").tolist() for row in chunk] == [[5]]
    with pytest.raises(InputError, match="holds list in column 'meta.tokens', not text"):
        read_all(units(meta=[{"tokens": [5, 6]}]), "meta.tokens")
    for values, held in (([1.5], "list in column 'tokens', not ids"), ([1 << 40], "that is not an int32 id")):
        with pytest.raises(InputError, match=held):
            read_all(units(tokens=[values]), "tokens")


def test_the_first_column_of_a_csv_file_stands_in_for_text(tmp_path, caplog):
    path = write(tmp_path / "c.csv", column="body")
    path.write_text("body,other\nOne text,1\nAnother text,2\n")
    assert read_all(listing.list_units(listing.list_files([str(path)]))) == ["One text", "Another text"]
    assert "has no column 'text': its first one, 'body', is read" in caplog.text


def test_what_holds_for_a_thousand_corpora_is_said_once(tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(notices, "TOLD", set())
    paths = [tmp_path / f"{number:03}.csv" for number in range(70)]
    for path in paths:
        path.write_text("body,other\nOne text,1\n")
    for _ in range(2):  # of as many data shards
        assert read_all(listing.list_units(listing.list_files([str(path) for path in paths]))) == ["One text"] * 70
        for path in paths:
            source = FileSource(str(path), column="body")
            read = [source.documents("train", shard=shard, num_shards=2, num_epochs=1) for shard in (0, 1)]
            assert sum(len(list(documents)) for documents in read) == 1
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 2 and "'body', is read" in said[0] and "takes its own documents" in said[1]
    caplog.clear()
    for _ in range(2):
        notices.say_once("kind", "One text, the same object both times.")
    assert len(caplog.records) == 1


def test_zstandard_of_several_frames_and_long_windows(tmp_path):
    path = tmp_path / "c.txt.zst"
    long = zstandard.ZstdCompressionParameters(window_log=28, enable_ldm=True, compression_level=1)
    frames = [
        zstandard.compress("".join(f"{text}\n" for text in TEXTS[:100]).encode()),
        b"\x50\x2a\x4d\x18\x04\x00\x00\x00skip",  # a frame that is to be passed over, as pzstd writes
        zstandard.compress(b""),
    ]
    writer = zstandard.ZstdCompressor(compression_params=long).compressobj()
    frames.append(writer.compress("".join(f"{text}\n" for text in TEXTS[100:]).encode()) + writer.flush())
    path.write_bytes(b"".join(frames))
    assert read_all([listing.Unit(str(path))]) == TEXTS
    path.write_bytes(b"".join(frames)[:-5])
    with pytest.raises(InputError, match="ends within a zstandard frame"):
        read_all([listing.Unit(str(path))])


@pytest.mark.parametrize(("suffix", "module"), [(".xz", lzma), (".bz2", bz2)])
def test_streams_of_xz_and_bzip2_are_read_to_the_end_or_refused(tmp_path, suffix, module):
    path = tmp_path / f"c.txt{suffix}"
    first, second = (
        module.compress("".join(f"{text}\n" for text in part).encode()) for part in (TEXTS[:100], TEXTS[100:])
    )
    for content in (first + second, first + bytes(8) + second + bytes(4), first + bytes(1 << 16) + second):
        path.write_bytes(content)
        assert read_all([listing.Unit(str(path))]) == TEXTS
    large = b"x" * (1 << 23)  # far more than a piece, of a few bytes
    path.write_bytes(module.compress(large))
    assert read_all([listing.Unit(str(path))]) == [large.decode()]
    damaged = bytearray(second)
    damaged[60:80] = b"U" * 20
    for content in (first + damaged, first + second[1:], first + second[:-9], first + b"garbage", first[:-9], b""):
        path.write_bytes(content)
        with pytest.raises(InputError, match=f"c.txt{suffix} cannot be read"):
            read_all([listing.Unit(str(path))])
        with pytest.raises(InputError, match=f"c.txt{suffix} cannot be read"):
            list(line_files.records(str(path), ["text"]))
    if suffix == ".xz":
        path.write_bytes(first + bytes(6) + second)
        with pytest.raises(InputError, match="6 zeros follow an xz stream"):
            read_all([listing.Unit(str(path))])


class NoKeys(pyarrow.parquet.encryption.KmsClient):
    """Keys are wrapped as they are: what a file says matters here, not its secret."""

    def wrap_key(self, key_bytes, master_key_identifier):
        return base64.b64encode(key_bytes)

    def unwrap_key(self, wrapped_key, master_key_identifier):
        return base64.b64decode(wrapped_key)


@pytest.mark.parametrize(("encrypted", "is_refused"), [("text", True), ("secret", False)])
def test_an_encrypted_column_of_parquet_is_refused_and_another_read(tmp_path, encrypted, is_refused):
    path = tmp_path / "c.parquet"
    keys = pyarrow.parquet.encryption.CryptoFactory(lambda configuration: NoKeys())
    properties = keys.file_encryption_properties(
        pyarrow.parquet.encryption.KmsConnectionConfig(),
        pyarrow.parquet.encryption.EncryptionConfiguration("k", column_keys={"k2": [encrypted]}, plaintext_footer=True),
    )
    table = pyarrow.table({"secret": ["x", "y"], "text": ["a", "b"]})
    with pyarrow.parquet.ParquetWriter(path, table.schema, encryption_properties=properties) as writer:
        writer.write_table(table)
    units = listing.list_units(listing.list_files([str(path)]))
    if not is_refused:
        assert read_all(units) == ["a", "b"]
        return
    with pytest.raises(UnitError, match="c.parquet, row group 0, cannot be read as parquet .*decrypt"):
        read_all(units)


def test_a_tsv_field_over_several_indented_lines_is_refused(tmp_path):
    path = tmp_path / "c.tsv"
    code = pandas.DataFrame({"label": [1, 2], "text": ['def f():\n\tx = "a"\n\treturn x', "plain"]})
    code.to_csv(path, sep="\t", index=False)
    for read in (lambda: read_all([listing.Unit(str(path))]), lambda: list(line_files.records(str(path), ["text"]))):
        with pytest.raises(InputError, match="line 2 begins a field in quotation marks that ends in line 4"):
            read()
    # A quotation over several rows is legal, as is an empty first field.
    rows = ['Il dit :\t"I came', 'et vit."\tand saw."', '\tHe "left"', 'Elle\t"Yes', '\tHe "left".', '\tNo."', 'x\t""']
    path.write_text("".join(f"{row}\n" for row in ("label\ttext", *rows)))
    fields = [row.partition("\t")[2] for row in rows]
    assert read_all([listing.Unit(str(path))]) == fields[:-1]


@pytest.mark.parametrize(
    "rows",
    [
        ['A\t"I came home late.', "\tThen I slept.", 'B\tAnd I woke."'],
        ['s\t"A', "\tmissing", '20\tscreen 19"', "\tx"],
        ["NOUN\tdog", 'PUNCT\t"', "VERB\tbarks", "\tnone", "NOUN\tcat", 'PUNCT\t"'],
        ['A\t"One', *["B\tx"] * 50, "\tnone", *["B\tx"] * 50, 'C\ttwo"'],
    ],
)
def test_a_tsv_quotation_with_one_empty_first_field_is_read(tmp_path, rows):
    path = tmp_path / "c.tsv"
    path.write_text("".join(f"{row}\n" for row in ("title\ttext", *rows)))
    assert read_all([listing.Unit(str(path))]) == [row.partition("\t")[2] for row in rows]


def test_an_open_quotation_of_tsv_is_looked_for_only_in_lines_with_a_quotation_mark(monkeypatch):
    monkeypatch.setattr(tables, "QUOTATION_ENDS", None)
    lines = ['a\t"b\n', "\tc\n", "\td\n"]
    assert [row for _, row in tables.tsv_rows(iter(lines))] == [["a", '"b'], ["", "c"], ["", "d"]]


def test_a_number_beside_a_text_is_read_as_it_was_written_in_every_format(tmp_path):
    pair = {"inputs": "inputs", "targets": "targets"}
    frame = pandas.DataFrame({"inputs": ["a", "b"], "targets": [3.8, None]}).astype({"targets": "float32"})
    frame.to_csv(tmp_path / "c.csv", index=False)
    pyarrow.parquet.write_table(pyarrow.Table.from_pandas(frame), tmp_path / "null.parquet")
    for name, width in (("nan", pyarrow.float32()), ("half", pyarrow.float16())):
        values = pyarrow.array(np.array([3.8, math.nan], width.to_pandas_dtype()), width)
        pyarrow.parquet.write_table(
            pyarrow.table({"inputs": ["a", "b"], "targets": values}), tmp_path / f"{name}.parquet"
        )
    (tmp_path / "c.jsonl").write_text('{"inputs": "a", "targets": 3.8}\n{"inputs": "b", "targets": NaN}\n')
    for path in sorted(tmp_path.iterdir()):
        assert read_all([*listing.list_units(listing.list_files([str(path)]))], tuple(pair)) == ["a\x003.8"], path
        assert next(line_files.records(str(path), tuple(pair)))["targets"] == "3.8"
    path = tmp_path / "lists.parquet"
    pyarrow.parquet.write_table(
        pyarrow.table({"inputs": ["a"], "targets": pyarrow.array([[0.1, 0.0]], pyarrow.list_(pyarrow.float32()))}), path
    )
    assert read_all(listing.list_units(listing.list_files([str(path)])), tuple(pair)) == ["a\x000.1 0.0"]
    path = tmp_path / "nested.parquet"
    holder = pyarrow.struct({"label": pyarrow.float32(), "all": pyarrow.list_(pyarrow.float16()), "n": pyarrow.int64()})
    held = pyarrow.array([{"label": 3.8, "all": np.array([0.1, 0.2], np.float16), "n": 1}, None], holder)
    pyarrow.parquet.write_table(pyarrow.table({"inputs": ["a", "b"], "s": held}), path)
    for column, expected in (("s.label", "3.8"), ("s.all", "0.1 0.2"), ("s.n", "1")):
        columns = ("inputs", column)
        assert read_all([*listing.list_units(listing.list_files([str(path)]))], columns) == [f"a\x00{expected}"]
        assert next(line_files.records(str(path), columns))[column] == expected
    path = tmp_path / "infinite.jsonl"
    path.write_text('{"inputs": "a", "targets": Infinity}\n')
    with pytest.raises(InputError, match="holds float in column 'targets', not text"):
        read_all([listing.Unit(str(path))], tuple(pair))


def test_only_the_wanted_numbers_of_parquet_are_made_short(tmp_path, monkeypatch):
    """Of a column with an embedding it would take forty times as long as reading it."""
    path = tmp_path / "c.parquet"
    vectors = pyarrow.array([[0.1, 0.2]], pyarrow.list_(pyarrow.float32()))
    scores = pyarrow.array([3.8], pyarrow.float32())
    pyarrow.parquet.write_table(pyarrow.table({"inputs": ["a"], "score": scores, "vector": vectors}), path)
    made = list[float]()
    shortest = json_documents.shortest
    monkeypatch.setattr(parquet, "shortest", lambda number, width: made.append(number) or shortest(number, width))
    (record,) = line_files.records(str(path), ["inputs"])
    assert made == [] and record["vector"] == [float(np.float32(0.1)), float(np.float32(0.2))]
    (record,) = line_files.records(str(path), ["inputs", "score"])
    assert record["score"] == "3.8" and len(made) == 1


def test_files_that_nobody_sees_and_other_spellings_add_no_text(tmp_path, monkeypatch):
    for name in ("a.txt", ".hid.txt", "._a.txt", "sub/b.txt", ".git/c.txt", "why?.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(f"{name}\n")

    def names(*patterns: str) -> list[str]:
        return [str(Path(file.path).relative_to(tmp_path)) for file in listing.list_files(patterns)]

    assert names(f"{tmp_path}/*.txt") == ["a.txt", "why?.txt"]
    assert names(f"{tmp_path}/**/*.txt") == ["a.txt", "sub/b.txt", "why?.txt"]
    assert names(f"{tmp_path}/.*.txt") == ["._a.txt", ".hid.txt"]
    assert names(f"{tmp_path}/.git/*.txt") == [".git/c.txt"]
    assert names(f"{tmp_path}/.hid.txt") == [".hid.txt"]
    for other in ("/", "/./", "/sub/../"):
        assert len(names(f"{tmp_path}/a.txt", f"{tmp_path}{other}/a.txt")) == 1
    # Behind a link `..` is another folder.
    (tmp_path / "far" / "deep").mkdir(parents=True)
    (tmp_path / "far" / "a.txt").write_text("far\n")
    (tmp_path / "link").symlink_to(tmp_path / "far" / "deep")
    assert len(names(f"{tmp_path}/a.txt", f"{tmp_path}/link/../a.txt")) == 2
    (tmp_path / "b.txt").symlink_to(tmp_path / "a.txt")
    assert names(f"{tmp_path}/a.txt", f"{tmp_path}/b.txt") == ["a.txt", "b.txt"]


def test_csv_keeps_newlines_and_long_fields(tmp_path):
    texts = ["one\ntwo, three", 'a "quoted" word', "x" * 200_000]
    assert read_all([listing.Unit(str(write(tmp_path / "c.csv", texts)))]) == texts


def test_empty_documents_nulls_and_byte_order_mark_are_left_out(tmp_path):
    path = tmp_path / "c.jsonl"
    path.write_text('\ufeff{"text": "a"}\n\n{"text": ""}\n{"text": null}\n{"text": "b"}\n', encoding="utf-8")
    assert read_all([listing.Unit(str(path))]) == ["a", "b"]


@pytest.mark.parametrize("suffix", [".jsonl", ".csv.gz", ".txt.zst", ".parquet"])
def test_chunks_do_not_depend_on_the_order_of_reading(tmp_path, suffix, monkeypatch):
    monkeypatch.setattr(readers, "CHUNK_BYTES", 1000)
    monkeypatch.setattr(chunk_reader.KeptChunks, "MOST_BYTES", 2500)
    monkeypatch.setattr(chunk_reader.OpenUnits, "MOST", 2)
    unit = listing.list_units(listing.list_files([str(write(tmp_path / f"c{suffix}"))]))[0]
    forward = ChunkReader("text")
    anyhow = ChunkReader("text")
    chunks = []
    while (documents := forward(unit, len(chunks))) is not None:
        chunks.append(documents)
    assert len(chunks) > 5
    for number in np.random.default_rng(0).permutation(len(chunks)):
        assert anyhow(unit, int(number)) == chunks[number]
    assert anyhow(unit, len(chunks)) is None


def test_patterns_are_expanded_sorted_and_joined(tmp_path):
    for name in ("b.txt", "a.txt", "c.jsonl"):
        write(tmp_path / name)
    files = listing.list_files([f"{tmp_path}/*.txt", f"{tmp_path}/a.txt", f"{tmp_path}/c.*"])
    assert [Path(file.path).name for file in files] == ["a.txt", "b.txt", "c.jsonl"]


def test_bad_files_are_named_with_the_place(tmp_path):
    def message(name: str, content: bytes, column: str = "text") -> str:
        path = tmp_path / name
        path.write_bytes(content)
        with pytest.raises(InputError) as caught:
            read_all(listing.list_units(listing.list_files([str(path)])), column)
        assert name in str(caught.value)
        assert "\n" not in str(caught.value)
        return str(caught.value)

    assert "not UTF-8 at byte 8 (line 2)" in message("a.txt", b"good\nbad\xff\n")
    assert "line 2 is not JSON" in message("b.jsonl", b'{"text": "a"}\n{"text": \n')
    assert "line 2 is not JSON (it ends within the array)" in message("c.json", b'[{"text": "a"},\n')
    assert "line 2 is not JSON" in message("c2.json", b'[{"text": "a"},\n {"text": }]')
    assert "one JSON array must have the suffix .json" in message("array.jsonl", b'[{"text": "a"}, {"text": "b"}]\n')
    assert "holds words in column 'tokens', a name for ids; set DataConfig.column to 'tokens[]'" in message(
        "words.jsonl", b'{"tokens": ["to", "be"]}\n', "tokens"
    )
    assert "holds list in column 'text', not text" in message("ids.jsonl", b'{"text": [1, 2]}\n')
    assert "'title', 'body'" in message("d.jsonl", b'{"title": "a", "body": "b"}\n')
    assert "d2.jsonl line 2 has no column 'text'; it has 'id'" in message("d2.jsonl", b'{"text": "a"}\n{"id": 1}\n')
    assert "'title', 'body'" in message("e.csv", b"title,body\na,b\n", "txt")
    assert "int" in message("f.jsonl", b'{"text": 3}\n')
    assert "line 2 has 1 fields" in message("g.csv", b"id,text\n1\n")
    assert "cannot be read" in message("h.txt.gz", b"no gzip")
    assert "cannot be read" in message("h.txt.zst", b"no zstandard")
    assert "parquet" in message("i.parquet", b"no parquet")
    assert "suffix" in message("j.doc", b"?")
    parquet = write(tmp_path / "k.parquet")
    with pytest.raises(InputError, match="'id', 'text'"):
        read_all(listing.list_units(listing.list_files([str(parquet)])), "body")


def test_a_parquet_file_that_was_replaced_by_one_with_fewer_row_groups_is_named(tmp_path):
    path = write(tmp_path / "c.parquet")
    with pytest.raises(UnitError, match="fewer than when the corpus was listed"):
        read_all([listing.Unit(str(path), 100, 101)])
    with pytest.raises(UnitError, match="fewer than when the corpus was listed"):
        listing.group_rows([listing.Unit(str(path), 100, 101)], PATIENT, parquet.read_footer)


def test_paths_that_give_nothing_are_refused(tmp_path):
    with pytest.raises(InputError, match="matches no file"):
        listing.list_files([f"{tmp_path}/*.txt"])
    with pytest.raises(InputError, match="matches no file"):
        listing.list_files([f"{tmp_path}/absent.txt"])
    with pytest.raises(InputError, match="is a directory"):
        listing.list_files([str(tmp_path)])


@pytest.mark.parametrize(
    ("encoding", "text"),
    [
        ("euc_jp", "梅雨は、東アジアの広い範囲においてみられる気象現象である。"),
        ("shift_jis", "梅雨は、東アジアの広い範囲においてみられる気象現象である。"),
        ("utf_16", "Старый рыбак ждал парома до самого вечера."),
        ("utf_16", "L'été dernier, « à bientôt »."),
        ("cp1251", "Старый рыбак ждал парома до самого вечера."),
        ("cp1250", "Pescarul bătrân aşteaptă bacul, iar uşa şi poarta aveţi grijă să le închideţi."),
        ("iso8859_16", "Pescarul bătrân a așteptat bacul; ușa și poarta, aveți grijă să le închideți."),
        ("cp1250", "Stary rybak czekał na prom, a łódka była już w porcie."),
        ("cp1252", "L'été dernier, « à bientôt », nº 5 : ¿qué pasó? Ça coûte 3 € le m³, grüß Gott, förråd."),
    ],
)
@pytest.mark.parametrize("suffix", [".txt", ".txt.gz"])
def test_the_command_for_text_that_is_not_utf8_knows_its_encoding(
    encoding: str, text: str, suffix: str, tmp_path: Path
) -> None:
    path = tmp_path / f"a{suffix}"
    opened = gzip.open if suffix.endswith(".gz") else open
    with opened(path, "wb") as file:
        file.write(f"{text}\n{text}\n".encode(encoding))
    with pytest.raises(InputError, match="is not UTF-8 at byte") as error:
        read_all([listing.Unit(str(path))])
    assert isinstance(error.value.fix, str)
    subprocess.run(error.value.fix, shell=True, check=True)
    same = str.maketrans("şţ", "șț")  # Windows-1250 has no others
    assert [document.translate(same) for document in read_all([listing.Unit(str(path))])] == [text.translate(same)] * 2


@pytest.mark.parametrize("error", [MemoryError(), OSError(errno.ENOMEM, "Cannot allocate memory")])
def test_where_memory_runs_out_no_file_is_at_fault_and_none_is_skipped(tmp_path, monkeypatch, error) -> None:
    def refuse(*_: object) -> None:
        raise error

    unit = listing.Unit(str(write(tmp_path / "a.txt")))
    reader = ChunkReader("text", ReadPolicy(on_failure="skip"))
    monkeypatch.setattr(readers, "open_file", refuse)
    with pytest.raises(type(error)) as raised:
        reader(unit, 0)
    assert raised.value is error and reader.skipped == []

    system = fsspec.filesystem("memory")
    monkeypatch.setattr(system, "cat_file", refuse)
    with pytest.raises(type(error)) as raised:
        remote.fetch(system, "/a.txt", 0, 1, PATIENT)
    assert raised.value is error
