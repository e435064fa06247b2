"""Each epoch has every row once, shards differ by one row at most, and a resumed run reads on to the row."""

import contextlib
import dataclasses
import json
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
import seqio
import tensorflow as tf

import tasks.demo
import tasks.text_to_text  # noqa: F401  registers text_to_text
from limba.config import ConfigError, DataConfig, InputError
from limba.data.dataset import Dataset
from limba.data.deal import Deal, deal_of
from limba.data.objectives import SUPERVISED, derive_lengths
from limba.data.sources.order import Reading, shares
from limba.data.stream.stages import open_stream
from limba.data.tasks import resolve_task, source_of_files
from tests.data.text_files import FORMATS, write

CONFIG = DataConfig(
    "text_to_text",
    {"inputs": 16, "targets": 8},
    batch_size=32,
    vocabulary="byte",
    extra_ids=125,
    data_files="train.jsonl",
    column={"inputs": "a", "targets": "b"},
    num_epochs=1,
    seed=1,
)
EVERY = range(16)


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """3,072 pairs of very different lengths in one file of 1.6 MB, as a small fine-tuning set is."""
    draw = random.Random(5)
    path = tmp_path_factory.mktemp("pairs") / "train.jsonl"
    lines = [json.dumps({"a": f"{n} " + "x" * int(draw.paretovariate(1.2) * 120), "b": f"{n}"}) for n in range(3072)]
    path.write_text("\n".join(lines) + "\n")
    (path.parent / "validation.jsonl").write_text(json.dumps({"a": "a", "b": "b"}) + "\n")
    assert 2**20 < path.stat().st_size < 2**22
    return path


def texts_of(documents: Dataset) -> list[str]:
    return [element["text"].decode() for element in documents]


def files_of(path: Path) -> dict[str, str]:
    return {"train": str(path), "validation": str(path.parent / "validation.jsonl")}


def deal_of_files(files: Any, **changes: Any) -> Deal:
    """Returns how a run deals the rows of these files to its shards."""
    config = dataclasses.replace(CONFIG, **{"data_files": files, **changes})
    task = resolve_task(config)
    return deal_of(task, derive_lengths(task, config.task_feature_lengths), config, wants_epochs=True)


