"""`limba results`: one table of models by the tasks of a suite, with baselines."""

from __future__ import annotations

import argparse
import dataclasses
import functools
import itertools
import json
import os
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from limba.api import Parser, add_import_flag
from limba.config import InputError, NoModelError, environment, extras, kinds

if TYPE_CHECKING:
    from limba.api import Progress
    from limba.config import RunConfig
    from limba.tools.results.kinds.fine_tuned import Parts
    from limba.tools.results.outcome import Outcome
    from limba.tools.results.outcome_cache import OutcomeCache
    from limba.tools.results.protocol import Protocol
    from limba.tools.results.scores import Draws
    from limba.tools.results.scoring import Scorer
    from limba.tools.results.suites import Read, Suite
    from limba.tools.results.table import Table
    from limba.tools.results.trainer import FineTuning, Setting

ABOUT = """Measures models on the tasks of a suite, and writes one table of them, with baselines, as text, Markdown,
LaTeX and JSON. What is computed once is kept: the same command goes on where it was stopped, and computes nothing
twice.

    limba results runs/ro
    limba results runs/ro google/mt5-small FacebookAI/xlm-roberta-base --suite=ro --data=data/ro
    limba results lm-eval run --model limba --model_args pretrained=runs/ro --tasks belebele_ron_Latn

A suite is a gin file: gin/suites/NAME.gin, or your own. Without one a run is measured by what needs no labels: bits per
byte of its validation text, and the minimal pairs of its language where their file lies in the folder of --data.
docs/development/results.md says how each kind of task is measured."""
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
    args = _parsed(argv)
    os.environ.setdefault(*environment.GPU_IS_SHARED)  # read when jax first computes; torch fine-tunes
    with environment.quiet_imports():
        from limba.api import RunDirectory, described, held
        from limba.tools.results import card, first_row, scoring
        from limba.tools.results.protocol import PROTOCOL, QUICK
        from limba.tools.results.scoring import run_of
        from limba.tools.results.suites import check_packages, read_suite, read_task, with_files
    whole = read_suite(args.suite) if args.suite else first_row.suite_of(args)
    suite = _chosen(whole, args.tasks)
    protocol = QUICK if args.quick else PROTOCOL
    suite, left_out = with_files(suite, args.data)
    for note in left_out:
        print(f"limba results: {note}", file=sys.stderr, flush=True)
    with extras.needed_by("A task that is fine-tuned"):
        check_packages(suite)
    tasks = [read_task(task, args.data, protocol) for task in suite.tasks]
    for model in args.model:
        if args.card:
            card.read(_card_of(model))
        home = run_of(model)
        run = None if home is None else RunDirectory(str(home)).run()
        if any(read.measure is not None for read in tasks):
            scoring.ways_of(model)
        try:
            _, vocabulary = described(model)
        except NoModelError:
            raise
        except InputError:  # transformers opens it, or refuses it, below
            folder = model
        else:
            folder = (vocabulary and vocabulary.named_in) or model  # of the hub's too
        _check_language(model, card.languages(Path(folder).expanduser() / "README.md"), run, suite)
    folder = Path(args.output or f"results/{suite.name}").expanduser()
    labels = _labels(args.model)
    with held(str(folder)):
        measured = Measured(tasks, args, folder, protocol)
        measured.notes += left_out
        opened = [measured.open(model) for model in args.model]
        for model, label, runs in zip(args.model, labels, opened, strict=True):
            measured.add(model, label, runs)
        measured.add_floors()
        measured.compare()
        _write(folder, measured, suite, args.model)
        if args.card:
            for model, label in zip(args.model, labels, strict=True):
                card.put(_card_of(model), measured.columns[label], measured.table, suite, measured.notes)


