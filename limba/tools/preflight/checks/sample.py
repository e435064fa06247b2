"""A sample of a task's text: what it is made of, what a vocabulary makes of it, and one example with its gaps."""

from __future__ import annotations

import dataclasses
import io
import itertools
import math
import os
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import sentencepiece

from limba.api import PieceTable, RunData, Task, find_tool
from limba.config import Fix, Open, RunConfig
from limba.tools.preflight.checks.markup import without_tags
from limba.tools.preflight.checks.scripts import FEW_WORDS, SCRIPTS, other_scripts
from limba.tools.preflight.checks.verdict import Data, Line

SAMPLE_BYTES = 1_500_000
SEPARATOR = "\0"  # between the texts of a row of several columns
# Shares of the letters that a vocabulary cannot spell, from which on there is a finding.
LOST = 0.001  # a warning
UNUSABLE = 0.05  # an error
# Shares from which on there is a warning.
IN_BYTES = 0.05  # of the tokens, that are single bytes
MARKUP = 0.05  # of the texts, that are raw HTML
OTHER_SCRIPT = 0.2  # of the documents, that are in another script
CUT = 0.1  # of the examples, that are cut
# A small vocabulary made of the text itself, to compare the run's with.
FERTILE = 1.2  # times its tokens, from which on there is a warning
SMALL_VOCABULARY = 2_000  # pieces
LEAST_LEARNED = 50_000  # bytes of text, below which none is made
SENTENCE = 4_000  # letters of a document that it learns from
# How much is looked at, and shown.
ROUND_TRIPS = 100  # documents that are encoded and decoded again
PAIRS = 256  # examples whose lengths are compared with a row's
WHOLE = 1 << 13  # a length that cuts none of them
EXAMPLE_LETTERS = 300
SHOWN = 40  # letters of a text that is raw HTML


def sampled(config: RunConfig, part: Task) -> Any:
    """Returns what the corpus tool finds in a sample of a task's text; None without the tool.

    InputError if the text cannot be read.
    """
    inspection = find_tool("sample")
    if inspection is None:
        return None
    data = config.data
    is_one_sequence = data.sequence_length is not None
    length = data.sequence_length or data.task_feature_lengths["inputs"]
    return inspection.inspect_task(part, data.train_split, length, SAMPLE_BYTES, data.seed, is_one_sequence)


def of_documents(sample: Any, data: Data) -> Iterator[Line]:
    """Yields what the sample's documents are: their number, sizes, encoding and repetitions."""
    said = sample.figures()
    sizes = np.array([len(text) for text in sample.documents])
    columns = ", ".join(sample.columns)
    data |= {
        "columns": list(sample.columns),
        "documents": len(sample.documents),
        "bytes_per_document": float(sizes.mean()),
        "tokens_per_document": float(sample.document_tokens.mean()),
        "tokens_per_byte": sample.fertility.tokens_per_byte,
    }
    yield Line("ok", f"Column {columns}; a sample of {said['sample']}.")
    spread = f"median {np.median(sizes):,.0f}, mean {sizes.mean():,.0f}, longest {sizes.max():,}"
    tokens = "; ".join(f"{name}: {text}" for name, text in said.items() if name.startswith("tokens "))
    yield Line("ok", f"Bytes per document: {spread}; {tokens}.")


def rows_of(documents: Sequence[bytes], num_texts: int) -> list[str]:
    """Returns each row as one text; the documents are its `num_texts` columns, one row after the other."""
    texts = [document.decode() for document in documents]
    return [SEPARATOR.join(texts[first : first + num_texts]) for first in range(0, len(texts), num_texts)]


