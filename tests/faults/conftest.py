"""The runs that the faults of this folder are done to, and the random moments of each."""

import random
from pathlib import Path

import pytest

from tests.faults.runs import Runs


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory, corpus: Path, vocabulary: Path) -> Runs:
    """Undisturbed runs on real text, each trained once in this process of the tests."""
    return Runs(tmp_path_factory.mktemp("faults"), corpus, vocabulary)


@pytest.fixture
def moments(request: pytest.FixtureRequest) -> random.Random:
    """Random moments that are the same each time the same test runs."""
    return random.Random(request.node.name)