def _parsed(argv: Sequence[str]) -> argparse.Namespace:
    parser = Parser("results", ABOUT)
    parser.add_object("model", "MODEL", "runs, checkpoints, Hugging Face folders or hub ids", takes_several=True)
    parser.add_argument(
        "--suite", metavar="NAME|FILE", help="the tasks: a name of gin/suites/, or a gin file; default: none"
    )
    parser.add_argument("--tasks", metavar="NAME,NAME", help="of the suite; default: all")
    parser.add_argument(
        "--data", default=".", metavar="FOLDER", help="of the tasks' files, or hub:user/name; default: ."
    )
    parser.add_argument("--seeds", type=int, help="trainings of a fine-tuned task; default: 5 of few examples, else 3")
    parser.add_argument("--output", metavar="FOLDER", help="of the tables and of what is kept; default: results/SUITE")
    parser.add_argument("--card", action="store_true", help="puts the results into README.md of each model's folder")
    parser.add_argument(
        "--quick", action="store_true", help="fine-tunes on few examples and searches nothing: a first look"
    )
    add_import_flag(parser)
    args = parser.parse(argv)
    if not args.model:
        raise InputError("No model is given; write limba results MODEL, or limba results MODEL --suite=NAME.")
    if args.seeds is not None and args.seeds < 1:
        raise InputError(f"--seeds is {args.seeds}; give 1 or more.")
    kinds.check_local(args.data, "--data")
    kinds.check_local(args.output or "", "--output")
    args.model = list(dict.fromkeys(args.model))
    return args


def _chosen(suite: Suite, names: str | None) -> Suite:
    """Returns a suite with the tasks that are named; InputError for one that it has not."""
    there = {task.name: task for task in suite.tasks}
    wanted = there if names is None else dict.fromkeys(name.strip() for name in names.split(","))
    if unknown := [name for name in wanted if name not in there]:
        raise InputError(
            f"--tasks names {unknown[0]}, and the suite {suite.name} has the tasks {', '.join(there)}; give some of"
            " them with commas."
        )
    return suite._replace(tasks=tuple(there[name] for name in wanted))


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
    if suite.language and said and not fits & {language.partition("-")[0] for language in said}:
        raise InputError(
            f"The suite {suite.name} is in {suite.language}, and the card of {model} names {', '.join(said)}; give"
            " another suite, or correct the card."
        )


