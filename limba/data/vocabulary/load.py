"""Opens a vocabulary and checks it: pad 0, end of sequence 1, unknown 2, sentinels counted down from the top.

Raffel et al. 2020 (arXiv:1910.10683, section 2.2): a SentencePiece unigram model and 100 sentinels above its pieces, of
which `<extra_id_0>` has the highest id. They are added when the model is loaded; mT5's published model, and others,
have them as their last pieces already.
"""

from __future__ import annotations

import logging
from typing import Any

from limba.config import InputError, require
from limba.data.vocabulary.addresses import address_of
from limba.data.vocabulary.files import content, is_folder
from limba.data.vocabulary.published import PublishedVocabulary, open_address
from limba.data.vocabulary.sentinels import SENTINEL, num_sentinels
from limba.data.vocabulary.shifted import StreamVocabulary, published_of
from limba.data.vocabulary.tokenizers import TokenizersVocabulary
from limba.data.vocabulary.vocabularies import ByteVocabulary, SentencePieceVocabulary, Vocabulary, parse_model

logger = logging.getLogger(__name__)

NUM_SENTINELS = 100
MOST_EXTRA_IDS = 100_000  # more than a row of any length has gaps
ROWS_MULTIPLE = 128


def load_vocabulary(path_or_byte: str, extra_ids: int = NUM_SENTINELS) -> Vocabulary:
    """Returns ByT5's byte vocabulary for 'byte', else the SentencePiece model, or tokenizer.json, at a path or address.

    For a folder for transformers, or a hub id, it is what transformers reads there. A model that has sentinels gets no
    others. Raises InputError for a file that is missing, unreadable, or not a SentencePiece model with pad 0 and an
    end-of-sequence piece.

    >>> load_vocabulary("byte").encode("ă"), load_vocabulary("byte").vocab_size
    ([199, 134], 359)
    """
    require(
        extra_ids <= MOST_EXTRA_IDS,
        "DataConfig.extra_ids",
        f"is {extra_ids:,}, and each is a row of the model's embedding; give at most {MOST_EXTRA_IDS:,}.",
    )
    if path_or_byte == "byte":
        return ByteVocabulary(extra_ids=extra_ids)
    if is_folder(path_or_byte):
        return open_address(path_or_byte)
    if path_or_byte.endswith(".json"):
        vocabulary = TokenizersVocabulary(path_or_byte)
        vocabulary.tokenizer  # noqa: B018  a wrong file is found now
        return vocabulary
    model = read_model(path_or_byte)
    num_inside = sum(1 for piece in model.pieces if SENTINEL.fullmatch(piece.piece))
    if num_inside and extra_ids:
        logger.info("%s has %d sentinels of its own; none are added.", path_or_byte, num_inside)
        extra_ids = 0
    vocabulary = SentencePieceVocabulary(path_or_byte, extra_ids=extra_ids)
    _check_layout(vocabulary, path_or_byte)
    return vocabulary


def check_vocabulary(vocabulary: Vocabulary, num_rows: int, needs_sentinels: bool = True) -> None:
    """Raises InputError for a vocabulary that cannot be trained with.

    That is one whose ids exceed the model's embedding rows, whose id 0 is not padding alone, or that lacks sentinels
    which are needed.
    """
    where = address_of(vocabulary) or "'byte'"
    if isinstance(vocabulary, SentencePieceVocabulary):
        read_model(where)
        _check_layout(vocabulary, where)
    if isinstance(vocabulary, TokenizersVocabulary) and not isinstance(vocabulary, PublishedVocabulary):
        _check_padding(vocabulary)
    check_rows(vocabulary, num_rows)
    if needs_sentinels and not num_sentinels(vocabulary):
        if isinstance(vocabulary, StreamVocabulary):
            raise InputError(
                f"The vocabulary {where} has 0 sentinels among its {published_of(vocabulary).vocab_size:,} ids, and the"
                " task's objective needs <extra_id_0>, <extra_id_1>, …; set DataConfig.objective to prefix_lm or"
                " lm_adaptation, or give a folder whose tokenizer has sentinels."
            )
        if isinstance(vocabulary, TokenizersVocabulary):
            raise InputError(
                f"The vocabulary {where} has no sentinels (<extra_id_0>, …), and a tokenizer.json gets none from"
                " DataConfig.extra_ids; add them to the file as special tokens, or set DataConfig.objective to"
                " prefix_lm or lm_adaptation."
            )
        raise InputError(
            f"The vocabulary {where} has no sentinels (<extra_id_0>, …); set DataConfig.vocabulary to its path with"
            f" DataConfig.extra_ids {NUM_SENTINELS}, or give the task's own vocabulary extra_ids={NUM_SENTINELS}.",
            fix=("DataConfig.extra_ids", NUM_SENTINELS),
        )


def _check_padding(vocabulary: TokenizersVocabulary) -> None:
    """Raises InputError for a tokenizer.json whose id 0 is not padding alone: 0 has no weight in training."""
    first = vocabulary.tokenizer.id_to_token(0)
    advice = "give one with a token for padding, such as <pad>, at id 0"
    if vocabulary.eos_id == 0:
        raise InputError(
            f"The vocabulary {vocabulary.path} has its end of sequence, {first!r}, at id 0, which is padding in"
            f" training, so a model would never learn to write it; {advice}."
        )
    added = vocabulary.tokenizer.get_added_tokens_decoder()
    if 0 not in added or not added[0].special:
        raise InputError(
            f"The vocabulary {vocabulary.path} has {first!r} at id 0, which must be padding for training; {advice}."
        )


def check_rows(vocabulary: Vocabulary, num_rows: int) -> None:
    """Raises InputError if the ids exceed the model's embedding rows."""
    where = address_of(vocabulary) or "'byte'"
    vocabulary = published_of(vocabulary)
    if vocabulary.vocab_size > num_rows and isinstance(vocabulary, PublishedVocabulary):
        raise InputError(
            f"The tokenizer of {where} has {vocabulary.vocab_size:,} ids, and the model {num_rows:,} rows; resize the"
            " model's embedding in transformers, or take the tokens without a row out of the tokenizer."
        )
    if vocabulary.vocab_size > num_rows:
        fitting = fitting_rows(vocabulary)
        raise InputError(
            f"The vocabulary {where} has {vocabulary.vocab_size} ids, sentinels included, and the model {num_rows}"
            f" rows; set ModelConfig.vocab_size to {fitting}, or take a smaller vocabulary.",
            fix=("ModelConfig.vocab_size", fitting),
        )


def fitting_rows(vocabulary: Vocabulary) -> int:
    """Returns the smallest multiple of 128 that is not below the number of ids."""
    return -(-vocabulary.vocab_size // ROWS_MULTIPLE) * ROWS_MULTIPLE


def read_model(path: str) -> Any:
    """Returns the parsed SentencePiece model; InputError if it is missing, unreadable or another file."""
    data = content(path)
    try:
        model = parse_model(data)
    except Exception:  # noqa: BLE001  protobuf's error is not public
        model = None
    if model is None or not len(model.pieces):
        raise InputError(f"The vocabulary {path} is not a SentencePiece model; give a .model file made by its trainer.")
    return model


def _check_layout(vocabulary: SentencePieceVocabulary, path: str) -> None:
    pieces = vocabulary.tokenizer
    if pieces.pad_id() != 0 or pieces.eos_id() < 0:
        raise InputError(
            f"The vocabulary {path} has padding at id {pieces.pad_id()} and end of sequence at {pieces.eos_id()}; "
            "T5 needs padding at 0 and an end of sequence; train one with pad_id=0, eos_id=1, unk_id=2."
        )
