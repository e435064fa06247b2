"""What waits on the page of `limba play`, and what an encoder can do there."""

import dataclasses
import json
from pathlib import Path

import pytest

import limba
from limba import read_gin
from limba.inference.generate import Deadline, TimeIsOverError
from limba.inference.source import VocabularyName
from limba.tools.pages.play.answers import Player
from limba.tools.pages.play.examples import examples_of
from tests import tiny
from tests.cli.test_play import asked, serving
from tests.export.runs import write_run


def test_examples_are_of_the_validation_text_else_in_the_language(tmp_path: Path) -> None:
    corpus = tmp_path / "text.jsonl"
    text = "The module opens the file and reads all of its lines."
    corpus.write_text("".join(json.dumps({"text": f"{text} Number {number}."}) + "\n" for number in range(400)))
    config = read_gin(
        "gin/demo.gin", MODEL_DIR=str(tmp_path / "run"), CORPUS=str(corpus), VOCABULARY="byte", VOCAB_SIZE=384
    )
    write_run(tmp_path / "run", config.model, steps=(3,))
    trained = limba.load(tmp_path / "run", config=config)
    examples = examples_of(trained)
    assert examples and all("".join(pieces) == text and len(pieces) == 5 for pieces in examples)
    corpus.unlink()
    assert examples_of(limba.load(tmp_path / "run", config=config)) == []
    card = dataclasses.replace(config.card, language="ja,en")
    trained = limba.load(tmp_path / "run", config=dataclasses.replace(config, card=card))
    assert ["".join(pieces)[:3] for pieces in examples_of(trained)] == ["電車は", "The"]
    assert not examples_of(limba.load(trained.save(tmp_path / "folder")))


def test_an_encoder_fills_and_does_not_write(vocabulary: Path, tmp_path: Path) -> None:
    encoder = tiny.language_model(attention_mask="bidirectional", vocab_size=1024)
    write_run(tmp_path / "encoder", encoder, steps=(3,))
    trained = limba.load(tmp_path / "encoder", vocabulary=VocabularyName(str(vocabulary), 1))
    assert ", encoder " in repr(trained) and "decoder-only" not in repr(trained)
    with pytest.raises(TimeIsOverError):
        trained.fill("The <mask>.", deadline=Deadline(0.0))
    with serving([Player("encoder", trained)]) as server:
        _, (facts,) = asked(server, "/api/models")
        assert facts["fills"] and not facts["continues"] and not facts["writes"]
        _, answer = asked(server, "/api/fill", {"model": "encoder", "text": "The <extra_id_0> of a <extra_id_1>."})
        expected = trained.fill("The <mask> of a <mask>.")
        assert [[fill["text"] for fill in gap] for gap in answer["gaps"]] == [[f.text for f in gap] for gap in expected]
        status, answer = asked(server, "/api/texts", {"model": "encoder", "text": "The"})
        assert status == 400 and "encoder" in answer["error"]


@pytest.mark.slow
def test_a_language_model_continues_its_prompt(tmp_path: Path) -> None:
    write_run(tmp_path / "lm", dataclasses.replace(tiny.LANGUAGE_MODEL, vocab_size=384), steps=(3,))
    player = Player("lm", limba.load(tmp_path / "lm", vocabulary="byte"))
    with serving([player]) as server:
        (whole,) = limba.load(tmp_path / "lm", vocabulary="byte").samples(["Once"], max_tokens=10)
        status, answer = asked(server, "/api/texts", {"model": "lm", "text": "Once", "max_tokens": 10})
        assert answer["texts"][0]["text"] == whole[0].text
        assert status == 200 and answer["texts"][0]["text"].startswith("Once") and player.facts()["continues"]
        assert 1 <= len(answer["texts"][0]["pieces"]) <= 10 and "filled" not in answer["texts"][0]


def test_a_t5_of_pairs_writes_and_fills_no_gaps(corpus: Path, tmp_path: Path) -> None:
    names = {"MODEL_DIR": str(tmp_path / "run"), "CORPUS": str(corpus), "VOCABULARY": "byte"}
    config = read_gin("gin/fr_capitals_tiny.gin", **names)
    write_run(tmp_path / "run", config.model, steps=(3,))
    facts = Player("capitals", limba.load(tmp_path / "run", config=config)).facts()
    assert facts["writes"] and not facts["fills"] and not facts["continues"] and facts["examples"] == []
