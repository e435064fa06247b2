"""`limba results`: one table of models by the tasks of a suite, with baselines."""

from __future__ import annotations

import argparse
import dataclasses
import functools
import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from limba.api import Parser, add_import_flag
from limba.config import InputError, environment, extras, kinds

if TYPE_CHECKING:
    from limba.api import Progress, TrainedModel
    from limba.tools.results.finetuning import FineTuning
    from limba.tools.results.kept import Kept
    from limba.tools.results.outcome import Outcome
    from limba.tools.results.suites import Read, Suite
    from limba.tools.results.table import Table

ABOUT = """Measures models on the tasks of a suite, and writes one table of them, with baselines, as text, Markdown,
LaTeX and JSON. What is computed once is kept: the same command goes on where it was stopped, and computes nothing
twice.

    limba results runs/ro google/mt5-small --suite=ro --data=data/ro --seeds=3
    limba results make-pairs ro_rrt-ud-*.conllu --output=ro_pairs.tsv
    limba results lm-eval run --model limba --model_args pretrained=runs/ro --tasks belebele_ron_Latn

A suite is a gin file: gin/suites/NAME.gin, or your own. docs/results.md says how each kind of task is measured."""
TABLES = ("results.txt", "results.md", "results.tex", "results.json")
LANGUAGE = re.compile(r"^language:[ ]*(?:\[?)([\w, -]*)((?:\n- [\w-]+)*)", re.MULTILINE)


def run(argv: Sequence[str]) -> None:
    """Measures the models that the flags name; raises InputError."""
    if argv[:1] == ["make-pairs"]:
        from limba.tools.results import make_pairs

        make_pairs.run(argv[1:])
        return
    if argv[:1] == ["lm-eval"]:
        with environment.quiet_imports(), extras.needed_by("limba results lm-eval"):
            from limba.tools.results import harness

        harness.run(argv[1:])
        return
    given = _given(argv)
    with environment.quiet_imports():
        from limba.api import described, held
        from limba.tools.results.outcome import Outcome
        from limba.tools.results.suites import read_suite, read_task
    suite = read_suite(given.suite)
    tasks = [read_task(task, given.data) for task in suite.tasks]
    for model in given.model:
        described(model)
        _check_language(model, suite)
    folder = Path(given.output or f"results/{suite.name}").expanduser()
    overlaps = _overlaps(given.check_contamination, tasks)
    with held(str(folder), "writes results to"):
        measured = Measured(tasks, given, folder)
        for model, label in zip(given.model, _labels(given.model), strict=True):
            measured.add(model, label)
        for read in tasks:
            for column, figures in read.floors().items():
                measured.table.add(read.task.name, column, [Outcome(dict(figures))])
        _write(folder, measured.table, [*measured.notes, *overlaps], suite, measured.kept)


def _given(argv: Sequence[str]) -> argparse.Namespace:
    parser = Parser("results", ABOUT)
    parser.add_object("model", "MODEL", "runs, checkpoints, Hugging Face folders or hub ids", takes_several=True)
    parser.add_argument("--suite", metavar="NAME|FILE", help="the tasks: a name of gin/suites/, or a gin file")
    parser.add_argument("--data", default=".", metavar="FOLDER", help="of the tasks' files; default: the current one")
    parser.add_argument("--seeds", type=int, default=3, help="runs of each fine-tuning task; default: 3")
    parser.add_argument("--output", metavar="FOLDER", help="of the tables and of what is kept; default: results/SUITE")
    parser.add_argument(
        "--check-contamination",
        metavar="CORPUS",
        help="training text, in which the tasks' test examples are looked for",
    )
    add_import_flag(parser)
    given = parser.parse(argv)
    if not given.model or not given.suite:
        raise InputError("No model or no suite is given; write limba results MODEL --suite=NAME.")
    if given.seeds < 1:
        raise InputError(f"--seeds is {given.seeds}; give 1 or more.")
    kinds.check_local(given.data, "--data")
    kinds.check_local(given.output or "", "--output")
    given.model = list(dict.fromkeys(given.model))
    return given


def _labels(models: Sequence[str]) -> list[str]:
    """Returns short names of models: their last folders, or the whole paths where these are alike.

    >>> _labels(["runs/ro/", "google/mt5-small"]), _labels(["a/best", "b/best"])
    (['ro', 'mt5-small'], ['a/best', 'b/best'])
    """
    names = [model.rstrip("/").rpartition("/")[2] for model in models]
    return names if len(set(names)) == len(names) else list(models)


def _check_language(model: str, suite: Suite) -> None:
    """Raises InputError if the card of a model, or its run, names other languages than the suite's."""
    from limba.api import RunDirectory

    folder = Path(model).expanduser()
    if suite.language is None or not folder.is_dir():
        return
    run = RunDirectory(model).run() if (folder / "checkpoints").is_dir() else None
    said, card = tuple(run.card.language or ()) if run else (), folder / "README.md"
    if not said and card.is_file() and (match := LANGUAGE.search(card.read_text(errors="replace"))):
        said = tuple(re.findall(r"[a-z]{2,3}(?:-\w+)?", f"{match[1]} {match[2]}"))
    if said and suite.language not in said:
        raise InputError(
            f"The suite {suite.name} is in {suite.language}, and the card of {model} names {', '.join(said)}; give"
            " another suite, or correct the card."
        )


