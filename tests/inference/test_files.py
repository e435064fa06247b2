"""Lines in and out, on disk and in an emulated bucket: order kept, a stopped run resumes, bad addresses named."""

import gzip
import itertools
import json
import re

import fsspec
import pytest

from limba.config import InputError
from limba.inference import files as text_files

pytestmark = [
    pytest.mark.fast,
    pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning"),  # an output is left as a kill leaves it
]

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
    system, place = fsspec.core.url_to_fs(path)
    return sorted(name.rpartition("/")[2] for name in system.find(place.rpartition("/")[0]) if "/out" in name)


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


def test_parts_that_a_kill_left_behind_are_not_counted_twice():
    system, path = fsspec.filesystem("memory"), "memory://bucket/out.txt"
    system.store.clear()
    output = text_files.Output(path, ABOUT)
    for text in ("one", "two\nlines", "three"):
        output.write({}, text)
        output.flush()
    assert text_files.Output(path, ABOUT).num_done == 3
    system.pipe_file("/bucket/out.txt", b"one\ntwo lines\n")  # the whole, written before its parts were taken away
    again = text_files.Output(path, ABOUT)
    assert again.num_done == 3
    again.close()
    assert content(path) == "one\ntwo lines\nthree\n"
    assert names(path) == ["out.txt", "out.txt.about.json"]


@pytest.mark.parametrize("place", ["nowhere://a/b.jsonl", "http://127.0.0.1:9/b.jsonl"])
def test_addresses_that_cannot_be(place, monkeypatch):
    monkeypatch.setattr(text_files, "POLICY", text_files.remote.ReadPolicy(timeout_seconds=2.0, attempts=1))
    with pytest.raises(InputError, match=f"The output {place} cannot be written"):
        text_files.Output(place, ABOUT)
    with pytest.raises(InputError, match=f"The input {place} cannot be read"):
        list(text_files.records(place, ["inputs"]))


def test_inputs_that_are_cut_off_or_not_there(tmp_path):
    (tmp_path / "cut.jsonl.gz").write_bytes(gzip.compress(json.dumps(ROWS[0]).encode() * 99)[:-9])
    with pytest.raises(InputError, match=r"cut.jsonl.gz cannot be read \(Compressed file ended"):
        list(text_files.records(str(tmp_path / "cut.jsonl.gz"), ["inputs"]))
    with pytest.raises(InputError, match="does not exist; give a .txt"):
        list(text_files.records(str(tmp_path / "none.txt"), ["inputs"]))
