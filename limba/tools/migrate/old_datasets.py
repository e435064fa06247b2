"""Lets the user's task modules call `datasets.load_dataset` as it was in 2022, with `use_auth_token`.

Task modules written for T5X read a data set with a private token in this way, and `datasets` removed the argument in
version 3. Only the user's modules see the older form: their import statements are replaced. The rest of the process
finds the library as it is.
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

DATASETS = "datasets"
FUNCTION = "load_dataset"
OLD_ARGUMENT = "use_auth_token"  # renamed in datasets 2.14, removed in 3.0
NEW_ARGUMENT = "token"
LIBRARIES = {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
# Where libraries lie: of the user, of the system, of another environment.
PACKAGES = {"site-packages", "dist-packages"}


@contextlib.contextmanager
def importing() -> Iterator[None]:
    """Inside, task modules are imported: these find `datasets` with its arguments of 2022, then and later.

    `load_dataset` takes `use_auth_token`: True means the token of this machine, if any; False no token; a text is the
    token itself.
    """
    finder = _UsersModules()
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)


def _import(name: str, *rest: Any, **named: Any) -> ModuleType:
    """The import statement of the user's modules; C extensions that they import call it with named arguments."""
    module = builtins.__import__(name, *rest, **named)
    # `name` is asked first: a library's lazy module would be loaded by asking for its __name__.
    if name.partition(".")[0] == DATASETS and module.__name__ == DATASETS:
        return _Datasets(module)
    return module


class _UsersModules(MetaPathFinder):
    """Finds the user's modules where the other finders do, and gives them `_import`."""

    def __init__(self) -> None:
        self._asked: set[str] = set()  # names that the other finders look for now: one of them may ask all finders

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname in self._asked:
            return None
        self._asked.add(fullname)
        try:
            spec = self._spec_of_others(fullname, path, target)
        finally:
            self._asked.discard(fullname)
        if spec is not None and type(spec.loader) is SourceFileLoader and _is_users(spec):
            spec.loader = _Loader(spec.loader.name, spec.loader.path)
        return spec

    def _spec_of_others(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None
    ) -> ModuleSpec | None:
        for finder in sys.meta_path:
            if finder is self:
                continue
            spec = finder.find_spec(fullname, path, target)
            if spec is not None:
                return spec
        return None


def _is_users(spec: ModuleSpec) -> bool:
    """Returns whether a module is the user's: not Limba's, and not in a folder of libraries."""
    path = Path(spec.origin or "")
    is_library = any(path.is_relative_to(folder) for folder in LIBRARIES) or bool(PACKAGES & set(path.parts))
    return not is_library and spec.name.partition(".")[0] != "limba"


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
        attribute = getattr(self._library, name)
        return taking_old_arguments(attribute) if name == FUNCTION else attribute


def taking_old_arguments(function: Callable[..., object]) -> Callable[..., object]:
    """Returns `load_dataset`, which also takes `use_auth_token`.

    >>> taking_old_arguments(lambda path, token=None: (path, token))("user/name", use_auth_token="hf_x")
    ('user/name', 'hf_x')
    """

    @functools.wraps(function)
    def load(*arguments: object, **named: object) -> object:
        if OLD_ARGUMENT in named:
            value = named.pop(OLD_ARGUMENT)
            named.setdefault(NEW_ARGUMENT, None if value is True else value)  # None: the token of this machine
        return function(*arguments, **named)

    return load
