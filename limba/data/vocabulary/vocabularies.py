"""Vocabularies behind seqio's interface, without TensorFlow: SentencePiece models and bytes.

Ids, texts and names of arguments are the same as in seqio's classes of the same names.
"""

from __future__ import annotations

import abc
import functools
import os
import sys
import threading
from collections.abc import Iterable, Sequence
from typing import Any

import sentencepiece

from limba.data.vocabulary.files import content

SPECIALS = ("<pad>", "</s>", "<unk>")  # a byte vocabulary's first ids, by the names in a ByT5's folder
NUM_SPECIALS = len(SPECIALS)
NUM_BYTES = 256
USER_DEFINED = 4  # the type of SentencePiece's pieces that a text always has as one token
_OPENING = threading.Lock()  # LoadFromSerializedProto is not safe in several threads


class LikeSeqio(abc.ABC):  # noqa: B024  the hook needs its metaclass
    """A class of which instances of seqio's class of the same name count as instances, where seqio is imported."""

    @classmethod
    def __subclasshook__(cls, other: type) -> object:
        theirs = getattr(sys.modules.get("seqio"), cls.__name__, None)
        return True if theirs is not None and issubclass(other, theirs) else NotImplemented


class Vocabulary(LikeSeqio):
    """From texts to ids and back; id 0 is padding."""

    pad_id = 0
    bos_id: int | None = None
    eos_id: int | None
    unk_id: int | None

    def __init__(self, extra_ids: int = 0):
        self.extra_ids = extra_ids or 0

    @property
    @abc.abstractmethod
    def _base_vocab_size(self) -> int:
        """The number of ids that are decoded."""

    @property
    def vocab_size(self) -> int:
        """The number of ids, with extra ids."""
        return self._base_vocab_size + self.extra_ids

    @abc.abstractmethod
    def encode(self, s: str) -> Sequence[int]:
        """Returns the ids of a text, without an end of sequence."""

    @abc.abstractmethod
    def _decode(self, ids: list[int]) -> str: ...

    def text_of(self, ids: Sequence[int]) -> str:
        """Returns the text of all these ids, also of those after an end of sequence."""
        return self._decode(list(ids))

    def decode(self, ids: Iterable[int]) -> str:
        """Returns the text of the ids up to the first end of sequence."""
        known = [int(number) for number in ids]
        if self.unk_id is not None:
            size = self._base_vocab_size
            unknown = self.unk_id
            known = [unknown if number >= size else number for number in known]
        if self.eos_id is not None and self.eos_id in known:
            known = known[: known.index(self.eos_id) + 1]
        return self._decode(known)


class SentencePieceVocabulary(Vocabulary):
    """A SentencePiece model at a path or any address that fsspec knows, read on first use.

    `extra_ids` sentinels follow its pieces, the last one is <extra_id_0> unless `reverse_extra_ids` is False.
    `normalizer_spec_overrides`, a NormalizerSpec, is merged into the model's.

    >>> from limba.data.vocabulary.train import train_vocabulary
    >>> _ = train_vocabulary(["a small text of a few small words"] * 20, 17, "few.model", byte_fallback=False)
    >>> vocabulary = SentencePieceVocabulary("few.model", extra_ids=100)
    >>> vocabulary.vocab_size, vocabulary.encode("<extra_id_0>"), vocabulary.decode(vocabulary.encode("small text"))
    (117, [116], 'small text')
    """

    def __init__(
        self,
        sentencepiece_model_file: str,
        extra_ids: int = 0,
        normalizer_spec_overrides: Any = None,
        reverse_extra_ids: bool = True,
    ):
        super().__init__(extra_ids)
        self.sentencepiece_model_file = sentencepiece_model_file
        self.normalizer_spec_overrides = normalizer_spec_overrides
        self.reverse_extra_ids = reverse_extra_ids

    @functools.cached_property
    def tokenizer(self) -> sentencepiece.SentencePieceProcessor:
        """SentencePiece's own object. Raises InputError where the file cannot be read."""
        rules = self.normalizer_spec_overrides
        serialized = rules.SerializeToString(deterministic=True) if rules else None
        with _OPENING:
            address, version = _file_at(self.sentencepiece_model_file)
            return _opened(address, version, self.extra_ids, serialized, self.reverse_extra_ids)

    @property
    def sp_model(self) -> bytes:
        """The serialized model with its sentinels."""
        return self.tokenizer.serialized_model_proto()

    @property
    def bos_id(self) -> int:
        return self.tokenizer.bos_id()

    @property
    def eos_id(self) -> int:
        return self.tokenizer.eos_id()

    @property
    def unk_id(self) -> int:
        return self.tokenizer.unk_id()

    @property
    def _base_vocab_size(self) -> int:
        return self.tokenizer.GetPieceSize()

    @property
    def vocab_size(self) -> int:
        """The number of ids, of which sentinels are pieces too."""
        return self._base_vocab_size

    def encode(self, s: str) -> Sequence[int]:
        return self.tokenizer.EncodeAsIds(s)

    def _decode(self, ids: list[int]) -> str:
        return self.tokenizer.DecodeIds(ids)

    def at(self, path: str) -> SentencePieceVocabulary:
        """Returns the same choices for the model at another path."""
        return SentencePieceVocabulary(path, self.extra_ids, self.normalizer_spec_overrides, self.reverse_extra_ids)

    def __getstate__(self) -> dict[str, object]:
        return {name: value for name, value in vars(self).items() if name != "tokenizer"}

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and self.__getstate__() == other.__getstate__()

    def __hash__(self) -> int:
        return hash((self.sentencepiece_model_file, self.extra_ids))


