"""The ids with a role in a model: padding, start, ends, mask, the decoder's start, and the ids around a text.

A run of Limba or T5X has the ids of T5's layout: `of_run`. A folder for transformers names them in its files,
which `of_folder` reads in transformers' own order of precedence; a run whose vocabulary is such a folder has these, and
`as_stream` gives its data stream a padding of its own.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol

from etils import epath

from limba.config import ConfigError, InputError, ModelConfig
from limba.data.vocabulary import generation_rules
from limba.data.vocabulary.published import PublishedVocabulary, open_folder
from limba.data.vocabulary.published_files import read_json
from limba.data.vocabulary.sentinels import begin_id, known_mask_id, sentinel_table
from limba.data.vocabulary.shifted import StreamVocabulary, published_of
from limba.data.vocabulary.vocabularies import Vocabulary

logger = logging.getLogger(__name__)

PADDING = 0
START = 0
END = 1  # of T5's layout
# What transformers 5.23 takes for ids that neither config.json nor generation_config.json names, by the kind of model.
_T5 = {"pad_token_id": 0, "eos_token_id": 1}
_DEFAULTS: Mapping[str, Mapping[str, int]] = {
    **dict.fromkeys(("t5", "mt5", "umt5"), _T5),
    "llama": {"bos_token_id": 1, "eos_token_id": 2},
    "gpt2": {"bos_token_id": 50256, "eos_token_id": 50256},
    "eurobert": {"pad_token_id": 128001, "mask_token_id": 128002},
    "modernbert": {"pad_token_id": 50283},
}
ENCODER_DECODERS = ("t5", "mt5", "umt5")
LANGUAGE_MODELS = ("llama", "gpt2")
ENCODERS = ("eurobert", "modernbert")
_ENCODER_OF_T5 = "EncoderModel"  # the end of its class's name


class Family(Protocol):
    """What the ids with a role depend on besides the files; ModelConfig and `Named` have it."""

    @property
    def vocab_size(self) -> int: ...
    @property
    def is_decoder_only(self) -> bool: ...
    @property
    def is_encoder(self) -> bool: ...
    @property
    def is_t5_encoder(self) -> bool: ...


class Named(NamedTuple):
    """The family of a model as its config.json names it."""

    vocab_size: int
    is_decoder_only: bool = False  # one stack, as `ModelConfig.is_decoder_only`
    is_encoder: bool = False
    is_t5_encoder: bool = False


@dataclass(frozen=True)
class SpecialIds:
    """The ids with a role in one model. The default is T5's layout without a vocabulary.

    None is a role that the model does not have. `ends` are all ids that end a text when the model writes it; the first
    one is what a text ends with when it is scored.
    """

    padding: int | None = PADDING
    start: int | None = START  # what a language model reads where a prompt is empty
    ends: tuple[int, ...] = (END,)
    unknown: int | None = None
    mask: int | None = None
    separator: int | None = None
    decoder_start: int = START  # the first input of a T5's decoder where its targets are given
    generation_start: int = START  # the same where it writes; a folder may say another one
    before: tuple[int, ...] = ()  # the template: what is put before a text …
    after: tuple[int, ...] = ()  # … and after it
    suppressed: tuple[int, ...] = ()  # are never written
    rules_file: str = "generation_config.json"  # which says how a text is written: this one, else config.json
    unsupported: tuple[str, ...] = ()  # its rules for the ids of a text that Limba does not have
    search: tuple[tuple[str, object], ...] = ()  # how it has a text searched for, where that is no default
    input_end: int | None = None  # of a language model that learned pairs: what stands between an input and its target
    is_published: bool = False  # read from a folder for transformers; False: T5's layout, in which 0 is never text

    @property
    def end(self) -> int | None:
        """What a text ends with; None for a model without an end."""
        return self.ends[0] if self.ends else None

    @property
    def no_repeat_ngram_size(self) -> int:
        """The size of n-grams of which none is written twice, as a folder asks for it; 0: any may be."""
        size = dict(self.search).get("no_repeat_ngram_size")
        return size if isinstance(size, int) and size > 0 else 0

    @property
    def first(self) -> int:
        """What a language model reads before the first token of a row: its template's first id, else start or end."""
        candidates = (*self.before, self.start, self.end, self.filling)
        return next(number for number in candidates if number is not None)

    @property
    def filling(self) -> int:
        """The id that fills a row after the end of a written text, as in transformers: padding, else the end."""
        if self.padding is not None:
            return self.padding
        return self.ends[0] if self.ends else PADDING

    @property
    def around(self) -> tuple[int, ...]:
        """The ids that are never text themselves: the template's, ends, separator and mask."""
        separator_and_mask = (number for number in (self.separator, self.mask) if number is not None)
        return (*self.before, *self.after, *self.ends, *separator_and_mask)

    def has_t5_layout(self, family: Family) -> bool:
        """Returns whether id 0 is padding and nothing else, and a decoder begins with it."""
        if self.padding != PADDING or PADDING in self.ends:
            return False
        if family.is_decoder_only:
            return family.is_encoder or self.start in (None, START)
        return family.is_t5_encoder or self.decoder_start == START

    def framed(self, ids: Sequence[int], length: int | None = None, ends: bool = True) -> list[int]:
        """Returns a text's ids in the template, the text cut so that they are at most `length`.

        >>> SpecialIds(before=(5,), after=(1,)).framed([7, 8, 9], length=4)
        [5, 7, 8, 1]
        """
        after = self.after if ends else ()
        room = None if length is None else max(0, length - len(self.before) - len(after))
        return [*self.before, *ids[:room], *after]

    def prompt(self, ids: Sequence[int], ends: bool = True) -> list[int]:
        """Returns a text's ids as a language model reads them before it writes.

        A model that learned pairs reads an input as its rows have it, with an end; any other one reads the template,
        without `ends` the part before the text alone.

        >>> SpecialIds(before=(0,)).prompt([7, 8]), SpecialIds(before=(0,), input_end=1).prompt([7, 8])
        ([0, 7, 8], [0, 7, 8, 1])
        """
        if self.input_end is not None:
            return [*self.before, *ids, self.input_end]
        return self.framed(ids, ends=ends)

    @property
    def end_of_row(self) -> int | None:
        """The id with which the data stream ends a language model's inputs and its targets."""
        ids = self.target([])[len(self.before) :]
        return ids[-1] if ids else None

    def target(
        self, ids: Sequence[int], length: int | None = None, ends: bool = True, follows: bool = False
    ) -> list[int]:
        """Returns a text's ids as what a model writes: in the template, and ended exactly once.

        With `follows` they go on with what a language model has read, and do not begin anew.

        >>> SpecialIds(before=(5,)).target([7, 8]), SpecialIds(before=(5,)).target([7, 8], follows=True)
        ([5, 7, 8, 1], [7, 8, 1])
        """
        before = () if follows else self.before
        after = () if follows else self.after
        if self.end is not None and not (after and after[-1] in self.ends):
            after = (*after, self.end)
        if not ends:
            after = ()
        room = None if length is None else max(0, length - len(before) - len(after))
        return [*before, *ids[:room], *after]


