"""The texts that wait on the page: of the run's validation text, else in its language, else none."""

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


def of_model(trained: TrainedModel) -> list[list[str]]:
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
