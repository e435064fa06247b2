"""The judgement of the table of faults: what counts as said, as survived, and as the same run."""

import dataclasses
import json
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from benchmarks import faults, kill
from benchmarks.breaking import checkpoints, corpora, signals, storage
from benchmarks.breaking.bench import SAME, Bench, NotTriedError, Reference, Row, Setting, shape
from benchmarks.breaking.start import Line, Start
from limba.config import InputError


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    made = Bench(tmp_path, tmp_path / "corpus.jsonl", tmp_path / "vocabulary.model")
    made.ordinary = {shape("step 1/40 | loss 7.1", tmp_path), shape(f"{tmp_path} starts, up to step 4", tmp_path)}
    return made


def started(*lines: Line, hashes: Path | None = None, processes: int = 1) -> Start:
    """Returns a start that has printed these lines."""
    start = object.__new__(Start)
    start.lines, start.began, start.processes = list(lines), 10.0, [SimpleNamespace()] * processes
    start.hashes = hashes or Path("/nowhere")
    return start


def judged(bench: Bench, *texts: str, codes: tuple = (75,), says: str | None = "saved", at: float = 11.0) -> Row:
    start = started(*(Line(0, at, text) for text in texts))
    return bench.judge(Row("a", ""), start, bench.folder, codes, [{75}], 10.0, says, within=3.0)


def test_one_sentence_and_the_right_exit_status_survive(bench: Bench) -> None:
    row = judged(bench, "step 7/40 | loss 6.9", f"{bench.folder} starts, up to step 40", "Asked to stop: it is saved.")
    assert (row.wrong, row.lines, row.seconds, row.num_survived()) == ([], 1, 1.0, 1)
    assert row.said == "Asked to stop: it is saved."


@pytest.mark.parametrize(
    ("given", "wrong"),
    [
        ({"codes": (1,)}, "ends with 1, not 75"),
        ({"codes": (None,)}, "still runs"),
        ({"texts": ()}, "nothing is said"),
        ({"texts": ("another sentence",)}, "no line matches"),
        ({"texts": ("saved",) * 6}, "6 lines"),
        ({"texts": ("saved", "Traceback (most recent call last):")}, "prints 'Traceback"),
        ({"texts": ("saved", "*** Check failure stack trace: ***")}, r"prints '\*\*\* Check"),
        ({"texts": ("saved",), "at": 30.0}, "after 20 s, not 3"),
    ],
)
def test_anything_else_does_not_survive(bench: Bench, given: dict, wrong: str) -> None:
    texts = given.pop("texts", ("saved",))
    row = judged(bench, *texts, **given)
    (said,) = row.wrong
    assert re.search(wrong, said) and not row.num_survived()


def test_what_was_said_before_the_fault_does_not_count(bench: Bench) -> None:
    row = judged(bench, "saved", at=9.0)
    assert row.wrong == ["nothing is said"]


