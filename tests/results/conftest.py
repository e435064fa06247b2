"""The command runs in this process, in a folder with a suite of two tasks."""

import json
from pathlib import Path

import pytest

SUITE = """
suite.language = 'en'
agreement/MinimalPairs.file = 'pairs.tsv'
text/BitsPerByte.texts = ('held.txt',)
"""


@pytest.fixture
def workdir(tmp_path: Path, corpus: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    texts = [json.loads(line)["text"] for line in corpus.read_text().splitlines()]
    (tmp_path / "train.txt").write_text("\n".join(texts[:20]))
    (tmp_path / "held.txt").write_text("\n".join(texts[20:22]))
    rows = [
        f"One of them {right} here.\tOne of them {wrong} here.\tverb"
        for right, wrong in [("is", "are"), ("was", "were")]
    ]
    (tmp_path / "pairs.tsv").write_text("\n".join(["good\tbad\tphenomenon", *rows]) + "\n")
    (tmp_path / "suite.gin").write_text(SUITE)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(autouse=True)
def stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLIBC_TUNABLES", "")  # else the command starts the program again
