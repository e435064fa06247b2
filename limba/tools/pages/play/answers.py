"""What the page asks of a model: how a text is tokenized, and what the model writes, piece by piece."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from limba.config import ConfigError, InputError, RunConfig, StorageError
from limba.config.generation import GenerationFields

if TYPE_CHECKING:
    from limba.api import Deadline, TrainedModel

# By the language of the run's card; a [word] is hidden.
BY_LANGUAGE = {
    "de": "Der Zug [fährt] um neun Uhr ab und kommt am [Abend] in der Stadt an.",
    "en": "The train [leaves] at nine and arrives in the city in the [evening].",
    "es": "El tren [sale] a las nueve y llega a la ciudad por la [tarde].",
    "fr": "Le train [part] à neuf heures et arrive en ville dans la [soirée].",
    "id": "Kereta itu [berangkat] pukul sembilan dan tiba di kota pada [malam] hari.",
    "ja": "電車は九時に[出発]して、[夕方]に町に着きます。",
    "ms": "Kereta api itu [bertolak] pada pukul sembilan dan tiba di bandar pada waktu [petang].",
    "ro": "Trenul [pleacă] la ora nouă și ajunge în oraș [seara].",
}


def examples_of(trained: TrainedModel) -> list[list[str]]:
    """Returns texts as pieces: plain text and a hidden word in turn; of a language model their beginnings alone."""
    run = trained.config
    if not isinstance(run, RunConfig):
        return []
    found = _of_validation(trained, run)
    if found is None:
        texts = [BY_LANGUAGE[code] for code in run.card.language or () if code in BY_LANGUAGE]
        found = [re.split(r"[\[\]]", text) for text in texts]
    continues = run.model.is_decoder_only and not run.model.is_encoder
    return [pieces[:1] for pieces in found] if continues else found


def _of_validation(trained: TrainedModel, run: RunConfig) -> list[list[str]] | None:
    """Returns sentences of the validation text, none for pairs; None where the text cannot be read here."""
    from limba.api import RunData, Texts

    try:
        data = RunData(run.data, trained.task)
        if data.has_pairs:
            return []
        hidden = Texts.of_task(data.parts[0]).sentences(run.data.validation_split)
    except (InputError, StorageError, OSError):
        return None
    found = list[list[str]]()
    for each in hidden:
        plain = re.split(r"<extra_id_\d+>", each.masked)
        found.append([*(piece for pair in zip(plain, each.words, strict=False) for piece in pair), plain[-1]])
    return found or None


def writes_targets(trained: TrainedModel) -> bool:
    """Returns whether a run has taught the model to write the targets of pairs, and not what stood in gaps."""
    from limba.api import RunData

    run = trained.config
    if not isinstance(run, RunConfig):
        return False
    try:
        return RunData(run.data, trained.task).has_pairs
    except (InputError, StorageError, OSError):  # its task cannot be read here
        return False


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
    """Returns a number of a question, or its default; InputError if it is none, or outside of the bounds.

    >>> number({"top_k": "7"}, "top_k", 20, 1, 100)
    7.0
    """
    value = asked.get(name, default)
    try:
        found = float(value)
    except (TypeError, ValueError):
        found = float("nan")
    if not least <= found <= most:
        raise InputError(f"{name} is {value!r}; give a number from {least:g} to {most:g}.")
    return found


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
        fields["num_beams"] = fields["num_samples"] = int(number(asked, "num_beams", 4, 2, MOST_BEAMS))
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

        self.name, self._trained, self._max_seconds, self._clock = name, trained, max_seconds, clock
        self._table = PieceTable(trained.vocabulary)
        self._sentinels, self._special = self._table.sentinels, trained.special_ids
        self._least = 0 if self._special.is_published else 1  # the lowest id that may be text
        self._examples = examples_of(trained)
        self._so_far = ("", "")  # the question whose text is being written, by its id, and that text
        self._pieces = self._table.spelled(trained.network.config.vocab_size)

    def about(self) -> Json:
        """Returns what the page says of the model."""
        import jax

        model = self._trained.network.config
        writes = model.has_logits and not model.is_encoder
        has_gaps = writes and not model.is_decoder_only and bool(self._sentinels)
        return {
            "name": self.name,
            "step": self._trained.step,
            "continues": model.is_decoder_only and writes,
            "writes": writes,
            "fills": (model.is_encoder and model.has_logits) or (has_gaps and not writes_targets(self._trained)),
            "examples": self._examples,
            "parameters": sum(int(leaf.size) for leaf in jax.tree.leaves(self._trained.params)),
            "letters": MOST_LETTERS,
            "length": None if model.is_decoder_only else int(self._trained.lengths["inputs"]),
        }

    def tokens(self, asked: Json) -> Json:
        """Returns the pieces of a text, as the network reads them, and its bytes."""
        text = checked_text(asked)
        ids = self._trained.tokenize(text)
        return {"pieces": [self._piece(each) for each in ids.tolist()], "bytes": len(text.encode())}

    def fill(self, asked: Json) -> Json:
        """Returns the likeliest fills of each gap of a text, best first, as `TrainedModel.fill`; errors as `texts`."""
        text, top, began = checked_text(asked), int(number(asked, "top", 5, 1, MOST_FILLS)), time.monotonic()
        found = self._trained.fill(text, top, self._deadline())
        gaps = [[{"text": fill.text, "probability": round(fill.probability, 6)} for fill in gap] for gap in found]
        return {"gaps": gaps, "seconds": round(time.monotonic() - began, 3)}

    def so_far(self, question: str) -> Json:
        """Returns the first text that is being written for the question of this id; "" before it, and for others."""
        asked, text = self._so_far
        return {"text": text if asked == question else ""}

    def _deadline(self, watch: Callable[[np.ndarray], None] | None = None) -> Deadline:
        from limba.api import Deadline

        return Deadline(self._max_seconds, self._clock, watch)

    def texts(self, asked: Json) -> Json:
        """Returns the texts that the model writes, best first, each with the probability of each piece.

        A probability is that of the piece after those before it, at temperature 1 and among all pieces. Pieces end
        where a gap begins that the text does not have. Raises TimeIsOverError soon after `max_seconds`.
        """
        text, fields = checked_text(asked), generation_fields(asked)
        trained, began = self._trained, time.monotonic()
        ids = trained.tokenize(text)
        gaps = [each for each in self._sentinels if each in ids]

        def watch(written: np.ndarray) -> None:
            shown = written[written >= self._least].tolist()
            said = self._table.filled(ids.tolist(), shown) if gaps else trained.vocabulary.decode(shown)
            self._so_far = str(asked.get("id", "")), said

        deadline = self._deadline(watch if asked.get("id") else None)
        try:
            config = trained.generation.replaced(**fields)
        except ConfigError as error:
            raise InputError(str(error)) from None
        (written,) = trained.written([text], config, deadline)
        deadline.check()
        ends = {*self._special.ends, *(set(self._sentinels) - set(gaps) if gaps else ())}
        pairs = [(ids, self._targets(each.ids, ends)) for each in written]
        rows = trained.logits_of_ids(pairs)
        found = []
        for each, (_, targets), row in zip(written, pairs, rows, strict=True):
            chosen = _probabilities(row, targets)
            scored = zip(targets.tolist(), chosen, strict=True)
            pieces = [{**self._piece(token), "probability": round(float(p), 6)} for token, p in scored]
            answer: Json = {"text": each.text, "pieces": pieces, "score": float(np.log(chosen).sum())}
            if gaps:
                answer["filled"] = self._table.filled(ids.tolist(), each.ids.tolist())
            found.append(answer)
        return {"texts": found, "input_tokens": len(ids), "seconds": round(time.monotonic() - began, 3)}

    def _targets(self, ids: np.ndarray, ends: set[int]) -> np.ndarray:
        """Returns the ids of a written text up to the first end, which is among them, without padding."""
        ids = np.asarray(ids, np.int32)
        places = np.flatnonzero(np.isin(ids, list(ends)))
        kept = ids[: places[0] + 1 if places.size else len(ids)]
        kept = kept[kept >= self._least]
        if len(kept):
            return kept
        return np.asarray([self._special.filling if self._special.end is None else self._special.end], np.int32)

    def _piece(self, token: int) -> Json:
        """Returns one piece as the page shows it: its text, id, bytes, and whether it is a gap's name or the end."""
        special = {} if self._special.is_published else {0: "<s>"}
        special.update(dict.fromkeys(self._special.ends, "</s>"))
        special.update({each: f"<extra_id_{i}>" for i, each in enumerate(self._sentinels)})
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
