"""Which test files the commit tier opens: the ones with lint or core, and the tests of what has changed since HEAD.

python -m tests.changed torch seqio     prints the test files that import a library
"""

import re
import subprocess
import sys
from functools import cache
from pathlib import Path

from tests.shipped import MODULES, ROOT, TESTS, imports, module_of, place_of

ALWAYS = re.compile(r"\bmark\.(?:core|lint)\b")
MOST = 6  # files of tests for one changed module: those that import least else
NAMED = re.compile(r"\btest_\w+\.py$")


def changed_files() -> set[Path]:
    """Returns what differs from HEAD in the checkout or is new; nothing where git has no HEAD."""
    names: set[str] = set()
    for command in (["diff", "--name-only", "HEAD"], ["ls-files", "--others", "--exclude-standard"]):
        told = subprocess.run(["git", *command], cwd=ROOT, capture_output=True, text=True, check=False)
        names |= set(told.stdout.splitlines()) if told.returncode == 0 else set()
    return {path for name in names if (path := ROOT / name).is_file()}


def files_for(changed: set[Path]) -> set[Path]:
    """Returns the test files of changed ones: each itself, and of a module those that import it and least else.

    Where no test imports a module, the tests of the modules that import it count.
    """
    modules, users = _graph()
    chosen = {path for path in changed if NAMED.search(path.name)}
    for module in {module_of(path) for path in changed if path.suffix == ".py"} & set(modules):
        of_module = _own_tests(modules[module])
        seen = {module}
        near = {module}
        files = set(of_module)
        while near:
            near = {user for name in near for user in users.get(name, ())} - seen
            seen |= near
            files |= {modules[name] for name in near if NAMED.search(modules[name].name)}
            if files:
                break
        by_rank = sorted(files, key=lambda path: (path not in of_module, len(imports(path)), place_of(path)))
        chosen |= set(by_rank[:MOST])
    return chosen


@cache
def _graph() -> tuple[dict[str, Path], dict[str, set[str]]]:
    """Returns the files of all modules, and who imports each."""
    modules = {module_of(path): path for path in (*MODULES.values(), *TESTS)}
    users: dict[str, set[str]] = {}
    for module, path in modules.items():
        for name in imports(path):
            users.setdefault(name, set()).add(module)
    return modules, users


def files_with(library: str) -> set[Path]:
    """Returns the test files that import a library, by themselves or by other files of tests/."""
    files = set[Path]()
    names = set[str]()
    while near := {
        path
        for path in TESTS
        if path not in files and any(name in names or name.split(".")[0] == library for name in imports(path))
    }:
        files |= near
        names |= {module_of(path) for path in near}
    return {path for path in files if NAMED.search(path.name)}


def _own_tests(path: Path) -> set[Path]:
    """Returns the test files of a module's name in its room: tests/ mirrors limba/."""
    room = path.relative_to(ROOT).parts[1]
    return set(ROOT.joinpath("tests", room).rglob(f"test_{path.stem}.py"))


@cache
def chosen_files() -> tuple[frozenset[Path], frozenset[Path]]:
    """Returns the files that always count, of which only the marked tests do, and the files of what has changed."""
    always = {path for path in TESTS if NAMED.search(path.name) and ALWAYS.search(path.read_text())}
    return frozenset(always), frozenset(files_for(changed_files()))


if __name__ == "__main__":
    print(*sorted({place_of(path) for library in sys.argv[1:] for path in files_with(library)}), sep="\n")
