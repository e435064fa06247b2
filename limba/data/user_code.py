"""Errors of the code that a user wrote for a task, its source and preprocessors, as one sentence with file and line.

TensorFlow reports them in its own errors, with Python's traceback in the text; Python raises them through its frames.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import os
import re
import sysconfig
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import FunctionType
from typing import Any, NamedTuple, Protocol

from limba.config import InputError
from limba.config.errors import is_out_of_memory

MOST_LETTERS = 500  # of the user's own words, and only after these the sentence is cut

LIMBA = str(Path(__file__).parents[1])
# Code of others, in which a mistake of the user's only shows.
STANDARD_LIBRARY = os.path.realpath(sysconfig.get_path("stdlib"))
INSTALLED = ("site-packages", "dist-packages")
NAMED_STEPS = 3  # preprocessors in one sentence

# Of Python's traceback, also where TensorFlow has it in its text or AutoGraph marks a converted line with "*".
_FRAME = re.compile(r'^\s*File "(?P<file>[^"]+)", line (?P<line>\d+), in (?P<function>[^\n]*?)\s*\*?$', re.MULTILINE)
_OF_GRAPH = re.compile(
    r"(?:\{\{function_node [^}]*\}\}"
    r"|Error in user-defined function passed to \S+ transformation with iterator: \S+:)\s*"
)
_AFTER_WORDS = re.compile(r"\s*(?:\n\s*\[\[|\[\[\{\{node|\[Op:|\nTraceback \(most recent call last\))")


class UserCodeError(InputError):
    """The code that a user wrote for a task has failed."""


class Place(NamedTuple):
    """Where code stands."""

    file: str
    line: int
    function: str

    def __str__(self) -> str:
        of_lambda = self.function in ("None", "<lambda>")  # AutoGraph has the first name for a lambda
        return f"{self.file} line {self.line}" + ("" if of_lambda else f", in {self.function}")


class Coded(Protocol):
    """A task, as far as it is code."""

    name: str
    preprocessors: Sequence[Callable]


def failure_of(task: Any, error: BaseException, advice: str = "correct it") -> InputError | None:
    """Returns the sentence on an error that the source or a preprocessor of a task, `Coded`, has raised.

    None where the code is not at fault: memory has run out.
    """
    if isinstance(error, InputError):
        return error
    if is_out_of_memory(error):
        return None
    words = words_of(error)
    place = place_of(error)
    steps = _steps_of(task)
    where = f" ({place})" if place else ""
    if place is None and steps:
        names = [
            f"{step.__name__} in {step.__code__.co_filename} line {step.__code__.co_firstlineno}" for step in steps
        ]
        more = ["…"] if len(names) > NAMED_STEPS else []
        where = f" (its preprocessors: {', '.join([*names[:NAMED_STEPS], *more])})"
    if place is not None and any(_has_line(step, place) for step in steps):
        advice = "correct it"  # no other source would help
    return UserCodeError(f"The code of task {task.name} fails: {words}{where}; {advice}.")


@contextlib.contextmanager
def of_task(task: Any, advice: str = "correct it") -> Iterator[None]:
    """Raises what the code of a task raises as the error of `failure_of`; a missing package stays what it is."""
    try:
        yield
    except ModuleNotFoundError:
        raise
    except Exception as error:
        failure = failure_of(task, error, advice)
        if failure is None or failure is error:
            raise
        raise failure from error


def _steps_of(task: Coded) -> list[FunctionType]:
    """Returns the functions of a task's preprocessors that its user wrote."""
    steps = []
    for step in task.preprocessors:
        while isinstance(step, functools.partial):
            step = step.func
        function = inspect.unwrap(step)
        if isinstance(function, FunctionType) and is_users(function.__code__.co_filename):
            steps.append(function)
    return steps


def _has_line(function: FunctionType, place: Place) -> bool:
    """Returns whether a line of code is one of a function's, or of the functions inside it."""
    if os.path.realpath(function.__code__.co_filename) != os.path.realpath(place.file):
        return False
    try:
        lines, first = inspect.getsourcelines(function)
    except (OSError, TypeError):
        return False
    return first <= place.line < first + len(lines)


def words_of(error: BaseException) -> str:
    """Returns the type and message of the Python error that was raised first, on one line."""
    text = str(error).strip()
    of_tensorflow = type(error).__module__.startswith("tensorflow")
    name = type(error).__name__
    if _FRAME.search(text) and "in user code:" in text:  # AutoGraph's: the words come after the last frame
        text = text[[*_FRAME.finditer(text)][-1].end() :]
        lines = text.strip("\n").splitlines()[1:]  # after the line of code
        text = "\n".join(lines)
        of_tensorflow = True
    if of_tensorflow:
        while _OF_GRAPH.search(text):  # the text of each border between Python and TensorFlow ends with one
            text = text[_OF_GRAPH.search(text).end() :]  # pyright: ignore[reportOptionalMemberAccess]
        text = _AFTER_WORDS.split(text, maxsplit=1)[0]
        name = ""
    words = " ".join(text.split()).rstrip(".: ")
    if len(words) > MOST_LETTERS:
        words = f"{words[:MOST_LETTERS].rstrip()} …"
    return ": ".join(filter(None, (name, words))) or type(error).__name__


def place_of(error: BaseException) -> Place | None:
    """Returns the line of the user's code in which an error was raised; None if the error does not say it."""
    # A traceback in the text comes from inside of TensorFlow, deeper than the frames that called it.
    for places in (_places_in_text(str(error)), _places_in_frames(error)):
        users_places = [place for place in places if is_users(place.file)]
        if users_places:
            return users_places[-1]
    return None


def _places_in_text(text: str) -> Iterator[Place]:
    for match in _FRAME.finditer(text):
        yield Place(match["file"], int(match["line"]), match["function"])


def _places_in_frames(error: BaseException) -> Iterator[Place]:
    for frame in traceback.extract_tb(error.__traceback__):
        yield Place(frame.filename, frame.lineno or 0, frame.name)


def is_users(file: str) -> bool:
    """Returns whether a file is neither a library's nor Limba's own."""
    if file.startswith("<") or "__autograph_generated_file" in file:
        return False
    path = os.path.realpath(file)
    if any(f"{os.sep}{folder}{os.sep}" in path for folder in INSTALLED):
        return False
    return not any(path.startswith(folder + os.sep) for folder in (STANDARD_LIBRARY, LIMBA))
