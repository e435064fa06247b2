"""The texts that a run has written at some of its steps, as the page's slider shows them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from limba.api import evenly
from limba.tools.pages.page.runs import MOST_EXAMPLES, Run

MOST_LETTERS = 600  # of a text
LEAST_LETTERS = 75
MOST_PROMPTS = 8  # of a run
MOST_STEPS = 24
LEAST_STEPS = 3
MOST_BYTES = 150_000  # of all texts together
# Han characters have other forms in each language, so a browser must know it; others need only the script.
LANGUAGES = (
    ("ja", re.compile("[\u3040-\u30ff]")),
    ("ko", re.compile("[\uac00-\ud7af\u1100-\u11ff]")),
    ("zh", re.compile("[\u4e00-\u9fff]")),
    ("und-Arab", re.compile("[\u0600-\u06ff]")),
    ("und-Hebr", re.compile("[\u0590-\u05ff]")),
    ("und-Thai", re.compile("[\u0e00-\u0e7f]")),
    ("und-Deva", re.compile("[\u0900-\u097f]")),
    ("und-Cyrl", re.compile("[\u0400-\u04ff]")),
)


class Panel(NamedTuple):
    """What one panel of the page is about: the same text in all runs and at all steps."""

    title: str
    prompt: str  # the prompt, or an example's input
    target: str  # of an example


class Sample(NamedTuple):
    """What a run has written for a panel at a step."""

    panel: Panel
    step: int
    texts: list[str]


def samples_of(runs: Sequence[Run], most_bytes: int = MOST_BYTES) -> list[dict[str, Any]]:
    """Returns the texts as the page's script reads them: {"title", "given", "target", "lang", "runs"}.

    A run is {"run": its number, "at": [[step, texts], …]}. Fewer steps, and then shorter texts, where all are larger
    than `most_bytes`.
    """
    most_steps = MOST_STEPS
    most_letters = MOST_LETTERS
    while True:
        panels = _panels(runs, most_steps, most_letters)
        is_small = len(json.dumps(panels, ensure_ascii=False).encode(errors="replace")) <= most_bytes
        if is_small:
            return panels
        if most_steps > LEAST_STEPS:
            most_steps //= 2
        elif most_letters > LEAST_LETTERS:
            most_letters //= 2
        else:
            return panels


def language_of(texts: Iterable[str]) -> str:
    """Returns the language, or the script, by which a browser chooses letters; "" for Latin ones.

    >>> language_of(["漢字", "かな"]), language_of(["漢字"]), language_of(["שלום"]), language_of(["salut"])
    ('ja', 'zh', 'und-Hebr', '')
    """
    whole = "".join(texts)
    for language, letters in LANGUAGES:
        if letters.search(whole):
            return language
    return ""


def _panels(runs: Sequence[Run], most_steps: int, most_letters: int) -> list[dict[str, Any]]:
    by_panel: dict[Panel, dict[int, list]] = {}  # a panel -> a run's number -> [[step, texts], ...]
    shown = set[Panel]()
    all_texts = list[str]()
    for number, run in enumerate(runs):
        of_run = dict[Panel, None]()
        for panel, step, texts in _samples(run, most_steps):
            texts = [_cut(text, most_letters) for text in texts[:MOST_EXAMPLES]]
            by_panel.setdefault(panel, {}).setdefault(number, []).append([step, texts])
            of_run[panel] = None
            all_texts += texts
        # Each run has MOST_PROMPTS panels of its own: a first run with many prompts must not hide the others'.
        in_order = [panel for panel in by_panel if panel in of_run]
        shown |= set(in_order[:MOST_PROMPTS])
    language = language_of(all_texts)
    return [
        {
            "title": panel.title,
            "given": _cut(panel.prompt, most_letters),
            "target": _cut(panel.target, most_letters),
            "lang": language,
            "runs": [{"run": number, "at": at} for number, at in by_run.items()],
        }
        for panel, by_run in by_panel.items()
        if panel in shown
    ]


def _samples(run: Run, most_steps: int) -> Iterator[Sample]:
    """Yields a run's texts: for its prompts first, then for validation examples, each at some steps in order."""
    records = run.history.samples
    for i in evenly(len(records), most_steps):
        for prompt, texts in records[i]["texts"].items():
            title = "Filled gaps" if "<extra_id_0>" in prompt else "Continued prompt"
            yield Sample(Panel(title, prompt, ""), records[i]["step"], _listed(texts))
    for task, examples in run.evaluations().items():
        yield from _of_examples(task, examples, most_steps)


def _of_examples(task: str, by_step: Mapping[int, Sequence[Mapping[str, str]]], most_steps: int) -> Iterator[Sample]:
    steps = list(by_step)
    for i in evenly(len(steps), most_steps):
        for example in by_step[steps[i]][:MOST_EXAMPLES]:
            panel = Panel(f"Validation example of {task}", example["input"], example["target"])
            yield Sample(panel, steps[i], [example["prediction"]])


def _listed(texts: object) -> list[str]:
    if isinstance(texts, list):
        return [str(text) for text in texts]
    return [str(texts)]


def _cut(text: str, most_letters: int) -> str:
    return text if len(text) <= most_letters else text[: most_letters - 1] + "…"
