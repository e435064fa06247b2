"""Lines in and out, on disk and in an emulated bucket: order kept, a stopped run resumes, bad addresses named."""

import gzip
import itertools
import json
import re

import fsspec
import pyarrow
import pyarrow.parquet
import pytest

from limba.config import InputError, StorageError
from limba.inference import line_files as text_files

# An output is left as a kill leaves it.
pytestmark = pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")

ABOUT = {"input": "in.jsonl", "step": 3}
ROWS = [{"inputs": f"line {i} ș"} for i in range(11)]


def judge(records, first):
    """Gives a window's records back in another order, each with its number."""
    yield from reversed([(i, {**record, "number": first + i}, "") for i, record in enumerate(records)])


@pytest.fixture(params=["memory://bucket/out.jsonl", "file://{}/new/out.jsonl", "{}/out.jsonl"])
def path(request, tmp_path):
    fsspec.filesystem("memory").store.clear()
    return request.param.format(tmp_path)


def content(path):
    with fsspec.open(path, "rt", encoding="utf-8") as file:
        return file.read()


def names(path):
    system, path_there = fsspec.core.url_to_fs(path)
    return sorted(name.rpartition("/")[2] for name in system.find(path_there.rpartition("/")[0]) if "/out" in name)


def test_an_output_is_resumed_wherever_it_is(path, tmp_path):
    with gzip.open(tmp_path / "in.jsonl.gz", "wt", encoding="utf-8") as file:
        file.writelines(json.dumps(row) + "\n" for row in ROWS)
    fsspec.filesystem("memory").pipe_file("/bucket/in.jsonl.gz", (tmp_path / "in.jsonl.gz").read_bytes())
    source = "memory://bucket/in.jsonl.gz" if path.startswith("memory") else str(tmp_path / "in.jsonl.gz")
    output = text_files.Output(path, ABOUT)
    read = text_files.records(source, ["inputs"])
    text_files.process(itertools.islice(read, 6), output, 3, judge, False)
    assert text_files.Output(path, ABOUT, writes=False).num_done == 6  # as a kill would leave it
    again = text_files.Output(path, ABOUT)
    assert text_files.process(text_files.records(source, ["inputs"]), again, 3, judge, False) == 11
    again.close()
    rows = [json.loads(line) for line in content(path).splitlines()]
    assert rows == [{**row, "number": i} for i, row in enumerate(ROWS)]
    assert names(path) == ["out.jsonl", "out.jsonl.about.json"]
    done = text_files.Output(path, ABOUT)
    assert done.num_done == 11
    done.close()
    assert len(content(path).splitlines()) == 11
    with pytest.raises(InputError, match=f"The output {re.escape(path)} was made with another step"):
        text_files.Output(path, {**ABOUT, "step": 4})


def processed(source, path, stop=None):
    """Makes the output of the first lines, as a command that is stopped after them; returns the number of lines."""
    with text_files.Output(path, {**ABOUT, "input": source}) as output:
        read = text_files.records(source, ["inputs"])
        return text_files.process(itertools.islice(read, stop), output, 3, judge, False)


def written(path, rows):
    with fsspec.open(path, "wt", encoding="utf-8") as file:
        file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


@pytest.mark.parametrize("edited", [{"inputs": "another line"}, None], ids=["changed", "removed"])
def test_lines_of_an_edited_input_are_never_continued(path, edited):
    source = path.replace("out.jsonl", "in.jsonl")
    fsspec.core.url_to_fs(source)[0].makedirs(source.rpartition("/")[0], exist_ok=True)
    written(source, ROWS)
    assert processed(source, path, 6) == 6
    written(source, [*ROWS[:2], *([edited] if edited else []), *ROWS[3:]])
    before = content(path)
    with pytest.raises(InputError, match=f"has 6 lines of another text: {re.escape(source)} has changed since"):
        processed(source, path)
    assert content(path) == before
    written(source, ROWS[:5])
    with pytest.raises(InputError, match="has 6 lines of another text"):
        processed(source, path)
    written(source, [*ROWS, {"inputs": "one more"}])  # lines that are added at the end are another matter
    assert processed(source, path) == 12
    assert [json.loads(line)["inputs"] for line in content(path).splitlines()][5:7] == ["line 5 ș", "line 6 ș"]


def test_lines_without_a_digest_are_written_again(tmp_path):
    path = str(tmp_path / "out.jsonl")
    written(tmp_path / "in.jsonl", ROWS)
    processed(str(tmp_path / "in.jsonl"), path, 6)
    whole = content(path)
    with open(path, "a") as file:  # a window that was written, and then the machine stood still
        file.write('{"inputs": "line 6"}\n{"inp')
    assert processed(str(tmp_path / "in.jsonl"), path) == 11
    assert content(path).startswith(whole) and len(content(path).splitlines()) == 11
    (tmp_path / "out.jsonl").write_text(whole)
    with pytest.raises(InputError, match="has 6 lines, and 11 were written to it"):
        processed(str(tmp_path / "in.jsonl"), path)


