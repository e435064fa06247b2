"""`limba results`: one table of models by the tasks of a suite, with baselines."""

from __future__ import annotations

import argparse
import functools
import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from limba.api import Parser, add_import_flag
from limba.config import InputError, environment, extras, kinds

if TYPE_CHECKING:
    from limba.api import Progress
    from limba.config import RunConfig
    from limba.tools.results.finetuning import FineTuning
    from limba.tools.results.kept import Kept
    from limba.tools.results.outcome import Outcome
    from limba.tools.results.protocol import Protocol
    from limba.tools.results.scoring import Scorer
    from limba.tools.results.suites import Read, Suite
    from limba.tools.results.table import Table

ABOUT = """Measures models on the tasks of a suite, and writes one table of them, with baselines, as text, Markdown,
LaTeX and JSON. What is computed once is kept: the same command goes on where it was stopped, and computes nothing
twice.

    limba results runs/ro
    limba results runs/ro google/mt5-small --suite=ro --data=data/ro --seeds=3
    limba results lm-eval run --model limba --model_args pretrained=runs/ro --tasks belebele_ron_Latn

A suite is a gin file: gin/suites/NAME.gin, or your own. Without one a run is measured by what needs no labels: bits per
byte of its validation text, and the minimal pairs of its language where their file lies in the folder of --data.
docs/results.md says how each kind of task is measured."""
TABLES = ("results.txt", "results.md", "results.tex", "results.json", "results.svg")
CHECKPOINT = re.compile(r"([^/]+)/checkpoints/(\d+)$")
ALL_LANGUAGES = ("multilingual", "mul")  # as a card may say
NORWEGIAN = {"nb": ("nb", "no"), "nn": ("nn", "no"), "no": ("nb", "nn", "no")}


def run(argv: Sequence[str]) -> None:
    """Measures the models that the flags name; raises InputError."""
    if argv[:1] == ["lm-eval"]:
        with environment.quiet_imports(), extras.needed_by("limba results lm-eval"):
            from limba.tools.results import harness

        harness.run(argv[1:])
        return
    given = _given(argv)
    with environment.quiet_imports():
        from limba.api import RunDirectory, described, held
        from limba.tools.results import card, first_row, scoring
        from limba.tools.results.outcome import Outcome
        from limba.tools.results.protocol import PROTOCOL, QUICK
        from limba.tools.results.scoring import run_of
        from limba.tools.results.suites import check_model, read_suite, read_task
    whole = read_suite(given.suite) if given.suite else first_row.suite_of(given)
    suite = _chosen(whole, given.tasks)
    protocol = QUICK if given.quick else PROTOCOL
    tasks = [read_task(task, given.data, protocol) for task in suite.tasks]
    for model in given.model:
        if given.card:
            card.read(_card_of(model))
        run = None if (home := run_of(model)) is None else RunDirectory(str(home)).run()
        folder = model
        if any(read.measure is not None for read in tasks):
            scoring.ways_of(model)
        if any(read.measure is None for read in tasks):
            network, vocabulary = described(model)
            check_model(model, network, tasks)
            folder = (vocabulary and vocabulary.place) or model  # of the hub's too
        _check_language(model, card.languages(Path(folder).expanduser() / "README.md"), run, suite)
    folder = Path(given.output or f"results/{suite.name}").expanduser()
    labels = _labels(given.model)
    with held(str(folder), "writes results to"):
        measured = Measured(tasks, given, folder, protocol)
        for model, label in zip(given.model, labels, strict=True):
            measured.add(model, label)
        for read in tasks:
            for column, figures in read.floors().items():
                measured.table.add(read.task.name, column, [Outcome(dict(figures))])
        _write(folder, measured, suite, given.model)
        if given.card:
            for model, label in zip(given.model, labels, strict=True):
                card.put(_card_of(model), label, measured.table, suite, measured.notes)


def _given(argv: Sequence[str]) -> argparse.Namespace:
    parser = Parser("results", ABOUT)
    parser.add_object("model", "MODEL", "runs, checkpoints, Hugging Face folders or hub ids", takes_several=True)
    parser.add_argument(
        "--suite", metavar="NAME|FILE", help="the tasks: a name of gin/suites/, or a gin file; default: none"
    )
    parser.add_argument("--tasks", metavar="NAME,NAME", help="of the suite; default: all")
    parser.add_argument("--data", default=".", metavar="FOLDER", help="of tasks' files, or hub:user/name; default: .")
    parser.add_argument("--seeds", type=int, default=3, help="runs of each fine-tuning task; default: 3")
    parser.add_argument("--output", metavar="FOLDER", help="of the tables and of what is kept; default: results/SUITE")
    parser.add_argument("--card", action="store_true", help="puts the results into README.md of each model's folder")
    parser.add_argument("--quick", action="store_true", help="fine-tunes on few examples: a first look on two cores")
    add_import_flag(parser)
    given = parser.parse(argv)
    if not given.model:
        raise InputError("No model is given; write limba results MODEL, or limba results MODEL --suite=NAME.")
    if given.seeds < 1:
        raise InputError(f"--seeds is {given.seeds}; give 1 or more.")
    kinds.check_local(given.data, "--data")
    kinds.check_local(given.output or "", "--output")
    given.model = list(dict.fromkeys(given.model))
    return given