@pytest.fixture
def trained(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> tuple[Start, Path]:
    """A start that went from step 2 to step 3 as the undisturbed run of one shard did."""
    hashes, directory = bench.folder / "hashes.txt", bench.folder / "run"
    directory.mkdir()
    hashes.write_text("0 3 " + "a" * 16 + "\n")
    record = {"kind": "train", "step": 3, "time": "", "loss": 5.0}
    (directory / "metrics.jsonl").write_text(json.dumps(record) + "\n")
    whole = Reference({(0, 3): {"a" * 16}}, {3: 5.0})
    monkeypatch.setattr(bench, "reference", lambda setting: whole)
    return started(Line(0, 11.0, "step 3/40 | loss 5.0"), hashes=hashes), directory


def test_the_same_batches_and_losses_are_the_same_run(bench: Bench, trained: tuple[Start, Path]) -> None:
    assert bench.differences(*trained, Setting(), promised=2) == ""


def test_another_batch_is_another_run(bench: Bench, trained: tuple[Start, Path]) -> None:
    trained[0].hashes.write_text("0 3 " + "b" * 16 + "\n")
    assert "1 of 1 batches differ" in bench.differences(*trained, Setting())


def test_another_loss_is_another_run(bench: Bench, trained: tuple[Start, Path]) -> None:
    path = trained[1] / "metrics.jsonl"
    path.write_text(path.read_text().replace("5.0", "5.0000001"))
    assert "1 of 1 losses differ, the first at step 3" in bench.differences(*trained, Setting())


def test_a_step_said_to_be_saved_is_there_afterwards(bench: Bench, trained: tuple[Start, Path]) -> None:
    assert "step 3 was said to be saved, and step 2 was resumed" in bench.differences(*trained, Setting(), promised=3)


def test_a_start_that_reads_nothing_is_no_resume(bench: Bench, trained: tuple[Start, Path]) -> None:
    trained[0].hashes.unlink()
    assert "no batch" in bench.differences(*trained, Setting())


def test_a_promise_is_read_from_the_console() -> None:
    lines = ("step 5 saved in /a", "step 1,010 saved in /a", "step 1,011/2,000 | loss 1", "nothing saved")
    start = started(*(Line(0, 1.0, text) for text in lines))
    assert (start.promised(), start.trained()) == (1010, [1011])


def test_damage_is_judged_by_what_is_loaded(tmp_path: Path) -> None:
    newest, earlier, file = {"digest": "new"}, {"digest": "old"}, Path("state/d/0a")
    good = {"code": 0, "step": 15, "digest": "old", "text": ""}

    def problem(said: list[str], name: Path = file, **changed: object) -> str:
        return checkpoints._problem({**good, **changed}, said, name, newest, earlier, tmp_path)

    assert problem(["state/d/0a is not as it was written"]) == ""
    assert "not seen" in problem(["state/d/0a"], digest="new")
    assert "other numbers" in problem(["state/d/0a"], digest="wrong")
    assert "not named" in problem(["something is wrong"])
    assert "ends with 1" in problem(["state/d/0a"], code=1)
    assert "Traceback" in problem(["state/d/0a", "Traceback (most recent call last):"])
    assert problem([]) == "0 lines" and problem(["state/d/0a"] * 6) == "6 lines"
    assert "not seen" in problem(["no manifest.json"], Path("manifest.json"), digest="new")
    assert problem([], Path(checkpoints.MARK), digest="new") == ""
    assert problem([], Path(checkpoints.MARK), digest="wrong") == "0 lines"
    (tmp_path / "checkpoints" / "20").mkdir(parents=True)
    assert "kept its name" in problem(["state/d/0a"])


@pytest.mark.parametrize("way", checkpoints.WAYS)
def test_each_way_of_damage_changes_the_file(way: str, bench: Bench, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"0123456789")
    checkpoints.WAYS[way](path, bench.moments)
    left = path.read_bytes() if path.exists() else None
    assert left != b"0123456789"
    assert (left is None) == (way == "deleted") and len(left or b"") == {"cut": 5, "flipped": 10}.get(way, 0)


@pytest.mark.parametrize("suffix", [".jsonl", ".jsonl.gz"])
@pytest.mark.parametrize("way", corpora.CHANGES)
def test_each_change_of_a_corpus_changes_one_file(way: str, suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"a{suffix}"
    original = b"".join(b'{"text": "the %d"}\n' % number for number in range(30))
    corpora._write(path, original)
    corpora.CHANGES[way][1](path)
    now = corpora._bytes(path) if path.exists() else None
    assert (now == original) == (way == "added") and len(list(tmp_path.iterdir())) == {"added": 2, "deleted": 0}.get(
        way, 1
    )
    assert way != "edited" or len(now or b"") == len(original)


def test_names_are_chosen_by_patterns() -> None:
    names = faults.chosen_names("*")
    assert len(names) == len(set(names)) > 50
    assert {"kill-last-of-4-in-save", "term-all-of-1", "ctrl-c-twice", "stopped-60-s-of-2", "disk-full"} <= set(names)
    assert faults.chosen_names("file-*,disk-full")[-1] == "disk-full"
    with pytest.raises(InputError, match="no fault is named nothing"):
        faults.chosen_names("disk-full,nothing")


def test_every_number_of_processes_has_its_kills() -> None:
    for processes in (1, 2, 4):
        kinds = {(fault.number, len(fault.targets), fault.in_save) for fault in signals.faults(processes)}
        for number in (signals.signal.SIGKILL, signals.signal.SIGTERM):
            assert {(number, count, save) for count in (1, processes) for save in (True, False)} <= kinds


def test_a_fault_without_a_row_counts_as_tried_and_lost(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(bench: Bench, chosen: object) -> object:
        yield Row("one", "")
        raise RuntimeError("it broke")

    def cannot(bench: Bench, chosen: object) -> object:
        raise NotTriedError("no disk")
        yield

    groups = (faults.Group(["one", "two"], broken), faults.Group(["three"], cannot), faults.Group(["four"], broken))
    monkeypatch.setattr(faults, "GROUPS", groups)
    found = list(faults.rows(bench, ["one", "two", "three"]))
    figures = faults.report(found, 60.0)
    assert (figures["tried"], figures["survived"], figures["not_tried"]) == (2, 1, ["three"])
    assert "it broke" in found[1].wrong[0]


def test_the_table_shows_what_went_wrong() -> None:
    row = Row("a|b", "done", said="x" * 300, seconds=1.25, lines=2, codes=[75, None], resumed=SAME)
    assert faults.line(row).startswith("| a\\|b | done | xxx") and faults.line(row).endswith(
        "| 75, hangs | bit-identical |"
    )
    assert "**6 lines**" in faults.line(dataclasses.replace(row, wrong=["6 lines"]))
    several = dataclasses.replace(row, tried=15, survived=14, wrong=["one file"])
    assert "14 of 15: **one file**" in faults.line(several) and several.num_survived() == 14
    assert "not tried: no disk" in faults.line(Row("a", "", not_tried="no disk"))


def test_the_command_lists_its_faults() -> None:
    command = [sys.executable, "-m", "benchmarks.faults", "--list", "--only=corpus-gz-*"]
    listed = subprocess.run(command, capture_output=True, text=True, check=True, cwd=kill.ROOT)
    assert listed.stdout.split() == [f"corpus-gz-{way}" for way in corpora.PACKED]


def test_the_last_promise_is_when_the_last_step_was_saved() -> None:
    lines = (Line(0, 3.0, "step 5 saved in /a"), Line(0, 4.0, "step 10 saved in /a"), Line(0, 9.0, "step 14/40 |"))
    assert storage._last_saved(started(*lines)) == 4.0 and storage._last_saved(started()) == 10.0
