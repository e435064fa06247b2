"""Every example in a docstring of what is shipped gives what it says."""

import doctest
import importlib
from pathlib import Path

import pytest

from tests import test_floors
from tests.shipped import SHIPPED, docstrings, module_of, place_of

pytestmark = pytest.mark.lint

# From the text, not from the module: what a decorator wraps is found, and only files with examples are imported.
FILES = [
    path
    for path in [*SHIPPED, Path(test_floors.__file__)]
    if any(">>> " in text for _, _, text in docstrings(path))
]  # fmt: skip


def test_examples_in_docstrings() -> None:
    written: list[str] = []
    for path in FILES:
        module = importlib.import_module(module_of(path))
        for name, line, text in docstrings(path):
            if ">>> " in text:
                test = doctest.DocTestParser().get_doctest(text, vars(module).copy(), name, str(path), line)
                result = doctest.DocTestRunner(verbose=False, optionflags=doctest.ELLIPSIS).run(
                    test, out=written.append
                )
                assert result.attempted, f"{place_of(path)}:{line} has no example"
    assert not written, "".join(written)
