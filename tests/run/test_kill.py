"""A run that is killed at random moments, on changing numbers of hosts, reads what an undisturbed one reads.

And a short choice of the table of faults, all of which it must survive.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import kill
from benchmarks.breaking.bench import SAME

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


# One of each kind that one process can meet: killed, asked to stop, damaged, without rights, not alone, other text.
CHOSEN = "kill-all-of-1-in-save,ctrl-c,file-flipped,rights-withdrawn,second-start,corpus-edited"


@pytest.mark.night
def test_a_choice_of_faults_is_survived() -> None:
    command = [sys.executable, "-m", "benchmarks.faults", f"--only={CHOSEN}", "--json"]
    ended = subprocess.run(command, capture_output=True, text=True, cwd=kill.ROOT, timeout=900)
    *_, figures, _ = ended.stdout.splitlines()
    found = json.loads(figures)
    wrong = {row["name"]: (row["wrong"], row["output"][-3000:]) for row in found["rows"] if row["wrong"]}
    assert not wrong and ended.returncode == 0, json.dumps(wrong, indent=1)
    assert found["survived"] == found["tried"] > len(CHOSEN.split(","))
    rows = {row["name"]: row for row in found["rows"]}
    # A promise that is kept is one that was made: each fault was seen, and what followed was compared.
    assert rows["kill-all-of-1-in-save"]["codes"] == [-9] and rows["kill-all-of-1-in-save"]["resumed"] == SAME
    assert rows["file-flipped"]["tried"] >= 9 and rows["second-start"]["codes"] == [2]
