"""Finds `t5`, `t5.data`, `t5.data.preprocessors`, … here if no package t5 is installed."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

from limba.tools.migrate.t5_names import old_datasets

_HERE = "limba.tools.migrate.t5_names"
# t5's module -> the module here whose public names it has; None: only a package
MODULES = {
    "t5": None,
    "t5.data": "providers",
    "t5.data.preprocessors": "preprocessors",
    "t5.data.postprocessors": "postprocessors",
    "t5.data.tasks": "tasks",
    "t5.data.mixtures": "tasks",
    "t5.data.utils": "providers",
    "t5.evaluation": None,
    "t5.evaluation.metrics": "metrics",
}
PARTS = {"t5": ("data", "evaluation"), "t5.data": ("preprocessors", "postprocessors"), "t5.evaluation": ("metrics",)}
PACKAGES = ("t5", "t5.data", "t5.evaluation")


class _Loader(Loader):
    """Makes a module that has the public names of one here."""

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _Names(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        source = MODULES[module.__name__]
        if source is not None:
            found = importlib.import_module(f"{_HERE}.{source}")
            vars(module).update({name: vars(found)[name] for name in found.__all__})
        for part in PARTS.get(module.__name__, ()):
            importlib.import_module(f"{module.__name__}.{part}")


class _Names(ModuleType):
    """A module whose unknown names raise a sentence with the name."""

    def __getattr__(self, name: str) -> object:
        raise AttributeError(
            f"{self.__name__}.{name} is not one of the names of t5 that Limba knows; install the package t5, or write"
            " it into your module"
        )


class Finder(MetaPathFinder):
    """Finds the modules of MODULES; as the last finder, after every installed package."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in MODULES:
            return None
        return ModuleSpec(fullname, _Loader(), is_package=fullname in PACKAGES, origin=_HERE)


def install() -> None:
    """Lets `import t5` find the names here where no package t5 is installed. Imports nothing; may be called again.

    `datasets.load_dataset` takes the argument of its earlier versions too.

    >>> install()
    >>> import t5.data.preprocessors
    >>> t5.data.preprocessors.random_spans_helper(512, 0.15, 3.0, 1, 1)
    (568, 114)
    """
    if not any(isinstance(finder, Finder) for finder in sys.meta_path):
        sys.meta_path.append(Finder())
    old_datasets.install()
