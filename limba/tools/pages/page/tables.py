"""The parts of the page that are words: a headline, what the runs are and how they are configured, what happened."""

from __future__ import annotations

import dataclasses
import html
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from limba.api import duration, evenly
from limba.config import plain, prices, without_credentials
from limba.tools.pages.page.charts import short
from limba.tools.pages.page.runs import MOST_EXAMPLES, Run, events_of, thinned

MOST_EVENTS = 200  # of each run in the table
STAGE = "stage_"  # before the first step of a stage, in the names of its tokens
UNSET = object()


def facts(runs: Sequence[Run]) -> str:
    """Returns a table with a column for each run: how far it is, and its newest figures."""
    each = [_facts(run) for run in runs]
    names = dict.fromkeys(name for found in each for name in found)
    rows = [[name, *(found.get(name, "") for found in each)] for name in names]
    return table(["", *(run.name for run in runs)], rows, "The runs")


def _facts(run: Run) -> dict[str, str]:
    train, validation, config = run.train, run.history.tables["validation"], run.config
    read = config.data.stages_before(int(train.steps[-1]) if len(train) else 0)
    task = "; ".join(f"from step {begins:,} on {name}" if begins else name for begins, name in read)
    found = {"task": task, "directory": without_credentials(str(run.directory))}
    if isinstance(number := run.history.start.get("parameters"), int):
        found["parameters"] = short(number)
    if not len(train):
        found["step"] = "none yet: the run starts, or compiles its step"
    else:
        of = f" of {config.train_steps:,}" if config.train_steps else ""
        found["step"] = f"{train.steps[-1]:,.0f}{of}"
        found["last line"] = run.history.last_time.replace("T", " ").replace("+00:00", " UTC")
        totals = {name: axis[-1] for name, axis in run.axes().items()}
        if "hours" in totals:
            found["time in steps"] = duration(totals["hours"] * 3600)
        if "tokens" in totals:
            found["tokens read"] = short(totals["tokens"])
        if predicted := config.data.num_predicted:
            stages, tokens = config.data.predicted(config.train_steps or 0), config.data.batch_size
            whole = sum(steps * (masked + causal) for _, steps, masked, causal in stages)
            said = [f"{short(whole)} in the run"] if whole else []
            said.append(f"at most {short(predicted * tokens)} a step")
            for begins, _, *each in reversed(stages):
                share = sum(each) / (tokens * (config.data.sequence_length or 1))
                said.insert(0, f"from step {begins:,} on about {short(sum(each))} a step ({share:.0%})")
            found["tokens predicted"] = "; ".join(said).removeprefix("from step 0 on ")
        if "flop" in totals:
            found["FLOPs"] = f"{totals['flop']:.3g}"
        for name in ("loss", "tokens_per_second"):
            if name in train:
                found[{"loss": "training loss"}.get(name, "tokens per second")] = short(train.last(name))
    for name, said in (("loss", "validation loss"), ("bits_per_byte", "bits per byte"), ("accuracy", "token accuracy")):
        if name in validation and len(validation):
            found[said] = short(validation.last(name))
    found["state"] = run.holder if run.standing is None else run.standing.text
    return found


def corpora(runs: Sequence[Run]) -> str:
    """Returns the table of each corpus's newest figures: its epochs, and in a mixture its tokens; "" without any."""
    rows = []
    for run in runs:
        tokens, epochs = _newest(run, "tokens/"), _newest(run, "epochs/")
        tokens = {name: number for name, number in tokens.items() if "/" not in name}  # not those of one stage
        if len(epochs) == 1 and not tokens and (axis := run.axes().get("tokens")) is not None and len(axis):
            tokens = {name: float(axis[-1]) for name in epochs}  # all are of the one corpus
        total = sum(tokens.values())
        for name in dict.fromkeys([*epochs, *tokens]):
            read, share = tokens.get(name), tokens.get(name, 0.0) / total if total else 0.0
            rows.append(
                [
                    *([run.name] if len(runs) > 1 else []),
                    name,
                    f"{epochs[name]:,.2f}" if name in epochs else "",
                    "" if read is None else f"{read:,.0f}",
                    "" if read is None else f"{share:.1%}",
                ]
            )
    header = [*(["run"] if len(runs) > 1 else []), "corpus", "epochs", "tokens", "share of the tokens"]
    return table(header, rows, "Corpora") if rows else ""


