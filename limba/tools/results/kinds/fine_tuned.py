"""The kinds of tasks that a model is fine-tuned on: how they are read, what a model learns, and how it is judged."""

from __future__ import annotations

import collections
import re
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, NamedTuple

import numpy as np

from limba.config import InputError, kinds, require
from limba.config.kinds import PositiveInt
from limba.tools.results import files, scores
from limba.tools.results.outcome import Figures, Prediction
from limba.tools.results.protocol import PROTOCOL, Protocol

NAME_IN_MISC = re.compile(r"(?:.*\|)?name=([^|]*).*")  # how NorNE writes a tag into CoNLL-U's last column
LANGUAGE = re.compile(r"[a-z-]{2,12}:(?=.)")  # before each token of WikiANN's own files
IOB2 = re.compile(r"O|[BI]-.+")
LONGEST_NAME = 8  # tokens, of those that a baseline looks up
MAJORITY = "majority"
MEAN = "mean"


class Example(NamedTuple):
    """What a model reads and should answer; a tagged sentence has its words, others a text or two."""

    where: str
    texts: tuple[str, ...]
    answer: str | float | tuple[str, ...]  # the class, the score, or a tag of each word
    document: str  # examples of one document are resampled together

    @property
    def tags(self) -> tuple[str, ...]:
        assert isinstance(self.answer, tuple), "of a tagged sentence"
        return self.answer

    @property
    def letters(self) -> str:
        """What it reads without spaces, a sentence however it is cut into words."""
        joint = "" if isinstance(self.answer, tuple) else "|"
        return files.letters(joint.join(self.texts))


class Parts(NamedTuple):
    """The examples of a task; `left_out` of the training part were in another one; its `labels` before it was cut."""

    train: list[Example]
    dev: list[Example]
    test: list[Example]
    left_out: int
    labels: tuple[str, ...]  # that a model chooses from, in the order of their letters; () for a score


@dataclass(frozen=True)
class Learned:
    """A task with a training part; the test part is judged once for each seed."""

    name: str
    train: str
    test: str
    dev: str | None = None  # None: one in ten documents of `train`
    most: PositiveInt | None = None  # training examples; None: all
    address: str | None = None  # where the files are published

    main: ClassVar[str]  # the figure by which a rate and a number of epochs are chosen
    constant_name: ClassVar[str] = MAJORITY  # the rule that always gives the same answer
    is_tagged: ClassVar[bool] = False  # whether each word has a label

    def __post_init__(self) -> None:
        kinds.check(self)

    @property
    def files(self) -> tuple[str, ...]:
        return tuple(file for file in (self.train, self.dev, self.test) if file is not None)

    def examples(self, path: Path) -> Iterator[Example]:
        """Yields the examples of a file; InputError for one of another layout."""
        raise NotImplementedError

    def labels(self, example: Example) -> set[str]:
        """Returns the labels that an example has."""
        assert isinstance(example.answer, str), "a class"
        return {example.answer}

    def read(self, folder: str, protocol: Protocol = PROTOCOL) -> Parts:
        """Returns the parts. A training example that is read in another part too is left out."""
        examples_by_file = {name: list(self.examples(files.place_of(folder, name))) for name in self.files}
        for name, file in examples_by_file.items():
            if not file:
                raise InputError(f"{name} of the task {self.name} has no examples; name another file.")
        test = examples_by_file[self.test]
        if self.dev is None:
            train, dev = drawn_development(examples_by_file[self.train], protocol.dev_share)
            of_test = {example.letters for example in test}
            dev = [
                example for example in dev if example.letters not in of_test
            ]  # else rates would be chosen on the test part
            if not dev:
                raise InputError(
                    f"One in {protocol.dev_share} documents of {self.train} would be the development part of"
                    f" {self.name}, and each example in them is in {self.test} too; name a file as its dev."
                )
            if not train:
                raise InputError(
                    f"{self.train} has one document, from which no development part of {self.name} can be drawn; name a"
                    " file as its dev."
                )
        else:
            train = examples_by_file[self.train]
            dev = examples_by_file[self.dev]
        others = {example.letters for example in (*dev, *test)}
        kept = [example for example in train if example.letters not in others]
        if not kept:
            raise InputError(f"Each example of {self.train} is in another part of {self.name} too; name other files.")
        of_training = kept if self.dev else [*kept, *dev]  # a rare label may be in the tenth that was drawn
        known = set[str]().union(*(self.labels(example) for example in of_training))
        for example in (*test, *dev):
            if new := sorted(self.labels(example) - known):
                raise InputError(
                    f"{example.where} has the label {new[0]}, which no example of {self.train} has; it has"
                    f" {', '.join(sorted(known)[:20]) or 'none'}: correct the file, or rename labels."
                )
        labels = self.choices(known)
        if len(labels) == 1:
            raise InputError(f"{self.train} of the task {self.name} has no label but {labels[0]}; name another file.")
        most = min(self.most or len(kept), protocol.most_train or len(kept))
        return Parts(
            train=evenly(kept, most),
            dev=evenly(dev, protocol.most_dev or len(dev)),
            test=evenly(test, protocol.most_test or len(test)),
            left_out=len(train) - len(kept),
            labels=labels,
        )

    def choices(self, known: set[str]) -> tuple[str, ...]:
        """Returns what a model chooses from, where examples have these labels."""
        return tuple(sorted(known))

    def figures(
        self, examples: Sequence[Example], predictions: Sequence[Prediction], counts: np.ndarray
    ) -> scores.Draws:
        """Returns the figures of some predictions in each resample of the examples, whose `counts`, [R, N], say it."""
        raise NotImplementedError

    def judge(self, examples: Sequence[Example], predictions: Sequence[Prediction]) -> Figures:
        """Returns the figures of some predictions."""
        once = np.ones((1, len(examples)), np.int64)
        return {name: float(draw[0]) for name, draw in self.figures(examples, predictions, once).items()}

    def constant(self, parts: Parts, examples: Sequence[Example]) -> list[Prediction]:
        """Returns the one answer that is right most often in the training part, for each example."""
        raise NotImplementedError

    def floors(self, parts: Parts) -> Mapping[str, list[Prediction]]:
        """Returns what simple rules predict of the test part, by their names."""
        return {self.constant_name: self.constant(parts, parts.test)}


