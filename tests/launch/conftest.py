"""The fixture of all tests of pods."""

from pathlib import Path

import pytest

from tests.launch.laptop import make_laptop


@pytest.fixture
def laptop(tmp_path: Path) -> Path:
    return make_laptop(tmp_path)