def _overlaps(corpus: str | None, tasks: Sequence[Read]) -> list[str]:
    """Returns a sentence for each task: how many of its test examples the corpus holds."""
    if corpus is None:
        return []
    from limba.tools.results import contamination

    found = contamination.overlaps(contamination.texts_of(corpus), {read.task.name: read.tests for read in tasks})
    return [
        f"{name}: {each.found:,} of {each.total:,} test examples are in {corpus}: {each.whole:,} are a line of it, the"
        f" rest share {contamination.PROTOCOL.overlap_words} words in a row with it"
        for name, each in found.items()
    ]


class Measured:
    """A table that is filled model by model."""

    def __init__(self, tasks: Sequence[Read], given: argparse.Namespace, folder: Path):
        from limba.tools.results.kept import Kept
        from limba.tools.results.table import Table

        self.tasks, self.given, self.folder = tasks, given, folder
        self.table: Table = Table()
        self.kept: Kept = Kept(folder)
        self.facts = {read.task.name: self.kept.facts(read.task, given.data) for read in tasks}
        self.notes: list[str] = []

    def add(self, model: str, label: str) -> None:
        """Adds the columns of a model, and of random weights of its shape."""
        from limba.api import Progress, load
        from limba.tools.results.finetuning import FineTuning
        from limba.tools.results.kept import checksum_of_model
        from limba.tools.results.kinds_learned import Learned
        from limba.tools.results.protocol import PROTOCOL

        trained = load(model, imports=self.given.imports)
        checksum = checksum_of_model(trained)
        runs = [
            FineTuning(trained, read.task, read.parts, self.folder / "runs" / f"{read.task.name}-{checksum[:12]}")
            for read in self.tasks
            if isinstance(read.task, Learned) and read.parts is not None
        ]
        scored = [(read.task.name, read.measure) for read in self.tasks if read.measure is not None]
        total = 2 * len(scored) + len(runs) * (len(PROTOCOL.learning_rates) + self.given.seeds)
        with Progress(total, 0, unit="step", what=label) as progress:
            for name, measure in scored:
                for weights, column in (("trained", label), ("random", f"{label}, random weights")):
                    facts = {**self.facts[name], "model": checksum, "weights": weights}
                    compute = functools.partial(_score, measure, trained, weights == "random")
                    self.table.add(name, column, [self.kept.get(name, facts, compute)])
                    progress.update()
            del trained
            for each in runs:
                self._learn(each, label, checksum, progress)

    def _learn(self, runs: FineTuning, label: str, checksum: str, progress: Progress) -> None:
        """Adds a fine-tuning task: the rate that is best on the development part, and the test part for each seed."""
        from limba.tools.results.protocol import PROTOCOL

        task = runs.task

        def kept(part: str, rate: float, seed: int) -> Outcome:
            facts = {**self.facts[task.name], "model": checksum, "part": part, "rate": rate, "seed": seed}
            compute = functools.partial(runs.outcome, rate, seed, on_test=part == "test")
            found = self.kept.get(task.name, facts, compute)
            progress.update()
            return found

        dev = {rate: kept("dev", rate, 0).figures[task.main] for rate in PROTOCOL.learning_rates}
        rate = max(dev, key=lambda each: dev[each])
        outcomes = []
        for seed in range(self.given.seeds):
            outcomes.append(kept("test", rate, seed))
            runs.remove(rate, seed)
        for other in PROTOCOL.learning_rates:
            runs.remove(other, 0)
        self.table.add(task.name, label, outcomes)
        malformed = [each.notes["malformed"] for each in outcomes]
        self.notes.append(
            f"{task.name}, {label}: rate {rate:g} (development part: {dev[rate]:.2f}); malformed outputs of"
            f" {len(runs.parts.test):,}: {', '.join(map(str, malformed))}; {runs.parts.left_out:,} training examples"
            " were left out, since another part has them too"
        )


def _score(measure: Callable[[TrainedModel], Outcome], trained: TrainedModel, is_random: bool) -> Outcome:
    """Returns the outcome of a model, or of random weights of its shape."""
    import jax

    if is_random:
        made = trained.network.init(jax.random.key(0))
        placed = jax.tree.map(lambda old, new: jax.device_put(new, old.sharding), trained.params, made)
        trained = dataclasses.replace(trained, params=placed)
    return measure(trained)


def _write(folder: Path, table: Table, notes: Sequence[str], suite: Suite, kept: Kept) -> None:
    from limba.api import write_whole

    lines = "".join(f"\n* {note}" for note in notes)
    about = {"suite": suite.name, "language": suite.language, "versions": kept.versions, "notes": list(notes)}
    texts = (
        f"{table.text()}\n{lines}\n",
        f"{table.markdown()}\n{lines}\n",
        f"{table.latex()}\n",
        json.dumps({**about, "cells": table.json()}, indent=1, ensure_ascii=False) + "\n",
    )
    for name, text in zip(TABLES, texts, strict=True):
        write_whole(str(folder / name), text)
    print(texts[0])
    print(f"{kept.num_computed} outcomes computed; tables: {folder / TABLES[0]}, .md, .tex, .json", flush=True)
