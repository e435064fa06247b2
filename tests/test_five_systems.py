"""docs/development/five_systems.md: each row names a test that exists."""

import ast
import re
from pathlib import Path

import pytest

pytestmark = pytest.mark.lint
ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "development" / "five_systems.md"
ROWS = [
    line for line in PAGE.read_text().splitlines() if line.startswith("| ") and not line.startswith(("| -", "| theirs"))
]
TESTS = re.findall(r"^(\d+)\. `(tests/[\w/]+\.py)`(?::\s+`(test_\w+)`)?$", PAGE.read_text(), re.MULTILINE)


def names_in(file: Path) -> set[str]:
    return {node.name for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.FunctionDef)}


def test_each_row_names_tests_that_exist() -> None:
    rows = [row.split("|")[1:4] for row in ROWS]
    assert not [row for row in rows if not all(cell.strip() for cell in row)]
    files = {file for _, file, _ in TESTS}
    assert not (missing := [file for file in files if not (ROOT / file).is_file()]), missing
    known = {file: names_in(ROOT / file) for file in files}
    assert not (missing := [f"{file}: {name}" for _, file, name in TESTS if name and name not in known[file]]), missing
    numbers = [(row, int(number)) for row in rows for number in row[2].split(",")]
    assert not (missing := [row for row, number in numbers if not 1 <= number <= len(TESTS)]), missing


def test_tests_are_numbered_as_the_rows_name_them() -> None:
    assert [int(number) for number, _, _ in TESTS] == list(range(1, len(TESTS) + 1))
    named = [int(number) for row in ROWS for number in row.split("|")[3].split(",")]
    assert list(dict.fromkeys(named)) == list(range(1, len(TESTS) + 1))  # in order, and none is left over


def test_all_five_systems_are_there() -> None:
    assert len(re.findall(r"^## (?!Tests$)", PAGE.read_text(), re.MULTILINE)) == 5 and len(ROWS) > 60


def commands_of(page: str) -> list[str]:
    """Returns the blocks of code of a page, without comments."""
    blocks = re.findall(r"^```\w*\n(.*?)^```$", (ROOT / "docs" / page).read_text(), re.DOTALL | re.MULTILINE)
    return [re.sub(r" +#.*", "", block) for block in blocks]


def test_the_guide_in_japanese_has_the_commands_of_the_english_one() -> None:
    assert commands_of("gcp.md") == commands_of("gcp.ja.md") and len(commands_of("gcp.md")) > 10


@pytest.mark.parametrize(("page", "hour"), [("gcp.md", r"\w+"), ("gcp.ja.md", "時間")])
def test_disk_and_hours_are_named_for_each_data_set(page: str, hour: str) -> None:
    text = (ROOT / "docs" / page).read_text()
    for name in ("lm1b", "wiki40b/ja", "cc100/ja"):
        assert re.search(rf"^\| `{name}` \| [\d.]+ GB.* \| \d+ GB \| .*{hour} \|$", text, re.MULTILINE), (page, name)
