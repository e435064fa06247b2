"""The batches of every task, file format, objective and choice of data that ships, as digests: tests/golden/batches.

`python -m tests.data.batches` adds the digests of new cases; recorded ones stay. They are those of the order of data
that is a format since version 0.3.0 (`ORDER` of `limba/data/stream/positions.py`).
"""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import importlib
import itertools
import json
import random
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
import seqio
import tensorflow as tf
import tensorflow_datasets as tfds
import zstandard
from array_record.python.array_record_module import ArrayRecordWriter

from limba.config import OBJECTIVES, DataConfig
from limba.data.deal import WHOLE_UNITS, deal_of
from limba.data.objectives import SUPERVISED, derive_lengths, span_corruption, tokenize_documents
from limba.data.objectives.supervised import is_supervised
from limba.data.packing import model_features
from limba.data.run_data import validation_batches, validation_examples
from limba.data.sources import FileSource, HubSource, TfdsSource
from limba.data.stream.stages import Stage, open_stages, task_of_stage
from limba.data.tasks import parts_of, resolve_task
from limba.data.vocabulary.train import train_vocabulary

FOLDER = Path(__file__).parents[1] / "golden/batches"
HASHES = FOLDER / "hashes.json"
VOCABULARY = FOLDER / "vocabulary.model"
MODULES = (
    "cc100",
    "demo",
    "en_ms",
    "lm1b",
    "ro",
    "ro_diacritics",
    "t5_mlm",
    "text_to_text",
    "wiki40b",
)
LETTERS = "aăâbcdeéfghiîjklmnoprsștțuv日本語の"
SHIPPED = (  # the tasks and mixtures of tasks/
    *("cc100_ja_causal_lm", "cc100_ja_causal_lm_stream", "demo_span_corruption", "en_ms_translation"),
    *("ms_en_translation", "en_ms_both", "en_ms_published", "lm1b_causal_lm", "lm1b_causal_lm_stream"),
    *("rlm_span_corruption_stream", "rlm_span_corruption_files", "ro_diacritics", "ro_diacritics_partial"),
    *("ro_diacritics_bytes", "ro_diacritics_published", "fr_diacritics", "fr_diacritics_bytes", "fr_capitals_bytes"),
    *("t5_mlm", "summarization", "translation", "classification", "text_to_text", "wiki40b_ja_causal_lm"),
    *("wiki40b_ja_articles_causal_lm", "wiki40b_ja_causal_lm_stream"),
)
FORMATS = ("txt", "jsonl", "csv", "parquet", "array_record", "jsonl.gz", "txt.zst", "csv.gz", "json", "tokens.parquet")
PREPARED = ("tfds_tfrecord", "tfds_array_record", "hub_folder")  # as tasks, since DataConfig.data_files has no name
EVALUATED = (  # of which the validation split is recorded too
    *("task_demo_span_corruption", "task_en_ms_both", "task_ro_diacritics", "task_lm1b_causal_lm", "mixture"),
    *("objective_span_corruption_pieces_packed", "decoder_prefix_lm_byte", "decoder_pairs_packed", "parquet_4_shards"),
    *("array_record_4_shards", "tfds_tfrecord_4_shards", "jsonl.gz_4_shards", "own_validation"),
)
RESUMED = (  # which are resumed too: each kind of source, of order and of objective
    *("stages", "two_epochs_dealt", "endless_whole_units", "array_record_4_shards", "array_record_whole_units"),
    *("tfds_tfrecord_4_shards", "parquet_whole_units", "pairs_packed", "shuffle_buffer", "task_ro_diacritics"),
    *(f"objective_{name}_pieces" for name in OBJECTIVES),
    *("objective_causal_lm_byte_packed", "decoder_prefix_lm_byte", "decoder_lm_adaptation_pieces"),
)
Hashes = dict[str, Any]


@dataclass(frozen=True)
class Case:
    """A choice of data: CORPUS in its strings is the folder of the files below."""

    choices: Mapping[str, Any]
    batches: int = 5  # at most
    resumes: int = 0  # after so many batches; 0 where it is not tried
    is_dealt: bool = True  # evenly, as runs deal small corpora; else in whole units, as large ones
    shards: Sequence[Sequence[int]] = field(default_factory=list)  # by host; empty: one host
    together: int = 1  # batches of one digest


