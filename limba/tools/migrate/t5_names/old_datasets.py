"""Lets task modules of 2022 call today's `datasets`: its `load_dataset` takes the argument that it had then."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

LIBRARY, FUNCTION = "datasets", "load_dataset"
OLD, NEW = "use_auth_token", "token"  # renamed in datasets 2.14, taken out in 3.0


def taking_old_arguments(function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns `load_dataset`, which also takes `use_auth_token`.

    True means the token that is there, if any, as the default does today; False none; a string that token.

    >>> taking_old_arguments(lambda path, token=None: (path, token))("user/name", use_auth_token="hf_x")
    ('user/name', 'hf_x')
    """

    @functools.wraps(function)
    def load(*given: Any, **named: Any) -> Any:
        if OLD in named:
            value = named.pop(OLD)
            named.setdefault(NEW, None if value is True else value)
        return function(*given, **named)

    return load


class _Finder(MetaPathFinder):
    """Finds the library where the other finders do, with a loader that adds the argument."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != LIBRARY:
            return None
        for finder in sys.meta_path:
            spec = None if finder is self else finder.find_spec(fullname, path, target)
            if spec is not None:
                spec.loader = spec.loader and _Loader(spec.loader)
                return spec
        return None


class _Loader(Loader):
    """Loads the library by its own loader, and then adds the argument."""

    def __init__(self, own: Loader):
        self._own = own

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._own.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        module.__loader__ = self._own
        if module.__spec__ is not None:
            module.__spec__.loader = self._own
        self._own.exec_module(module)
        _add(module)


def _add(module: ModuleType) -> None:
    function = getattr(module, FUNCTION, None)
    if function is not None and not hasattr(function, "__wrapped__"):
        setattr(module, FUNCTION, taking_old_arguments(function))


def install() -> None:
    """Adds the argument now, or when the library is imported. Imports nothing; may be called again."""
    if LIBRARY in sys.modules:
        _add(sys.modules[LIBRARY])
    elif not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())
