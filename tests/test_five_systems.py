"""docs/five_systems.md: each row names a test that exists."""

import ast
import re
from pathlib import Path

import pytest

pytestmark = pytest.mark.fast
ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "five_systems.md"
ROWS = [
    line for line in PAGE.read_text().splitlines() if line.startswith("| ") and not line.startswith(("| -", "| th"))
]
TEST = re.compile(r"`(tests/[\w/]+\.py)(?:::(test_\w+))?`")


def names_in(file: Path) -> set[str]:
    return {node.name for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.FunctionDef)}


@pytest.mark.parametrize("row", ROWS, ids=lambda row: re.sub(r"\W+", "_", row.split("|")[1])[:50])
def test_each_row_names_tests_that_exist(row: str) -> None:
    _, theirs, here, tests, _ = row.split("|")
    named = TEST.findall(tests)
    assert theirs.strip() and here.strip() and named, row
    for file, name in named:
        assert (ROOT / file).is_file(), file
        assert not name or name in names_in(ROOT / file), f"{file} has no {name}"


def test_all_five_systems_are_there() -> None:
    assert len(re.findall(r"^## ", PAGE.read_text(), re.MULTILINE)) == 5 and len(ROWS) > 60
