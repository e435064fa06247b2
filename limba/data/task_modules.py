"""Finds and imports the modules that register tasks: in the current directory, then in the repository.

Both come after all that is installed, so that no file there replaces a library.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import os
import pkgutil
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path

from limba import tool_registry
from limba.config import InputError, did_you_mean, extras, nearest, reason_of

_LIMBA = Path(__file__).resolve().parent.parent
# The folder that holds gin/ and tasks/: the repository, or in an installed package limba/shipped.
ROOT = _LIMBA.parent if (_LIMBA.parent / "gin" / "runs").is_dir() else _LIMBA / "shipped"


def check(module: str, asked_by: str) -> None:
    """Raises InputError, with the nearest right name, for a module that is not found.

    Where a package around it is not installed, the sentence says how to install that.
    """
    if not (_is_found(module) or _is_found_in_repository(module)):
        names = all_names()
        package, _, name = nearest(module, names).rpartition(".")
        fix = f"from {package} import {name}" if name else None
        advice = did_you_mean(module, names) if fix else "; start in the folder that holds it, or set PYTHONPATH to it."
        raise InputError(f"{asked_by} {module}, which does not exist{advice}", fix=fix)


def all_names() -> list[str]:
    """Returns the names of all modules in tasks/.

    >>> "tasks.demo" in all_names()
    True
    """
    if not (_is_found("tasks") or _is_found_in_repository("tasks")):
        return []
    return [f"tasks.{module.name}" for module in pkgutil.iter_modules(importlib.import_module("tasks").__path__)]


def import_all(modules: Sequence[str]) -> None:
    """Imports the modules, which `check` has found; takes seconds where they import seqio, and so TensorFlow."""
    with _foreign_names():
        for module in modules:
            try:
                importlib.import_module(module)
            except ModuleNotFoundError as error:
                missing = f"The module {module} imports {error.name}, which is not installed."
                raise InputError(extras.sentence(f"The module {module}", error) or missing) from error
            except Exception as error:  # of the user's own code
                raise InputError(
                    f"The module {module} fails when it is imported: {_told(error)}; correct it."
                ) from error


def _foreign_names() -> contextlib.AbstractContextManager[None]:
    """Lets modules that were written for another trainer find what they import, if a tool has it."""
    migrate = tool_registry.find("migrate")
    return migrate.importing() if migrate else contextlib.nullcontext()


def import_tasks(module: str | None, asked_by: str) -> None:
    """Imports a module of tasks, or all in tasks/; InputError, which begins with `asked_by`, if it does not exist.

    >>> import_tasks("tasks.dem", "The gin file imports")
    Traceback (most recent call last):
    limba.config.errors.InputError: The gin file imports tasks.dem, which does not exist; did you mean tasks.demo?
    """
    if module:
        check(module, asked_by)
    import_all([module] if module else all_names())


def _is_found(module: str) -> bool:
    if not {"", os.getcwd()} & set(sys.path):  # at the end, and not before it is needed: what lies there may be theirs
        sys.path.append(os.getcwd())
    try:
        with _foreign_names():
            return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError as error:  # of a package around it, or of what that imports
        needed = extras.sentence(f"The module {module}", error)
        if needed is not None:
            raise InputError(needed) from error
        return False
    except ValueError:  # not a module's name
        return False


def _told(error: Exception) -> str:
    """Returns an error's type and message, and the line that raised it."""
    frames = traceback.extract_tb(error.__traceback__)
    has_place = frames and not isinstance(error, SyntaxError)  # whose message has the place
    where = f" ({frames[-1].filename} line {frames[-1].lineno})" if has_place else ""
    return f"{type(error).__name__}: {reason_of(error)}{where}"


def _is_found_in_repository(module: str) -> bool:
    """Puts the repository at the end of the module search path, and looks again."""
    if str(ROOT) not in sys.path:
        sys.path.append(str(ROOT))
    package = sys.modules.get(module.partition(".")[0])  # the user's tasks/, or the repository's
    if package is not None and hasattr(package, "__path__"):
        for folder in (Path.cwd() / package.__name__, ROOT / package.__name__):
            if folder.is_dir():
                package.__path__.append(str(folder))
    return _is_found(module)
