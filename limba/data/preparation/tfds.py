"""TensorFlow data sets as ArrayRecord, whose records can be read at random: downloaded, or made of documents."""

from __future__ import annotations

import re
from collections.abc import Sequence

from etils import epath

from limba.config import InputError

VERSION = "1.0.0"  # of data sets made here


def prepare_tfds(name: str, data_dir: str | None) -> str:
    """Downloads and writes a data set below `data_dir` unless it is there; returns a sentence that says where.

    `name` is NAME or NAME/CONFIG. Raises ConfigError for a name that is not known, no folder, a data set that
    lies there in another format, and downloads that fail.
    """
    import tensorflow_datasets as tfds

    if not data_dir:
        raise InputError(f"There is no folder for the data set {name}; give --data_dir, or set TFDS_DATA_DIR.")
    try:
        there = tfds.builder(name, data_dir=data_dir)
        found = there.info.file_format if there.data_path.exists() else None
        form = found.value if found else "array_record"
        if form != "array_record":
            raise InputError(f"{there.data_path} holds {name} as {form}; delete it, or give another --data_dir.")
        builder = tfds.builder(name, data_dir=data_dir, file_format="array_record")
    except (tfds.core.DatasetNotFoundError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        reason = str(error).strip().split("\n")[0].rstrip(".")
        raise InputError(
            f"TensorFlow Datasets cannot make {name!r} ({reason}); give NAME or NAME/CONFIG from its catalogue."
        ) from error
    try:
        builder.download_and_prepare()
    except (OSError, RuntimeError, AssertionError, ImportError) as error:
        reason = str(error).strip().split("\n")[0] or type(error).__name__
        raise InputError(
            f"The data set {name} cannot be prepared ({reason}); check the network, the space in {data_dir}, and "
            "what its page asks for."
        ) from error
    splits = ", ".join(f"{split} {info.num_examples:,}" for split, info in builder.info.splits.items())
    return f"{builder.data_path}: examples {splits}. Read it with TFDS_DATA_DIR={data_dir}"


def folder_of(name: str, data_dir: str | None) -> str:
    """Returns where a data set made here, `name` being NAME or NAME/CONFIG, lies below `data_dir`; ConfigError."""
    import tensorflow_datasets as tfds

    if not data_dir:
        raise InputError(f"There is no folder for the data set {name}; give --data_dir, or set TFDS_DATA_DIR.")
    if not re.fullmatch(r"[a-z][a-z0-9_]*(/[a-z0-9_]+)?", name):
        raise InputError(f"The data set's name is {name}; give small letters, digits and _, as cc100/ja has.")
    try:
        tfds.builder_cls(name.partition("/")[0])
    except tfds.core.DatasetNotFoundError:
        return f"{data_dir.rstrip('/')}/{name}/{VERSION}"
    raise InputError(f"TensorFlow Datasets has a {name} of its own; leave --task out, or give another name.")


def describe(folder: str, split: str, shards: Sequence[str], num_bytes: int) -> None:
    """Writes beside shards of documents, in order, what TFDS reads without any code: features and the split's sizes."""
    import tensorflow_datasets as tfds
    from array_record.python.array_record_module import ArrayRecordReader

    template = tfds.core.ShardedFileTemplate(
        data_dir=epath.Path(folder),
        template="{SPLIT}-{SHARD_X_OF_Y}.{FILEFORMAT}",
        dataset_name=epath.Path(folder).parent.parent.name,
        split=split,
        filetype_suffix="array_record",
    )
    lengths = [ArrayRecordReader(f"{folder}/{shard}").num_records() for shard in shards]
    found = tfds.core.SplitInfo(name=split, shard_lengths=lengths, num_bytes=num_bytes, filename_template=template)
    tfds.folder_dataset.write_metadata(
        data_dir=folder,
        features=tfds.features.FeaturesDict({"text": tfds.features.Text()}),
        split_infos=[found],
        filename_template=template,
        check_data=False,
    )
