"""Multiple choice by score: of some answers to a question, a model should find the right one most likely."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from limba.config import InputError, kinds
from limba.config.kinds import NonNegativeInt, PositiveInt
from limba.tools.results import files
from limba.tools.results.kinds.pairs import FIRST, LAST
from limba.tools.results.outcome import Figures, Outcome, bootstrap
from limba.tools.results.protocol import PROTOCOL

if TYPE_CHECKING:
    from limba.api import TrainedModel


class Choice(NamedTuple):
    """A question with its answers, and the place of the right one."""

    question: str
    answers: tuple[str, ...]
    right: int


@dataclass(frozen=True)
class MultipleChoice:
    """A task: the share of questions whose right answer is the most likely one, in percent.

    `accuracy` compares the log likelihoods of whole answers, `accuracy per byte` those divided by their bytes of UTF-8.
    """

    name: str
    file: str
    question: tuple[str, ...] = ("question",)  # columns that are read, such as a passage and a question
    answers: tuple[str, ...] = ("choice0", "choice1", "choice2", "choice3", "choice4")
    label: str = "label"
    first: NonNegativeInt = 0  # the number of the first answer: 1 in Belebele
    shots: NonNegativeInt = 0  # questions of `train`, with their answers, that a language model reads before each one
    train: str | None = None
    most: PositiveInt | None = None  # questions that are read; None: all

    main = "accuracy"

    def __post_init__(self) -> None:
        kinds.check(self)
        if self.shots and self.train is None:
            raise InputError(f"The task {self.name} has shots and no train to take them from; name a file.")

    @property
    def files(self) -> tuple[str, ...]:
        return (self.file,) if self.train is None else (self.file, self.train)

    def read(self, folder: str) -> list[Choice]:
        """Returns the questions, each with the shots before it; InputError for a file of another layout."""
        shown = self._of(folder, self.train)[: self.shots] if self.train else []
        before = "".join(f"{each.question} {each.answers[each.right]}{PROTOCOL.after_answer}" for each in shown)
        found = [each._replace(question=before + each.question) for each in self._of(folder, self.file)]
        if not found:
            raise InputError(f"{self.file} of the task {self.name} holds no questions; name another file.")
        return found[: self.most]

    def _of(self, folder: str, name: str) -> list[Choice]:
        found = []
        for where, row in files.rows(files.place_of(folder, name), (*self.question, *self.answers, self.label)):
            number = str(row[self.label]).strip()
            right = int(number) - self.first if number.isdecimal() else -1
            if not 0 <= right < len(self.answers):
                raise InputError(
                    f"{where}: the column {self.label} is {number!r}; give the number of an answer, {self.first} to"
                    f" {self.first + len(self.answers) - 1}."
                )
            question = " ".join(" ".join(str(row[each]).split()) for each in self.question)
            found.append(Choice(question, tuple(" ".join(str(row[each]).split()) for each in self.answers), right))
        return found

    def tests(self, choices: Sequence[Choice]) -> Sequence[str]:
        """Returns the texts that a training corpus should not hold."""
        return [each.question.rpartition(PROTOCOL.after_answer)[2] for each in choices]

    def measure(self, trained: TrainedModel, choices: Sequence[Choice]) -> Outcome:
        """Returns the shares of a model: a T5's answers fill a gap after the question, others' follow it."""
        network = trained.network.config
        is_decoder = network.is_decoder_only
        has_shots = is_decoder and not network.is_encoder
        read = lambda each: each.question if has_shots else each.question.rpartition(PROTOCOL.after_answer)[2]
        texts = [
            (read(each), answer) if is_decoder else (f"{read(each)} {FIRST}", f"{FIRST} {answer} {LAST}")
            for each in choices
            for answer in each.answers
        ]
        found = trained.log_likelihoods(texts, ends=not is_decoder).reshape(len(choices), -1)
        sizes = np.array([[max(1, len(answer.encode())) for answer in each.answers] for each in choices])
        right = np.array([each.right for each in choices])
        shares = {"accuracy": found.argmax(1) == right, "accuracy per byte": (found / sizes).argmax(1) == right}
        hits = {name: (each * 100.0).tolist() for name, each in shares.items()}
        intervals = {name: bootstrap(each, PROTOCOL.resamples, PROTOCOL.confidence) for name, each in hits.items()}
        return Outcome(
            {name: float(np.mean(each)) for name, each in hits.items()}, intervals, notes={"questions": len(choices)}
        )

    def floors(self, choices: Sequence[Choice]) -> Mapping[str, Figures]:
        """Returns the figures of chance, and of the place that is right most often."""
        counts = np.bincount([each.right for each in choices], minlength=len(self.answers))
        most = 100 * float(counts.max()) / len(choices)
        chance = 100 / len(self.answers)
        return {"chance": dict.fromkeys(("accuracy", "accuracy per byte"), chance), "majority": {"accuracy": most}}