class Measured:
    """A table that is filled model by model."""

    def __init__(self, tasks: Sequence[Read], args: argparse.Namespace, folder: Path, protocol: Protocol):
        from limba.tools.results.kinds.fine_tuned import Learned
        from limba.tools.results.outcome_cache import OutcomeCache, digest
        from limba.tools.results.protocol import QUICK
        from limba.tools.results.table import Table

        self.tasks = tasks
        self.args = args
        self.folder = folder
        self.protocol = protocol
        self.table: Table = Table()
        self.columns: dict[str, list[str]] = {}  # of each model; a hybrid has one for each way of scoring
        self.ways: dict[str, str] = {}  # how the columns of tasks without labels were scored
        self.kept: OutcomeCache = OutcomeCache(folder)
        self.rules = {read.task.name: self.kept.rules(read.task, args.data, protocol) for read in tasks}
        self.hashes = {name: digest(rules)[:8] for name, rules in self.rules.items()}
        if protocol == QUICK:  # each row of a fine-tuned task says so
            learned = [read.task.name for read in tasks if isinstance(read.task, Learned)]
            self.hashes |= {name: f"quick {self.hashes[name]}" for name in learned}
        self.notes: list[str] = []
        if protocol.most_test is not None:
            self.notes.append(
                f"quick: at most {protocol.most_train:,} training, {protocol.most_dev:,} development and"
                f" {protocol.most_test:,} test examples of a fine-tuned task, {max(protocol.epochs)} epochs at the rate"
                f" {protocol.learning_rates[0]:g} without a search, texts of at most {protocol.most_tokens} tokens;"
                " compare with other quick figures only"
            )

    def open(self, model: str) -> list[FineTuning]:
        """Returns the trainings of a model, whose weights are not read yet; InputError for what it cannot learn."""
        from limba.tools.results.kinds.fine_tuned import Learned

        tasks = [(read.task, read.parts) for read in self.tasks if isinstance(read.task, Learned)]
        if not tasks:
            return []
        from limba.tools.results.foreign_models import open_model
        from limba.tools.results.trainer import FineTuning

        opened = open_model(model, self.folder / "exported", self.args.imports)
        folder = self.folder / "training"
        return [FineTuning(opened, task, parts, self.protocol, folder) for task, parts in tasks if parts is not None]

    def add(self, model: str, label: str, runs: Sequence[FineTuning]) -> None:
        """Adds the figures of a model, and of random weights of its shape."""
        self.columns[label] = self._add_scored(model, label)
        if not runs:
            return
        if label not in self.columns[label]:
            self.columns[label].append(label)
        from limba.api import Progress
        from limba.tools.results.grid_search import num_of_search

        per_task = 2 * num_of_search(self.protocol)
        total = sum(per_task + 2 * len(self._seeds(fine_tuning)) for fine_tuning in runs)
        with Progress(total, 0, unit="training", what=label) as progress:
            for fine_tuning in runs:
                self._learn(fine_tuning, label, False, progress)
                self._learn(fine_tuning, f"{label}, random weights", True, progress)

    def _add_scored(self, model: str, label: str) -> list[str]:
        """Adds the figures of a model as it is, and of random weights; returns its columns, one for each way."""
        from limba.api import Progress
        from limba.tools.results.scoring import open_scorers

        scored = [(read.task.name, read.measure) for read in self.tasks if read.measure is not None]
        columns = list[str]()
        if not scored:
            return columns
        scorers = open_scorers(model, self.args.imports)
        with Progress(2 * len(scored) * len(scorers), 0, unit="outcome", what=label) as progress:
            for scorer in scorers:
                of_way = label if len(scorers) == 1 else f"{label}, {scorer.way}"
                columns.append(of_way)
                numbers = self._noted([f"{', '.join(name for name, _ in scored)}, {of_way}: {scorer.how}"])
                for weights, column in (("trained", of_way), ("random", f"{of_way}, random weights")):
                    is_random = weights == "random"
                    checksum = scorer.checksum(is_random)
                    for name, measure in scored:
                        facts = {**self.kept.facts(self.rules[name]), "model": checksum, "weights": weights}
                        compute = functools.partial(_score, measure, scorer, is_random)
                        outcome = self.kept.get(name, facts, compute, progress)
                        self.table.add(name, column, [outcome], self.hashes[name], numbers)
                    self.ways[column] = scorer.way
        return columns

    def _seeds(self, runs: FineTuning) -> range:
        """Returns the seeds of a task, all but the search's."""
        return range(1, 1 + (self.args.seeds or self.protocol.num_seeds(len(runs.parts.train))))

    def _learn(self, runs: FineTuning, label: str, is_random: bool, progress: Progress) -> None:
        """Adds the figures of a fine-tuned task."""
        from limba.tools.results.grid_search import learned
        from limba.tools.results.outcome_cache import OF_TRAINING

        name = runs.task.name
        facts = {
            **self.kept.facts(self.rules[name], OF_TRAINING),
            "model": runs.model.identity(is_random),
            "weights": "random" if is_random else "trained",
        }

        def get(part: str, setting: Setting, seed: int, compute: Callable[[], Outcome]) -> Outcome:
            key = {"part": part, "rate": setting.rate, "epochs": setting.epochs, "seed": seed}
            return self.kept.get(name, {**facts, **key}, compute, progress)

        result = learned(runs, label, is_random, self._seeds(runs), self.protocol, get)
        self.table.add(name, label, result.outcomes, self.hashes[name], self._noted(result.notes))

    def _noted(self, notes: Sequence[str]) -> list[int]:
        """Adds sentences that stand below the table, and returns the numbers by which its rows name them."""
        first = len(self.notes) + 1
        self.notes += notes
        return [*range(first, first + len(notes))]

    def add_floors(self) -> None:
        """Adds the baselines that need no model."""
        from limba.tools.results.kinds.fine_tuned import Learned
        from limba.tools.results.outcome import Outcome

        for read in self.tasks:
            name = read.task.name
            if not isinstance(read.task, Learned) or read.parts is None:
                for column, figures in read.floors().items():
                    self.table.add(name, column, [Outcome(dict(figures))], self.hashes[name])
                continue
            self.notes.append(_counts(name, read.parts))
            for column, predictions in read.task.floors(read.parts).items():
                outcome = Outcome(read.task.judge(read.parts.test, predictions), predictions=predictions)
                self.table.add(name, column, [outcome], self.hashes[name])

    def compare(self) -> None:
        """Adds intervals over test examples, and the comparisons of models in pairs, which say what is the best."""
        from limba.tools.results.kinds.bits import BitsPerByte
        from limba.tools.results.kinds.pairs import MinimalPairs

        for read in self.tasks:
            task = read.task
            drawn, num_drawn = self._drawn(read)
            fewer_is_better = isinstance(task, BitsPerByte)
            if fewer_is_better:
                self.notes.append(f"{task.name}: fewer bits are better; its examples are windows of the text")
            marks_best = True
            if isinstance(task, MinimalPairs) and len({self.ways[column] for column in drawn}) > 1:
                marks_best = False
                self.notes.append(f"{task.name}: the models score texts in different ways, so no best is marked")
            if num_drawn < self.protocol.fewest_to_decide:
                marks_best = False
                self.notes.append(
                    f"{task.name}: {num_drawn} test examples or documents are too few to trust their intervals, so no"
                    " best is marked"
                )
            self.table.compare(task.name, drawn, self.protocol, marks_best, fewer_is_better)
        self.table.sort([read.task.name for read in self.tasks])
        self.notes.append(
            "intervals over examples: bootstrap of the test examples, by documents where they have them,"
            f" {self.protocol.resamples:,} samples; over seeds: Student's; best (*): better than chance, and than each"
            " other row by the paired bootstrap over examples and, where there are several seeds, by Welch's test over"
            " them (p < 0.05 of each pair by both, in results.json)"
        )

    def _drawn(self, read: Read) -> tuple[dict[str, Draws], int]:
        """Returns the figures of each row of a task in the same resamples, and how many examples or documents it has.

        Rows without predictions, such as chance, are not among them.
        """
        from limba.tools.results import comparison
        from limba.tools.results.kinds.fine_tuned import Learned

        task = read.task
        parts = read.parts
        outcomes = self.table.outcomes[task.name]
        if isinstance(task, Learned) and parts is not None:
            documents = [example.document for example in parts.test]
            counts = comparison.resamples(documents, self.protocol)
            drawn = {}
            for column, of_seeds in outcomes.items():
                predictions = [outcome.predictions for outcome in of_seeds]
                drawn[column] = comparison.draws(task, parts.test, predictions, counts)
            return drawn, len({*documents})
        drawn = {column: comparison.draws_of_ratio(outcome, self.protocol) for column, (outcome,) in outcomes.items()}
        return drawn, min(len(outcome.predictions) for (outcome,) in outcomes.values())


