"""The ids with a role in a model: padding, start, ends, mask, the decoder's start, and what stands around a text.

A run of Limba, and one of T5X, has those of T5's layout: `of_run`. A folder for transformers says them in its files:
`limba.data.vocabulary.published` reads them in transformers' own order of precedence.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from limba.config import ModelConfig
from limba.data.vocabulary.load import Vocabulary, begin_id, known_mask_id

PADDING, START, END = 0, 0, 1  # of T5's layout


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
    unsupported: tuple[str, ...] = ()  # rules of generation_config.json that Limba does not have
    is_published: bool = False  # read from a folder for transformers; False: T5's layout, in which 0 is never text

    @property
    def end(self) -> int | None:
        """What a text ends with; None for a model without an end."""
        return self.ends[0] if self.ends else None

    @property
    def filling(self) -> int:
        """The id that stands behind the end of a written text, as in transformers: padding, else the end."""
        if self.padding is not None:
            return self.padding
        return self.ends[0] if self.ends else PADDING

    def framed(self, ids: Sequence[int], length: int | None = None, ends: bool = True) -> list[int]:
        """Returns a text's ids in the template, the text cut so that they are at most `length`.

        >>> SpecialIds(before=(5,), after=(1,)).framed([7, 8, 9], length=4)
        [5, 7, 8, 1]
        """
        after = self.after if ends else ()
        room = None if length is None else max(0, length - len(self.before) - len(after))
        return [*self.before, *ids[:room], *after]

    def target(self, ids: Sequence[int], is_decoder_only: bool, length: int | None = None, ends: bool = True) -> list[int]:
        """Returns a text's ids as what a model writes: ended exactly once; a T5's in its template.

        >>> SpecialIds(after=(1,)).target([7, 8], is_decoder_only=False)
        [7, 8, 1]
        """
        before = () if is_decoder_only else self.before
        after = self.after
        if self.end is not None and not (after and after[-1] in self.ends):
            after = (*after, self.end)
        if is_decoder_only:
            after = () if self.end is None else (self.end,)
        if not ends:
            after = ()
        room = None if length is None else max(0, length - len(before) - len(after))
        return [*before, *ids[:room], *after]


def of_run(vocabulary: Vocabulary | None, model: ModelConfig) -> SpecialIds:
    """Returns the ids of a model that Limba or T5X trained with this vocabulary.

    A language model's text begins with 0, which is padding too; a T5's ends with the end of sequence; an encoder's
    begins with <cls>, if the vocabulary has it, and ends as a T5's.
    """
    end = END if vocabulary is None or vocabulary.eos_id is None else int(vocabulary.eos_id)
    begin = None if vocabulary is None else begin_id(vocabulary)
    is_framed = model.is_encoder or (model.is_t5_encoder and model.has_own_head)
    before, after = (), (end,)
    if is_framed and begin is not None:
        before = (begin,)
    elif model.is_decoder_only and not model.is_encoder:
        before, after = (START,), ()
    return SpecialIds(
        ends=(end,),
        unknown=None if vocabulary is None else vocabulary.unk_id,
        mask=None if vocabulary is None or not is_framed else known_mask_id(vocabulary),
        separator=end if is_framed else None,
        before=before,
        after=after,
    )
