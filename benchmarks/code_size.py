"""The size of the code, and how much of it is documented by examples.

    python -m benchmarks.code_size
    python -m benchmarks.code_size --root=OTHER_CHECKOUT

Code lines are without blank lines, comments and docstrings. A public docstring is that of a class or function whose
name does not begin with an underscore.
"""

from __future__ import annotations

import ast
import io
import sys
import tokenize
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from limba.cli import program
from limba.cli.arguments import Parser
from limba.config import InputError

FOLDERS = ("limba", "launch", "convert", "tasks")
NO_CODE = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER)
DOCUMENTED = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


class Size(NamedTuple):
    """The size of one file."""

    lines: int
    code: int  # code lines, imports apart
    imports: int  # lines of imports
    functions: list[int]  # the length of each function
    docstrings: list[str]  # the public ones


def size_of(text: str) -> Size:
    """Returns the size of a file's text.

    >>> size_of("import os\\n\\n# a comment\\ndef f():\\n    'Says.'\\n    return 1\\n")
    Size(lines=6, code=2, imports=1, functions=[3], docstrings=['Says.'])
    """
    nodes = list(ast.walk(ast.parse(text)))
    documented = [node for node in nodes if isinstance(node, (*DOCUMENTED, ast.Module)) and ast.get_docstring(node)]
    texts = {line for node in documented for line in _lines_of(node.body[0])}
    imported = {line for node in nodes if isinstance(node, ast.Import | ast.ImportFrom) for line in _lines_of(node)}
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    spans = (range(token.start[0], token.end[0] + 1) for token in tokens if token.type not in NO_CODE)
    code = {line for span in spans for line in span} - texts
    public = [node for node in documented if isinstance(node, DOCUMENTED) and not node.name.startswith("_")]
    functions = [len(_lines_of(node)) for node in nodes if isinstance(node, DOCUMENTED[:2])]
    said = [ast.get_docstring(node) or "" for node in public]
    return Size(text.count("\n"), len(code - imported), len(code & imported), functions, said)


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


def main(argv: Sequence[str]) -> None:
    parser = Parser("-m benchmarks.code_size", __doc__ or "", "python")
    parser.add_argument("--root", default=str(Path(__file__).parent.parent), help="a checkout; default: this one")
    root = Path(parser.parse(argv).root)
    files = sorted(path for folder in FOLDERS for path in (root / folder).rglob("*.py"))
    if not files:
        raise InputError(f"{root} has no Python files in {', '.join(FOLDERS)}; give a checkout of Limba.")
    sizes = {path.relative_to(root).as_posix(): size_of(path.read_text(encoding="utf-8")) for path in files}
    print("\n".join(table(list(sizes.values()))))
    print("\ncode lines by folder, imports apart")
    folders: dict[str, int] = {}
    for place, size in sizes.items():
        folder = "/".join(place.split("/")[:2]) if place.count("/") > 1 else place.split("/")[0]
        folders[folder] = folders.get(folder, 0) + size.code
    print("\n".join(f"{count:7,}  {folder}" for folder, count in folders.items()))


if __name__ == "__main__":
    sys.exit(program.exit_code(main, sys.argv[1:]))
