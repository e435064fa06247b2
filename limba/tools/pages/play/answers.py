"""What the page asks of a model: how a text is tokenized, and what the model writes, piece by piece."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from limba.config import ConfigError, InputError
from limba.config.generation import GenerationFields
from limba.tools.pages.play.examples import examples_of, writes_targets

if TYPE_CHECKING:
    from limba.api import Deadline, TrainedModel

Json = dict[str, Any]

MOST_LETTERS = 20_000  # of a text
MOST_TOKENS = 512  # that one answer may have
MOST_BEAMS = 8
MOST_SAMPLES = 8
MOST_FILLS = 20
MAX_SECONDS = 120.0  # that one answer may take
WAYS = ("greedy", "beams", "sample")


class TooLongError(InputError):
    """A text is longer than the page takes."""


def checked_text(asked: Json) -> str:
    """Returns the text of a question; InputError if there is none, TooLongError if it is too long."""
    text = asked.get("text")
    if not isinstance(text, str) or not text.strip():
        raise InputError("There is no text; write one.")
    if any("\ud800" <= letter <= "\udfff" for letter in text):
        raise InputError("The text has half of a letter (a lone surrogate, \\ud800 to \\udfff in JSON); remove it.")
    if len(text) > MOST_LETTERS:
        raise TooLongError(f"The text has {len(text):,} letters; give at most {MOST_LETTERS:,}.")
    return text


def number(asked: Json, name: str, default: float, least: float, most: float) -> float:
    """Returns a number of a question, or its default; InputError if it is not a number, or outside of the bounds.

    >>> number({"top_k": "7"}, "top_k", 20, 1, 100)
    7.0
    """
    value = asked.get(name, default)
    try:
        checked = float(value)
    except (TypeError, ValueError, OverflowError):  # the last for a whole number that float64 does not hold
        checked = float("nan")  # which is outside of all bounds
    if not least <= checked <= most:
        raise InputError(f"{name} is {value!r}; give a number from {least:g} to {most:g}.")
    return checked


def generation_fields(asked: Json) -> GenerationFields:
    """Returns the fields of GenerationConfig that a question means."""
    way = asked.get("way", "greedy")
    if way not in WAYS:
        raise InputError(f"way is {way!r}; give one of {', '.join(WAYS)}.")
    fields = GenerationFields(
        max_tokens=int(number(asked, "max_tokens", 64, 1, MOST_TOKENS)), sample=False, num_beams=1, num_samples=1,
        temperature=1.0, top_k=None, top_p=None, ban_sentinels=not asked.get("keep_sentinels", True),
    )  # fmt: skip
    if way == "beams":
        num_beams = int(number(asked, "num_beams", 4, 2, MOST_BEAMS))
        fields["num_beams"] = num_beams
        fields["num_samples"] = num_beams  # all are shown
    if way == "sample":
        fields["sample"] = True
        fields["num_samples"] = int(number(asked, "num_samples", 3, 1, MOST_SAMPLES))
        fields["temperature"] = number(asked, "temperature", 0.8, 0.01, 10)
        fields["top_k"] = int(number(asked, "top_k", 20, 1, 100_000))
        fields["seed"] = int(number(asked, "seed", 0, 0, 2**31))
    return fields


class Player:
    """A model that answers the page's questions; `name` is what the page calls it.

    It must be asked one question at a time: `server` sees to that. A text takes `max_seconds` of `clock` at most.
    """

    def __init__(
        self,
        name: str,
        trained: TrainedModel,
        max_seconds: float = MAX_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ):
        from limba.api import PieceTable

        self.name = name
        self._trained = trained
        self._max_seconds = max_seconds
        self._clock = clock
        self._table = PieceTable(trained.vocabulary)
        self._pieces = self._table.spelled(trained.network.config.vocab_size)
        self._sentinels = self._table.sentinels
        self._special = trained.special_ids
        # The lowest id that may be text: of our own ids 0 is padding, and published ones may use it for a piece.
        self._least = 0 if self._special.is_published else 1
        self._examples = examples_of(trained)
        self._so_far = ("", "")  # the question whose text is being written, by its id, and that text

    def facts(self) -> Json:
        """Returns what the page shows of the model."""
        import jax

        model = self._trained.network.config
        writes = model.has_logits and not model.is_encoder
        if model.is_encoder:
            fills = model.has_logits
        else:
            has_gaps = writes and not model.is_decoder_only and bool(self._sentinels)
            fills = has_gaps and not writes_targets(self._trained)
        return {
            "name": self.name,
            "step": self._trained.step,
            "continues": model.is_decoder_only and writes and not self._trained.answers,
            "writes": writes,
            "fills": fills,
            "examples": self._examples,
            "parameters": sum(int(leaf.size) for leaf in jax.tree.leaves(self._trained.params)),
            "letters": MOST_LETTERS,
            "length": None if model.is_decoder_only else int(self._trained.lengths["inputs"]),
        }

    def tokens(self, asked: Json) -> Json:
        """Returns the pieces of a text, as the network reads them, and its bytes."""
        text = checked_text(asked)
        ids = self._trained.tokenize(text)
        return {"pieces": [self._piece(token) for token in ids.tolist()], "bytes": len(text.encode())}

    def fill(self, asked: Json) -> Json:
        """Returns the likeliest fills of each gap of a text, best first, as `TrainedModel.fill`; errors as `texts`."""
        text = checked_text(asked)
        top = int(number(asked, "top", 5, 1, MOST_FILLS))
        began = time.monotonic()
        gaps = []
        for fills in self._trained.fill(text, top, self._deadline()):
            gaps.append([{"text": fill.text, "probability": round(fill.probability, 6)} for fill in fills])
        return {"gaps": gaps, "seconds": round(time.monotonic() - began, 3)}

    def so_far(self, question: str) -> Json:
        """Returns the first text that is being written for the question of this id; "" before it, and for others."""
        written_for, text = self._so_far
        return {"text": text if written_for == question else ""}

    def texts(self, asked: Json) -> Json:
        """Returns the texts that the model writes, best first, each with the probability of each piece.

        The probability of a piece is conditional on all pieces before it, at temperature 1 and among all pieces. Pieces
        end where a gap begins that the text does not have. Raises TimeIsOverError soon after `max_seconds`.
        """
        text = checked_text(asked)
        fields = generation_fields(asked)
        began = time.monotonic()
        ids = self._trained.tokenize(text)
        gaps = [sentinel for sentinel in self._sentinels if sentinel in ids]
        deadline = self._deadline(self._watcher(str(asked["id"]), ids, gaps) if asked.get("id") else None)
        try:
            config = self._trained.generation.replaced(**fields)
        except ConfigError as error:
            raise InputError(str(error)) from None
        (written,) = self._trained.written([text], config, deadline)
        deadline.check()  # before the probabilities, which take as long again
        ends = set(self._special.ends)
        if gaps:
            ends |= set(self._sentinels) - set(gaps)
        targets = [self._targets(generated.ids, ends) for generated in written]
        logits = self._trained.logits_of_ids([(ids, row) for row in targets])
        answers = []
        for generated, row, row_logits in zip(written, targets, logits, strict=True):
            probabilities = _probabilities(row_logits, row)
            pieces = []
            for token, probability in zip(row.tolist(), probabilities, strict=True):
                pieces.append({**self._piece(token), "probability": round(float(probability), 6)})
            answer: Json = {"text": generated.text, "pieces": pieces, "score": float(np.log(probabilities).sum())}
            if gaps:
                answer["filled"] = self._table.filled(ids.tolist(), generated.ids.tolist())
            answers.append(answer)
        return {"texts": answers, "input_tokens": len(ids), "seconds": round(time.monotonic() - began, 3)}

    def _deadline(self, watch: Callable[[np.ndarray], None] | None = None) -> Deadline:
        from limba.api import Deadline

        return Deadline(self._max_seconds, self._clock, watch)

    def _watcher(self, question: str, ids: np.ndarray, gaps: Sequence[int]) -> Callable[[np.ndarray], None]:
        """Returns a function that keeps the text of a question as it is written, for `so_far`."""

        def watch(written: np.ndarray) -> None:
            shown = written[written >= self._least].tolist()
            if gaps:
                text = self._table.filled(ids.tolist(), shown)
            else:
                text = self._trained.vocabulary.decode(shown)
            self._so_far = question, text

        return watch

    def _targets(self, ids: np.ndarray, ends: set[int]) -> np.ndarray:
        """Returns the ids of a written text up to and with the first end, without padding; at least one id."""
        ids = np.asarray(ids, np.int32)
        end_indices = np.flatnonzero(np.isin(ids, list(ends)))
        if end_indices.size:
            ids = ids[: end_indices[0] + 1]
        ids = ids[ids >= self._least]
        if len(ids):
            return ids
        # Nothing was written. The page shows the probability of the end then, or of padding for a model without one.
        end = self._special.end
        return np.asarray([self._special.filling if end is None else end], np.int32)

    def _piece(self, token: int) -> Json:
        """Returns one piece as the page shows it: its text, id, bytes, and whether it is a gap's name or the end."""
        special = {} if self._special.is_published else {0: "<s>"}
        special.update(dict.fromkeys(self._special.ends, "</s>"))
        special.update({sentinel: f"<extra_id_{i}>" for i, sentinel in enumerate(self._sentinels)})
        if token in special:
            return {"text": special[token], "id": token, "bytes": 0, "special": True}
        spelled = self._pieces[token] if token < len(self._pieces) else b""
        text = spelled.decode("utf-8", "backslashreplace")  # part of a letter is shown by its bytes
        return {"text": text, "id": token, "bytes": len(spelled), "special": not spelled}


def _probabilities(logits: np.ndarray, targets: np.ndarray) -> np.ndarray:
    """Returns the probability of each target, float64 [Q], from logits [Q V].

    >>> _probabilities(np.log(np.asarray([[0.25, 0.75]])), np.asarray([1])).round(6).tolist()
    [0.75]
    """
    rows = np.asarray(logits, np.float64)
    rows = rows - rows.max(-1, keepdims=True)
    chosen = rows[np.arange(len(targets)), targets]
    return np.exp(chosen - np.log(np.exp(rows).sum(-1)))
