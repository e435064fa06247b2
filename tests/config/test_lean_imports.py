"""What libraries import at their start and a run does not use is left out, and is there when it is used."""

import subprocess
import sys
from pathlib import Path

import pytest

from limba.config import lean_imports
from tests.sharding.processes import ROOT


@pytest.fixture
def libraries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Libraries that import others: `begins_with` tries `not_needed`, and needs `needed_later` in a function."""
    texts = {
        "begins_with": "try:\n    import not_needed\nexcept ImportError:\n    not_needed = None\n"
        "import needed_later as later\n\ndef double(x):\n    return later.multiply(2, x)\n",
        "not_needed": "here = True\n",
        "needed_later": "def multiply(x, y):\n    return x * y\n",
    }
    for name, text in texts.items():
        (tmp_path / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(lean_imports, "LEFT_OUT", {"begins_with": ("not_needed", "not_needed.at_all")})
    monkeypatch.setattr(lean_imports, "POSTPONED", {"begins_with": ("needed_later",)})
    lean_imports.install()
    return tmp_path


@pytest.fixture(autouse=True)
def forgotten() -> object:
    yield
    for name in ("begins_with", "not_needed", "needed_later"):
        sys.modules.pop(name, None)


def test_others_are_left_out_until_they_are_used(libraries: Path) -> None:
    import begins_with  # pyright: ignore[reportMissingImports]

    assert begins_with.not_needed is None
    assert not {"not_needed", "not_needed.at_all", "needed_later"} & set(sys.modules)
    assert begins_with.double(3) == 6 and "needed_later" in sys.modules
    import not_needed  # pyright: ignore[reportMissingImports]

    assert not_needed.here


def test_what_is_there_already_stays(libraries: Path) -> None:
    import needed_later  # pyright: ignore[reportMissingImports]
    import not_needed  # pyright: ignore[reportMissingImports]

    import begins_with  # isort: skip  # pyright: ignore[reportMissingImports]

    assert begins_with.not_needed is not_needed and begins_with.later is needed_later


def test_a_library_that_fails_leaves_nothing_behind(libraries: Path) -> None:
    (libraries / "begins_with.py").write_text("import needed_later\nraise ValueError('broken')\n")
    with pytest.raises(ValueError, match="broken"):
        import begins_with  # noqa: F401  # pyright: ignore[reportMissingImports]
    assert not {"begins_with", "not_needed", "needed_later"} & set(sys.modules)


def test_a_run_imports_neither_keras_nor_pandas_and_a_task_may() -> None:
    """Half of the processor time of a start was Keras, and what Keras imports."""
    program = """
import sys
from limba.config import environment
environment.set_variables()  # as the command does
import limba.run
unused = {"keras", "pandas", "matplotlib", "tensorflow_text", "pyglove", "torch", "h5py", "google.cloud.storage"}
print(sorted(unused & set(sys.modules)))
import seqio
print(seqio.vocabularies.tf_text.WhitespaceTokenizer().tokenize(["a b"]).to_list())
import tensorflow as tf
print(tf.keras.optimizers.Adam(0.5).name, "keras" in sys.modules)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=300, check=False, cwd=ROOT
    )
    assert done.stdout.splitlines() == ["[]", "[[b'a', b'b']]", "adam True"], done.stderr
