"""Which modules a trained model may import: those of Limba and of `tasks`, and those that the caller allows.

A run's configuration names the modules that register its task. An import runs a module's code, and the configuration
may be somebody else's, so it must not choose what is run.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence
from importlib.machinery import PathFinder
from pathlib import Path

from limba.config import UntrustedModuleError

FREE = ("limba", "tasks")
_NAME = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*")


def check(modules: Sequence[str], place: str, allowed: Sequence[str] = (), directory: str | None = None) -> None:
    """Raises UntrustedModuleError for modules, named in the file or folder `place`, that may not be imported.

    Free are modules of `limba` and `tasks`, unless Python would find these inside the model's `directory`, and those of
    `allowed`, each a module or a package. Imports nothing.

    >>> check(["tasks.ro", "mine.corpus"], "runs/mine", allowed=["mine"])
    """
    if refused := [name for name in modules if not _is_allowed(name, directory, allowed)]:
        is_inside = any(name.partition(".")[0] in FREE for name in refused)
        whose = "of a folder inside the model's own" if is_inside else "neither Limba's nor one of tasks/"
        fact = f"{place} names the module {' and '.join(map(repr, refused))}, {whose}, and an import would run its code"
        raise UntrustedModuleError(fact, refused)


def _is_allowed(name: str, directory: str | None, allowed: Sequence[str]) -> bool:
    if _NAME.fullmatch(name) is None:
        return False
    if any(name == each or name.startswith(f"{each}.") for each in allowed):
        return True
    package = name.partition(".")[0]
    return package in FREE and not any(_is_inside(place, directory) for place in _places(package))


def _places(package: str) -> list[str]:
    """Returns the folders of a package, where Python would look for its modules: in the current directory too."""
    if package in sys.modules:  # other folders may have been added to it
        return list(getattr(sys.modules[package], "__path__", ()))
    spec = PathFinder.find_spec(package, [*sys.path, os.getcwd()])
    return [] if spec is None else list(spec.submodule_search_locations or ())


def _is_inside(place: str, directory: str | None) -> bool:
    if directory is None or "://" in directory:
        return False
    folder = Path(os.path.realpath(os.path.expanduser(directory)))
    return Path(os.path.realpath(place)).is_relative_to(folder)