def words(draw: random.Random, count: int) -> str:
    """Returns words of one to eight letters, some of which are seldom."""

    def letter() -> str:
        return LETTERS[int(len(LETTERS) * draw.random() ** 2)]

    return " ".join("".join(letter() for _ in range(1 + int(8 * draw.random()))) for _ in range(count))


def documents(seed: int, count: int) -> list[str]:
    """Returns texts of very different lengths: one of them is long enough to be read in pieces."""
    draw = random.Random(seed)
    texts = [f"{number} {words(draw, 3 + int(40 * draw.random() ** 3))}." for number in range(count - 1)]
    return [*texts, f"long {words(draw, 4_000)}."]


def pairs(seed: int, count: int) -> list[dict[str, str]]:
    """Returns rows with the columns of all supervised tasks that ship."""
    draw = random.Random(seed)
    rows = []
    for number in range(count):
        one = f"{number} {words(draw, 2 + int(12 * draw.random()))}"
        other = words(draw, 2 + int(6 * draw.random()))
        sides = (("text", "summary"), ("source", "target"), ("inputs", "targets"), ("en", "ms"))
        rows.append({name: text for side in sides for name, text in zip(side, (one, other), strict=True)})
        rows[-1]["label"] = ("da", "nu", "poate")[number % 3]
    return rows


def write(path: Path, texts: Sequence[str]) -> None:
    """Writes the texts in the format that the suffixes name."""
    name = path.name
    if name.endswith("tokens.parquet"):
        ids = [np.array([3 + byte for byte in text.encode()], "<i4").tobytes() for text in texts]
        pyarrow.parquet.write_table(pyarrow.table({"tokens": ids}), path, row_group_size=25)
    elif name.endswith(".parquet"):
        pyarrow.parquet.write_table(pyarrow.table({"text": texts}), path, row_group_size=25)
    elif name.endswith(".array_record"):
        writer = ArrayRecordWriter(str(path), "group_size:1")
        for text in texts:
            feature = {"text": tf.train.Feature(bytes_list=tf.train.BytesList(value=[text.encode()]))}
            writer.write(tf.train.Example(features=tf.train.Features(feature=feature)).SerializeToString())
        writer.close()
    else:
        rows = [json.dumps({"text": text, "id": 1}) if ".json" in name else text for text in texts]
        content = "\n".join(["text", *(f'"{row}"' for row in rows)] if ".csv" in name else rows)
        if name.endswith(".json"):
            content = f"[{','.join(rows)}]"
        packs = {".gz": lambda data: gzip.compress(data, mtime=0), ".zst": zstandard.compress}
        path.write_bytes(packs.get(path.suffix, bytes)(f"{content}\n".encode()))


