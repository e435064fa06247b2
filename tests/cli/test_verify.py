"""`limba status --verify`: one line a step, 0 if all are whole, 2 if one is not; the file is named."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from limba.cli import main
from limba.storage import manifest
from tests.training.checkpoints import states

ROOT = Path(__file__).resolve().parents[2]
GOLDEN = ROOT / "tests" / "golden" / "run" / "run"


def verified(run: Path, capsys: pytest.CaptureFixture[str], *flags: str) -> tuple[int, list[str], str]:
    status = main.main(["status", str(run), "--verify", *flags])
    printed = capsys.readouterr()
    return status, printed.out.splitlines(), printed.err


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("saved") / "run"
    states.save(run, 10, 20)
    states.save(run / "best", 10)
    return run


def test_whole_steps(saved: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, lines, errors = verified(saved, capsys)
    assert status == 0 and errors == ""
    assert [line.partition(":")[0] for line in lines] == ["checkpoints/10", "checkpoints/20", "best/checkpoints/10"]
    assert all("whole (" in line and "sizes and checksums" in line for line in lines)
    status, lines, _ = verified(saved / "checkpoints" / "20", capsys, "--sizes")
    assert status == 0 and len(lines) == 1 and "sizes, not checksums" in lines[0]
    status, lines, _ = verified(GOLDEN, capsys)
    assert status == 0 and len(lines) == 1 and lines[0].startswith("checkpoints/10: whole (7 files")


def test_a_damaged_file_is_named(saved: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = Path(shutil.copytree(saved, tmp_path / "run"))
    path = next((run / "checkpoints" / "10" / "state").glob("ocdbt.process_0.*/d/*"))
    content = bytearray(path.read_bytes())
    content[len(content) // 3] ^= 1
    path.write_bytes(content)
    (run / "best" / "checkpoints" / "10" / "data" / "metadata").unlink()
    (run / "checkpoints" / "20" / manifest.FILE).unlink()
    shutil.copytree(run / "checkpoints" / "10", run / "checkpoints" / "5.broken")
    status, lines, errors = verified(run, capsys)
    name = path.relative_to(run / "checkpoints" / "10")
    assert status == 2 and errors == ""
    assert lines == [
        f"checkpoints/10: damaged: {name} has other bytes than when it was saved",
        "checkpoints/20: damaged: manifest.json is missing",
        "checkpoints/5.broken: set aside by a run",
        "best/checkpoints/10: damaged: data/metadata is missing",
    ]
    assert verified(run / "checkpoints" / "10", capsys, "--sizes")[0] == 0  # which says what it does not look at


def test_a_step_under_the_name_of_another_is_named(
    saved: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = Path(shutil.copytree(saved, tmp_path / "run"))
    shutil.copytree(run / "checkpoints" / "10", run / "checkpoints" / "30")
    (run / "checkpoints" / "40").write_text("")
    status, lines, errors = verified(run, capsys, "--sizes")
    assert (
        status == 2
        and errors == ""
        and [line for line in lines if "damaged" in line]
        == [
            "checkpoints/30: damaged: manifest.json belongs to step 10",
            "checkpoints/40: damaged: it is a file, not a folder",
        ]
    )


def test_what_is_no_run_ends_with_a_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, lines, errors = verified(tmp_path, capsys)
    assert (status, lines) == (2, []) and "has no checkpoints/<step>; name the MODEL_DIR of a run." in errors
    assert main.main(["status", "--verify"]) == 2
    assert "write limba status MODEL_DIR" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--sizes"], "--sizes is about --verify; add that, or leave it out."),
        (["--seconds=2"], "--seconds is about --watch; add that, or leave it out."),
        (["--verify", "--watch"], "Both --verify and --watch are given; give one."),
        (["--verify", "--seconds=2"], "--seconds is about --watch"),
        (["--watch", "--seconds=1e12"], "--seconds is 1e+12; give a number from 1 to 86,400."),
        (["--watch", "--seconds=0.5"], "--seconds is 0.5; give a number from 1 to 86,400."),
    ],
)
def test_flags_that_do_not_belong_together_are_one_sentence(
    flags: list[str], words: str, saved: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.main(["status", str(saved), *flags]) == 2
    (sentence,) = capsys.readouterr().err.splitlines()
    assert words in sentence


def test_it_imports_neither_tensorflow_nor_a_device() -> None:
    code = (
        "import sys; from limba.cli import main; status = main.main(['status', sys.argv[1], '--verify']);"
        "print(status, sorted({'tensorflow', 'jax', 'orbax', 'seqio'} & set(sys.modules)))"
    )
    command = [sys.executable, "-c", code, str(GOLDEN)]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert ended.stdout.splitlines()[-1] == "0 []"
