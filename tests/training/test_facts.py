"""What the processes of a run compare about its data and its programs: each kind of difference alone, by its name."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import sys
import types
from pathlib import Path

import pytest
from fsspec import get_filesystem_class

import tasks.demo  # noqa: F401  registers the task
from limba.config import DataConfig
from limba.data.sources.units import UnitSource
from limba.data.tasks import resolve_task
from limba.sharding import consistency
from limba.training.checks import facts_of_data
from tests.bucket_server import emulated

LINE = '{"text": "line %d of a text"}\n'


@pytest.fixture
def data(tmp_path: Path) -> DataConfig:
    for name in ("a", "b"):
        (tmp_path / f"{name}.jsonl").write_text("".join(LINE % number for number in range(5000)))  # more than 128 KiB
    return DataConfig(
        "demo_span_corruption",
        {"inputs": 64},
        8,
        vocabulary="byte",
        data_files=f"{tmp_path}/*.jsonl",
        num_data_shards=4,
    )


def facts(data: DataConfig) -> dict[str, str]:
    return facts_of_data(resolve_task(data), data)


def said(own_facts: dict[str, str], first: dict[str, str]) -> str:
    return consistency.sentence([{}, consistency.differing(own_facts, first)])


def test_the_same_text_is_alike(data: DataConfig) -> None:
    first = facts(data)
    assert facts(data) == first and len(first) >= 2 + 2 + 2 + 1  # vocabularies, parts, files, order


def test_a_file_more_and_a_file_less(data: DataConfig, tmp_path: Path) -> None:
    first = facts(data)
    (tmp_path / "c.jsonl").write_text(LINE % 1)
    more = facts(data)
    assert f"process 1 has the corpus part {tmp_path}/c.jsonl" in said(more, first)
    assert "which process 0 does not have" in said(more, first)
    assert f"process 1 does not have the corpus part {tmp_path}/c.jsonl" in said(first, more)


@pytest.mark.parametrize("where", ["head", "tail"])
def test_another_text_of_the_same_size(where: str, data: DataConfig, tmp_path: Path) -> None:
    first = facts(data)
    path = tmp_path / "b.jsonl"
    text = path.read_text()
    path.write_text(
        text.replace("line 7 ", "line 8 ", 1) if where == "head" else text.replace("line 4990 ", "line 4991 ")
    )
    assert path.stat().st_size == len(text)
    (name,) = consistency.differing(facts(data), first)
    assert name == f"the file {path} of demo_span_corruption with content"


def test_another_object_of_the_same_size(data: DataConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    in_bucket = dataclasses.replace(data, data_files="gs://bucket/*.jsonl")
    with emulated(monkeypatch) as server:
        server.put("bucket", "a.jsonl", (LINE % 1).encode())
        first = facts(in_bucket)
        server.put("bucket", "a.jsonl", (LINE % 2).encode())
        get_filesystem_class("gs").clear_instance_cache()  # of another host
        (name,) = consistency.differing(facts(in_bucket), first)
    assert name == "the file gs://bucket/a.jsonl of demo_span_corruption with content"


def test_another_order_of_the_same_parts(data: DataConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    first = facts(data)
    listed = UnitSource.list_shards
    monkeypatch.setattr(UnitSource, "list_shards", lambda source, split: list(reversed(listed(source, split))))
    assert set(consistency.differing(facts(data), first)) == {"the order of the corpus of demo_span_corruption"}


def test_another_vocabulary_at_the_same_path(data: DataConfig, vocabulary: Path, tmp_path: Path) -> None:
    model = tmp_path / "own.model"
    model.write_bytes(vocabulary.read_bytes())
    own_data = dataclasses.replace(data, vocabulary=str(model))
    first = consistency.differing(facts(own_data), facts(dataclasses.replace(data, vocabulary=str(vocabulary))))
    assert not first  # the path is free
    assert "the vocabulary of demo_span_corruption's inputs with content" in said(facts(own_data), facts(data))


@pytest.mark.parametrize("package", ["jax", "jaxlib", "libtpu", "limba", "numpy", "tensorflow", "seqio", "optax"])
def test_another_version(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    version = importlib.metadata.version
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "1.2.3" if name == "libtpu" else version(name))
    first = consistency.versions()
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "0.0.9" if name == package else first_of(name))

    def first_of(name: str) -> str:
        return "1.2.3" if name == "libtpu" else version(name)

    name = package.replace("limba", "Limba")
    assert f"process 1 has {name} 0.0.9, process 0 has {first[name]};" in said(consistency.versions(), first)


def test_another_python(monkeypatch: pytest.MonkeyPatch) -> None:
    first = consistency.versions()
    monkeypatch.setattr(consistency.platform, "python_version_tuple", lambda: ("3", "14", "1"))
    assert f"process 1 has Python 3.14, process 0 has {first['Python']}" in said(consistency.versions(), first)


def test_another_module_of_tasks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("tasks.own")
    module.__file__ = str(tmp_path / "own.py")
    monkeypatch.setitem(sys.modules, "tasks.own", module)
    contents = []
    for text in ("a = 1\n", "a = 2\n"):
        (tmp_path / "own.py").write_text(text)
        contents.append(consistency.code(["tasks.own"]))
    assert "process 1 has the module tasks.own with content" in said(*contents)
