"""Compares recipes for training: the steps that each needs to the same validation loss.

    python -m benchmarks.speedrun --recipe=muon_wsd --corpus=de.jsonl --seeds=3 --steps=600 --depth=2
    python -m benchmarks.speedrun sweep --recipe=fast --corpus=de.jsonl --rates=0.05,0.1,0.2 --seeds=3 --steps=300,1200
    python -m benchmarks.speedrun proof --recipe=fast --against=adafactor --corpus=de --steps=300,600 --final
    python -m benchmarks.speedrun law --recipe=fast --corpus=de
    python -m benchmarks.speedrun table
    python -m benchmarks.speedrun corpus --language=de

A board is a folder: the divided text, a Limba run for each trial, and results.jsonl. A run that is known is not run
again; one that was stopped is resumed. `sweep` runs rates and seeds of a recipe side by side in one program, which
suits a card; `law` says how the best rate falls with the steps. Runs are evaluated on the search-evaluation part of the
text, and with --final on the final-evaluation part. `table` prints every result as Markdown and draws the curves.
`proof` judges a recipe beside others by paired runs, and names no winner without the rules of the page below. `corpus`
makes a corpus of a language from Debian's documentation packages, or of Aozora Bunko's texts.
docs/development/board.md has the rules.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.board import aozora, corpora, proof, recipes, tables
from benchmarks.board.runs import Trial, results, run
from benchmarks.board.sizes import size_of
from benchmarks.board.text import divided
from limba.cli import program
from limba.cli.arguments import Parser
from limba.config import InputError, did_you_mean, environment

HOME = Path("~/.cache/limba").expanduser()


def _folder(text: str) -> Path:
    return Path(text).expanduser()


def _parser(command: str) -> Parser:
    return Parser(f"-m benchmarks.speedrun {command}".strip(), __doc__ or "", "python")


def _add_run_flags(parser: Parser) -> None:
    parser.add_argument("--recipe", required=True, help=f"names, separated by commas: {', '.join(recipes.RECIPES)}")
    parser.add_argument("--corpus", required=True, metavar="FILES", help="paths or patterns of .jsonl, .txt, .parquet")
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--depth", type=float, default=2, help="layers of a stack, from which the other sizes follow")
    parser.add_argument("--seeds", type=int, default=3, help="runs of each recipe, or rate, with the seeds 0, 1, …")
    parser.add_argument("--final", action="store_true", help="evaluate on the final-evaluation part of the text")
    parser.add_argument("--board", type=_folder, default=HOME / "board", help="the board's folder")
    parser.add_argument(
        "--set", action="append", default=[], metavar="FIELD=VALUE",
        help="learning_rate, warmup, decay (shares of the steps; adafactor: warm-up steps), a field of OptimizerConfig",
    )  # fmt: skip


def _checked(args: argparse.Namespace) -> tuple[list[str], int, dict[str, Any]]:
    """Returns the recipes, the depth and the settings; InputError for impossible ones, before anything is read."""
    for name, count in {"steps": args.steps, "seeds": args.seeds}.items():
        if count < 1:
            raise InputError(f"--{name} is {count}; give a whole number above 0.")
    names = args.recipe.split(",")
    settings = recipes.settings_of(args.set)
    size = size_of(args.depth)
    for name in names:
        recipes.optimizer_of(recipes.recipe_of(name), settings, size, args.steps)
    return names, size.depth, settings


def _in_words(result: Mapping[str, Any]) -> str:
    loss = tables.last(result, "loss")
    bits = tables.last(result, "bits_per_byte")
    figures = f"loss {loss:.4f}, {bits:.4f} bits per byte" if result["status"] == "finished" else "diverged"
    return f"{result['key']}: {figures}, {result['seconds_per_step']:.3f} s/step {dict(result['settings']) or ''}"


def _run(argv: Sequence[str]) -> None:
    parser = _parser("")
    _add_run_flags(parser)
    parser.add_argument("--json", action="store_true", help="end with a line of JSON, not the table")
    args = parser.parse(argv)
    names, depth, settings = _checked(args)
    with environment.quiet_imports():
        text = divided(args.corpus, args.board)
    ended = {}
    for name in names:
        own_settings = recipes.own_settings(recipes.recipe_of(name), settings)
        for seed in range(args.seeds):
            trial = Trial(name, text.name, depth, args.steps, seed, own_settings, args.final)
            result = run(trial, text, args.board)
            losses = {figure: tables.last(result, figure) for figure in ("loss", "bits_per_byte")}
            ended[trial.key] = {**losses, **{figure: result[figure] for figure in ("seconds_per_step", "passes")}}
            print(_in_words(result), flush=True)
    if args.json:
        print(json.dumps(ended))
    else:
        _show(args.board, tables.BASELINE)


def _sweep(argv: Sequence[str]) -> None:
    from benchmarks.board.sweep import sweep

    parser = _parser("sweep")
    _add_run_flags(parser)
    parser.add_argument("--rates", required=True, help="learning rates, separated by commas, which run side by side")
    args = parser.parse(argv)
    names, depth, settings = _checked(args)
    rates = [recipes.settings_of([f"learning_rate={rate}"]) for rate in args.rates.split(",")]
    for name in names:
        if recipes.recipe_of(name).is_encoder:
            raise InputError(f"--recipe: {name} trains an encoder: run its rates one by one.")
    with environment.quiet_imports():
        text = divided(args.corpus, args.board)
    for name in names:
        recipe = recipes.recipe_of(name)
        points = [recipes.own_settings(recipe, dict(sorted({**settings, **rate}.items()))) for rate in rates]
        grid = itertools.product(range(args.seeds), points)
        trials = [Trial(name, text.name, depth, args.steps, seed, point, args.final) for seed, point in grid]
        for result in sweep(trials, text, args.board):
            print(_in_words(result), flush=True)


def _show(board: Path, baseline: str) -> None:
    for table, groups in tables.boards(results(board).values()).items():
        print(f"\n{tables.markdown(table, groups, baseline)}\n\npicture: {tables.draw(table, groups, board)}")


def _table(argv: Sequence[str]) -> None:
    parser = _parser("table")
    parser.add_argument("--board", type=_folder, default=HOME / "board", help="the board's folder")
    parser.add_argument("--baseline", default=tables.BASELINE, help="the recipe whose final loss is the target")
    args = parser.parse(argv)
    recipes.recipe_of(args.baseline)
    if not results(args.board):
        raise InputError(f"{args.board} has no results; give the --board of some runs.")
    _show(args.board, args.baseline)


def _proof(argv: Sequence[str]) -> None:
    parser = _parser("proof")
    parser.add_argument("--recipe", required=True)
    parser.add_argument("--against", required=True, help="recipes, separated by commas: each at its best settings")
    parser.add_argument("--corpus", required=True, metavar="NAME", help="the name of the text on the board, as de")
    parser.add_argument("--steps", required=True, help="of the recipe and of each other one, separated by commas")
    parser.add_argument("--depth", type=float, default=2)
    parser.add_argument("--final", action="store_true", help="on the final-evaluation part of the text")
    parser.add_argument("--board", type=_folder, default=HOME / "board", help="the board's folder")
    args = parser.parse(argv)
    names = [args.recipe, *args.against.split(",")]
    depth = size_of(args.depth).depth
    steps = [int(number) if number.isdigit() else 0 for number in args.steps.split(",")]  # 0 is refused below
    if len(steps) != len(names) or min(steps) < 1:
        raise InputError(f"--steps is {args.steps}; give {len(names)} whole numbers above 0, of {', '.join(names)}.")
    board = tables.Board(args.corpus, depth, args.final, recipes.recipe_of(args.recipe).is_encoder)
    groups = tables.boards(results(args.board).values()).get(board, [])
    best = {(group.recipe, group.steps): group for group in tables.best_of_each(groups)}
    for name in names:
        recipes.recipe_of(name)
    wanted = list(zip(names, steps, strict=True))
    missing = [f"{name}, {number:,} steps" for name, number in wanted if (name, number) not in best]
    if missing:
        raise InputError(f"The board has no runs of {'; '.join(missing)} at depth {depth} of {args.corpus}.")
    group, *others = (best[key] for key in wanted)
    for other in others:
        print(proof.verdict(group, other, len(others), depth))


def _law(argv: Sequence[str]) -> None:
    parser = _parser("law")
    parser.add_argument("--recipe", required=True)
    parser.add_argument("--corpus", required=True, metavar="NAME", help="the name of the text on the board, as de")
    parser.add_argument("--board", type=_folder, default=HOME / "board", help="the board's folder")
    args = parser.parse(argv)
    recipe = recipes.recipe_of(args.recipe)
    losses_by_cell = tables.losses_by_rate(results(args.board).values(), args.recipe, args.corpus, recipe)
    best_rates = {cell: tables.best_rate(losses) for cell, losses in losses_by_cell.items()}
    best = {cell: rate for cell, rate in best_rates.items() if rate is not None}
    print(tables.rates_markdown(losses_by_cell))
    factor, exponent = tables.law_of(best)
    print(f"\nThe best rate is {factor:g} x steps^-{exponent:g}.")


def _corpus(argv: Sequence[str]) -> None:
    parser = _parser("corpus")
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--language", help=f"from Debian's packages: {', '.join(corpora.LANGUAGES)}")
    source.add_argument("--aozora", type=_folder, metavar="FOLDER", help="a clone of Aozora Bunko's texts")
    parser.add_argument("--index", type=_folder, metavar="CSV", help="Aozora's list_person_all_extended_utf8.csv")
    parser.add_argument("--percent", type=int, default=100, help="of Aozora's works")
    parser.add_argument("--to", type=_folder, default=HOME / "corpora", help="folder for the corpus")
    args = parser.parse(argv)
    if args.aozora:
        if not 0 < args.percent <= 100:
            raise InputError(f"--percent is {args.percent}; give a whole number from 1 to 100.")
        said = aozora.make(args.aozora, args.index, args.to, args.percent)
        print(f"{said['letters']:,} letters; {said['left_out']:,} works are left out")
    else:
        said = corpora.make(args.language, args.to)
        for package in said["packages"]:
            print(f"{package['package']} {package['version']}: {package['letters']:,} letters")
    name = args.to / f"{aozora.NAME if args.aozora else args.language}.jsonl"
    print(f"{name}: {said['documents']:,} documents, {said['bytes']:,} bytes, sha256 {said['sha256']}")


COMMANDS: Mapping[str, Callable[[Sequence[str]], None]] = {
    "sweep": _sweep, "law": _law, "table": _table, "proof": _proof, "corpus": _corpus
}  # fmt: skip


def main(argv: Sequence[str]) -> None:
    if argv and not argv[0].startswith("-"):
        if argv[0] not in COMMANDS:
            raise InputError(f"{argv[0]} is none of {', '.join(COMMANDS)}{did_you_mean(argv[0], COMMANDS)}")
        COMMANDS[argv[0]](argv[1:])
    else:
        _run(argv)


if __name__ == "__main__":
    environment.use_large_pages()
    environment.set_variables()
    sys.exit(program.exit_code(main, sys.argv[1:]))
