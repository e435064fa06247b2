"""A whole project in an emulated bucket, with a tenth of the requests failing once: see bucket_project.py."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.run.bucket_project import project


@pytest.mark.night
def test_a_project_in_a_bucket_loses_nothing_while_requests_fail(tmp_path: Path) -> None:
    with project(tmp_path, troubled=0.1) as steps:
        steps.run()
        troubles = steps.server.troubles
        (sent, size) = steps.metrics_bytes()
    assert set(troubles) == {"429", "503", "unheard", "unanswered", "slow"} and sum(troubles.values()) > 100
    # A request whose answer was lost is sent again; nothing else is sent twice.
    assert size <= sent < 1.5 * size
