"""`limba generate --fill`: texts of the command line, a file or a pipe are filled as in Python, wrong ones refused."""

import io
import json
from pathlib import Path

import pytest

import limba
from limba.cli import convert, main
from limba.inference.gap_pieces import Fill
from tests import tiny
from tests.export.runs import write_run
from tests.inference.test_load import config_of

TEXTS = ["A text with ___ gap.", "Two <extra_id_0> of <extra_id_1>."]


@pytest.fixture(scope="module")
def workdir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run, a language model, and a file of texts."""
    folder = tmp_path_factory.mktemp("fill")
    write_run(folder / "run", config_of(), steps=(9,))
    write_run(folder / "lm", tiny.language_model(vocab_size=384, num_decoder_layers=1))
    (folder / "in.txt").write_text("".join(f"{text}\n\n" for text in TEXTS))
    for name, field in (("in.jsonl", "inputs"), ("other.jsonl", "text")):
        (folder / name).write_text("".join(json.dumps({field: text}) + "\n" for text in TEXTS))
    return folder


@pytest.fixture(autouse=True)
def here(workdir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(workdir)


def run(*arguments: str) -> int:
    return main.main(["generate", "--fill", *arguments])


def as_json(gaps: list[list[Fill]]) -> list[list[dict]]:
    return [[{"text": fill.text, "probability": fill.probability} for fill in gap] for gap in gaps]


def as_lines(text: str, gaps: list[list[Fill]]) -> list[str]:
    fills = [", ".join(f"{fill.text} ({fill.probability:.2%})" for fill in gap) for gap in gaps]
    return [f"== {text}", *(f"{number}. {fill}" for number, fill in enumerate(fills, 1))]


@pytest.mark.slow
def test_each_way_to_give_texts_prints_the_fills_of_python(capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    fills = limba.load("run", vocabulary="byte").fill(TEXTS, top=2)
    expected = [line for text, gaps in zip(TEXTS, fills, strict=True) for line in as_lines(text, gaps)]
    prompts = [f"--prompt={text}" for text in TEXTS]
    for arguments in (prompts, ["--input=in.txt"], ["--input=in.jsonl"], ["--input=other.jsonl", "--fields=text"], []):
        monkeypatch.setattr("sys.stdin", io.StringIO("\n".join(TEXTS)))
        capsys.readouterr()
        assert run("run", "--vocabulary=byte", "--top=2", *arguments) == 0
        assert capsys.readouterr().out.splitlines() == expected, arguments


@pytest.mark.slow
def test_a_file_gets_each_record_with_its_gaps_and_is_resumed(workdir: Path, capsys) -> None:
    command = ["run", "--vocabulary=byte", "--top=2", "--batch_size=8"]
    expected = list(map(as_json, limba.load("run", vocabulary="byte").fill(TEXTS, top=2)))
    assert run(*command, "--input=in.txt", "--output=out.jsonl") == 0
    rows = [json.loads(line) for line in (workdir / "out.jsonl").read_text().splitlines()]
    assert [row["inputs"] for row in rows] == [TEXTS[0], "", TEXTS[1], ""]
    assert [row["gaps"] for row in rows] == [expected[0], [], expected[1], []]
    capsys.readouterr()
    assert run(*command, "--input=in.txt", "--output=out.jsonl") == 0
    assert "4 lines are already written." in capsys.readouterr().err
    assert run(*command, "--top=3", "--input=in.txt", "--output=out.jsonl") == 2
    assert "was made with another fill" in capsys.readouterr().err


@pytest.mark.slow
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
    for arguments in (f"--prompt={texts[0]}", f"--input={tmp_path}/in.txt"):
        assert run(str(folder), "--top=3", arguments) == 0
        assert capsys.readouterr().out.splitlines() == as_lines(texts[0], expected[0])
    assert run(str(folder), "--top=3", f"--prompt={texts[1]}") == 0
    assert capsys.readouterr().out.endswith(f"{as_lines(texts[1], expected[1])[1]}\n")
    assert run(str(tmp_path / "run"), f"--vocabulary={folder}/spiece.model", f"--prompt={texts[1]}") == 2
    assert "no <mask> and no <extra_id_0>" in capsys.readouterr().err
    assert run(str(folder), "--prompt=A text") == 2
    assert "has no" in capsys.readouterr().err
    assert main.main(["generate", str(folder), f"--prompt={texts[0]}"]) == 0
    said = capsys.readouterr()
    assert said.out.splitlines() == as_lines(texts[0], limba.load(folder).fill(texts[:1])[0])
    assert "has learned to fill gaps, not to write texts; the prompt's gaps are filled, as with --fill." in said.err
    for refused in (["--prompt=A text"], [f"--prompt={texts[0]}", "--num_beams=2"]):
        assert main.main(["generate", str(folder), *refused]) == 2
        assert "is an encoder, which generates no text; call limba generate --fill for" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--prompt=a ___"], "No model is given; name a run, a folder or a hub id"),
        (["run", "--prompt=no gap"], "The text 'no gap' has no gap; write <extra_id_0>, or ___"),
        (["none", "--prompt=no gap"], "has no gap"),  # before a model is looked for
        (["none", "--prompt=a ___"], "none does not exist"),
        (["run", "--prompt=<extra_id_1>"], "Gap 1 of the text '<extra_id_1>' is <extra_id_1>"),
        (["run", "a ___"], "The argument a ___ is not known; write --prompt='a ___'"),
        (["run", "--input=none.txt"], "The input none.txt does not exist"),
        (["run", "--prompt=a ___", "--top=0"], "0 is not a whole number above 0"),
        (["run", "--prompt=a ___", "--vocabulary=byte", "--top=99999"], "--top is 99,999, and the model has"),
        (["run", "--prompt=a ___", "--vocabulary=none.model"], "none.model"),
        (["run", "--prompt=a ___", "--step=3"], "no checkpoint at step 3"),
        (
            ["lm", "--prompt=a ___", "--vocabulary=byte"],
            "lm is a decoder-only model, which continues texts and fills no gaps; call limba generate.",
        ),
    ],
)
def test_bad_input_is_one_sentence(arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(*arguments) == 2
    (sentence,) = capsys.readouterr().err.strip().splitlines()
    assert words in sentence


def test_without_a_text_on_a_terminal_it_says_what_to_write(capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    assert run("run") == 2
    assert "There is no prompt; give --prompt=TEXT, --input=FILE, or lines on" in capsys.readouterr().err
