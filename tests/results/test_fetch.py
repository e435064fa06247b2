"""`limba results fetch`: what it says and asks, from servers of this machine's, and downloads that break off.

Files of the hub's data sets are read from its library's cache as local ones are.
"""

import gzip
import json
import os
import pty
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

from limba.api import size_text
from limba.cli import main
from limba.config import InputError
from limba.tools.results.suites import read_suite, read_task
from tests.http_server import DataHubHandler, FileServer, as_hub, lost, serving, truncated

FETCHED = """
suite.sources = {
    'a.tsv': ('ADDRESS/a.tsv', 'MIT'),
    'b.jsonl.gz': ('hub:me/data/sub/b.jsonl', 'CC0'),
}
a/Similarity.train = 'a.tsv'
a/Similarity.test = 'none.tsv'
b/Classification.train = 'b.jsonl.gz'
b/Classification.test = 'b.jsonl.gz'
"""


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FileServer]:
    """A server with one file of a suite, and a hub with the other; the suite is suite.gin."""
    for name, text in {"served/a.tsv": "A\tB\n", "hub/me/data/main/sub/b.jsonl": '{"a": 1}\n' * 9}.items():
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HF_TOKEN", raising=False)
    with serving(tmp_path / "served") as files, serving(tmp_path / "hub", handler=DataHubHandler) as hub:
        as_hub(hub, tmp_path / "cache", monkeypatch)
        (tmp_path / "suite.gin").write_text(FETCHED.replace("ADDRESS", files.url("").rstrip("/")))
        yield files


FETCH = ["results", "fetch", "./suite.gin", "--data=out"]


def test_files_of_a_suite_are_said_with_licence_and_size_then_downloaded(server, tmp_path, capsys) -> None:
    assert main.main(FETCH) == 2
    said = capsys.readouterr()
    assert f"a.tsv: 4 bytes from {server.url('a.tsv')}, MIT" in said.out and "none.tsv: not downloaded" in said.out
    assert "b.jsonl.gz: 81 bytes from hub:me/data/sub/b.jsonl, CC0" in said.out
    assert "Nothing was downloaded; answer y, or add --yes." in said.err and not (tmp_path / "out").exists()
    assert not any(method == "GET" and name == "a.tsv" for method, name in server.requests)
    assert main.main([*FETCH, "--yes"]) == 0
    assert (tmp_path / "out" / "a.tsv").read_text() == "A\tB\n"
    assert gzip.decompress((tmp_path / "out" / "b.jsonl.gz").read_bytes()) == b'{"a": 1}\n' * 9
    capsys.readouterr()
    assert main.main(FETCH) == 0
    assert "a.tsv: is there" in capsys.readouterr().out


@pytest.mark.parametrize("answer", ["y", "n"])
def test_a_download_is_asked_for_on_a_terminal(answer, server, tmp_path, monkeypatch, capsys) -> None:
    master, terminal = pty.openpty()
    os.write(master, f"{answer}\n".encode())
    with open(terminal) as keyboard:
        monkeypatch.setattr(sys, "stdin", keyboard)
        assert main.main(FETCH) == {"y": 0, "n": 2}[answer]
    os.close(master)
    assert "Download 2 files to out? [y/N]" in capsys.readouterr().out
    assert (tmp_path / "out" / "a.tsv").exists() == (answer == "y")


def test_a_file_that_is_gone_is_said(server, tmp_path, capsys) -> None:
    for name, place in {"a.tsv": "served/a.tsv", "b.jsonl": "hub/me/data/main/sub/b.jsonl"}.items():
        content = (tmp_path / place).read_text()
        (tmp_path / place).unlink()
        assert main.main([*FETCH, "--yes"]) == 2
        error = capsys.readouterr().err
        assert f"{name} cannot be downloaded (" in error and "404" in error and error.count("\n") == 1, error
        assert not (tmp_path / "out").exists()
        (tmp_path / place).write_text(content)


@pytest.mark.parametrize("fault", [truncated, lost])
def test_a_download_that_breaks_off_leaves_nothing_and_is_repeated(fault, server, tmp_path, capsys) -> None:
    suite = (tmp_path / "suite.gin").read_text()
    (tmp_path / "served" / "z.tsv").write_text("Z\tZ\n" * 500)
    (tmp_path / "suite.gin").write_text(suite.replace("'hub:me/data/sub/b.jsonl'", f"'{server.url('z.tsv')}'"))
    server.fail("z.tsv", fault)
    assert main.main([*FETCH, "--yes"]) == 2
    error = capsys.readouterr().err
    assert "z.tsv cannot be downloaded (" in error and "try again" in error and error.count("\n") == 1, error
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["a.tsv"], "the file before it stays, alone"
    assert main.main([*FETCH, "--yes"]) == 0
    assert gzip.decompress((tmp_path / "out" / "b.jsonl.gz").read_bytes()) == b"Z\tZ\n" * 500
    assert server.requests["GET", "a.tsv"] == 1 and server.requests["GET", "z.tsv"] == 2


