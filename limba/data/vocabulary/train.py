"""Training of SentencePiece vocabularies, on any texts or on a sample of a task's text.

With several hosts one process trains, and the others wait for its files.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import itertools
import logging
import os
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any

import fsspec
import seqio

from limba.config import ConfigError, DataConfig, InputError
from limba.config.errors import reason_of
from limba.config.waiting import waiting
from limba.data.sources.units import Column
from limba.data.tasks import parts_of, resolve_task, source_of_files
from limba.data.vocabulary.load import NUM_SENTINELS, load_vocabulary, parse_model
from limba.data.vocabulary.normalization import ROMANIAN_COMMAS, normalization_tsv
from limba.data.vocabulary.report import Fertility, fertility_table
from limba.data.vocabulary.text_sample import Progress, check_not_empty, sample_documents, text_source, texts_of
from limba.data.vocabulary.tokenizer_json import tokenizer_json
from limba.storage import lease, servers
from limba.storage.failures import kind_of
from limba.storage.files import write_whole

logger = logging.getLogger(__name__)

REPORT_BYTES = 2_000_000  # bytes of text for the report
HOURS_WAITED = 6  # to wait for the process that trains, while it gives heartbeats
START_SECONDS = 600.0  # for its first heartbeat
NORMALIZATIONS = ("nmt_nfkc", "nfkc", "identity")
LONGEST_SENTENCE = 4096  # bytes; SentencePiece ignores longer lines
# Scores are rounded to multiples of this. Sums of some 7,000 of them are then exact in single precision, so two ways
# to cut a word that have equal scores stay equal, for SentencePiece as for libraries that add in double precision.
SCORE_STEP = 1 / 256
SMALLEST_SIZE = {True: NUM_SENTINELS + 3 + 256, False: NUM_SENTINELS + 3}  # with byte pieces and without


def check_output(path: str) -> None:
    """Raises InputError for a path that does not end with .model, cannot be written, or already has a vocabulary."""
    if not path.endswith(".model"):
        raise InputError(f"The vocabulary's path {path} does not end with .model; give DIR/NAME.model.")
    if _exists(path):
        raise InputError(f"The vocabulary {path} already exists; delete it, or give another path.")
    _check_json(path)
    check_writable(path)


def check_size(size: int, byte_fallback: bool) -> None:
    """Raises ConfigError for a number of ids that leaves no piece for the text's letters."""
    if size <= SMALLEST_SIZE[byte_fallback]:
        bytes_too = ", 256 pieces of single bytes" if byte_fallback else ""
        raise ConfigError(
            "DataConfig.new_vocabulary_size",
            f"is {size}, and {NUM_SENTINELS} sentinels{bytes_too} and 3 special pieces are among them; give more "
            f"than {SMALLEST_SIZE[byte_fallback]}, and room for the text's letters.",
        )


def _check_json(path: str) -> None:
    if _exists(json_path(path)):
        raise InputError(f"{json_path(path)} belongs to another vocabulary; choose another folder for {path}.")


def json_path(path: str) -> str:
    """Returns the path of a vocabulary's tokenizer.json: beside it, under the name that Hugging Face expects."""
    return f"{path.rpartition('/')[0] or '.'}/tokenizer.json"


def sample_task(
    task: seqio.Task | seqio.Mixture, split: str, sample_bytes: int, progress: Progress | None = None
) -> tuple[list[bytes], list[bytes]]:
    """Returns about `sample_bytes` of the split's documents to train on, and up to 2 MB of others for validation.

    A mixture samples its tasks by their rates. Raises InputError if there is no text.
    """
    tasks = parts_of(task)
    rates = [task.get_rate(part) for part in tasks] if isinstance(task, seqio.Mixture) else [1.0]
    training: list[bytes] = []
    validation: list[bytes] = []
    for part, rate in zip(tasks, rates, strict=True):
        share = rate / sum(rates)
        size, others = round(sample_bytes * share), round(REPORT_BYTES * share)
        source = text_source(part)
        found = sample_documents(source, split, size, validation_bytes=others, progress=progress)
        training += texts_of(source, found[0])
        validation += texts_of(source, found[1])
    if not training:
        names = " and ".join(text_source(part).name for part in tasks)
        raise InputError(f"{names} holds no document in split {split!r}; give files with text in them.")
    return training, validation


