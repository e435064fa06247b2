"""Times span corruption from text files, tokenization included, and plain seqio beside it.

    python -m benchmarks.data_pipeline --json                # 50 MB of English from Python's own documentation
    python -m benchmarks.data_pipeline --files='corpus/*.jsonl' --vocabulary=my.model
    python -m benchmarks.data_pipeline --t5=CHECKOUT --in_tensorflow    # preprocessors in TensorFlow
    python -m benchmarks.data_pipeline --t5=CHECKOUT --undivided        # and a source that cannot be divided
    python -m benchmarks.data_pipeline --t5=CHECKOUT --tfds             # and a data set of TensorFlow Datasets
    python -m benchmarks.data_pipeline --corpora=1000 --json            # a mixture of so many corpora, at 16 shards

Tokens are the text's tokens before corruption. CPU seconds are of all threads of a process that
does nothing else. `--t5=CHECKOUT` (and `pip install babel`) times t5's own span corruption on seqio too.

With `--in_tensorflow` a task as users of T5X write it is timed: seqio's tokenization and t5's own span corruption on
text files, as seqio's `get_dataset` alone reads it, and with 1 and 16 data shards, in turn. With `--undivided` its
source is a seqio.FunctionDataSource of a generator, with `--tfds` a seqio.TfdsDataSource of a prepared data set.

With `--corpora` a mixture of so many tasks, each with a corpus of its own of `--megabytes` divided by their number, is
read at 16 shards, until each shard has opened nearly each corpus.
"""

from __future__ import annotations

import argparse
import contextlib
import glob
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from limba.cli import program
from limba.cli.arguments import Parser
from limba.config import InputError, environment

LENGTHS = {"inputs": 512, "targets": 114}
RAW_TOKENS = 568
ROWS = 128  # of a batch
ROUNDS = 3  # of the measurements of tasks in TensorFlow; their medians count
ALONE = 0  # in place of a number of shards: read by seqio alone
IN_TENSORFLOW = ("in_tensorflow", "undivided", "tfds")  # measurements of tasks in TensorFlow, by their source
TFDS_NAME = "corpus"
TFDS_VERSION = "1.0.0"


def _write_corpus(directory: Path, megabytes: float) -> str:
    """Writes files of this size in megabytes: the demo's documents, repeated in random order."""
    from tasks.demo import pydoc_corpus

    pydoc_corpus(directory / "demo.jsonl")
    lines = (directory / "demo.jsonl").read_bytes().splitlines(keepends=True)
    random = np.random.default_rng(0)
    left = megabytes * 1e6
    for number in range(16):
        with open(directory / f"part-{number:02}.jsonl", "wb") as file:
            while file.tell() < left / 16:
                file.writelines(lines[i] for i in random.permutation(len(lines)))
    return str(directory / "part-*.jsonl")


def _limba(files: str, vocabulary: str, num_shards: int, rows: int, num_processes: int) -> Generator[int]:
    """Yields the raw tokens in each batch of Limba's own stream."""
    import tasks.demo  # noqa: F401  registers demo_span_corruption
    from limba.config import DataConfig
    from limba.data.stream.stages import open_stream
    from limba.data.tasks import resolve_task

    config = DataConfig(
        "demo_span_corruption",
        LENGTHS,
        batch_size=rows * num_shards,
        num_data_shards=num_shards,
        data_files=files,
        vocabulary=vocabulary,
        num_reader_processes=num_processes,
        task_modules=("tasks.demo",),
    )
    task = resolve_task(config)
    with contextlib.closing(open_stream(task, LENGTHS, config, range(num_shards))) as stream:
        for batch in stream:
            yield sum(len(part["inputs"]) for part in batch.values()) * RAW_TOKENS


