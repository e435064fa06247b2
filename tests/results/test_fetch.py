"""`limba results fetch`: what it says and asks, from servers of this machine's, and downloads that break off."""

import gzip
import os
import pty
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from limba.cli import main
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
