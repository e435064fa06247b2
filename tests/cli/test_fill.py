"""`limba fill`: texts of a command line, a file or a pipe are filled as in Python, and wrong ones are one sentence."""

import io
import json
from pathlib import Path

import pytest

import limba
from limba.cli import convert, main
from tests import tiny
from tests.export.runs import write_run
from tests.inference.test_load import config_of

TEXTS = ["A text with ___ gap.", "Two <extra_id_0> of <extra_id_1>."]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run, a language model, and a file of texts."""
    folder = tmp_path_factory.mktemp("fill")
    write_run(folder / "run", config_of(), steps=(9,))
    write_run(folder / "lm", tiny.language_model(vocab_size=384, num_decoder_layers=1))
    (folder / "in.txt").write_text("".join(f"{text}\n\n" for text in TEXTS))
    (folder / "in.jsonl").write_text("".join(json.dumps({"inputs": text}) + "\n" for text in TEXTS))
    return folder


@pytest.fixture(autouse=True)
def here(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(place)
    monkeypatch.setattr(main.environment, "use_large_pages", lambda: None)  # starts the process again


def filled(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main.main(["fill", "run", "--vocabulary=byte", *arguments]) == 0
    return capsys.readouterr().out


def test_each_way_to_give_texts_prints_the_fills_of_python(capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = limba.load("run", vocabulary="byte").fill(TEXTS, top=2)
    shown = [
        {"text": text, "gaps": [[{"text": fill.text, "probability": fill.probability} for fill in gap] for gap in gaps]}
        for text, gaps in zip(TEXTS, expected, strict=True)
    ]
    capsys.readouterr()
    monkeypatch.setattr("sys.stdin", io.StringIO("\n".join(TEXTS)))
    for given in (TEXTS, ["--file=in.txt"], ["--file=in.jsonl"], []):
        out = filled(capsys, "--top=2", "--json", *given)
        assert [json.loads(line) for line in out.splitlines()] == shown, given
    lines = filled(capsys, "--top=2", TEXTS[1]).splitlines()
    assert lines[0] == f"== {TEXTS[1]}" and len(lines) == 3
    best, second = expected[1][1]
    assert lines[2] == f"2. {best.text} ({best.probability:.2%}), {second.text} ({second.probability:.2%})"


def test_an_encoder_fills_masks_from_its_run_and_from_its_folder(
    tmp_path: Path, vocabulary: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sizes = {"vocab_size": 1024, "emb_dim": 32, "num_heads": 2, "num_kv_heads": 2, "head_dim": 16, "mlp_dim": 64}
    write_run(tmp_path / "run", tiny.language_model(attention_mask="bidirectional", **sizes))
    named = [f"--vocabulary={vocabulary}", "--extra_ids=1"]
    convert.run([str(tmp_path / "run"), str(tmp_path / "out"), *named, "--no_check"])
    (folder,) = (tmp_path / "out").iterdir()
    texts = ["The <mask> is a ___ of it.", "A text.\nThe <mask>"]
    (tmp_path / "in.txt").write_text("".join(f"{text}\n\n" for text in texts[:1]))
    expected = limba.load(folder).fill(texts, top=3)
    assert [len(gaps) for gaps in expected] == [2, 1] and all(len(gap) == 3 for gaps in expected for gap in gaps)
    capsys.readouterr()
    for given in (texts[:1], [f"--file={tmp_path}/in.txt"]):
        assert main.main(["fill", str(folder), "--top=3", "--json", *given]) == 0
        (line,) = capsys.readouterr().out.splitlines()
        gaps = [[{"text": fill.text, "probability": fill.probability} for fill in gap] for gap in expected[0]]
        assert json.loads(line) == {"text": texts[0], "gaps": gaps}
    assert main.main(["fill", str(folder), "--top=3", texts[1]]) == 0
    best = ", ".join(f"{fill.text} ({fill.probability:.2%})" for fill in expected[1][0])
    assert capsys.readouterr().out.endswith(f"1. {best}\n")
    assert main.main(["fill", str(tmp_path / "run"), f"--vocabulary={folder}/spiece.model", texts[1]]) == 2
    assert "no <mask> and no <extra_id_0>" in capsys.readouterr().err
    assert main.main(["fill", str(folder), "A text"]) == 2
    assert "has no" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "There is no model; write limba fill MODEL 'A text with a ___.'"),
        (["run", "no gap"], "The text 'no gap' has no gap; write <extra_id_0>, or ___"),
        (["none", "no gap"], "has no gap"),  # before a model is looked for
        (["none", "a ___"], "none does not exist"),
        (["run", "<extra_id_1>"], "Gap 1 of the text '<extra_id_1>' is <extra_id_1>"),
        (["run", "a ___", "--file=in.txt"], "Both a text and --file are given"),
        (["run", "--file=none.txt"], "The input none.txt does not exist"),
        (["run", "a ___", "--top=0"], "0 is not a whole number above 0"),
        (["run", "a ___", "--vocabulary=none.model"], "none.model"),
        (["run", "a ___", "--step=3"], "no checkpoint at step 3"),
        (["lm", "a ___", "--vocabulary=byte"], "lm is a decoder-only model, which continues texts and fills no gaps"),
    ],
)
def test_bad_input_is_one_sentence(arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["fill", *arguments]) == 2
    (sentence,) = capsys.readouterr().err.strip().splitlines()
    assert words in sentence


def test_without_a_text_on_a_terminal_it_says_what_to_write(capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    assert main.main(["fill", "run"]) == 2
    assert "There is no text; write limba fill run 'A text with a ___.'" in capsys.readouterr().err