def write_corpora(folder: Path) -> None:
    """Writes every corpus of the cases; the bytes are the same everywhere."""
    for form in FORMATS:
        (folder / form).mkdir()
        for number in range(3):
            write(folder / form / f"part-{number}.{form}", documents(10 * number, 90))
    for name, seed, count in (("small", 1, 45), ("other", 2, 150), ("validation", 3, 30)):
        write(folder / f"{name}.jsonl", documents(seed, count))
        (folder / f"{name}_pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in pairs(seed, count)))
    (folder / "damaged").mkdir()
    for number in range(3):
        write(folder / "damaged" / f"part-{number}.jsonl.gz", documents(20 + number, 60))
    torn = folder / "damaged" / "part-1.jsonl.gz"
    torn.write_bytes(torn.read_bytes()[:-200])
    lines = [json.dumps({"text": text}) for text in documents(30, 60)]
    (folder / "damaged" / "part-3.jsonl").write_text("\n".join([*lines[:40], "{no JSON", *lines[40:]]) + "\n")
    (folder / "hub").mkdir()
    write(folder / "hub" / "train.jsonl", [f"\n_START_PARAGRAPH_\n{text}_NEWLINE_Short." for text in documents(40, 90)])
    for form in ("tfrecord", "array_record"):
        texts = documents(50, 200)
        tfds.dataset_builders.store_as_tfds_dataset(
            name="documents",
            version="1.0.0",
            features=tfds.features.FeaturesDict({"text": tfds.features.Text()}),
            split_datasets={"train": tf.data.Dataset.from_tensor_slices({"text": texts})},
            data_dir=str(folder / f"tfds_{form}"),
            file_format=form,
            disable_shuffling=True,
        )


@contextlib.contextmanager
def registered(folder: Path) -> Iterator[None]:
    """Tasks that read the prepared data sets and the files in a folder, and mixtures of them, while it is entered."""
    from tasks.wiki40b import paragraphs

    for module in MODULES:
        importlib.import_module(f"tasks.{module}")
    slices = {"train": "train[:90%]", "validation": "train[90%:]"}
    sources = {f"tfds_{form}": TfdsSource("documents", slices, data_dir=str(folder / f"tfds_{form}"))
               for form in ("tfrecord", "array_record")}  # fmt: skip
    sources["hub_folder"] = HubSource(str(folder / "hub"), rewrite=paragraphs)
    sources |= {name: FileSource(str(folder / f"{name}.jsonl"), validation_percent=5.0) for name in ("small", "other")}
    features: dict[str, Any] = dict.fromkeys(
        ("inputs", "targets"), seqio.Feature(seqio.ByteVocabulary(100), dtype=tf.int32)
    )
    steps: dict[str, Any] = {name: [tokenize_documents, span_corruption] for name in sources}
    columns = {name: name for name in ("inputs", "targets")}
    for name in ("small", "other"):
        sources[f"{name}_pairs"] = FileSource(str(folder / f"{name}_pairs.jsonl"), columns, 10.0)
        steps[f"{name}_pairs"] = SUPERVISED
    for name, source in sources.items():
        seqio.TaskRegistry.add(f"golden_{name}", source, features, steps[name], shuffle_buffer_size=None)
    mixtures = {"golden_mix": ("small", "other"), "golden_pairs": ("small_pairs", "other_pairs")}
    for name, (one, other) in mixtures.items():
        seqio.MixtureRegistry.add(name, [(f"golden_{one}", 1.0), (f"golden_{other}", 3.0)])
    try:
        yield
    finally:
        for name in mixtures:
            seqio.MixtureRegistry.remove(name)
        for name in sources:
            seqio.TaskRegistry.remove(f"golden_{name}")


SPANS: dict[str, Any] = {
    "mixture_or_task_name": "demo_span_corruption",
    "task_feature_lengths": {"inputs": 48},
    "batch_size": 16,
    "vocabulary": "byte",
    "num_data_shards": 2,
    "validation_percent": 5.0,
    "seed": 1,
}
PAIR = {**SPANS, "task_feature_lengths": {"inputs": 32, "targets": 24}, "validation_percent": 10.0}
OTHER = {"data_files": "CORPUS/other.jsonl", "vocabulary": "VOCABULARY"}
PAIRS = {"mixture_or_task_name": "text_to_text", "data_files": "CORPUS/other_pairs.jsonl"}


class Cases(dict[str, Case]):
    """Cases by name."""

    def add(self, name: str, choices: Mapping[str, Any], base: Mapping[str, Any] = SPANS, **options: Any) -> None:
        case = Case({**base, **choices}, **options)
        self[name] = replace(case, resumes=case.resumes or 2 * (name in RESUMED))


def _of_kinds(add: Callable[..., None]) -> None:
    # Every format of files, by 1, 4 and 16 shards, dealt evenly and in whole units.
    for form in (*FORMATS, *PREPARED):
        fields: dict[str, Any] = {
            "data_files": f"CORPUS/{form}/*.{form}",
            "column": "tokens" if "tokens" in form else "text",
        }
        if form in PREPARED:
            fields = {"mixture_or_task_name": f"golden_{form}"}
        for shards in (1, 4, 16) if form in ("txt", "parquet", "array_record") else (1, 4):
            add(f"{form}_{shards}_shards", {**fields, "num_data_shards": shards}, resumes=2 * (shards == 4))
        add(f"{form}_whole_units", fields, is_dealt=False)
    # Every task and mixture that ships.
    for name in SHIPPED:
        is_pair = name in ("en_ms_translation", "ms_en_translation", "en_ms_both", "en_ms_published", "summarization",
                           "translation", "classification", "text_to_text")  # fmt: skip
        is_text = not (is_pair or "diacritics" in name or "capitals" in name)
        files = {"data_files": "CORPUS/other_pairs.jsonl" if is_pair else "CORPUS/other.jsonl"}
        fields = {} if "bytes" in name or is_pair else {"vocabulary": "VOCABULARY"}
        more = {"task_feature_lengths": {"targets": 40}} if "causal_lm" in name else {}
        fields = {"mixture_or_task_name": name, **files, **fields, **more}
        add(f"task_{name}", fields, SPANS if is_text else PAIR)
        for shards in (1, 4, 16):  # for many epochs
            long = {"batches": 200, "resumes": 150, "together": 50}
            add(
                f"long_{name}_{shards}_shards",
                {**fields, "num_data_shards": shards},
                SPANS if is_text else PAIR,
                **long,
            )
    # Every objective, with pieces and bytes, padded and packed; what decoder-only models learn.
    for name, objective in OBJECTIVES.items():
        lengths = {"task_feature_lengths": {"inputs": 48} if objective.has_inputs else {"targets": 48}}
        for vocabulary, pack in itertools.product(("VOCABULARY", "byte"), (False, True)):
            choices = {"objective": name, "data_files": "CORPUS/other.jsonl", "vocabulary": vocabulary, "pack": pack}
            kind = f"{'byte' if vocabulary == 'byte' else 'pieces'}{'_packed' if pack else ''}"
            add(f"objective_{name}_{kind}", {**choices, **lengths})
            if objective.for_decoder and objective.has_inputs:
                add(f"decoder_{name}_{kind}", {**choices, "task_feature_lengths": {"targets": 48}})
    add("spans_denser", {**OTHER, "noise_density": 0.3, "mean_noise_span_length": 5.0})
    add("pairs_packed", {**PAIRS, "pack": True, "prefix": "say: "}, PAIR, resumes=2)
    add("decoder_pairs", {**PAIRS, "task_feature_lengths": {"targets": 40, "prefix": 24}}, PAIR)
    add("decoder_pairs_packed", {**PAIRS, "task_feature_lengths": {"targets": 64}, "pack": True}, PAIR)
    files = {"train": "CORPUS/other.jsonl", "validation": "CORPUS/validation.jsonl"}
    add("own_validation", {"data_files": files})


def _of_orders(add: Callable[..., None]) -> None:
    # Ends and beginnings of epochs, choices of order.
    small = {"data_files": "CORPUS/small.jsonl", "batch_size": 8}
    small_pairs = {"mixture_or_task_name": "text_to_text", "data_files": "CORPUS/small_pairs.jsonl", "batch_size": 8}
    for is_dealt, kind in ((True, "dealt"), (False, "whole_units")):
        add(f"endless_{kind}", small, batches=40, resumes=25, is_dealt=is_dealt)
        add(f"two_epochs_{kind}", {**small, "num_epochs": 2}, batches=500, resumes=20, is_dealt=is_dealt)
        add(
            f"two_epochs_pairs_{kind}", {**small_pairs, "num_epochs": 2}, PAIR, batches=50, resumes=7, is_dealt=is_dealt
        )
        records = {"data_files": "CORPUS/array_record/*.array_record", "num_epochs": 1}
        add(f"one_epoch_records_{kind}", records, batches=500, resumes=30, is_dealt=is_dealt)
        mix = {"mixture_or_task_name": "golden_mix", "batch_size": 8, "num_epochs": 1}
        add(f"one_epoch_mixture_{kind}", mix, batches=500, resumes=20, is_dealt=is_dealt)
    add("one_epoch_packed", {**small_pairs, "num_epochs": 1, "pack": True}, PAIR, batches=50, resumes=3)
    add("first_examples", {**small_pairs, "num_epochs": 3, "max_examples": 17}, PAIR, batches=50, resumes=3)
    add("first_records", {**records, "max_examples": 50, "num_epochs": 2}, batches=500, resumes=5)
    add("in_order", {**small, "shuffle": False}, batches=30, resumes=11)
    add("shuffle_buffer", {**OTHER, "shuffle_buffer": 20}, batches=12, resumes=5)
    add("another_seed", {**OTHER, "seed": 77})
    add("column", {**PAIRS, "mixture_or_task_name": "demo_span_corruption", "column": "summary"})
    add("columns", {**PAIRS, "column": {"inputs": "en", "targets": "ms"}}, PAIR)
    add("many_batches", {**OTHER, "batch_size": 4, "num_data_shards": 2}, batches=150, resumes=70)
    add("mixture", {"mixture_or_task_name": "golden_mix"}, batches=12, resumes=5)
    add("mixture_by_size", {"mixture_or_task_name": "golden_mix", "mixture_temperature": 3.33})
    add("mixture_pairs_packed", {"mixture_or_task_name": "golden_pairs", "pack": True}, PAIR, batches=12, resumes=5)
    # Damaged files: what is skipped, and what is read before and after.
    damaged = {"data_files": "CORPUS/damaged/*", "on_read_failure": "skip", "batch_size": 4, "num_data_shards": 2}
    for is_dealt, kind in ((True, "dealt"), (False, "whole_units")):
        add(f"skipped_{kind}", damaged, batches=40, resumes=0, is_dealt=is_dealt)
    # Stages; hosts; processes that read.
    stages = {"mixture_or_task_name": "golden_mix", "stages": ((5, "golden_other"), (9, "golden_mix"))}
    add("stages", stages, batches=14, resumes=7)
    add("stages_resumed_at_a_change", stages, batches=14, resumes=5)
    for hosts in (2, 4):
        parts = [tuple(range(16))[first * 16 // hosts : (first + 1) * 16 // hosts] for first in range(hosts)]
        add(f"hosts_{hosts}", {**OTHER, "num_data_shards": 16}, shards=parts, resumes=2)
        parts = [tuple(range(4))[first::hosts] for first in range(hosts)]
        add(f"stages_hosts_{hosts}", {**stages, "num_data_shards": 4}, batches=11, resumes=7, shards=parts)
    for processes in (1, 2, 4):
        read = {**OTHER, "num_data_shards": 4, "num_reader_processes": processes, "task_modules": ["tasks.demo"]}
        add(f"processes_{processes}", read, batches=12, resumes=5)
        add(f"long_processes_{processes}", read, batches=200, resumes=150, together=50)


CASES = Cases()
_of_kinds(CASES.add)
_of_orders(CASES.add)


def config_of(case: Case, folder: Path) -> DataConfig:
    text = json.dumps(dict(case.choices)).replace("CORPUS", str(folder)).replace("VOCABULARY", str(VOCABULARY))
    return DataConfig(**json.loads(text))


def digest(*parts: Mapping[str, np.ndarray]) -> str:
    """Returns 12 letters for the names, shapes, dtypes and bytes of arrays."""
    hasher = hashlib.blake2b(digest_size=6)
    for part in parts:
        for name, values in sorted(part.items()):
            hasher.update(f"{name} {values.dtype} {values.shape}".encode() + np.ascontiguousarray(values).tobytes())
    return hasher.hexdigest()


def digest_of_rows(rows: Mapping[int, Mapping[str, np.ndarray]], config: DataConfig) -> str:
    """Returns the digest of a global batch: its rows, and the features that the model reads."""
    parts = [part for _, part in sorted(rows.items())]
    return digest(*parts, *(model_features(part, config.sequence_length) for part in parts))


@contextlib.contextmanager
def streams_of(case: Case, config: DataConfig, positions: Mapping[int, Any] | None = None) -> Iterator[list[Any]]:
    """Opens the stream of each host, as a run does: at its beginning, or at the positions after `resumes` batches."""
    first = resolve_task(config.of_stages[0])
    lengths = derive_lengths(first, config.task_feature_lengths)
    stages = []
    for begins, of_stage in config.of_stages.items():
        task = task_of_stage(begins, first, lengths, config) if begins else first
        wants_epochs = of_stage.num_epochs is not None
        deal = deal_of(task, lengths, of_stage, wants_epochs) if case.is_dealt else WHOLE_UNITS
        stages.append(Stage(begins, task, of_stage, deal))
    with contextlib.ExitStack() as stack:
        hosts = case.shards or [range(config.num_data_shards or 0)]
        streams = [stack.enter_context(contextlib.closing(open_stages(stages, lengths, shards))) for shards in hosts]
        for stream in streams:
            stream.begin(case.resumes if positions else 0, positions)
        yield streams


def together(digests: Sequence[str], count: int) -> list[str]:
    """Returns one digest for each `count` digests."""
    groups = [digests[start : start + count] for start in range(0, len(digests), count)]
    return [
        group[0] if len(group) == 1 else hashlib.blake2b("".join(group).encode(), digest_size=6).hexdigest()
        for group in groups
    ]


def batches_of(hosts: Sequence[Any], count: int) -> Iterator[dict[int, dict[str, np.ndarray]]]:
    """Yields global batches until the corpus ends on all hosts."""
    for _ in range(count):
        parts = [next(stream, None) for stream in hosts]
        if all(part is None for part in parts):
            return
        host_parts = zip(hosts, parts, strict=True)
        yield {
            shard: rows
            for stream, part in host_parts
            for shard, rows in (stream.empty() if part is None else part).items()
        }


def positions_of(hosts: Sequence[Any]) -> dict[int, Any]:
    return {shard: position for stream in hosts for shard, position in stream.positions().items()}


def hashes_of(case: Case, folder: Path) -> tuple[Hashes, dict[int, Any]]:
    """Returns what is recorded of a case, and its data positions after `resumes` batches."""
    config = config_of(case, folder)
    positions = {}
    digests = list[str]()
    with streams_of(case, config) as hosts:
        for number, rows in enumerate(batches_of(hosts, case.batches), 1):
            digests.append(digest_of_rows(rows, config))
            if number == case.resumes:
                positions = positions_of(hosts)
        facts: Hashes = {"batches": together(digests, case.together)}
        tokens = hosts[0].tokens()
        if tokens and case.is_dealt:
            facts["tokens"] = tokens
        if skipped := [unit.rpartition("/")[2] for stream in hosts for unit, _ in stream.skipped()]:
            facts["skipped"] = sorted(skipped)
    return facts, positions


def resumed(case: Case, folder: Path, positions: Mapping[int, Any]) -> list[str]:
    """Returns the digests of the batches after the positions."""
    config = config_of(case, folder)
    with streams_of(case, config, positions) as hosts:
        digests = [digest_of_rows(rows, config) for rows in batches_of(hosts, case.batches - case.resumes)]
        return together(digests, case.together)


def evaluated(case: Case, folder: Path) -> list[str]:
    """Returns the digests of the validation split's batches and of its examples, as seqio's metrics get them."""
    config = config_of(case, folder)
    task = resolve_task(config)
    lengths = derive_lengths(task, config.task_feature_lengths)
    digests = [digest(batch) for batch in validation_batches(task, lengths, config, 4)]
    for part in filter(is_supervised, parts_of(task)):
        for example in validation_examples(part, lengths, config, 4):
            texts = {
                name: np.frombuffer(value, np.uint8) for name, value in example.items() if isinstance(value, bytes)
            }
            digests.append(digest({**example, **texts}))
    return digests


def main() -> None:
    """Records what is not recorded yet."""
    recorded = json.loads(HASHES.read_text()) if HASHES.exists() else {}
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        write_corpora(folder)
        if not VOCABULARY.exists():
            train_vocabulary(documents(99, 400), 400, str(VOCABULARY), normalization="identity")
        with registered(folder):
            for name, case in CASES.items():
                if name in recorded:
                    continue
                recorded[name], _ = hashes_of(case, folder)
                if name in EVALUATED:
                    recorded[name]["validation"] = evaluated(case, folder)
                print(name, len(recorded[name]["batches"]), flush=True)
                HASHES.write_text(
                    "{\n" + ",\n".join(f"{json.dumps(n)}: {json.dumps(h)}" for n, h in recorded.items()) + "\n}\n"
                )


if __name__ == "__main__":
    main()