@contextlib.contextmanager
def opened(files: Any, shards: Sequence[int] | None = None, deal: Deal | None = None, **changes: Any) -> Iterator[Any]:
    config = dataclasses.replace(CONFIG, **{"data_files": files, **changes})
    task = resolve_task(config)
    lengths = derive_lengths(task, config.task_feature_lengths)
    deal = deal_of_files(files, **changes) if deal is None else deal
    shards = range(config.batch_size // config.rows_per_shard) if shards is None else shards
    with contextlib.closing(open_stream(task, lengths, config, shards, deal)) as stream:
        yield stream


def numbers(rows: dict[int, dict[str, np.ndarray]], shards: Sequence[int] | None = None) -> list[int]:
    """Returns the numbers that the rows' targets spell, in the order of the global batch."""
    spelled = []
    for shard in sorted(rows) if shards is None else shards:
        for row in rows[shard]["targets"]:
            text = bytes(int(token) - 3 for token in row if token > 2)
            spelled += [int(text)] if text else []
    return spelled


@pytest.mark.parametrize("num_shards", [1, 4, 16])
def test_an_epoch_of_3072_pairs_is_96_full_steps(pairs: Path, num_shards: int) -> None:
    with opened(files_of(pairs), num_data_shards=num_shards, num_epochs=2) as stream:
        batches = [numbers(rows) for rows in stream]
    assert [len(batch) for batch in batches] == [32] * 192
    first, second = (sum(batches[part : part + 96], []) for part in (0, 96))
    assert sorted(first) == sorted(second) == list(range(3072))
    assert first != second and first != sorted(first)


def test_two_hosts_read_the_same_batches_as_one(pairs: Path) -> None:
    with (
        opened(files_of(pairs)) as whole,
        opened(files_of(pairs), range(8)) as a,
        opened(files_of(pairs), range(8, 16)) as b,
    ):
        for _ in range(96):
            one = next(whole)
            left = next(a)
            right = next(b)
            assert numbers(one) == numbers(left | right, EVERY)
        assert [next(stream, None) for stream in (whole, a, b)] == [None] * 3


@pytest.mark.parametrize(("num_pairs", "num_epochs"), [(1, 3), (33, 3), (1001, 2)])
def test_only_the_very_last_batch_is_not_full(tmp_path: Path, num_pairs: int, num_epochs: int) -> None:
    path = tmp_path / "train.jsonl"
    path.write_text("".join(json.dumps({"a": "a" * n, "b": f"{n}"}) + "\n" for n in range(1, num_pairs + 1)))
    (tmp_path / "validation.jsonl").write_text(json.dumps({"a": "a", "b": "b"}) + "\n")
    for num_shards in (4, 16):
        with opened(files_of(path), num_data_shards=num_shards, num_epochs=num_epochs) as stream:
            batches = [numbers(rows) for rows in stream]
            assert stream.epochs()["text_to_text"] == num_epochs
        assert len(batches) == -(-num_pairs * num_epochs // 32)
        assert all(len(batch) == 32 for batch in batches[:-1])
        assert Counter(sum(batches, [])) == dict.fromkeys(range(1, num_pairs + 1), num_epochs)


def test_an_estimated_number_of_rows_ends_at_whole_epochs_too(tmp_path: Path, monkeypatch: Any) -> None:
    """As files of the hub, which are counted by their footers: 16 shards have 62.5 of 1,000 rows."""
    monkeypatch.setattr("limba.data.sources.splits.COUNTED_BYTES", 0)
    of_split = {"train": 1000, "validation": 1}
    for split, size in of_split.items():
        columns = {"a": [f"a {n}" for n in range(size)], "b": [f"{n}" for n in range(size)]}
        pyarrow.parquet.write_table(pyarrow.table(columns), tmp_path / f"{split}.parquet")
    files = {split: str(tmp_path / f"{split}.parquet") for split in of_split}
    with opened(files, num_data_shards=16, num_epochs=3, batch_size=128) as stream:
        assert not deal_of_files(files, num_data_shards=16, num_epochs=3, batch_size=128).is_exact
        for _ in range(24):
            next(stream)
        assert stream.epochs() == {"text_to_text": 3.0}


def test_a_file_that_was_cut_since_it_was_counted_ends_the_run(pairs: Path, tmp_path: Path) -> None:
    path = tmp_path / "train.jsonl"
    path.write_bytes(pairs.read_bytes())
    (tmp_path / "validation.jsonl").write_bytes((pairs.parent / "validation.jsonl").read_bytes())
    deal = deal_of_files(files_of(path))
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:3000]) + b" " * len(b"".join(lines[3000:])))  # of the same size
    with opened(files_of(path), deal=deal) as stream, pytest.raises(InputError, match="was cut or replaced while"):
        for _ in stream:
            pass
    with opened(files_of(path), deal=deal, on_read_failure="skip") as stream:
        assert sum(len(numbers(rows)) for rows in stream) == 3000


@pytest.mark.parametrize(("name", "shuffle"), [("a.jsonl", False), *((name, True) for name in FORMATS)])
def test_every_format_is_dealt_evenly(tmp_path: Path, name: str, shuffle: bool) -> None:
    texts = [f"{number} " + "ord " * (number % 97 * 20) for number in range(300)]
    path = write(tmp_path / name, texts)
    source = source_of_files(str(path), "text", validation_percent=10.0)
    known = source.count("train")
    kept = set(source.texts("train"))
    assert known is not None and known.is_exact and known.total == len(kept) and 240 < known.total < 300
    by_shard = []
    for shard in range(3):
        reading = Reading("train", shard, 3, 3, shuffle, 2, 0, False)
        by_shard.append(texts_of(source.dataset(reading, known)))
    assert max(map(len, by_shard)) - min(map(len, by_shard)) <= 1
    whole = Counter(text.split(" ")[0] for texts in by_shard for text in texts)
    assert whole == dict.fromkeys((text.split(" ")[0] for text in kept), 2)


