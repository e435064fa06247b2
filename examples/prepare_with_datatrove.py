"""Prepares a corpus with datatrove: reads text, keeps one language, drops poor and repeated documents, writes shards.

    python3.11 -m venv datatrove && datatrove/bin/pip install 'datatrove[io,processing]==0.10.1' spacy
    datatrove/bin/python examples/prepare_with_datatrove.py 'data/*.jsonl.gz' --output=prepared --language=ro \\
        --language-model=lid.176.bin --shards=64
    limba inspect 'prepared/*.jsonl.gz' --vocabulary=byte

Reads JSON lines, parquet, and text with a document a line, also compressed, and from gs://, s3:// and hf:// where
their packages are installed (gcsfs, s3fs). One machine does it with a process for each core; --executor=slurm queues
it, and --executor=ray gives it to a Ray cluster ('datatrove[ray]'). The same command again does what is missing.

datatrove needs an environment of its own: it asks for another xxhash than Limba. Japanese needs 'spacy[ja]' too,
Chinese jieba. This file is a beginning: steps of datatrove's own, such as PIIFormatter, can be added in `filtering`.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any

try:
    from datatrove.data import Document
    from datatrove.executor import LocalPipelineExecutor, RayPipelineExecutor, SlurmPipelineExecutor
    from datatrove.io import get_datafolder
    from datatrove.pipeline.base import PipelineStep
    from datatrove.pipeline.dedup import (
        MinhashDedupBuckets,
        MinhashDedupCluster,
        MinhashDedupFilter,
        MinhashDedupSignature,
    )
    from datatrove.pipeline.dedup.minhash import MinhashConfig
    from datatrove.pipeline.filters import FastTextClassifierFilter, GopherQualityFilter, GopherRepetitionFilter
    from datatrove.pipeline.readers import JsonlReader, ParquetReader
    from datatrove.pipeline.readers.base import BaseDiskReader
    from datatrove.pipeline.writers import JsonlWriter
except ImportError as missing:
    sys.exit(f"This needs an environment with datatrove ({missing}); the first lines of {__file__} make one.")

Step = PipelineStep | Callable[..., Iterator[Document]]
COMPRESSED = (".gz", ".zst")
LEAST_SCORE = 0.65  # of the language, as datatrove's own filter of languages has it
MINHASH = MinhashConfig()  # 14 groups of 8 hashes of 5 words in a row: documents that are 72 % alike


class TextReader(BaseDiskReader):
    """Reads files of text: each line is a document."""

    name = "Text"

    def read_file(self, filepath: str) -> Iterator[Document]:
        with self.data_folder.open(filepath, "rt", compression="infer") as file:
            for number, line in enumerate(file):
                document = self.get_document_from_dict({"text": line.rstrip("\n")}, filepath, number)
                if document:
                    yield document


READERS = {".jsonl": JsonlReader, ".json": JsonlReader, ".parquet": ParquetReader, ".txt": TextReader}


def parser() -> argparse.ArgumentParser:
    """Returns the parser of the command line."""
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("files", metavar="FILES", help="a pattern, such as 'data/*.jsonl.gz' or gs://BUCKET/*.parquet")
    made.add_argument("--output", required=True, metavar="FOLDER", help="a new folder for the shards")
    made.add_argument("--column", default="text", help="key or column of the text; default: text")
    made.add_argument("--language", default="en", metavar="CODE", help="code of the text's language; default: en")
    made.add_argument("--language-model", metavar="FILE", help="fastText's lid.176.bin: keeps this language alone")
    made.add_argument("--min-words", type=int, default=50, metavar="50", help="documents of fewer words are dropped")
    made.add_argument("--no-quality", action="store_true", help="drop no document for its quality")
    made.add_argument("--no-deduplication", action="store_true", help="keep documents that are nearly equal to others")
    made.add_argument("--shards", type=int, default=64, metavar="64", help="number of files to write, at least")
    made.add_argument("--executor", choices=["local", "slurm", "ray"], default="local")
    made.add_argument("--tasks", type=int, metavar="N", help="tasks that read; default: one for each file, at most 64")
    made.add_argument("--workers", type=int, metavar="N", help="tasks at once; default: cores of this machine, or all")
    made.add_argument("--partition", metavar="NAME", help="Slurm's")
    made.add_argument("--time", default="24:00:00", metavar="LIMIT", help="of one task of Slurm; default: 24:00:00")
    made.add_argument("--qos", metavar="NAME", help="Slurm's")
    return made


def checked(arguments: argparse.Namespace, error: Callable[[str], Any]) -> list[str]:
    """Returns the files' names; calls `error` with a sentence for choices that cannot work."""
    if arguments.executor == "slurm" and not arguments.partition:
        error("--executor=slurm needs --partition=NAME; sinfo lists the partitions of your cluster.")
    for name in ("shards", "tasks", "workers"):
        number = getattr(arguments, name)
        if number is not None and number < 1:
            error(f"--{name} is {number}; give a number above 0.")
    model = arguments.language_model
    if model and "://" not in model and not os.path.isfile(model):
        error(
            f"--language-model={model} is not there; fastText's is https://fasttext.cc/docs/en/language-identification.html."
        )
    folder, pattern = folder_and_pattern(arguments.files)
    files = get_datafolder(folder).list_files(glob_pattern=pattern)
    if not files:
        error(f"{arguments.files} matches no file; check the path, and quote its pattern.")
    other = next((name for name in files if suffix_of(name) not in READERS), None)
    if other:
        error(f"{other} is none of {', '.join(READERS)}; give files of one of these kinds.")
    if len({suffix_of(name) for name in files}) > 1:
        error(f"{arguments.files} matches files of several kinds; give a pattern of one.")
    return files


