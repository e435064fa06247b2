"""A file of a run that is a link to one of the user's: no command writes to where it leads."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

import numpy as np
import pytest

from limba.cli import main
from limba.data.stream.names import NO_DOCUMENTS
from limba.storage.files import open_no_link
from limba.training.metrics import recent_steps

MINE = "what the user has written\n"
TRAIN = (
    "train gin/demo.gin --gin.VOCABULARY=byte --gin.VOCAB_SIZE=384 --gin.BATCH_SIZE=8 --gin.TRAIN_STEPS=2"
    " --gin.CORPUS=corpus.jsonl --gin.MODEL_DIR=run --gin.EVAL_PERIOD=2 --gin.CHECKPOINT_PERIOD=1"
    " --gin.config.ModelConfig.emb_dim=16 --gin.config.RunConfig.step_timeout_seconds=3600"
)
WRITING = [TRAIN, "report run", "evaluate run", "merge run --last=2 --output=run/merged"]
READING = [
    "status run",
    "status run --verify",
    "generate run --score --input=pairs.jsonl --output=scores.jsonl",
    "generate run --prompt=a --max_tokens=1",
    "convert run out --no_check --vocabulary=none",
]
# The run makes these too, and removes them at its end if they are empty.
AND = ["lease", "logs/stacks_process_0.txt", "non_finite_step_2_process_0.npz"]
GOLDEN = Path(__file__).parent.parent / "golden" / "run"


@pytest.fixture
def workdir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    shutil.copy(GOLDEN / "corpus.jsonl", tmp_path)
    (tmp_path / "pairs.jsonl").write_text('{"inputs": "a", "targets": "b"}\n')
    return tmp_path


def planted(workdir: Path, name: str) -> Path:
    """Makes run/name a link to a file of the user's; returns that file."""
    victim = workdir / "home" / name.replace("/", "-")
    victim.parent.mkdir(exist_ok=True)
    victim.write_text(MINE)
    (workdir / "run" / name).parent.mkdir(parents=True, exist_ok=True)
    (workdir / "run" / name).symlink_to(victim)
    return victim


@pytest.mark.night
def test_no_command_writes_through_a_link(workdir: Path, capfd: pytest.CaptureFixture[str]) -> None:
    for command in WRITING:
        assert main.main(command.split()) == 0, command
    written = [path.relative_to("run") for path in Path("run").rglob("*") if path.is_file()]
    names = [str(name) for name in written if name.parts[0] not in ("checkpoints", "tensorboard", "merged")]
    assert {"metrics.jsonl", "config.json", "config.gin", "loss.png", "report.html"} <= set(names)
    assert any(name.startswith("evaluations/") for name in names)
    (host,) = {path.name.split(".", 4)[4] for path in Path("run/tensorboard").iterdir()}
    shutil.rmtree("run")

    # TensorBoard's file has the second of its start in its name.
    seconds = range(int(time.time()), int(time.time()) + 3600)
    events = [f"tensorboard/events.out.tfevents.{second}.{host}" for second in seconds]
    victims = {name: planted(workdir, name) for name in [*names, *AND, *events]}
    refused = []
    for command in [*WRITING, *READING]:
        while main.main(command.split()):
            (sentence,) = [line for line in capfd.readouterr().err.splitlines() if "is a link" in line]
            assert sentence.endswith("and runs do not write through links; remove it."), sentence
            refused.append(str(Path(sentence.partition(" is a link")[0]).relative_to(workdir / "run")))
            for name in events if refused[-1] in events else [refused[-1]]:
                (workdir / "run" / name).unlink()  # as the sentence says
    assert set(refused) - set(events) == {"lease", "logs/stacks_process_0.txt", "logs/train.log", "metrics.jsonl"}
    assert len(refused) == 5
    assert {path.read_text() for path in victims.values()} == {MINE}
    # An evaluation replaces no file, and takes another name.
    kept = [name for name in names if (workdir / "run" / name).is_symlink() and not name.startswith("evaluations/")]
    assert not kept, "each is a file of the run now"


def test_the_batch_of_a_loss_that_is_not_finite_goes_through_no_link(workdir: Path) -> None:
    victim = planted(workdir, AND[2])
    values = dict.fromkeys(("loss", "gradient_norm", "update_norm"), float("nan"))
    failed = recent_steps.RecentStep(2, {0: {"inputs": np.arange(3)}}, values, NO_DOCUMENTS)
    assert "its batch is in" in recent_steps.report(str(workdir / "run"), failed, values, [])
    assert victim.read_text() == MINE
    np.testing.assert_array_equal(np.load(workdir / "run" / AND[2])["inputs/0"], np.arange(3))


def test_a_folder_that_is_a_link_is_the_users_own_choice(workdir: Path) -> None:
    """As runs/ that lies on a larger disk."""
    (workdir / "scratch").mkdir()
    (workdir / "runs").symlink_to(workdir / "scratch")
    descriptor = open_no_link(workdir / "runs" / "metrics.jsonl", os.O_WRONLY | os.O_CREAT)
    os.close(descriptor)
    assert (workdir / "scratch" / "metrics.jsonl").is_file()


def test_an_export_does_not_write_into_a_linked_folder(workdir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(GOLDEN / "run", workdir / "run")
    (workdir / "home").mkdir()
    (workdir / "out").mkdir()
    (workdir / "out" / "step_10.writing").symlink_to(workdir / "home")
    assert main.main(["convert", "run", "out", "--no_check", "--vocabulary=byte"]) == 2
    assert "step_10.writing cannot be used (File exists)" in capsys.readouterr().err
    assert not list((workdir / "home").iterdir())
