"""The kinds of tasks that a model is fine-tuned on: how they are read, written as text, and judged."""

from __future__ import annotations

import collections
import functools
import re
import statistics
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, NamedTuple

from limba.config import InputError, ModelConfig, kinds
from limba.config.kinds import PositiveInt
from limba.tools.results import files, scores
from limba.tools.results.outcome import Figures, Outcome, jackknife
from limba.tools.results.protocol import PROTOCOL, Protocol

NAME_IN_MISC = re.compile(r"(?:.*\|)?name=([^|]*).*")  # how NorNE writes a tag into CoNLL-U's last column
LANGUAGE = re.compile(r"[a-z-]{2,12}:(?=.)")  # before each token of WikiANN's own files
SECOND, NOTHING = PROTOCOL.between_texts, PROTOCOL.no_names
LONGEST_NAME = 8  # tokens, of those that the floor looks up


class Example(NamedTuple):
    """What a model reads and writes, and what is compared."""

    inputs: str
    targets: str
    where: str
    tokens: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()  # of the tokens
    spans: tuple[scores.Span, ...] = ()
    value: float = 0.0


class Parts(NamedTuple):
    """The examples of a task; `left_out` of the training part were in another one; its `labels` before it was cut."""

    train: list[Example]
    dev: list[Example]
    test: list[Example]
    left_out: int
    labels: tuple[str, ...] = ()


def has_no_decoder(network: ModelConfig) -> bool:
    """Returns whether a network writes no text, and learns a task by a head of its own."""
    return network.is_encoder or network.is_t5_encoder


@dataclass(frozen=True)
class Learned:
    """A task with a training part; the test part is judged once for each seed."""

    name: str
    train: str
    test: str
    dev: str | None = None  # None: one in ten examples of `train`
    most: PositiveInt | None = None  # training examples; None: all

    main: ClassVar[str]  # the figure by which a rate is chosen
    head: ClassVar[str]  # of an encoder that learns it

    def __post_init__(self) -> None:
        kinds.check(self)

    @property
    def files(self) -> tuple[str, ...]:
        return tuple(each for each in (self.train, self.dev, self.test) if each is not None)

    def examples(self, path: Path) -> Iterator[Example]:
        """Yields the examples of a file; InputError for one of another layout."""
        raise NotImplementedError

    def labels(self, example: Example) -> set[str]:
        """Returns the classes that an example has."""
        return {example.targets}

    def of_head(self, parts: Parts) -> tuple[str, ...]:
        """Returns the kind of an encoder's head and its labels, in the order of their letters."""
        return (self.head, *parts.labels)

    def labeled(self, example: Example, parts: Parts) -> tuple[str, str]:
        """Returns the text and the label that a head learns: of words the tags, with a space between two."""
        return example.inputs, example.targets

    def as_text(self, example: Example, label: str) -> str:
        """Returns a head's label, or the tags of the words, as the text that `judge` reads."""
        return label

    def read(self, folder: str, protocol: Protocol = PROTOCOL) -> Parts:
        """Returns the parts. A training example that is read in another part too is left out."""
        found = {name: list(self.examples(files.place_of(folder, name))) for name in self.files}
        for name, given in found.items():
            if not given:
                raise InputError(f"{name} of the task {self.name} holds no examples; name another file.")
        test = found[self.test]
        share = PROTOCOL.dev_share
        if self.dev is None:
            whole = found[self.train]
            train, dev = [each for i, each in enumerate(whole) if i % share], whole[::share]
        else:
            train, dev = found[self.train], found[self.dev]
        others = {files.letters(each.inputs) for each in (*dev, *test)}
        kept = [each for each in train if files.letters(each.inputs) not in others]
        if not kept:
            raise InputError(f"Each example of {self.train} is in another part of {self.name} too; name other files.")
        known = set[str]().union(*(self.labels(each) for each in kept))
        for each in (*test, *dev):
            if new := sorted(self.labels(each) - known):
                raise InputError(
                    f"{each.where} has the label {new[0]}, which no example of {self.train} has; it has"
                    f" {', '.join(sorted(known)[:20]) or 'none'}: correct the file, or rename labels."
                )
        most = min(self.most or len(kept), protocol.most_train or len(kept))
        return Parts(
            train=evenly(kept, most),
            dev=evenly(dev, protocol.most_dev or len(dev)),
            test=evenly(test, protocol.most_test or len(test)),
            left_out=len(train) - len(kept),
            labels=tuple(sorted(known)),
        )

    def judge(self, examples: Sequence[Example], predictions: Sequence[str], parts: Parts) -> Outcome:
        """Returns the figures of what a model has written."""
        raise NotImplementedError

    def on_test(
        self, examples: Sequence[Example], predictions: Sequence[str], parts: Parts, protocol: Protocol
    ) -> Outcome:
        """Returns `judge`'s figures, with intervals where the protocol reads some of the test examples only."""

        def judge(places: Sequence[int]) -> Figures:
            taken = [examples[place] for place in places]
            return self.judge(taken, [predictions[place] for place in places], parts).figures

        found = self.judge(examples, predictions, parts)
        if protocol.most_test and len(examples) > 1:
            found.intervals.update(jackknife(judge, len(examples), protocol.test_groups, protocol.confidence))
        return found

    def floors(self, parts: Parts) -> Mapping[str, Figures]:
        """Returns the figures of a simple rule."""
        raise NotImplementedError


