"""The exit status of a command by its error, and one sentence for each: docs/resume.md has the table."""

import errno
import re
from pathlib import Path

import jax
import pytest

from limba.cli import program
from limba.config import GenerationConfig, InputError, NonFiniteError, RestartError, StorageError

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    ("error", "status", "sentence"),
    [
        (InputError("A field\nis wrong."), 2, "A field is wrong."),
        (NonFiniteError("No number."), 3, "No number."),
        (StorageError("A bucket fails."), 74, "A bucket fails."),
        (RestartError("A host is gone."), 75, "A host is gone."),
        (OSError(errno.ENOSPC, "No space left on device"), 74, "A file cannot be written (No space left on device);"),
        (PermissionError(errno.EACCES, "Permission denied", "/x/y"), 74, "/x/y cannot be written (Permission denied);"),
        (MemoryError("Unable to allocate 9 TiB"), 2, "Out of memory (Unable to allocate 9 TiB); give a"),
        (jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory"), 2, "Out of memory (RESOURCE"),
    ],
)
def test_each_error_has_its_status_and_one_sentence(
    error: Exception, status: int, sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(_: object) -> None:
        raise error

    assert program.exit_code(fail, []) == status
    printed = capsys.readouterr().err
    assert printed.startswith(sentence) and printed.count("\n") == 1


def test_a_mistake_of_limba_keeps_its_traceback() -> None:
    for error in (KeyError("x"), OSError("no number"), jax.errors.JaxRuntimeError("A")):

        def fail(_: object, error: Exception = error) -> None:
            raise error

        with pytest.raises(type(error)):  # python prints it, and ends with 1
            program.exit_code(fail, [])


@pytest.mark.parametrize("choices", [{}, {"num_samples": 2}, {"num_beams": 2}])
@pytest.mark.parametrize("temperature", [float("nan"), float("inf"), -1.0])
def test_a_temperature_that_is_none_is_named_first(temperature: float, choices: dict) -> None:
    advice = "give a number above 0, or 0 for greedy" if temperature == -1 else "give a finite number"
    for make in (GenerationConfig, GenerationConfig().replaced):
        with pytest.raises(InputError, match=rf"temperature is {temperature}; {advice}"):
            make(temperature=temperature, **choices)


def test_the_table_of_the_page_is_the_code() -> None:
    rows = re.findall(r"^\| (\d+) \|", (ROOT / "docs/resume.md").read_text(), re.MULTILINE)
    assert {int(row) for row in rows} == {0, 1, 130, *(error.exit_status for error in program.SENTENCES)}