def _counts(task: str, parts: Parts) -> str:
    """Returns how many examples each part of a task has, for the notes."""
    documents = len({example.document for example in parts.test})
    sentence = (
        f"{task}: {len(parts.train):,} training, {len(parts.dev):,} development and {len(parts.test):,} test examples"
    )
    if documents < len(parts.test):
        sentence += f" of {documents:,} documents"
    if parts.left_out:
        sentence += f"; {parts.left_out:,} training examples were left out, since another part has them too"
    return sentence


def _score(measure: Callable[[Scorer], Outcome], scorer: Scorer, is_random: bool) -> Outcome:
    """Returns the outcome of a model, or of random weights of its shape."""
    return measure(scorer.with_random_weights() if is_random else scorer)


def _write(folder: Path, measured: Measured, suite: Suite, models: Sequence[str]) -> None:
    from limba.api import write_whole
    from limba.tools.results import chart
    from limba.tools.results.scoring import run_of

    table = measured.table
    kept = measured.kept
    notes = measured.notes
    numbered = [f"{number}. {' '.join(note.split())}" for number, note in enumerate(notes, 1)]
    lines = "".join(f"\n{note}" for note in numbered)
    document = {"suite": suite.name, "language": suite.language, "versions": kept.versions, "notes": notes}
    document |= {"protocol": dataclasses.asdict(measured.protocol)}
    texts = (
        f"{table.text()}\n{lines}\n",
        f"{table.markdown()}\n{lines}\n",
        f"{table.latex()}\n" + "".join(f"% {note}\n" for note in numbered),
        json.dumps({**document, "cells": table.json(), "comparisons": table.pairs()}, indent=1, ensure_ascii=False)
        + "\n",
        chart.svg(table, [*itertools.chain.from_iterable(measured.columns.values())]),
    )
    written = dict(zip(TABLES, texts, strict=True))
    for name, text in written.items():
        write_whole(str(folder / name), text)
    for run in {home for home in map(run_of, models) if home is not None}:
        for name in ("results.txt", "results.svg"):
            write_whole(f"{run}/results/{suite.name}{Path(name).suffix}", written[name])
    print(written["results.txt"])
    tables = f"{folder / 'results.txt'}, .md, .tex, .json, .svg"
    print(f"{kept.num_computed} outcomes computed; tables: {tables}", flush=True)
