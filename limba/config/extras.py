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
    "lm_eval": "harness",
    "rouge_score": "rouge",
    "tensorflow_datasets": "tfds",
    **dict.fromkeys(("torch", "transformers", "accelerate"), "results"),
}
# The package t5 and what only it needs. It is not an extra: with its requirements it overwrites seqio.
T5 = ("t5", "babel", "sklearn")
_SETUP = Path(__file__).resolve().parents[2] / "launch" / "setup.sh"


def sentence(what: str, error: ImportError) -> str | None:
    """Returns what is missing for `what`, with the one command that installs it; None for a module of neither."""
    module = (error.name or "").partition(".")[0]
    command = _command_for(module)
    if command is None:
        return None
    return f"{what} needs {error.name}, which is not installed; run {command}."


def _command_for(module: str) -> str | None:
    script = f"{_SETUP.parent.name}/{_SETUP.name}"
    if module in T5:
        by_hand = "pip install --no-deps t5, and pip install babel scikit-learn"
        return f"bash {script} t5" if _SETUP.exists() else by_hand
    extra = EXTRAS.get(module)
    if extra is None:
        return None
    if not _SETUP.exists():
        return f"pip install 'limba[{extra}]'"
    if extra == "seqio":  # the whole environment; for the others a small package suffices
        return f"LEAN=0 bash {script}"
    if extra == "results":  # whose packages are locked
        return f"bash {script} results"
    return f"pip install -e '.[{extra}]'"  # without -e, a copy of today's files would take the checkout's place


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
