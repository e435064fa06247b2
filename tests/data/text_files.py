"""Files of texts in each format that a run reads, as tests write them."""

from __future__ import annotations

import csv
import gzip
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import pyarrow
import pyarrow.parquet
import tensorflow as tf
import zstandard
from array_record.python.array_record_module import ArrayRecordWriter

TEXTS = [f"Document {number}: " + "șirul de cuvinte, " * (number % 17) for number in range(300)]
FORMATS = ("a.txt", "a.jsonl", "a.csv", "a.parquet", "a.jsonl.gz", "a.txt.zst", "a.csv.gz", "a.array_record")
ROW_GROUP = 70


def write(path: Path, texts: Sequence[str] = TEXTS, column: str = "text") -> Path:
    """Writes the texts in the format that the suffixes name, and the folder if it is not there; returns the path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    name = path.name.removesuffix(".gz").removesuffix(".zst")
    if name.endswith(".array_record"):
        return write_records(path, [text.encode() for text in texts], column)
    if name.endswith(".parquet"):
        table = pyarrow.table({"id": range(len(texts)), column: texts})
        pyarrow.parquet.write_table(table, path, row_group_size=ROW_GROUP)
        return path
    opened = {".gz": gzip.open, ".zst": zstandard.open}.get(path.suffix, open)
    with opened(path, "wt", encoding="utf-8", newline="") as file:
        if name.endswith(".txt"):
            file.write("".join(f"{text}\n" for text in texts))
        elif name.endswith(".csv"):
            rows = csv.writer(file)
            rows.writerow(["id", column])
            rows.writerows(enumerate(texts))
        else:
            file.write("".join(json.dumps({"id": i, column: text}) + "\n" for i, text in enumerate(texts)))
    return path


def write_records(path: Path, values: Sequence[bytes], feature: str = "text") -> Path:
    """Writes an ArrayRecord file of examples with one feature; returns the path."""
    return write_examples(path, [{feature: [value]} for value in values])


def _feature(values: Sequence[bytes | int | float]) -> tf.train.Feature:
    if values and isinstance(values[0], int):
        return tf.train.Feature(int64_list=tf.train.Int64List(value=values))
    if values and isinstance(values[0], float):
        return tf.train.Feature(float_list=tf.train.FloatList(value=values))
    return tf.train.Feature(bytes_list=tf.train.BytesList(value=values))


def write_examples(path: Path, examples: Sequence[Mapping[str, Sequence[bytes | int | float]]]) -> Path:
    """Writes an ArrayRecord file of examples with any values of some features; returns the path."""
    writer = ArrayRecordWriter(str(path), "group_size:1")
    for example in examples:
        features = {name: _feature(values) for name, values in example.items()}
        writer.write(tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString())
    writer.close()
    return path


def write_three_records(folder: Path) -> Path:
    """Writes TEXTS in three ArrayRecord files, and one without a record beside them; returns the folder."""
    share = len(TEXTS) // 3
    for number in range(3):
        write(folder / f"train-{number:05}-of-00003.array_record", TEXTS[number * share : (number + 1) * share])
    write(folder / "train-empty.array_record", [])
    return folder
