"""Puts a model's results into its card: the hub's `model-index`, and a section with the table."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import huggingface_hub

from limba.api import write_whole
from limba.config import InputError, untrusted_files
from limba.tools.results.suites import Suite
from limba.tools.results.table import Table

TASKS = {  # the hub's names of what each kind is
    "MinimalPairs": "text-generation",
    "BitsPerByte": "text-generation",
    "Classification": "text-classification",
    "Similarity": "sentence-similarity",
    "NamedEntities": "token-classification",
    "PartOfSpeech": "token-classification",
}
BEGIN = "<!-- limba results {} -->"
END = "<!-- end of limba results {} -->"


def read(card: Path) -> huggingface_hub.ModelCard:
    """Returns the card of a model; InputError for one whose metadata cannot be read."""
    with untrusted_files.reading(card, "correct its metadata"):
        return huggingface_hub.ModelCard(untrusted_files.text_of(card))


def languages(card: Path) -> list[str]:
    """Returns the languages that a model's card names; [] without any, or without a card that can be read."""
    named = None
    with contextlib.suppress(InputError), untrusted_files.reading(card):
        untrusted_files.check_regular(card)
        named = (huggingface_hub.metadata_load(card) or {}).get("language")
    if named is None:
        return []
    codes = named if isinstance(named, list) else [named]
    return ["no" if code is False else str(code) for code in codes]  # YAML's `no` is False, here Norwegian


def put(card: Path, columns: Sequence[str], table: Table, suite: Suite, notes: Sequence[str]) -> None:
    """Writes the figures of a model into a card, replacing the suite's earlier ones.

    A hybrid has several columns, one for each way of scoring; a figure then has the column beside its name.
    """
    old_card = read(card)
    data = old_card.data
    assert isinstance(data, huggingface_hub.ModelCardData), "what ModelCard reads"
    kinds: Mapping[str, str] = {task.name: TASKS[type(task).__name__] for task in suite.tasks}
    figures = [
        huggingface_hub.EvalResult(
            kinds[task],
            f"{suite.name}/{task}",
            f"{task} of the suite {suite.name}",
            name.replace(" ", "_"),
            round(cells[column].mean, 2),
            metric_name=name if len(columns) == 1 else f"{name} ({column})",
            dataset_args={"protocol": cells[column].protocol} if cells[column].protocol else None,
        )
        for (task, name), cells in table.cells.items()
        for column in columns
        if column in cells
    ]
    others = [result for result in data.eval_results or [] if not result.dataset_type.startswith(f"{suite.name}/")]
    data.eval_results = [*others, *figures]
    data.model_name = data.get("model_name") or card.parent.resolve().name
    # YAML reads `no`, Norwegian, as False.
    if data.language is False or isinstance(data.language, list):
        data.language = languages(card)
    begin = BEGIN.format(suite.name)
    end = END.format(suite.name)
    lines = "\n".join(f"{number}. {' '.join(note.split())}" for number, note in enumerate(notes, 1))
    section = f"{begin}\n## Results: {suite.name}\n\n{table.markdown()}\n\n{lines}\n{end}\n"
    text = re.sub(rf"\n*{re.escape(begin)}.*?{re.escape(end)}\n?", "\n", old_card.text, flags=re.DOTALL)
    write_whole(str(card), f"---\n{data.to_yaml()}\n---\n{text.rstrip()}\n\n{section}")
