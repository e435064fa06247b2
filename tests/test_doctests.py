"""Every example in a docstring of what is shipped gives what it says."""

import doctest
import importlib
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests import test_floors
from tests.shipped import SHIPPED, docstrings, module_of, place_of

pytestmark = pytest.mark.lint

OF_A_MODEL = "limba/inference/load.py"  # whose examples need one: tests/inference/test_load.py runs them
# From the text, not from the module: what a decorator wraps is found, and only files with examples are imported.
FILES = [
    path
    for path in [*SHIPPED, Path(test_floors.__file__)]
    if any(">>> " in text for _, _, text in docstrings(path)) and place_of(path) != OF_A_MODEL
]


def failures(path: Path, names: Mapping[str, object]) -> str:
    """Runs the examples in a file's docstrings, with these names beside its module's; returns what went wrong."""
    written: list[str] = []
    module = importlib.import_module(module_of(path))
    for name, line, text in docstrings(path):
        if ">>> " in text:
            test = doctest.DocTestParser().get_doctest(text, {**vars(module), **names}, name, str(path), line)
            result = doctest.DocTestRunner(verbose=False, optionflags=doctest.ELLIPSIS).run(test, out=written.append)
            assert result.attempted, f"{place_of(path)}:{line} has no example"
    return "".join(written)


def test_examples_in_docstrings() -> None:
    wrong = [failures(path, {}) for path in FILES]
    assert not any(wrong), "".join(wrong)
