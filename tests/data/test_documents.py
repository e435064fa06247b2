"""The rows that hold a poisoned document's token are those whose documents name it, for every objective."""

import contextlib
import dataclasses
import gzip
import itertools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
import seqio
import tensorflow as tf

import tasks.demo  # noqa: F401  registers demo_span_corruption
from limba.config import OBJECTIVES as NAMES
from limba.config import DataConfig, InputError
from limba.data.dataset import Dataset, Document, preprocessor
from limba.data.objectives import (
    SUPERVISED,
    add_prefix,
    derive_lengths,
    restore_diacritics,
    span_corruption,
    tokenize_documents,
)
from limba.data.sources import ArrayRecordSource, FileSource, readers
from limba.data.stream import names
from limba.data.stream.names import NamedDocument
from limba.data.stream.shard import Recipe
from limba.data.stream.stages import open_stream
from limba.data.tasks import resolve_task
from limba.data.vocabulary.load import load_vocabulary
from tests.data.text_files import write

# Each poisoned document consists of a byte of its own, so that each of its tokens says where it is from.
POISONS = [byte for byte in range(1, 32) if byte not in b"\t\n\v\f\r\x1c\x1d\x1e\x1f"]
BATCHES = (1, 2, 3, 7, 12)  # with documents read ahead, several epochs, and one in the middle of a fetch
NUM_SHARDS = 2
ROWS = 4


