"""A data position belongs to the corpus it was saved on: what has changed is named by file, or begins a new pass."""

import contextlib
import dataclasses
import errno
import functools
import itertools
import json
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import seqio
import tensorflow as tf
from fsspec import get_filesystem_class

import tasks.demo  # noqa: F401  registers demo_span_corruption
from limba.config import ConfigError, DataConfig, InputError
from limba.data.objectives import derive_lengths, span_corruption, tokenize_documents
from limba.data.sources import FileSource, splits
from limba.data.sources.fingerprints import Mark, mark_of
from limba.data.sources.remote import ReadPolicy
from limba.data.stream import positions, streams
from limba.data.stream.positions import Position, PositionError, advanced, of_another_order
from limba.data.stream.processes import Opening, ReaderProcesses
from limba.data.tasks import resolve_task
from tests.bucket_server import emulated
from tests.data import text_files

TEXTS = [f"{number} " + "old words " * 8 for number in range(300)]
CONFIG = DataConfig("demo_span_corruption", {"inputs": 32}, batch_size=4, num_data_shards=2, vocabulary="byte", seed=3)
CHECKPOINT_STEP = 3


def write(path: Path, texts: Sequence[str] = TEXTS) -> Path:
    return text_files.write(path, texts)


@contextlib.contextmanager
def stream_of(files: object, shards: Sequence[int] = (0, 1), **changes: Any) -> Iterator[streams.TrainStream]:
    config = dataclasses.replace(CONFIG, data_files=None if files is None else str(files), **changes)
    task = resolve_task(config)
    stream = streams.TrainStream(task, derive_lengths(task, config.task_feature_lengths), config, shards)
    with contextlib.closing(stream):
        yield stream


def taken(stream: streams.TrainStream, count: int) -> np.ndarray:
    return np.stack(
        [np.concatenate([part["inputs"] for _, part in sorted(next(stream).items())]) for _ in range(count)]
    )


def saved(files: object, **changes: Any) -> tuple[dict[int, Position], np.ndarray]:
    """Returns the positions after CHECKPOINT_STEP batches, and the 4 batches that follow."""
    with stream_of(files, **changes) as stream:
        taken(stream, CHECKPOINT_STEP)
        return stream.positions(), taken(stream, 4)


@pytest.mark.parametrize("name", text_files.FORMATS)
def test_another_text_in_a_file_of_any_format_is_named(name: str, tmp_path: Path) -> None:
    path = write(tmp_path / name)
    before, rest = saved(path)
    with stream_of(path) as stream:
        stream.begin(0, before)
        np.testing.assert_array_equal(taken(stream, 4), rest)
    then = path.stat().st_size
    write(path, [text.replace("old", "new") for text in TEXTS])
    now = path.stat().st_size
    sizes = f"{then:,} bytes as then, with other content" if now == then else f"{then:,} bytes then, {now:,} now"
    with stream_of(path) as stream:
        for method in (stream.check, functools.partial(stream.begin, 0)):
            with pytest.raises(InputError) as refusal:
                method(before)
            sentence = str(refusal.value)
            assert sentence.startswith(f"{path} has changed since step 3: {sizes}. Restore the original files"), (
                sentence
            )
            assert "DataConfig.on_changed_corpus" in sentence and "\n" not in sentence


def test_another_text_in_an_object_of_the_same_size_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with emulated(monkeypatch) as server:
        server.put("bucket", "a.txt", "\n".join(TEXTS).encode())
        before, rest = saved("gs://bucket/a.txt")
        with stream_of("gs://bucket/a.txt") as stream:
            stream.begin(0, before)
            np.testing.assert_array_equal(taken(stream, 4), rest)
        server.put("bucket", "a.txt", "\n".join(TEXTS).replace("old", "new").encode())
        get_filesystem_class("gs").clear_instance_cache()  # a new start has no listing of before
        with (
            stream_of("gs://bucket/a.txt") as stream,
            pytest.raises(
                InputError, match=r"^gs://bucket/a\.txt has changed since step 3: [\d,]+ bytes as then, with"
            ),
        ):
            stream.check(before)