def evenly(examples: list[Example], most: int) -> list[Example]:
    """Returns so many examples at most, evenly taken."""
    count = min(most, len(examples))
    return [examples[place * len(examples) // count] for place in range(count)]


@dataclass(frozen=True)
class Classification(Learned):
    """A class of a text, or of several; the target is the name of the class."""

    columns: tuple[str | int, ...] = ("text",)  # that are read, such as a premise and a hypothesis
    label: str | int = "label"

    main: ClassVar[str] = "accuracy"
    head: ClassVar[str] = "classes"

    def examples(self, path: Path) -> Iterator[Example]:
        for where, row in files.rows(path, (*self.columns, self.label)):
            label = files.label_in(where, row, self.label)
            yield Example(joined(where, row, *self.columns), label, where)

    def judge(self, examples: Sequence[Example], predictions: Sequence[str], parts: Parts) -> Outcome:
        known = set(parts.labels)
        given = [each.strip() if each.strip() in known else None for each in predictions]
        targets = [each.targets for each in examples]
        figures = {"accuracy": scores.accuracy(targets, given), "macro F1": scores.macro_f1(targets, given)}
        return Outcome(figures, notes={"malformed": given.count(None)})

    def floors(self, parts: Parts) -> Mapping[str, Figures]:
        most = collections.Counter(each.targets for each in parts.train).most_common(1)[0][0]
        return {"majority": self.judge(parts.test, [most] * len(parts.test), parts).figures}


@dataclass(frozen=True)
class Similarity(Learned):
    """How alike two sentences are; the target is the number, rounded to fifths as T5 writes STS-B."""

    first: str | int = "sentence1"
    second: str | int = "sentence2"
    score: str | int = "label"

    main: ClassVar[str] = "Pearson"
    head: ClassVar[str] = "score"

    def labels(self, example: Example) -> set[str]:
        return set()

    def labeled(self, example: Example, parts: Parts) -> tuple[str, str]:
        """Returns the text and its number in deviations from the training part's mean, which no correlation notices."""
        mean, deviation = _moments(tuple(each.value for each in parts.train))
        return example.inputs, str((example.value - mean) / (deviation or 1.0))

    def examples(self, path: Path) -> Iterator[Example]:
        for where, row in files.rows(path, (self.first, self.second, self.score)):
            value = files.number_in(where, row, self.score)
            yield Example(
                joined(where, row, self.first, self.second), f"{round(value * 5) / 5:.1f}", where, value=value
            )

    def judge(self, examples: Sequence[Example], predictions: Sequence[str], parts: Parts) -> Outcome:
        mean = sum(each.value for each in parts.train) / len(parts.train)
        given = [_number(each) for each in predictions]
        filled = [mean if each is None else each for each in given]
        return Outcome(_correlations(examples, filled), notes={"malformed": given.count(None)})

    def floors(self, parts: Parts) -> Mapping[str, Figures]:
        pairs = [each.inputs.lower().partition(SECOND)[::2] for each in parts.test]
        words = [[set(text.split() if " " in "".join(pair) else text) for text in pair] for pair in pairs]
        return {"word overlap": _correlations(parts.test, [len(a & b) / max(1, len(a | b)) for a, b in words])}


def _correlations(examples: Sequence[Example], given: Sequence[float]) -> Figures:
    targets = [each.value for each in examples]
    return {"Pearson": scores.pearson(targets, given), "Spearman": scores.spearman(targets, given)}


@functools.lru_cache(1)
def _moments(values: tuple[float, ...]) -> tuple[float, float]:
    return statistics.fmean(values), statistics.pstdev(values)


def joined(where: str, row: Mapping[str, object], *columns: str | int) -> str:
    """Returns the texts of some columns of a row as one input."""
    return SECOND.join(" ".join(files.text_in(where, row, each).split()) for each in columns)


def _number(text: str) -> float | None:
    try:
        value = float(text.strip().replace(",", "."))
    except ValueError:
        return None
    return value if abs(value) < 1e6 else None


@dataclass(frozen=True)
class Tagged(Learned):
    """A tag of each token, from CoNLL-U, a relative of it, or JSON or parquet with lists."""

    tags: str | int = -1  # its column
    tokens: str | int = 1
    names: tuple[str, ...] = ()  # of tags that stand as numbers

    usual: ClassVar[str] = "ner_tags"  # the column of lists of tags, unless it is named

    def tagged(self, path: Path) -> Iterator[tuple[str, list[str], list[str]]]:
        """Yields (where, tokens, tags) of each sentence."""
        if files.layout_of(path).startswith(files.OBJECTS):
            first = next(files.rows(path, ()), ("", {}))[1]
            is_other = lambda given: isinstance(given, int) or (given not in first and isinstance(self, NamedEntities))
            given = ((self.tokens, "tokens"), (self.tags, self.usual))
            columns = [usual if is_other(name) else str(name) for name, usual in given]
            for where, row in files.rows(path, columns):
                tokens, tags = map(row.get, columns)
                if not isinstance(tokens, list) or not isinstance(tags, list) or len(tokens) != len(tags):
                    raise InputError(f"{where}: {' and '.join(columns)} are no lists of one length; correct them.")
                words = [files.text(where, each, f"a token of {columns[0]}") for each in tokens]
                yield where, words, [self._named(each, where) for each in tags]
            return
        for where, cells in files.sentences(path, self.tokens, self.tags):
            tokens = [each[0] for each in cells]
            if all(map(LANGUAGE.match, tokens)):
                tokens = [LANGUAGE.sub("", each, count=1) for each in tokens]
            yield where, tokens, [NAME_IN_MISC.sub(r"\1", each[1]) for each in cells]

    def _named(self, tag: object, where: str) -> str:
        if not isinstance(tag, int) or isinstance(tag, bool):
            return files.text(where, tag, "a tag")
        if not 0 <= tag < len(self.names):
            raise InputError(f"{where} has the tag {tag}, and the task {self.name} {len(self.names)} names; add them.")
        return self.names[tag]


@dataclass(frozen=True)
class PartOfSpeech(Tagged):
    """The part of speech of each token; the target is the tags in their order."""

    tags: str | int = 3

    usual: ClassVar[str] = "upos"
    main: ClassVar[str] = "accuracy"
    head: ClassVar[str] = "tags"

    def labels(self, example: Example) -> set[str]:
        return set(example.tags)

    def labeled(self, example: Example, parts: Parts) -> tuple[str, str]:
        return " ".join(map(_plain, example.tokens)), example.targets

    def examples(self, path: Path) -> Iterator[Example]:
        for where, tokens, tags in self.tagged(path):
            tags = list(map(_plain, tags))
            yield Example(" ".join(tokens), " ".join(tags), where, tuple(tokens), tuple(tags))

    def judge(self, examples: Sequence[Example], predictions: Sequence[str], parts: Parts) -> Outcome:
        known = set(parts.labels)
        right, total, malformed = 0, 0, 0
        for example, prediction in zip(examples, predictions, strict=True):
            given = prediction.split()
            right += sum(t == p for t, p in zip(example.tags, given, strict=False))
            total += len(example.tags)
            malformed += len(given) != len(example.tags) or not known.issuperset(given)
        return Outcome({"accuracy": 100 * right / total}, notes={"malformed": malformed})

    def floors(self, parts: Parts) -> Mapping[str, Figures]:
        of_words: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
        for each in parts.train:
            for token, tag in zip(each.tokens, each.tags, strict=True):
                of_words[token][tag] += 1
        most = sum(of_words.values(), collections.Counter()).most_common(1)[0][0]
        tag = lambda token: of_words[token].most_common(1)[0][0] if token in of_words else most
        written = [" ".join(map(tag, each.tokens)) for each in parts.test]
        return {"majority": self.judge(parts.test, written, parts).figures}


@dataclass(frozen=True)
class NamedEntities(Tagged):
    """The names in a sentence, from IOB2 tags; F1 of whole spans, by seqeval's rules.

    The target is the names in their order, `PERSON Ion Popescu | GPE Cluj`; the second `Cluj` of a sentence is
    `GPE Cluj #2`, and a token that begins with `|`, `#` or a backslash has a backslash before it.
    """

    rename: Mapping[str, str] = field(default_factory=dict)  # labels of the training part to those of the others
    drop: tuple[str, ...] = ()  # labels whose sentences are left out

    main: ClassVar[str] = "span F1"
    head: ClassVar[str] = "tags"

    def labels(self, example: Example) -> set[str]:
        return {label for label, _, _ in example.spans}

    def of_head(self, parts: Parts) -> tuple[str, ...]:
        kind, *labels = super().of_head(parts)
        return (kind, "O", *(f"{place}-{label}" for label in labels for place in "BI"))

    def labeled(self, example: Example, parts: Parts) -> tuple[str, str]:
        tags = ["O"] * len(example.tokens)
        for label, begin, end in example.spans:
            tags[begin:end] = [f"B-{label}", *[f"I-{label}"] * (end - begin - 1)]
        return " ".join(map(_plain, example.tokens)), " ".join(tags)

    def as_text(self, example: Example, label: str) -> str:
        return written(example.tokens, scores.spans_of(label.split()))

    def examples(self, path: Path) -> Iterator[Example]:
        for where, tokens, tags in self.tagged(path):
            if wrong := [tag for tag in tags if tag != "O" and tag[:2] not in ("B-", "I-")]:
                raise InputError(f"{where}: {wrong[0]} is no tag of IOB2 (O, B-PERSON, I-PERSON); name another column.")
            spans = [(self.rename.get(label, label), a, b) for label, a, b in scores.spans_of(tags)]
            if not any(label in self.drop for label, _, _ in spans):
                yield Example(" ".join(tokens), written(tokens, spans), where, tuple(tokens), spans=tuple(spans))

    def judge(self, examples: Sequence[Example], predictions: Sequence[str], parts: Parts) -> Outcome:
        known = set(parts.labels)
        found = [parsed(text, each.tokens, known) for each, text in zip(examples, predictions, strict=True)]
        figures = scores.span_f1([each.spans for each in examples], [spans for spans, _ in found])
        return Outcome(figures, notes={"malformed": sum(wrong for _, wrong in found)})

    def floors(self, parts: Parts) -> Mapping[str, Figures]:
        names: dict[tuple[str, ...], collections.Counter[str]] = collections.defaultdict(collections.Counter)
        for each in parts.train:
            for label, begin, end in each.spans:
                names[each.tokens[begin:end]][label] += 1
        texts = []
        for tokens in (each.tokens for each in parts.test):
            spans, place = [], 0
            while place < len(tokens):
                sizes = range(min(LONGEST_NAME, len(tokens) - place), 0, -1)
                size = next((size for size in sizes if tokens[place : place + size] in names), 0)
                if size:
                    spans.append((names[tokens[place : place + size]].most_common(1)[0][0], place, place + size))
                place += max(1, size)
            texts.append(written(tokens, spans))
        return {"majority": self.judge(parts.test, texts, parts).figures}


def written(tokens: Sequence[str], spans: Sequence[scores.Span]) -> str:
    """Returns spans as text, which `parsed` reads again.

    >>> written(["Cluj", "|", "Cluj"], [("GPE", 2, 3), ("X", 1, 2)])
    'GPE Cluj #2 | X \\\\|'
    """
    names = []
    for label, begin, end in spans:
        words = list(map(_plain, tokens[begin:end]))
        number = _places(list(map(_plain, tokens)), words).index(begin) + 1
        names.append(" ".join([label, *map(_escaped, words), *([f"#{number}"] if number > 1 else [])]))
    return " | ".join(names) or NOTHING


def parsed(text: str, tokens: Sequence[str], labels: set[str]) -> tuple[list[scores.Span], bool]:
    """Returns the spans that a text names, and whether a part of it names none."""
    spans, is_wrong = [], False
    if text.strip() == NOTHING:
        return spans, is_wrong
    plain = list(map(_plain, tokens))
    for name in _split(text.split()):
        label, words = (name[0], name[1:]) if name else ("", [])
        number = 1
        if words and words[-1].startswith("#") and words[-1][1:].isdecimal():
            number, words = int(words[-1][1:]), words[:-1]
        words = [word.removeprefix("\\") for word in words]
        places = _places(plain, words) if words and label in labels else []
        if 1 <= number <= len(places):
            spans.append((label, places[number - 1], places[number - 1] + len(words)))
        else:
            is_wrong = True
    return spans, is_wrong


def _plain(token: str) -> str:
    """Returns a token as vocabularies write it: NFKC, without spaces."""
    return "".join(unicodedata.normalize("NFKC", token).split()) or "_"


def _escaped(word: str) -> str:
    return f"\\{word}" if word.startswith(("|", "#", "\\")) else word


def _split(words: Sequence[str]) -> list[list[str]]:
    names: list[list[str]] = [[]]
    for word in words:
        if word == "|":
            names.append([])
        else:
            names[-1].append(word)
    return names


def _places(tokens: Sequence[str], words: Sequence[str]) -> list[int]:
    """Returns where a sequence of words begins in the tokens."""
    places, size = range(len(tokens) - len(words) + 1), len(words)
    return [place for place in places if list(tokens[place : place + size]) == list(words)]