def of_run(vocabulary: Vocabulary | None, model: ModelConfig) -> SpecialIds:
    """Returns the ids of a model that Limba or T5X trained with this vocabulary.

    For a run whose vocabulary is a folder for transformers they are the folder's; how a text is searched for is the
    run's own choice.
    """
    published = None if vocabulary is None else published_of(vocabulary)
    if isinstance(published, PublishedVocabulary):
        return replace(of_folder(published.folder, published, model), search=())
    if model.is_encoder:
        return of_encoder(vocabulary)
    end = _end_of(vocabulary)
    unknown = None if vocabulary is None else vocabulary.unk_id
    if model.is_decoder_only:  # a text begins with 0, which is padding too
        return SpecialIds(ends=(end,), unknown=unknown, before=(START,))
    return SpecialIds(ends=(end,), unknown=unknown, after=(end,))


def of_encoder(vocabulary: Vocabulary | None) -> SpecialIds:
    """Returns the ids of our encoder: a text begins with <cls>, if the vocabulary has it, and ends as a T5's does."""
    end = _end_of(vocabulary)
    if vocabulary is None:
        return SpecialIds(ends=(end,), separator=end, after=(end,))
    begin = begin_id(vocabulary)
    before = () if begin is None else (begin,)
    roles = {"unknown": vocabulary.unk_id, "mask": known_mask_id(vocabulary), "separator": end}
    return SpecialIds(ends=(end,), before=before, after=(end,), **roles)


def _end_of(vocabulary: Vocabulary | None) -> int:
    return END if vocabulary is None or vocabulary.eos_id is None else int(vocabulary.eos_id)


