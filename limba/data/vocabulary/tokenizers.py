"""The vocabulary of a Hugging Face `tokenizer.json`: byte-level BPE and whatever else `tokenizers` reads."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from limba.config import InputError, reason_of
from limba.data.vocabulary.files import content
from limba.data.vocabulary.vocabularies import Vocabulary

if TYPE_CHECKING:
    import tokenizers

# Names by which a role is found: the first one that exists, see `_first`.
ENDS = ("</s>", "<|endoftext|>", "[SEP]", "<sep>", "<eos>")  # of sequence
UNKNOWN = ("<unk>", "[UNK]")
MASKS = ("<mask>", "[MASK]", "<|mask|>")  # of XLM-R, BERT and EuroBERT
BEGINS = ("<cls>", "[CLS]")
PADDING = ("<pad>", "[PAD]")
BYTE = re.compile(r"<0x[0-9A-F]{2}>")
SPACE = "\u2581"  # SentencePiece's character for a space
SENTINEL = re.compile(rf"{SPACE}?<extra_id_(\d+)>")


class TokenizersVocabulary(Vocabulary):
    """The vocabulary of a tokenizer.json at a local path or address (gs://, hf://), read on first use, for training.

    In a text, the name of a special token is plain text: a corpus must not be able to end a document. Where it is a
    piece too, as in a T5's file, that piece is read as unknown. The tokenizer of a published model is opened by
    `published.PublishedVocabulary`, which reads such a name as that token.
    Raises InputError on first use if the file is missing, is not a tokenizer, or has no special end of sequence.

    >>> from tokenizers import Tokenizer, models, pre_tokenizers
    >>> tokenizer = Tokenizer(models.WordLevel({"</s>": 0, "god": 1, "dag": 2}))
    >>> tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    >>> _ = tokenizer.add_special_tokens(["</s>"])
    >>> tokenizer.save("tokenizer.json")
    >>> vocabulary = TokenizersVocabulary("tokenizer.json")
    >>> vocabulary.encode("god dag"), vocabulary.eos_id
    ([1, 2], 0)
    """

    def __init__(self, path: str):
        super().__init__(extra_ids=0)
        self.path = path

    @functools.cached_property
    def tokenizer(self) -> tokenizers.Tokenizer:
        import tokenizers

        data = content(self.path)
        try:
            text = data.decode()
            tokenizer = tokenizers.Tokenizer.from_str(text)
        except BaseException as error:
            if not is_of_library(error):
                raise
            raise InputError(
                f"The vocabulary {self.path} is not a tokenizer.json ({reason_of(error)}); give the path of one."
            ) from None
        tokenizer.no_truncation()
        tokenizer.no_padding()
        tokenizer.encode_special_tokens = True
        return tokenizer

    @functools.cached_property
    def special_ids(self) -> frozenset[int]:
        """The ids of special tokens, including sentinels but not the end of sequence."""
        added = self.tokenizer.get_added_tokens_decoder().items()
        ids = {number for number, token in added if token.special}
        return frozenset(ids - {self.eos_id})

    @functools.cached_property
    def eos_id(self) -> int:
        end = self._first(ENDS)
        if end is None:
            raise InputError(
                f"The vocabulary {self.path} has no end of sequence; give one that has {' or '.join(ENDS)}."
            )
        token = self.tokenizer.get_added_tokens_decoder().get(end)
        if token is not None and not token.special:
            raise InputError(
                f"The vocabulary {self.path} has its end of sequence, {token.content!r}, among its added tokens with"
                ' "special": false, so a text with that name would end there; set "special" to true in the file.'
            )
        return end

    @functools.cached_property
    def unk_id(self) -> int | None:
        return self._first(UNKNOWN)

    def _first(self, names: Iterable[str]) -> int | None:
        """Returns the id of the first of these names that exists, None if none does.

        An added token that is not special counts last: Gemma's file has </s> as a tag of HTML.
        """
        added = self.tokenizer.get_added_tokens_decoder()
        ordinary = None
        for name in names:
            number = self.tokenizer.token_to_id(name)
            if number is None:
                continue
            if number not in added or added[number].special:
                return number
            if ordinary is None:
                ordinary = number
        return ordinary

    @functools.cached_property
    def _with_a_role(self) -> frozenset[int]:
        """The ids as which no text is read: the end, padding, a start, a mask and sentinels.

        Other special tokens may be pieces of text, such as a line's end.
        """
        ids = set[int]()
        for name, number in self.tokenizer.get_vocab(with_added_tokens=True).items():
            if name in (*PADDING, *BEGINS, *MASKS) or SENTINEL.fullmatch(name):
                ids.add(number)
        end = self._first(ENDS)
        if end is not None:
            ids.add(end)
        return frozenset(ids - {self.unk_id})

    def piece_bytes(self) -> list[bytes]:
        """Returns the UTF-8, or part of it, of each id; b"" for special tokens."""
        state = json.loads(self.tokenizer.to_str())
        is_byte_level = '"ByteLevel"' in json.dumps([state.get("pre_tokenizer"), state.get("decoder")])
        added = {token["id"] for token in state["added_tokens"]}  # plain text, also beside byte-level pieces
        pieces = [b""] * self.vocab_size
        bytes_of = byte_of_letter()
        for token, number in self.tokenizer.get_vocab(with_added_tokens=True).items():
            if number in self.special_ids or number == self.eos_id:
                continue
            # A reserved piece may have letters that stand for no byte: no text is tokenized into it.
            if is_byte_level and number not in added and all(letter in bytes_of for letter in token):
                pieces[number] = bytes(bytes_of[letter] for letter in token)
            elif BYTE.fullmatch(token):
                pieces[number] = bytes([int(token[3:5], 16)])
            else:
                pieces[number] = token.replace(SPACE, " ").encode()
        return pieces

    def is_piece(self, number: int) -> bool:
        """Returns whether text is cut into this token, also where the name of a special token is plain text.

        A token such as <pad> may stand among the pieces too: no merge of BPE gives it, and SentencePiece has no
        probability of it, but 0.0 instead of a logarithm below 0.
        """
        name = self.tokenizer.id_to_token(number)
        model = json.loads(self.tokenizer.to_str())["model"]
        if name is None:
            return False
        if model["type"] == "BPE":
            merges = ("".join(pair) if isinstance(pair, list) else pair.replace(" ", "") for pair in model["merges"])
            return name in model["vocab"] and (len(name) == 1 or name in merges)
        if model["type"] == "Unigram":
            return any(piece == name and score < 0 for piece, score in model["vocab"])
        return name in model["vocab"] and number in self.encode(name)

    def begins_word(self) -> list[bool]:
        """Returns whether each id's piece begins a word, none where the pieces do not say it.

        WordPiece marks the pieces that go on with one; other pieces begin one where they begin with white space. What
        is a token beside the pieces begins none.
        """
        model = json.loads(self.tokenizer.to_str())["model"]
        added = self.tokenizer.get_added_tokens_decoder()
        begins_words = [False] * self.vocab_size
        if model.get("end_of_word_suffix"):  # which marks where a word ends
            return begins_words
        if model["type"] == "WordPiece":
            continues = model["continuing_subword_prefix"]
            for piece, number in model["vocab"].items():
                begins_words[number] = not piece.startswith(continues) and number not in added
            if self.unk_id is not None:  # a word that is not known
                begins_words[self.unk_id] = True
            return begins_words
        for number, text in enumerate(self.piece_bytes()):
            begins_words[number] = text[:1].isspace() and number not in added
        return begins_words

    @property
    def _base_vocab_size(self) -> int:
        return max(self.tokenizer.get_vocab(with_added_tokens=True).values()) + 1

    def encode(self, s: str) -> Sequence[int]:
        return self.without_roles(ids_of(self.tokenizer, s, self.path))

    def without_roles(self, ids: Sequence[int]) -> Sequence[int]:
        """Returns the ids of a text with the unknown piece in place of each one that has a role.

        A model may have the name of a special token, such as </s> or <extra_id_0>, as a piece: so T5's have.
        """
        if self._with_a_role.isdisjoint(ids):
            return ids
        instead = [] if self.unk_id is None else [self.unk_id]
        replaced = list[int]()
        for number in ids:
            if number in self._with_a_role:
                replaced += instead
            else:
                replaced.append(number)
        return replaced

    def _decode(self, ids: list[int]) -> str:
        return self.tokenizer.decode(ids, skip_special_tokens=True)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TokenizersVocabulary) and self.path == other.path

    def __hash__(self) -> int:
        return hash(self.path)


def ids_of(tokenizer: tokenizers.Tokenizer, text: str, where: str) -> Sequence[int]:
    """Returns the ids of a text without the template; InputError for a text that the tokenizer at `where` cannot read.

    Such is a letter without a piece where the model has no unknown piece either, and half of a surrogate pair.
    """
    try:
        return tokenizer.encode(text, add_special_tokens=False).ids
    except BaseException as error:
        if not is_of_library(error):
            raise
        unread = _unread_letter(tokenizer, text)
        what = f"the text {text[:60]!r}" if unread is None else f"the letter {unread!r} of a text"
        raise InputError(
            f"The tokenizer {where} cannot read {what} ({reason_of(error)}); give a tokenizer with an unknown piece for"
            " what it does not know, or text without it."
        ) from error


def _unread_letter(tokenizer: tokenizers.Tokenizer, text: str) -> str | None:
    """Returns the first letter of a text that a tokenizer cannot read alone; None if it reads each."""
    for letter in dict.fromkeys(text):
        try:
            tokenizer.encode(letter, add_special_tokens=False)
        except BaseException as error:
            if not is_of_library(error):
                raise
            return letter
    return None


def is_of_library(error: BaseException) -> bool:
    """Returns whether `tokenizers` may have raised this: it has no error of its own, and a panic isn't an Exception.

    >>> is_of_library(ValueError()), is_of_library(KeyboardInterrupt())
    (True, False)
    """
    return isinstance(error, Exception) or type(error).__name__ == "PanicException"


@functools.cache
def byte_of_letter() -> dict[str, int]:
    """Returns the byte that each character of a byte-level vocabulary stands for.

    Latin-1's visible characters stand for their own bytes; characters from U+0100 on stand for the other bytes (Radford
    et al. 2019).

    >>> byte_of_letter()["A"], byte_of_letter()["Ġ"]
    (65, 32)
    """
    visible = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in visible]
    letters = {chr(byte): byte for byte in visible}
    for index, byte in enumerate(others):
        letters[chr(0x100 + index)] = byte
    return letters
