"""A run that is killed at random moments, on changing numbers of hosts, reads what an undisturbed one reads.

tests/faults/ kills runs in all other ways, and does the other faults to them.
"""

import json
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


# What `--with` of benchmarks.kill chooses; those stand together that one run can have.
CHOICES = ("readers,mixture", "function", "stages", "packing", "epochs,window")


@pytest.mark.night
@pytest.mark.parametrize("hosts", ["2,1,4", "1"], ids=["other-hosts", "one-host"])
@pytest.mark.parametrize("choices", CHOICES)
def test_killed_runs_read_the_same_rows_however_they_are_made(
    choices: str, hosts: str, corpus: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Batches are compared always, losses to the last bit on one host: on others sums are added in another order."""
    for variable in ("KILL_CORPUS", "KILL_VOCABULARY", "KILL_FUNCTION"):
        monkeypatch.setenv(variable, "")  # what the program sets here ends with the test
    monkeypatch.setattr(kill, "LONGEST_WAIT", 1.0)
    monkeypatch.setattr(kill, "MOST_BATCHES", 20)  # less than are left at the third kill
    # With this seed each kill comes after 8 batches or more, and a step is saved after 5.
    kill.main([f"--with={choices}", f"--hosts={hosts}", "--times=3", "--steps=80", "--seed=11", f"--corpus={corpus}"])
    figures = json.loads(capsys.readouterr().out)
    assert figures["kills"] == 3, figures
    assert figures["hosts"] == sorted(map(int, hosts.split(",")))
    assert max(figures["saved_before_kills"]) > 0, figures
    assert figures["steps"] == 80 and figures["batches_compared"] >= 4 * 80
    differences = figures["relative_difference_of_the_loss_by_step"]
    assert differences["10"] < 1e-5
    assert hosts != "1" or differences["80"] == 0


def test_every_choice_of_how_rows_are_made_is_tried() -> None:
    assert ",".join(CHOICES).split(",") == list(kill.CHOICES)