def _row(number: int) -> dict[str, object]:
    """Returns a row that has the columns of every kind, as data sets of the hub have them."""
    words = ["Ana", "reads", f"book{number}"]
    return {
        "sen": f"The child {number} reads.",
        "wrong_sen": f"The child {number} read.",
        "text": f"a text of {number} words",
        "label": number % 2,
        "sentence1": f"one {number}",
        "sentence2": f"two {number}",
        "score": number / 4,
        "tokens": words,
        "ner_tags": [1, 0, 0],
        "upos": ["PROPN", "VERB", "NOUN"],
        "question": f"Who reads book{number}?",
        "context": " ".join(words),
        "answers": {"text": ["Ana", "Ana"], "answer_start": [0, 0]},
        "choice0": "Ana",
        "choice1": "Ion",
    }


HUB_SUITE = """
text/BitsPerByte.texts = ('test.KIND',)
text/BitsPerByte.train = 'train.KIND'
pairs/MinimalPairs.file = 'test.KIND'
choices/MultipleChoice.file = 'test.KIND'
choices/MultipleChoice.answers = ('choice0', 'choice1')
names/NamedEntities.names = ('O', 'B-PER')
tags/PartOfSpeech.tags = 'upos'
alike/Similarity.score = 'score'
writing/Writing.source = 'sentence1'
writing/Writing.target = 'sentence2'
""" + "".join(
    f"{name}/{kind}.train = 'train.KIND'\n{name}/{kind}.test = 'test.KIND'\n"
    for name, kind in [
        ("names", "NamedEntities"),
        ("tags", "PartOfSpeech"),
        ("classes", "Classification"),
        ("alike", "Similarity"),
        ("questions", "Questions"),
        ("writing", "Writing"),
    ]
)


def test_parquet_of_the_hub_is_read_as_local_json_lines_are_for_each_kind_of_task(server, tmp_path, capsys) -> None:
    place = tmp_path / "hub" / "me" / "data" / "main"
    (place / "README.md").write_text("---\nlicense: cc0-1.0\n---\n")
    (tmp_path / "local").mkdir()
    for name, numbers in {"train": range(20), "test": range(100, 112)}.items():
        rows = list(map(_row, numbers))
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), place / f"{name}.parquet")
        (tmp_path / "local" / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "local.gin").write_text(HUB_SUITE.replace("KIND", "jsonl"))
    (tmp_path / "named.gin").write_text(HUB_SUITE.replace("'t", "'hub:me/data/t").replace("KIND", "parquet"))
    (tmp_path / "set.gin").write_text(HUB_SUITE.replace("KIND", "parquet"))
    command = ["results", "--suite=./named.gin", "--check-contamination=local/train.jsonl"]
    said = "test.parquet is not on this machine yet; download it by limba results fetch SUITE."
    assert main.main(command) == 2 and f"hub:me/data/{said}" in capsys.readouterr().err
    assert main.main(["results", "fetch", "./named.gin", "--yes"]) == 0
    size = (place / "test.parquet").stat().st_size
    said = capsys.readouterr().out
    assert f"hub:me/data/test.parquet: {size_text(size)} from hub:me/data/test.parquet, cc0-1.0" in said, said
    assert main.main(["results", "fetch", "./set.gin", "--data=hub:me/data"]) == 0
    assert "test.parquet: is there" in (said := capsys.readouterr().out) and "Nothing is downloaded" in said

    (place / "test.parquet").unlink()  # the hub is not asked again
    assert main.main(command) == 0, capsys.readouterr().err
    local = {task.name: read_task(task, str(tmp_path / "local")) for task in read_suite("./local.gin").tasks}
    for suite, data in {"named": ".", "set": "hub:me/data"}.items():
        for task in read_suite(f"./{suite}.gin").tasks:
            found, wanted = read_task(task, data), local[task.name]
            assert list(found.tests) == list(wanted.tests) and len(found.tests) == 12, task
            assert found.floors() == wanted.floors(), task
            if found.parts and wanted.parts:
                for mine, theirs in zip(found.parts[:3], wanted.parts[:3], strict=True):
                    assert [each._replace(where="") for each in mine] == [each._replace(where="") for each in theirs]


def test_a_revision_of_a_data_set_is_a_file_of_its_own(server, tmp_path, capsys) -> None:
    for revision, text in {"v1": "old", "main": "new"}.items():
        place = tmp_path / "hub" / "me" / "data" / revision
        place.mkdir(exist_ok=True)
        (place / "t.txt").write_text(f"{text} text\n")
    (tmp_path / "suite.gin").write_text("a/BitsPerByte.texts = ('hub:me/data@v1/t.txt', 'hub:me/data/t.txt')\n")
    assert main.main([*FETCH, "--yes"]) == 0
    assert "from hub:me/data@v1/t.txt, its card names no licence" in capsys.readouterr().out
    assert list(read_task(read_suite("./suite.gin").tasks[0], ".").tests) == ["old text", "new text"]
    (tmp_path / "suite.gin").write_text("a/BitsPerByte.texts = ('hub:data/t.txt',)\n")
    with pytest.raises(InputError, match="hub:data/t.txt is no file of a data set; write hub:user/name/path, or"):
        read_task(read_suite("./suite.gin").tasks[0], ".")
