"""The tables of the page: what the runs are and how they are configured, their corpora, and what happened."""

from __future__ import annotations

import dataclasses
import html
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from limba.api import duration
from limba.config import saved_config, without_credentials
from limba.tools.pages.page.charts import short
from limba.tools.pages.page.events import events_of, thinned
from limba.tools.pages.page.runs import Run

MOST_EVENTS = 200  # of each run in the table
STAGE = re.compile(r"stage_(\d+)/(.+)", re.ASCII)  # the step that a stage begins at and the task, of its tokens
UNSET = object()  # a field that a run's configuration lacks, or that has no default
TRAINING_FIGURES = (("loss", "training loss"), ("tokens_per_second", "tokens per second"))
VALIDATION_FIGURES = (("loss", "validation loss"), ("bits_per_byte", "bits per byte"), ("accuracy", "token accuracy"))


def facts(runs: Sequence[Run]) -> str:
    """Returns a table with a column for each run: how far it is, and its newest figures."""
    by_run = [_facts(run) for run in runs]
    names = dict.fromkeys(name for of_run in by_run for name in of_run)
    rows = [[name, *(of_run.get(name, "") for of_run in by_run)] for name in names]
    return table(["", *(run.name for run in runs)], rows, "The runs")


def _facts(run: Run) -> dict[str, str]:
    """Returns name -> text of a run's facts, in the order of the table's rows."""
    facts = {"task": _tasks(run), "directory": without_credentials(str(run.directory))}
    parameters = run.history.start.get("parameters")
    if isinstance(parameters, int):
        facts["parameters"] = short(parameters)
    if len(run.train):
        facts |= _facts_of_training(run)
    else:
        facts["step"] = "none yet: the run starts, or compiles its step"
    validation = run.history.tables["validation"]
    for column, name in VALIDATION_FIGURES:
        if len(validation) and column in validation:
            facts[name] = short(validation.last(column))
    facts["state"] = run.holder if run.standing is None else run.standing.text
    return facts


def _tasks(run: Run) -> str:
    """Returns the task, or the tasks of the stages that the run has begun."""
    newest_step = int(run.train.steps[-1]) if len(run.train) else 0
    tasks = []
    for begins, name in run.config.data.stages_before(newest_step):
        tasks.append(f"from step {begins:,} on {name}" if begins else name)
    return "; ".join(tasks)


def _facts_of_training(run: Run) -> dict[str, str]:
    train = run.train
    config = run.config
    end = f" of {config.train_steps:,}" if config.train_steps else ""
    facts = {
        "step": f"{train.steps[-1]:,.0f}{end}",
        "last line": _time(run.history.last_time),
    }
    totals = {name: axis[-1] for name, axis in run.axes().items()}
    if "hours" in totals:
        facts["time in steps"] = duration(totals["hours"] * 3600)
    if "tokens" in totals:
        facts["tokens read"] = short(totals["tokens"])
    if config.data.num_predicted:
        facts["tokens predicted"] = _predicted(run, config.data.num_predicted)
    if "flop" in totals:
        facts["FLOPs"] = f"{totals['flop']:.3g}"
    for column, name in TRAINING_FIGURES:
        if column in train:
            facts[name] = short(train.last(column))
    return facts


def _predicted(run: Run, most_per_row: int) -> str:
    """Returns how many tokens an encoder predicts: about so many in each stage, at most so many, and in the run."""
    data = run.config.data
    stages = data.predicted(run.config.train_steps or 0)
    parts = []
    for begins, _, masked, causal in stages:
        per_step = masked + causal
        share = per_step / (data.batch_size * (data.sequence_length or 1))
        parts.append(f"from step {begins:,} on about {short(per_step)} a step ({share:.0%})")
    in_run = sum(steps * (masked + causal) for _, steps, masked, causal in stages)
    if in_run:
        parts.append(f"{short(in_run)} in the run")
    parts.append(f"at most {short(most_per_row * data.batch_size)} a step")
    return "; ".join(parts).removeprefix("from step 0 on ")


def corpora(runs: Sequence[Run]) -> str:
    """Returns the table of each corpus's newest figures: its epochs, and in a mixture its tokens; "" without any."""
    rows = []
    for run in runs:
        epochs = _newest(run, "epochs/")
        tokens = _tokens_of_corpora(run, epochs)
        total = sum(tokens.values())
        for name in dict.fromkeys([*epochs, *tokens]):
            row = [*_name_of(run, runs), name, "", "", ""]
            if name in epochs:
                row[-3] = f"{epochs[name]:,.2f}"
            if name in tokens:
                share = tokens[name] / total if total else 0.0
                row[-2:] = [f"{tokens[name]:,.0f}", f"{share:.1%}"]
            rows.append(row)
    header = [*_run_header(runs), "corpus", "epochs", "tokens", "share of the tokens"]
    return table(header, rows, "Corpora") if rows else ""


def _tokens_of_corpora(run: Run, epochs: Iterable[str]) -> dict[str, float]:
    tokens = {name: number for name, number in _newest(run, "tokens/").items() if "/" not in name}  # of all stages
    names = list(epochs)
    if len(names) == 1 and not tokens:  # a run of one corpus does not count them by corpus: all tokens are its own
        axis = run.axes().get("tokens")
        if axis is not None and len(axis):
            tokens = {names[0]: float(axis[-1])}
    return tokens


