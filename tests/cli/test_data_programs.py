"""The programs that look at data and train vocabularies: flags, bad choices, one real start."""

import dataclasses
import json
import os
import re
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from limba.config import DataConfig, InputError
from limba.data.vocabulary import train as vocabulary_training
from limba.data.vocabulary.load import load_vocabulary
from limba.tools.corpus import inspect, task_flags
from limba.tools.corpus import vocabulary as train_vocabulary

ROOT = Path(__file__).parent.parent.parent


@pytest.fixture(autouse=True)
def _one_host(monkeypatch):
    monkeypatch.delenv("PROCESS_ID", raising=False)
    monkeypatch.delenv("TFDS_DATA_DIR", raising=False)


def test_a_task_is_found_with_or_without_its_module(corpus, vocabulary):
    for module in ("tasks.ro", None):
        recipe = task_flags.TaskRecipe("rlm_span_corruption_files", module, str(corpus), "text", str(vocabulary), 1.0)
        task = recipe()
        assert task.name == "rlm_span_corruption_files"
        assert next(task.source.texts("train"))
        assert task.output_features["targets"].vocabulary.vocab_size == 900


def test_inspect_prints_its_figures(corpus, vocabulary, capsys):
    flags = ["--task=demo_span_corruption", f"--files={corpus}", f"--vocabulary={vocabulary}", "--sample_bytes=50000"]
    inspect.run([*flags, "--num=2", "--inputs=128"])
    output = capsys.readouterr().out
    for figure in ("tokens per byte", "padding of inputs", "0.00% of 128", "unknown pieces", "document 2", "example 2"):
        assert figure in output


@pytest.mark.parametrize(
    ("program", "flags", "message"),
    [
        (inspect, [], "Nothing to read is named; give --task=NAME"),
        (inspect, ["--task=nix", "--vocabulary=byte"], "--task is 'nix', and no task"),
        (inspect, ["--task=nix", "--module=tasks.nix"], "--module names tasks.nix, which does not exist"),
        (inspect, ["--xyzzy"], "The argument --xyzzy is not known; --help lists"),
        (inspect, ["--files=CORPUS"], "give --vocabulary=PATH or byte"),
        (inspect, ["--files=CORPUS", "--vocabulary=absent.model"], "absent.model does not exist"),
        (inspect, ["--files=absent.txt", "--vocabulary=byte"], "matches no file"),
        (inspect, ["--files=CORPUS", "--vocabulary=byte", "--column=body"], "'text': set --column to one"),
        (inspect, ["--files=CORPUS", "--vocabulary=byte", "--num=-1"], "--num is -1"),
        (inspect, ["--task=x", "--column=body"], "give --files too"),
        (
            inspect,
            ["--files=CORPUS", "--vocabulary=byte", "--validation_percent=100"],
            "--validation_percent is 100.0; give",
        ),
        (inspect, ["--files=CORPUS", "--vocabulary=byte", "--split=test"], "it has train: set --split"),
        (inspect, ["--files=CORPUS", "--vocabulary=byte", "--objective=ul2"], "set --extra_ids to 131, or"),
        (inspect, ["--files=CORPUS", "--task=text_to_text", "--extra_ids=131"], "give --vocabulary too"),
        (
            inspect,
            ["--files=CORPUS", "--task=text_to_text", "--column={'inputs'}"],
            "is not a dictionary; write --column=",
        ),
        (inspect, ["--files=CORPUS", "--vocabulary=byte", "--column={'inputs': 'text'}"], "reads one column; name one"),
        (train_vocabulary, ["--files=CORPUS"], "required: --output"),
        (train_vocabulary, ["--files=CORPUS", "--output=v.txt"], "give DIR/NAME.model"),
        (train_vocabulary, ["--files=CORPUS", "--output=NEW.model", "--coverage=2"], "--coverage is 2.0"),
        (train_vocabulary, ["--files=CORPUS", "--output=NEW.model", "--size=many"], "invalid int value: 'many'"),
        (train_vocabulary, ["--files=CORPUS", "--output=NEW.model", "--size=359"], "give more than 359, and room"),
        (train_vocabulary, ["--files=absent.txt", "--output=NEW.model", "--size=0"], "--size is 0, and 100 sentinels"),
        (train_vocabulary, ["--files=absent.txt", "--output=/proc/x/v.model"], "/proc/x/v.model cannot be written"),
        (
            train_vocabulary,
            ["--files=absent.txt", "--output=NEW.model", "--compare_files=a=b.txt"],
            "b.txt matches no file",
        ),
        (
            train_vocabulary,
            ["--files=absent.txt", "--output=NEW.model", "--column=body", "--compare_files=a=CORPUS"],
            "no column 'body'",
        ),
        (train_vocabulary, ["--files=CORPUS", "--output=NEW.model", "--compare_files=ro"], "write ro=a.jsonl"),
        (
            train_vocabulary,
            ["--files=CORPUS", "--output=NEW.model", "--compare_vocabulary=absent.model"],
            "does not exist",
        ),
        (train_vocabulary, ["--files=CORPUS", "--output=NEW.model", "--split=test"], "no split 'test'"),
    ],
)
def test_what_cannot_work_is_one_sentence(program, flags, message, corpus, tmp_path):
    flags = [flag.replace("CORPUS", str(corpus)).replace("NEW", str(tmp_path / "new")) for flag in flags]
    with pytest.raises(InputError) as caught:
        program.run(flags)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not list(tmp_path.glob("*.model"))


