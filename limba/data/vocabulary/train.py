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

from limba.config import ConfigError, DataConfig, InputError, extras, reason_of, require
from limba.config.waiting import waiting
from limba.data.registry import Mixture, Task
from limba.data.tasks import parts_of, resolve_task
from limba.data.vocabulary.files import is_folder
from limba.data.vocabulary.load import NUM_SENTINELS, ROWS_MULTIPLE
from limba.data.vocabulary.text_sample import Progress, Texts
from limba.data.vocabulary.tokenizer_json import tokenizer_json
from limba.data.vocabulary.vocabularies import parse_model
from limba.storage import lease, servers
from limba.storage.failures import kind_of
from limba.storage.files import as_typed_here, write_whole

logger = logging.getLogger(__name__)

REPORT_BYTES = 2_000_000  # bytes of text that is not trained on, for a report
HOURS_WAITED = 6  # for the process that trains
MOST_SENTENCES = 5_000_000  # that SentencePiece trains on
LONGEST_SENTENCE = 4096  # bytes; SentencePiece ignores longer lines
# Scores are rounded to multiples of this. Sums of some 7,000 of them are then exact in single precision, so two ways
# to split a word that have equal scores stay equal, for SentencePiece as for libraries that add in double precision.
SCORE_STEP = 1 / 256


