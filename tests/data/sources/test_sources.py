"""In an epoch every document comes once, in one shard; the order is a function of the seed; positions are exact."""

import contextlib
import gzip
import itertools
import json
import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import hypothesis
import hypothesis.strategies as st
import pytest
import seqio

from limba.config import InputError
from limba.data.dataset import Dataset
from limba.data.sources import ArrayRecordSource, FileSource, HubSource, chunk_reader, readers, splits
from limba.data.sources.order import Reading
from limba.data.sources.remote import ReadPolicy
from tests.data.text_files import TEXTS, write, write_three_records

NO_VALIDATION = 0.0


@pytest.fixture(params=[0, 1, 2, 7, 13, "records"], ids="{}_units".format)
def source(request, tmp_path, monkeypatch):
    """A corpus of about that many units, an empty file among them where there are several; or of ArrayRecord."""
    monkeypatch.setattr(readers, "CHUNK_BYTES", 500)
    if request.param == "records":
        files = f"{write_three_records(tmp_path)}/*.array_record"
        return ArrayRecordSource(files, validation_percent=NO_VALIDATION)
    if request.param == 0:
        path = write(tmp_path / "c.csv.gz", TEXTS)
    elif request.param == 1:
        path = write(tmp_path / "c.txt", TEXTS)
    else:
        path = tmp_path / "*.jsonl"
        share = -(-len(TEXTS) // (request.param - 1))
        for number in range(request.param - 1):
            write(tmp_path / f"{number}.jsonl", TEXTS[number * share : (number + 1) * share])
        (tmp_path / "empty.jsonl").touch()
    return FileSource(str(path), validation_percent=NO_VALIDATION)


def texts(dataset: Iterable[Any], count: int | None = None) -> list[str]:
    return [example["text"].decode() for example in itertools.islice(dataset, count)]


@pytest.mark.parametrize("is_counted", [False, True], ids=["whole units", "dealt"])
def test_each_chunk_of_each_unit_has_an_order_of_its_own_in_each_epoch(
    is_counted: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(readers, "CHUNK_BYTES", 500)
    for name in ("a", "b"):  # two units of three chunks of 50 documents
        lines = "".join(f"{name} {number:08}\n" for number in range(150))
        (tmp_path / f"{name}.txt.gz").write_bytes(gzip.compress(lines.encode()))
    source = FileSource(f"{tmp_path}/*.txt.gz", validation_percent=NO_VALIDATION)
    counts = source.count("train") if is_counted else None
    order = texts(source.dataset(Reading("train", 0, 1, 7, True, 2, name="task"), counts))
    orders = []
    for start in (0, 300):  # of each epoch
        for name in ("a", "b"):
            numbers = [int(text[2:]) for text in order[start : start + 300] if text[0] == name]
            assert sorted(numbers) == list(range(150))
            chunks = [numbers[first : first + 50] for first in (0, 50, 100)]
            assert [sorted(chunk) for chunk in chunks] == [list(range(first, first + 50)) for first in (0, 50, 100)]
            orders += [tuple(number % 50 for number in chunk) for chunk in chunks]
    assert len(set(orders)) == len(orders) == 12
    other = texts(source.dataset(Reading("train", 0, 1, 7, True, 2, name="another task"), counts))
    assert sorted(other) == sorted(order) and other != order


@pytest.mark.parametrize(
    ("num_shards", "shuffle", "num_epochs"), [(1, True, 1), (2, True, 1), (4, True, 2), (8, True, 1), (4, False, 1)]
)
def test_shards_part_the_corpus_in_every_epoch(source, num_shards, shuffle, num_epochs):
    seen = Counter()
    for shard in range(num_shards):
        seen.update(
            texts(
                source.documents(
                    "train", shard=shard, num_shards=num_shards, seed=3, shuffle=shuffle, num_epochs=num_epochs
                )
            )
        )
    assert seen == Counter(dict.fromkeys(TEXTS, num_epochs))


def test_order_changes_with_epoch_and_seed_and_not_without_shuffle(tmp_path):
    source = FileSource(str(write(tmp_path / "c.txt")), validation_percent=NO_VALIDATION)
    two_epochs = texts(source.documents("train", seed=1, num_epochs=2))
    first = two_epochs[: len(TEXTS)]
    second = two_epochs[len(TEXTS) :]
    other = texts(source.documents("train", seed=2, num_epochs=1))
    assert len({tuple(order) for order in (first, second, other, TEXTS)}) == 4
    assert texts(source.documents("train", shuffle=False, num_epochs=1)) == TEXTS


def test_position_is_restored_across_epochs(source, tmp_path):
    # Of two units the second is the empty file, and with it the second shard.
    shard = 0 if len(source.list_shards("train")) == 2 else 1

    def dataset() -> Dataset:
        return source.documents("train", shard=shard, num_shards=2, seed=5)

    items = list(itertools.islice(dataset().read(), 600))
    for taken in (1, 5, 149, 151, 400):
        place = json.loads(json.dumps(items[taken - 1].place))
        again = list(itertools.islice(dataset().read(place), 200))
        assert [(item.value, item.documents) for item in again] == [
            (item.value, item.documents) for item in items[taken : taken + 200]
        ]


@pytest.mark.parametrize("how", ["edited", "unreadable", "unreadable and counted"])
def test_a_chunk_with_fewer_documents_than_were_given_is_read_no_further(tmp_path, how):
    """A file edited in its middle to the same length, or a line before the place that cannot be read any more."""
    lines = [f"line {number:03}" for number in range(200)]
    path = write(tmp_path / "c.txt", lines)
    source = FileSource(str(path), validation_percent=NO_VALIDATION)
    reading = Reading("train", 0, 1, 0, True, num_epochs=2)
    counts = source.count("train") if how.endswith("counted") else None
    *_, last = itertools.islice(source.dataset(reading, counts).read(), 150)
    blank = b" " * 8 if how == "edited" else b"\xff" * 8
    path.write_bytes(b"".join(blank + b"\n" if 50 <= n < 150 else f"{line}\n".encode() for n, line in enumerate(lines)))
    again = FileSource(str(path), validation_percent=NO_VALIDATION).read_by(ReadPolicy(on_failure="skip"))
    rest = [item.value["text"].decode() for item in again.dataset(reading, counts).read(last.place)]
    assert rest and set(rest) <= {*lines[:50], *lines[150:]}
    assert len(rest) == len(set(rest))  # of the second epoch


def test_validation_is_carved_by_text_and_does_not_leak(tmp_path):
    doubled = write(tmp_path / "c.jsonl", TEXTS + TEXTS[:100])
    source = FileSource(str(doubled), validation_percent=20.0)
    train = texts(source.documents("train", num_epochs=1))
    validation_texts = texts(source.documents("validation", num_epochs=1))
    assert not set(train) & set(validation_texts)
    assert Counter(train + validation_texts) == Counter(TEXTS + TEXTS[:100])
    assert 30 < len(set(validation_texts)) < 90
    elsewhere = FileSource(str(write(tmp_path / "other.csv", TEXTS)), validation_percent=20.0)
    assert set(texts(elsewhere.documents("validation", num_epochs=1))) == set(validation_texts)


def test_given_validation_files_are_taken(tmp_path):
    files = {
        "train": str(write(tmp_path / "t.txt", TEXTS[:50])),
        "validation": str(write(tmp_path / "v.txt", TEXTS[50:60])),
    }
    source = FileSource(files)
    assert texts(source.documents("train", num_epochs=1, shuffle=False)) == TEXTS[:50]
    assert texts(source.documents("validation", num_epochs=1, shuffle=False)) == TEXTS[50:60]
    assert source.splits == ("train", "validation")
    with pytest.raises(InputError, match="it has train, validation"):
        source.check("test")


def test_hub_reads_a_local_directory(tmp_path):
    write(tmp_path / "train-0.parquet", TEXTS[:100])
    write(tmp_path / "train-1.parquet", TEXTS[100:])
    write(tmp_path / "validation.parquet", TEXTS[:7])
    source = HubSource(str(tmp_path))
    assert Counter(texts(source.documents("train", num_epochs=1))) == Counter(TEXTS)
    assert texts(source.documents("validation", num_epochs=1, shuffle=False)) == TEXTS[:7]
    assert len(source.list_shards("train")) == 5  # row groups of 70
    carved = tmp_path / "carved"
    carved.mkdir()
    write(carved / "all.jsonl", TEXTS)
    source = HubSource(str(carved), validation_percent=10.0)
    parts = [texts(source.documents(split, num_epochs=1)) for split in ("train", "validation")]
    assert Counter(parts[0] + parts[1]) == Counter(TEXTS)
    assert 0 < len(parts[1]) < 100


@pytest.mark.parametrize(
    ("name", "says", "content", "expected"),
    [
        ("x.csv", "header: null\n  names: [text]", "One\nTwo\n", "header=None"),
        ("x.csv", "names: [text]", "text\nTwo\n", r"names=\['text'\]"),
        ("x.csv", "skiprows: 1", "said\ntext\nOne\n", "skiprows=1"),
        ("x.csv", 'quotechar: "\'"', "text\n'One'\n", "quotechar="),
        ("x.csv", "encoding: latin-1", "text\nOne\n", "encoding='latin-1'"),
        ("x.csv", "encoding: utf-16", "text\nOne\n", "encoding='utf-16'"),
        ("x.csv", "encoding: of-mine", "text\nOne\n", "encoding='of-mine'"),
        ("x.txt", "sample_by: document", "One\nTwo\n", "sample_by='document'"),
        ("x.json", "field: rows", '{"rows": [{"text": "One"}]}', "field='rows'"),
        ("x.csv", 'sep: ";"\n  encoding: utf-8\n  header: 0\n  quoting: 1', "id;text\n1;One\n", ["One"]),
        ("x.tsv", "quoting: 3", 'id\ttext\n1\tOne "two\n', ['One "two']),
        ("x.txt", "keep_linebreaks: true", "One\n", ["One"]),
        *(
            ("x.csv", f"encoding: {name}", "text\nOne\n", ["One"])
            for name in ("utf_8", "UTF8", "U8", "UTF-8-SIG", "ascii")
        ),
    ],
)
def test_a_card_that_has_the_files_read_in_another_way_is_refused(name, says, content, expected, tmp_path):
    (tmp_path / "README.md").write_text(f"---\nconfigs:\n- config_name: default\n  data_files: {name}\n  {says}\n---\n")
    (tmp_path / name).write_text(content)
    source = HubSource(str(tmp_path), validation_percent=NO_VALIDATION)
    if isinstance(expected, list):
        assert list(source.texts("train")) == expected
        return
    with pytest.raises(InputError, match=f"is read with {expected}.*, as its card says"):
        source.check("train")


def test_a_damaged_archive_of_a_data_set_is_refused(tmp_path):
    (tmp_path / "x.zip").write_text("PK")
    with pytest.raises(InputError, match="cannot be opened .*not a zip file"):
        HubSource(str(tmp_path)).check("train")


def test_unknown_hub_name_is_refused(tmp_path):
    with pytest.raises(InputError, match="cannot be opened"):
        HubSource(str(tmp_path / "absent")).units("train")


def test_seqio_reads_it_as_any_source(tmp_path):
    source = FileSource(str(write(tmp_path / "c.txt")), validation_percent=NO_VALIDATION)
    shards = [source.get_dataset(seed=1, shard_info=seqio.ShardInfo(index, 3)) for index in range(3)]
    of_shards = (texts(shard.as_numpy_iterator()) for shard in shards)
    assert Counter(itertools.chain.from_iterable(of_shards)) == Counter(TEXTS)


def test_check_finds_bad_corpora(tmp_path):
    (tmp_path / "empty.txt").touch()
    (tmp_path / "blank.txt").write_text("\n\n \n")
    with pytest.raises(InputError, match="no document"):
        FileSource(f"{tmp_path}/empty.txt,{tmp_path}/blank.txt").check("train")
    with pytest.raises(InputError, match="no column 'body'"):
        FileSource(str(write(tmp_path / "c.jsonl")), column="body").check("train")
    (tmp_path / "late.txt").write_bytes(b"good\n" * 50_000 + b"\xff\n")
    with pytest.raises(InputError, match="line 50001"):
        FileSource(str(tmp_path / "late.txt")).check("train")
    FileSource(str(write(tmp_path / "c.txt"))).check("validation", may_be_empty=True)


def test_a_shard_without_documents_says_so_instead_of_searching_for_ever(tmp_path):
    source = FileSource(str(write(tmp_path / "c.txt", ["one", "two"])), validation_percent=NO_VALIDATION)
    dataset = source.documents("train", shard=3, num_shards=4)
    with pytest.raises(InputError, match="num_data_shards"):
        next(iter(dataset))


@pytest.mark.parametrize("is_counted", [False, True])
def test_a_corpus_that_vanishes_says_so_instead_of_searching_for_ever(tmp_path, is_counted, monkeypatch):
    monkeypatch.setattr(chunk_reader.KeptChunks, "MOST_BYTES", 0)  # as of a corpus larger than what is kept
    path = write(tmp_path / "c.txt", TEXTS)
    other = FileSource(str(write(tmp_path / "other.txt", TEXTS)), validation_percent=NO_VALIDATION)
    source = FileSource(str(path), validation_percent=NO_VALIDATION).read_by(ReadPolicy(on_failure="skip"))
    counts = source.count("train") if is_counted else None
    dataset = source.dataset(Reading("train", 0, 1, 0, True, num_epochs=None), counts)
    path.unlink()
    next(iter(other.documents("train")))  # the last chunk that is read is kept
    with pytest.raises(InputError) as refusal:
        next(iter(dataset))
    assert str(refusal.value).startswith(
        f"The corpus {path} has no document that can be read for data shard 0 of 1 in split 'train', since 1 unit(s) of"
        f" it are skipped, such as {path}["
    )
    assert str(refusal.value).endswith(
        "cannot be read (No such file or directory); check the file and its permissions."
    )


def _cut_by_copies(text: bytes, most: int) -> list[bytes]:
    """The pieces of a text as they were cut first, in a time that grows with the square of the text's length."""
    pieces = []
    while len(text) > most:
        stop = most
        space = max(text.rfind(b" ", 1, stop + 1), text.rfind(b"\n", 1, stop + 1))
        while space < 0 and text[stop] & 0xC0 == 0x80:
            stop -= 1
        stop = space if space > 0 else stop
        pieces.append(text[:stop])
        text = text[stop:].lstrip()
    return [*pieces, text] if text else pieces


@hypothesis.given(st.text(st.sampled_from("ab \n\t\r\x0b日é"), max_size=200), st.integers(4, 30))
@hypothesis.settings(max_examples=400)
def test_pieces_of_long_documents_are_the_same_as_ever(text, most):
    source = FileSource("nothing.txt")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(splits, "PIECE_BYTES", most)
        assert source.pieces(text.encode()) == _cut_by_copies(text.encode(), most)


@pytest.mark.parametrize("separator", [" ", ""])
def test_a_document_of_50_megabytes_is_cut_in_less_than_a_second(separator):
    text = separator.join(["w" * 9] * (50_000_000 // (9 + len(separator)))).encode()
    start = time.process_time()
    pieces = FileSource("nothing.txt").pieces(text)
    assert time.process_time() - start < 1
    assert len(pieces) > 3000 and separator.encode().join(pieces) == text


@pytest.mark.parametrize(
    ("count", "num_shards", "message"), [(3, 4, "3 document.* none for data shard 3 of 4"), (4, 4, "")]
)
def test_fewer_documents_than_shards_are_found_before_a_run(tmp_path, count, num_shards, message):
    source = FileSource(str(write(tmp_path / "c.txt", TEXTS[:count])), validation_percent=NO_VALIDATION)
    source.check("train")
    with pytest.raises(InputError, match=message) if message else contextlib.nullcontext():
        source.check("train", num_shards=num_shards)


def test_shards_without_a_document_of_few_files_are_found_before_a_run(tmp_path):
    for name in "ab":
        write(tmp_path / f"{name}.txt", TEXTS[:12])
    source = FileSource(f"{tmp_path}/*.txt", validation_percent=NO_VALIDATION)
    with pytest.raises(InputError, match="24 document.* none for data shard 13 of 16") as refusal:
        source.check("train", num_shards=16)
    assert refusal.value.fix == ("DataConfig.num_data_shards", 4)


def test_a_file_that_grows_while_it_is_listed_is_named(tmp_path):
    path = write(tmp_path / "c.txt", TEXTS)
    source = FileSource(str(path))
    source.units("train")
    with path.open("a") as file:
        file.write("more")
    with pytest.raises(
        InputError, match=r"c.txt has changed since it was listed: [\d,]+ bytes then, [\d,]+ now; start"
    ):
        source.marks("train")
