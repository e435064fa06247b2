"""Vocabularies in T5's layout: pad 0, end of sequence 1, unknown 2, sentinels counted down from the top.

Raffel et al. 2020 (arXiv:1910.10683, section 2.2): a SentencePiece unigram model and 100 sentinels
above its pieces, `<extra_id_0>` being the highest id. seqio adds them when it loads the model; mT5's
published model, and others, hold them as their last pieces already.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import logging
import os
import re
import tempfile
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import fsspec
import numpy as np
import seqio

from limba.config import InputError
from limba.data.vocabulary.normalization import ROMANIAN_COMMAS, normalization_tsv
from limba.data.vocabulary.tokenizers import TokenizersVocabulary

logger = logging.getLogger(__name__)

NUM_SENTINELS = 100
ROWS_MULTIPLE = 128
SPACE = "\u2581"  # SentencePiece's letter for a space
LONGEST_SENTENCE = 4096  # bytes; SentencePiece leaves longer lines out
# Scores are rounded to multiples of this: sums of some 7,000 of them are then exact in single precision, and
# two ways to cut a word that cost the same stay equal, for SentencePiece as for libraries that add in double.
SCORE_STEP = 1 / 256
SENTINEL = re.compile(rf"{SPACE}?<extra_id_(\d+)>")


def load_vocabulary(path_or_byte: str, extra_ids: int = NUM_SENTINELS) -> seqio.Vocabulary:
    """Returns ByT5's byte vocabulary for 'byte', else the SentencePiece model, or tokenizer.json, at a path or address.

    A model that holds `<extra_id_0>` keeps its own sentinels and gets no others. Raises ConfigError for
    a file that is missing, unreadable, or no SentencePiece model with pad 0 and an end-of-sequence piece.
    """
    if path_or_byte == "byte":
        return seqio.ByteVocabulary(extra_ids=extra_ids)
    if path_or_byte.endswith(".json"):
        vocabulary = TokenizersVocabulary(path_or_byte)
        vocabulary.tokenizer  # noqa: B018  a wrong file shows now
        return vocabulary
    model = read_model(path_or_byte)
    inside = sum(1 for piece in model.pieces if SENTINEL.fullmatch(piece.piece))
    if inside and extra_ids:
        logger.info("%s holds %d sentinels itself; none are added above them.", path_or_byte, inside)
        extra_ids = 0
    vocabulary = seqio.SentencePieceVocabulary(path_or_byte, extra_ids=extra_ids)
    _check_layout(vocabulary, path_or_byte)
    return vocabulary


def check_vocabulary(vocabulary: seqio.Vocabulary, num_rows: int, needs_sentinels: bool = True) -> None:
    """Raises ConfigError where ids go beyond the model's embedding rows, or sentinels are needed and none there."""
    where = getattr(vocabulary, "sentencepiece_model_file", getattr(vocabulary, "path", "the byte vocabulary"))
    if isinstance(vocabulary, seqio.SentencePieceVocabulary):
        read_model(where)
        _check_layout(vocabulary, where)
    if vocabulary.vocab_size > num_rows:
        raise InputError(
            f"The vocabulary {where} has {vocabulary.vocab_size} ids, sentinels included, and the model "
            f"{num_rows} rows; set ModelConfig.vocab_size to {fitting_rows(vocabulary)} or take a smaller vocabulary."
        )
    if needs_sentinels and not num_sentinels(vocabulary):
        raise InputError(
            f"The vocabulary {where} has no sentinels (<extra_id_0> and on); set DataConfig.vocabulary to its path with"
            f" DataConfig.extra_ids {NUM_SENTINELS}, or give the task's own vocabulary extra_ids={NUM_SENTINELS}."
        )


