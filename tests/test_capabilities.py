"""docs/development/capabilities.md, the law of what Limba holds, against the repository: neither has more.

Whatever a user meets (commands, gin macros, folders of limba/, pages of docs/) is named in the page's table, and
whatever it names exists.
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
COLUMNS = ("capability", "command or gin name", "room", "test", "page")
NONE = "-"  # in place of a command or gin name, and of nothing else
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


def rows_of(text: str) -> list[list[str]]:
    """Returns the rows of the table, each as its cells; AssertionError where the page has other columns, or two tables.

    What goes is gone in one commit: no table lists what is still there and shall go.
    """
    lines = [line for line in text.splitlines() if line.startswith("|")]
    names, _, *rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    assert names == [*COLUMNS]
    for row in rows:
        assert len(row) == len(COLUMNS), row
        assert not set("".join(row)) <= set("- "), "the page has a second table"
    return rows


def spans(text: str) -> list[str]:
    """Returns what stands between backticks in the table."""
    found = []
    for row in rows_of(text):
        found += INLINE.findall(" ".join(row))
    return found


def linked_pages(text: str) -> set[str]:
    """Returns the pages that the table links to, by their paths from the root."""
    targets = set()
    for row in rows_of(text):
        targets.update(LINK.findall(" ".join(row)))
    return {(PAGE.parent / target).resolve().relative_to(ROOT).as_posix() for target in targets}


def unnamed(text: str, there: Repository) -> Iterator[str]:
    """Yields what is in the repository and not in the table."""
    named = set(spans(text))
    pages = linked_pages(text)
    yield from (f"limba {name}" for name in there.commands if f"limba {name}" not in named)
    yield from (macro for macro in there.macros if macro not in named)
    yield from (f"{folder}/" for folder in there.folders if f"{folder}/" not in named)
    yield from (page for page in there.pages if page not in pages)


def exists(span: str, there: Repository) -> bool:
    """Whether what the table names is there; False for what is of no known kind."""
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
    """Yields what the table names and the repository does not have."""
    yield from (span for span in spans(text) if not exists(span, there) and span not in FILES_OF_USERS)
    yield from (page for page in linked_pages(text) if page not in there.pages)


def test_everything_is_named() -> None:
    missing = list(unnamed(PAGE.read_text(), repository()))
    assert not missing, f"docs/development/capabilities.md does not name {', '.join(missing)}"


def test_everything_that_is_named_exists() -> None:
    absent = list(unknown(PAGE.read_text(), repository()))
    assert not absent, f"docs/development/capabilities.md names {', '.join(absent)}, which are not there"


def test_each_row_has_a_room_a_test_and_a_page() -> None:
    for row in rows_of(PAGE.read_text()):
        _, _, room, test, page = row
        assert all(row) and NONE not in (room, test, page), row
        tests = INLINE.findall(test)
        assert tests and all(re.fullmatch(r"tests/[\w/]*test_\w+\.py", name) for name in tests), row


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
def test_what_is_gone_may_not_be_named(planted: str) -> None:
    row = f"| {' | '.join([planted] * len(COLUMNS))} |\n"
    faults = set(unknown(PAGE.read_text() + row, repository()))
    assert len(faults) == 1 and "sing" in faults.pop().lower()


@pytest.mark.parametrize("columns", [COLUMNS, (*COLUMNS, "with the issue")])
def test_a_table_of_what_shall_go_is_refused(columns: tuple[str, ...]) -> None:
    lines = ["", "## What goes", "", f"| {' | '.join(columns)} |", f"|{' --- |' * len(columns)}"]
    with pytest.raises(AssertionError):
        rows_of(PAGE.read_text() + "\n".join(lines))


@pytest.mark.parametrize(
    "row", ["`limba vocabulary`", "`HUB_MODEL_ID`", "`limba/model/kernels/`", "[metrics](metrics.md)"]
)
def test_a_row_that_is_lost_is_missed(row: str) -> None:
    text = PAGE.read_text()
    (line,) = [line for line in text.splitlines() if row in line]
    assert list(unnamed(text.replace(line, ""), repository()))
