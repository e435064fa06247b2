"""`limba results RUN` without a suite: what needs no labels, and a sentence where there is nothing to measure."""

import dataclasses
import json
import math
import shutil
from pathlib import Path

import pytest

import limba
from limba.cli import main
from limba.config import CardConfig, RunConfig, saved_config
from limba.tools.results.kinds.bits import BitsPerByte, windows, with_gaps
from limba.tools.results.outcome_cache import OutcomeCache, digest
from limba.tools.results.protocol import PROTOCOL
from tests import tiny
from tests.export.runs import folder_of, write_run


@pytest.fixture
def write(workdir: Path, corpus: Path, vocabulary: Path):
    """A function that writes a run with random weights, of the corpus, in English."""

    def write(data: object = None, language: str | None = "en", name: str = "run", **changes: object) -> Path:
        model = tiny.model(vocab_size=1_024, emb_dim=32, num_heads=2, head_dim=16, mlp_dim=32)
        data_config = dataclasses.replace(tiny.demo_data(corpus, vocabulary), task_modules=("tasks.demo",), **changes)
        write_run(workdir / name, model)
        run = RunConfig(model, data_config, str(workdir / name), train_steps=5, card=CardConfig(language=language))
        (workdir / name / saved_config.FILE).write_text(saved_config.to_text(run))
        return workdir / name

    return write


@pytest.mark.slow
def test_a_run_is_measured_on_its_validation_text_and_the_pairs_of_its_language(workdir, write, capsys) -> None:
    write()
    (workdir / "data" / "eng").mkdir(parents=True)
    shutil.copy(workdir / "pairs.tsv", workdir / "data" / "eng" / "data.tsv")
    assert main.main(["results", "run", "--data=data"]) == 0, capsys.readouterr().err
    assert "4 outcomes computed" in capsys.readouterr().out
    folder = workdir / "results" / "first_row"
    cells = {(cell["task"], cell["model"]): cell for cell in json.loads((folder / "results.json").read_text())["cells"]}
    assert set(cells) == {
        *((task, column) for task in ("validation_text", "agreement") for column in ("run", "run, random weights")),
        ("agreement", "chance"),
    }
    (text,) = folder.glob("validation-*.txt")
    rows = [row for row in map(with_gaps, windows(text.read_text())) if row.hidden_bytes]
    likelihoods = limba.load("run").log_likelihoods([(row.read, row.written) for row in rows])
    bits = -likelihoods.sum(dtype=float) / math.log(2) / sum(row.hidden_bytes for row in rows)
    figures = cells["validation_text", "run"]
    assert figures["figure"] == "bits per hidden byte" and figures["mean"] == pytest.approx(bits, rel=1e-6)
    assert (workdir / "run" / "results" / "first_row.txt").read_text() == (folder / "results.txt").read_text()
    left = text.read_text()
    for document in sorted(limba.load("run").task.source.texts("validation"), key=len, reverse=True):
        left = left.replace(document, "")
    assert len(left) < 0.2 * len(text.read_text()), "all but the document that is cut is of the validation split"
    assert main.main(["results", "run", "--data=data"]) == 0 and "0 outcomes computed" in capsys.readouterr().out
    hashes = []
    for name in ("here", "there"):
        (workdir / name).mkdir()
        copied = shutil.copy(text, workdir / name)
        hashes.append(
            digest(OutcomeCache(workdir).rules(BitsPerByte("validation_text", (str(copied),)), ".", PROTOCOL))
        )
    assert hashes[0] == hashes[1] and hashes[0].startswith(figures["protocol"]), "the same text in another folder"


@pytest.mark.slow
def test_without_a_file_of_pairs_the_command_says_where_they_are(workdir, write, capsys) -> None:
    write(language="ro-MD")  # a card may name a country too
    (workdir / "pairs.tsv").unlink()
    assert main.main(["results", "run", "--tasks=validation_text"]) == 0
    said = capsys.readouterr().err
    assert "No minimal pairs are in .: hf download jumelet/multiblimp ron/data.tsv --repo-type=dataset" in said


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("folder", "folder is not a run, so it has no validation text to measure without a suite; write"),
        ("bare", "bare does not say what text it was trained on; write some text into held_out.txt in a folder FOLDER"),
        ("moved", "moved gives no validation text: "),
    ],
)
def test_what_to_give_where_there_is_no_validation_text(name, says, workdir, write, vocabulary, capsys) -> None:
    folder_of(tiny.model(vocab_size=1_024), vocabulary, workdir / "folder")
    write_run(workdir / "bare", tiny.model(vocab_size=1_024))
    shutil.copy(vocabulary, workdir / "bare" / "spiece.model")
    write(name="moved", data_files=str(workdir / "gone.txt"))
    assert main.main(["results", name]) == 2
    error = capsys.readouterr().err
    assert says in error and "--suite=any" in error and error.count("\n") == 1, error


def test_a_path_without_a_model_is_said_before_a_suite_is_asked_for(workdir, capsys) -> None:
    assert main.main(["results", "absent"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("absent does not exist: looked there for") and error.count("\n") == 1, error
    assert not (workdir / "results").exists()
