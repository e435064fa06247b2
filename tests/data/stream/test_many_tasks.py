"""A mixture of many tasks holds less of each: sizes follow from the number of tasks alone, and open units are few."""

import gzip
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from limba.config import DataConfig
from limba.data.dataset import rows_per_block
from limba.data.objectives import derive_lengths, span_corruption, tokenize_documents
from limba.data.registry import Feature, MixtureRegistry, TaskRegistry
from limba.data.sources import FileSource, chunk_reader
from limba.data.sources.order import open_units
from limba.data.sources.readers import chunk_bytes
from limba.data.stream.shard import Recipe, Shard, ShardPlace
from limba.data.tasks import parts_of, resolve_task, unit_sources
from limba.data.vocabulary import ByteVocabulary

NUM_TASKS = 20
NUM_FILES = 30
DATA = DataConfig("many", {"inputs": 32}, batch_size=64, num_data_shards=2, validation_percent=0.0)


@pytest.fixture
def registered(tmp_path: Path) -> Iterator[None]:
    """A mixture of tasks, the first of which has enough files for all units that are read at once."""
    text = "".join(json.dumps({"text": f"{number} {'word ' * 40}"}) + "\n" for number in range(60))
    for number in range(NUM_TASKS):
        (tmp_path / str(number)).mkdir()
        for file in range(NUM_FILES if number == 0 else 1):
            (tmp_path / str(number) / f"{file:02}.jsonl").write_text(text)
    (tmp_path / "0" / "00.jsonl").unlink()
    (tmp_path / "0" / "00.jsonl.gz").write_bytes(gzip.compress(text.encode() * 40))  # one unit of several chunks
    features = dict.fromkeys(("inputs", "targets"), Feature(ByteVocabulary(100)))
    names = [f"many_{number}" for number in range(NUM_TASKS)]
    for number, name in enumerate(names):
        source = FileSource(f"{tmp_path}/{number}/*.jsonl*", validation_percent=0.0)
        TaskRegistry.add(name, source, features, [tokenize_documents, span_corruption])
    MixtureRegistry.add("many", [(name, 1.0) for name in names])
    yield
    MixtureRegistry.remove("many")
    for name in names:
        TaskRegistry.remove(name)


def test_sizes_are_those_of_the_page() -> None:
    """docs/development/architecture.md has the rules; they are part of the order of the data."""
    assert [open_units(count) for count in (1, 16, 17, 100, 256, 1000)] == [16, 16, 15, 2, 1, 1]
    kib = [chunk_bytes(count) >> 10 for count in (1, 16, 20, 64, 256, 1000)]
    assert kib == [256, 256, 204, 64, 16, 16]
    assert [rows_per_block(count) for count in (1, 16, 17, 1000)] == [32, 32, 8, 8]


def test_a_task_is_read_in_the_sizes_of_its_mixture(registered: None) -> None:
    task = resolve_task(DATA)
    alone = unit_sources(TaskRegistry.get("many_0"))["many_0"]
    recipe = Recipe(task, derive_lengths(task, DATA.task_feature_lengths), DATA)
    of_task = recipe.sources["many_0"]
    assert (of_task.num_tasks, alone.num_tasks) == (NUM_TASKS, 1)  # the registered one is read by others too
    sizes = [sum(map(len, source.read("train", source.units("train")[0], 0) or ())) for source in (of_task, alone)]
    assert 200_000 < sizes[0] < 215_000 and 255_000 < sizes[1] < 265_000
    place = ShardPlace.beginning()
    for made, _ in zip(Shard(recipe, 0).read(ShardPlace.beginning()), range(250), strict=False):
        place = made.place
    parts = [part for part in place.rows["parts"] if part is not None]
    assert len(parts) == NUM_TASKS == len(parts_of(task))
    assert all(part["given"] < 8 for part in parts)  # rows of a block
    inner = place.rows["parts"][0]
    while "open" not in inner:
        inner = inner["before"]
    assert len(inner["open"]) == 3 * open_units(NUM_TASKS)


def test_the_oldest_units_of_all_sources_are_closed(registered: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The number of open files is per process: a thousand sources of 512 each would be refused by the system."""
    monkeypatch.setattr(chunk_reader.OpenUnits, "MOST", 3)
    monkeypatch.setattr(chunk_reader, "OPEN", chunk_reader.OpenUnits())
    sources = list(unit_sources(resolve_task(DATA)).values())
    expected = [[source.read("train", source.units("train")[0], chunk) for chunk in (0, 1)] for source in sources]
    again = list(unit_sources(resolve_task(DATA)).values())
    for chunk in (0, 1):  # all of them side by side
        for source, documents in zip(again, expected, strict=True):
            assert source.read("train", source.units("train")[0], chunk) == documents[chunk]
        if chunk == 0:
            assert len(chunk_reader.OPEN) == 3
