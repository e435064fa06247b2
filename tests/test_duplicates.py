"""No two places outside of tests share more than ten lines.

A line counts without its indentation and comment. Blank lines, imports and lone punctuation do not count, and end no
run: two places are the same where eleven lines that count are, whatever stands between them.
"""

import ast
import collections
import io
import re
import tokenize
from pathlib import Path

import pytest

from tests.shipped import SHIPPED, place_of

pytestmark = pytest.mark.lint

MOST_SHARED = 10


def lines_that_count(text: str) -> list[tuple[int, str]]:
    """Returns the numbers and words of a file's lines that count."""
    without = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import | ast.ImportFrom):
            without |= set(range(node.lineno, node.end_lineno + 1))
    lines = text.splitlines()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            lines[token.start[0] - 1] = lines[token.start[0] - 1][: token.start[1]]
    folded = ((number, " ".join(line.split())) for number, line in enumerate(lines, 1) if number not in without)
    return [(number, line) for number, line in folded if re.search(r"\w", line)]


def duplicates(texts: dict[str, str]) -> list[str]:
    """Returns "one.py:3-14 ~ other.py:7-18" for each pair of places that share more lines than they may."""
    counted = {file: lines_that_count(text) for file, text in texts.items()}
    starts = collections.defaultdict(list)  # the places of each window of lines
    for file, lines in counted.items():
        for start in range(len(lines) - MOST_SHARED):
            starts[tuple(line for _, line in lines[start : start + MOST_SHARED + 1])].append((file, start))
    shared = []
    seen = set()
    for places in starts.values():
        for number, (one, i) in enumerate(places):
            for other, j in places[number + 1 :]:
                if (one, i, other, j) in seen:
                    continue
                size = 0
                most = j - i if one == other else len(counted[one])  # a run does not overlap itself
                while (
                    size < most
                    and max(i - len(counted[one]), j - len(counted[other])) + size < 0
                    and counted[one][i + size][1] == counted[other][j + size][1]
                ):
                    seen.add((one, i + size, other, j + size))
                    size += 1
                if size > MOST_SHARED:
                    first = counted[one][i : i + size]
                    second = counted[other][j : j + size]
                    shared.append(f"{one}:{first[0][0]}-{first[-1][0]} ~ {other}:{second[0][0]}-{second[-1][0]}")
    return shared


def test_no_two_places_share_more_than_ten_lines() -> None:
    shared = duplicates({place_of(path): path.read_text() for path in SHIPPED})
    assert not shared, "write once what stands twice:\n" + "\n".join(shared)


@pytest.mark.parametrize(("shared", "pairs"), [(10, []), (11, ["a:1-11 ~ b:3-15"])])
def test_the_search_finds_what_it_should(shared: int, pairs: list[str]) -> None:
    lines = [f"x = {number}" for number in range(shared)]
    one = "\n".join(lines)
    other = "import os\n\n" + "  # why\n\n".join(lines[:2]) + "\n" + "\n\n".join(lines[2:4])
    assert duplicates({"a": one, "b": f"{other}\n" + "\n".join(lines[4:])}) == pairs


def test_one_file_may_repeat_a_line_but_not_a_passage(tmp_path: Path) -> None:
    assert duplicates({"a": "x = 1\n" * 21}) == []
    assert duplicates({"a": "".join(f"x = {number % 11}\n" for number in range(22))}) == ["a:1-11 ~ a:12-22"]