def _plain_seqio(files: str, vocabulary: str, rows: int, t5: str | None) -> Generator[int]:
    """Yields the same of seqio's and t5's own preprocessors: maps over single examples."""
    import seqio

    from limba.data.bridge.seqio_objects import vocabulary_as_seqio
    from limba.data.sources import FileSource
    from limba.data.vocabulary.load import load_vocabulary

    features = {name: seqio.Feature(vocabulary_as_seqio(load_vocabulary(vocabulary))) for name in LENGTHS}
    documents = FileSource(files).get_dataset("train", shuffle=True, seed=0, num_epochs=None)
    documents = documents.map(lambda document: {"targets": document["text"]})
    tokenized = seqio.preprocessors.tokenize(documents, features, copy_pretokenized=False)
    with seqio.map_seed_manager(0):
        corrupted = _t5_preprocessors(t5).span_corruption(tokenized, LENGTHS, features)
    ended = seqio.preprocessors.append_eos(corrupted, features)
    for batch in ended.padded_batch(rows, drop_remainder=True).prefetch(2):
        yield int(batch["inputs"].shape[0]) * RAW_TOKENS


def _write_tfds(directory: Path, files: str) -> str:
    """Writes the documents of files as a data set of TensorFlow Datasets; returns its data_dir."""
    import tensorflow as tf
    import tensorflow_datasets as tfds

    from limba.data.sources import FileSource

    texts = tf.data.Dataset.from_generator(
        lambda: ({"text": text} for text in FileSource(files).texts("train")),
        output_signature={"text": tf.TensorSpec((), tf.string)},
    )
    tfds.disable_progress_bar()
    with contextlib.redirect_stdout(sys.stderr):  # it says there that it is done, and stdout is for JSON
        tfds.dataset_builders.store_as_tfds_dataset(
            name=TFDS_NAME,
            version=TFDS_VERSION,
            features=tfds.features.FeaturesDict({"text": tfds.features.Text()}),
            split_datasets={"train": texts},
            data_dir=str(directory / "tfds"),
        )
    return str(directory / "tfds")


def _source(what: str, files: str) -> Any:
    """Returns the source of a task in TensorFlow; `files` is a pattern, or the data_dir of a data set of TFDS."""
    import seqio
    import tensorflow as tf

    from limba.data.sources import FileSource

    if what == "in_tensorflow":
        return FileSource(files)
    if what == "tfds":
        return seqio.TfdsDataSource(f"{TFDS_NAME}:{TFDS_VERSION}", tfds_data_dir=files)

    def documents() -> Generator[dict[str, str]]:
        while True:
            for text in FileSource(files).texts("train"):
                yield {"text": text}

    def dataset_fn(split: str, shuffle_files: bool, seed: int | None = None) -> tf.data.Dataset:
        del split, shuffle_files, seed
        return tf.data.Dataset.from_generator(documents, output_signature={"text": tf.TensorSpec((), tf.string)})

    function: Any = dataset_fn  # seqio's own type of it is narrower
    return seqio.FunctionDataSource(function, splits=("train",))


def _in_tensorflow(what: str, files: str, vocabulary: str, num_shards: int, t5: str | None) -> Generator[int]:
    """Yields the same of a task with preprocessors in TensorFlow; with ALONE as its shards, as seqio alone reads it."""
    import seqio
    import tensorflow as tf

    from limba.config import DataConfig
    from limba.data.bridge.seqio_objects import vocabulary_as_seqio
    from limba.data.stream.stages import open_stream
    from limba.data.tasks import resolve_task
    from limba.data.vocabulary.load import load_vocabulary

    def to_targets(dataset: tf.data.Dataset) -> tf.data.Dataset:
        as_pair = lambda document: {"inputs": "", "targets": document["text"]}
        return dataset.map(as_pair, num_parallel_calls=tf.data.AUTOTUNE)

    task = seqio.TaskRegistry.add(
        "in_tensorflow",
        source=_source(what, files),
        preprocessors=[
            to_targets,
            seqio.preprocessors.tokenize,
            _t5_preprocessors(t5).span_corruption,
            seqio.preprocessors.append_eos_after_trim,
        ],
        output_features=dict.fromkeys(LENGTHS, seqio.Feature(vocabulary_as_seqio(load_vocabulary(vocabulary)))),
    )
    if num_shards == ALONE:
        examples = task.get_dataset(LENGTHS, "train", shuffle=True, seed=0, num_epochs=None, shuffle_buffer_size=1000)
        for batch in examples.padded_batch(ROWS, drop_remainder=True).prefetch(2).as_numpy_iterator():
            yield len(batch["inputs"]) * RAW_TOKENS
        return
    config = DataConfig("in_tensorflow", LENGTHS, batch_size=ROWS, num_data_shards=num_shards)
    with contextlib.closing(open_stream(resolve_task(config), LENGTHS, config, range(num_shards))) as stream:
        for batch in stream:
            yield sum(len(part["inputs"]) for part in batch.values()) * RAW_TOKENS


