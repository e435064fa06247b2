"""Imports go down only (docs/architecture.md), and each heavy library stays behind its wall.

The floors follow from the folders: nothing is listed here but the folders of `limba/`.
"""

import ast
import graphlib
import re
import tokenize
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FLOORS = {
    "config": 0,
    "sharding": 1,
    **dict.fromkeys(("data", "model", "formats"), 2),
    "training": 3,
    **dict.fromkeys(("run", "inference", "evaluation", "export"), 4),
    "cli": 5,
}
OTHERS = {"tasks": 2, **dict.fromkeys(("launch", "convert", "benchmarks", "tests"), 5)}
WALLS = {  # library: where it may be imported
    "flax": ("limba/model/", "limba/training/state.py", "tests/"),
    "seqio": ("limba/data/", "limba/evaluation/", "tasks/", "tests/", "benchmarks/"),
    "tensorflow": ("limba/data/", "limba/evaluation/", "tasks/", "tests/", "benchmarks/"),
    "gin": ("limba/cli/", "tests/"),
    "torch": ("limba/export/", "tests/", "benchmarks/"),
    "transformers": ("limba/export/", "tests/", "benchmarks/"),
}
WITHOUT_JAX = tuple(f"limba/data/{room}/" for room in ("sources", "objectives", "vocabulary", "preparation"))
MOST_MODULES = 16
SOURCES = sorted(
    path
    for folder in ("limba", "tasks", "launch", "convert", "benchmarks", "tests")
    for path in (ROOT / folder).rglob("*.py")
)
SHIPPED = [path for path in SOURCES if "tests" not in path.relative_to(ROOT).parts]


def module_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix().removesuffix(".py").removesuffix("/__init__").replace("/", ".")


ENGINE = [path for path in SHIPPED if path.relative_to(ROOT).parts[:1] == ("limba",) and "cli" not in path.parts]
TEXT_TOKENS = (tokenize.STRING, tokenize.COMMENT)

MODULES = {module_of(path): path for path in SHIPPED}


def imports(path: Path) -> set[str]:
    """Returns what a file imports, at its top or in a function; of our own, modules."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            inside = {f"{node.module}.{alias.name}" for alias in node.names}
            names |= {name if name in MODULES else node.module for name in inside}
    return names


def floor(module: str) -> int | None:
    """Returns the floor of a module of ours; None for libraries, and for `limba` itself, the way in to all floors."""
    first, *rest = module.split(".")
    if first != "limba":
        return OTHERS.get(first)
    if not rest or rest[0] in ("__main__", "text_metrics"):
        return None
    return FLOORS[rest[0]]


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_imports_go_down(path: Path) -> None:
    place, own = path.relative_to(ROOT).as_posix(), floor(module_of(path))
    for name in imports(path):
        library = name.split(".")[0]
        assert library not in WALLS or place.startswith(WALLS[library]), f"{place} imports {name}"
        above = floor(name)
        assert own is None or above is None or above <= own, f"{place} (floor {own}) imports {name} (floor {above})"
        assert library != "jax" or not place.startswith(WITHOUT_JAX), f"{place} imports jax"
    if place.startswith("limba/config/"):
        assert not {name.split(".")[0] for name in imports(path)} & {"numpy", "jax", "etils"}, place


def test_no_circles() -> None:
    graphlib.TopologicalSorter(
        {module: imports(path) & set(MODULES) - {module} for module, path in MODULES.items()}
    ).prepare()
    folders: dict[str, set[str]] = {}
    for module, path in MODULES.items():
        room = module.split(".")[1] if module.startswith("limba.") else ""
        rooms = {name.split(".")[1] for name in imports(path) if name.startswith("limba.")}
        folders.setdefault(room, set()).update(rooms - {room})
    folders.pop("")
    graphlib.TopologicalSorter(folders).prepare()


def test_no_string_names_a_module_of_a_higher_floor() -> None:
    for module, path in MODULES.items():
        own = floor(module)
        text = path.read_text()
        names = re.findall(r"""["'](?:python -m )?((?:limba|launch|convert|benchmarks)(?:\.\w+)+)["']""", text)
        named = [name for name in names if floor(name) is not None]
        assert own is None or all(floor(name) <= own for name in named), f"{path} names {named}"


def spelt(path: Path) -> list[str]:
    """Returns a file's strings, docstrings and comments."""
    with path.open("rb") as file:
        return [token.string for token in tokenize.tokenize(file.readline) if token.type in TEXT_TOKENS]


@pytest.mark.parametrize("path", ENGINE, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_the_engine_knows_neither_flags_nor_macros(path: Path) -> None:
    macros = {
        name
        for file in (ROOT / "gin" / "runs").glob("*.gin")
        for name in re.findall(r"^([A-Z_]+) =", file.read_text(), re.MULTILINE)
    }
    for text in spelt(path):
        flags = [flag for flag in re.findall(r"(?<![\w-])--[a-z][a-z_]+", text) if not flag.startswith("--xla")]
        assert not flags, f"{path} spells the flag {flags[0]}: {text[:100]}"
        assert not (found := macros & set(re.findall(r"\b[A-Z][A-Z_]+\b", text))), (
            f"{path} spells {found}: {text[:100]}"
        )
        assert "python -m" not in text, f"{path} spells a command: {text[:100]}"


def test_folders_are_small_and_say_what_they_hold() -> None:
    for folder in sorted({path.parent for path in SHIPPED if path.is_relative_to(ROOT / "limba")}):
        modules = [path for path in folder.glob("*.py") if path.name != "__init__.py"]
        assert len(modules) <= MOST_MODULES, f"{folder} holds {len(modules)} modules"
        text = (folder / "__init__.py").read_text()
        assert ast.get_docstring(ast.parse(text)), f"{folder} does not say what it holds"


def test_no_file_or_function_is_too_long() -> None:
    for path in SHIPPED:
        text = path.read_text()
        assert text.count("\n") <= 500, path
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef):
                assert node.end_lineno - node.lineno <= 80, f"{path}: {node.name}"


def test_entry_points_are_short() -> None:
    for folder in ("launch", "convert"):
        for path in (ROOT / folder).glob("*.py"):
            assert path.read_text().count("\n") <= 15, path