def test_large_parquet_files_are_dealt_by_what_their_footers_say(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr("limba.data.sources.splits.COUNTED_BYTES", 0)
    path = write(tmp_path / "a.parquet", [*map(str, range(300)), "", " "])
    exact = source_of_files({"train": str(path), "validation": str(path)})
    carved = source_of_files(str(path), "text", validation_percent=10.0)
    for source, claimed in ((exact, 302), (carved, 272)):
        known = source.count("train")
        assert known is not None and (known.total, known.is_exact, known.chunks) == (claimed, False, ())
        all_texts: list[str] = []
        for shard in range(4):
            reading = Reading("train", shard, 4, 3, True, 1, 0, False)
            all_texts += texts_of(source.dataset(reading, known))
        assert sorted(all_texts) == sorted(source.texts("train"))
    assert source_of_files(str(write(tmp_path / "a.jsonl"))).count("train") is None


def test_shares_differ_by_one_over_any_number_of_epochs() -> None:
    for total, num_shards, offset in ((1, 4, 0), (10, 4, 0), (1001, 16, 7), (12, 3, 5)):
        sums = np.zeros(num_shards, np.int64)
        for epoch in range(9):
            share = shares(total, epoch, offset, num_shards)
            sums += share
            assert share.sum() == total and np.ptp(share) <= 1 and np.ptp(sums) <= 1


def test_epochs_rise_where_documents_make_any_number_of_rows(corpus: Path) -> None:
    text = {"mixture_or_task_name": "demo_span_corruption", "task_feature_lengths": {"inputs": 64}, "column": "text"}
    with opened(str(corpus), range(4), num_data_shards=4, num_epochs=None, **text) as stream:
        told = []
        for _ in range(6):
            for _ in range(100):
                next(stream)
            told += stream.epochs().values()
        positions = stream.positions()
    assert told == sorted(told) and 0 < told[0] < told[-1] < 9 and len(set(told)) == len(told)
    with opened(str(corpus), range(4), num_data_shards=4, num_epochs=None, **text) as stream:
        stream.begin(0, positions)
        assert [*stream.epochs().values()] == told[-1:]
        for _ in range(100):
            next(stream)
        assert 0 < stream.epochs()["demo_span_corruption"] - told[-1] < 1


@pytest.mark.parametrize("length", [32, 512])
@pytest.mark.parametrize(("objective", "pack"), [("causal_lm", False), ("causal_lm", True), ("span_corruption", False)])
@pytest.mark.slow
def test_epochs_are_those_of_the_rows_and_not_of_what_was_read_ahead(objective, pack, length, tmp_path: Path) -> None:
    """By the tokens of a corpus of 1 MB, from the first batches on; and after resuming in the middle."""
    path = tmp_path / "train.txt"
    draw = random.Random(3)
    documents = ["".join(draw.choices("abc defg", k=draw.randrange(20, 2000))) for _ in range(1000)]
    path.write_text("".join(f"{text}\n" for text in documents))
    is_causal = objective == "causal_lm"
    lengths = {"targets": length} if is_causal else {"inputs": length}
    text = {"mixture_or_task_name": "demo_span_corruption", "task_feature_lengths": lengths, "column": "text",
            "objective": objective, "pack": pack, "num_epochs": None, "batch_size": 64,
            "validation_percent": 0.0}  # fmt: skip
    files = {"train": str(path), "validation": str(path)}
    total = sum(len(document.encode()) + is_causal for document in documents if document.strip())
    tokens = 0
    begun = 0.0
    positions = {}
    # Documents that are open in rows, in each of the 16 shards.
    tolerance = 0.02 + 0.1 * (length == 512) + 16 * 16 * length * pack / total
    for begins, stop in ((0, 40), (40, 200)):
        with opened(files, **text) as stream:
            if begins:
                stream.begin(begins, positions)
                assert stream.epochs()["demo_span_corruption"] == pytest.approx(begun)
            for batch in range(begins, stop):
                rows = next(stream).values()
                if is_causal:
                    tokens += sum(np.count_nonzero(part["targets"]) for part in rows)
                else:
                    sentinels = sum(np.count_nonzero(part[side] > 258) for part in rows for side in part)
                    ends_and_sentinels = sentinels + sum(2 * len(part["targets"]) for part in rows)
                    tokens += sum(np.count_nonzero(part[side]) for part in rows for side in part) - ends_and_sentinels
                epochs = stream.epochs()["demo_span_corruption"]
                assert epochs >= begun
                begun = epochs
                if batch in (3, 10, 39, 60, 199):
                    assert epochs == pytest.approx(tokens / total, abs=tolerance, rel=0.05), batch
            positions = stream.positions()


def test_long_documents_in_pieces_and_the_last_ones_are_no_further_epochs(tmp_path: Path) -> None:
    path = tmp_path / "train.txt"
    path.write_text("".join(f"{number} " + "long words " * 4000 + "\n" for number in range(40)))
    text = {"mixture_or_task_name": "demo_span_corruption", "task_feature_lengths": {"inputs": 256}, "column": "text"}
    with opened(str(path), range(2), num_data_shards=2, num_epochs=1, **text) as stream:
        told = []
        for _ in stream:
            told += stream.epochs().values()
        assert told == sorted(told) and all(0 < epochs <= 1 for epochs in told)
        assert stream.epochs() == {"demo_span_corruption": 1.0}


@pytest.mark.slow
@pytest.mark.parametrize("stop", [50, pytest.param(96, marks=pytest.mark.night)])
def test_a_stream_resumes_in_any_epoch_on_any_number_of_hosts(pairs: Path, stop: int) -> None:
    with opened(files_of(pairs), num_epochs=2) as stream:
        batches = [numbers(rows) for rows in stream]
    with opened(files_of(pairs), num_epochs=2) as stream:
        for _ in range(stop):
            next(stream)
        before = stream.positions()
        assert stream.epochs() == {"text_to_text": stop / 96}
    with opened(files_of(pairs), range(8), num_epochs=2) as a, opened(files_of(pairs), range(8, 16), num_epochs=2) as b:
        for part in (a, b):
            part.check(before)
            part.begin(0, before)
            assert part.epochs() == {"text_to_text": stop / 96}
        again = [numbers(left | right, EVERY) for left, right in zip(a, b, strict=True)]
    assert again == batches[stop:]


def test_the_first_examples_alone_are_read(pairs: Path) -> None:
    for num_shards, shards in ((1, [0]), (16, range(16))):
        with opened(files_of(pairs), shards, num_data_shards=num_shards, max_examples=1000, num_epochs=2) as stream:
            batches = [numbers(rows) for rows in stream]
        assert len(batches) == 63 and Counter(sum(batches, [])) == dict.fromkeys(range(1000), 2)
    with opened(files_of(pairs), max_examples=10_000) as stream:
        assert sum(1 for _ in stream) == 96


def test_first_examples_of_array_record(tmp_path: Path) -> None:
    path = write(tmp_path / "a.array_record", [*map(str, range(300))])
    source = source_of_files(str(path), "text", validation_percent=10.0)
    known = source.count("train", most=40)
    assert known is not None and known.total == 40
    reading = Reading("train", 0, 1, 3, True, 1, 0, False)
    kept = texts_of(source.dataset(reading, known))
    assert sorted(kept) == sorted(list(source.texts("train"))[:40])


@pytest.mark.night
def test_another_number_of_examples_is_no_resumption(pairs: Path) -> None:
    with opened(files_of(pairs), max_examples=1000) as stream:
        next(stream)
        before = stream.positions()
    for most in (900, None):
        with (
            opened(files_of(pairs), max_examples=most) as stream,
            pytest.raises(Exception, match="max_examples 1000 and this"),
        ):
            stream.check(before)
    with opened(files_of(pairs), deal=Deal(), max_examples=1000) as stream, pytest.raises(InputError, match="dealing"):
        stream.check(before)


def test_what_cannot_be_known_is_said(pairs: Path, corpus: Path) -> None:
    def deal(**changes: Any) -> Deal:
        config = dataclasses.replace(CONFIG, **{"data_files": files_of(pairs), **changes})
        task = resolve_task(config)
        return deal_of(task, derive_lengths(task, config.task_feature_lengths), config, True)

    assert deal().rows == 3072 and deal().is_exact and not deal().reason
    assert "joins examples" in deal(pack=True).reason and deal(pack=True).rows is None
    text = {"mixture_or_task_name": "demo_span_corruption", "task_feature_lengths": {"inputs": 64}, "column": "text"}
    seqio.TaskRegistry.add(
        "long_pairs",
        source=resolve_task(CONFIG).source,
        preprocessors=[lambda rows: rows.filter(lambda row: tf.strings.length(row["inputs"]) > 99), *SUPERVISED],
        output_features=resolve_task(CONFIG).output_features,
    )
    assert "preprocessors of long_pairs make any number of rows" in deal(mixture_or_task_name="long_pairs").reason
    some = deal(**text, data_files=str(corpus))
    assert "any number of rows" in some.reason and some.counts
    assert Deal.of_text(some.to_text()) == some


@pytest.mark.night
def test_reader_processes_deal_alike(pairs: Path) -> None:
    modules = ("tasks.text_to_text",)
    with opened(files_of(pairs)) as one, opened(files_of(pairs), num_reader_processes=2, task_modules=modules) as two:
        for _ in range(3):
            assert numbers(next(one)) == numbers(next(two))
        assert one.epochs() == pytest.approx(two.epochs()) == {"text_to_text": 3 / 96}


def test_a_first_number_must_be_whole() -> None:
    with pytest.raises(ConfigError, match="DataConfig.max_examples is 0; give"):
        dataclasses.replace(CONFIG, max_examples=0)
