"""Texts with which a model can be tried: sentences of its validation text, else one in its language."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from limba.config import InputError, RunConfig, StorageError

if TYPE_CHECKING:
    from limba.api import TrainedModel

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
    """Returns texts as pieces, plain text and a hidden word in turn; only the beginnings for a language model."""
    run = trained.config
    if not isinstance(run, RunConfig):
        return []
    examples = _of_validation(trained, run)
    if examples is None:
        texts = [BY_LANGUAGE[code] for code in run.card.language or () if code in BY_LANGUAGE]
        examples = [re.split(r"[\[\]]", text) for text in texts]
    if run.model.is_decoder_only and not run.model.is_encoder:
        return [pieces[:1] for pieces in examples]
    return examples


def writes_targets(trained: TrainedModel) -> bool:
    """Returns whether a run has taught the model to write the targets of pairs, and not the text of gaps."""
    from limba.api import RunData

    run = trained.config
    if not isinstance(run, RunConfig):
        return False
    try:
        return RunData(run.data, trained.task).has_pairs
    except (InputError, StorageError, OSError):  # its task cannot be read here
        return False


def _of_validation(trained: TrainedModel, run: RunConfig) -> list[list[str]] | None:
    """Returns sentences of the validation text, none for pairs; None where the text cannot be read here."""
    from limba.api import RunData, Texts

    try:
        data = RunData(run.data, trained.task)
        if data.has_pairs:
            return []
        sentences = Texts.of_task(data.parts[0]).sentences(run.data.validation_split)
    except (InputError, StorageError, OSError):
        return None
    examples = list[list[str]]()
    for sentence in sentences:
        plain_text = re.split(r"<extra_id_\d+>", sentence.masked)
        pieces = list[str]()
        for before, word in zip(plain_text, sentence.words, strict=False):
            pieces += [before, word]
        examples.append([*pieces, plain_text[-1]])
    return examples or None