def folder_and_pattern(files: str) -> tuple[str, str]:
    """Returns the folder of a pattern, without a wildcard, and what its files are called below it."""
    parts = files.split("/")
    first = next((index for index, part in enumerate(parts) if set(part) & set("*?[")), len(parts) - 1)
    return "/".join(parts[:first]) or ("/" if files.startswith("/") else "."), "/".join(parts[first:])


def suffix_of(name: str) -> str:
    """Returns the ending of a file's name, without the ending of its compression."""
    name = name.lower()
    for compressed in COMPRESSED:
        name = name.removesuffix(compressed)
    return os.path.splitext(name)[1]


def filtering(arguments: argparse.Namespace, suffix: str, output: str) -> list[Step]:
    """Returns the steps that read, drop documents, and write the rest: add your own steps here."""
    folder, pattern = folder_and_pattern(arguments.files)
    steps: list[Step] = [READERS[suffix](folder, glob_pattern=pattern, text_key=arguments.column)]
    language = arguments.language
    if arguments.language_model:
        wanted = (language, LEAST_SCORE)
        steps.append(FastTextClassifierFilter(arguments.language_model, wanted, newline_replacement=" "))
    if not arguments.no_quality:
        steps.append(GopherRepetitionFilter(language=language))
        if language == "en":
            steps.append(GopherQualityFilter(min_doc_words=arguments.min_words))
        else:  # Gopher's stop words and lengths of words are English
            steps.append(
                GopherQualityFilter(
                    min_doc_words=arguments.min_words,
                    min_avg_word_length=None,
                    max_avg_word_length=None,
                    min_stop_words=None,
                    language=language,
                )
            )
    return [*steps, JsonlWriter(output)]


def dealt(documents: Iterator[Document], rank: int, world_size: int, parts: int) -> Iterator[Document]:
    """Yields the documents, each with the number of the file that it is written to, one after the other."""
    for number, document in enumerate(documents):
        document.metadata["part"] = f"{number % parts:03d}"
        yield document