def _of_corpora(directory: Path, files: str, vocabulary: str, count: int, megabytes: float) -> Any:
    """Registers so many tasks, each with a corpus of its own, and a mixture; returns the choice of its data."""
    from limba.config import DataConfig
    from limba.data.objectives import span_corruption, tokenize_documents
    from limba.data.registry import Feature, MixtureRegistry, TaskRegistry
    from limba.data.sources import FileSource
    from limba.data.vocabulary.load import load_vocabulary

    paths = sorted(glob.glob(files))
    lines = [line for path in paths for line in Path(path).read_bytes().splitlines(keepends=True)]
    features = dict.fromkeys(LENGTHS, Feature(load_vocabulary(vocabulary)))
    random = np.random.default_rng(0)
    for number in range(count):
        path = directory / f"corpus-{number:04}.jsonl"
        with open(path, "wb") as file:
            while file.tell() < megabytes * 1e6 / count:
                file.writelines(lines[i] for i in random.integers(len(lines), size=10))
        steps = [tokenize_documents, span_corruption]
        TaskRegistry.add(f"corpus_{number}", FileSource(str(path)), features, steps)
    MixtureRegistry.add("corpora", [(f"corpus_{number}", 1.0) for number in range(count)])
    return DataConfig("corpora", LENGTHS, batch_size=ROWS, num_data_shards=16)


def measure_corpora(files: str, vocabulary: str, count: int, megabytes: float) -> dict[str, float]:
    """Returns the figures of a mixture of so many corpora at 16 shards, until each shard has read nearly all."""
    import psutil

    from limba.data.stream.stages import open_stream
    from limba.data.tasks import resolve_task

    process = psutil.Process()
    with tempfile.TemporaryDirectory() as directory:
        config = _of_corpora(Path(directory), files, vocabulary, count, megabytes)
        memory_before = process.memory_info().rss / 2**20
        cpu = time.process_time()
        with contextlib.closing(open_stream(resolve_task(config), LENGTHS, config, range(16))) as stream:
            next(stream)
            first_cpu = time.process_time() - cpu
            first_memory = process.memory_info().rss / 2**20
            # Each shard takes ROWS / 16 rows a batch: after 3 times as many as there are corpora it lacks one in 20.
            num_batches = 3 * count * 16 // ROWS
            for _ in range(num_batches - 1):
                next(stream)
            cpu = time.process_time()
            for _ in range(20):
                next(stream)
            cpu = time.process_time() - cpu
            memory = process.memory_info().rss / 2**20
    return {
        "rss_mb_before": memory_before,
        "first_batch_cpu_seconds": first_cpu,
        "first_batch_rss_mb": first_memory,
        "batches": num_batches + 20,
        "tokens_per_cpu_second": 20 * ROWS * RAW_TOKENS / cpu,
        "rss_mb": memory,
    }


def _t5_file(checkout: str | None) -> Path:
    path = Path(checkout or "", "t5/data/preprocessors.py")
    if not checkout or not path.is_file():
        raise InputError(
            f"{path} does not exist; give --t5=CHECKOUT of google-research/text-to-text-transfer-transformer."
        )
    return path


