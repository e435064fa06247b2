"""A vocabulary trained on a sample of a task's text, with its tokenizer.json and a report, by one of several hosts."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from typing import Any

import fsspec
import seqio

from limba.config import DataConfig, InputError
from limba.data.sources.files import Column
from limba.data.tasks import resolve_task, source_of_files
from limba.data.vocabulary.load import NUM_SENTINELS, check_writable, load_vocabulary, train_vocabulary, write_whole
from limba.data.vocabulary.report import Fertility, fertility_table
from limba.data.vocabulary.text_sample import Progress, check_not_empty, sample_documents, text_source, texts_of
from limba.data.vocabulary.tokenizer_json import tokenizer_json

HELD_OUT_BYTES = 2_000_000  # of text that the report is about
HOURS_WAITED = 6  # for the process that trains
NORMALIZATIONS = ("nmt_nfkc", "nfkc", "identity")


SMALLEST_SIZE = {True: NUM_SENTINELS + 3 + 256, False: NUM_SENTINELS + 3}  # with byte pieces and without


def check_output(path: str) -> None:
    """Raises ConfigError for a path that is no .model or cannot be written, or where a vocabulary lies already."""
    if not path.endswith(".model"):
        raise InputError(f"The output {path} has another ending; give --output=DIR/NAME.model.")
    if _is_there(path):
        raise InputError(f"The vocabulary {path} is there already; delete it, or give another --output.")
    _check_json(path)
    check_writable(path)


def check_size(size: int, byte_fallback: bool) -> None:
    """Raises ConfigError for a size that leaves no piece for the text's letters."""
    if size <= SMALLEST_SIZE[byte_fallback]:
        bytes_too = ", 256 pieces of single bytes" if byte_fallback else ""
        raise InputError(
            f"--size is {size}, and {NUM_SENTINELS} sentinels{bytes_too} and 3 other signs are among them; give more "
            f"than {SMALLEST_SIZE[byte_fallback]}, and room for the text's letters."
        )


def check_compared(files: str | None, vocabularies: str | None, column: Column = "text") -> None:
    """Loads the vocabularies and reads the first row of each text that `compare` will be asked for; ConfigError."""
    for path in parse_vocabularies(vocabularies):
        load_vocabulary(path)
    for pattern in parse_files(files).values():
        check_not_empty(source_of_files(pattern, column), "train")


def _check_json(path: str) -> None:
    if _is_there(json_path(path)):
        raise InputError(f"{json_path(path)} is another vocabulary's; give {path} a folder of its own.")


def json_path(path: str) -> str:
    """Returns where the tokenizer.json of a vocabulary lies: beside it, under the name that Hugging Face looks for."""
    return f"{path.rpartition('/')[0] or '.'}/tokenizer.json"


def sample_task(
    task: seqio.Task | seqio.Mixture, split: str, sample_bytes: int, progress: Progress | None = None
) -> tuple[list[bytes], list[bytes]]:
    """Returns documents to train on, about `sample_bytes`, and up to 2 MB of others, evenly from the split.

    A mixture's tasks give text by their rates. Raises ConfigError where there is none.
    """
    tasks = list(task.tasks) if isinstance(task, seqio.Mixture) else [task]
    rates = [task.get_rate(part) for part in tasks] if isinstance(task, seqio.Mixture) else [1.0]
    training: list[bytes] = []
    held_out: list[bytes] = []
    for part, rate in zip(tasks, rates, strict=True):
        share = rate / sum(rates)
        size, others = round(sample_bytes * share), round(HELD_OUT_BYTES * share)
        source = text_source(part)
        found = sample_documents(source, split, size, held_out_bytes=others, progress=progress)
        training += texts_of(source, found[0])
        held_out += texts_of(source, found[1])
    if not training:
        names = " and ".join(text_source(part).name for part in tasks)
        raise InputError(f"{names} holds no document in split {split!r}; give files with text in them.")
    return training, held_out


def train_on_documents(documents: Sequence[bytes], size: int, path: str, **choices: Any) -> int:
    """Trains the vocabulary, writes tokenizer.json beside it, returns the number of pieces; see train_vocabulary."""
    count = train_vocabulary((document.decode() for document in documents), size, path, **choices)
    write_whole(json_path(path), tokenizer_json(path).encode())
    return count