def drawn_development(examples: Sequence[Example], share: int) -> tuple[list[Example], list[Example]]:
    """Returns the training examples, and one in `share` documents for development; no document is in both.

    >>> examples = [Example("", ("text",), "a", document) for document in ["x", "x", "y", "z"]]
    >>> train, dev = drawn_development(examples, 2)
    >>> [each.document for each in train], [each.document for each in dev]
    (['y'], ['x', 'x', 'z'])
    """
    documents = list(dict.fromkeys(example.document for example in examples))
    of_dev = set(documents[::share])
    train = [example for example in examples if example.document not in of_dev]
    dev = [example for example in examples if example.document in of_dev]
    return train, dev


def evenly(examples: list[Example], most: int) -> list[Example]:
    """Returns so many examples at most, evenly taken."""
    count = min(most, len(examples))
    return [examples[index * len(examples) // count] for index in range(count)]


@dataclass(frozen=True)
class Classification(Learned):
    """The class of a text, or of two texts that are read together."""

    columns: tuple[str | int, ...] = ("text",)  # that are read, such as a premise and a hypothesis
    label: str | int = "label"

    main: ClassVar[str] = "accuracy"

    def __post_init__(self) -> None:
        super().__post_init__()
        advice = "needs the column of a text, or of two that are read together; give 1 or 2."
        require(len(self.columns) in (1, 2), "Classification.columns", advice)

    def examples(self, path: Path) -> Iterator[Example]:
        for where, row, document in files.documents(path, (*self.columns, self.label)):
            texts = tuple(files.text_in(where, row, column) for column in self.columns)
            yield Example(where, texts, files.label_in(where, row, self.label), document)

    def figures(
        self, examples: Sequence[Example], predictions: Sequence[Prediction], counts: np.ndarray
    ) -> scores.Draws:
        targets = [str(example.answer) for example in examples]
        predicted = [str(prediction) for prediction in predictions]
        hits = [t == p for t, p in zip(targets, predicted, strict=True)]
        accuracy = scores.share(counts, hits, [1] * len(targets))
        return {"accuracy": accuracy, "macro F1": scores.macro_f1(counts, targets, predicted)}

    def constant(self, parts: Parts, examples: Sequence[Example]) -> list[Prediction]:
        most = collections.Counter(str(example.answer) for example in parts.train).most_common(1)[0][0]
        return [most] * len(examples)


@dataclass(frozen=True)
class Similarity(Learned):
    """How alike two sentences are, a number that a model learns by its squared error."""

    first: str | int = "sentence1"
    second: str | int = "sentence2"
    score: str | int = "label"

    main: ClassVar[str] = "Pearson"
    constant_name: ClassVar[str] = MEAN

    def labels(self, example: Example) -> set[str]:
        return set()

    def examples(self, path: Path) -> Iterator[Example]:
        for where, row, document in files.documents(path, (self.first, self.second, self.score)):
            texts = files.text_in(where, row, self.first), files.text_in(where, row, self.second)
            yield Example(where, texts, files.number_in(where, row, self.score), document)

    def figures(
        self, examples: Sequence[Example], predictions: Sequence[Prediction], counts: np.ndarray
    ) -> scores.Draws:
        targets = _numbers([example.answer for example in examples])
        predicted = _numbers(predictions)
        return {
            "Pearson": scores.pearson(counts, targets, predicted),
            "Spearman": scores.spearman(counts, targets, predicted),
        }

    def constant(self, parts: Parts, examples: Sequence[Example]) -> list[Prediction]:
        return [statistics.fmean(_numbers([example.answer for example in parts.train]))] * len(examples)

    def floors(self, parts: Parts) -> Mapping[str, list[Prediction]]:
        shares = list[Prediction]()
        for example in parts.test:
            lower = [text.lower() for text in example.texts]
            has_words = " " in "".join(lower)
            first, second = (set(text.split() if has_words else text) for text in lower)
            shares.append(len(first & second) / max(1, len(first | second)))
        return {**super().floors(parts), "word overlap": shares}


def _numbers(values: Sequence[object]) -> list[float]:
    return [float(value) for value in values if isinstance(value, int | float)]


@dataclass(frozen=True)
class Tagged(Learned):
    """A tag of each word, from CoNLL-U, a relative of it, or JSON or parquet with lists."""

    tags: str | int = -1  # its column
    tokens: str | int = 1
    names: tuple[str, ...] = ()  # of tags that stand as numbers

    usual: ClassVar[str] = "ner_tags"  # the column of lists of tags, unless it is named
    is_tagged: ClassVar[bool] = True

    def tagged(self, path: Path) -> Iterator[tuple[str, list[str], list[str], str]]:
        """Yields (where, words, tags, document) of each sentence."""
        if files.layout_of(path).startswith(files.OBJECTS):
            first = next(files.rows(path, ()), ("", {}))[1]
            are_entities = isinstance(self, NamedEntities)
            is_other = lambda column: isinstance(column, int) or (column not in first and are_entities)
            chosen = ((self.tokens, "tokens"), (self.tags, self.usual))
            columns = [usual if is_other(name) else str(name) for name, usual in chosen]
            for where, row, document in files.documents(path, columns):
                tokens, tags = map(row.get, columns)
                if not isinstance(tokens, list) or not isinstance(tags, list) or len(tokens) != len(tags):
                    names = " and ".join(columns)
                    raise InputError(f"{where}: {names} are not two lists of the same length; correct them.")
                words = [files.text(where, token, f"a token of {columns[0]}") for token in tokens]
                yield where, words, [self._named(tag, where) for tag in tags], document
            return
        for sentence in files.sentences(path, self.tokens, self.tags):
            tokens = [cell[0] for cell in sentence.cells]
            if all(map(LANGUAGE.match, tokens)):
                tokens = [LANGUAGE.sub("", token, count=1) for token in tokens]
            tags = [NAME_IN_MISC.sub(r"\1", cell[1]) for cell in sentence.cells]
            yield sentence.where, tokens, tags, sentence.document

    def _named(self, tag: object, where: str) -> str:
        if not isinstance(tag, int) or isinstance(tag, bool):
            return files.text(where, tag, "a tag")
        if not 0 <= tag < len(self.names):
            raise InputError(f"{where} has the tag {tag}, and the task {self.name} {len(self.names)} names; add them.")
        return self.names[tag]


@dataclass(frozen=True)
class PartOfSpeech(Tagged):
    """The part of speech of each word."""

    tags: str | int = 3

    usual: ClassVar[str] = "upos"
    main: ClassVar[str] = "accuracy"

    def labels(self, example: Example) -> set[str]:
        return set(example.tags)

    def examples(self, path: Path) -> Iterator[Example]:
        for where, words, tags, document in self.tagged(path):
            if "" in tags:  # which also is the tag of a word that a model does not read
                raise InputError(f"{where}: the tag of the word {words[tags.index('')]!r} is empty; write it there.")
            yield Example(where, tuple(words), tuple(tags), document)

    def figures(
        self, examples: Sequence[Example], predictions: Sequence[Prediction], counts: np.ndarray
    ) -> scores.Draws:
        hits = [
            sum(t == p for t, p in zip(e.tags, _tags(p), strict=True))
            for e, p in zip(examples, predictions, strict=True)
        ]
        return {"accuracy": scores.share(counts, hits, [len(example.tags) for example in examples])}

    def constant(self, parts: Parts, examples: Sequence[Example]) -> list[Prediction]:
        most = collections.Counter(tag for example in parts.train for tag in example.tags).most_common(1)[0][0]
        return [[most] * len(example.tags) for example in examples]

    def floors(self, parts: Parts) -> Mapping[str, list[Prediction]]:
        of_words: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
        for sentence in parts.train:
            for word, tag in zip(sentence.texts, sentence.tags, strict=True):
                of_words[word][tag] += 1
        usual = {word: tags.most_common(1)[0][0] for word, tags in of_words.items()}
        baselines = super().floors(parts)
        predicted = list[Prediction]()
        for example, constant in zip(parts.test, baselines[MAJORITY], strict=True):
            predicted.append([usual.get(word, most) for word, most in zip(example.texts, _tags(constant), strict=True)])
        return {**baselines, "each word's usual tag": predicted}


def _tags(prediction: Prediction) -> list[str]:
    assert isinstance(prediction, list), "of a tagged sentence"
    return prediction


@dataclass(frozen=True)
class NamedEntities(Tagged):
    """The names in a sentence, from IOB2 tags; F1 of whole spans, by seqeval's rules."""

    rename: Mapping[str, str] = field(default_factory=dict)  # the training part's labels -> the other parts'
    drop: tuple[str, ...] = ()  # labels whose sentences are left out

    main: ClassVar[str] = "span F1"

    def labels(self, example: Example) -> set[str]:
        return {label for label, _, _ in scores.spans_of(example.tags)}

    def choices(self, known: set[str]) -> tuple[str, ...]:
        return ("O", *(f"{prefix}-{label}" for label in sorted(known) for prefix in "BI"))

    def examples(self, path: Path) -> Iterator[Example]:
        for where, words, tags, document in self.tagged(path):
            wrong = [tag for tag in tags if IOB2.fullmatch(tag) is None]
            if wrong:
                raise InputError(
                    f"{where}: {wrong[0]!r} is not an IOB2 tag (O, B-PERSON, I-PERSON); name another column."
                )
            spans = [(self.rename.get(label, label), begin, end) for label, begin, end in scores.spans_of(tags)]
            if not any(label in self.drop for label, _, _ in spans):
                yield Example(where, tuple(words), tuple(tags_of(spans, len(words))), document)

    def figures(
        self, examples: Sequence[Example], predictions: Sequence[Prediction], counts: np.ndarray
    ) -> scores.Draws:
        targets = [scores.spans_of(example.tags) for example in examples]
        return scores.span_f1(counts, targets, [scores.spans_of(_tags(prediction)) for prediction in predictions])

    def constant(self, parts: Parts, examples: Sequence[Example]) -> list[Prediction]:
        return [["O"] * len(example.tags) for example in examples]

    def floors(self, parts: Parts) -> Mapping[str, list[Prediction]]:
        names: dict[tuple[str, ...], collections.Counter[str]] = collections.defaultdict(collections.Counter)
        for example in parts.train:
            for label, begin, end in scores.spans_of(example.tags):
                names[example.texts[begin:end]][label] += 1
        predicted = list[Prediction]()
        for words in (example.texts for example in parts.test):
            spans = list[scores.Span]()
            start = 0
            while start < len(words):
                sizes = range(min(LONGEST_NAME, len(words) - start), 0, -1)
                size = next((size for size in sizes if words[start : start + size] in names), 0)
                if size:
                    spans.append((names[words[start : start + size]].most_common(1)[0][0], start, start + size))
                start += max(1, size)
            predicted.append(tags_of(spans, len(words)))
        return {**super().floors(parts), "names of the training part": predicted}


def tags_of(spans: Sequence[scores.Span], length: int) -> list[str]:
    """Returns the IOB2 tags of some spans.

    >>> tags_of([("GPE", 1, 3)], 4)
    ['O', 'B-GPE', 'I-GPE', 'O']
    """
    tags = ["O"] * length
    for label, begin, end in spans:
        tags[begin:end] = [f"B-{label}", *[f"I-{label}"] * (end - begin - 1)]
    return tags
