"""Every example in a docstring of what is shipped gives what it says."""

import doctest
import importlib
from pathlib import Path

import pytest

from tests import test_floors
from tests.shipped import SHIPPED, docstrings, module_of, place_of

pytestmark = pytest.mark.fast

# From the text, not from the module: what a decorator wraps is found, and only files with examples are imported.
EXAMPLES = [
    pytest.param(path, name, line, text, id=f"{place_of(path)}:{name}")
    for path in [*SHIPPED, Path(test_floors.__file__)]
    for name, line, text in docstrings(path)
    if ">>> " in text
]


@pytest.mark.parametrize(("path", "name", "line", "text"), EXAMPLES)
def test_examples_in_docstrings(path: Path, name: str, line: int, text: str) -> None:
    module = importlib.import_module(module_of(path))
    test = doctest.DocTestParser().get_doctest(text, vars(module).copy(), name, str(path), line)
    written: list[str] = []
    result = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(test, out=written.append)
    assert result.attempted and not result.failed, "".join(written)
