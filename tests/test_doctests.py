"""Every example in a docstring of what is shipped gives what it says."""

import doctest
import importlib
from collections.abc import Mapping
from pathlib import Path

import pytest

from limba.data.dataset import TEXT, Elements
from limba.data.objectives import tokenize_documents
from limba.data.registry import Feature
from limba.data.vocabulary import ByteVocabulary
from tests import test_floors
from tests.shipped import SHIPPED, docstrings, module_of, place_of

pytestmark = pytest.mark.lint

# The examples of these files need a run: tests/inference/test_load.py makes one, and runs them.
OF_A_MODEL = (
    "limba/evaluation/run_directory.py",
    "limba/export/trimming.py",
    "limba/formats/open.py",
    "limba/inference/load.py",
    "limba/inference/source.py",
    "limba/inference/step_documents.py",
)
OF_OBJECTIVES = "limba/data/objectives/"  # whose token_blocks.py says what `tokens` and `features` are
# From the text, not from the module: what a decorator wraps is found, and only files with examples are imported.
FILES = [
    path
    for path in [*SHIPPED, Path(test_floors.__file__)]
    if any(">>> " in text for _, _, text in docstrings(path)) and place_of(path) not in OF_A_MODEL
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


def names_of(path: Path) -> dict[str, object]:
    """Returns the names that the examples of a file have beside its module's."""
    if not place_of(path).startswith(OF_OBJECTIVES):
        return {}
    texts = Elements([{"text": b"To be, or not to be, that is the question."}], {"text": TEXT})
    features = {name: Feature(ByteVocabulary(100)) for name in ("inputs", "targets")}
    return {"features": features, "tokens": tokenize_documents(texts, features)}


def test_examples_in_docstrings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = []
    for number, path in enumerate(FILES):
        folder = tmp_path / str(number)  # some examples write files
        folder.mkdir()
        monkeypatch.chdir(folder)
        wrong.append(failures(path, names_of(path)))
    assert not any(wrong), "".join(wrong)
