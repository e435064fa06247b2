"""Finds `t5`, `t5.data`, `t5.data.preprocessors`, … for the user's task modules if no package t5 is installed.

Only these modules find them: each is loaded with an import statement of its own, which looks here too. The rest of the
process sees nothing of it, but while task modules are imported.
"""

from __future__ import annotations

import builtins
import contextlib
import functools
import importlib
import sys
import sysconfig
import threading
from collections.abc import Callable, Iterator, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any

_HERE = "limba.tools.migrate.t5_names"
# t5's module -> the modules here whose public names it has; none: only a package
MODULES = {
    "t5": (),
    "t5.data": ("providers",),
    "t5.data.preprocessors": ("denoising", "preprocessors"),
    "t5.data.postprocessors": ("postprocessors",),
    "t5.data.tasks": ("tasks",),
    "t5.data.mixtures": ("tasks",),
    "t5.data.utils": ("providers",),
    "t5.evaluation": (),
    "t5.evaluation.metrics": ("metrics",),
}
PARTS = {"t5": ("data", "evaluation"), "t5.data": ("preprocessors", "postprocessors"), "t5.evaluation": ("metrics",)}
# t5's preprocessors that make inputs of one text: a task with one of them has no inputs of its own.
OBJECTIVES = ("span_corruption", "iid_denoising", "prefix_lm", "full_lm", "unsupervised", "denoise")
DATASETS, FUNCTION = "datasets", "load_dataset"
OLD, NEW = "use_auth_token", "token"  # renamed in datasets 2.14, taken out in 3.0
_LOCK = threading.RLock()  # tasks' functions may import in threads
LIBRARIES = {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
# Where libraries lie: of the user, of the system, of another environment.
PACKAGES = {"site-packages", "dist-packages"}


def is_objective(name: str, module: str) -> bool:
    """Returns whether a function is one of t5's objectives, of the package t5 or of the names here."""
    return name in OBJECTIVES and module.startswith(("t5.data", _HERE))


@contextlib.contextmanager
def importing() -> Iterator[None]:
    """Inside, task modules are imported: these find `t5`, and `datasets` with its arguments of 2022, then and later.

    `load_dataset` takes `use_auth_token`: True means the token that is there, if any; False none; a text that token.

    >>> with importing():
    ...     import t5.data.preprocessors
    >>> t5.data.preprocessors.random_spans_helper(512, 0.15, 3.0, 1, 1)
    (568, 114)
    """
    finder = _UsersModules()
    sys.meta_path.insert(0, finder)
    try:
        with _names():
            yield
    finally:
        sys.meta_path.remove(finder)


@contextlib.contextmanager
def _names() -> Iterator[None]:
    """Lets `import t5` find the names here, after every installed package."""
    finder = _Names()
    with _LOCK:
        sys.meta_path.append(finder)
        try:
            yield
        finally:
            sys.meta_path.remove(finder)
            for name in MODULES:
                if isinstance(sys.modules.get(name), _Module):
                    del sys.modules[name]


def _import(name: str, *rest: Any, **named: Any) -> ModuleType:
    """The import statement of the user's modules; extensions in C that these import call it with names."""
    package = name.partition(".")[0]
    if package == "t5":
        with _names():
            return builtins.__import__(name, *rest, **named)
    found = builtins.__import__(name, *rest, **named)
    # A library's lazy module would be loaded by the question for its name.
    return _Datasets(found) if package == DATASETS and found.__name__ == DATASETS else found


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


class _Names(MetaPathFinder, Loader):
    """Finds the modules of MODULES, and makes each of the public names of one here."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in MODULES:
            return None
        return ModuleSpec(fullname, self, is_package=fullname in PARTS, origin=_HERE)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _Module(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        for source in MODULES[module.__name__]:
            found = vars(importlib.import_module(f"{_HERE}.{source}"))
            public = {name for name in found if not name.startswith("_") and not isinstance(found[name], ModuleType)}
            vars(module).update({name: found[name] for name in public})
        for part in PARTS.get(module.__name__, ()):
            importlib.import_module(f"{module.__name__}.{part}")


class _Module(ModuleType):
    """A module whose unknown names raise a sentence with the name."""

    def __getattr__(self, name: str) -> object:
        raise AttributeError(
            f"{self.__name__}.{name} is not one of the names of t5 that Limba knows; install the package t5, or write"
            " it into your module"
        )
