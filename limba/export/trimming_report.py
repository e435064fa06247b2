"""What trimming a vocabulary has done to a model and to a text: counts, examples, and the sentences about them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from limba.data.vocabulary.load import ROWS_MULTIPLE
from limba.data.vocabulary.piece_table import PieceTable
from limba.data.vocabulary.pieces import Pieces, few, spells_bytes
from limba.data.vocabulary.spelling import piece_texts
from limba.data.vocabulary.trimmed_files import Kept
from limba.data.vocabulary.vocabularies import Vocabulary

LOW_COVERAGE = 0.9  # below this share of its tokens a text is probably in another language
NUM_EXAMPLES = 8
NUM_PIECES_SHOWN = 6  # of an example's text as it is cut now


@dataclass
class Coverage:
    """How much of a text's tokens stays: counts under the old vocabulary, and examples of what changes."""

    documents: int = 0
    tokens: int = 0
    tokens_now: int = 0
    kept: int = 0  # tokens whose pieces are kept
    lost: int = 0  # tokens that were single bytes of a letter, or unknown, before anything was trimmed
    fell: int = 0  # tokens that are single bytes or unknown now, and were neither before
    examples: list[str] = field(default_factory=list)

    @property
    def kept_share(self) -> float:
        return self.kept / max(self.tokens, 1)

    @property
    def covered_share(self) -> float:
        """The share of tokens that are pieces of the vocabulary, and are kept."""
        return (self.kept - self.lost) / max(self.tokens, 1)


@dataclass(frozen=True)
class Trimmed:
    """What trimming has made of a model."""

    output: str
    rows_before: int
    rows: int
    needed: int  # ids that the text needs, with those that always stay
    parameters_before: int
    parameters: int
    coverage: Coverage
    same: int  # documents that were compared and have the same pieces as before
    note: str = ""  # what became of the optimizer

    @property
    def text(self) -> str:
        """The report, in lines."""
        coverage = self.coverage
        lines = [
            f"{self.output}: {self.rows:,} of {self.rows_before:,} rows ({self.needed:,} are needed; the others fill"
            f" up to a multiple of {ROWS_MULTIPLE}), {self.parameters:,} of {self.parameters_before:,} parameters",
            f"{self.same:,} documents whose pieces are all kept: split into the same pieces as before",
        ]
        if coverage.tokens:
            lines.append(
                f"held-out text: {coverage.documents:,} documents, {coverage.kept_share:.3%} of {coverage.tokens:,}"
                f" tokens are kept pieces; {coverage.tokens_now:,} tokens now, of which {coverage.fell:,} fell to"
                " single bytes or unknown"
            )
            lines += [f"    {example}" for example in coverage.examples]
        else:
            lines.append("no text was held out, so nothing is known of other text: give more documents")
        if self.note:
            lines.append(self.note)
        return "\n".join(lines)

    @property
    def warning(self) -> str:
        """A sentence about held-out text that the kept pieces do not fit; "" where they do."""
        coverage = self.coverage
        if not coverage.tokens or coverage.covered_share >= LOW_COVERAGE:
            return ""
        examples = f": {'; '.join(coverage.examples)}" if coverage.examples else ""
        return (
            f"only {coverage.covered_share:.1%} of the held-out text's tokens are pieces that are kept; the others are"
            " single bytes, unknown, or gone, so the text may be in another language than the model's or than the text"
            f" to keep{examples}."
        )


def coverage_of(pieces: Pieces, now: Vocabulary, kept: Kept, texts: Sequence[bytes]) -> Coverage:
    """Returns how much of some texts stays; `pieces` are the old vocabulary's, and `now` is the new one."""
    before = pieces.vocabulary
    says_no_text = {number for number, is_byte in enumerate(spells_bytes(before)) if is_byte}
    if before.unk_id is not None:
        says_no_text.add(before.unk_id)
    new_says_no_text = {kept.new[number] for number in says_no_text if number in kept.new}
    coverage = Coverage()
    gone = Counter[int]()
    lost = Counter[int]()
    for text in texts:
        ids = before.encode(text.decode())
        new_ids = now.encode(text.decode())
        lost_ids = [number for number in ids if number in says_no_text]
        new_lost = sum(number in new_says_no_text for number in new_ids)
        coverage.documents += 1
        coverage.tokens += len(ids)
        coverage.tokens_now += len(new_ids)
        coverage.kept += sum(number in kept.new for number in ids)
        coverage.lost += len(lost_ids)
        coverage.fell += max(0, new_lost - len(lost_ids))
        gone.update(number for number in ids if number not in kept.new)
        lost.update(lost_ids)
    coverage.examples = _examples(before, now, gone, lost)
    return coverage


def _examples(before: Vocabulary, now: Vocabulary, gone: Counter[int], lost: Counter[int]) -> list[str]:
    """Returns the most frequent pieces that are gone, each with what it is cut into now, then bytes and unknowns."""
    spelled = piece_texts(before, before.vocab_size)
    old_names = PieceTable(before)
    new_names = PieceTable(now)
    examples = []
    for number, count in gone.most_common(NUM_EXAMPLES):
        text = spelled[number].decode(errors="replace")
        cut: list[str] = []
        if "\ufffd" not in text:  # else the piece is only a part of a letter
            cut = [new_names.name(int(new)) for new in now.encode(text)]
        examples.append(f"{text!r} ({count} times) is now {few(cut, NUM_PIECES_SHOWN) or 'other pieces'}")
    for number, count in lost.most_common(max(0, NUM_EXAMPLES - len(examples))):
        examples.append(f"{old_names.name(number)!r} {count} times")
    return examples
