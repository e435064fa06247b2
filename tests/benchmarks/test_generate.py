"""The benchmark of generation runs both sides: greedy, by beams and drawn."""

import json

import pytest

from benchmarks import generate

TINY = ("--size=small", "--batch=2", "--inputs=4", "--tokens=2", "--repeats=1")


@pytest.mark.parametrize(
    "choices",
    [
        pytest.param(["--top_k=5", "--top_p=0.9"], marks=pytest.mark.slow),
        pytest.param([], marks=pytest.mark.night),
        pytest.param(["--beams=2"], marks=pytest.mark.night),
    ],
)
@pytest.mark.parametrize("peer", ["limba", "torch"])
def test_each_side_reports_its_seconds(peer: str, choices: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    generate.main([f"--only={peer}", *TINY, *choices])
    assert json.loads(capsys.readouterr().out)["seconds"] > 0