def stages(runs: Sequence[Run]) -> str:
    """Returns the table of the tokens of each corpus in each stage of the data so far; "" without stages."""
    rows = []
    for run in runs:
        found: dict[int, dict[str, float]] = {}
        for name, number in _newest(run, f"tokens/{STAGE}").items():
            begins, _, corpus = name.partition("/")
            found.setdefault(int(begins), {})[corpus] = number
        for begins, tokens in sorted(found.items()):
            total = sum(tokens.values())
            for corpus, number in tokens.items():
                share = f"{number / total:.1%}" if total else ""
                rows.append([f"{begins:,}", *([run.name] if len(runs) > 1 else []), corpus, f"{number:,.0f}", share])
    header = ["from step", *(["run"] if len(runs) > 1 else []), "corpus", "tokens", "share of the stage's tokens"]
    return table(header, rows, "Stages") if rows else ""


def _newest(run: Run, prefix: str) -> dict[str, float]:
    """Returns the newest values of the logged figures with such names, without the prefix."""
    names = [name for name in run.train.names if name.startswith(prefix)] if len(run.train) else []
    found = {name.removeprefix(prefix): run.train.last(name) for name in names}
    return {name: value for name, value in found.items() if math.isfinite(value)}


def problems(runs: Sequence[Run]) -> str:
    """Returns a list of what could not be read; nothing if all could."""
    said = [f"{run.name}: {problem}" for run in runs for problem in run.problems]
    return f'<ul class="problems">{"".join(f"<li>{html.escape(each)}</li>" for each in said)}</ul>' if said else ""


def happened(runs: Sequence[Run]) -> str:
    """Returns the table of all events, the newest first."""
    rows = []
    for run in runs:
        for each in reversed(thinned(events_of(run), MOST_EVENTS)):
            time = each.time.replace("T", " ").replace("+00:00", " UTC")
            rows.append([*([run.name] if len(runs) > 1 else []), f"{each.step:,}", time, each.kind, each.said])
    header = [*(["run"] if len(runs) > 1 else []), "step", "time", "kind", "what happened"]
    return table(header, rows, "Events") if rows else ""


def configuration(runs: Sequence[Run]) -> str:
    """Returns the fields that differ from their defaults or between the runs, and behind a fold all fields."""
    each = [dict(_flat(json.loads(plain.to_text(run.config))["run"])) for run in runs]
    defaults = dict(_defaults(type(runs[0].config), runs[0].config))
    names = list(dict.fromkeys(name for fields in each for name in fields))
    chosen, others = [], []
    for name in names:
        values = [fields.get(name, UNSET) for fields in each]
        default = defaults.get(name, UNSET)
        differs = any(value != values[0] for value in values)
        mark = "differs between runs" if differs else "" if default is UNSET or values[0] == default else "not default"
        row = [name, *map(_said, values), _said(default) if default is not UNSET else "required", mark]
        (chosen if differs or default is UNSET or values[0] != default else others).append(row)
    header = ["field", *(run.name for run in runs), "default", ""]
    folded = f"<details><summary>The {len(others)} fields that have their default</summary>" if others else ""
    rest = f"{folded}{table(header[:-1], [row[:-1] for row in others], 'Fields with their default')}</details>"
    return table(header, chosen, "Fields that differ") + (rest if others else "")


def environment(runs: Sequence[Run]) -> str:
    """Returns the table of devices, programs and versions of each run's newest start; "" for old runs."""
    each = [run.history.start.get("environment", {}) for run in runs]
    each = [found if isinstance(found, dict) else {} for found in each]
    names = dict.fromkeys(name for found in each for name in found)
    rows = [[name, *(_said(found.get(name, "")) for found in each)] for name in names]
    return table(["", *(run.name for run in runs)], rows, "Environment") if rows else ""


def table(header: Sequence[str], rows: Iterable[Sequence[str]], caption: str) -> str:
    """Returns a table whose first column names its rows; all texts are escaped."""
    head = "".join(f'<th scope="col">{html.escape(name)}</th>' if name else "<td></td>" for name in header)
    body = "".join(
        f'<tr><th scope="row">{html.escape(name)}</th>{"".join(map(_cell, cells))}</tr>' for name, *cells in rows
    )
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{html.escape(caption)}"><table>'
        f'<caption class="hidden">{html.escape(caption)}</caption><thead><tr>{head}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )


def _cell(text: str) -> str:
    return f'<td dir="auto">{html.escape(text)}</td>'


