"""`limba new`: the proposed size and steps, the written files, which train, and bad input."""

import dataclasses
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from limba.api import NewVocabulary
from limba.cli import train
from limba.cli.gin.read import read_run
from limba.cli.main import main
from limba.config import DataConfig, InputError, ModelConfig, RunConfig, environment
from limba.evaluation import summary
from limba.formats.huggingface_config import config_json
from limba.inference.load import load
from limba.tools.corpus import counting, new
from limba.tools.preflight.checks.scripts import other_scripts
from tests.faults.starts import QUICK
from tests.hub_server import hub

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_tokens_are_counted_within_5_percent(corpus: Path, tmp_path: Path) -> None:
    texts = [json.loads(line)["text"].encode() for line in corpus.read_text().splitlines()]
    kept = [text for index, text in enumerate(texts) if index % 10]  # a run's own vocabulary
    NewVocabulary(str(tmp_path / "own.model")).train(kept, 900)
    true = counting.with_vocabulary(str(tmp_path / "own.model"), texts).tokens_per_byte
    counted = counting.counter(counting.sampled(str(corpus), "text"), "t5")(1_000)
    assert counted.ids == 1_000 and counted.tokens_per_byte == pytest.approx(true, rel=0.05)


def test_a_vocabulary_has_room_for_the_letters_of_the_text() -> None:
    letters = "".join(chr(0x4E00 + offset) for offset in range(1_500))
    texts = [(letters[start:] + letters[:start]).encode() for start in range(0, 1_500, 10)]
    assert counting.counter(texts, "t5")(1_000).ids == 2_000


def test_ids_of_a_text_of_few_words_are_counted_with_the_sentinels_of_its_kind() -> None:
    made = {kind: counting.counter([b"one two three four five"] * 50, kind)(1_000).made for kind in ("t5", "lm")}
    assert made["t5"] == made["lm"] + 100


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")  # of a machine that has one


