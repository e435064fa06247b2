"""What comes first about a run: that it failed, was stopped, stands still or is done, and what to type."""

from pathlib import Path

import pytest
from etils import epath

from limba.cli.main import main
from limba.evaluation.run_state import SILENT, standing
from limba.evaluation.status import Status
from limba.storage import lease
from limba.tools.pages.page import headline
from tests.evaluation.report_runs import append, opened, recorded

START = {"kind": "start", "step": 0}


@pytest.mark.parametrize(
    ("end", "text"),
    [
        ({"failed": True, "reason": "The loss is nan"}, "FAILED after step 7: The loss is nan. The same command"),
        ({"stopped": True, "reason": "Asked to stop."}, "STOPPED after step 7, as it was asked to. The same command"),
        ({"reason": "Patience is over."}, "ENDED Patience is over."),
        ({"reason": ""}, "DONE all 7 steps are trained."),
    ],
)
def test_the_last_end_counts(end: dict[str, object], text: str) -> None:
    earlier = {"kind": "end", "step": 3, "reason": "StorageError: full", "failed": True}
    ending = standing([START, earlier, START, {"kind": "end", "step": 7, **end}, {"kind": "event", "step": 7}], 5, None)
    assert ending is not None and ending.text.startswith(text)
    assert ending.is_wrong == ("same command" in text)
    assert ("resumes from step 5." in ending.text) == ending.is_wrong


def test_a_run_that_trains_has_no_ending() -> None:
    assert standing([START], 5, 0.0) is None and standing([], None, None) is None
    ending = standing([START], None, SILENT * lease.BEAT_SECONDS + 60)
    assert ending is not None and ending.word == "STANDS STILL" and "the same command begins anew" in ending.text
    assert standing([START], None, None) is None  # a copy of the directory of a run that trains elsewhere


@pytest.mark.slow
def test_a_run_that_failed_says_so_first(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = recorded(tmp_path)
    append(run, {"kind": "end", "step": 320, "reason": "The loss of step 321 is nan.", "failed": True})
    said = "after step 320: The loss of step 321 is nan. No step is saved: the same command begins anew."
    assert Status(epath.Path(run)).lines()[0] == f"FAILED {said}"
    assert main(["report", str(run)]) == 0
    assert capsys.readouterr().out.startswith(f"FAILED {said}\n")
    (first, *_) = opened(run)
    page = headline.headline([first])
    assert page.startswith(f'<p class="wrong"><strong>FAILED</strong> {said}</p>')
    assert "still falls" not in page  # nobody needs the trend of a failed run
