"""TensorFlow Datasets as ArrayRecord, for random access: downloaded, or made from documents."""

from __future__ import annotations

import os
import re
import shutil
import socket
import tempfile
from collections.abc import Sequence

from etils import epath

from limba.api import upload
from limba.config import InputError, reason_of

HOSTS = ("storage.googleapis.com", "www.statmt.org")  # where TFDS looks first, and where lm1b is
ANSWER_SECONDS = 4.0
VERSION = "1.0.0"  # of data sets made here


def prepare_tfds(name: str, data_dir: str | None, scratch: str | None = None) -> str:
    """Downloads and writes a data set below `data_dir` unless it exists; returns a sentence that says where it is.

    `name` is NAME or NAME/CONFIG. For a bucket it is made in the folder `scratch`, which is kept until it is uploaded,
    by default in the machine's temporary directory: ArrayRecord's library writes only local files. Raises
    InputError for an unknown name, no folder, a data set that exists in another format, and downloads that fail.
    """
    import tensorflow_datasets as tfds

    data_dir = _given(data_dir, name)
    try:
        existing = tfds.builder(name, data_dir=data_dir)
        found = existing.info.file_format if existing.data_path.exists() else None
        form = found.value if found else "array_record"
        if form != "array_record":
            raise InputError(f"{existing.data_path} holds {name} as {form}; delete it, or give another data directory.")
        is_remote = "://" in data_dir and found is None
        local = (scratch or tempfile.mkdtemp(prefix="limba-tfds-")) if is_remote else data_dir
        builder = tfds.builder(name, data_dir=local, file_format="array_record")
    except (tfds.core.DatasetNotFoundError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(
            f"TensorFlow Datasets cannot make {name!r} ({reason_of(error)}); give NAME or NAME/CONFIG from its"
            " catalogue."
        ) from error
    if found is None and type(builder).__module__.startswith("tensorflow_datasets."):
        _check_network(name)
    try:
        builder.download_and_prepare()
        if is_remote:
            upload(builder.data_path, str(existing.data_path))
            shutil.rmtree(builder.data_path)
    except (OSError, RuntimeError, AssertionError, ImportError) as error:
        raise InputError(
            f"The data set {name} cannot be prepared ({reason_of(error)}); check the network, the space in {data_dir},"
            " and the requirements on the data set's page."
        ) from error
    splits = ", ".join(f"{split} {info.num_examples:,}" for split, info in builder.info.splits.items())
    return f"{existing.data_path}: examples {splits}. Read it with TFDS_DATA_DIR={data_dir}"


def _check_network(name: str) -> None:
    """Raises InputError if no server of data sets answers: TFDS itself would try for minutes."""
    if any(os.environ.get(each) for each in ("https_proxy", "HTTPS_PROXY", "ALL_PROXY")):
        return
    reason: Exception = OSError()
    for host in HOSTS:
        try:
            socket.create_connection((host, 443), ANSWER_SECONDS).close()
            return
        except OSError as error:
            reason = error
    raise InputError(
        f"The data set {name} cannot be downloaded: the network does not reach {HOSTS[0]} ({reason_of(reason)}); check"
        " it, or prepare the data set on another machine."
    )


def _given(data_dir: str | None, name: str) -> str:
    if not data_dir:
        raise InputError(f"There is no folder for the data set {name}; give a data directory, or set TFDS_DATA_DIR.")
    return data_dir


def folder_of(name: str, data_dir: str | None) -> str:
    """Returns the folder below `data_dir` of a data set made here, NAME or NAME/CONFIG; InputError for a bad name."""
    import tensorflow_datasets as tfds

    data_dir = _given(data_dir, name)
    if not re.fullmatch(r"[a-z][a-z0-9_]*(/[a-z0-9_]+)?", name):
        raise InputError(f"The data set's name is {name}; give small letters, digits and _, as cc100/ja has.")
    try:
        tfds.builder_cls(name.partition("/")[0])
    except tfds.core.DatasetNotFoundError:
        return f"{data_dir.rstrip('/')}/{name}/{VERSION}"
    raise InputError(f"TensorFlow Datasets has a {name} of its own; prepare that without a task, or give another name.")


def describe(folder: str, split: str, shards: Sequence[str], num_bytes: int) -> None:
    """Writes the metadata, beside ordered shards of documents, with which TFDS reads them without any code."""
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