@pytest.mark.slow
def test_a_vocabulary_is_trained_and_reported(corpus, vocabulary, tmp_path, capsys):
    output = tmp_path / "new" / "ours.model"
    flags = [f"--files={corpus}", "--size=600", f"--output={output}", "--romanian_commas", "--sample_bytes=200000"]
    train_vocabulary.run([*flags, f"--compare_files=ref={corpus}", f"--compare_vocabulary={vocabulary},byte"])
    printed, said = capsys.readouterr()
    assert "WARNING" not in said
    loaded = load_vocabulary(str(output))
    assert loaded.vocab_size == 600
    assert "500 pieces and 100 sentinels" in printed
    assert "set VOCAB_SIZE to 640" in printed
    assert printed.count("ours.model") >= 3 and printed.count("vocabulary.model") == 2, printed
    assert loaded.encode("şi") == loaded.encode("și")
    ours = Tokenizer.from_file(str(output.parent / "tokenizer.json"))
    text = json.loads(corpus.read_text().splitlines()[5])["text"]
    assert ours.encode(text, add_special_tokens=False).ids == loaded.encode(text)
    before = output.read_bytes(), (output.parent / "tokenizer.json").read_bytes()
    with pytest.raises(
        InputError, match="tokenizer.json belongs to another vocabulary; choose another folder for .*/other.model"
    ):
        train_vocabulary.run([*flags[:2], f"--output={output.parent}/other.model"])
    with pytest.raises(InputError, match="already exists"):
        train_vocabulary.run(flags)
    assert (output.read_bytes(), (output.parent / "tokenizer.json").read_bytes()) == before


def test_a_vocabulary_for_encoders_has_no_sentinels(corpus, tmp_path, capsys):
    output = tmp_path / "masks.model"
    train_vocabulary.run([f"--files={corpus}", "--size=600", f"--output={output}", "--masks"])
    assert re.search(
        r"600 pieces and 0 sentinels: .* set VOCAB_SIZE to 640 and EXTRA_IDS to 0\.", capsys.readouterr().out
    )
    with pytest.raises(InputError, match="256 pieces of single bytes, 5 special pieces are among them|more than 261"):
        train_vocabulary.run([f"--files={corpus}", "--size=261", f"--output={tmp_path}/few.model", "--masks"])


def test_a_text_too_small_for_the_size_is_said(tmp_path, capsys):
    (tmp_path / "few.txt").write_text("\n".join(f"word{n} and some other words of {n} letters" for n in range(500)))
    train_vocabulary.run([f"--files={tmp_path}/few.txt", "--size=9000", f"--output={tmp_path}/few.model"])
    printed, said = capsys.readouterr()
    num_ids = load_vocabulary(str(tmp_path / "few.model")).vocab_size
    assert num_ids < 2_000
    (rows,) = re.findall(r"set VOCAB_SIZE to (\d+)\.", printed)
    assert num_ids <= int(rows) < num_ids + 128
    assert f"WARNING: --size asks for 9,000 ids, and this text has pieces for {num_ids:,} only" in said


PAIRS = "{'inputs': 'en', 'targets': 'id'}"


@pytest.fixture
def pairs(tmp_path):
    rows = [{"en": f"the house number {i} of the street", "id": f"rumah nomor {i} di jalan itu"} for i in range(300)]
    path = tmp_path / "pairs.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_pairs_are_shown_and_trained_on_by_column(pairs, capsys):
    flags = ["--task=text_to_text", f"--files={pairs}", f"--column={PAIRS}"]
    inspect.run([*flags, "--num=1", "--inputs=24"])
    printed = capsys.readouterr().out
    number = re.search(r"document 1, inputs: .*\nthe house number (\d+) of the street\n", printed)[1]
    assert re.search(rf"document 1, targets: .*\nrumah nomor {number} di jalan itu\n", printed)
    assert re.search(r"example 1: inputs 24 of 24, targets 24 of 24", printed)
    assert "tokens of targets" in printed and "\0" not in printed
    recipe = task_flags.TaskRecipe("text_to_text", None, str(pairs), PAIRS, "byte", 1.0)
    training, _ = vocabulary_training.NewVocabulary.sample(recipe(), "train", 10**6)
    assert {text.split()[0] for text in training} == {b"the", b"rumah"} and not any(b"\0" in text for text in training)


