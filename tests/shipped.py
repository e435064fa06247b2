"""The Python files of this repository as text: what they import, say and hold; no module of Limba is imported."""

import ast
import io
import tokenize
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parent.parent
FOLDERS = ("limba", "tasks", "launch", "convert", "benchmarks")
SHIPPED = sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))
TESTS = sorted((ROOT / "tests").rglob("*.py"))


def place_of(path: Path) -> str:
    """Returns a file's path from the root."""
    return path.relative_to(ROOT).as_posix()


def module_of(path: Path) -> str:
    return place_of(path).removesuffix(".py").removesuffix("/__init__").replace("/", ".")


MODULES = {module_of(path): path for path in SHIPPED}
OWN = {module_of(path) for path in (*SHIPPED, *TESTS)}


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


@cache
def imports(path: Path) -> frozenset[str]:
    """Returns what a file imports, at its top, in a function or by name; of our own, modules."""
    names = set()
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.module and not node.level, f"{place_of(path)}:{node.lineno}: write the import in full"
            inside = {f"{node.module}.{alias.name}" for alias in node.names}
            names |= {name if name in OWN else node.module for name in inside}
        elif isinstance(node, ast.Call) and getattr(node.func, "attr", getattr(node.func, "id", "")) == "import_module":
            names |= {name.value for name in node.args if isinstance(name, ast.Constant)}
    return frozenset(names)


def strings(path: Path) -> Iterator[tuple[int, str]]:
    """Yields a file's strings, those within f-strings too and docstrings not, with their lines."""
    nodes = list(ast.walk(tree_of(path)))
    said = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    for node in nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in said:
            yield node.lineno, node.value


def explanations(path: Path) -> Iterator[tuple[int, str]]:
    """Yields a file's docstrings and comments with their lines."""
    for _, line, text in docstrings(path):
        yield line, text
    for token in tokenize.generate_tokens(io.StringIO(path.read_text()).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string


def docstrings(path: Path) -> Iterator[tuple[str, int, str]]:
    """Yields the name ("" for the module's own), line and text of each docstring."""

    def within(node: ast.AST, name: str) -> Iterator[tuple[str, int, str]]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                inner = f"{name}.{child.name}".lstrip(".")
                if text := ast.get_docstring(child):
                    yield inner, child.body[0].lineno, text
                yield from within(child, inner)

    if text := ast.get_docstring(tree_of(path)):
        yield "", 1, text
    yield from within(tree_of(path), "")
