"""The commands about trained models, on a run: examples of --help, forms, bad input."""

import errno
import json
import os
import shlex
import shutil
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from limba.cli import main, program
from limba.config import StorageError

GOLDEN = Path(__file__).parent.parent / "golden" / "run"
PAIRS = [{"inputs": "A text with <extra_id_0> gap.", "targets": "<extra_id_0> a"}, {"inputs": "b", "targets": "c"}]


@pytest.fixture
def workdir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current directory, with a run, its corpus, and something to read."""
    shutil.copytree(GOLDEN / "run", tmp_path / "run")
    shutil.copy(GOLDEN / "corpus.jsonl", tmp_path)
    shutil.copy(GOLDEN / "whole" / "metrics.jsonl", tmp_path / "run")
    (tmp_path / "in.txt").write_text("".join(f"{pair['inputs']}\n" for pair in PAIRS))
    (tmp_path / "pairs.jsonl").write_text("".join(json.dumps(pair) + "\n" for pair in PAIRS))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def error_of(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    """Returns the one sentence on stderr with which a command ends, exit code 2."""
    capsys.readouterr()
    assert main.main(list(argv)) == 2, argv
    (sentence,) = capsys.readouterr().err.strip().splitlines()
    return sentence


@pytest.mark.parametrize(
    ("command", "makes"),
    [
        ("generate", "out.jsonl"),
        ("evaluate", "run/evaluations/evaluation-10-validation.json"),
        ("report", "run/loss.png"),
        ("convert", "OUT/step_10/model.safetensors"),
    ],
)
@pytest.mark.slow
def test_the_example_of_help_runs(command: str, makes: str, workdir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main.main([command, "--help"])
    text = capsys.readouterr().out
    assert ended.value.code in (0, None) and text.startswith(f"usage: limba {command} ")
    example = text.partition(f"\n    limba {command} ")[2].partition("\n")[0].replace("MODEL_DIR", "run")
    assert main.main([command, *shlex.split(example)]) == 0
    assert (workdir / makes).exists()


@pytest.mark.night
def test_lines_of_a_pipe_are_answered_while_it_is_open(workdir: Path) -> None:
    """A batch at a time; standard output holds the texts alone, and the rest is on standard error."""
    command = [sys.executable, "-m", "limba", "generate", "run", "--input=-", "--batch_size=8", "--max_tokens=4"]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with (
        (workdir / "errors").open("w") as errors,
        subprocess.Popen(command, **pipes, stderr=errors, text=True, env=environment) as process,
    ):
        assert process.stdin is not None and process.stdout is not None
        limit = threading.Timer(300, process.kill)
        limit.start()
        process.stdin.write("A text with a gap.\n" * 8)
        process.stdin.flush()
        first = [process.stdout.readline() for _ in range(8)]
        assert process.poll() is None and first == first[:1] * 8 and first[0].endswith("\n"), first
        process.stdin.write("Another one\n")
        process.stdin.close()
        rest = process.stdout.readlines()
        assert process.wait() == 0
        limit.cancel()
    assert len(rest) == 1 and "9 lines in stdout" in (workdir / "errors").read_text()


@pytest.mark.night
def test_a_gin_file_and_a_run_give_the_same(workdir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = ["--gin_file=run/config.gin", "--gin.config.GenerationConfig.max_tokens=8", "--gin.BATCH_SIZE=16"]
    assert main.main(["generate", *model, "--input=in.txt", "--output=old.jsonl"]) == 0
    assert main.main(["generate", "run", "--max_tokens=8", "--input=in.txt", "--output=new.jsonl"]) == 0
    old = lines(workdir / "old.jsonl")
    new = lines(workdir / "new.jsonl")
    assert [row["prediction"] for row in old] == [row["prediction"] for row in new]
    assert old[0]["inputs"] == PAIRS[0]["inputs"]
    assert main.main(["generate", "--score", *model, "--input=pairs.jsonl", "--output=old_scores.jsonl"]) == 0
    assert (
        main.main(
            ["generate", "--score", "--model=run", "--batch_size=8", "--input=pairs.jsonl", "--output=scores.jsonl"]
        )
        == 0
    )
    old = lines(workdir / "old_scores.jsonl")
    new = lines(workdir / "scores.jsonl")
    assert [row["log_likelihood"] for row in new] == pytest.approx([row["log_likelihood"] for row in old], rel=1e-5)
    assert [row["tokens"] for row in new] == [4, 2]
    capsys.readouterr()
    sampled = ["--prompt=A <extra_id_0> gap.", "--temperature=1.5", "--top_k=0", "--num=2", "--max_tokens=8"]
    assert main.main(["generate", "run", *sampled, "--keep_sentinels"]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("== A <extra_id_0> gap.\n1. ") and "\n2. " in printed
    assert "--temperature is nan; give a finite number" in error_of(
        capsys, "generate", "run", "--prompt=a", "--temperature=nan"
    )
    assert "more than --num_beams 1; raise that, or sample with --temperature above 0" in error_of(
        capsys, "generate", "run", "--prompt=A <extra_id_0> gap.", "--temperature=0", "--num=2"
    )
    assert "--fields is inputs, and the model reads inputs too" in error_of(
        capsys, "generate", "run", "--score", "--input=pairs.jsonl", "--fields=inputs"
    )
    assert "has no text in field 'text'" in error_of(capsys, "generate", "run", "--input=pairs.jsonl", "--fields=text")
    assert "The input none.txt does not exist" in error_of(capsys, "generate", "run", "--input=none.txt")
    assert "no checkpoint at step 3" in error_of(capsys, "generate", "run", "--prompt=a", "--step=3")


@pytest.mark.parametrize(
    ("words", "argv"),
    [
        ("--batch_size: x is not a whole number above 0", ["generate", "run", "--input=in.txt", "--batch_size=x"]),
        ("--batch_size: 0 is not a whole number above 0", ["generate", "run", "--input=in.txt", "--batch_size=0"]),
        (
            "--batch_size: -1 is not a whole number above 0",
            ["generate", "run", "--score", "--batch_size=-1"],
        ),
        ("--num_examples: no is not a whole number above 0", ["evaluate", "run", "--num_examples=no"]),
        ("did you mean --output; --help", ["generate", "run", "--outptu=x"]),
        ("invalid int value: 'many'", ["generate", "run", "--prompt=a", "--num=many"]),
        ("Both --prompt and --input are given", ["generate", "run", "--prompt=a", "--input=in.txt"]),
        ("No model is given", ["generate", "--score", "--input=in.txt"]),
        ("--fields is a,b,c; give two names", ["generate", "run", "--score", "--fields=a,b,c"]),
        ("nowhere does not exist: looked there for a Limba run", ["generate", "nowhere", "--prompt=a"]),
        (
            "no does not exist: looked there for a Limba run",
            ["generate", "no", "--score", "--gin.BATCH_SIZE=2"],
        ),
        ("No run is given; write limba report MODEL_DIR", ["report"]),
        ("nowhere is not a folder", ["report", "nowhere"]),
        ("--gin.A=1 goes with --gin_file", ["report", "run", "--gin.A=1"]),
        ("--gin.A=1 is a flag of limba train", ["convert", "run", "--gin.A=1"]),
        ("There is no OUT; write limba convert run OUT --to=t5x", ["convert", "run", "--to", "t5x"]),
        ("Both --prompt and --output are given", ["generate", "run", "--prompt=a", "--output=out.txt"]),
        ("--vocabulary to the path of a SentencePiece", ["generate", "run", "--prompt=a", "--vocabulary=/none.model"]),
        ("has no split 'none'; it has train: set --split", ["evaluate", "run", "--split=none"]),
        (".csv promises another format", ["generate", "nowhere", "--input=in.txt", "--output=out.csv"]),
        (
            ".gz promises another format",
            ["generate", "nowhere", "--score", "--input=pairs.jsonl", "--output=o.jsonl.gz"],
        ),
        ("with --fill it is a .jsonl file", ["generate", "nowhere", "--fill", "--input=in.txt", "--output=out.csv"]),
        ("Both --top_k and --num_beams", ["generate", "run", "--prompt=a", "--top_k=5", "--num_beams=2"]),
        ("There is no OUT; write limba convert run OUT --to=t5x", ["convert", "run", "--to=t5x"]),
        (
            "Both MODEL (run) and --checkpoint (run/best) are given",
            ["generate", "run", "--score", "--checkpoint=run/best"],
        ),
        ("invalid choice: 'gguf'", ["convert", "run", "--to=gguf"]),
        ("There is no MODEL; write limba convert MODEL [OUT]", ["convert"]),
        ("The argument run is one too many", ["convert", "--model=run", "--output=out", "run"]),
        ("give pytorch, flax", ["convert", "run", "--formats=onnx"]),
    ],
)
def test_bad_input_is_one_sentence(words: str, argv: list[str], workdir: Path, capsys) -> None:
    assert words in error_of(capsys, *argv)


def test_a_run_without_config_json_is_said(workdir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (workdir / "lr=0.1").symlink_to(workdir / "run")
    assert main.main(["convert", "lr=0.1", "--to=list"]) == 0
    (workdir / "run" / "config.json").unlink()
    sentence = error_of(capsys, "generate", "run", "--score", "--input=pairs.jsonl")
    assert "has no config.json; copy it there, or give --gin_file" in sentence
    assert "has no config.json: it is not a run, or one that has not begun" in error_of(capsys, "report", "run")
    assert "did you mean generate?" in error_of(capsys, "infer", "run", "--input=in.txt")


def test_what_cannot_be_written_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    def write(argv: Sequence[str]) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), argv[0])

    assert program.exit_code(write, ["/run/loss.png"]) == StorageError.exit_status
    assert capsys.readouterr().err.startswith("/run/loss.png cannot be written (Read-only file system); ")