def of_text(config: RunConfig, part: Task, sample: Any, data: Data, has_vocabulary: bool) -> Iterator[Line]:
    """Yields what is wrong with the sample's text, and how the vocabulary encodes it."""
    texts = [document.decode() for document in sample.documents]
    visible = [without_tags(text) for text in texts]
    tagged = [text for text, rest in zip(texts, visible, strict=True) if rest != text]
    share = len(tagged) / len(texts)
    data["markup_share"] = share
    is_html = share >= MARKUP and not data.get("few_documents")
    if is_html:
        sentence = f"{share:.1%} of the sampled texts are raw HTML: {tagged[0].strip()[:SHOWN]!r}."
        fix = "take the text out of its HTML, as datatrove's Trafilatura does in examples/prepare_with_datatrove.py"
        yield Line("warning", sentence, fix, "markup")
    yield from _of_script(config, rows_of(sample.documents, len(sample.columns)), data)
    if not has_vocabulary:
        return
    documents = [text.encode() for text in visible if text]
    tool = find_tool("sample")
    if is_html and documents and tool is not None:
        # Raw HTML is one finding; without its tags, their letters do not make a second one about the vocabulary.
        counted = tool.fertility(documents, sample.vocabulary)
        sample = dataclasses.replace(sample, documents=documents, fertility=counted)
    yield from of_pieces(config, sample, data)


def _of_script(config: RunConfig, rows: Sequence[str], data: Data) -> Iterator[Line]:
    """Yields a warning where many documents are in a script in which the run's language is not written."""
    codes = config.card.language
    if not codes:
        return
    others = other_scripts([row.replace(SEPARATOR, " ") for row in rows], codes)
    share = others.total() / len(rows)
    data["other_script_share"] = share
    if share < OTHER_SCRIPT:
        return
    script = others.most_common(1)[0][0]
    named = ",".join(codes)
    sentence = f"{share:.0%} of the sampled documents are not in a script of CardConfig.language {named!r}"
    sentence += f", most of these in {script.capitalize()}."
    language: str | Open
    if script == "LATIN":  # which so many languages use that none can be proposed
        language = Open("the code of the text's language")
    elif share <= 1 - OTHER_SCRIPT:  # the rest of the text is in the run's own language
        language = f"{named},{SCRIPTS[script][0]}"
    else:
        language = SCRIPTS[script][0]
    yield Line("warning", sentence, ("CardConfig.language", language), "another-script")


def of_cuts(config: RunConfig, part: Task, rows: Sequence[str], lengths: Mapping[str, int]) -> Iterator[Line]:
    """Yields the share of pairs that are longer than a row, and cut; nothing of a task that divides long texts."""
    run = RunData(config.data, part)
    if not run.has_pairs or not lengths:
        return
    documents = [row.encode() for row in rows[:PAIRS]]

    def sizes(lengths: Mapping[str, int]) -> dict[str, np.ndarray]:
        examples = list(run.examples(documents, lengths, config.data.train_split, config.data.seed))
        return {name: np.array([len(example[name]) for example in examples]) for name in lengths}

    whole = sizes(dict.fromkeys(lengths, WHOLE))
    shares = {name: (size > lengths[name]).mean() for name, size in whole.items()}
    if max(shares.values()) < CUT:
        return
    if any(len(size) > len(whole[name]) for name, size in sizes(lengths).items()):
        return  # the task makes more examples of a long text, and loses nothing
    wanted = {}
    for name, length in lengths.items():
        covering = math.ceil(np.quantile(whole[name], 0.98) / 16) * 16  # a multiple of 16 that cuts few
        wanted[name] = max(length, covering)
    cut = " and ".join(f"{share:.0%} of the {name}" for name, share in shares.items() if share >= CUT)
    fix = ("DataConfig.task_feature_lengths", wanted)
    yield Line("warning", f"{cut} are cut off by the lengths {dict(lengths)}.", fix, "cut-examples")


def of_pieces(config: RunConfig, sample: Any, data: Data) -> Iterator[Line]:
    """Yields what the vocabulary loses of the sample's text, what it changes, and whether it needs many tokens."""
    other = new_vocabulary(config)
    counted = sample.fertility
    lost = _lost_share(counted, PieceTable(sample.vocabulary).kind)
    data["unknown_share"] = counted.unknown_share
    data["unspelled_share"] = lost
    data["in_bytes_share"] = counted.in_bytes_share
    commonest = ", ".join(f"{letter} U+{ord(letter):04X}" for letter, _ in counted.letters_without_piece.most_common(8))
    if lost >= LOST:
        sentence = f"The vocabulary cannot spell {lost:.2%} of the text's letters ({commonest}): they are lost as <unk>"
        sentence += f", {counted.unknown_share:.2%} of the tokens."
        yield Line("error" if lost >= UNUSABLE else "warning", sentence, other, "lost-letters")
    else:
        sentence = (
            f"Unknown pieces: {counted.unknown_share:.4%} of the tokens; {lost:.4%} of the letters cannot be spelled"
        )
        if lost:
            sentence += f" ({commonest})"
        yield Line("ok", f"{sentence}.")
    if counted.in_bytes_share >= IN_BYTES:
        sentence = (
            f"{counted.in_bytes_share:.1%} of the tokens are single bytes of letters without a piece ({commonest})"
        )
        yield Line("warning", f"{sentence}: rows hold less text.", other, "letters-in-bytes")
    elif lost < LOST:
        yield from _of_fertility(sample.documents, PieceTable(sample.vocabulary), other, data)
    yield from _round_trip(sample, [] if lost >= UNUSABLE else other, data)


