"""Files of the hub's data sets, after `hf download`, are read from its library's cache as local ones are."""

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

from limba.config import InputError
from limba.tools.results.suites import read_suite, read_task
from tests.http_server import DataHubHandler, as_hub, serving


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, str]]:
    """A hub with the folder hub/me/data; yields the variables by which `hf` asks it and fills the same cache."""
    (tmp_path / "hub/me/data/main").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HF_TOKEN", raising=False)
    with serving(tmp_path / "hub", handler=DataHubHandler) as server:
        endpoint = as_hub(server, tmp_path / "cache", monkeypatch)
        yield {"HF_ENDPOINT": endpoint, "HF_HUB_CACHE": str(tmp_path / "cache"), "HF_HUB_OFFLINE": "0"}


def downloaded(suite: str, data: str, variables: dict[str, str]) -> list[str]:
    """Runs the command in each sentence about a missing file until none is missing; returns the commands."""
    commands = list[str]()
    while True:
        try:
            for task in read_suite(suite).tasks:
                read_task(task, data)
        except InputError as error:
            (command,) = re.findall(r" is not on this machine yet; run (hf download .*)\.$", str(error))
            assert command not in commands, "it is there now"
            commands.append(command)
            program, *arguments = shlex.split(command)
            path = Path(sys.executable).parent / program
            subprocess.run([path, *arguments], env={**os.environ, **variables}, check=True, capture_output=True)
        else:
            return commands


def _row(number: int) -> dict[str, object]:
    """Returns a row that has the columns of every kind, as data sets of the hub have them."""
    return {
        "sen": f"The child {number} reads.",
        "wrong_sen": f"The child {number} read.",
        "text": f"a text of {number} words",
        "label": number % 2,
        "sentence1": f"one {number}",
        "sentence2": f"two {number}",
        "score": number / 4,
        "tokens": ["Ana", "reads", f"book{number}"],
        "ner_tags": [1, 0, 0],
        "upos": ["PROPN", "VERB", "NOUN"],
    }


SUITE = """
text/BitsPerByte.texts = ('test.KIND',)
pairs/MinimalPairs.file = 'test.KIND'
names/NamedEntities.names = ('O', 'B-PER')
tags/PartOfSpeech.tags = 'upos'
alike/Similarity.score = 'score'
""" + "".join(
    f"{name}/{kind}.train = 'train.KIND'\n{name}/{kind}.test = 'test.KIND'\n"
    for name, kind in [
        ("names", "NamedEntities"),
        ("tags", "PartOfSpeech"),
        ("classes", "Classification"),
        ("alike", "Similarity"),
    ]
)


@pytest.mark.slow
def test_parquet_of_the_hub_is_read_as_local_json_lines_are_for_each_kind_of_task(hub, tmp_path) -> None:
    folder = tmp_path / "hub" / "me" / "data" / "main"
    (tmp_path / "local").mkdir()
    for name, numbers in {"train": range(20), "test": range(100, 112)}.items():
        rows = list(map(_row, numbers))
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), folder / f"{name}.parquet")
        (tmp_path / "local" / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "local.gin").write_text(SUITE.replace("KIND", "jsonl"))
    (tmp_path / "named.gin").write_text(SUITE.replace("'t", "'hub:me/data/t").replace("KIND", "parquet"))
    (tmp_path / "set.gin").write_text(SUITE.replace("KIND", "parquet"))
    assert sorted(downloaded("./set.gin", "hub:me/data", hub)) == [
        "hf download me/data test.parquet --repo-type=dataset",
        "hf download me/data train.parquet --repo-type=dataset",
    ]
    (folder / "test.parquet").unlink()  # the hub is not asked again
    local = {task.name: read_task(task, str(tmp_path / "local")) for task in read_suite("./local.gin").tasks}
    for suite, data in {"named": ".", "set": "hub:me/data"}.items():
        for task in read_suite(f"./{suite}.gin").tasks:
            task_read = read_task(task, data)
            wanted = local[task.name]
            assert task_read.floors() == wanted.floors(), task
            if task_read.parts and wanted.parts:
                for mine, theirs in zip(task_read.parts[:3], wanted.parts[:3], strict=True):
                    assert [example._replace(where="", document="") for example in mine] == [
                        row._replace(where="", document="") for row in theirs
                    ]
            else:
                mine, theirs = (
                    reading.task.read(place_read) for reading, place_read in ((task_read, data), (wanted, "local"))
                )
                assert (list(mine.values()) if isinstance(mine, dict) else mine) == (
                    list(theirs.values()) if isinstance(theirs, dict) else theirs
                )


def test_a_revision_of_a_data_set_is_a_file_of_its_own(hub, tmp_path) -> None:
    for revision, text in {"v1": "old", "main": "new"}.items():
        folder = tmp_path / "hub" / "me" / "data" / revision
        folder.mkdir(exist_ok=True)
        (folder / "t.txt").write_text(f"{text} text\n")
    (tmp_path / "suite.gin").write_text("a/BitsPerByte.texts = ('hub:me/data@v1/t.txt', 'hub:me/data/t.txt')\n")
    assert downloaded("./suite.gin", ".", hub) == [
        "hf download me/data t.txt --repo-type=dataset --revision=v1",
        "hf download me/data t.txt --repo-type=dataset",
    ]
    (task,) = read_suite("./suite.gin").tasks
    assert task.read(".") == {"hub:me/data@v1/t.txt": ["old text"], "hub:me/data/t.txt": ["new text"]}
    (tmp_path / "suite.gin").write_text("a/BitsPerByte.texts = ('hub:data/t.txt',)\n")
    with pytest.raises(InputError, match="hub:data/t.txt is not a file of a data set; write hub:user/name/path, or"):
        read_task(read_suite("./suite.gin").tasks[0], ".")
