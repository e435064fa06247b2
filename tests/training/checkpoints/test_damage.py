"""Whatever happens to one file of the newest checkpoint: it is named in one line, and the one before is resumed."""

import errno
import itertools
import logging
import re
import shutil
from pathlib import Path

import pytest

from limba.config import CheckpointConfig, DataConfig, InputError, StorageError
from limba.formats.limba_checkpoint import LimbaCheckpoint, checkpoints_of
from limba.storage import manifest
from limba.training.checkpoints import arrays, directory, saver, step_directory
from limba.training.checkpoints.directory import Checkpoints, Restored
from limba.training.checkpoints.initial import load_initial
from tests import tiny
from tests.training.checkpoints import states
from tests.waiting import wait_until


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("saved") / "run"
    states.save(path, 10, 20)
    return path


@pytest.fixture
def run(saved: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(saved, tmp_path / "run"))


def restore(run: Path, unpack: object = None, config: CheckpointConfig = states.CONFIG) -> Restored | None:
    with Checkpoints(str(run), config, states.DATA) as checkpoints:
        return checkpoints.restore_latest(states.abstract(), unpack)


def delete(path: Path) -> None:
    path.unlink()


def empty(path: Path) -> None:
    path.write_bytes(b"")


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 4
    path.write_bytes(content)


