"""The whole chain in an emulated bucket, with a tenth of the requests failing once: see benchmarks/bucket.py."""

from __future__ import annotations

import pytest

from benchmarks import bucket


@pytest.mark.night
def test_a_project_in_a_bucket_loses_nothing_while_requests_fail(capfd: pytest.CaptureFixture[str]) -> None:
    with bucket.chain(troubled=0.1) as steps:
        bucket.run(steps, short=True)
        troubles, (sent, size) = steps.server.troubles, steps.metrics_bytes()
    assert set(troubles) == {"429", "503", "unheard", "unanswered", "slow"} and sum(troubles.values()) > 100
    # A request whose answer was lost is sent again; nothing else is sent twice.
    assert size <= sent < 1.5 * size
