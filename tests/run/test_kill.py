"""A run that is killed at random moments, on changing numbers of hosts, reads what an undisturbed one reads.

tests/faults/ kills runs in all other ways, and does the other faults to them.
"""

from pathlib import Path

import pytest

from benchmarks import kill

# The same step as test_hosts.py compiles, so that one of the two finds it compiled.
SAME_STEP = ("TASK_FEATURE_LENGTHS={'inputs': 48}", "NUM_MICROBATCHES=2", "config.MeshConfig.fsdp=2")


@pytest.mark.slow
def test_killed_runs_read_the_same_batches(corpus: Path, vocabulary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kill, "LONGEST_WAIT", 0.2)  # or a run whose step is compiled already ends before it
    arguments = [*kill.demo_arguments(str(corpus), str(vocabulary)), *(f"--gin.{choice}" for choice in SAME_STEP)]
    figures = kill.compare(2, 30, seed=4, hosts=[2, 1], arguments=arguments)
    assert figures["kills"] == 2 and figures["hosts"] == [1, 2]
    assert figures["steps"] == 30 and figures["batches_compared"] >= 120
    assert figures["relative_difference_of_the_loss_by_step"][10] < 1e-5
