"""What the card of an exported model says: what the command asks for, else what the run does."""

import dataclasses
import json
from pathlib import Path

import pytest
from etils import epath

from limba.cli import main, program
from limba.config import CardConfig, ConfigError, DataConfig, RunConfig, saved_config
from limba.export.card import _training
from limba.export.record import Choices, card_of
from limba.inference.source import Source
from tests import tiny

OWN = CardConfig("ro", "apache-2.0", "user/corpus", "TPU v4-8", thank_trc=True)


def source(card: CardConfig) -> Source:
    run = RunConfig(tiny.MODEL, DataConfig("any", {"inputs": 64}, 8), "runs/mine", train_steps=1, card=card)
    again = saved_config.from_text(saved_config.to_text(run), "config.json")
    assert isinstance(again, RunConfig) and again == run
    return Source("runs/mine", epath.Path("runs/mine"), {}, "Limba", model=tiny.MODEL, run=again)


def test_the_run_says_what_the_command_leaves_out() -> None:
    assert card_of(source(OWN), Choices()) == OWN
    of_run = CardConfig(language="en,ms", licence="mit")
    assert card_of(source(OWN), Choices(card=of_run)) == dataclasses.replace(OWN, language="en,ms", licence="mit")
    assert card_of(source(CardConfig()), Choices(card=of_run)) == of_run
    assert card_of(dataclasses.replace(source(OWN), run=None), Choices()) == CardConfig()


def test_a_run_whose_config_names_no_card_has_an_empty_one() -> None:
    run = source(CardConfig()).run
    assert run is not None
    saved = json.loads(saved_config.to_text(run))
    assert saved["run"].pop("card")
    again = saved_config.from_text(json.dumps(saved), "config.json")
    assert isinstance(again, RunConfig) and again.card == CardConfig()


@pytest.mark.parametrize(
    ("field", "value", "sentence"),
    [
        ("language", "Romanian", "language holds 'Romanian'; give codes such as 'ro' or 'en,ms'"),
        ("language", "ro,,en", "language holds ''; give codes"),
        ("licence", "my own licence", "licence is 'my own licence'; give the hub's name of one, such as 'apache-2.0'"),
        ("datasets", "two words", "datasets holds 'two words'; give names on the hub such as 'user/name'"),
    ],
)
def test_what_the_hub_cannot_read_is_refused(
    field: str, value: str, sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ConfigError, match=f"^CardConfig.{sentence}"):
        CardConfig(**{field: value})
    assert program.exit_code(main._run, ["convert", str(tmp_path), str(tmp_path / "out"), f"--{field}={value}"]) == 2
    assert f"--{field} " in capsys.readouterr().err


def test_the_card_names_the_model_that_a_run_began_from(tmp_path: Path) -> None:
    """A local path, also of a folder that is gone, is nobody's business."""
    (tmp_path / "base").mkdir()
    for path, name in (
        (None, None),
        ("google/umt5-base@v1", "`google/umt5-base@v1`"),
        ("gs://bucket/run", "`gs://bucket/run`"),
        (str(tmp_path / "base"), "`base`"),
        ("/home/me/gone", "`gone`"),
    ):
        data = DataConfig("wiki", {"inputs": 64}, 8)
        run = RunConfig(tiny.MODEL, data, str(tmp_path), train_steps=100, initial_checkpoint_path=path)
        of_run = dataclasses.replace(source(OWN), run=run, directory=epath.Path(tmp_path))
        assert _training(of_run, 1, None)["begun from"] == name


def test_the_card_names_the_stages_that_have_been_read(tmp_path: Path) -> None:
    data = DataConfig("wiki", {"inputs": 64}, 8, stages=((20, "clean"), (60, "books")))
    run = RunConfig(tiny.MODEL, data, str(tmp_path), train_steps=100)
    for step, task in ((20, "`wiki`"), (21, "`wiki`, from step 20 on `clean`")):
        of_run = dataclasses.replace(source(OWN), run=run, directory=epath.Path(tmp_path))
        assert _training(of_run, step, None)["task"] == task