def test_a_vocabulary_stopped_before_its_tokenizer_json_is_not_trained_again(corpus, vocabulary, tmp_path):
    path = tmp_path / "v.model"
    path.write_bytes(vocabulary.read_bytes())
    config = DataConfig("none", {"inputs": 8}, 1, vocabulary=str(path), data_files=str(corpus), new_vocabulary_size=500)
    # It says itself how many ids it has: the 500 are asked of nothing, so a smaller model is not told of them.
    vocabulary_training.ensure_vocabulary(config, trains=True, num_rows=400)
    assert path.read_bytes() == vocabulary.read_bytes()
    assert Tokenizer.from_file(str(tmp_path / "tokenizer.json")).get_vocab_size() == 900
    with pytest.raises(InputError, match="tokenizer.json belongs to another vocabulary"):
        vocabulary_training.ensure_vocabulary(
            dataclasses.replace(config, vocabulary=f"{tmp_path}/w.model"), trains=True
        )
    folder = dataclasses.replace(config, vocabulary=str(tmp_path))  # one for transformers is read, and never trained
    vocabulary_training.ensure_vocabulary(folder, trains=True, num_rows=400)


def test_one_process_makes_a_vocabulary(corpus, tmp_path):
    output = tmp_path / "v.model"
    config = DataConfig(
        "demo_span_corruption",
        {"inputs": 8},
        1,
        vocabulary=str(output),
        data_files=str(corpus),
        new_vocabulary_size=600,
    )
    with vocabulary_training.NewVocabulary(str(output)).held():
        with pytest.raises(InputError, match=f"Another process uses {output} now"):
            train_vocabulary.run([f"--files={corpus}", f"--output={output}"])
        with pytest.raises(InputError, match=f"Another process uses {output} now"):
            vocabulary_training.ensure_vocabulary(config, trains=True)
    assert not list(tmp_path.iterdir())


def test_other_hosts_wait_for_the_first(corpus, tmp_path, monkeypatch, capsys):
    output = tmp_path / "v.model"
    flags = [f"--files={corpus}", f"--output={output}"]
    monkeypatch.setenv("SLURM_NTASKS", "2")
    monkeypatch.setenv("SLURM_PROCID", "1")
    with pytest.raises(InputError, match="Host 0 has not written .* or wait longer"):
        train_vocabulary.run([*flags, "--wait_seconds=0.05"])
    monkeypatch.setenv("SLURM_PROCID", "0")  # but its own number counts first
    monkeypatch.setenv("PROCESS_ID", "1")
    with pytest.raises(InputError, match="Host 0 has not written .* or wait longer"):
        train_vocabulary.run([*flags, "--wait_seconds=0.05"])
    with pytest.raises(InputError, match="--wait_seconds is nan; give 0 or more"):  # not a wait without end
        train_vocabulary.run([*flags, "--wait_seconds=nan"])
    output.write_bytes(b"model")  # without its tokenizer.json it is not finished
    with pytest.raises(InputError, match="Host 0 has not written"):
        vocabulary_training.NewVocabulary(str(output)).wait(0.05, 0.01)
    threading.Timer(0.2, (tmp_path / "tokenizer.json").write_text, ("{}",)).start()
    vocabulary_training.NewVocabulary(str(output)).wait(30, 0.01)
    train_vocabulary.run(flags)
    assert "Host 0 has written" in capsys.readouterr().out
    monkeypatch.setenv("PROCESS_ID", "first")
    with pytest.raises(InputError, match="PROCESS_ID is first"):
        train_vocabulary.run(flags)


def test_a_real_start_ends_with_a_sentence_and_code_2(tmp_path):
    command = [sys.executable, "-m", "limba", "inspect", f"--files={tmp_path}/absent.jsonl", "--vocabulary=byte"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env={**os.environ, "NO_COLOR": "1"})
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1 and "matches no file" in done.stderr


def test_help_names_every_flag(capsys):
    for program, flag in ((inspect, "--sequence"), (train_vocabulary, "--romanian_commas")):
        with pytest.raises(SystemExit) as ended:
            program.run(["--help"])
        assert ended.value.code == 0
        printed = capsys.readouterr().out
        assert flag in printed and "--task" in printed