def _another(path: Path) -> None:
    """Gives the name to another file."""
    other = write(path.with_name(f"other-{path.name}"), [text.replace("old", "new") for text in TEXTS[:60]])
    other.rename(path)


def _longer(path: Path) -> None:
    """Writes other text of the same size, and more behind it."""
    write(path, [text.replace("old", "new") for text in [*TEXTS[240:], *TEXTS]])


def _cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def _grown(path: Path) -> None:
    with path.open("ab") as file:
        file.write(path.read_bytes())


def _of_parts(name: str, folder: Path) -> Path:
    """Writes five files of a format, of which a run has not read the last one after a few batches; returns that."""
    for number in range(5):
        write(folder / f"{number}-{name}", TEXTS[60 * number : 60 * number + 60])
    return folder / f"4-{name}"


IN_ORDER = {"shuffle": False, "num_data_shards": 1}
LINES = ("a.txt", "a.jsonl")
IN_FILES = tuple(name for name in text_files.FORMATS if not name.endswith(".array_record"))
CHANGES = list(itertools.product((*IN_FILES, "a.json"), (_another, _longer, _cut, _grown)))


@pytest.mark.parametrize("policy", ["stop", "skip"])
@pytest.mark.parametrize(
    ("name", "change"), [(name, change) for name, change in CHANGES if change is not _grown or name not in LINES]
)
def test_no_text_of_a_file_that_changes_while_it_is_read_is_given(
    name: str, change: Callable[[Path], None], policy: str, tmp_path: Path
) -> None:
    """Whatever its format; what was read before can be saved, and goes on with the original file."""
    last = _of_parts(name, tmp_path)
    files = f"{tmp_path}/?-{name}"
    with stream_of(files, [0], on_read_failure=policy, **IN_ORDER) as whole:
        of_all = taken(whole, 200)
    kept = shutil.copy2(last, tmp_path / "kept")
    wanted = (
        rf"^\S+/4-{name} has changed while the run reads it: [\d,]+ bytes (then, [\d,]+ now|as then, .*); start the"
        " same command again: with the original files restored it reads on, and with DataConfig.on_changed_corpus"
    )
    given = []
    with stream_of(files, [0], on_read_failure=policy, **IN_ORDER) as stream:
        given += list(taken(stream, 2))
        stream.positions()  # as with a checkpoint: by now the run has looked at its files
        change(last)
        with pytest.raises(InputError, match=wanted):
            for _ in range(200):
                given += list(taken(stream, 1))
        before = stream.positions()
    np.testing.assert_array_equal(given, of_all[: len(given)])
    shutil.copy(kept, last)  # at another time
    with stream_of(files, [0], on_read_failure=policy, **IN_ORDER) as again:
        again.begin(0, before)
        np.testing.assert_array_equal(taken(again, 5), of_all[len(given) : len(given) + 5])


@pytest.mark.parametrize("name", LINES)
def test_a_file_of_lines_that_grows_while_it_is_read_gives_the_same_text(name: str, tmp_path: Path) -> None:
    last = _of_parts(name, tmp_path)
    files = f"{tmp_path}/?-{name}"
    with stream_of(files, [0], **IN_ORDER) as whole:
        of_all = taken(whole, 400)
    size = last.stat().st_size
    with stream_of(files, [0], **IN_ORDER) as stream:
        given = list(taken(stream, 2))
        stream.positions()
        for _ in range(199):
            _grown_by_a_line(last)
            given += list(taken(stream, 2))
        before = stream.positions()
    np.testing.assert_array_equal(given, of_all)
    with (
        stream_of(files, [0], **IN_ORDER) as again,
        pytest.raises(InputError, match=rf"4-{name} has changed since step"),
    ):
        again.check(before)
    os.truncate(last, size)
    with stream_of(files, [0], **IN_ORDER) as again:
        again.check(before)


