"""The size of the code, and how much of it is documented by examples.

    python -m benchmarks.code_size
    python -m benchmarks.code_size --root=OTHER_CHECKOUT
    python -m benchmarks.code_size --check

Code lines are without blank lines, comments and docstrings. A public docstring is that of a class or function whose
name does not begin with an underscore. --check compares folders with benchmarks/budgets.toml: import lines count there,
and tokens are Python's own, without comments and docstrings. It ends with 1 if a folder has more than it may.
"""

from __future__ import annotations

import ast
import io
import itertools
import sys
import tokenize
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from limba.cli import program
from limba.cli.arguments import Parser
from limba.config import InputError

FOLDERS = ("limba", "launch", "convert", "tasks")
NO_CODE = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER)
# Python 3.12 cuts f-strings up, which are one token before.
F_STRING = [getattr(tokenize, f"FSTRING_{name}", None) for name in ("START", "END")]
DOCUMENTED = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


class Size(NamedTuple):
    """The size of one file."""

    lines: int
    code: int  # code lines, imports apart
    imports: int  # lines of imports
    functions: list[int]  # the length of each function
    docstrings: list[str]  # the public ones
    tokens: int  # without comments and docstrings


def size_of(text: str) -> Size:
    """Returns the size of a file's text.

    >>> size_of("import os\\n\\n# a comment\\ndef f():\\n    'Says.'\\n    return 1\\n")
    Size(lines=6, code=2, imports=1, functions=[3], docstrings=['Says.'], tokens=9)
    """
    nodes = list(ast.walk(ast.parse(text)))
    documented = [node for node in nodes if isinstance(node, (*DOCUMENTED, ast.Module)) and ast.get_docstring(node)]
    texts = {line for node in documented for line in _lines_of(node.body[0])}
    imported = {line for node in nodes if isinstance(node, ast.Import | ast.ImportFrom) for line in _lines_of(node)}
    all_tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    tokens = [token for token in all_tokens if token.type not in NO_CODE and token.start[0] not in texts]
    nested = itertools.accumulate((token.type == F_STRING[0]) - (token.type == F_STRING[1]) for token in tokens)
    spans = (range(token.start[0], token.end[0] + 1) for token in tokens)
    code = {line for span in spans for line in span} - texts
    public = [node for node in documented if isinstance(node, DOCUMENTED) and not node.name.startswith("_")]
    functions = [len(_lines_of(node)) for node in nodes if isinstance(node, DOCUMENTED[:2])]
    said = [ast.get_docstring(node) or "" for node in public]
    return Size(text.count("\n"), len(code - imported), len(code & imported), functions, said, [*nested].count(0))


def _lines_of(node: ast.stmt) -> range:
    return range(node.lineno, (node.end_lineno or node.lineno) + 1)


def _percentile_90(values: Sequence[int]) -> int:
    return sorted(values)[int(0.9 * len(values))]


def table(sizes: Sequence[Size]) -> Iterator[str]:
    """Yields the lines of the table for these files."""
    lengths = [size.lines for size in sizes]
    functions = [length for size in sizes for length in size.functions]
    docstrings = [text for size in sizes for text in size.docstrings]
    yield f"files                              {len(sizes):,}"
    yield f"code lines, imports apart          {sum(size.code for size in sizes):,}"
    yield f"import lines                       {sum(size.imports for size in sizes):,}"
    yield f"length of a file: p90, largest     {_percentile_90(lengths)}, {max(lengths)}"
    yield f"length of a function: p90, largest {_percentile_90(functions)}, {max(functions)}"
    yield f"public docstrings, with an example {len(docstrings)}, {sum('>>>' in text for text in docstrings)}"


def within(place: str, folders: Sequence[str]) -> bool:
    """Returns whether a file is one of these folders', or is one of these files."""
    return any(place == folder or place.startswith(f"{folder}/") for folder in folders)


def budgets(sizes: Mapping[str, Size], text: str) -> Iterator[tuple[str, bool]]:
    """Yields a line for each budget of the file's text, and whether it is kept.

    >>> one = size_of("import os")
    >>> list(budgets({"a/b.py": one, "c/d.py": one}, "[all]\\nfolders = ['a', 'c']\\nwithout = ['c']\\nlines = 0"))
    [('all: 1 of 0 lines', False)]
    """
    for name, budget in tomllib.loads(text).items():
        without = budget.get("without", ())
        found = [
            size for place, size in sizes.items() if within(place, budget["folders"]) and not within(place, without)
        ]
        counts = {
            "lines": sum(size.code + size.imports for size in found),
            "tokens": sum(size.tokens for size in found),
            "files": len(found),
        }
        measured = {kind: count for kind, count in counts.items() if kind in budget}
        parts = [f"{count:,} of {budget[kind]:,} {kind}" for kind, count in measured.items()]
        yield f"{name}: {', '.join(parts)}", all(count <= budget[kind] for kind, count in measured.items())


def main(argv: Sequence[str]) -> int:
    parser = Parser("-m benchmarks.code_size", __doc__ or "", "python")
    parser.add_argument("--root", default=str(Path(__file__).parent.parent), help="a checkout; default: this one")
    parser.add_argument("--check", action="store_true", help="compare folders with their budgets")
    given = parser.parse(argv)
    root, folders = Path(given.root), [*FOLDERS, *(["benchmarks"] if given.check else [])]
    files = sorted(path for folder in folders for path in (root / folder).rglob("*.py"))
    if not files:
        raise InputError(f"{root} has no Python files in {', '.join(FOLDERS)}; give a checkout of Limba.")
    sizes = {path.relative_to(root).as_posix(): size_of(path.read_text(encoding="utf-8")) for path in files}
    if given.check:
        lines = list(budgets(sizes, (root / "benchmarks" / "budgets.toml").read_text(encoding="utf-8")))
        print("\n".join(line if is_kept else f"{line}: too many" for line, is_kept in lines))
        return int(not all(is_kept for _, is_kept in lines))
    print("\n".join(table(list(sizes.values()))))
    print("\ncode lines by folder, imports apart")
    counts: dict[str, int] = {}
    for place, size in sizes.items():
        folder = "/".join(place.split("/")[:2]) if place.count("/") > 1 else place.split("/")[0]
        counts[folder] = counts.get(folder, 0) + size.code
    print("\n".join(f"{count:7,}  {folder}" for folder, count in counts.items()))
    return 0


if __name__ == "__main__":
    sys.exit(program.exit_code(main, sys.argv[1:]))