def _file_at(path: str) -> tuple[str, tuple[int, ...]]:
    """Returns (address, version): of a local path the absolute path, and what changes when another file is there."""
    if "://" in path or not os.path.exists(path):
        return path, ()
    status = os.stat(path)
    return os.path.abspath(path), (status.st_ino, status.st_size, status.st_mtime_ns)


@functools.cache
def _opened(
    address: str, version: tuple[int, ...], extra_ids: int, rules: bytes | None, reverse: bool
) -> sentencepiece.SentencePieceProcessor:
    """Returns the model at an address with sentinels and rules added; `version` is only a part of the cache's key."""
    data = content(address)
    if extra_ids or rules:
        model = parse_model(data)
        numbers = range(extra_ids)
        for number in reversed(numbers) if reverse else numbers:
            model.pieces.add(piece=f"▁<extra_id_{number}>", score=0.0, type=USER_DEFINED)
        if rules:
            model.normalizer_spec.MergeFromString(rules)
            model.denormalizer_spec.MergeFromString(rules)
        data = model.SerializeToString()
    tokenizer = sentencepiece.SentencePieceProcessor()
    tokenizer.LoadFromSerializedProto(data)
    return tokenizer


def parse_model(data: bytes) -> Any:
    """Returns SentencePiece's ModelProto of a model file's content."""
    from sentencepiece import sentencepiece_model_pb2

    return sentencepiece_model_pb2.ModelProto.FromString(data)  # pyright: ignore[reportAttributeAccessIssue]


class ByteVocabulary(Vocabulary):
    """The UTF-8 bytes of a text, from id 3 on, as ByT5 has them (Xue et al. 2022, arXiv:2105.13626).

    >>> ByteVocabulary(100).encode("ă"), ByteVocabulary(100).decode([199, 134, 358, 1, 100])
    ([199, 134], 'ă')
    """

    eos_id = 1
    unk_id = 2

    @property
    def _base_vocab_size(self) -> int:
        return NUM_SPECIALS + NUM_BYTES

    def encode(self, s: str | bytes) -> Sequence[int]:
        text = s.encode() if isinstance(s, str) else s
        return [byte + NUM_SPECIALS for byte in text]

    def _decode(self, ids: list[int]) -> str:
        text = bytes(number - NUM_SPECIALS for number in ids if NUM_SPECIALS <= number < NUM_SPECIALS + NUM_BYTES)
        return text.decode(errors="ignore")

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and self.extra_ids == other.extra_ids

    def __hash__(self) -> int:
        return hash(self.extra_ids)


def plain(vocabulary: Any) -> Any:
    """Returns our vocabulary for one of seqio's own classes, and any other vocabulary as it is."""
    if type(vocabulary).__module__ not in ("seqio.vocabularies", "limba.data.bridge.seqio_objects"):
        return vocabulary
    if isinstance(vocabulary, SentencePieceVocabulary):
        return SentencePieceVocabulary(
            vocabulary.sentencepiece_model_file,
            vocabulary.extra_ids,
            vocabulary._normalizer_spec_overrides,  # pyright: ignore[reportAttributeAccessIssue] seqio's name
            vocabulary._reverse_extra_ids,  # pyright: ignore[reportAttributeAccessIssue]
        )
    if isinstance(vocabulary, ByteVocabulary):
        return ByteVocabulary(vocabulary.extra_ids)
    return getattr(vocabulary, "ours", vocabulary)