class NewVocabulary:
    """A vocabulary that is still to be trained: the model at `path`, and tokenizer.json beside it.

    With several hosts one process trains it within `held`, and the others `wait`.

    >>> NewVocabulary("nb.model").check(300, byte_fallback=True)
    Traceback (most recent call last):
    limba.config.errors.ConfigError: DataConfig.new_vocabulary_size is 300, ...; give more than 359, ...
    """

    def __init__(self, path: str):
        self.path = path
        self.json = f"{path.rpartition('/')[0] or '.'}/tokenizer.json"  # the name that Hugging Face expects

    def check(self, size: int, byte_fallback: bool, masks: bool = False) -> None:
        """Raises InputError for a path that cannot be written or already has a vocabulary, and for too few ids."""
        num_special = 5 if masks else 3  # with <mask> and <cls>
        smallest = num_special
        counted = []
        if not masks:
            smallest += NUM_SENTINELS
            counted.append(f"{NUM_SENTINELS} sentinels")
        if byte_fallback:
            smallest += 256
            counted.append("256 pieces of single bytes")
        counted.append(f"{num_special} special pieces")
        if size <= smallest:
            raise ConfigError(
                "DataConfig.new_vocabulary_size",
                f"is {size}, and {', '.join(counted)} are among them; give more than {smallest}, and room for the"
                " text's letters.",
            )
        if not self.path.endswith(".model"):
            raise InputError(f"The vocabulary's path {self.path} does not end with .model; give DIR/NAME.model.")
        if _exists(self.path):
            raise InputError(f"The vocabulary {self.path} already exists; delete it, or give another path.")
        self._check_json()
        _check_writable(self.path)

    @staticmethod
    def check_rows(config: DataConfig, num_rows: int) -> None:
        """Raises ConfigError if a model of so many rows has none for some of the `new_vocabulary_size` ids.

        >>> NewVocabulary.check_rows(DataConfig("nb", {"inputs": 512}, 128, new_vocabulary_size=2_000), 1_000)
        Traceback (most recent call last):
        limba.config.errors.ConfigError: DataConfig.new_vocabulary_size is 2000, and ModelConfig.vocab_size 1000, ...
        """
        size = config.new_vocabulary_size
        require(
            size is None or size <= num_rows,
            "DataConfig.new_vocabulary_size",
            f"is {size}, and ModelConfig.vocab_size {num_rows}, which are the rows for these ids; give fewer ids, or"
            " more rows.",
            ("ModelConfig.vocab_size", -(-(size or 0) // ROWS_MULTIPLE) * ROWS_MULTIPLE),
        )

    def _check_json(self) -> None:
        if _exists(self.json):
            raise InputError(f"{self.json} belongs to another vocabulary; choose another folder for {self.path}.")

    @property
    def exists(self) -> bool:
        """True once both files are written."""
        return _exists(self.path) and _exists(self.json)

    def held(self) -> AbstractContextManager[lease.Lease]:
        """Returns the context in which it is trained; InputError on entry if another process is training it."""
        return lease.held(self.path, beside=True)

    @staticmethod
    def sample(
        task: Task | Mixture, split: str, sample_bytes: int, progress: Progress | None = None
    ) -> tuple[list[bytes], list[bytes]]:
        """Returns about `sample_bytes` of the split's documents to train on, and up to 2 MB of others for validation.

        A mixture samples its tasks by their rates. Raises InputError if there is no text.
        """
        tasks = parts_of(task)
        rates = [task.get_rate(part) for part in tasks] if isinstance(task, Mixture) else [1.0]
        training: list[bytes] = []
        validation: list[bytes] = []
        for part, rate in zip(tasks, rates, strict=True):
            share = rate / sum(rates)
            texts = Texts.of_task(part)
            training_bytes = round(sample_bytes * share)
            validation_bytes = round(REPORT_BYTES * share)
            with extras.needed_by(f"{texts.source.name} of task {part.name}"):
                sampled, others = texts.sample(
                    split, training_bytes, validation_bytes=validation_bytes, progress=progress
                )
            training += texts.in_columns(sampled)
            validation += texts.in_columns(others)
        if not training:
            names = " and ".join(Texts.of_task(part).source.name for part in tasks)
            raise InputError(f"{names} holds no document in split {split!r}; give files with text in them.")
        return training, validation

    def train(self, documents: Sequence[bytes], num_pieces: int, masks: bool = False, **choices: Any) -> int:
        """Trains it as `train_vocabulary` does, writes tokenizer.json beside it, returns the number of pieces."""
        texts = (document.decode() for document in documents)
        count = train_vocabulary(texts, num_pieces, self.path, masks=masks, **choices)
        self._write_json(masks)
        return count

    def _write_json(self, masks: bool) -> None:
        _write(self.json, tokenizer_json(self.path, 0 if masks else NUM_SENTINELS, encodes=masks).encode())

    def wait(self, wait_seconds: float, poll_seconds: float = 5.0) -> None:
        """Returns when host 0 has written both files; InputError after `wait_seconds`."""
        deadline = time.monotonic() + wait_seconds
        while not self.exists:
            if time.monotonic() >= deadline:
                raise InputError(
                    f"Host 0 has not written {self.path} within {wait_seconds:,.0f} s; look at its output, check that"
                    " all hosts see the same folder, or wait longer."
                )
            time.sleep(min(poll_seconds, max(0.0, deadline - time.monotonic())))

    def of_run(self, config: DataConfig, size: int, num_rows: int | None = None) -> None:
        """Trains it on the run's training split, with at most `size` ids, unless that has been done.

        The model has an embedding of `num_rows`, where that is known.
        """
        masks = config.is_masked
        if _exists(self.path):  # an earlier start was stopped between the two files
            self._write_json(masks)
            return
        if num_rows is not None:  # one that exists says itself how many ids it has
            self.check_rows(config, num_rows)
        self._check_json()
        # The byte vocabulary stands in for the missing one; nothing is encoded with it.
        task = resolve_task(dataclasses.replace(config, vocabulary="byte", new_vocabulary_size=None))
        shown_path = as_typed_here(str(self.path))
        print(f"Training the vocabulary {shown_path}, of at most {size:,} ids.", flush=True)
        documents, _ = self.sample(task, config.train_split, config.new_vocabulary_bytes)
        most = size - config.extra_ids
        count = self.train(documents, most, masks, character_coverage=config.new_vocabulary_coverage)
        if count < most:
            read = f"{len(documents):,} documents, {sum(map(len, documents)):,} bytes"
            print(f"{shown_path}: the text ({read}) has no more than {count:,} pieces.", flush=True)


def ensure_vocabulary(config: DataConfig, trains: bool, num_rows: int | None = None) -> None:
    """Trains the run's vocabulary if it does not exist and `new_vocabulary_size` is set.

    The process with `trains` trains it on the run's training split; the others wait for its files. It has
    `new_vocabulary_size` ids, or fewer if the text has too few pieces. Raises InputError as sampling and training do,
    and before them ConfigError if there are more ids than the `num_rows` of the model's embedding.
    """
    path = config.vocabulary
    size = config.new_vocabulary_size
    if path is None or size is None or is_folder(path):
        return
    new = NewVocabulary(path)
    if new.exists:
        return
    if not trains:
        new.wait(HOURS_WAITED * 3600)
        return
    with new.held():
        new.of_run(config, size, num_rows)


def _exists(path: str) -> bool:
    try:
        system, stripped = fsspec.core.url_to_fs(path)
        system.invalidate_cache()  # another host writes the file
        return system.exists(stripped)
    except (OSError, ValueError, ImportError) as error:
        raise kind_of(error)(
            f"The path {path} cannot be used ({reason_of(error)}); check it and its permissions."
        ) from error


def train_vocabulary(
    texts: Iterable[str],
    size: int,
    path: str,
    *,
    byte_fallback: bool = True,
    character_coverage: float = 0.9995,
    normalization: str = "nmt_nfkc",
    rules: str = "",
    masks: bool = False,
) -> int:
    """Trains a unigram SentencePiece model (Kudo 2018, arXiv:1804.10959) on the texts and writes it to `path`.

    Returns its number of pieces: `size`, or, with a warning, fewer if the texts have too few. The 100 sentinels are
    added when the model is loaded. The same texts in the same order give the same model. `rules` are normalization
    rules as SentencePiece's TSV, used instead of the ones that `normalization` names. With `masks` it has <mask> and
    <cls>, and its end of sequence is <sep>. Raises InputError for no text, a size too small for the characters, and a
    path that cannot be written.

    >>> train_vocabulary(["a small text of a few small words"] * 20, 17, "small.model", byte_fallback=False)
    17
    """
    import sentencepiece

    sentences = _sentences(texts)
    model = io.BytesIO()
    special = {"eos_piece": "<sep>", "control_symbols": ["<mask>", "<cls>"]} if masks else {}
    first = next(sentences, None)
    if first is None:
        raise InputError("There is no text to train a vocabulary on; check the corpus path and column.")
    sentencepiece.set_random_generator_seed(0)
    try:
        with _rules(normalization, rules) as chosen, waiting("training the vocabulary"):
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
                input_sentence_size=MOST_SENTENCES,
                shuffle_input_sentence=True,
                num_threads=4,  # changes the result: sums are computed per thread
                minloglevel=2,
                **special,
                **chosen,
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
def _rules(name: str, rules: str) -> Iterator[dict[str, Any]]:
    """Yields the trainer's arguments; rules without a name are in a temporary file."""
    if not rules:
        yield {"normalization_rule_name": name}
        return
    with tempfile.NamedTemporaryFile("w", suffix=".tsv", encoding="utf-8") as file:
        file.write(rules)
        file.flush()
        yield {"normalization_rule_tsv": file.name}


def _rounded(data: bytes) -> bytes:
    """Returns the model with its scores rounded to SCORE_STEP and without this machine's paths."""
    model = parse_model(data)
    for piece in model.pieces:
        piece.score = round(piece.score / SCORE_STEP) * SCORE_STEP
    model.normalizer_spec.ClearField("normalization_rule_tsv")
    return model.SerializeToString(deterministic=True)


def _sentences(texts: Iterable[str]) -> Iterator[str]:
    """Yields the texts split at newlines, and longer lines at spaces, into sentences that SentencePiece accepts."""
    for text in texts:
        for line in text.splitlines():
            words = []
            size = 0
            for word in line.split():
                for start in range(0, len(word), LONGEST_SENTENCE // 4):  # a character has up to 4 bytes
                    part = word[start : start + LONGEST_SENTENCE // 4]
                    length = len(part.encode()) + 1
                    if words and size + length > LONGEST_SENTENCE:
                        yield " ".join(words)
                        words = []
                        size = 0
                    words.append(part)
                    size += length
            if words:
                yield " ".join(words)


def _check_writable(path: str) -> None:
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