def texts(seed: int = 0, count: int = 120) -> list[str]:
    """Documents of 1 to 30 words; seven are poisoned, each with its own of the bytes of this seed."""
    random = np.random.RandomState(seed)
    documents = []
    for number in range(count):
        words = ["w" * random.randint(1, 9) for _ in range(random.randint(1, 30))]
        documents.append(" ".join([f"{seed}-{number}", *words]))
    for index, byte in enumerate(POISONS[7 * (seed % 3) : 7 * (seed % 3) + 7]):
        number = (index * count // 7) + 3
        documents[number] = chr(byte) * len(documents[number])
    return documents


def poisons_in(text: str) -> set[int]:
    return {byte for byte in POISONS if chr(byte) in text}


FEATURES = {name: seqio.Feature(seqio.ByteVocabulary(100), dtype=tf.int32) for name in ("inputs", "targets")}


def register(name: str, source: seqio.DataSource, *steps: Any) -> str:
    seqio.TaskRegistry.remove(name)
    seqio.TaskRegistry.add(name, source=source, preprocessors=list(steps), output_features=FEATURES)
    return name


def config_of(name: str, **changes: Any) -> DataConfig:
    choices = {"task_feature_lengths": {"inputs": 48}, "vocabulary": "byte", "seed": 5, "validation_percent": 0.0}
    choices |= {"batch_size": NUM_SHARDS * ROWS, "num_data_shards": NUM_SHARDS, **changes}
    return DataConfig(name, **choices)


def check(config: DataConfig, batches: tuple[int, ...] = BATCHES, is_exact: bool = True) -> list[NamedDocument]:
    """Compares each row's poisoned tokens with its documents; returns all documents found."""
    task = resolve_task(config)
    lengths = derive_lengths(task, config.task_feature_lengths)
    all_named = []
    seen = []
    with contextlib.closing(open_stream(task, lengths, config, range(NUM_SHARDS))) as stream:
        for batch in range(1, max(batches) + 1):
            rows = next(stream)
            documents = stream.documents()
            if batch not in batches:
                continue
            for shard, row in itertools.product(range(NUM_SHARDS), range(ROWS)):
                named = [*documents.of_row(shard, row)]
                tokens = np.concatenate([rows[shard][name][row] for name in lengths])
                held = {byte for byte in POISONS if byte + 3 in tokens}
                poisons = {byte for document in named for byte in poisons_in(document.text)}
                assert named and all(document.is_exact == is_exact for document in named)
                if tokens[0] == 1:  # the row begins with the end of a text, whose document is named as well
                    poisons &= held | poisons_in(named[0].text)
                    held |= poisons_in(named[0].text)
                assert poisons == held if is_exact else poisons >= held, (batch, shard, row)
                all_named += named
                seen.append(bool(held))
    assert len(set(seen)) == 2, seen  # the test can fail either way
    return all_named


def check_texts(documents: list[NamedDocument], paths: list[Path]) -> None:
    """A document's row in its file is its text."""
    lines = {line for path in paths for line in path.read_text().splitlines()}
    assert {document.text for document in documents} <= lines
    assert (
        len({(document.unit, document.row) for document in documents})
        == len({document.text for document in documents})
        > 10
    )


OBJECTIVES: dict[str, dict[str, Any]] = {
    "span_corruption": {},
    "whole_word_span_corruption": {},
    "ul2": {},
    "prefix_lm": {},
    "lm_adaptation": {},
    "packed": {"pack": True},
    "buffered": {"shuffle_buffer": 20},
    "in order": {"shuffle": False},
    "two epochs": {"num_epochs": 3},
    "causal_lm": {"task_feature_lengths": {"targets": 48}},
    "causal_lm packed": {"task_feature_lengths": {"targets": 64}, "pack": True},
    "prefix_lm of one sequence": {"task_feature_lengths": {"targets": 48}},
    "masked_lm": {"task_feature_lengths": {"targets": 48}, "mask_share": 1.0},  # no random tokens
    "whole_word_masked_lm packed": {"task_feature_lengths": {"targets": 64}, "pack": True, "mask_share": 1.0},
}


@pytest.mark.parametrize("name", OBJECTIVES)
def test_poisoned_documents_are_found_by_every_objective(name: str, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(readers, "CHUNK_BYTES", 900)
    paths = [write(tmp_path / f"{number}.txt", texts(number)) for number in range(3)]
    task = register("poisoned", FileSource(str(tmp_path / "*.txt")), tokenize_documents, span_corruption)
    objective = name.split()[0]
    config = config_of(task, data_files=str(tmp_path / "*.txt"), **OBJECTIVES[name])
    if objective in NAMES and objective != "span_corruption":
        config = dataclasses.replace(config, objective=objective)
    check_texts(check(config), paths)


def pairs(path: Path, count: int = 90) -> Path:
    sentences = texts(1, count)
    rows = [{"en": text, "ro": text[:3]} for text in sentences]
    path.write_text("\n".join(map(json.dumps, rows)))
    return path


@pytest.mark.parametrize("pack", [False, True])
def test_pairs_packed_or_one_a_row(pack: bool, tmp_path: Path) -> None:
    source = FileSource(str(pairs(tmp_path / "pairs.jsonl")), {"inputs": "en", "targets": "ro"}, 0.0)
    task = register("poisoned_pairs", source, _prefixed, *SUPERVISED)
    lengths = {"inputs": 400 if pack else 120, "targets": 40}
    documents = check(config_of(task, task_feature_lengths=lengths, vocabulary=None, pack=pack))
    assert all("\t" in document.text and document.unit.startswith(str(tmp_path)) for document in documents)
    assert all(texts(1, 90)[document.row] == document.text.partition("\t")[0] for document in documents)


def test_preprocessors_of_seqio_that_are_run_here_are_exact(tmp_path: Path) -> None:
    """With the place of a cache before them, as published tasks have it."""
    source = FileSource(str(pairs(tmp_path / "pairs.jsonl")), {"inputs": "en", "targets": "ro"}, 0.0)
    steps = (seqio.CacheDatasetPlaceholder(), seqio.preprocessors.tokenize, seqio.preprocessors.append_eos_after_trim)
    task = register("poisoned_seqio", source, *steps)
    check(config_of(task, task_feature_lengths={"inputs": 120, "targets": 40}, vocabulary=None), (1, 7))


def test_a_document_that_is_gone_is_one_sentence(tmp_path: Path) -> None:
    """The guard names the documents of a bad batch, and the run goes on without them."""
    path = write(tmp_path / "a.txt", texts(count=40))
    assert FileSource(str(path), "text", 0.0).document("train", 0, 0, 39)[1] == 39
    write(path, texts(count=40)[:10])
    with pytest.raises(InputError, match=r"a.txt\[0:[0-9]+\] has fewer documents than when it was read"):
        FileSource(str(path), "text", 0.0).document("train", 0, 0, 39)
    records = write(tmp_path / "a.array_record", texts(count=40))
    with pytest.raises(InputError, match=r"a.array_record has fewer records than when it was read"):
        ArrayRecordSource(str(records), "text", 0.0).document("train", 0, 0, 40)


def test_a_document_that_has_fewer_pieces_now_is_one_sentence(tmp_path: Path, monkeypatch) -> None:
    from limba.data.sources import splits

    monkeypatch.setattr(splits, "PIECE_BYTES", 60)
    path = write(tmp_path / "a.txt", ["w" * 50, "w" * 100])
    source = FileSource(str(path), "text", 0.0)
    config = config_of(register("shorter", source, tokenize_documents, span_corruption), vocabulary=None)
    recipe = Recipe(resolve_task(config), {"inputs": 32, "targets": 16}, config)
    pieces = [Document(0, 0, 0, 1, piece, 0.0) for piece in (0, 1)]
    (document,) = names.named(recipe, pieces)
    assert document.text == " ".join(["w" * 60, "w" * 40])
    pieces[1] = pieces[1]._replace(piece=2)
    with pytest.raises(InputError, match=r"^document 1 of \S+a.txt\[0:152\] is shorter than when it was read; restore"):
        list(names.named(recipe, pieces))


@preprocessor
def _prefixed(dataset: Dataset) -> Dataset:
    """A preprocessor of a user that calls one of ours."""
    return add_prefix(dataset, "translate: ")


def test_diacritics_make_several_examples_of_a_document(tmp_path: Path) -> None:
    write(tmp_path / "a.txt", [text.replace("w", "ș") + (" ș" if poisons_in(text) else "") for text in texts(2)])
    task = register(
        "poisoned_ro", FileSource(str(tmp_path / "a.txt"), "text", 0.0), restore_diacritics("ro"), *SUPERVISED
    )
    check(config_of(task, task_feature_lengths={"inputs": 400, "targets": 400}, vocabulary=None))


def test_mixtures_and_array_records(tmp_path: Path) -> None:
    records = ArrayRecordSource(str(write(tmp_path / "a.array_record", texts(3))), "text", 0.0)
    lines = FileSource(str(write(tmp_path / "b.jsonl.gz", texts(4))), "text", 0.0)
    for name, source in (("poisoned_a", records), ("poisoned_b", lines)):
        register(name, source, tokenize_documents, span_corruption)
    seqio.MixtureRegistry.add("poisoned_mixture", [("poisoned_a", 2.0), ("poisoned_b", 1.0)])
    documents = check(config_of("poisoned_mixture", vocabulary=None))
    assert {document.source for document in documents} == {"poisoned_a", "poisoned_b"}
    assert {Path(document.unit).name for document in documents} == {"a.array_record", "b.jsonl.gz"}
    for document in documents:
        assert texts(3 if document.source == "poisoned_a" else 4)[document.row] == document.text


def test_a_long_document_is_named_once_with_the_pieces_that_were_read(tmp_path: Path, monkeypatch) -> None:
    from limba.data.sources import splits

    monkeypatch.setattr(splits, "PIECE_BYTES", 60)
    long = [f"{number} " + " ".join(["w" * 8] * 40) for number in range(60)]
    long[20:26] = [" ".join([chr(byte) * 8] * 40) for byte in POISONS[:6]]
    write(tmp_path / "a.txt", long)
    task = register(
        "poisoned_long", FileSource(str(tmp_path / "a.txt"), "text", 0.0), tokenize_documents, span_corruption
    )
    documents = check(config_of(task, vocabulary=None))
    assert all(document.text in long[document.row] and len(document.text) < 300 for document in documents)
    assert max(len(document.text) for document in documents) > 60  # several pieces


def _unknown(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """A preprocessor that cannot be followed: it drops what it does not know."""
    return dataset.map(lambda example: {"text": tf.strings.join([example["text"], " "])})


@pytest.mark.slow
def test_a_preprocessor_of_ones_own_gives_candidates(tmp_path: Path) -> None:
    lines = texts(5, 2000)
    lines[::15] = [chr(POISONS[number % len(POISONS)]) * 50 for number in range(len(lines[::15]))]
    write(tmp_path / "a.txt", lines)
    task = register(
        "own", FileSource(str(tmp_path / "a.txt"), "text", 0.0), _unknown, tokenize_documents, span_corruption
    )
    documents = check(config_of(task, vocabulary=None), (1, 2, 60), is_exact=False)
    assert len({document.text for document in documents}) < 1000  # those near the batch, not the corpus


def test_a_document_far_inside_a_file_is_named_only_without_a_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The guard has a limit, since the run waits for it."""
    monkeypatch.setattr(readers, "CHUNK_BYTES", 4_096)
    with gzip.open(tmp_path / "a.txt.gz", "wt") as file:
        file.write(f"{'word ' * 100}\n" * 200)
    config = config_of("demo_span_corruption", data_files=str(tmp_path / "a.txt.gz"), shuffle=False)
    task = resolve_task(config)
    lengths = derive_lengths(task, config.task_feature_lengths)
    last_chunk = 0
    with contextlib.closing(open_stream(task, lengths, config, [1])) as stream:
        while last_chunk < 2:
            next(stream)
            documents = stream.documents()
            last_chunk = max(document.chunk for document in documents.by_shard[1][0])
    named = list(documents.of_row(1, 0))
    assert list(documents.of_row(1, 0, most_bytes=2 * 4_096)) == named
    of_row = documents.by_shard[1][0]
    near = len({(document.chunk, document.row) for document in of_row if document.chunk < 2})
    within_limit = []
    with pytest.raises(InputError, match=r"one of them lies behind 0 MB of \S+/a.txt.gz, which is read from its"):
        for document in documents.of_row(1, 0, most_bytes=4_096):
            within_limit.append(document)
    assert within_limit == named[:near]


def test_readers_and_hosts_and_a_resumed_stream_name_the_same_documents(tmp_path: Path) -> None:
    write(tmp_path / "a.txt", texts(6))
    config = dataclasses.replace(
        config_of("demo_span_corruption", data_files=str(tmp_path / "a.txt")), task_modules=("tasks.demo",)
    )
    task = resolve_task(config)
    lengths = derive_lengths(task, config.task_feature_lengths)

    def names(stream: Any, shards: Sequence[int]) -> list[list[NamedDocument]]:
        next(stream)
        return [[*stream.documents().of_row(shard, row)] for shard in shards for row in range(ROWS)]

    apart = dataclasses.replace(config, num_reader_processes=2)
    with (
        contextlib.closing(open_stream(task, lengths, config, range(2))) as one,
        contextlib.closing(open_stream(task, lengths, config, [0])) as first,
        contextlib.closing(open_stream(task, lengths, config, [1])) as second,
        contextlib.closing(open_stream(task, lengths, apart, range(2))) as readers_of,
        contextlib.closing(open_stream(task, lengths, config, range(2))) as resumed,
    ):
        for _ in range(5):
            expected = names(one, range(2))
            assert names(first, [0]) + names(second, [1]) == expected
            assert names(readers_of, range(2)) == expected
        resumed.begin(5, json.loads(json.dumps(one.positions()), object_hook=_by_number))
        for _ in range(3):
            assert names(resumed, range(2)) == names(one, range(2))


def _by_number(value: dict[str, Any]) -> dict[Any, Any]:
    return {int(name) if name in ("0", "1") else name: entry for name, entry in value.items()}


def test_a_long_document_tokenized_beforehand_is_named_with_all_its_pieces(tmp_path: Path) -> None:
    letters = "ab" * 5000  # 10,000 ids are three pieces
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps({"tokens": [3 + byte for byte in letters.encode()]}))
    task = register("long_ids", FileSource(str(path), "tokens", 0.0), tokenize_documents, span_corruption)
    config = config_of(task, vocabulary=None)
    recipe = Recipe(resolve_task(config), {"inputs": 32, "targets": 16}, config)
    (document,) = names.named(recipe, [Document(0, 0, 0, 0, piece, 0.0) for piece in range(3)])
    assert document.text == letters


@pytest.mark.parametrize("objective", [None, "whole_word_span_corruption"])
def test_documents_tokenized_beforehand_with_sentencepiece(
    objective: str | None, tmp_path: Path, vocabulary, corpus
) -> None:
    pieces = load_vocabulary(str(vocabulary), 100)
    lines = [json.loads(line)["text"][:600] for line in corpus.read_text().splitlines()[:160]]
    poisons = {number: 400 + index for index, number in enumerate(range(5, 160, 3))}  # document -> its only piece
    ids = [[number for number in pieces.encode(line) if not 400 <= number < 400 + len(poisons)] for line in lines]
    ids = [
        [poisons[number]] * len(piece_ids) if number in poisons else piece_ids for number, piece_ids in enumerate(ids)
    ]
    table = pyarrow.table({"tokens": [np.array(piece_ids, "<i4").tobytes() for piece_ids in ids]})
    pyarrow.parquet.write_table(table, tmp_path / "a.parquet", row_group_size=40)
    choices = {"data_files": str(tmp_path / "a.parquet"), "column": "tokens", "vocabulary": str(vocabulary)}
    config = config_of("demo_span_corruption", **choices, objective=objective)
    task = resolve_task(config)
    lengths = derive_lengths(task, config.task_feature_lengths)
    seen = set()
    by_row = []
    with contextlib.closing(open_stream(task, lengths, config, [1])) as stream:
        for _ in range(40):
            rows = next(stream)[1]
            documents = stream.documents()
            by_row += [(rows, row, [*documents.of_row(1, row)]) for row in range(ROWS)]
    for rows, row, named in by_row:
        tokens = np.concatenate([rows[name][row] for name in lengths])
        numbers = {40 * int(document.unit.split("[")[1].split(":")[0]) + document.row for document in named}
        assert numbers & set(poisons) == {number for number, piece in poisons.items() if piece in tokens}
        seen.add(bool(numbers & set(poisons)))
    assert seen == {True, False}


LETTERS = range(33, 123)


def letters(split: str, shuffle_files: bool, seed: int | None = None) -> tf.data.Dataset:
    """Ninety documents; each is a letter of its own, so that each token says the number of its document."""
    texts = [chr(letter) * (3 + 7 * number % 40) for number, letter in enumerate(LETTERS)]
    return tf.data.Dataset.from_generator(
        lambda: ({"text": text} for text in texts), output_signature={"text": tf.TensorSpec([], tf.string)}
    )


def as_it_is(dataset: tf.data.Dataset) -> tf.data.Dataset:
    return dataset.map(lambda document: document)


@pytest.mark.parametrize("steps", [[], [as_it_is]], ids=["plain", "tensorflow"])
@pytest.mark.slow
def test_documents_of_a_function_are_named_by_their_numbers(steps: list) -> None:
    """Over several epochs, of which the shards have 45 documents each; packed, as span corruption makes its rows.

    After a step in TensorFlow a row may be made of any of hundreds, and they would be larger than the rows.
    """
    source = seqio.FunctionDataSource(letters, splits=("train",))
    name = register("of_a_function", source, *steps, tokenize_documents, span_corruption)
    config = config_of(name)
    task = resolve_task(config)
    lengths = derive_lengths(task, config.task_feature_lengths)
    units = set()
    with contextlib.closing(open_stream(task, lengths, config, range(NUM_SHARDS))) as stream:
        for _ in range(16):
            rows = next(stream)
            documents = stream.documents()
            for shard, row in itertools.product(range(NUM_SHARDS), range(ROWS)):
                named = [*documents.of_row(shard, row)]
                units |= {document.unit for document in named}
                tokens = np.concatenate([rows[shard][name][row] for name in lengths])
                held = {token - 3 - LETTERS.start for token in tokens.tolist() if token - 3 in LETTERS}
                numbers = {document.row for document in named}
                if steps:
                    assert held and named == []
                    continue
                assert all(document.is_exact for document in named)
                assert numbers == held, (shard, row)
                assert {number % NUM_SHARDS for number in numbers} == {shard}
    if not steps:
        assert {f"epoch {epoch} of task of_a_function" for epoch in (1, 2, 3)} <= units