def train_on_documents(documents: Sequence[bytes], size: int, path: str, **choices: Any) -> int:
    """Trains a vocabulary as `train_vocabulary` does, writes tokenizer.json beside it, returns the number of pieces."""
    count = train_vocabulary((document.decode() for document in documents), size, path, **choices)
    _write(json_path(path), tokenizer_json(path).encode())
    return count


def ensure_vocabulary(config: DataConfig, trains: bool) -> None:
    """Trains the run's vocabulary if it does not exist and `new_vocabulary_size` is set.

    The process with `trains` trains it on the run's training split; the others wait for its files. It has
    `new_vocabulary_size` ids, or fewer if the text has too few pieces. Raises InputError as sampling and training do.
    """
    path, size = config.vocabulary, config.new_vocabulary_size
    if path is None or size is None or (_exists(path) and _exists(json_path(path))):
        return
    if not trains:
        wait_for_vocabulary(path, HOURS_WAITED * 3600)
        return
    with making(path):
        _make(config, path, size)


def making(path: str) -> AbstractContextManager[lease.Lease]:
    """Returns the context for making a vocabulary; InputError on entry if another process makes this one."""
    return lease.held(path, "makes", beside=True)


def _make(config: DataConfig, path: str, size: int) -> None:
    """Trains the run's vocabulary, unless that has been done."""
    if _exists(path):  # an earlier start was stopped between the two files
        _write(json_path(path), tokenizer_json(path).encode())
        return
    _check_json(path)
    # The byte vocabulary stands in for the missing one; nothing is encoded with it.
    task = resolve_task(dataclasses.replace(config, vocabulary="byte", new_vocabulary_size=None))
    print(f"There is no vocabulary at {path}: reading text to train one of {size:,} ids.", flush=True)
    documents, _ = sample_task(task, config.train_split, config.new_vocabulary_bytes)
    print(f"Training it on {len(documents):,} documents, {sum(map(len, documents)):,} bytes.", flush=True)
    coverage = config.new_vocabulary_coverage
    count = train_on_documents(documents, size - config.extra_ids, path, character_coverage=coverage)
    print(f"{path}: {count:,} pieces.", flush=True)


def wait_for_vocabulary(path: str, wait_seconds: float, poll_seconds: float = 5.0) -> None:
    """Returns when host 0 has written the vocabulary and its tokenizer.json; InputError after `wait_seconds`.

    InputError sooner if host 0 does not begin, if its heartbeats end, or if it ends without these files.
    """
    deadline, watch = time.monotonic() + wait_seconds, lease.Watch(path, beside=True)
    while not (_exists(path) and _exists(json_path(path))):
        _check_alive(watch, path)
        if time.monotonic() >= deadline:
            raise InputError(
                f"Host 0 has not written {path} within {wait_seconds:,.0f} s; look at its output, check that all "
                "hosts see the same folder, or wait longer."
            )
        time.sleep(min(poll_seconds, max(0.0, deadline - time.monotonic())))


def _check_alive(watch: lease.Watch, path: str) -> None:
    """Raises InputError if the process that makes the vocabulary has died."""
    try:
        owner, silent_seconds, has_beaten = watch.look()
    except OSError:  # its files are asked for again soon, and what is wrong is said then
        return
    who, after = f" ({owner})" if owner else "", f"{silent_seconds:,.0f} s"
    if has_beaten and silent_seconds > 2 * lease.PATIENCE * lease.BEAT_SECONDS:
        said = f"has given no heartbeat for {after}" if owner else f"has ended without writing {path}"
    elif not has_beaten and silent_seconds > START_SECONDS:
        said = f"has not begun to make {path} within {after}"
    else:
        return
    raise InputError(f"Host 0{who} {said}; look at its output, and start all hosts again.")


