"""Lets the user's task modules call `datasets.load_dataset` as it was in 2022, with `use_auth_token`.

Task modules written for T5X read a data set with a private token in this way, and `datasets` took the argument out in
version 3. Only the user's modules see the older form: each is loaded with an import statement of its own. The rest of
the process finds the library as it is.
"""

from __future__ import annotations

import builtins
import contextlib
import functools
import sys
import sysconfig
from collections.abc import Callable, Iterator, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any

DATASETS, FUNCTION = "datasets", "load_dataset"
OLD, NEW = "use_auth_token", "token"  # renamed in datasets 2.14, taken out in 3.0
LIBRARIES = {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
# Where libraries lie: of the user, of the system, of another environment.
PACKAGES = {"site-packages", "dist-packages"}


@contextlib.contextmanager
def importing() -> Iterator[None]:
    """Inside, task modules are imported: these find `datasets` with its arguments of 2022, then and later.

    `load_dataset` takes `use_auth_token`: True means the token that is there, if any; False none; a text that token.
    """
    finder = _UsersModules()
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)


def _import(name: str, *rest: Any, **named: Any) -> ModuleType:
    """The import statement of the user's modules; extensions in C that these import call it with names."""
    found = builtins.__import__(name, *rest, **named)
    # A library's lazy module would be loaded by the question for its name.
    is_datasets = name.partition(".")[0] == DATASETS and found.__name__ == DATASETS
    return _Datasets(found) if is_datasets else found


class _UsersModules(MetaPathFinder):
    """Finds the user's modules where the other finders do, and gives them `_import`."""

    def __init__(self) -> None:
        self._asked: set[str] = set()  # of the others now: one of them may ask all finders too

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname in self._asked:
            return None
        self._asked.add(fullname)
        try:
            others = (finder for finder in sys.meta_path if finder is not self)
            found = next(filter(None, (finder.find_spec(fullname, path, target) for finder in others)), None)
        finally:
            self._asked.discard(fullname)
        if found is not None and type(found.loader) is SourceFileLoader and _is_users(found):
            found.loader = _Loader(found.loader.name, found.loader.path)
        return found


def _is_users(found: ModuleSpec) -> bool:
    path = Path(found.origin or "")
    is_library = any(path.is_relative_to(folder) for folder in LIBRARIES) or bool(PACKAGES & set(path.parts))
    return not is_library and found.name.partition(".")[0] != "limba"


class _Loader(SourceFileLoader):
    def exec_module(self, module: ModuleType) -> None:
        vars(module)["__builtins__"] = {**vars(builtins), "__import__": _import}
        super().exec_module(module)


class _Datasets(ModuleType):
    """The library `datasets`, whose `load_dataset` also takes the argument that it had in 2022."""

    def __init__(self, library: ModuleType):
        super().__init__(library.__name__)
        self._library = library

    def __getattr__(self, name: str) -> object:
        found = getattr(self._library, name)
        return taking_old_arguments(found) if name == FUNCTION else found


def taking_old_arguments(function: Callable[..., object]) -> Callable[..., object]:
    """Returns `load_dataset`, which also takes `use_auth_token`.

    >>> taking_old_arguments(lambda path, token=None: (path, token))("user/name", use_auth_token="hf_x")
    ('user/name', 'hf_x')
    """

    @functools.wraps(function)
    def load(*given: object, **named: object) -> object:
        if OLD in named:
            value = named.pop(OLD)
            named.setdefault(NEW, None if value is True else value)
        return function(*given, **named)

    return load