def of_folder(folder: epath.Path, vocabulary: Vocabulary | None, model: ModelConfig | Named) -> SpecialIds:
    """Returns the ids of a folder for transformers; `vocabulary` is its own, another one that was given, or None.

    generation_config.json, or config.json where that file is missing, says what is written, and with which ids it
    begins and ends; config.json says the first input of a decoder whose targets are given; the tokenizer says what
    stands around a text. With another vocabulary the text is framed as in T5's layout. Raises InputError for ids
    without a row in the model's embedding.
    """
    config = read_json(folder, "config.json") or {}
    generation = read_json(folder, "generation_config.json")
    defaults = _DEFAULTS.get(str(config.get("model_type")), {})
    of_config = _Ids(config, defaults, f"{folder}/config.json", model.vocab_size)
    of_generation = of_config
    if generation is not None:
        of_generation = _Ids(generation, {}, f"{folder}/generation_config.json", model.vocab_size)
    ends = of_generation.several("eos_token_id")
    padding = of_config.one("pad_token_id")
    start = of_generation.one("bos_token_id")
    decoder_start, generation_start = _decoder_starts(folder, of_config, of_generation, model)
    before: tuple[int, ...] = ()
    after: tuple[int, ...] = ()
    roles: Mapping[str, int] = {}
    if isinstance(vocabulary, PublishedVocabulary):
        before, after = vocabulary.template
        roles = {role: number for role, number in vocabulary.ids.items() if number < model.vocab_size}
    elif vocabulary is not None and isinstance(model, ModelConfig):
        of_layout = of_run(vocabulary, model)
        before = of_layout.before
        after = of_layout.after
        if before == (START,) and start is not None:
            before = (start,)
        if model.is_encoder:
            ends = of_layout.ends
    end = roles.get("eos_token")
    if end in ends:
        ends = (end, *(number for number in ends if number != end))
    mask = of_config.one("mask_token_id")
    if isinstance(vocabulary, PublishedVocabulary):
        mask = roles.get("mask_token", mask)
    elif vocabulary is not None:
        mask = known_mask_id(vocabulary)
    rules = of_generation.content
    return SpecialIds(
        padding=padding,
        start=start,
        ends=ends,
        unknown=roles.get("unk_token"),
        mask=mask,
        separator=roles.get("sep_token"),
        decoder_start=decoder_start,
        generation_start=generation_start,
        before=before,
        after=after,
        suppressed=of_generation.several("suppress_tokens"),
        rules_file=of_generation.file,
        unsupported=generation_rules.refused(rules),
        search=generation_rules.of_search(rules),
        is_published=True,
    )


def _decoder_starts(folder: epath.Path, of_config: _Ids, of_generation: _Ids, model: Family) -> tuple[int, int]:
    """Returns the first input of a decoder whose targets are given, and of one that writes; START without a decoder."""
    first = of_config.one("decoder_start_token_id")
    first_written = of_generation.one("decoder_start_token_id")
    start = of_generation.one("bos_token_id")
    has_decoder = not (model.is_decoder_only or model.is_t5_encoder)
    if has_decoder and first is None:
        first = first_written
        origin = "from generation_config.json"
        if first is None:
            first = of_config.one("pad_token_id")
            origin = "padding"
        if first is None:
            raise InputError(f"{folder}/config.json has no decoder_start_token_id, which a T5 needs; add it there.")
        logger.info("%s/config.json has no decoder_start_token_id; it is taken as %d, %s.", folder, first, origin)
    if first_written is None:
        first_written = first if start is None else start
    return START if first is None else first, START if first_written is None else first_written


def family_of(folder: epath.Path) -> Named:
    """Returns the family that a folder's config.json names; InputError for one that Limba does not train."""
    config = read_json(folder, "config.json") or {}
    kind = str(config.get("model_type"))
    num_rows = config.get("vocab_size")
    if kind not in (*ENCODER_DECODERS, *LANGUAGE_MODELS, *ENCODERS) or not isinstance(num_rows, int):
        known = ", ".join((*ENCODER_DECODERS, *LANGUAGE_MODELS, *ENCODERS))
        raise InputError(
            f"{folder}/config.json describes a {kind!r} of {num_rows!r} ids, and a folder that is a run's vocabulary"
            f" has one of {known}; give the path of its tokenizer.json.",
            field="DataConfig.vocabulary",
        )
    if kind in ENCODER_DECODERS:
        classes = config.get("architectures") or ()
        return Named(num_rows, is_t5_encoder=any(str(name).endswith(_ENCODER_OF_T5) for name in classes))
    return Named(num_rows, is_decoder_only=True, is_encoder=kind in ENCODERS)