def _grown_by_a_line(path: Path) -> None:
    lines = path.read_bytes().splitlines(keepends=True)
    with path.open("ab") as file:
        file.write(lines[-1])


def test_a_last_line_that_becomes_longer_while_it_is_read_is_named(tmp_path: Path) -> None:
    last = _of_parts("a.txt", tmp_path)
    os.truncate(last, last.stat().st_size - 1)  # its last line is not whole
    with stream_of(f"{tmp_path}/?-a.txt", [0], **IN_ORDER) as stream:
        taken(stream, 2)
        stream.positions()
        with last.open("ab") as file:
            file.write(b"er text\n")
        with pytest.raises(InputError, match=r"4-a\.txt has changed while the run reads it"):
            taken(stream, 200)


def test_a_second_run_of_a_process_reads_a_file_that_was_replaced(tmp_path: Path) -> None:
    """Each run has its own copy of a registered source."""
    path = write(tmp_path / "a.txt", TEXTS)
    registered = FileSource(str(path), validation_percent=0.0)
    for texts in (TEXTS, [text.replace("old", "newer") for text in TEXTS]):
        write(path, texts)
        source = registered.read_by(ReadPolicy())
        (mark,) = source.marks("train")
        assert mark.size == path.stat().st_size
        assert list(source.texts("train")) == texts