def ensure_vocabulary(config: DataConfig, trains: bool) -> None:
    """Makes the vocabulary that the run names where there is none yet and `new_vocabulary_size` is set.

    One process trains it on the run's training split, the others wait for its files. A vocabulary of that many ids,
    fewer where the text does not give them. Raises ConfigError as sampling and training do.
    """
    path, size = config.vocabulary, config.new_vocabulary_size
    if path is None or size is None or (_is_there(path) and _is_there(json_path(path))):
        return
    if not trains:
        wait_for_vocabulary(path, HOURS_WAITED * 3600)
        return
    if _is_there(path):  # stopped between the two
        write_whole(json_path(path), tokenizer_json(path).encode())
        return
    _check_json(path)
    # Bytes stand in for the vocabulary that is not there yet; nothing is encoded with them.
    task = resolve_task(dataclasses.replace(config, vocabulary="byte", new_vocabulary_size=None))
    print(f"There is no vocabulary at {path}: reading text to train one of {size:,} ids.", flush=True)
    documents, _ = sample_task(task, config.train_split, config.new_vocabulary_bytes)
    print(f"Training it on {len(documents):,} documents, {sum(map(len, documents)):,} bytes.", flush=True)
    coverage = config.new_vocabulary_coverage
    count = train_on_documents(documents, size - config.extra_ids, path, character_coverage=coverage)
    print(f"{path}: {count:,} pieces.", flush=True)


def compare(
    path: str, held_out: Sequence[bytes], files: str | None, vocabularies: str | None, column: Column = "text"
) -> tuple[Any, dict[tuple[str, str], Fertility]]:
    """Returns a table of the vocabulary at `path` and others on several texts, and its figures.

    The figures are by (text, file name of the vocabulary). `files` is 'ro=a.jsonl,fr=b.txt', a name and a path
    or pattern each; `vocabularies` paths with commas between. Raises ConfigError for what is not there.
    """
    texts = {"held out": list(held_out)} if held_out else {}
    for name, pattern in parse_files(files).items():
        source = source_of_files(pattern, column)
        texts[name] = texts_of(source, sample_documents(source, "train", HELD_OUT_BYTES)[0])
    paths = [path, *parse_vocabularies(vocabularies)]
    names = [path.rpartition("/")[2] for path in paths]
    if len(set(names)) < len(names):
        names = paths
    return fertility_table(texts, {name: load_vocabulary(path) for name, path in zip(names, paths, strict=True)})


def parse_files(files: str | None) -> dict[str, str]:
    """Returns {name: pattern} of 'ro=a.jsonl,fr=b.txt'; ConfigError where it is written otherwise."""
    pairs = [part.partition("=") for part in (files or "").split(",") if part.strip()]
    for name, _, pattern in pairs:
        if not name.strip() or not pattern.strip():
            raise InputError(f"--compare_files has {name!r} without a name or a path; write ro=a.jsonl,fr=b.txt.")
    return {name.strip(): pattern.strip() for name, _, pattern in pairs}


def parse_vocabularies(vocabularies: str | None) -> list[str]:
    """Returns the paths, each once."""
    return list(dict.fromkeys(part.strip() for part in (vocabularies or "").split(",") if part.strip()))


def wait_for_vocabulary(path: str, wait_seconds: float, poll_seconds: float = 5.0) -> None:
    """Returns once host 0 has written the vocabulary and its tokenizer.json; ConfigError after `wait_seconds`."""
    deadline = time.monotonic() + wait_seconds
    while not (_is_there(path) and _is_there(json_path(path))):
        if time.monotonic() >= deadline:
            raise InputError(
                f"Host 0 has not written {path} within {wait_seconds:,.0f} s; look at its output, check that all "
                "hosts see the same folder, or set --wait_seconds higher."
            )
        time.sleep(min(poll_seconds, max(0.0, deadline - time.monotonic())))


def _is_there(path: str) -> bool:
    try:
        system, stripped = fsspec.core.url_to_fs(path)
        system.invalidate_cache()  # another host writes what is looked for
        return system.exists(stripped)
    except (OSError, ValueError, ImportError) as error:
        raise InputError(f"The path {path} cannot be used ({error}); check it and its permissions.") from error
