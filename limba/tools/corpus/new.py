"""`limba new`: looks at a corpus, proposes a model for some hardware, and writes the files of its run."""

from __future__ import annotations

import contextlib
import keyword
import math
import os
import re
import textwrap
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from limba.api import Parser, task_modules
from limba.config import InputError, environment
from limba.config.errors import named

if TYPE_CHECKING:
    from limba.tools.corpus.preparation.survey import Survey

ABOUT = """Looks at your text, proposes a T5 for your hardware and time, and writes the files that train it:
tasks/NAME.py, gin/NAME_SIZE.gin and launch/NAME.sh, with comments. Nothing is overwritten.

    limba new nb --corpus='data/*.jsonl' --hardware=v4-8 --days=7
    bash launch/nb.sh

The corpus may be .txt, .jsonl, .json, .csv or .parquet, also .gz or .zst, local, at an address, or user/name of the
hub."""
NAMES = {"DataConfig.column": "--column", "DataConfig.data_files": "--corpus"}  # what messages call a field
DAYS = 7.0
LEAST_LETTERS = 10_000  # of a corpus; a row of 128 inputs alone has some 500


def _parser() -> Parser:
    parser = Parser("new", ABOUT)
    parser.add_object("name", "NAME", "the run's name, such as the code of your language: nb")
    parser.add_argument(
        "--corpus", metavar="FILES", help="a path or a pattern, 'data/*.jsonl', or user/name of the hub"
    )
    parser.add_argument("--column", metavar="text", help="column or key with the text; found if there is only one")
    parser.add_argument(
        "--hardware",
        metavar="v4-8|h100|cpu",
        help="what it will run on: cpu, h100, 8xa100, v5e-8, …",
    )
    parser.add_argument("--days", type=float, default=DAYS, metavar="7", help="how long it may train; default 7")
    parser.add_argument("--size", metavar="small", help="size of T5 1.1 instead of the proposed one")
    return parser


@named(NAMES)
def run(argv: Sequence[str]) -> None:
    """Writes the files, or raises InputError before any is written."""
    given = _parser().parse(argv)
    name, corpus = _checked_name(given.name), given.corpus
    if not corpus:
        raise InputError("No corpus is named; give --corpus='data/*.jsonl', or user/name of the hub.")
    if not (math.isfinite(given.days) and 0 < given.days <= 3650):
        raise InputError(f"--days={given.days:g} is not a time; give a number above 0.")
    with environment.quiet_imports():
        from limba.tools.corpus import sizes, templates
        from limba.tools.corpus.preparation.survey import survey
    if given.size is not None and given.size not in sizes.SIZES:
        raise InputError(f"--size={given.size} is not known; give one of {', '.join(sizes.SIZES)}.")
    machine = sizes.hardware(given.hardware)
    if given.hardware is None and (environment.num_gpus() or environment.is_tpu_vm()):
        raise InputError(
            "This machine has an accelerator; name it, as in --hardware=8xh100 or --hardware=v4-8, or give cpu."
        )
    _check_new(name, given.size)
    with _reading() as progress:
        found = survey(corpus, given.column, progress)
    if found.letters < LEAST_LETTERS:
        raise InputError(
            f"{corpus} holds {found.letters:,} letters, too few to train on; give {LEAST_LETTERS:,} or more."
        )
    plan = sizes.plan(found, machine, given.days, given.size)
    print(_about(corpus, found))
    print(f"\nProposed for {machine.name}: T5 1.1 {plan.size}, {plan.parameters:,} parameters, {plan.steps:,} steps of"
          f" {plan.batch} rows, about {_hours(plan.hours)}.")  # fmt: skip
    for reason in plan.reasons:
        print(textwrap.fill(reason, 118, initial_indent="* ", subsequent_indent="  ", break_long_words=False,
                            break_on_hyphens=False))  # fmt: skip
    has_scripts = Path("launch/pretrain.sh").is_file()
    files = {
        f"tasks/{name}.py": templates.task(name, corpus, found),
        f"gin/{name}_{plan.size}.gin": templates.gin(name, corpus, found, plan, machine),
        f"launch/{name}.sh": templates.script(name, plan, machine, has_scripts),
    }
    _write(files)
    print("\nWritten:\n" + "\n".join(f"  {path}" for path in files))
    print(f"Next:\n  bash launch/{name}.sh                    # trains the vocabulary, then the model; resumes")
    print(f"  limba inspect {templates.quoted(corpus)} --vocabulary=byte    # look at the text first")


def _checked_name(name: str | None) -> str:
    if not name:
        raise InputError("No name is given; write limba new nb --corpus='data/*.jsonl'.")
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name) or keyword.iskeyword(name) or len(name) > 40:
        raise InputError(
            f"The name {name} cannot be that of a Python module; give small letters, digits and _, such as nb."
        )
    return name


def _check_new(name: str, size: str | None) -> None:
    """Raises InputError if one of the files exists, or if Limba has a task module of that name."""
    files = [f"tasks/{name}.py", f"launch/{name}.sh", *([f"gin/{name}_{size}.gin"] if size else [])]
    there = [path for path in files if os.path.lexists(path)]
    if there:
        raise InputError(f"{' and '.join(there)} exist{'s' if len(there) == 1 else ''} already; choose another name.")
    if f"tasks.{name}" in task_modules():
        raise InputError(f"Limba has a task module tasks/{name}.py of its own; choose another name.")


def _about(corpus: str, found: Survey) -> str:
    from limba.tools.corpus.sizes import short

    about = "" if found.is_whole else "about "
    columns = f"; columns {', '.join(found.columns)}" if found.columns else ""
    read = f", of which {found.column!r} is read" if found.columns else ""
    files = f"{found.files:,} file{'s' if found.files > 1 else ''}"
    return (
        f"{corpus}: {files}{columns}{read}; {about}{found.documents:,} documents, {about}{short(found.bytes)}B of text,"
        f" {about}{short(found.letters)} letters."
    )


def _hours(hours: float) -> str:
    from limba.api import duration

    return duration(hours * 3600)


@contextlib.contextmanager
def _reading() -> Iterator[Callable[[int], object]]:
    from tqdm import tqdm

    with tqdm(desc="reading", unit="B", unit_scale=True, dynamic_ncols=True, disable=None, leave=False) as bar:
        yield lambda done: bar.update(done - bar.n)


def _write(files: dict[str, str]) -> None:
    """Writes new files; if one exists by now, none is left."""
    made: list[Path] = []
    try:
        for place, text in files.items():
            path = Path(place)
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("x", encoding="utf-8") as file:
                made.append(path)
                file.write(text)
        made[-1].chmod(0o755)
    except FileExistsError as error:
        for path in made:
            path.unlink()
        raise InputError(f"{error.filename} exists already; choose another name. Nothing was written.") from None
