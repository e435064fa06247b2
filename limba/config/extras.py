"""What not every installation has: the libraries of pyproject.toml's extras, and the sentence where one is missing."""

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path

from limba.config.errors import InputError

EXTRAS = {  # module: pyproject.toml's extra
    **dict.fromkeys(("seqio", "tensorflow", "tensorflow_text"), "seqio"),
    "bokeh": "report",
    "gcsfs": "gcs",
    "lm_eval": "results",
    "rouge_score": "rouge",
    "tensorflow_datasets": "tfds",
}
_SETUP = Path(__file__).resolve().parents[2] / "launch" / "setup.sh"


def sentence(what: str, error: ImportError) -> str | None:
    """Returns what is missing for `what`, with the one command that installs it; None for a module of no extra."""
    extra = EXTRAS.get((error.name or "").partition(".")[0])
    if extra is None:
        return None
    command = f"pip install '{'.' if _SETUP.exists() else 'limba'}[{extra}]'"
    if _SETUP.exists() and extra == "seqio":  # the whole environment; for the others a small package suffices
        command = f"LEAN=0 bash {_SETUP.parent.name}/{_SETUP.name}"
    return f"{what} needs {error.name}, which is not installed; run {command}."


@contextlib.contextmanager
def needed_by(what: str) -> Iterator[None]:
    """Raises InputError with the `sentence` where an import inside finds no such module."""
    try:
        yield
    except ModuleNotFoundError as error:
        told = sentence(what, error)
        if told is None:
            raise
        raise InputError(told) from error


@contextlib.contextmanager
def without(*modules: str) -> Iterator[None]:
    """Lets imports inside do without optional modules, as where they are not installed."""
    absent = [module for module in modules if module not in sys.modules]
    sys.modules.update(dict.fromkeys(absent))  # pyright: ignore[reportArgumentType, reportCallIssue]
    try:
        yield
    finally:
        for module in absent:
            del sys.modules[module]