def _exists(path: str) -> bool:
    try:
        system, stripped = fsspec.core.url_to_fs(path)
        system.invalidate_cache()  # another host writes the file
        return system.exists(stripped)
    except (OSError, ValueError, ImportError) as error:
        raise kind_of(error)(
            f"The path {path} cannot be used ({reason_of(error)}); check it and its permissions."
        ) from error


def check_compared(files: str | None, vocabularies: str | None, column: Column = "text") -> None:
    """Loads the vocabularies and reads the first row of each text, before `compare` needs them; InputError."""
    for path in parse_vocabularies(vocabularies):
        load_vocabulary(path)
    for pattern in parse_files(files).values():
        check_not_empty(source_of_files(pattern, column), "train")


def compare(
    path: str, validation: Sequence[bytes], files: str | None, vocabularies: str | None, column: Column = "text"
) -> tuple[Any, dict[tuple[str, str], Fertility]]:
    """Returns a table of the vocabulary at `path` and others on several texts, and its figures.

    The figures are by (text, file name of the vocabulary). `files` is 'ro=a.jsonl,fr=b.txt', each a name and a path
    or pattern; `vocabularies` is paths separated by commas. Raises InputError for files that do not exist.
    """
    texts = {"unseen": list(validation)} if validation else {}
    for name, pattern in parse_files(files).items():
        source = source_of_files(pattern, column)
        texts[name] = texts_of(source, sample_documents(source, "train", REPORT_BYTES)[0])
    paths = [path, *parse_vocabularies(vocabularies)]
    names = [path.rpartition("/")[2] for path in paths]
    if len(set(names)) < len(names):
        names = paths
    return fertility_table(texts, {name: load_vocabulary(path) for name, path in zip(names, paths, strict=True)})


def parse_files(files: str | None) -> dict[str, str]:
    """Returns {name: pattern} of text such as 'ro=a.jsonl,fr=b.txt'; InputError for any other text.

    >>> parse_files("ro=a.jsonl, fr=b.txt")
    {'ro': 'a.jsonl', 'fr': 'b.txt'}
    """
    pairs = [part.partition("=") for part in (files or "").split(",") if part.strip()]
    for name, _, pattern in pairs:
        if not name.strip() or not pattern.strip():
            raise InputError(
                f"The texts to compare on have {name!r} without a name or a path; write ro=a.jsonl,fr=b.txt."
            )
    return {name.strip(): pattern.strip() for name, _, pattern in pairs}


def parse_vocabularies(vocabularies: str | None) -> list[str]:
    """Returns the paths in text that separates them by commas, each once."""
    return list(dict.fromkeys(part.strip() for part in (vocabularies or "").split(",") if part.strip()))


