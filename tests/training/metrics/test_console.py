"""What a run shows: few rows on the console, one line of progress on a terminal, and every line in its log."""

import io
import json
import logging
import re
from pathlib import Path

import pytest

from limba.evaluation.run_state import standing
from limba.training.metrics import console
from limba.training.metrics.logging import Metrics
from limba.training.metrics.records import LOG
from tests.waiting import Clock

TRAIN = {
    "loss": 3.25, "learning_rate": 0.05, "gradient_norm": 1.0, "parameter_norm": 9.0, "update_norm": 0.5,
    "tokens_per_second": 24_000.0, "sequences_per_second_per_device": 10.0, "data_wait": 0.0, "seconds_per_step": 2.0,
}  # fmt: skip
VALIDATION = {"loss": 3.5, "accuracy": 0.4, "perplexity": 33.1, "bits_per_byte": 2.1, "seconds": 1.0}


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """A clock that stands still until it is turned."""
    turned = Clock()
    monkeypatch.setattr(console, "time", turned)
    return turned


def test_without_a_terminal_progress_is_a_row_every_ten_seconds_and_the_last_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], clock: Clock
) -> None:
    with Metrics(str(tmp_path), 0, 20, writes=True) as metrics:
        for step in range(1, 20):
            metrics.advance(step)
            metrics.train_line(step, TRAIN)
            clock.now += console.SECONDS_BETWEEN / 5
    shown = capsys.readouterr().out.splitlines()
    assert [row.partition(" | ")[0] for row in shown] == [f"step {step}/20" for step in (1, 6, 11, 16, 19)]
    assert shown[0] == "step 1/20 | loss 3.250 | 24,000 tokens/s | ETA 38 s"


def test_the_log_has_every_line_whole(tmp_path: Path, capsys: pytest.CaptureFixture[str], clock: Clock) -> None:
    with Metrics(str(tmp_path), 0, 9, writes=True) as metrics:
        for step in (1, 2, 3):
            metrics.train_line(step, TRAIN)
        metrics.validation_line(3, VALIDATION | {"bits_per_byte/latin": 2.1, "bytes/latin": 5})
        logging.getLogger("a.library").warning("a library warns")
    logging.getLogger("a.library").warning("and warns again")
    log = (tmp_path / LOG).read_text().splitlines()
    assert all(re.match(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00 ", line) for line in log)
    lines = [line.partition(" ")[2] for line in log]
    assert [line[:9] for line in lines[:3]] == ["step 1/9 ", "step 2/9 ", "step 3/9 "]
    assert "| lr 5.00e-02 | |grad| 1 | |param| 9 | |update| 0.5 |" in lines[2]
    assert "step 3 bits per byte: latin 2.100 (100 % of the bytes)" in lines
    assert lines[-1] == "a library warns"
    assert "|grad|" not in capsys.readouterr().out


def test_on_a_terminal_progress_is_one_line_and_saves_are_in_the_log(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    with Metrics(str(tmp_path), 0, 30, writes=True) as metrics:
        for step in range(1, 31):
            metrics.advance(step)
            metrics.train_line(step, TRAIN)
        metrics.validation_line(30, VALIDATION)
        metrics.saved(30, "there")
    rows = capsys.readouterr().out.splitlines()
    assert rows == ["step 30 validation: loss 3.5000 | token accuracy 40.0% | 2.100 bits per byte"]
    drawn = terminal.getvalue()
    assert "training" in drawn and "30/30" in drawn and "loss 3.250" in drawn and "24,000 tokens/s" in drawn
    assert drawn.count("\n") <= 2  # the line is drawn again in its place
    log = (tmp_path / LOG).read_text()
    assert "step 30 saved in there" in log and "step 30 validation perplexity 33.10" in log


def test_a_sample_has_the_hidden_word_beside_a_wrong_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    masked = "The <extra_id_0> opens the <extra_id_1> again."
    other = "Another <extra_id_0>, which is longer than the one that is shown."
    texts = {other: [other.replace("<extra_id_0>", "[one]")], masked: ["The [module] opens the [set] again."]}
    with Metrics(str(tmp_path), 0, 9, writes=True) as metrics:
        metrics.samples(9, texts, {masked: ("module", "file")})
    assert capsys.readouterr().out == "step 9 sample: The [module ✓] opens the [set, not file] again.\n"
    record = (tmp_path / "metrics.jsonl").read_text()
    assert '"hidden": {"The <extra_id_0> opens the <extra_id_1> again.": ["module", "file"]}' in record
    assert f"sample for {other!r}: Another [one], which is longer" in (tmp_path / LOG).read_text()


def test_text_metrics_stand_beside_those_of_the_copied_input(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with Metrics(str(tmp_path), 0, 9, writes=True) as metrics:
        metrics.text_line(9, {"right_words": 96.4, "letter/a": 1.0, "own": 2.0}, {"right_words": 92.2})
    assert capsys.readouterr().out == "step 9 text: right_words 96.40 (the input, copied: 92.20) | own 2.00\n"


def test_a_process_that_is_not_the_first_shows_and_writes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with Metrics(str(tmp_path), 0, 9, writes=False) as metrics:
        metrics.advance(1)
        metrics.train_line(1, TRAIN)
        metrics.saved(1, "there")
    assert capsys.readouterr().out == "" and not list(tmp_path.iterdir())


def test_figures_that_are_added_to_a_run_do_not_end_it_again(tmp_path: Path) -> None:
    """`limba evaluate` of a run that failed leaves it a failed one."""
    with pytest.raises(ValueError, match="a fault"), Metrics(str(tmp_path), 0, 9, writes=True):
        raise ValueError("a fault")
    with Metrics(str(tmp_path), 5, 9, writes=True, only_adds=True) as metrics:
        metrics.write("evaluation", 5, {"loss": 1.0})
    records = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [record["kind"] for record in records] == ["end", "evaluation"]
    stands = standing(records, saved=5, age=None)
    assert stands is not None and stands.word == "FAILED"