def _lost_share(counted: Any, kind: str) -> float:
    """Returns the share of the letters that the vocabulary cannot spell."""
    if kind != "sentencepiece":  # whose unknown pieces are the only sign
        return counted.unknown / max(counted.letters, 1)
    if not counted.unknown or counted.in_bytes:  # spelled in bytes, such letters are not lost
        return 0.0
    return sum(counted.letters_without_piece.values()) / max(counted.letters, 1)


def new_vocabulary(config: RunConfig) -> list[Fix]:
    """Returns the choice of a vocabulary of the run's own text, which its first start trains, under a free name."""
    names = (f"vocabulary{number}.model" for number in itertools.count(1))
    name = next(name for name in names if not os.path.exists(name))
    return [("DataConfig.vocabulary", name), ("DataConfig.new_vocabulary_size", config.model.vocab_size)]


def _of_fertility(documents: Sequence[bytes], table: PieceTable, other: list[Fix], data: Data) -> Iterator[Line]:
    """Yields a warning if a small vocabulary of half the sample needs far fewer tokens for the other half."""
    learned = documents[0::2]
    unseen = documents[1::2]
    if table.kind == "bytes" or sum(map(len, learned)) < LEAST_LEARNED:
        return
    letters = len(set(b"".join(learned).decode()))
    num_pieces = table.vocabulary.vocab_size - table.num_sentinels
    pieces = min(max(SMALL_VOCABULARY, 2 * letters), num_pieces // 2)
    if pieces < letters + 50:  # each letter takes a piece, and hardly any is left for words
        return
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=(document.decode()[:SENTENCE] for document in learned), model_writer=model, vocab_size=pieces,
        model_type="bpe", hard_vocab_limit=False, minloglevel=2,
    )  # fmt: skip
    small = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    needed = sum(len(small.encode(document.decode())) for document in unseen)
    used = sum(len(table.encode(document)) for document in unseen)
    data["tokens_beside_small_vocabulary"] = used / max(needed, 1)
    if used > FERTILE * needed:
        sentence = f"The vocabulary is not of this text: it takes {used / needed:.1f} times the tokens of one of only"
        yield Line(
            "warning", f"{sentence} {pieces:,} pieces made of half the sample.", other, "vocabulary-of-other-text"
        )


def _round_trip(sample: Any, other: list[Fix], data: Data) -> Iterator[Line]:
    """Yields how many documents come back changed, with the first change; a warning if capitals or marks are lost."""
    encode = PieceTable(sample.vocabulary).encode
    changed = 0
    example = ""
    folded = np.zeros([2, 3])  # capitals, marks and letters, of the texts and of what comes back
    texts = [" ".join(document.decode().split()) for document in sample.documents[:ROUND_TRIPS]]
    for text in texts:
        back = " ".join(str(sample.vocabulary.decode(encode(text.encode()).tolist())).split())
        folded += [_capitals_marks_letters(text), _capitals_marks_letters(back)]
        if back != text:
            changed += 1
            example = example or _difference(text, back)
    data["changed_share"] = changed / len(texts)
    (*had, letters_had), (*has, letters_has) = folded.tolist()
    for before, after, what in zip(had, has, ("capitals", "accents and other marks"), strict=True):
        # A folded letter is still there, without its mark or as a small one. Letters that are gone are unknown pieces,
        # which are another finding.
        num_gone = letters_had - letters_has
        is_folded = after < before / 2 and num_gone < (before - after) / 2
        if other and before >= FEW_WORDS and is_folded:
            sentence = f"The vocabulary folds {what}, so that the model never writes them: {example}"
            yield Line("warning", f"{sentence}.", other, "vocabulary-folds")
            return
    if changed:
        sentence = f"{changed} of {len(texts)} documents come back from the vocabulary with other letters: {example}"
        yield Line("ok", f"{sentence}; a model writes them like this.")
    else:
        yield Line("ok", f"{len(texts)} documents come back from the vocabulary as they were, except for spaces.")