@pytest.mark.parametrize("ending", [".csv", ".tsv", ".parquet", ".jsonl.gz", ".txt.ZST", ".xlsx"])
def test_an_output_whose_ending_promises_another_format_is_refused(ending, tmp_path):
    path = f"{tmp_path}/out{ending}"
    with pytest.raises(InputError, match=r"out\.\S+ would hold lines, and \.\w+ promises another format; give a path"):
        text_files.Output(path, ABOUT)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("name", "line"),
    [("out.ndjson", '{"a": 1}'), ("out.JSONL", '{"a": 1}'), ("out.txt", "text"), ("out.de", "text"), ("out", "text")],
)
def test_records_go_to_json_lines_and_texts_to_any_other_ending(name, line, tmp_path):
    with text_files.Output(str(tmp_path / name), ABOUT) as output:
        output.write({"a": 1}, "text")
    assert (tmp_path / name).read_text() == f"{line}\n"


def test_an_output_that_was_killed_in_its_first_window_is_begun_again(tmp_path):
    path = str(tmp_path / "out.jsonl")
    source = str(tmp_path / "in.jsonl")
    written(source, ROWS)
    assert processed(source, path) == 11
    whole = content(path)
    (tmp_path / "out.jsonl").write_text('{"inputs": "of no text"}\n{"inp')
    (tmp_path / "out.jsonl.about.json").write_text(json.dumps({**ABOUT, "input": source}))
    assert processed(source, path) == 11 and content(path) == whole
    for junk in ("", "[]", "{", '{"done": 5}', '{"done": ["a", 5], "step": 3}'):
        (tmp_path / "out.jsonl.about.json").write_text(junk)
        with pytest.raises(InputError, match=r"exists, and no .*out.jsonl.about.json says what it was made with"):
            processed(source, path)


def test_a_full_disk_is_said(tmp_path):
    output = text_files.Output(str(tmp_path / "out.jsonl"), ABOUT)
    output._file.close()
    output._file = open("/dev/full", "w")
    output.write({"a": 1}, "")
    with pytest.raises(StorageError, match=r"cannot be written any more \(No space left on device\); make room"):
        output.flush("digest")
    output._file = None


def test_parts_that_a_kill_left_behind_are_not_counted_twice():
    system = fsspec.filesystem("memory")
    path = "memory://bucket/out.txt"
    system.store.clear()
    output = text_files.Output(path, ABOUT)
    for text in ("one", "two\nlines", "three"):
        output.write({}, text)
        output.flush("digest")
    assert text_files.Output(path, ABOUT).num_done == 3
    system.pipe_file("/bucket/out.txt", b"one\ntwo lines\n")  # the whole, written before its parts were taken away
    again = text_files.Output(path, ABOUT)
    assert again.num_done == 3
    again.close()
    assert content(path) == "one\ntwo lines\nthree\n"
    assert names(path) == ["out.txt", "out.txt.about.json"]


@pytest.mark.parametrize("address", ["nowhere://a/b.jsonl", "http://127.0.0.1:9/b.jsonl"])
def test_addresses_that_cannot_be(address, monkeypatch):
    monkeypatch.setattr(text_files, "POLICY", text_files.remote.ReadPolicy(timeout_seconds=2.0, attempts=1))
    with pytest.raises(InputError, match=f"The output {address} cannot be written"):
        text_files.Output(address, ABOUT)
    with pytest.raises(InputError, match=f"The input {address} cannot be read"):
        list(text_files.records(address, ["inputs"]))


def test_inputs_that_are_cut_off_or_not_there(tmp_path):
    (tmp_path / "cut.jsonl.gz").write_bytes(gzip.compress(json.dumps(ROWS[0]).encode() * 99)[:-9])
    with pytest.raises(InputError, match=r"cut.jsonl.gz cannot be read \(Compressed file ended"):
        list(text_files.records(str(tmp_path / "cut.jsonl.gz"), ["inputs"]))
    with pytest.raises(InputError, match="does not exist; give a .txt"):
        list(text_files.records(str(tmp_path / "none.txt"), ["inputs"]))
    (tmp_path / "no.jsonl.xz").write_bytes(b"no xz here")
    with pytest.raises(InputError, match=r"no.jsonl.xz cannot be read \(Input format not supported"):
        list(text_files.records(str(tmp_path / "no.jsonl.xz"), ["inputs"]))
    assert text_files.num_lines(str(tmp_path / "no.jsonl.xz")) is None
    days = pyarrow.array([1 << 24], pyarrow.int32()).cast(pyarrow.date32())  # of the year 47904
    pyarrow.parquet.write_table(pyarrow.table({"inputs": ["a"], "day": days}), tmp_path / "day.parquet")
    with pytest.raises(InputError, match=r"day.parquet cannot be read as parquet \(date value out of range"):
        list(text_files.records(str(tmp_path / "day.parquet"), ["inputs"]))