def _t5_preprocessors(checkout: str | None) -> Any:
    """Imports only t5/data/preprocessors.py: its package has requirements that this file does not need."""
    import importlib.util

    path = _t5_file(checkout)
    spec = importlib.util.spec_from_file_location("t5_preprocessors", path)
    assert spec is not None and spec.loader is not None  # the file exists
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def measure(
    what: str, files: str, vocabulary: str, megabytes: float, num_shards: int, t5: str | None, num_processes: int
) -> dict[str, float]:
    """Returns the figures of one pipeline over so many megabytes of text, in this process and those that it starts."""
    import psutil

    rows = max(8, ROWS // max(num_shards, 1))
    if what == "seqio":
        batches = _plain_seqio(files, vocabulary, rows, t5)
    elif what in IN_TENSORFLOW:
        import seqio  # noqa: F401  its start, and TensorFlow's, do not count

        batches = _in_tensorflow(what, files, vocabulary, num_shards, t5)
    else:
        batches = _limba(files, vocabulary, num_shards, rows, num_processes)
    wall = time.perf_counter()
    cpu = time.process_time()
    next(batches)
    first_wall = time.perf_counter() - wall
    first_cpu = time.process_time() - cpu
    for _ in range(2):
        next(batches)
    processes = [psutil.Process(), *psutil.Process().children()]

    def cpu_seconds() -> float:
        return sum(process.cpu_times().user + process.cpu_times().system for process in processes)

    wanted = megabytes * 1e6 / 4  # about four bytes a token
    tokens = 0
    wall = time.perf_counter()
    cpu = cpu_seconds()
    while tokens < wanted:
        tokens += next(batches)
    wall = time.perf_counter() - wall
    cpu = cpu_seconds() - cpu
    memory = sum(process.memory_info().rss for process in processes) / 2**20
    batches.close()
    return {
        "first_batch_seconds": first_wall,
        "first_batch_cpu_seconds": first_cpu,
        "tokens": tokens,
        "tokens_per_cpu_second": tokens / cpu,
        "tokens_per_second": tokens / wall,
        "cores_used": cpu / wall,
        "rss_mb": memory,
    }


def _in_fresh_process(arguments: Sequence[str], cores: int | None = None) -> dict[str, float]:
    """Measures in a new process, so that memory and threads of one measurement do not count for another."""
    command = [sys.executable, "-m", "benchmarks.data_pipeline", *arguments]
    if cores is not None:
        command = ["taskset", "-c", ",".join(map(str, range(cores))), *command]
    finished = subprocess.run(command, capture_output=True, text=True, check=False)
    if finished.returncode:
        raise InputError(f"The measurement {' '.join(arguments)} failed: {finished.stderr.strip()[-300:]}")
    return json.loads(finished.stdout.splitlines()[-1])


def main(argv: Sequence[str]) -> None:
    parser = Parser("-m benchmarks.data_pipeline", __doc__ or "", "python")
    parser.add_argument("--files", help="pattern of text files; default: a generated corpus")
    parser.add_argument(
        "--vocabulary",
        help="a SentencePiece model; default: one of at most 8,000 pieces, trained on the corpus",
    )
    parser.add_argument("--megabytes", type=float, default=50.0, help="megabytes of text for each measurement")
    parser.add_argument("--t5", help="a checkout of t5 to time too")
    parser.add_argument(
        "--in_tensorflow",
        action="store_true",
        help="time seqio's tokenization and t5's own span corruption, alone and at 1 and 16 shards; needs --t5",
    )
    parser.add_argument(
        "--undivided", action="store_true", help="time the same with a function as its source; needs --t5"
    )
    parser.add_argument(
        "--tfds", action="store_true", help="time the same with a data set of TFDS as its source; needs --t5"
    )
    parser.add_argument("--corpora", type=int, default=0, help="time a mixture of so many corpora, at 16 shards")
    parser.add_argument("--json", action="store_true", help="print JSON only")
    parser.add_argument("--only", choices=["limba", "seqio", *IN_TENSORFLOW, "corpora"], help=argparse.SUPPRESS)
    parser.add_argument("--shards", type=int, default=1, help=argparse.SUPPRESS)
    parser.add_argument("--processes", type=int, default=1, help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if min(args.megabytes, args.processes) <= 0 or args.shards < ALONE:
        raise InputError("Megabytes and processes must be above 0.")
    chosen = [what for what in (*IN_TENSORFLOW, "corpora") if getattr(args, what)]
    if len(chosen) > 1:
        raise InputError(
            f"{' and '.join(f'--{what}' for what in chosen)} are {len(chosen)} measurements; give one of them."
        )
    if args.corpora < 0:
        raise InputError(f"--corpora is {args.corpora}; give a whole number above 0.")
    if args.t5 or set(chosen) & set(IN_TENSORFLOW) or args.only not in (None, "limba", "corpora"):
        _t5_file(args.t5)
    with environment.quiet_imports():
        import limba.data.sources.units  # noqa: F401  without TensorFlow's start-up notes
    if args.only == "corpora":
        print(json.dumps(measure_corpora(args.files, args.vocabulary, args.corpora, args.megabytes)))
        return
    if args.only:
        options = (args.only, args.files, args.vocabulary, args.megabytes, args.shards, args.t5, args.processes)
        print(json.dumps(measure(*options)))
        return
    with tempfile.TemporaryDirectory() as directory:
        figures = _compare(args, Path(directory))
    print(json.dumps(figures) if args.json else json.dumps(figures, indent=2))


def _compare(args: argparse.Namespace, directory: Path) -> dict[str, Any]:
    from limba.data.sources import FileSource
    from limba.data.vocabulary.train import train_vocabulary

    files = args.files or _write_corpus(directory, args.megabytes)
    vocabulary = args.vocabulary
    if vocabulary is None:
        vocabulary = str(directory / "vocabulary.model")
        texts = FileSource(files).texts("train")
        size = train_vocabulary((text for _, text in zip(range(2000), texts, strict=False)), 8000, vocabulary)
        print(f"a vocabulary of {size:,} pieces", file=sys.stderr)
    if args.tfds:
        files = _write_tfds(directory, files)
    common = [f"--files={files}", f"--vocabulary={vocabulary}", f"--megabytes={args.megabytes}"]
    if args.corpora:
        return _in_fresh_process([*common, "--only=corpora", f"--corpora={args.corpora}"])
    for what in IN_TENSORFLOW:
        if getattr(args, what):
            return _compare_shards(what, [*common, f"--t5={args.t5}"])

    def limba(shards: int, cores: int, processes: int = 1) -> dict[str, float]:
        choices = ["--only=limba", f"--shards={shards}", f"--processes={processes}"]
        return _in_fresh_process([*common, *choices], cores)

    figures: dict[str, Any] = {
        "limba, 1 shard, 1 core": limba(1, 1),
        "limba, 16 shards, 1 core": limba(16, 1),
        "limba, 16 shards, 2 cores": limba(16, 2),
        "limba, 16 shards, 2 cores, 2 processes": limba(16, 2, 2),
        "limba, 32 shards, 2 cores": limba(32, 2),
    }
    one = figures["limba, 16 shards, 1 core"]
    two = figures["limba, 16 shards, 2 cores"]
    apart = figures["limba, 16 shards, 2 cores, 2 processes"]
    if args.t5:
        plain = _in_fresh_process([*common, "--only=seqio", f"--t5={args.t5}"], cores=1)
        figures["seqio with t5's span corruption, 1 core"] = plain
        ours = figures["limba, 1 shard, 1 core"]["tokens_per_cpu_second"]
        figures["times seqio"] = ours / plain["tokens_per_cpu_second"]
    figures["times one core"] = two["tokens_per_second"] / one["tokens_per_second"]
    figures["times one core, 2 processes"] = apart["tokens_per_second"] / one["tokens_per_second"]
    shards = (figures["limba, 32 shards, 2 cores"]["rss_mb"] - figures["limba, 1 shard, 1 core"]["rss_mb"]) / 31
    figures["mb_per_shard"] = shards
    return figures


def _compare_shards(what: str, common: Sequence[str]) -> dict[str, Any]:
    """Returns the figures of a task in TensorFlow, alone and with 1 and 16 shards: medians, and their ratios."""
    measured: dict[int, list[dict[str, float]]] = {ALONE: [], 1: [], 16: []}
    for number in range(ROUNDS):
        for shards, rounds in measured.items():
            rounds.append(_in_fresh_process([*common, f"--only={what}", f"--shards={shards}"]))
            print(f"round {number + 1} of {ROUNDS}, {shards or 'no'} shards: {rounds[-1]}", file=sys.stderr)
    alone, one, sixteen = (
        {name: float(np.median([figures[name] for figures in rounds])) for name in rounds[0]}
        for rounds in measured.values()
    )
    names = [name for name in one if name != "tokens"]
    return {
        "seqio alone": alone,
        "1 shard": one,
        "16 shards": sixteen,
        "1 shard, times seqio alone": {name: one[name] / alone[name] for name in names},
        "16 shards, times seqio alone": {name: sixteen[name] / alone[name] for name in names},
        "16 shards, times 1 shard": {name: sixteen[name] / one[name] for name in names},
    }


if __name__ == "__main__":
    environment.set_variables()
    environment.use_large_pages()
    sys.exit(program.exit_code(main, sys.argv[1:]))