def rounds(arguments: argparse.Namespace, suffix: str, tasks: int, work: str) -> list[tuple[str, int, list[Step]]]:
    """Returns (name, number of tasks, steps) of what is done, each round after the one before it."""
    kept, signatures, buckets, repeated = (f"{work}/{name}" for name in ("kept", "signatures", "buckets", "repeated"))
    parts = -(-arguments.shards // tasks)
    writing: list[Step] = [
        functools.partial(dealt, parts=parts), JsonlWriter(arguments.output, output_filename="${rank}-${part}.jsonl"),
    ]  # fmt: skip
    first_round = [("filter", tasks, filtering(arguments, suffix, kept))]
    if arguments.no_deduplication:
        return [*first_round, ("write", tasks, [JsonlReader(kept), *writing])]
    signature = MinhashDedupSignature(signatures, MINHASH, language=arguments.language)
    return [
        *first_round,
        ("signatures", tasks, [JsonlReader(kept), signature]),
        ("buckets", MINHASH.num_buckets, [MinhashDedupBuckets(signatures, buckets, config=MINHASH)]),
        ("clusters", 1, [MinhashDedupCluster(buckets, repeated, MINHASH)]),
        ("write", tasks, [JsonlReader(kept), MinhashDedupFilter(repeated), *writing]),
    ]


def executor(arguments: argparse.Namespace, name: str, tasks: int, steps: list[Step], work: str, before: Any) -> Any:
    """Returns what does a round on this machine, in Slurm's queue or on a Ray cluster, after `before`."""
    common = {"pipeline": steps, "tasks": tasks, "logging_dir": f"{work}/logs/{name}", "depends": before}
    workers = arguments.workers or -1
    if arguments.executor == "ray":
        return RayPipelineExecutor(**common, workers=workers)
    if arguments.executor == "slurm":
        path = f"export PATH={os.path.dirname(sys.executable)}:$PATH"
        return SlurmPipelineExecutor(
            **common, workers=workers, partition=arguments.partition, time=arguments.time, qos=arguments.qos,
            job_name=name, env_command=path, mem_per_cpu_gb=4,
        )  # fmt: skip
    return LocalPipelineExecutor(**common, workers=arguments.workers or len(os.sched_getaffinity(0)))


def check_choices(arguments: argparse.Namespace, tasks: int, work: str, error: Callable[[str], Any]) -> None:
    """Writes the choices into the work folder, where a later start compares its own: parts that are done stay."""
    places = ("executor", "workers", "partition", "time", "qos")
    choices = {name: value for name, value in {**vars(arguments), "tasks": tasks}.items() if name not in places}
    folder = get_datafolder(work)
    if not folder.exists("choices.json"):
        with folder.open("choices.json", "w") as file:
            json.dump(choices, file)
        return
    with folder.open("choices.json") as file:
        before = json.load(file)
    changed = next((name for name in choices if choices[name] != before.get(name)), None)
    if changed:
        said = f"{changed} was {before.get(changed)!r} and is {choices[changed]!r}"
        error(f"{arguments.output} was begun with other choices ({said}); give another --output, or the same choices.")


def main() -> None:
    """Prepares what the command line names."""
    arguments = parser().parse_args()
    files = checked(arguments, parser().error)
    tasks = min(arguments.tasks or 64, len(files))
    work = f"{arguments.output.rstrip('/')}.work"
    check_choices(arguments, tasks, work, parser().error)
    if not arguments.language_model:
        print("Languages are not told apart: give --language-model=lid.176.bin to keep one of them.", file=sys.stderr)
    if arguments.executor == "ray":
        import ray

        ray.init(ignore_reinit_error=True)
    last = None
    for name, number, steps in rounds(arguments, suffix_of(files[0]), tasks, work):
        last = executor(arguments, name, number, steps, work, last)
    last.run()
    shards = f"{arguments.output.rstrip('/')}/*.jsonl.gz"
    look = f"limba inspect '{shards}' --vocabulary=byte"
    if arguments.executor == "slurm":
        print(f"Queued; the logs are in {work}/logs. When its jobs have ended, look at the text by: {look}")
        return
    written = get_datafolder(arguments.output).list_files()
    print(f"{len(written)} files are in {arguments.output}. Look at them by: {look}")


if __name__ == "__main__":
    main()