def train_vocabulary(
    texts: Iterable[str],
    size: int,
    path: str,
    *,
    byte_fallback: bool = True,
    character_coverage: float = 0.9995,
    normalization: str = "nmt_nfkc",
    romanian_commas: bool = False,
    num_sentences: int = 5_000_000,
) -> int:
    """Trains a unigram SentencePiece model (Kudo 2018, arXiv:1804.10959) on the texts and writes it to `path`.

    Returns its number of pieces: `size`, or, with a warning, fewer if the texts have too few.
    seqio adds the 100 sentinels when it loads the model. The same texts in the same order
    give the same model. `romanian_commas` adds rules to the model that replace the cedilla of s and t by the comma, so
    that all its users read the same letters. Raises InputError for no text, a size too
    small for the characters, and a path that cannot be written.
    """
    import sentencepiece

    sentences, model = _sentences(texts), io.BytesIO()
    first = next(sentences, None)
    if first is None:
        raise InputError("There is no text to train a vocabulary on; check the corpus path and column.")
    sentencepiece.set_random_generator_seed(0)
    try:
        with _normalization(normalization, romanian_commas) as rules, waiting("training the vocabulary"):
            sentencepiece.SentencePieceTrainer.train(
                sentence_iterator=itertools.chain([first], sentences),
                model_writer=model,
                model_type="unigram",
                vocab_size=size,
                hard_vocab_limit=False,
                pad_id=0,
                eos_id=1,
                unk_id=2,
                bos_id=-1,
                byte_fallback=byte_fallback,
                character_coverage=character_coverage,
                input_sentence_size=num_sentences,
                shuffle_input_sentence=True,
                num_threads=4,  # changes the result: sums are computed per thread
                minloglevel=2,
                **rules,
            )
    except (RuntimeError, OSError) as error:
        reason = str(error).strip().split("\n")[-1]  # the first lines are SentencePiece's source
        raise InputError(
            f"No vocabulary of {size} pieces can be trained on this text ({reason}); change the size."
        ) from error
    data = _rounded(model.getvalue())
    _write(path, data)
    trained = sentencepiece.SentencePieceProcessor()
    trained.LoadFromSerializedProto(data)
    if trained.GetPieceSize() < size:
        logger.warning("The text gives %d pieces, fewer than the requested %d.", trained.GetPieceSize(), size)
    return trained.GetPieceSize()


@contextlib.contextmanager
def _normalization(rule_name: str, romanian_commas: bool) -> Iterator[dict[str, Any]]:
    """Yields the trainer's arguments; a temporary file holds the added rules."""
    if not romanian_commas:
        yield {"normalization_rule_name": rule_name}
        return
    with tempfile.TemporaryDirectory() as directory:
        path = f"{directory}/rules.tsv"
        with open(path, "w", encoding="utf-8") as file:
            file.write(normalization_tsv(rule_name, ROMANIAN_COMMAS))
        yield {"normalization_rule_tsv": path}


def _rounded(data: bytes) -> bytes:
    """Returns the model with its scores rounded to SCORE_STEP and without this machine's paths."""
    model = parse_model(data)
    for piece in model.pieces:
        piece.score = round(piece.score / SCORE_STEP) * SCORE_STEP
    model.normalizer_spec.ClearField("normalization_rule_tsv")
    return model.SerializeToString(deterministic=True)


def _sentences(texts: Iterable[str]) -> Iterator[str]:
    """Yields the texts cut at newlines, and longer lines at spaces, into sentences that SentencePiece accepts."""
    for text in texts:
        for line in text.splitlines():
            words, size = [], 0
            for word in line.split():
                for start in range(0, len(word), LONGEST_SENTENCE // 4):  # a character has up to 4 bytes
                    part = word[start : start + LONGEST_SENTENCE // 4]
                    length = len(part.encode()) + 1
                    if words and size + length > LONGEST_SENTENCE:
                        yield " ".join(words)
                        words, size = [], 0
                    words.append(part)
                    size += length
            if words:
                yield " ".join(words)


def check_writable(path: str) -> None:
    """Makes the folder of a local path and tries to write a file in it; InputError if that fails."""
    if "://" in path and not path.startswith("file://"):
        servers.check(path)
        return
    folder = os.path.dirname(path.removeprefix("file://")) or "."
    try:
        os.makedirs(folder, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise kind_of(error)(f"{path} cannot be written ({reason_of(error)}); give another path.") from error


def _write(path: str, data: bytes) -> None:
    """Writes the file atomically. Raises InputError if it cannot be written."""
    try:
        write_whole(path, data)
    except OSError as error:
        raise kind_of(error)(
            f"The vocabulary cannot be written to {path} ({reason_of(error)}); give another path."
        ) from error
