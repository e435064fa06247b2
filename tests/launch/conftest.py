"""The fixture of all tests of pods."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.launch.laptop import end_runs, make_laptop


@pytest.fixture
def laptop(tmp_path: Path) -> Iterator[Path]:
    yield make_laptop(tmp_path)
    end_runs(tmp_path)  # the workers' programs wait for it
