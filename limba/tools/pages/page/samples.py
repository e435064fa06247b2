"""Texts that a run has written by step: continued prompts, filled gaps, and predictions for validation examples."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from limba.api import evenly
from limba.tools.pages.page.runs import MOST_EXAMPLES, Run

MOST_LETTERS, LEAST_LETTERS = 600, 75  # of a text
MOST_PROMPTS = 8  # of a run
MOST_STEPS, LEAST_STEPS = 24, 3
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


def language_of(texts: Iterable[str]) -> str:
    """Returns the language, or the script, by which a browser chooses letters; "" for Latin ones.

    >>> language_of(["漢字", "かな"]), language_of(["漢字"]), language_of(["שלום"]), language_of(["salut"])
    ('ja', 'zh', 'und-Hebr', '')
    """
    whole = "".join(texts)
    return next((name for name, letters in LANGUAGES if letters.search(whole)), "")


def samples_of(runs: Sequence[Run], most_bytes: int = MOST_BYTES) -> list[dict[str, Any]]:
    """Returns the texts as the page's script reads them: {"title", "given", "target", "lang", "runs"}.

    A run is {"run": its number, "at": [[step, texts], …]}. Fewer steps, and then shorter texts, where all are larger
    than `most_bytes`.
    """
    steps, letters = MOST_STEPS, MOST_LETTERS
    while True:
        found = _panels(runs, steps, letters)
        is_small = len(json.dumps(found, ensure_ascii=False).encode()) <= most_bytes
        if is_small or (steps <= LEAST_STEPS and letters <= LEAST_LETTERS):
            return found
        steps, letters = (steps // 2, letters) if steps > LEAST_STEPS else (steps, letters // 2)


def _panels(runs: Sequence[Run], most_steps: int, most_letters: int) -> list[dict[str, Any]]:
    panels: dict[tuple[str, ...], dict[str, Any]] = {}
    for number, run in enumerate(runs):
        records = run.history.samples
        for place in evenly(len(records), most_steps):
            for prompt, texts in records[place]["texts"].items():
                title = "Filled gaps" if "<extra_id_0>" in prompt else "Continued prompt"
                _add(panels, (title, prompt, ""), number, records[place]["step"], _texts(texts), most_letters)
        for task, by_step in run.evaluations().items():
            for place in evenly(len(by_step), most_steps):
                step = list(by_step)[place]
                for example in by_step[step][:MOST_EXAMPLES]:
                    key = (f"Validation example of {task}", example["input"], example["target"])
                    _add(panels, key, number, step, [example["prediction"]], most_letters)
    language = language_of(
        text for panel in panels.values() for run in panel["runs"].values() for _, texts in run for text in texts
    )
    of_runs = ([key for key, panel in panels.items() if number in panel["runs"]] for number in range(len(runs)))
    shown = {key for keys in of_runs for key in keys[:MOST_PROMPTS]}
    return [
        {
            "title": title, "given": _cut(given, most_letters), "target": _cut(target, most_letters), "lang": language,
            "runs": [{"run": number, "at": at} for number, at in panel["runs"].items()],
        }
        for (title, given, target), panel in panels.items()
        if (title, given, target) in shown
    ]  # fmt: skip


def _add(panels: dict, key: tuple[str, ...], run: int, step: int, texts: Sequence[str], letters: int) -> None:
    panel: Mapping[str, dict[int, list]] = panels.setdefault(key, {"runs": {}})
    panel["runs"].setdefault(run, []).append([step, [_cut(text, letters) for text in texts[:MOST_EXAMPLES]]])


def _texts(texts: object) -> list[str]:
    return [str(text) for text in texts] if isinstance(texts, list) else [str(texts)]


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"