def fitting_rows(vocabulary: seqio.Vocabulary) -> int:
    """Returns the least multiple of 128 that holds every id."""
    return -(-vocabulary.vocab_size // ROWS_MULTIPLE) * ROWS_MULTIPLE


def num_sentinels(vocabulary: seqio.Vocabulary) -> int:
    """Returns how many ids at the top of the vocabulary are sentinels, counted down from the last one."""
    if isinstance(vocabulary, TokenizersVocabulary):
        return vocabulary.num_sentinels
    if not isinstance(vocabulary, seqio.SentencePieceVocabulary):
        return vocabulary.extra_ids
    pieces, count = vocabulary.tokenizer, 0
    while count < vocabulary.vocab_size:
        match = SENTINEL.fullmatch(pieces.IdToPiece(vocabulary.vocab_size - 1 - count))
        if match is None or int(match[1]) != count:
            break
        count += 1
    return count


def sentinel_ids(vocabulary: seqio.Vocabulary, count: int) -> list[int]:
    """Returns the ids of <extra_id_0>, <extra_id_1>, …; ConfigError where there are fewer than `count`."""
    there = num_sentinels(vocabulary)
    if count > there:
        raise InputError(
            f"The vocabulary has {there} sentinels and {count} are needed; set DataConfig.extra_ids higher."
        )
    return [vocabulary.vocab_size - 1 - number for number in range(count)]


def content_name(vocabulary: seqio.Vocabulary) -> str:
    """Names a vocabulary by what it holds, not by its path; sentinels, which no text has, do not count."""
    if isinstance(vocabulary, seqio.SentencePieceVocabulary):
        model = hashlib.blake2b(vocabulary.tokenizer.serialized_model_proto(), digest_size=16).hexdigest()
        return f"sentencepiece {model}"
    if isinstance(vocabulary, TokenizersVocabulary):
        return f"tokenizers {hashlib.blake2b(vocabulary.tokenizer.to_str().encode(), digest_size=16).hexdigest()}"
    return f"{type(vocabulary).__name__} {vocabulary.vocab_size}"


def encoder(vocabulary: seqio.Vocabulary) -> Callable[[bytes], np.ndarray]:
    """Returns a function from a document's UTF-8 to its ids, int32 [n], no end of sequence added."""
    if isinstance(vocabulary, seqio.SentencePieceVocabulary):
        return vocabulary.tokenizer.EncodeAsNumpy
    if isinstance(vocabulary, seqio.ByteVocabulary):
        first = vocabulary.unk_id + 1
        return lambda text: np.frombuffer(text, np.uint8).astype(np.int32) + first
    return lambda text: np.array(vocabulary.encode(text.decode()), np.int32)


def is_byte_piece(vocabulary: seqio.Vocabulary) -> np.ndarray:
    """Returns which ids are a SentencePiece model's pieces of single bytes, bool [ids]; of others none."""
    marks = np.zeros([vocabulary.vocab_size], bool)
    if isinstance(vocabulary, seqio.SentencePieceVocabulary):
        for number in range(vocabulary.vocab_size):
            marks[number] = vocabulary.tokenizer.IsByte(number)
    return marks


def piece_bytes(vocabulary: seqio.Vocabulary, num_rows: int) -> list[bytes]:
    """Returns the UTF-8, or the part of it, that each id of `num_rows` stands for, for bits per byte.

    A space is one byte, a byte piece one; padding, end of sequence, sentinels and rows without a piece
    are b"". Unknown pieces are b"" too: what they stood for is lost, and the figure errs upwards.
    """
    found = [b""] * num_rows
    if isinstance(vocabulary, seqio.ByteVocabulary):
        first = vocabulary.unk_id + 1
        found[first : first + 256] = [bytes([value]) for value in range(256)]
        return found
    if isinstance(vocabulary, TokenizersVocabulary):
        known = vocabulary.piece_bytes()[:num_rows]
        return known + found[len(known) :]
    pieces = vocabulary.tokenizer
    for number in range(min(vocabulary.vocab_size, num_rows)):
        piece = pieces.IdToPiece(number)
        if pieces.IsByte(number):
            found[number] = bytes([int(piece[3:5], 16)])  # <0xE3>
        elif not (
            pieces.IsControl(number) or pieces.IsUnknown(number) or pieces.IsUnused(number) or SENTINEL.fullmatch(piece)
        ):
            found[number] = piece.replace(SPACE, " ").encode()
    return found


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
    """Trains a unigram SentencePiece model (Kudo 2018, arXiv:1804.10959) on the texts; writes it to `path`.

    Returns its number of pieces: `size`, or fewer where the texts do not give that many, which is
    logged. The 100 sentinels come on top of them, when seqio loads it. The same texts in the same order
    give the same model. `romanian_commas` adds rules that turn the cedilla of s and t into the comma, in the
    model itself, so that whoever uses it reads the same letters. Raises ConfigError for no text, a size too
    small for the characters, and a path that cannot be written.
    """
    import sentencepiece

    counted = _Counted(_sentences(texts))
    model = io.BytesIO()
    sentencepiece.set_random_generator_seed(0)
    try:
        with _normalization(normalization, romanian_commas) as rules:
            sentencepiece.SentencePieceTrainer.train(
                sentence_iterator=counted,
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
                num_threads=4,  # part of the result: sums are taken per thread
                minloglevel=2,
                **rules,
            )
    except (RuntimeError, OSError) as error:
        if not counted.count:
            raise InputError("There is no text to train a vocabulary on; check the corpus path and column.") from None
        reason = str(error).strip().split("\n")[-1]
        raise InputError(
            f"No vocabulary of {size} pieces can be trained on this text ({reason}); change the size."
        ) from error
    data = _rounded(model.getvalue())
    write_whole(path, data)
    trained = sentencepiece.SentencePieceProcessor()
    trained.LoadFromSerializedProto(data)
    if trained.GetPieceSize() < size:
        logger.warning("The text gives %d pieces, fewer than the %d asked for.", trained.GetPieceSize(), size)
    return trained.GetPieceSize()


@contextlib.contextmanager
def _normalization(rule_name: str, romanian_commas: bool) -> Iterator[dict[str, Any]]:
    """Gives the trainer's arguments; added rules lie in a file as long as it reads them."""
    if not romanian_commas:
        yield {"normalization_rule_name": rule_name}
        return
    with tempfile.TemporaryDirectory() as directory:
        path = f"{directory}/rules.tsv"
        with open(path, "w", encoding="utf-8") as file:
            file.write(normalization_tsv(rule_name, ROMANIAN_COMMAS))
        yield {"normalization_rule_tsv": path}


def _rounded(data: bytes) -> bytes:
    """Returns the model with its scores rounded to SCORE_STEP and no path of this machine in it."""
    from sentencepiece import sentencepiece_model_pb2

    model = sentencepiece_model_pb2.ModelProto.FromString(data)
    for piece in model.pieces:
        piece.score = round(piece.score / SCORE_STEP) * SCORE_STEP
    model.normalizer_spec.ClearField("normalization_rule_tsv")
    return model.SerializeToString(deterministic=True)


class _Counted:
    def __init__(self, items: Iterator[str]):
        self._items, self.count = items, 0

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        item = next(self._items)
        self.count += 1
        return item


def _sentences(texts: Iterable[str]) -> Iterator[str]:
    """Cuts the texts at newlines, and longer lines at spaces, to what SentencePiece takes in."""
    for text in texts:
        for line in text.splitlines():
            words, size = [], 0
            for word in line.split():
                for start in range(0, len(word), LONGEST_SENTENCE // 4):  # a letter has up to 4 bytes
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
    """Makes the folder of a local path, and a file in it for a moment; ConfigError where that cannot be."""
    if "://" in path and not path.startswith("file://"):
        return
    folder = os.path.dirname(path.removeprefix("file://")) or "."
    try:
        os.makedirs(folder, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise InputError(f"{path} cannot be written ({error.strerror or error}); give another path.") from error


def write_whole(path: str, data: bytes) -> None:
    """Writes all or nothing: a reader never sees half a file. Raises ConfigError where it cannot be written."""
    system, stripped = fsspec.core.url_to_fs(path)
    try:
        if "://" in path and not path.startswith("file://"):
            system.pipe_file(stripped, data)  # an object store shows an object once it is whole
            return
        os.makedirs(os.path.dirname(stripped) or ".", exist_ok=True)
        unfinished = f"{stripped}.{os.getpid()}.tmp"
        with open(unfinished, "wb") as file:
            file.write(data)
        os.replace(unfinished, stripped)
    except OSError as error:
        raise InputError(
            f"The vocabulary cannot be written to {path} ({error.strerror or error}); give another path."
        ) from error


def read_model(path: str) -> Any:
    """Returns the parsed SentencePiece model; ConfigError where it is missing, unreadable or something else."""
    from sentencepiece import sentencepiece_model_pb2

    try:
        with fsspec.open(path, "rb") as file:
            data = file.read()
    except FileNotFoundError:
        raise InputError(
            f"The vocabulary {path} is not there; set DataConfig.vocabulary to a SentencePiece model's path, or 'byte'."
        ) from None
    except Exception as error:  # a bucket's library raises its own kinds
        reason = getattr(error, "strerror", None) or str(error).strip().split("\n")[0] or type(error).__name__
        raise InputError(
            f"The vocabulary {path} cannot be read ({reason}); check the path and its permissions."
        ) from error
    try:
        model = sentencepiece_model_pb2.ModelProto.FromString(data)
    except Exception:  # noqa: BLE001  protobuf's error is not public
        model = None
    if model is None or not len(model.pieces):
        raise InputError(f"The vocabulary {path} is not a SentencePiece model; give a .model file made by its trainer.")
    return model


def _check_layout(vocabulary: seqio.SentencePieceVocabulary, path: str) -> None:
    pieces = vocabulary.tokenizer
    if pieces.pad_id() != 0 or pieces.eos_id() < 0:
        raise InputError(
            f"The vocabulary {path} has padding at id {pieces.pad_id()} and end of sequence at {pieces.eos_id()}; "
            "T5 needs padding at 0 and an end of sequence: train one with pad_id=0, eos_id=1, unk_id=2."
        )