def _chosen(suite: Suite, names: str | None) -> Suite:
    """Returns a suite with the tasks that are named; InputError for one that it has not."""
    there = {task.name: task for task in suite.tasks}
    wanted = there if names is None else dict.fromkeys(each.strip() for each in names.split(","))
    if unknown := [each for each in wanted if each not in there]:
        raise InputError(
            f"--tasks names {unknown[0]}, and the suite {suite.name} has the tasks {', '.join(there)}; give some of"
            " them with commas."
        )
    return suite._replace(tasks=tuple(there[each] for each in wanted))


def _labels(models: Sequence[str]) -> list[str]:
    """Returns short names of models: their last folders, or the whole paths where these are alike.

    >>> _labels(["runs/ro/", "google/mt5-small"]), _labels(["a/best", "b/best"])
    (['ro', 'mt5-small'], ['a/best', 'b/best'])
    >>> _labels(["runs/ro/checkpoints/200"])
    ['ro, step 200']
    """
    names = [CHECKPOINT.sub(r"\1, step \2", model.rstrip("/")).rpartition("/")[2] for model in models]
    return names if len(set(names)) == len(names) else list(models)


def _card_of(model: str) -> Path:
    """Returns the card of a model's folder; InputError if it has none."""
    card = Path(model).expanduser() / "README.md"
    if not card.is_file():
        raise InputError(f"{card} does not exist, so --card has no card to put results into; convert the model first.")
    return card


def _check_language(model: str, of_card: Sequence[str], run: RunConfig | None, suite: Suite) -> None:
    """Raises InputError if the card of a model, or its run, names other languages than the suite's."""
    said = (run and run.card.language) or of_card
    fits = {*ALL_LANGUAGES, *NORWEGIAN.get(suite.language or "", (suite.language,))}
    if suite.language and said and not fits & {each.partition("-")[0] for each in said}:
        raise InputError(
            f"The suite {suite.name} is in {suite.language}, and the card of {model} names {', '.join(said)}; give"
            " another suite, or correct the card."
        )