@pytest.mark.parametrize(("seconds", "count"), [(0.0, 20), (1e9, 1)])
def test_a_file_whose_time_of_change_is_never_the_same_is_compared_from_time_to_time(
    seconds: float, count: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = write(tmp_path / "a.txt")
    source = FileSource(str(path), validation_percent=0.0).read_by(ReadPolicy())
    source.marks("train")
    compared = []

    def counted(path: str, end_bytes: int) -> Mark:
        compared.append(path)
        return mark_of(path, end_bytes)

    monkeypatch.setattr(splits, "mark_of", counted)
    monkeypatch.setattr(splits, "COMPARED_SECONDS", seconds)
    for number in range(20):
        os.utime(path, (number, number))
        list(source.texts("train"))
    assert len(compared) == count
    _another(path)  # has another size
    with pytest.raises(InputError, match="has changed while the run reads it"):
        list(source.texts("train"))


def test_a_file_that_cannot_be_compared_ends_no_reading(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = write(tmp_path / "a.txt")
    source = FileSource(str(path), validation_percent=0.0).read_by(ReadPolicy())
    source.marks("train")
    os.utime(path, (1, 1))

    def failing(*_: object) -> Mark:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(splits, "mark_of", failing)
    assert list(source.texts("train")) == TEXTS


def test_files_that_appear_and_vanish_are_named_and_order_decides(tmp_path: Path) -> None:
    for number in range(5):
        write(tmp_path / f"{number}.txt", TEXTS[60 * number : 60 * number + 60])
    before, rest = saved(f"{tmp_path}/*.txt")
    for name in ("7.txt", "8.txt"):
        write(tmp_path / name)
    (tmp_path / "2.txt").rename(tmp_path.parent / "2.away")
    with (
        stream_of(f"{tmp_path}/*.txt") as stream,
        pytest.raises(
            InputError, match=r"since step 3: 2 files appeared: \S+/7.txt, \S+/8.txt; 1 file vanished: \S+/2.txt\."
        ),
    ):
        stream.check(before)
    (tmp_path / "7.txt").unlink()
    (tmp_path / "8.txt").unlink()
    (tmp_path.parent / "2.away").rename(tmp_path / "22.txt")  # the same place in the order: the same run
    with stream_of(f"{tmp_path}/*.txt") as stream:
        stream.begin(0, before)
        np.testing.assert_array_equal(taken(stream, 4), rest)
    (tmp_path / "22.txt").rename(tmp_path / "9.txt")
    with (
        stream_of(f"{tmp_path}/*.txt") as stream,
        pytest.raises(InputError, match="1 file appeared: .*/9.txt; 1 file v"),
    ):
        stream.check(before)


def test_a_corpus_that_has_moved_resumes_and_says_what_changed_on_the_way(tmp_path: Path) -> None:
    for name in ("web/1.txt", "web/2.txt.gz", "books/a.txt"):
        write(tmp_path / "here" / name, [f"{name} {text}" for text in TEXTS])
    before, rest = saved(f"{tmp_path}/here/**/*.txt*")
    shutil.move(tmp_path / "here", tmp_path / "elsewhere")
    with stream_of(f"{tmp_path}/elsewhere/**/*.txt*") as stream:
        stream.begin(0, before)
        np.testing.assert_array_equal(taken(stream, 4), rest)
        again = stream.positions()
    write(tmp_path / "elsewhere/web/2.txt.gz", TEXTS[:9])
    for position in (before, again):  # by its path below the common folder, and by its path
        with (
            stream_of(f"{tmp_path}/elsewhere/**/*.txt*") as stream,
            pytest.raises(InputError, match=r"^\S+/elsewhere/web/2.txt.gz has changed since step [37]: "),
        ):
            stream.check(position)


def test_a_time_alone_is_no_change_and_a_middle_that_nobody_reads_is_said(tmp_path: Path, caplog) -> None:
    path = write(tmp_path / "a.txt", TEXTS * 10)
    assert path.stat().st_size > 2 * 65536
    before, rest = saved(path)
    os.utime(path, (1, 1))
    with stream_of(path) as stream:
        stream.begin(0, before)
        np.testing.assert_array_equal(taken(stream, 4), rest)
    assert [record.message for record in caplog.records if "another time of change" in record.message]
    caplog.clear()
    small = write(tmp_path / "b.txt")  # all of it is read
    before, _ = saved(small)
    os.utime(small, (1, 1))
    with stream_of(small) as stream:
        stream.begin(0, before)
    assert "another time" not in caplog.text


def test_a_changed_corpus_may_begin_a_new_pass_which_resumes_bit_for_bit(tmp_path: Path, caplog) -> None:
    path = write(tmp_path / "a.txt")
    before, rest = saved(path)
    write(path, [text.replace("old", "new") for text in TEXTS] + ["more"])
    new = {"on_changed_corpus": "new_epoch"}
    with stream_of(path, **new) as stream:
        stream.check(before)
        stream.begin(0, before)
        assert stream.epochs() == {"demo_span_corruption": 1.0}
        first = taken(stream, 2)
        assert not np.array_equal(first, rest[:2])
        middle = stream.positions()
        expected = taken(stream, 4)
    (sentence,) = [record.message for record in caplog.records if "new pass" in record.message]
    assert "a.txt has changed since step 3: " in sentence and sentence.endswith("begins, with epoch 1.")
    with stream_of(path) as stream:  # nothing has changed since: either choice resumes
        stream.begin(0, middle)
        np.testing.assert_array_equal(taken(stream, 4), expected)
    with stream_of(path, (1,), **new) as stream:  # one of two hosts, both of which have all positions
        stream.begin(0, before)
        np.testing.assert_array_equal(taken(stream, 2), first[:, 2:])
    with stream_of(path) as stream:  # a run that was never stopped reads the new files in another order
        assert not np.array_equal(taken(stream, 2), first)
    write(path, ["third " + text for text in TEXTS])
    with stream_of(path, **new) as stream:
        stream.begin(0, middle)
        assert stream.epochs() == {"demo_span_corruption": 2.0}


def test_a_new_pass_of_a_run_with_an_end_is_read_once_more(tmp_path: Path) -> None:
    path = write(tmp_path / "a.txt")
    ends = {"num_epochs": 1, "on_changed_corpus": "new_epoch", "validation_percent": 0.0}
    before, _ = saved(path, **ends)
    texts = [f"new {number:03}" + "x" * 60 for number in range(40)]
    write(path, texts)
    with stream_of(path, **ends) as stream:
        stream.begin(0, before)
        rows = np.concatenate(
            [np.concatenate([part[n] for part in rows.values() for n in part], None) for rows in stream]
        )
    letters = rows[(rows > 2) & (rows < 259)]
    assert len(letters) == sum(map(len, texts))  # every byte once: neither the old text nor a second pass


def _mixture(folder: Path) -> dict[str, str]:
    """Registers a mixture of two tasks as a process that starts now would; returns the choice of it."""
    features = {name: seqio.Feature(seqio.ByteVocabulary(100), dtype=tf.int32) for name in ("inputs", "targets")}
    if "positions_mixed" in seqio.MixtureRegistry.names():
        seqio.MixtureRegistry.remove("positions_mixed")
    for name in ("position_a", "position_b"):
        if name in seqio.TaskRegistry.names():
            seqio.TaskRegistry.remove(name)
        seqio.TaskRegistry.add(
            name,
            source=FileSource(f"{folder}/{name}/*.txt"),
            preprocessors=[tokenize_documents, span_corruption],
            output_features=features,
        )
    seqio.MixtureRegistry.add("positions_mixed", [("position_a", 3.0), ("position_b", 1.0)])
    return {"mixture_or_task_name": "positions_mixed"}


def test_one_task_of_a_mixture_and_one_of_two_reader_processes(tmp_path: Path) -> None:
    for name in ("position_a", "position_b"):
        write(tmp_path / name / f"{name}.txt", [f"{name} {text}" for text in TEXTS])
    before, rest = saved(None, **_mixture(tmp_path))
    for _ in range(2):
        mixed = _mixture(tmp_path)
        with stream_of(None, **mixed) as stream:
            stream.begin(0, before)
            np.testing.assert_array_equal(taken(stream, 4), rest)
    write(tmp_path / "position_b" / "position_b.txt", TEXTS[:200])
    mixed = _mixture(tmp_path)
    with stream_of(None, **mixed) as stream, pytest.raises(InputError, match="position_b.txt has changed since step 3"):
        stream.check(before)
    with stream_of(None, **mixed, on_changed_corpus="new_epoch") as stream:
        stream.begin(0, before)
        assert stream.epochs() == {"position_a": 1.0, "position_b": 1.0}
        taken(stream, 2)


@pytest.mark.night
def test_reader_processes_check_and_begin_the_same_pass(tmp_path: Path) -> None:
    path = write(tmp_path / "a.txt")
    before, _ = saved(path)
    write(path, TEXTS[::-1])
    choices = {"data_files": str(path), "task_modules": ("tasks.demo",), "num_reader_processes": 2}
    with stream_of(path, on_changed_corpus="new_epoch") as stream:
        stream.begin(0, before)
        expected = taken(stream, 2)
    config = dataclasses.replace(CONFIG, **choices, on_changed_corpus="new_epoch")
    lengths = derive_lengths(resolve_task(config), config.task_feature_lengths)
    with contextlib.closing(ReaderProcesses(Opening(config, lengths, {}, (0, 1), 2))) as apart:
        apart.check(before)
        with pytest.raises(PositionError, match="data position of shard 1 cannot be read"):
            apart.check({**before, 1: {**before[1], "files": before[1]["files"][:-30]}})
        apart.begin(0, before)
        np.testing.assert_array_equal(taken(apart, 2), expected)


@pytest.mark.core
@pytest.mark.parametrize("number", [1, 40, 200])
def test_a_position_is_moved_on_without_its_shard(tmp_path: Path, number: int) -> None:
    """By less than was made ahead, and by more; and twice, as where a run ends so two times."""
    path = write(tmp_path / "a.txt")
    with stream_of(path) as stream:
        taken(stream, 3)
        before = stream.positions()
        taken(stream, number)
        expected = taken(stream, 4)
        epochs = stream.epochs()
    moved = {
        shard: advanced(advanced(position, number // 2), number - number // 2) for shard, position in before.items()
    }
    with stream_of(path) as stream:
        stream.begin(0, moved)
        np.testing.assert_array_equal(taken(stream, 4), expected)
        np.testing.assert_equal(stream.epochs(), epochs)


@pytest.mark.core
def test_a_position_that_is_damaged_or_lacks_a_part_is_refused(tmp_path: Path) -> None:
    """Its bytes match the checkpoint's manifest; what is wrong in them is still one sentence."""
    path = write(tmp_path / "a.txt")
    before, rest = saved(path)
    whole = json.loads(json.dumps(before[0]))
    with stream_of(path) as stream:
        for damaged in (
            {name: part for name, part in whole.items() if name != "place"},
            {name: part for name, part in whole.items() if name != "files"},
            {**whole, "files": whole["files"][:-30]},
            {**whole, "place": {**whole["place"], "batch": None}},
            {**whole, "place": {**whole["place"], "other": 1}},
        ):
            with pytest.raises(PositionError, match=r"^The data position of shard 0 cannot be read \(.*\)\.$"):
                stream.check({**before, 0: damaged})
        with pytest.raises(ConfigError, match="no data position for shard 1"):
            stream.check({0: whole})
        stream.check(before)
        stream.begin(0, before)
        np.testing.assert_array_equal(taken(stream, 4), rest)


@pytest.mark.core
def test_the_text_begins_anew_after_positions_of_another_order(tmp_path: Path) -> None:
    """Of an earlier format, and of another order in this one; a newer format is refused."""
    path = write(tmp_path / "a.txt")
    before, _ = saved(path)
    assert of_another_order(before, 12_000) == ""
    for changes, which in (
        ({"format": 5}, "format 5, this version's is 6"),
        ({"order": 7}, "order 7, this version's is 1"),
    ):
        other = {shard: {**position, "about": {**position["about"], **changes}} for shard, position in before.items()}
        assert of_another_order(other, 12_000) == (
            "The text begins anew at step 12,000: this version reads it in another order than the one that saved the"
            f" checkpoint (data position of {which}). Weights, optimizer and step are resumed."
        )
    newer = {0: {"about": {"format": 7}}}
    with pytest.raises(InputError, match=r"has format 7, and this version reads 6; install a newer version\."):
        of_another_order(newer, 3)


def test_the_table_is_divided_among_the_shards_and_holds_no_credentials(tmp_path: Path, monkeypatch) -> None:
    for number in range(2000):
        (tmp_path / f"part-{number:05}.txt").write_text(f"{number} words\n" * 3)
    before, _ = saved(f"{tmp_path}/*.txt", shards=(0, 1, 2, 3), num_data_shards=4)
    opened = [positions.opened(position, shard) for shard, position in before.items()]
    places = sorted(index for position in opened for index in position.files["demo_span_corruption"])
    assert places == list(range(2000)) and max(len(json.dumps(position)) for position in before.values()) < 80_000
    path = write(tmp_path / "secret.txt")
    from limba.data.sources import fingerprints, units

    address = "https://ana:hidden1@example.org/web/a.txt?lang=ro&sig=hidden2"
    listed = [
        fingerprints.File(address, 7, "ETag:1"),
        fingerprints.File(address.replace("a.txt", "b.txt"), 8, "ETag:2"),
    ]
    monkeypatch.setattr(units.UnitSource, "list_files", lambda self, patterns: listed)
    source = resolve_task(dataclasses.replace(CONFIG, data_files=str(path))).source
    table = positions.Corpora({"task": source.marks("train")})
    packed = positions.unpacked_table(table.packed(0, 1))
    paths = [mark.path for mark in packed["task"].values()]
    assert paths == [f"https://***@example.org/web/{name}.txt?lang=ro&sig=***" for name in "ab"]
    texts = [repr(packed), *source.list_shards("train")]
    assert not any("hidden" in text for text in texts)