def _said(value: object) -> str:
    if value is UNSET:
        return ""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def _flat(values: Mapping[str, object], prefix: str = "") -> Iterator[tuple[str, object]]:
    for name, value in values.items():
        if isinstance(value, dict) and name != "task_feature_lengths":
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _defaults(kind: type, of: object, prefix: str = "") -> Iterator[tuple[str, object]]:
    """Yields the default of each field that has one, as plain data; `of` is an object of the kind."""
    for field in dataclasses.fields(kind):
        name, value = f"{prefix}{field.name}", getattr(of, field.name)
        if dataclasses.is_dataclass(value):
            if field.default_factory is not dataclasses.MISSING:
                # The default of a part may differ from the defaults of its kind.
                yield from _flat(plain.as_data(field.default_factory()), f"{name}.")
            else:
                yield from _defaults(type(value), value, f"{name}.")
        elif field.default is not dataclasses.MISSING:
            yield name, plain.as_data(field.default)
        elif field.default_factory is not dataclasses.MISSING:
            yield name, plain.as_data(field.default_factory())


LEVEL = 0.005  # a smaller share of the loss is no change
LEAST_POINTS = 4  # for a trend
LINES = 100  # the newest, whose median is the time of a step


def headline(runs: Sequence[Run]) -> str:
    """Returns a paragraph for each run that has ended, and one for each that has figures; texts are escaped."""
    paragraphs = []
    for run in runs:
        name = f"<b>{html.escape(run.name)}</b>: " if len(runs) > 1 else ""
        if run.standing is not None:
            kind = ' class="wrong"' if run.standing.is_wrong else ""
            word, sentence = html.escape(run.standing.word), html.escape(run.standing.sentence)
            paragraphs.append(f"<p{kind}>{name}<strong>{word}</strong> {sentence}</p>")
        if len(run.train):
            best, *rest = sentences(run)
            paragraphs.append(f"<p>{name}<strong>{html.escape(best)}</strong> {html.escape(' '.join(rest))}</p>")
    return "".join(paragraphs)


def sentences(run: Run) -> Iterator[str]:
    """Yields the best loss first, then what is known of its trend, of the time that is left and of the cost."""
    table, name = run.history.tables["validation"], "validation loss"
    if not len(table) or "loss" not in table or not np.isfinite(table["loss"]).any():
        table, name = run.train, "training loss"
    values = table["loss"] if "loss" in table else np.full(len(table), np.nan)
    steps, losses = table.steps[np.isfinite(values)], values[np.isfinite(values)]
    if not len(losses):
        yield f"No finite {name} yet."
    else:
        best = int(np.argmin(losses))
        yield f"Best {name}: {short(losses[best])} at step {steps[best]:,.0f}."
        if run.standing is None or run.standing.word == "DONE":  # the trend of a run that failed is no news
            yield from _trend(steps, losses, name)
    if run.standing is None:
        yield from _left(run)
    yield from _cost(run)


def _trend(steps: np.ndarray, losses: np.ndarray, name: str) -> Iterator[str]:
    """Yields how the mean of the last quarter of the steps differs from that of the quarter before."""
    span = (steps[-1] - steps[0]) / 4
    newest, before = steps > steps[-1] - span, (steps > steps[-1] - 2 * span) & (steps <= steps[-1] - span)
    if len(losses) < LEAST_POINTS or not before.any():
        return
    change = float(losses[newest].mean() / losses[before].mean() - 1)
    kind = "no longer falls" if abs(change) < LEVEL else "still falls" if change < 0 else "rises"
    yield f"The {name} {kind}: {change:+.1%} from one quarter of the steps to the last.".replace("-", "−")


def _left(run: Run) -> Iterator[str]:
    """Yields the time to the last step, by the newest lines."""
    steps = run.config.train_steps
    if not steps or "seconds_per_step" not in run.train:
        return
    left = max(steps - int(run.train.steps[-1]), 0)
    seconds = float(np.nanmedian(run.train["seconds_per_step"][-LINES:])) * left
    if np.isfinite(seconds):
        yield f"{duration(seconds)} left to step {steps:,}."


def _cost(run: Run) -> Iterator[str]:
    """Yields the time in steps, and its price where the devices have one."""
    environment, hours = run.history.start.get("environment"), run.axes().get("hours")
    devices = str(environment.get("devices", "")) if isinstance(environment, dict) else ""
    count, _, kind = devices.partition(" x ")
    if hours is None or not len(hours) or not count.isdecimal():
        return
    spent = f"{duration(hours[-1] * 3600)} in steps on {devices}"
    price = prices.device_price(kind)
    if price is None:
        yield f"{spent}."
    else:
        yield f"{spent}: ${price * int(count) * hours[-1]:,.2f} by the list price of {prices.DATE}."


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