def stages(runs: Sequence[Run]) -> str:
    """Returns the table of the tokens of each corpus in each stage of the data so far; "" without stages."""
    rows = []
    for run in runs:
        by_stage: dict[int, dict[str, float]] = {}
        for name, number in _newest(run, "tokens/").items():
            match = STAGE.fullmatch(name)
            if match:  # not a task called stage_1
                begins, corpus = match.groups()
                by_stage.setdefault(int(begins), {})[corpus] = number
        for begins, tokens in sorted(by_stage.items()):
            total = sum(tokens.values())
            for corpus, number in tokens.items():
                share = f"{number / total:.1%}" if total else ""
                rows.append([f"{begins:,}", *_name_of(run, runs), corpus, f"{number:,.0f}", share])
    header = ["from step", *_run_header(runs), "corpus", "tokens", "share of the stage's tokens"]
    return table(header, rows, "Stages") if rows else ""


def _newest(run: Run, prefix: str) -> dict[str, float]:
    """Returns the newest values of the logged figures with such names, without the prefix."""
    if not len(run.train):
        return {}
    newest = {}
    for name in run.train.names:
        if not name.startswith(prefix):
            continue
        value = run.train.last(name)
        if math.isfinite(value):
            newest[name.removeprefix(prefix)] = value
    return newest


def problems(runs: Sequence[Run]) -> str:
    """Returns a list of what could not be read; "" if all could."""
    sentences = [f"{run.name}: {problem}" for run in runs for problem in run.problems]
    if not sentences:
        return ""
    items = "".join(f"<li>{html.escape(sentence)}</li>" for sentence in sentences)
    return f'<ul class="problems">{items}</ul>'


def happened(runs: Sequence[Run]) -> str:
    """Returns the table of all events, the newest first."""
    rows = []
    for run in runs:
        for event in reversed(thinned(events_of(run), MOST_EVENTS)):
            rows.append([*_name_of(run, runs), f"{event.step:,}", _time(event.time), event.kind, event.sentence])
    header = [*_run_header(runs), "step", "time", "kind", "what happened"]
    return table(header, rows, "Events") if rows else ""


def configuration(runs: Sequence[Run]) -> str:
    """Returns the fields that differ from their defaults or between the runs, and behind a fold all fields."""
    by_run = [dict(_flat(json.loads(saved_config.to_text(run.config))["run"])) for run in runs]
    defaults = dict(_defaults(type(runs[0].config), runs[0].config))
    chosen = []
    others = []
    for name in dict.fromkeys(name for fields in by_run for name in fields):
        values = [fields.get(name, UNSET) for fields in by_run]
        default = defaults.get(name, UNSET)
        differs = any(value != values[0] for value in values)
        is_chosen = default is UNSET or values[0] != default
        mark = ""
        if differs:
            mark = "differs between runs"
        elif default is not UNSET and is_chosen:
            mark = "not default"
        default_text = "required" if default is UNSET else _text(default)
        row = [name, *map(_text, values), default_text, mark]
        if differs or is_chosen:
            chosen.append(row)
        else:
            others.append(row)
    header = ["field", *(run.name for run in runs), "default", ""]
    shown = table(header, chosen, "Fields that differ")
    if not others:
        return shown
    folded = table(header[:-1], [row[:-1] for row in others], "Fields with their default")
    return f"{shown}<details><summary>The {len(others)} fields that have their default</summary>{folded}</details>"


def environment(runs: Sequence[Run]) -> str:
    """Returns the table of devices, programs and versions of each run's newest start; "" for old runs."""
    by_run = []
    for run in runs:
        recorded = run.history.start.get("environment", {})
        by_run.append(recorded if isinstance(recorded, dict) else {})
    names = dict.fromkeys(name for of_run in by_run for name in of_run)
    rows = [[name, *(_text(of_run.get(name, "")) for of_run in by_run)] for name in names]
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


def _run_header(runs: Sequence[Run]) -> list[str]:
    """Returns the header of the column with the runs' names, which a page of a single run lacks."""
    return ["run"] if len(runs) > 1 else []


def _name_of(run: Run, runs: Sequence[Run]) -> list[str]:
    return [run.name] if len(runs) > 1 else []


def _time(written: str) -> str:
    """Returns a time as people write it.

    >>> _time("2026-11-22T12:00:00+00:00")
    '2026-11-22 12:00:00 UTC'
    """
    return written.replace("T", " ").replace("+00:00", " UTC")


def _text(value: object) -> str:
    if value is UNSET:
        return ""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def _flat(values: Mapping[str, object], prefix: str = "") -> Iterator[tuple[str, object]]:
    for name, value in values.items():
        if isinstance(value, dict) and name != "task_feature_lengths":
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _defaults(kind: type, configured: object, prefix: str = "") -> Iterator[tuple[str, object]]:
    """Yields the default of each field that has one, as plain data; `configured` is an object of the kind."""
    for field in dataclasses.fields(kind):
        name = f"{prefix}{field.name}"
        value = getattr(configured, field.name)
        if dataclasses.is_dataclass(value):
            if field.default_factory is not dataclasses.MISSING:
                # The default of a part may differ from the defaults of its kind.
                yield from _flat(saved_config.as_data(field.default_factory()), f"{name}.")
            else:
                yield from _defaults(type(value), value, f"{name}.")
        elif field.default is not dataclasses.MISSING:
            yield name, saved_config.as_data(field.default)
        elif field.default_factory is not dataclasses.MISSING:
            yield name, saved_config.as_data(field.default_factory())
