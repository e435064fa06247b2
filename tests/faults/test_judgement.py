"""The judgement of faults: what counts as said, and as the same run."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.faults.runs import Reference, Runs, Setting, shape
from tests.faults.starts import Line, Start


@pytest.fixture
def known(tmp_path: Path) -> Runs:
    """Runs whose undisturbed lines are known without one."""
    made = Runs(tmp_path, tmp_path / "corpus.jsonl", tmp_path / "vocabulary.model")
    made.ordinary = {shape("step 1/40 | loss 7.1", tmp_path), shape(f"{tmp_path} starts, up to step 4", tmp_path)}
    return made


def started(*lines: Line, hashes: Path | None = None, processes: int = 1) -> Start:
    """Returns a start that has printed these lines."""
    start = object.__new__(Start)
    start.lines = list(lines)
    start.began = 10.0
    start.processes = [SimpleNamespace()] * processes
    start.hashes = hashes or Path("/nowhere")
    return start


def check(known: Runs, *texts: str, codes: tuple = (75,), says: str | None = "saved", at: float = 11.0) -> None:
    start = started(*(Line(0, at, text) for text in texts))
    known.check(start, known.folder, codes, [{75}], 10.0, says)


def test_one_sentence_and_the_right_exit_status_are_right(known: Runs) -> None:
    check(known, "step 7/40 | loss 6.9", f"{known.folder} starts, up to step 40", "Asked to stop: it is saved.")


@pytest.mark.parametrize(
    ("judged", "wrong"),
    [
        ({"codes": (0,)}, "ends with 0, not 75"),
        ({"codes": (None,)}, "process 0 still runs"),
        ({"texts": ()}, "nothing is said"),
        ({"texts": ("Good bye.",)}, "no line matches 'saved'"),
        ({"texts": ("saved",) * 6}, "6 lines"),
        ({"texts": ("saved", "Traceback (most recent call last):")}, "prints 'Traceback"),
        ({"texts": ("saved", "*** Check failure stack trace: ***")}, r"prints '\*\*\* Check"),
        ({"at": 9.0}, "nothing is said"),  # it was said before the fault
    ],
)
def test_anything_else_is_wrong(known: Runs, judged: dict, wrong: str) -> None:
    texts = judged.pop("texts", ("saved",))
    with pytest.raises(AssertionError, match=wrong):
        check(known, *texts, **judged)


@pytest.fixture
def trained(known: Runs, monkeypatch: pytest.MonkeyPatch) -> tuple[Start, Path]:
    """A start that went from step 2 to step 3 as the undisturbed run of one shard did."""
    hashes = known.folder / "hashes.txt"
    directory = known.folder / "run"
    directory.mkdir()
    hashes.write_text("0 3 " + "a" * 16 + "\n")
    record = {"kind": "train", "step": 3, "time": "", "loss": 5.0}
    (directory / "metrics.jsonl").write_text(json.dumps(record) + "\n")
    whole = Reference({(0, 3): {"a" * 16}}, {3: 5.0})
    monkeypatch.setattr(known, "reference", lambda setting: whole)
    return started(Line(0, 11.0, "step 3/40 | loss 5.0"), hashes=hashes), directory


def test_the_same_batches_and_losses_are_the_same_run(known: Runs, trained: tuple[Start, Path]) -> None:
    assert known.differences(*trained, Setting(), promised=2) == ""


def test_another_batch_is_another_run(known: Runs, trained: tuple[Start, Path]) -> None:
    trained[0].hashes.write_text("0 3 " + "b" * 16 + "\n")
    assert "1 of 1 batches differ" in known.differences(*trained, Setting())


def test_another_loss_is_another_run(known: Runs, trained: tuple[Start, Path]) -> None:
    path = trained[1] / "metrics.jsonl"
    path.write_text(path.read_text().replace("5.0", "5.0000001"))
    assert "1 of 1 losses differ, the first at step 3" in known.differences(*trained, Setting())


def test_a_step_said_to_be_saved_is_there_afterwards(known: Runs, trained: tuple[Start, Path]) -> None:
    assert "step 3 was said to be saved, and step 2 was resumed" in known.differences(*trained, Setting(), promised=3)


def test_a_start_that_reads_nothing_is_no_resume(known: Runs, trained: tuple[Start, Path]) -> None:
    trained[0].hashes.unlink()
    assert "no batch" in known.differences(*trained, Setting())


def test_a_promise_is_read_from_the_console() -> None:
    lines = ("step 5 saved in /a", "step 1,010 saved in /a", "step 1,011/2,000 | loss 1", "nothing saved")
    start = started(*(Line(0, 1.0, text) for text in lines))
    assert (start.promised(), start.trained()) == (1010, [1011])


def test_the_last_promise_is_when_the_last_step_was_saved() -> None:
    lines = (Line(0, 3.0, "step 5 saved in /a"), Line(0, 4.0, "step 10 saved in /a"), Line(0, 9.0, "step 14/40 |"))
    assert started(*lines).last_saved() == 4.0 and started().last_saved() == 10.0
