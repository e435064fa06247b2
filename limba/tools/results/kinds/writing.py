"""Texts that a model is fine-tuned to write: translations, summaries; and answers to questions on a text."""

from __future__ import annotations

import collections
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

import regex

from limba.api import bleu_tokenizer, words_of
from limba.config import InputError, extras
from limba.config.errors import reason_of
from limba.config.kinds import NonNegativeInt
from limba.tools.results import files
from limba.tools.results.kinds.learned import SECOND, Example, Learned, Parts
from limba.tools.results.outcome import Figures, Outcome

ARTICLES = re.compile(r"\b(a|an|the)\b")
SIGN = regex.compile(r"[\p{P}\p{S}]")


@dataclass(frozen=True)
class Free(Learned):
    """A task whose targets are no classes.

    With `shots`, a language model is not fine-tuned: it reads so many examples of the training part before each input.
    """

    shots: NonNegativeInt = 0

    def labels(self, example: Example) -> set[str]:
        return set()


@dataclass(frozen=True)
class Writing(Free):
    """A text for a text, from the columns of a table, or line by line from two files as in FLORES."""

    source: str | int = "source"
    target: str | int = "target"
    targets: Mapping[str, str] = field(default_factory=dict)  # a file of sources: the file of its targets
    rouge: bool = False  # for summaries

    main: ClassVar[str] = "chrF++"

    @property
    def files(self) -> tuple[str, ...]:
        return (*super().files, *self.targets.values())

    def _read(self, folder: str) -> dict[str, list[Example]]:
        if not self.targets:
            return super()._read(folder)
        found = {}
        for name in super().files:
            if name not in self.targets:
                raise InputError(f"{name} of the task {self.name} has no file in `targets`; add it there.")
            paths = [files.place_of(folder, each) for each in (name, self.targets[name])]
            sources, targets = (files.lines_of(path) for path in paths)
            if len(sources) != len(targets):
                raise InputError(
                    f"{paths[0]} has {len(sources):,} lines, and {paths[1]} {len(targets):,}; give files whose lines"
                    " belong together."
                )
            pairs = enumerate(zip(sources, targets, strict=True), 1)
            found[name] = [Example(source, target, f"{paths[0]} line {n}") for n, (source, target) in pairs]
        return found

    def examples(self, path: Path) -> Iterator[Example]:
        for where, row in files.rows(path, (self.source, self.target)):
            source, target = (" ".join(files.text_in(where, row, each).split()) for each in (self.source, self.target))
            yield Example(source, target, where)

    def judge(self, examples: Sequence[Example], predictions: Sequence[str], parts: Parts) -> Outcome:
        with extras.needed_by(f"The task {self.name}"):
            import sacrebleu
        targets, given = [each.targets for each in examples], list(predictions)
        tokenizer = bleu_tokenizer(targets)
        figures = {
            "chrF++": sacrebleu.corpus_chrf(given, [targets], word_order=2).score,
            "BLEU" if tokenizer == "13a" else f"BLEU-{tokenizer}": sacrebleu.corpus_bleu(
                given, [targets], tokenize=tokenizer
            ).score,
        }
        if self.rouge:
            with extras.needed_by(f"The task {self.name}"):
                from rouge_score import rouge_scorer
            scorer = rouge_scorer.RougeScorer(["rougeL"], tokenizer=_Words())
            found = [scorer.score(t, p)["rougeL"].fmeasure for t, p in zip(targets, given, strict=True)]
            figures["ROUGE-L"] = 100 * sum(found) / len(found)
        return Outcome(figures, notes={"malformed": sum(not each.strip() for each in given)})

    def floors(self, parts: Parts) -> Mapping[str, Figures]:
        return {"copied input": self.judge(parts.test, [each.inputs for each in parts.test], parts).figures}


class _Words:
    """Words of any language, as a tokenizer of rouge-score, whose own knows English letters only."""

    def tokenize(self, text: str) -> list[str]:
        return words_of(text.lower())


@dataclass(frozen=True)
class Questions(Free):
    """Questions whose answers stand in a text, in SQuAD's layout: exact match, and F1 of words, of the best answer.

    JSON lines and parquet have SQuAD's columns on the hub: question, context, and answers with the list text.

    With `letters`, for text without spaces, F1 is that of letters (JGLUE, section 3.2.4).
    """

    letters: bool = False

    main: ClassVar[str] = "F1"

    def examples(self, path: Path) -> Iterator[Example]:
        try:
            for where, question, context, texts in _asked(path):
                if answers := tuple(" ".join(each.split()) for each in texts):
                    inputs = SECOND.join(" ".join(text.split()) for text in (question, context))
                    yield Example(inputs, answers[0], where, tags=answers)
        except InputError:
            raise
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise InputError(
                f"{path} is not in SQuAD's layout (data, paragraphs, qas, answers; in rows question, context, answers):"
                f" {reason_of(error)}; name another file."
            ) from None

    def judge(self, examples: Sequence[Example], predictions: Sequence[str], parts: Parts) -> Outcome:
        exact, shared = 0.0, 0.0
        for example, prediction in zip(examples, predictions, strict=True):
            exact += max(self._plain(prediction) == self._plain(answer) for answer in example.tags)
            shared += max(self._f1(answer, prediction) for answer in example.tags)
        figures = {"F1": 100 * shared / len(examples), "exact match": 100 * exact / len(examples)}
        return Outcome(figures, notes={"malformed": sum(not each.strip() for each in predictions)})

    def _plain(self, text: str) -> str:
        """Returns a text as SQuAD compares it: in small letters, without signs and English articles."""
        text = SIGN.sub("", text.lower())
        return "".join(text.split()) if self.letters else " ".join(ARTICLES.sub(" ", text).split())

    def _f1(self, answer: str, prediction: str) -> float:
        of_answer, of_prediction = (
            list(text) if self.letters else text.split() for text in map(self._plain, (answer, prediction))
        )
        if not of_answer or not of_prediction:
            return float(of_answer == of_prediction)
        shared = (collections.Counter(of_answer) & collections.Counter(of_prediction)).total()
        return 2 * shared / (len(of_answer) + len(of_prediction))

    def floors(self, parts: Parts) -> Mapping[str, Figures]:
        contexts = [each.inputs.partition(SECOND)[2] for each in parts.test]
        return {"copied input": self.judge(parts.test, contexts, parts).figures}


def _asked(path: Path) -> Iterator[tuple[str, str, str, list[str]]]:
    """Yields (where, question, text, answers) of each question."""
    if files.layout_of(path) in (".jsonl", ".parquet"):
        for where, row in files.rows(path, ("question", "context", "answers")):
            answers = row["answers"]
            if not isinstance(answers, Mapping):
                raise TypeError("answers is no object with the list text")
            yield where, str(row["question"]), str(row["context"]), answers["text"]
        return
    for number, article in enumerate(json.loads(files.text_of(path))["data"], 1):
        for paragraph in article["paragraphs"]:
            for asked in paragraph["qas"]:
                answers = [each["text"] for each in asked["answers"]]
                yield f"{path} article {number}", asked["question"], paragraph["context"], answers
