"""The places that a run keeps of its text: of every hundredth step, or of fewer where they are large."""

import random
from pathlib import Path

import pytest

from limba.training.history import MOST_BYTES, History, kept_before

LAST = 12_000


def place_of(step: int, num_bytes: int) -> dict:
    """A data position with content that cannot be compressed, like tf.data's checkpoint."""
    content = random.Random(step).randbytes(num_bytes // 2).hex()
    return {"about": {}, "files": "", "shard": 0, "place": {"batch": step, "rows": content}}


@pytest.mark.core
@pytest.mark.parametrize(("num_bytes", "distance"), [(200, 100), (40_000, 800), (200_000, 3_200)])
def test_what_is_kept_between_two_saves_is_bounded(num_bytes: int, distance: int, tmp_path: Path) -> None:
    history = History(str(tmp_path))
    for step in range(1, LAST + 1):
        if history.is_due(step):
            history.add(step, {0: place_of(step, num_bytes), 1: place_of(step + 1, num_bytes)})
    history.write(LAST)
    assert (tmp_path / "positions" / f"{LAST}.json.gz").stat().st_size < 1.5 * MOST_BYTES
    for step in (LAST + 1, LAST // 2):
        expected = (step - 1) // distance * distance
        kept_step, places = kept_before(str(tmp_path), step) or (0, {})
        assert kept_step == expected
        assert places[1]["place"] == place_of(expected + 1, num_bytes)["place"]