def junk(path: Path) -> None:
    path.write_bytes(bytes(range(256)) * (path.stat().st_size // 256) + b"j" * (path.stat().st_size % 256))


def swap(first: Path, second: Path) -> None:
    """Exchanges two files, or two folders."""
    aside = first.with_name("aside")
    first.rename(aside)
    second.rename(first)
    aside.rename(second)


def files_of(step: Path) -> list[Path]:
    return [path.relative_to(step) for path in sorted(step.rglob("*")) if path.is_file()]


def test_a_step_has_every_kind_of_file(saved: Path) -> None:
    """The tests below walk them all."""
    names = [str(path) for path in files_of(saved / "checkpoints" / "20")]
    without_attempt = [re.sub(r"process_0\.[0-9a-f]{16}/", "process_0/", name) for name in names]
    kinds = {re.sub(r"/[0-9a-f]{32}$", "", name) for name in without_attempt}
    assert kinds == {
        manifest.FILE,
        "data/metadata",
        "state/d",
        "state/manifest.ocdbt",
        "state/ocdbt.process_0/d",
        "state/ocdbt.process_0/manifest.ocdbt",
    }


@pytest.mark.parametrize("harm", [delete, empty, cut, flip, junk])
def test_one_file_is_damaged_and_the_step_before_is_resumed(
    run: Path, saved: Path, harm: object, caplog: pytest.LogCaptureFixture
) -> None:
    checkpoints = run / "checkpoints"
    for name in files_of(checkpoints / "20"):
        harm(checkpoints / "20" / name)
        caplog.clear()
        states.assert_is(restore(run), 10)
        (record,) = caplog.records
        assert record.message.startswith(f"The checkpoint at step 20 cannot be read ({name} ")
        assert "20.broken, and step 10 is resumed." in record.message and "\n" not in record.message
        assert sorted(path.name for path in checkpoints.iterdir()) == ["10", "20.broken"]
        shutil.rmtree(checkpoints / "20.broken")
        shutil.copytree(saved / "checkpoints" / "20", checkpoints / "20")
    states.assert_is(restore(run), 20)


def test_a_step_under_the_name_of_another_is_passed_over(run: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A copy of an older step, and a file where a step should be."""
    checkpoints = run / "checkpoints"
    shutil.copytree(checkpoints / "10", checkpoints / "30")
    (checkpoints / "40").write_text("")
    with pytest.raises(InputError, match=r"30 is damaged: manifest.json belongs to step 10; name another step"):
        LimbaCheckpoint(checkpoints_of(run)[30])
    states.assert_is(restore(run), 20)
    first, second = [record.message for record in caplog.records]
    assert first.startswith("The checkpoint at step 40 cannot be read (it is a file, not a folder)")
    assert second.startswith("The checkpoint at step 30 cannot be read (manifest.json belongs to step 10)")
    assert sorted(path.name for path in checkpoints.iterdir()) == ["10", "20", "30.broken", "40.broken"]
    states.save(run, 40)
    states.assert_is(restore(run), 40)


def check_older_step_is_taken(run: Path, saved: Path, named: tuple[str, ...], caplog: pytest.LogCaptureFixture) -> None:
    """Step 20 of `run` is set aside with one line, which names one of these files; then it is made whole again."""
    caplog.clear()
    states.assert_is(restore(run), 10)
    (record,) = caplog.records
    starts = tuple(f"The checkpoint at step 20 cannot be read ({name} " for name in named)
    assert record.message.startswith(starts), (named, record.message)
    for step in ("20.broken", "10"):
        shutil.rmtree(run / "checkpoints" / step)
    for step in ("10", "20"):
        shutil.copytree(saved / "checkpoints" / step, run / "checkpoints" / step, dirs_exist_ok=True)


@pytest.mark.parametrize(
    "pairs_of_any", [pytest.param(True, marks=pytest.mark.night, id="any"), pytest.param(False, id="largest")]
)
def test_two_files_of_a_step_are_swapped_and_the_step_before_is_resumed(
    pairs_of_any: bool, run: Path, saved: Path, caplog: pytest.LogCaptureFixture
) -> None:
    step = run / "checkpoints" / "20"
    names = [str(name) for name in files_of(step)]
    if not pairs_of_any:
        names = sorted(names, key=lambda name: (step / name).stat().st_size)[-3:]
    for first, second in itertools.combinations(names, 2):
        swap(step / first, step / second)
        check_older_step_is_taken(run, saved, (first, second), caplog)


def test_a_file_of_another_step_is_noticed(run: Path, saved: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Each file of step 20 is replaced by the file of step 10 that has its place there."""
    step = run / "checkpoints" / "20"
    older = files_of(run / "checkpoints" / "10")
    for name, other in zip(files_of(step), older, strict=True):
        shutil.copyfile(run / "checkpoints" / "10" / other, step / name)
        if (step / name).read_bytes() == (saved / "checkpoints" / "20" / name).read_bytes():
            continue
        check_older_step_is_taken(run, saved, (str(name),), caplog)


@pytest.mark.parametrize("item", ["state", "data"])
def test_an_item_of_another_step_is_noticed(
    item: str, run: Path, saved: Path, caplog: pytest.LogCaptureFixture
) -> None:
    step = run / "checkpoints" / "20"
    shutil.rmtree(step / item)
    shutil.copytree(run / "checkpoints" / "10" / item, step / item)
    names = tuple(str(name) for name in files_of(saved / "checkpoints" / "20") if name.parts[0] == item)
    check_older_step_is_taken(run, saved, names, caplog)


def test_two_steps_are_swapped_and_the_one_before_them_is_resumed(run: Path, caplog: pytest.LogCaptureFixture) -> None:
    checkpoints = run / "checkpoints"
    swap(checkpoints / "10", checkpoints / "20")
    with pytest.raises(InputError, match=r"\[10, 20\] .*\(step 20: manifest.json belongs to step 10\)"):
        restore(run)
    assert sorted(path.name for path in checkpoints.iterdir()) == ["10", "20"]  # nothing is renamed

    states.save(run, 5)
    states.assert_is(restore(run), 5)
    assert [record.message[:60] for record in caplog.records] == [
        "The checkpoint at step 20 cannot be read (manifest.json belo",
        "The checkpoint at step 10 cannot be read (manifest.json belo",
    ]


def test_what_other_programs_load_is_checked_too(run: Path) -> None:
    """limba.load, convert and initial checkpoints end with the file's name, and never take an older step in silence."""
    step = checkpoints_of(run)[20]
    for name in files_of(run / "checkpoints" / "20"):
        if str(name) == manifest.FILE:
            continue
        path = step / str(name)
        content = path.read_bytes()
        for harm in (flip, delete):
            harm(Path(path))
            assert max(checkpoints_of(run)) == 20
            for load in (LimbaCheckpoint, directory.check_together):
                with pytest.raises(InputError, match=f"20 is damaged: {name} "):
                    load(step)
            with pytest.raises(InputError, match=f"20 is damaged: {name} "):
                load_initial(str(run), states.abstract(), tiny.MODEL, states.state(0), False)
            path.write_bytes(content)
    assert len(LimbaCheckpoint(step)) == 6  # a stack of four layers is four arrays


def test_sizes_alone_are_a_choice_that_says_what_it_misses(run: Path, caplog: pytest.LogCaptureFixture) -> None:
    flip(next((run / "checkpoints" / "20" / "state").glob("ocdbt.process_0.*/d/*")))
    restored = restore(run, config=CheckpointConfig(verify="sizes"))
    assert int(restored.state.step) == 20  # with a wrong number in an array: zstd does not find this bit
    (record,) = caplog.records
    assert "verify is 'sizes'" in record.message and "a changed byte in them would not be noticed" in record.message
    caplog.clear()
    states.assert_is(restore(run), 10)


def test_a_step_that_was_set_aside_before_is_not_overwritten(run: Path) -> None:
    places = run / "checkpoints"
    for number in range(3):
        (places / "20" / "data" / "metadata").write_text(f"damage {number}")
        states.assert_is(restore(run), 10)
        shutil.copytree(places / "10", places / "20")
    aside = [places / f"20.broken{end}" / "data" / "metadata" for end in ("", "-2", "-3")]
    assert [path.read_text() for path in aside] == ["damage 0", "damage 1", "damage 2"]


def test_a_damaged_step_that_keeps_its_name_takes_the_place_of_none(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The steps before it were removed, also the one that was just saved, and the damaged one was kept."""

    def refused(path: object, ending: str = "") -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    places = run / "checkpoints"
    states.save(run, 40)
    empty(places / "40" / "data" / "metadata")
    monkeypatch.setattr(step_directory, "set_aside", refused)
    with Checkpoints(str(run), CheckpointConfig(keep=1), states.DATA) as checkpoints:
        states.assert_is(checkpoints.restore_latest(states.abstract()), 20)
        assert checkpoints.steps() == [10, 20]
        checkpoints.save(25, states.state(25), {0: {"about": {}, "batch": 25}}, {"step": 25})
        checkpoints.wait()
        assert checkpoints.poll() == [25] and checkpoints.steps() == [25]
        wait_until(lambda: not (places / "20").exists())
    assert sorted(path.name for path in places.iterdir()) == ["25", "40"]
    states.assert_is(restore(run), 25)


@pytest.mark.parametrize("goes_back", [False, True])
def test_the_step_that_is_called_good_is_the_one_that_the_run_goes_on_from(
    goes_back: bool, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was the step with the highest number when the run began."""

    def refused(*_: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    if not goes_back:
        empty(run / "checkpoints" / "20" / "data" / "metadata")
        monkeypatch.setattr(step_directory, "set_aside", refused)
    with Checkpoints(str(run), states.CONFIG, states.DATA) as checkpoints:
        restored = checkpoints.restore_latest(states.abstract())
        if goes_back:
            checkpoints.save(30, states.state(30), {0: {"about": {}, "batch": 30}}, {"step": 30})
            restored = checkpoints.restore_step(10, states.abstract())
        states.assert_is(restored, 10)
        monkeypatch.setattr(step_directory, "open_step", refused)
        checkpoints.stop()
        monkeypatch.setattr(saver, "FIRST_PAUSE_SECONDS", 2 * saver.STOP_SECONDS)  # one attempt
        checkpoints.save(15, states.state(15), {0: {"about": {}, "batch": 15}}, {"step": 15})
        with pytest.raises(StorageError, match=r"Step 15 cannot be saved .* Step 10 in \S+ is good\."):
            checkpoints.wait()


def test_if_none_is_whole_nothing_is_renamed(run: Path) -> None:
    for step in ("10", "20"):
        delete(run / "checkpoints" / step / "state" / "manifest.ocdbt")
    for _ in range(2):
        with pytest.raises(InputError, match=r"checkpoints \[10, 20\] .*\(step 20: state/manifest.ocdbt is missing"):
            restore(run)
        assert sorted(path.name for path in (run / "checkpoints").iterdir()) == ["10", "20"]


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (Exception("Encountered error while reading array index"), 10),
        (TypeError("'NoneType' object is not subscriptable"), 10),
        (EOFError(), 10),
        (RuntimeError("BadZipFile: File is not a zip file"), 10),
        (InputError("The data position was saved with seed 1"), InputError),
        (PermissionError(13, "Permission denied"), StorageError),
        (TimeoutError("timed out"), StorageError),
        (ValueError("UNAVAILABLE: connection reset"), StorageError),
        (OSError(116, "Stale file handle"), StorageError),
    ],
)
def test_data_positions_are_judged_with_the_rest(
    run: Path, error: Exception, expected: object, caplog: pytest.LogCaptureFixture
) -> None:
    def unpack(positions: dict[int, bytes]) -> None:
        if positions == {0: {"about": {}, "batch": 20}}:
            raise error

    if expected == 10:
        states.assert_is(restore(run, unpack), 10)
        assert len(caplog.records) == 1
        return
    with pytest.raises(expected) as caught:
        restore(run, unpack)
    assert "\n" not in str(caught.value)
    assert sorted(path.name for path in (run / "checkpoints").iterdir()) == ["10", "20"]  # untouched


def test_reading_that_stands_still_ends_with_a_sentence(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import threading

    monkeypatch.setattr(arrays, "read_arrays", lambda *_: threading.Event().wait(20))
    with pytest.raises(StorageError, match=r"reading .*20 has not ended after 0 s\); nothing is changed"):
        restore(run, config=CheckpointConfig(save_timeout_seconds=0.2))


def test_another_run_s_checkpoint_is_refused_and_kept(run: Path) -> None:
    other = DataConfig("t", {"inputs": 1}, batch_size=1, seed=5)
    with Checkpoints(str(run), states.CONFIG, other) as checkpoints, pytest.raises(InputError, match="seed is 5"):
        checkpoints.restore_latest(states.abstract())
    assert sorted(path.name for path in (run / "checkpoints").iterdir()) == ["10", "20"]


def test_a_run_goes_back_to_a_step_and_saves_the_later_one_again(run: Path, caplog: pytest.LogCaptureFixture) -> None:
    with Checkpoints(str(run), states.CONFIG, states.DATA) as checkpoints:
        states.assert_is(checkpoints.restore_step(10, states.abstract()), 10)
        assert checkpoints.steps() == [10] and (run / "checkpoints" / "20.rewound").is_dir()
        checkpoints.save(20, states.state(21), {0: {"about": {}, "batch": 21}}, {"step": 21})
    states.assert_is(restore(run), 21)
    with (
        Checkpoints(str(run), states.CONFIG, states.DATA) as checkpoints,
        pytest.raises(StorageError, match="step 15 .*it is gone"),
    ):
        checkpoints.restore_step(15, states.abstract())
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]