def _capitals_marks_letters(text: str) -> tuple[int, int, int]:
    letters = unicodedata.normalize("NFD", text)
    marks = sum(unicodedata.category(letter) == "Mn" for letter in letters)
    return sum(map(str.isupper, letters)), marks, sum(map(str.isalpha, letters))


def _difference(text: str, back: str) -> str:
    """Returns eight letters on each side of the first one that differs, as they were and as they come back."""
    first = len(back)
    for number, (letter, letter_back) in enumerate(zip(text, back, strict=False)):
        if letter != letter_back:
            first = number
            break
    shown = slice(max(first - 8, 0), first + 8)
    return f"{text[shown]!r} as {back[shown]!r}"


def of_example(config: RunConfig, part: Task, sample: Any, data: Data) -> Iterator[Line]:
    """Yields one example as the model reads it, and joined again."""
    if not sample.examples:
        yield Line("error", "The preprocessors make no example of the sampled documents.", "give more text", "no-rows")
        return
    row = sample.examples[0]
    words = sample.vocabulary
    pieces = PieceTable(sample.vocabulary)
    is_pair = not RunData(config.data, part).fills_gaps
    if is_pair or "inputs" not in row or not pieces.num_sentinels:
        shown = [f"{name}: {_cut(str(words.decode(ids.tolist())))}" for name, ids in row.items()]
        yield Line("ok", "An example:\n" + "\n".join(shown))
        return
    inputs = pieces.masked(row["inputs"].tolist())
    targets = pieces.masked(row["targets"].tolist())
    joined = joined_tokens(row, set(pieces.sentinels), pieces.unspoken)
    data["example"] = {"inputs": inputs, "targets": targets}
    stream = np.concatenate([pieces.encode(text) for text in sample.documents[:64]])
    shown = f"An example:\ninputs: {_cut(inputs)}\ntargets: {_cut(targets)}\njoined: {_cut(str(words.decode(joined)))}"
    if contains(stream, np.array(joined)):
        yield Line("ok", f"{shown}\nJoined again it is the text, token by token.")
    else:
        yield Line("ok", f"{shown}\nWith this objective, or this order of documents, a row is not one continuous text.")


def _cut(text: str) -> str:
    text = " ".join(text.split())
    if len(text) <= EXAMPLE_LETTERS:
        return text
    return f"{text[:EXAMPLE_LETTERS]} …"


def joined_tokens(row: Mapping[str, np.ndarray], sentinels: set[int], unspoken: Sequence[int]) -> list[int]:
    """Returns the inputs with each sentinel replaced by its span of the targets, without ids that are not text.

    >>> row = {"inputs": np.array([5, 99, 6, 98, 1]), "targets": np.array([99, 7, 8, 98, 9, 1])}
    >>> joined_tokens(row, {98, 99}, [0, 1])
    [5, 7, 8, 6, 9]
    """
    spans: dict[int, list[int]] = {}
    current: list[int] = []
    for token in row["targets"].tolist():
        if token in sentinels:
            current = spans.setdefault(token, [])
        elif token not in unspoken:
            current.append(token)
    joined = []
    for token in row["inputs"].tolist():
        if token in sentinels:
            joined.extend(spans.get(token, []))
        elif token not in unspoken:
            joined.append(token)
    return joined


def contains(stream: np.ndarray, part: np.ndarray) -> bool:
    """Returns whether the part occurs in the stream, without a gap."""
    if not len(part) or len(part) > len(stream):
        return False
    starts = np.nonzero(stream[: len(stream) - len(part) + 1] == part[0])[0]
    return any(np.array_equal(stream[start : start + len(part)], part) for start in starts)
