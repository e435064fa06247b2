"""docs/development/capabilities.md, the law of what Limba holds, against the repository: neither has more.

Whatever a user meets (commands, gin macros, folders of limba/, pages of docs/) is named in one of the page's two
tables, and whatever these name exists.
"""

import re
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

import limba
from limba import config
from limba.cli.main import COMMANDS
from limba.config.optimizer import fields_of
from tests.test_docs import INLINE, MACROS, spelt_by_commands

pytestmark = pytest.mark.lint
ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs/development/capabilities.md"
LINK = re.compile(r"\]\(([^)\s#]+)")
COLUMNS = {"## What stays": 5, "## What goes": 6}  # the last one of what goes is an issue's title
LOCATIONS = (2, 3, 4)  # the columns of room, test and page
NONE = "-"
FILES_OF_USERS = ("tokenizer.json", "metrics.jsonl")  # by which a capability is known


class Repository(NamedTuple):
    """What must be named."""

    commands: Collection[str]
    macros: Collection[str]
    folders: Collection[str]
    pages: Collection[str]


def repository() -> Repository:
    """Returns the commands, macros, folders and pages that are there."""
    folders = {path.parent.relative_to(ROOT).as_posix() for path in (ROOT / "limba").rglob("*.py")}
    folders.remove("limba")
    pages = {path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").rglob("*.md")}
    return Repository(COMMANDS, MACROS, folders, pages)


def tables(text: str) -> dict[str, list[list[str]]]:
    """Returns the rows of the two tables by their headings, each row as its cells."""
    by_heading = {}
    for heading in COLUMNS:
        section = text.partition(f"{heading}\n")[2].partition("\n## ")[0]
        lines = [line for line in section.splitlines() if line.startswith("|")]
        rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
        by_heading[heading] = rows[2:]  # after the names of the columns and the line below them
    return by_heading


def spans(text: str) -> list[str]:
    """Returns what stands between backticks in the two tables."""
    cells = [cell for rows in tables(text).values() for row in rows for cell in row]
    return [span for cell in cells for span in INLINE.findall(cell)]


def linked_pages(text: str) -> set[str]:
    """Returns the pages that the two tables link to, by their paths from the root."""
    targets = {
        target for rows in tables(text).values() for row in rows for cell in row for target in LINK.findall(cell)
    }
    return {(PAGE.parent / target).resolve().relative_to(ROOT).as_posix() for target in targets}


def unnamed(text: str, there: Repository) -> Iterator[str]:
    """Yields what is in the repository and in neither table."""
    named = set(spans(text))
    pages = linked_pages(text)
    yield from (f"limba {name}" for name in there.commands if f"limba {name}" not in named)
    yield from (macro for macro in there.macros if macro not in named)
    yield from (f"{folder}/" for folder in there.folders if f"{folder}/" not in named)
    yield from (page for page in there.pages if page not in pages)


def exists(span: str, there: Repository) -> bool:
    """Whether what a table names is there; False for what is of no known kind."""
    if match := re.fullmatch(r"limba ([a-z-]+)", span):
        return match[1] in there.commands
    if re.fullmatch(r"[A-Z][A-Z_]+", span):
        return span in there.macros
    if match := re.fullmatch(r"(\w+Config)\.(\w+)", span):
        owner = getattr(config, match[1], None)
        return owner is not None and match[2] in fields_of(owner)
    if match := re.fullmatch(r"limba\.(\w+)", span):
        return match[1] in limba.__all__
    if match := re.fullmatch(r"python -m ([\w.]+)", span):
        return (ROOT / f"{match[1].replace('.', '/')}.py").is_file()
    if re.fullmatch(r"--[a-z_]+", span):
        return span in spelt_by_commands()
    path = ROOT / span.removeprefix("bash ")
    return path.is_dir() if span.endswith("/") else path.is_file()


def unknown(text: str, there: Repository) -> Iterator[str]:
    """Yields what a table names and the repository does not have."""
    yield from (span for span in spans(text) if not exists(span, there) and span not in FILES_OF_USERS)
    yield from (page for page in linked_pages(text) if page not in there.pages)


def test_everything_is_named() -> None:
    missing = list(unnamed(PAGE.read_text(), repository()))
    assert not missing, f"docs/development/capabilities.md does not name {', '.join(missing)}"


def test_everything_that_is_named_exists() -> None:
    absent = list(unknown(PAGE.read_text(), repository()))
    assert not absent, f"docs/development/capabilities.md names {', '.join(absent)}, which are not there"


def test_each_row_has_a_room_a_test_and_a_page() -> None:
    for heading, rows in tables(PAGE.read_text()).items():
        assert rows
        for row in rows:
            assert len(row) == COLUMNS[heading] and all(row), row
            if heading == "## What stays":
                assert NONE not in [row[column] for column in LOCATIONS], row
            tests = INLINE.findall(row[3])
            assert tests and all(re.fullmatch(r"tests/[\w/]*test_\w+\.py", test) for test in tests), row


@pytest.mark.parametrize("kind", ["commands", "macros", "folders", "pages"])
def test_what_is_new_has_to_be_named(kind: str) -> None:
    planted = {"commands": "sing", "macros": "SINGING", "folders": "limba/singing", "pages": "docs/singing.md"}[kind]
    there = repository()
    more = there._replace(**{kind: {*getattr(there, kind), planted}})
    (missing,) = unnamed(PAGE.read_text(), more)
    assert "sing" in missing.lower()


@pytest.mark.parametrize(
    "planted",
    [
        "`limba sing`", "`SINGING`", "`limba/singing/`", "`limba/singing.py`", "`tests/test_singing.py`",
        "[singing](../singing.md)", "`ModelConfig.singing`", "`SingingConfig.pitch`", "`limba.sing`", "`--sing`",
        "`bash launch/sing.sh`", "`python -m benchmarks.sing`", "`sing`",
    ],
)  # fmt: skip
@pytest.mark.parametrize("heading", COLUMNS)
def test_what_is_gone_may_not_be_named(heading: str, planted: str) -> None:
    before, between, after = PAGE.read_text().partition(f"{heading}\n")
    lines = after.splitlines(keepends=True)
    first_row = 1 + next(number for number, line in enumerate(lines) if line.startswith("| ---"))
    lines.insert(first_row, f"| {' | '.join([planted] * COLUMNS[heading])} |\n")
    faults = set(unknown(before + between + "".join(lines), repository()))
    assert len(faults) == 1 and "sing" in faults.pop().lower()


@pytest.mark.parametrize(
    "row", ["`limba vocabulary`", "`HUB_MODEL_ID`", "`limba/model/kernels/`", "[metrics](metrics.md)"]
)
def test_a_row_that_is_lost_is_missed(row: str) -> None:
    text = PAGE.read_text()
    (line,) = [line for line in text.splitlines() if row in line]
    assert list(unnamed(text.replace(line, ""), repository()))