@pytest.fixture
def workdir(corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a.jsonl").write_bytes(corpus.read_bytes())
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def ran(workdir: Path) -> Callable[..., str]:
    """Runs a command in a process of its own as a user does, with the command limba, and returns what it printed."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu", "XLA_FLAGS": QUICK}
    (workdir / "bin").mkdir()
    (workdir / "bin" / "limba").write_text(f'#!/bin/sh\nexec {sys.executable} -m limba "$@"\n')
    (workdir / "bin" / "limba").chmod(0o755)
    environment["PATH"] = f"{workdir}/bin:{environment['PATH']}"

    def run(*command: str, **variables: str) -> str:
        known = environment | variables
        ended = subprocess.run(command, env=known, cwd=workdir, capture_output=True, text=True, check=False)
        assert ended.returncode == 0, (command, ended.stdout[-2000:], ended.stderr[-3000:])
        return ended.stdout

    return run


@pytest.mark.slow
def test_two_commands_lead_to_a_training_run(workdir: Path, ran: Callable[..., str]) -> None:
    told = ran("limba", "new", "nb", "--corpus=data/*.jsonl", "--days=0.01")
    assert (
        "1 file; columns" in told and "Proposed for cpu:\n  safe: T5 1.1 tiny" in told and "bash launch/nb.sh" in told
    )
    assert os.access("launch/nb.sh", os.X_OK)
    small = [f"--gin.config.ModelConfig.{name}=1" for name in ("num_encoder_layers", "num_decoder_layers", "num_heads")]
    written = ran("bash", "launch/nb.sh", "TRAIN_STEPS=4", "--gin.BATCH_SIZE=16", "--gin.EVAL_STEPS=1", *small)
    assert "Training the vocabulary runs/nb_tiny/vocabulary.model" in written
    assert "step 4 saved in" in written
    losses = r"\nLoss [\d.]+ to [\d.]+ in 4 steps, .*; validation [\d.]+\n"
    assert re.search(losses, written)
    assert re.search(r"\nstep 4 sample: .*\[", written) and "<extra_id" not in written
    assert "Next: limba report " in written and "runs/nb_tiny" in written
    assert (workdir / "runs" / "nb_tiny" / "checkpoints" / "4" / "manifest.json").is_file()
    config = json.loads((workdir / "runs" / "nb_tiny" / "config.json").read_text())
    assert "nb_span_corruption" in json.dumps(config)


@pytest.mark.night
def test_a_model_of_the_hub_is_trained_on(workdir: Path, corpus: Path, ran: Callable[..., str]) -> None:
    from transformers import T5Config, T5ForConditionalGeneration

    folder = workdir / "hub" / "me" / "t5" / "main"
    texts = [json.loads(line)["text"].encode() for line in corpus.read_text().splitlines()]
    folder.mkdir(parents=True)
    NewVocabulary(str(folder / "spiece.model")).train(texts, 900)
    sizes = {"d_model": 32, "d_kv": 16, "d_ff": 48, "num_layers": 1, "num_decoder_layers": 1, "num_heads": 2}
    sizes["decoder_start_token_id"] = 0
    model = T5ForConditionalGeneration(T5Config(vocab_size=1024, feed_forward_proj="gated-gelu", **sizes))
    model.save_pretrained(folder)
    with hub(workdir / "hub") as (server, variables):
        told = ran("limba", "new", "on", "--corpus=data/*.jsonl", "--days=0.01", "--from=me/t5", **variables)
        assert "Proposed for cpu:\n  safe: me/t5, " in told and "a vocabulary of 1,000 ids" in told
        written = ran("bash", "launch/on.sh", "TRAIN_STEPS=2", "BATCH_SIZE=16", "EVAL_STEPS=1", **variables)
    assert "step 2 saved in" in written and "Next: limba report " in written
    assert any(name.endswith("/model.safetensors") for _, name in server.bytes_sent)
    run = workdir / "runs" / "on_from"
    first = json.loads((run / "metrics.jsonl").read_text().splitlines()[0])
    assert first["parameters"] == model.num_parameters() and not (run / "vocabulary.model").exists()


@pytest.mark.night
def test_two_commands_lead_to_an_encoder_that_fills_masks(workdir: Path, ran: Callable[..., str]) -> None:
    texts = [json.loads(line)["text"] for line in (workdir / "data" / "a.jsonl").read_text().splitlines()]
    rows = [json.dumps({"text": f"{number}: {text}"}) for number in range(5) for text in texts]
    (workdir / "data" / "b.jsonl").write_text("\n".join(rows))
    assert (workdir / "data" / "b.jsonl").stat().st_size > 2_000_000
    assert "safe: encoder" in ran("limba", "new", "bert", "--corpus=data/*.jsonl", "--days=0.01", "--kind=encoder")
    (gin,) = (workdir / "gin").glob("bert_*.gin")
    small = [f"--gin.config.ModelConfig.{name}=1" for name in ("num_decoder_layers", "num_heads")]
    steps = ("TRAIN_STEPS=2", "--gin.BATCH_SIZE=16", "--gin.EVAL_STEPS=1")
    written = ran("bash", "launch/bert.sh", *steps, *small)
    run = f"runs/{gin.stem}"
    assert "Training the vocabulary runs/" in written and "step 2 saved in" in written
    assert (workdir / run / "checkpoints" / "2" / "manifest.json").is_file()
    config = json.loads((workdir / run / "config.json").read_text())
    assert "bert_masked_lm" in json.dumps(config)
    (fills,) = load(str(workdir / run)).fill("A row has <mask> tokens.", top=3)
    assert len(fills) == 3 and all(0 < fill.probability < 1 for fill in fills)


@pytest.mark.slow
def test_written_files_are_a_run_and_are_not_overwritten(
    workdir: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["new", "sv_2", "--corpus=data/a.jsonl", "--hardware=v4-8", "--days=2", "--size=base"]) == 0
    told = capsys.readouterr()
    assert "documents" in told.out and told.err == ""
    files = {path: path.read_text() for path in (workdir / "tasks" / "sv_2.py", workdir / "gin" / "sv_2_base.gin")}
    assert all(len(line) <= 120 for text in files.values() for line in text.splitlines())
    config = read_run(["gin/sv_2_base.gin"], ["MODEL_DIR=runs/x"]).config
    assert config.model.emb_dim == 768 and config.data.new_vocabulary_size is not None
    assert config.data.new_vocabulary_bytes == DataConfig.new_vocabulary_bytes  # spaces are between its words
    assert config.data.mixture_or_task_name == "sv_2_span_corruption" and config.num_microbatches == 1
    assert config.model.vocab_size >= config.data.new_vocabulary_size
    assert main(["new", "sv_2", "--corpus=data/a.jsonl"]) == 2
    assert "tasks/sv_2.py and launch/sv_2.sh exist already" in capsys.readouterr().err
    assert {path: path.read_text() for path in files} == files


@pytest.mark.slow
def test_a_language_model_has_the_same_files_and_a_prompt_for_each_sentence(
    workdir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["--corpus=data/a.jsonl", "--hardware=cpu", "--days=0.01", "--kind=lm", "--language=en", "--price=2"]
    assert main(["new", "lm_1", *flags]) == 0
    told = capsys.readouterr().out
    assert "decoder-only tiny" in told and "at $2.00 each" in told and "(list" not in told
    config = read_run(["gin/lm_1_tiny.gin"], ["MODEL_DIR=runs/x"]).config
    assert config.model.is_decoder_only and config.data.mixture_or_task_name == "lm_1_causal_lm"
    assert config.data.extra_ids == 0 and config.data.new_vocabulary_size is not None and config.data.pack
    assert config.optimizer.name == "muon" and config.optimizer.weight_decay == 0 and config.card.language == ("en",)
    assert config.optimizer.schedule.base_learning_rate == "auto" and config.optimizer.schedule.warmup_steps == 0.02
    assert config.evaluation.prompts and not any("extra_id" in prompt for prompt in config.evaluation.prompts)


@pytest.mark.parametrize("kind", ["t5", "lm"])
def test_a_text_without_spaces_has_a_vocabulary_in_minutes(workdir: Path, kind: str) -> None:
    lines = [line for page in (ROOT / "docs").rglob("*.md") for line in page.read_text().splitlines()]
    japanese = [re.sub(r"[\x00-\x7f]+", "", line) for line in lines if re.search("[\u3041-\u309f]", line)]
    rows = [json.dumps({"text": f"{number}、{line}"}) for number in range(8) for line in japanese]
    (workdir / "ja.jsonl").write_text("\n".join(rows))
    name = f"ja_{kind}"
    assert main(["new", name, "--corpus=ja.jsonl", "--hardware=cpu", "--days=0.01", f"--kind={kind}"]) == 0
    config = read_run([f"gin/{name}_tiny.gin"], ["MODEL_DIR=runs/x"]).config
    assert config.data.new_vocabulary_bytes == 30_000_000 < DataConfig.new_vocabulary_bytes


MANUAL = """## 6.{number} パッケージを入れる

管理者として `sudo apt-get install --no-install-recommends build-essential libssl-dev` を実行します。

    $ sudo systemctl restart networking.service && journalctl -u networking --since today
    $ limba train gin/nb_{number}.gin --gin.MODEL_DIR=/srv/runs/nb --gin.TRAIN_STEPS=1000

install、update、remove、purge のいずれかを選ぶと、設定ファイル /etc/network/interfaces が読まれます。"""


@pytest.mark.slow
def test_a_japanese_manual_full_of_latin_commands_is_japanese(
    workdir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    texts = [MANUAL.format(number=number) for number in range(300)]
    letters = [letter for letter in "".join(texts) if letter.isalpha()]
    assert sum(letter.isascii() for letter in letters) > 0.6 * len(letters)
    documents = [text.encode() for text in texts]
    counting.check_language("ja", documents)
    assert not counting.has_spaces(documents) and not other_scripts(texts, ["ja"])
    assert other_scripts(texts, ["de"]) == {"HIRAGANA": len(texts)}
    for wrong, script in (("ru", "Hiragana"), ("zh", "Hiragana"), ("nb", "Hiragana")):
        with pytest.raises(InputError, match=f"--language={wrong} is not the text's: most of its letters are {script}"):
            counting.check_language(wrong, documents)
    (workdir / "ja.jsonl").write_text("\n".join(json.dumps({"text": f"{n}。{text}"}) for n, text in enumerate(texts)))
    assert main(["new", "ja", "--corpus=ja.jsonl", "--hardware=cpu", "--days=0.01"]) == 0
    told = capsys.readouterr().out
    assert "LANGUAGE is 'ja', after the run's name" in told and "0.01 days" in told
    assert read_run(["gin/ja_tiny.gin"], ["MODEL_DIR=runs/x"]).config.card.language == ("ja",)


@pytest.mark.parametrize(
    ("code", "text"),
    [
        ("hi", "भारत एक विशाल देश है। `pip install limba` चलाएँ, फिर limba train से प्रशिक्षण करें।"),
        ("ro", "Româna este o limbă romanică; rulați `limba train gin/ro.gin` și așteptați sfârșitul."),
        ("ja", "東京は日本の首都であり、世界最大の都市の一つです。"),
        ("zh", "北京是中华人民共和国的首都，也是全国的政治中心。运行 apt-get install limba 即可。"),
        ("th", "กรุงเทพมหานครเป็นเมืองหลวงของประเทศไทย ใช้คำสั่ง apt-get install limba"),
        ("ko", "서울은 대한민국의 수도이다. limba train 명령을 실행한다."),
    ],
)
def test_the_script_of_a_text_with_a_few_commands(code: str, text: str) -> None:
    counting.check_language(code, [text.encode()])
    others = {"hi": "ja", "ro": "ru", "ja": "hi", "zh": "ja", "th": "en", "ko": "ja"}
    with pytest.raises(InputError, match="outside code and markup; give its own code"):
        counting.check_language(others[code], [text.encode()])


@pytest.mark.slow
def test_the_script_starts_again_where_only_the_command_is_installed(workdir: Path) -> None:
    """Beside no launch/pretrain.sh, as in a folder of one's own: on a machine without Limba it is one sentence."""
    assert main(["new", "nn", "--corpus=data/a.jsonl", "--hardware=cpu", "--days=0.01"]) == 0
    for name in ("python3", "limba", "sleep"):
        (workdir / "bin").mkdir(exist_ok=True)
        (workdir / "bin" / name).write_text("#!/bin/sh\nexit 1\n")
        (workdir / "bin" / name).chmod(0o755)
    (workdir / "bin" / "limba").unlink()
    environment = {"PATH": f"{workdir}/bin:/usr/bin:/bin"}

    def ran(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = ["bash", "launch/nn.sh", *arguments]
        return subprocess.run(command, cwd=workdir, env=environment, capture_output=True, text=True, check=False)

    missing = ran()
    assert missing.returncode == 2 and "limba is not installed here; copy tasks/, gin/ and launch/" in missing.stderr
    assert len(missing.stderr.splitlines()) == 1
    (workdir / "bin" / "sleep").write_text("#!/bin/sh\n")
    (workdir / "bin" / "limba").write_text(
        f'#!/bin/sh\necho "$@" >>{workdir}/calls\n[ $(wc -l <{workdir}/calls) -ge 3 ] || exit 75\n'
    )
    (workdir / "bin" / "limba").chmod(0o755)
    ended = ran("TRAIN_STEPS=3")
    assert ended.returncode == 0 and ended.stderr.count("it starts again") == 2
    calls = (workdir / "calls").read_text().splitlines()
    assert calls == ["train gin/nn_tiny.gin --gin.MODEL_DIR=runs/nn_tiny --gin.TRAIN_STEPS=3"] * 3
    (workdir / "calls").unlink()
    assert ran("RETRIES=0").returncode == 75 and ran("RETRIES=x").returncode == 2
    help_text = ran("--help").stdout
    assert help_text.startswith("Trains gin/nn_tiny.gin on cpu") and "RETRIES=10" in help_text


@pytest.mark.slow
def test_an_encoder_has_masks_in_its_prompts(workdir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--corpus=data/a.jsonl", "--hardware=cpu", "--days=0.01", "--kind=encoder", "--language=en"]
    assert main(["new", "bert_1", *flags]) == 0
    told = capsys.readouterr().out
    assert "safe: encoder tiny" in told and "umt5" not in told
    config = read_run(["gin/bert_1_tiny.gin"], ["MODEL_DIR=runs/x"]).config
    assert config.model.is_encoder and config.data.is_masked and config.data.extra_ids == 1
    assert config.data.mixture_or_task_name == "bert_1_masked_lm" and config.data.new_vocabulary_size is not None
    assert config.optimizer.name == "adamw" and config.optimizer.schedule.base_learning_rate == 0.0005
    assert config.optimizer.schedule.warmup_steps == 0.02 and config.optimizer.schedule.name == "warmup_stable_decay"
    assert config.evaluation.prompts and all(prompt.count("<mask>") == 2 for prompt in config.evaluation.prompts)


def test_a_published_model_goes_on_with_its_own_sizes_and_vocabulary(
    workdir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = ModelConfig(512, 48, 2, 24, 96, 1, 2, relative_bias_per_layer=True)
    (workdir / "published").mkdir()
    (workdir / "published" / "config.json").write_text(json.dumps(config_json(model)))
    (workdir / "published" / "flax_model.msgpack").write_bytes(b"")  # not read
    (workdir / "published" / "tokenizer_config.json").write_text(
        '{"tokenizer_class": "ByT5Tokenizer", "extra_ids": 125}'
    )
    assert main(["new", "on", "--corpus=data/a.jsonl", "--from=published", "--hardware=h100", "--days=0.5"]) == 0
    told = capsys.readouterr().out
    assert "Proposed for h100-1:\n  safe: published" in told and "\n  more: published" in told and "umt5" not in told
    config = read_run(["gin/on_from.gin"], ["MODEL_DIR=runs/x"]).config
    assert dataclasses.replace(config.model, dtype="float32", dropout_rate=0.0, remat="none") == dataclasses.replace(
        model, dtype="float32"
    )
    assert config.initial_checkpoint_path == "published" and config.reset_step
    assert config.data.vocabulary == "byte" and config.data.new_vocabulary_size is None
    assert config.optimizer.name == "adafactor" and config.optimizer.schedule.base_learning_rate == 0.001
    assert len(config.evaluation.prompts) == 3 and all("<extra_id_1>" in prompt for prompt in config.evaluation.prompts)


def test_in_the_repository_the_script_sets_up_too(workdir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(ROOT / "launch", workdir / "launch")
    assert main(["new", "nn", "--corpus=data/a.jsonl"]) == 0
    text = (workdir / "launch" / "nn.sh").read_text()
    assert 'LIMBA_SCRIPT="launch/nn.sh" exec bash launch/pretrain.sh gin/nn_tiny.gin "$@"' in text
    help_text = subprocess.run(
        ["bash", "launch/nn.sh", "--help"], cwd=workdir, capture_output=True, text=True, check=True
    )
    assert (
        help_text.stdout.startswith("Trains gin/nn_tiny.gin on cpu") and "MODEL_DIR is runs/nn_tiny" in help_text.stdout
    )
    refused = subprocess.run(["bash", "launch/nn.sh", "ACCELERATOR=x"], cwd=workdir, capture_output=True, text=True)
    assert refused.returncode == 2 and "ACCELERATOR is x" in refused.stderr


def test_nothing_is_left_of_files_that_cannot_be_written(workdir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (workdir / "gin").mkdir()
    (workdir / "gin" / "da_tiny.gin").write_text("# mine\n")
    assert main(["new", "da", "--corpus=data/a.jsonl"]) == 2
    assert "gin/da_tiny.gin exists already" in capsys.readouterr().err
    assert not (workdir / "tasks" / "da.py").exists() and (workdir / "gin" / "da_tiny.gin").read_text() == "# mine\n"


def test_an_accelerator_must_be_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    assert main(["new", "nb", "--corpus=none.jsonl"]) == 2
    assert "This machine has an accelerator; give --hardware=this" in capsys.readouterr().err
    assert main(["new", "nb", "--corpus=none.jsonl", "--hardware=cpu"]) == 2
    assert "none.jsonl matches no file" in capsys.readouterr().err


@pytest.mark.night
def test_this_machine_is_looked_at_and_its_step_is_timed(
    workdir: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(new, "TIMED_SECONDS", 0.1)
    assert main(["new", "th", "--corpus=data/a.jsonl", "--hardware=this", "--days=0.1", "--language=en"]) == 0
    told = capsys.readouterr()
    assert "Timing the step of T5 1.1 tiny here; it is compiled first." in told.err
    assert "\nThis machine: " in told.out and "no accelerator." in told.out and "tokens/s, timed here" in told.out
    assert "by a step that was timed there" in Path("gin/th_tiny.gin").read_text()


def test_an_accelerator_without_its_packages_is_not_timed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(environment, "accelerator_without_packages", lambda: ("an NVIDIA GPU", "cuda"))
    assert main(["new", "nb", "--corpus=none.jsonl", "--hardware=this"]) == 2
    assert "run bash launch/setup.sh cuda." in capsys.readouterr().err


@pytest.mark.parametrize(
    ("argv", "told"),
    [
        ([], "No name is given; write limba new nb --corpus='data/*.jsonl'."),
        (["nb"], "No corpus is named; give --corpus='data/*.jsonl', or user/name of the hub."),
        (["New-one", "--corpus=a"], "New-one cannot be the name of a Python module"),
        (["../x", "--corpus=a"], "../x cannot be the name of a Python module"),
        (["class", "--corpus=a"], "class cannot be the name of a Python module"),
        (["ro", "--corpus=a"], "Limba has a task module tasks/ro.py of its own; choose another name."),
        (["nb", "--corpus=a", "--hardware=toaster"], "--hardware=toaster is not known"),
        (
            ["nb", "--corpus=a", "--days=0"],
            "--days=0 is not a time; give days above 0 and up to 3,650, such as",
        ),
        (["nb", "--corpus=a", "--days=a week"], "--days=a week is not a time; give days above 0"),
        (["nb", "--corpus=a", "--days=nan"], "--days=nan is not a time"),
        (["nb", "--corpus=a", "--days=1e9"], "--days=1e9 is not a time; give days above 0 and up to 3,650"),
        (["nb", "--corpus=a", "--size=huge"], "--size=huge is not known; give one of tiny"),
        (["nb", "--corpus=a", "--hardware=h10"], "--hardware=h10 is not known; did you mean h100"),
        (["nb", "--corpus=a", "--hardware=v4-7"], "--hardware=v4-7 does not exist: v4 comes as v4-8, v4-16"),
        (["nb", "--corpus=a", "--hardware=gpu"], "--hardware=gpu names no card; give one of v100"),
        (["nb", "--corpus=a", "--hardware=tpu"], "--hardware=tpu names no TPU; give one of v2, v3, v4"),
        (["nb", "--corpus=a", "--language=norwegian"], "not a code of ISO 639; Norwegian is nb, nn or no."),
        (["nb", "--corpus=a", "--language=xx"], "--language=xx is not a code of ISO 639"),
        (["nb", "--corpus=latin.txt", "--days=1", "--hardware=cpu", "--choice=more"], "Leave --choice=more out."),
        (["nb", "--corpus=latin.txt", "--size=xxl", "--hardware=rtx4060"], "does not fit into the memory of rtx4060-1"),
        (
            ["nb", "--corpus=a", "--price=cheap"],
            "--price=cheap is not a price; give dollars a chip-hour, such as --price=3.22.",
        ),
        (["nb", "--corpus=a", "--price=-1"], "--price=-1 is not a price; give dollars a chip-hour"),
        (["nb", "--corpus=a", "--price=nan"], "--price=nan is not a price"),
        (["nb", "--corpus=a", "--kind=bert"], "Argument --kind: invalid choice: 'bert'"),
        (["nb", "--corpus=a", "--kind=lm", "--size=base"], "--size=base is not known; give one of tiny, 0.05b"),
        (["nb", "--corpus=a", "--from=x/y", "--size=base"], "give it without --size and --kind."),
        (["nb", "--corpus=a", "--from=nowhere"], "nowhere does not exist"),
        (
            ["nb", "--corpus=latin.txt", "--language=ru"],
            "--language=ru is not the text's: most of its letters are",
        ),
        (["nb", "--corpus=one.txt"], "holds no document in split 'validation'"),
        (["nb", "--corpus=none/*.jsonl"], "The corpus path none/*.jsonl matches no file"),
        (["nb", "--corpus=two.jsonl"], "set --column to one of 'en', 'nb'"),
        (["nb", "--corpus=empty.jsonl"], "holds no document with text"),
        (["nb", "--corpus=two.jsonl", "--column=en"], "two.jsonl holds 1 letters, too few to train on"),
    ],
)
def test_bad_input_is_one_sentence_and_writes_nothing(
    argv: list[str], told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "two.jsonl").write_text('{"en": "a", "nb": "b"}\n')
    (tmp_path / "empty.jsonl").write_text('{"text": ""}\n')
    (tmp_path / "latin.txt").write_text(
        "".join(f"Line {number} of a text in Latin letters.\n" for number in range(500))
    )
    (tmp_path / "one.txt").write_text("All of the text is in one line. " * 500 + "\n")
    assert main(["new", *argv]) == 2
    said = capsys.readouterr().err.strip()
    assert told in said and "\n" not in said
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "empty.jsonl", "latin.txt", "one.txt", "two.jsonl",
    ]  # fmt: skip


@pytest.mark.parametrize("error", [InputError("no text"), KeyError("loss"), OSError("gone")])
def test_a_run_that_has_ended_well_ends_so_where_nothing_can_be_shown(
    error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(config: object) -> None:
        raise error

    monkeypatch.setattr(summary, "outcome", fails)
    config = RunConfig(
        ModelConfig(384, 16, 2, 8, 32, 1, 1), DataConfig("demo_span_corruption", {"inputs": 48}, 4), str(tmp_path), 3
    )
    train._say_outcome(config)
    shown = capsys.readouterr()
    assert f"cannot be read: {error}" in shown.err and f"limba evaluate {tmp_path}" in shown.out