class Measured:
    """A table that is filled model by model."""

    def __init__(self, tasks: Sequence[Read], given: argparse.Namespace, folder: Path, protocol: Protocol):
        from limba.tools.results.kept import Kept
        from limba.tools.results.table import Table

        self.tasks, self.given, self.folder, self.protocol = tasks, given, folder, protocol
        self.table: Table = Table()
        self.kept: Kept = Kept(folder)
        self.facts = {read.task.name: self.kept.facts(read.task, given.data, protocol) for read in tasks}
        self.notes: list[str] = []
        if protocol.most_test is not None:
            self.notes.append(
                f"quick: at most {protocol.most_train:,} training, {protocol.most_dev:,} development and"
                f" {protocol.most_test:,} test examples of a fine-tuned task (in brackets the {protocol.confidence:.0%}"
                f" interval that follows), {protocol.epochs} epochs at the best of"
                f" {len(protocol.learning_rates)} rates, rows as long as {protocol.whole_percent:g} % of the examples;"
                " compare with other quick figures only"
            )

    def add(self, model: str, label: str) -> None:
        """Adds the columns of a model, and of random weights of its shape."""
        from limba.api import Progress, load
        from limba.tools.results.finetuning import FineTuning
        from limba.tools.results.kinds.learned import Learned
        from limba.tools.results.scoring import checksum_of_model

        self._add_scored(model, label)
        if all(read.measure is not None for read in self.tasks):
            return
        trained = load(model, imports=self.given.imports)
        checksums = {is_random: checksum_of_model(trained, is_random) for is_random in (False, True)}
        runs = [
            FineTuning(trained, read.task, read.parts, self.protocol)
            for read in self.tasks
            if isinstance(read.task, Learned) and read.parts is not None
        ]
        total = len(runs) * (len(self.protocol.learning_rates) + self.given.seeds + 1)
        with Progress(total, 0, unit="outcome", what=label) as progress:
            for each in runs:
                self._learn(each, label, checksums, progress)

    def _add_scored(self, model: str, label: str) -> None:
        """Adds the figures of a model as it is, and of random weights; a hybrid has columns for each of its ways."""
        from limba.api import Progress
        from limba.tools.results.scoring import open_scorers

        tasks = [(read.task.name, read.measure) for read in self.tasks if read.measure is not None]
        if not tasks:
            return
        scorers = open_scorers(model, self.given.imports)
        with Progress(2 * len(tasks) * len(scorers), 0, unit="outcome", what=label) as progress:
            for scorer in scorers:
                column = label if len(scorers) == 1 else f"{label}, {scorer.way}"
                self.notes.append(f"{', '.join(name for name, _ in tasks)}, {column}: {scorer.how}")
                checksums = {is_random: scorer.checksum(is_random) for is_random in (False, True)}
                for name, measure in tasks:
                    for is_random in (False, True):
                        weights = "random" if is_random else "trained"
                        facts = {**self.facts[name], "model": checksums[is_random], "weights": weights}
                        compute = functools.partial(_score, measure, scorer, is_random)
                        outcome = self.kept.get(name, facts, compute, progress)
                        self.table.add(name, f"{column}, random weights" if is_random else column, [outcome])

    def _learn(self, runs: FineTuning, label: str, checksums: Mapping[bool, str], progress: Progress) -> None:
        """Adds a fine-tuning task: the rate that is best on the development part, and the test part for each seed.

        Random weights learn it at that rate with one seed.
        """
        task = runs.task

        def kept(part: str, rate: float, seed: int, is_random: bool = False) -> Outcome:
            model = checksums[is_random]
            facts = {**self.facts[task.name], "model": model, "part": part, "rate": rate, "seed": seed}
            facts |= {"weights": "random"} if is_random else {}
            compute = functools.partial(runs.outcome, rate, seed, part == "test", is_random)
            return self.kept.get(task.name, facts, compute, progress)

        dev: dict[float, float] = {}
        for rate in self.protocol.learning_rates:
            dev[rate] = kept("dev", rate, 0).figures[task.main]
            if max(dev, key=lambda each: dev[each]) == rate:
                runs.hold()
        rate = max(dev, key=lambda each: dev[each])
        outcomes = [kept("test", rate, seed) for seed in range(self.given.seeds)]
        self.table.add(task.name, label, outcomes)
        self.table.add(task.name, f"{label}, random weights", [kept("test", rate, 0, is_random=True)])
        malformed = [each.notes["malformed"] for each in outcomes]
        epochs = [f"{each.notes['epoch']:.0f}" for each in outcomes]
        self.notes.append(
            f"{task.name}, {label}: {len(runs.parts.train):,} training examples, rate {rate:g} (development part:"
            f" {dev[rate]:.2f}; random weights learn at it too, with one seed), epochs {', '.join(epochs)}; malformed"
            f" outputs of {len(runs.parts.test):,}:"
            f" {', '.join(f'{each:.0f}' for each in malformed)}; {runs.parts.left_out:,} training examples were left"
            " out, since another part has them too"
        )


def _score(measure: Callable[[Scorer], Outcome], scorer: Scorer, is_random: bool) -> Outcome:
    """Returns the outcome of a model, or of random weights of its shape."""
    return measure(scorer.with_random_weights() if is_random else scorer)


def _write(folder: Path, measured: Measured, suite: Suite, models: Sequence[str]) -> None:
    from limba.api import write_whole
    from limba.tools.results import chart
    from limba.tools.results.scoring import run_of

    table, kept, notes = measured.table, measured.kept, measured.notes
    lines = "".join(f"\n* {note}" for note in notes)
    about = {"suite": suite.name, "language": suite.language, "versions": kept.versions, "notes": notes}
    texts = (
        f"{table.text()}\n{lines}\n",
        f"{table.markdown()}\n{lines}\n",
        f"{table.latex()}\n",
        json.dumps({**about, "cells": table.json()}, indent=1, ensure_ascii=False) + "\n",
        chart.svg(table, _labels(models)),
    )
    for name, text in zip(TABLES, texts, strict=True):
        write_whole(str(folder / name), text)
    for run in dict.fromkeys(map(run_of, models)):
        for name in (TABLES[0], TABLES[-1]) if run else ():
            write_whole(f"{run}/results/{suite.name}{Path(name).suffix}", texts[TABLES.index(name)])
    print(texts[0])
    print(f"{kept.num_computed} outcomes computed; tables: {folder / TABLES[0]}, .md, .tex, .json, .svg", flush=True)