def as_stream(vocabulary: Vocabulary) -> Vocabulary:
    """Returns a vocabulary as the data stream reads it: a folder's with 0 as padding alone, any other as it is.

    A corpus must not be able to end a document, so the stream reads the name of a special token as plain text.
    """
    if not isinstance(vocabulary, PublishedVocabulary):
        return vocabulary
    family = family_of(vocabulary.folder)
    special = of_folder(vocabulary.folder, vocabulary, family)
    trained = open_folder(vocabulary.folder)
    trained.tokenizer.encode_special_tokens = True
    end = () if special.end is None else (special.end,)
    begins = special.before
    ends = special.after or end
    start = special.decoder_start
    if family.is_decoder_only:
        start = special.first
        if not family.is_encoder:
            ends = tuple(special.target([])[len(special.before) :])
    elif end:
        ends = end  # of the inputs and of what the model writes
    padding = vocabulary.pad_id
    is_padding_text = padding is not None and trained.is_piece(padding)
    if padding is not None and is_padding_text:
        trained.split_at_name_of(padding)
    is_padding_alone = not is_padding_text and _is_padding_alone(vocabulary, special, family, start)
    offset = 0 if is_padding_alone else 1
    if not offset and family.is_decoder_only and not family.is_encoder:
        begins = ()  # a row's start is its padding
    return StreamVocabulary(
        published=vocabulary,
        trained=trained,
        special=special,
        address=vocabulary.address,
        offset=offset,
        begins=begins,
        ends=ends,
        start=start,
        is_one_sequence=family.is_decoder_only,
        never_text=_never_text(vocabulary, special, family, is_padding_text),
    )


def _never_text(
    vocabulary: PublishedVocabulary, special: SpecialIds, family: Family, is_padding_text: bool
) -> frozenset[int]:
    """Returns the ids as which no text is read: special tokens, a T5's sentinels, and those with a role.

    The unknown piece is one of them only where it is put around a text too, as GPT-2's end does. So it is with a piece
    of text that a folder names as its padding, such as "!".
    """
    added = vocabulary.tokenizer.get_added_tokens_decoder().items()
    never_text = {number for number, token in added if token.special}
    never_text |= {*vocabulary.ids.values()}
    if not family.is_decoder_only:
        never_text |= {*sentinel_table(vocabulary)}
    text = {vocabulary.unk_id, vocabulary.pad_id if is_padding_text else None}
    return frozenset((never_text - text) | {*special.around})


def _is_padding_alone(vocabulary: PublishedVocabulary, special: SpecialIds, family: Family, start: int) -> bool:
    """Returns whether id 0 is a padding token that no row has as text: T5's layout."""
    added = vocabulary.tokenizer.get_added_tokens_decoder()
    is_special_token = PADDING in added and added[PADDING].special
    if not is_special_token or not special.has_t5_layout(family):
        return False
    text = {*special.ends, *special.after, special.unknown, special.mask}
    if family.is_encoder:
        return PADDING not in (*text, *special.before)
    return PADDING not in text and start == START and special.before in ((), (START,))


def check_family(vocabulary: Vocabulary, model: ModelConfig) -> None:
    """Raises InputError for a run whose vocabulary is the folder of another family, or names no end of a text."""
    if not isinstance(vocabulary, StreamVocabulary):
        return
    published = vocabulary.published
    family = family_of(published.folder)
    if (family.is_decoder_only, family.is_encoder) != (model.is_decoder_only, model.is_encoder):
        raise ConfigError(
            "DataConfig.vocabulary",
            f"is {vocabulary.address}, the folder of {_in_words(family)}, and the run trains {_in_words(model)}; give"
            " the path of its tokenizer.json, or set ModelConfig to that network.",
        )
    if vocabulary.eos_id is None:
        raise InputError(
            f"The vocabulary {vocabulary.address} names no end of a text (eos_token) among its"
            f" {published.vocab_size:,} ids, and training ends each text with it; name one in its"
            " tokenizer_config.json."
        )


def _in_words(family: Family) -> str:
    if not family.is_decoder_only:
        return "an encoder-decoder"
    return "an encoder" if family.is_encoder else "a language model"


@dataclass(frozen=True)
class _Ids:
    """The ids that a file names, else a class of transformers."""

    content: Mapping[str, Any]
    defaults: Mapping[str, int]
    file: str  # for messages
    num_rows: int

    def one(self, key: str) -> int | None:
        """Returns the id of a key; None if there is none, and for a default that has no row in the model."""
        number = self.content.get(key, self.defaults.get(key))
        if number is None:
            return None
        if not self._is_id(number):
            if key not in self.content or key in ("pad_token_id", "bos_token_id"):
                return None  # it is never read, or only where a prompt is empty
            self._refuse(key, number)
        return int(number)

    def several(self, key: str) -> tuple[int, ...]:
        """Returns the ids of a key that has one id or a list, without ids that the model cannot write."""
        value = self.content.get(key, self.defaults.get(key))
        if value is None:
            return ()
        numbers = value if isinstance(value, list) else [value]
        for number in numbers:
            if not isinstance(number, int) or isinstance(number, bool):
                self._refuse(key, value)
        return tuple(number for number in numbers if self._is_id(number))

    def _is_id(self, number: object) -> bool:
        return isinstance(number, int) and not isinstance(number, bool) and 0 <= number < self.num_rows

    def _refuse(self, key: str, value: object) -> None:
        raise InputError(f"{self.file} has {key} {value!r}, and the model has {self.num_rows} rows; correct it there.")
