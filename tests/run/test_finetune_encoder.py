"""Encoders fine-tuned whole by the gin file: classes, tags, scores and pairs; resumed, exported, used, bad labels."""

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import transformers

from limba.cli import convert, evaluate, flags, main
from limba.config import ConfigError, InputError, RunConfig, plain
from limba.data.vocabulary.load import begin_id
from limba.export.huggingface import network_gin
from limba.inference.load import load
from limba.planned import PlannedRun
from limba.run import train
from limba.tools.pages import report
from limba.tools.preflight.checks.rows import wanted_tokens
from limba.tools.preflight.checks.vocabulary import unused_share
from limba.tools.preflight.compiled import instant
from limba.tools.preflight.compiled.topologies import topology
from limba.training.checkpoints.initial import check_length
from limba.training.metrics.logging import read_metrics
from tests import tiny
from tests.export.runs import write_run

GIN = """
from __gin__ import dynamic_registration
from limba import config
from tasks import text_to_text
include 'gin/models/encoder/tiny.gin'
include 'gin/runs/finetune_encoder.gin'
TASK_FEATURE_LENGTHS = {'targets': 24}
VOCAB_SIZE = 1024
BATCH_SIZE = 16
LEARNING_RATE = 0.003
NUM_EPOCHS = 3
LEARNING_RATE_FACTORS = 'constant'
LOG_PERIOD = 1
DROPOUT_RATE = 0.1
config.ModelConfig:
  emb_dim = 32
  num_heads = 2
  num_kv_heads = 2
  head_dim = 16
  mlp_dim = 64
  num_decoder_layers = 2
  dtype = 'float32'
"""
TAIL = """
config.DataConfig.num_data_shards = 4
config.CheckpointConfig.best_metric = None
config.ScheduleConfig.name = 'factors'
"""
GIN += TAIL
WORDS = {"small": ["value", "string", "number"], "large": ["module", "function", "object"]}
TAGS = {"the": "DET", **dict.fromkeys(WORDS["small"], "NOUN"), **dict.fromkeys(WORDS["large"], "THING"), "is": "AUX"}


def sentences(count: int, seed: int) -> list[tuple[list[str], str]]:
    random = np.random.default_rng(seed)
    found = []
    for _ in range(count):
        kind = str(random.choice(list(WORDS)))
        found.append((["the", str(random.choice(WORDS[kind])), "is", "the", str(random.choice(WORDS[kind]))], kind))
    return found


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An encoder before fine-tuning, with an output layer for the vocabulary."""
    config = tiny.language_model(
        attention_mask="bidirectional", vocab_size=1024, emb_dim=32, num_heads=2, num_kv_heads=2, head_dim=16,
        mlp_dim=64, num_decoder_layers=2, layer_norm_epsilon=1e-5, rotary_base=250_000.0,
    )  # fmt: skip
    write_run(tmp_path_factory.mktemp("pretrained") / "run", config)
    return next(tmp_path_factory.getbasetemp().glob("pretrained*/run"))


def written(folder: Path, kind: str) -> str:
    """Files of labeled texts, whose CORPUS is returned."""
    folder.mkdir(exist_ok=True)
    for split, count in (("train", 96), ("validation", 16)):
        rows = sentences(count, count)
        if kind == "tags":
            lines = ["\n".join(f"{n}\t{w}\t_\t{TAGS[w]}" + "\t_" * 6 for n, w in enumerate(s, 1)) for s, _ in rows]
            (folder / f"{split}.conllu").write_text("# a comment\n" + "\n\n".join(lines) + "\n\n")
            continue
        if kind == "classes":  # also from a table
            table = ["text,label", *(f"{' '.join(words)},{size}" for words, size in rows)]
            (folder / f"{split}.csv").write_text("\n".join(table) + "\n")
            continue
        second = [float(size == "large") - 0.5 if kind == "score" else " ".join(words[:2]) for words, size in rows]
        objects = (
            {"text": " ".join(words), "label": str(label)} for (words, _), label in zip(rows, second, strict=True)
        )
        (folder / f"{split}.jsonl").write_text("".join(json.dumps(each) + "\n" for each in objects))
    suffix = {"tags": "conllu", "classes": "csv"}.get(kind, "jsonl")
    return repr({split: f"{folder}/{split}.{suffix}" for split in ("train", "validation")})


def arguments(tmp_path: Path, encoder: Path, vocabulary: Path, kind: str, *more: str, gin: str = GIN) -> list[str]:
    (tmp_path / "finetune.gin").write_text(gin)
    column = ["--gin.COLUMN={'inputs': 'form', 'targets': 'upos'}"] if kind == "tags" else []
    return [
        str(tmp_path / "finetune.gin"), f"--gin.HEAD={kind}", f"--gin.CORPUS={written(tmp_path / kind, kind)}",
        f"--gin.INITIAL_CHECKPOINT_PATH={encoder}", f"--gin.VOCABULARY={vocabulary}",
        f"--gin.MODEL_DIR={tmp_path}/run-{kind}", *column, *more,
    ]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["classes", "tags"])
def test_labels_are_learned_resumed_exported_and_given(
    kind: str, tmp_path: Path, encoder: Path, vocabulary: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = arguments(tmp_path, encoder, vocabulary, kind)
    config = flags.parse_args(run).config
    result = train(config)
    assert result["validation"]["accuracy"] > 0.95 and result["validation"]["f1"] > 0.95
    losses = [each["loss"] for each in read_metrics(config.model_dir) if each["kind"] == "train"]
    if kind == "tags":
        again = [*run, f"--gin.MODEL_DIR={tmp_path}/again"]
        train(flags.parse_args([*again, "--gin.TRAIN_STEPS=6"]).config)
        train(flags.parse_args(again).config)
        resumed = [each["loss"] for each in read_metrics(f"{tmp_path}/again") if each["kind"] == "train"]
        assert resumed == pytest.approx(losses, rel=1e-6)
    capsys.readouterr()
    evaluate.run([config.model_dir])
    assert " | f1 " in capsys.readouterr().out
    report.run([config.model_dir])
    assert "tokens predicted" not in (Path(config.model_dir) / "report.html").read_text()
    convert.run([config.model_dir])
    (folder,) = Path(config.model_dir, "huggingface").glob("step_*")
    record = json.loads((folder / "conversion.json").read_text())["findings"]
    assert sum("passed" in line for line in record) == 2 and "likeliest labels equal in 4 of 4" in record[1]
    about = json.loads((folder / "config.json").read_text())
    labels = sorted(WORDS) if kind == "classes" else sorted(set(TAGS.values()))
    assert list(about["id2label"].values()) == labels and about["label2id"][labels[1]] == 1
    texts = [" ".join(words) for words, _ in sentences(8, 3)]
    task = "text-classification" if kind == "classes" else "token-classification"
    pipeline: Any = transformers.pipeline(task, str(folder))
    for place in (config.model_dir, folder):
        ours = load(place)
        if kind == "classes":
            for given, expected in zip(ours.classify(texts), pipeline(texts), strict=True):
                assert next(iter(given)) == expected["label"] and set(given) == set(labels)
                assert given[expected["label"]] == pytest.approx(expected["score"], abs=1e-5)
            with pytest.raises(InputError, match="is 'classes', and this is for tags"):
                ours.tag([["the"]])
        else:
            given = ours.tag([words for words, _ in sentences(8, 3)])
            assert given == [[TAGS[word] for word in words] for words, _ in sentences(8, 3)]
            words = [[each["entity"] for each in row if each["word"][:1] == "▁"] for row in pipeline(texts)]
            assert [row[:5] for row in words] == given
            with pytest.raises(InputError, match="The sentence 1 has 0 words and 0 tokens; give a word or more"):
                ours.tag([["the"], []])
        assert ours.encode(texts).shape == (8, 32)


def test_preflight_finds_the_labels_and_counts_no_logits_of_the_vocabulary(
    tmp_path: Path, encoder: Path, vocabulary: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def looked_at(run: list[str]) -> tuple[dict[str, Any], list[str]]:
        status = main.main(["preflight", *run, "--topology=v4-8", "--no_compile", "--json"])
        sections = {each["title"]: each for each in json.loads(capsys.readouterr().out)["sections"]}
        lines = [line for each in sections.values() for line in each["lines"]]
        wrong = [line["text"] for line in lines if line["level"] == "error"]
        assert (status == 1) == bool(wrong) and not any("predicted" in line["text"] for line in lines)
        return sections["Data"]["data"], wrong

    for kind in ("tags", "classes"):
        run = arguments(tmp_path, encoder, vocabulary, kind)
        figures, wrong = looked_at(run)
        assert not wrong and 16 * 6 <= figures["tokens_per_step"] < 16 * 8, "five words and the end"

    config = flags.parse_args(run).config
    config = dataclasses.replace(config, data=dataclasses.replace(config.data, batch_size=1 << 20))
    wider = dataclasses.replace(config, model=dataclasses.replace(config.model, vocab_size=1 << 20))
    chips, real = topology("v4-8"), {"targets": 20.0}
    transient, of_wider = (instant.memory(PlannedRun(each), chips).transient for each in (config, wider))
    assert transient == of_wider and unused_share(wider, 1024, None) == 0
    assert 0 < wanted_tokens(config, chips, real) == wanted_tokens(wider, chips, real)

    (tmp_path / "classes" / "train.csv").write_text("text,label\n" + "the value,small\n" * 20)
    _, wrong = looked_at(run)
    assert len(wrong) == 1 and wrong[0].endswith("give texts with two labels or more."), wrong


NETWORKS = {
    "eurobert": tiny.language_model(attention_mask="bidirectional", num_kv_heads=2, layer_norm_epsilon=1e-5),
    "modernbert": tiny.MODERN,
    "t5": tiny.model(),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind", ["t5", *(pytest.param(each, marks=pytest.mark.night) for each in ("modernbert", "eurobert"))]
)
def test_a_head_begins_from_a_run_and_goes_on_from_a_folder(kind: str, tmp_path: Path, vocabulary: Path) -> None:
    """Of a ModernBERT, and of a T5's encoder alone: pretrained, then classes, then these again and tags."""
    sizes = {"vocab_size": 1024, "emb_dim": 32, "num_heads": 2, "head_dim": 16, "mlp_dim": 64, "dtype": "float32"}
    whole = dataclasses.replace(NETWORKS[kind], **sizes)
    pretrained = write_run(tmp_path / "whole", whole)[5]
    alone = {"num_decoder_layers": 0} if kind == "t5" else {}
    network = dataclasses.replace(whole, **alone, dropout_rate=0.1, head="vectors")
    text = network_gin(network).partition("import config\n")[2].replace("head = 'vectors'", "head = %HEAD")
    text = text.replace("labels = ()", "labels = %LABELS")
    gin = f"{GIN.partition('config.ModelConfig')[0]}{text}{TAIL}"

    def trained(name: str, start: Path, head: str, *more: str) -> tuple[dict[str, np.ndarray], Path, dict[str, float]]:
        run = arguments(tmp_path, start, vocabulary, head, f"--gin.MODEL_DIR={tmp_path}/{name}", *more, gin=gin)
        figures = train(flags.parse_args(run).config)["validation"]
        convert.run([f"{tmp_path}/{name}"])
        (folder,) = Path(tmp_path, name, "huggingface").glob("step_*")
        assert "passed" in (folder / "conversion.json").read_text()
        return load(f"{tmp_path}/{name}").arrays(), folder, figures

    frozen = f"--gin.FROZEN=('{'encoder' if kind == 't5' else 'decoder'}', 'token_embedder')"
    learned, folder, figures = trained("learned", tmp_path / "whole", "classes", frozen, "--gin.LEARNING_RATE=0.02")
    assert figures["accuracy"] > 0.9
    of_body = {name for name in learned if not name.startswith("head/")}
    assert of_body == {name for name in pretrained if name in learned} != set()
    assert all(np.array_equal(learned[name], pretrained[name]) for name in of_body)
    assert ("decoder/head_dense/kernel" in learned) == (kind == "modernbert")
    still = ("--gin.TRAIN_STEPS=1", "--gin.LEARNING_RATE=1e-12")
    again, _, _ = trained("again", folder, "classes", *still)
    assert set(again) == set(learned)
    assert all(np.allclose(again[name], learned[name], atol=1e-6) for name in learned)
    tags, _, _ = trained("tagging", folder, "tags", *still)
    assert all(np.allclose(tags[name], learned[name], atol=1e-6) for name in tags if not name.startswith("head/"))
    assert tags["head/classifier/kernel"].shape == (32, 4) != learned["head/classifier/kernel"].shape


@pytest.mark.slow
def test_a_head_learns_on_a_vocabulary_that_its_run_trains(tmp_path: Path, encoder: Path) -> None:
    new = tmp_path / "run-classes/vocabulary.model"
    run = arguments(tmp_path, encoder, new, "classes", "--gin.INITIAL_CHECKPOINT_PATH=None")
    run += ["--gin.config.DataConfig.new_vocabulary_size=300", "--gin.NUM_EPOCHS=5"]
    config = flags.parse_args(run).config
    assert train(config)["validation"]["accuracy"] > 0.95
    model = load(config.model_dir)
    first = int(model.tokenize("the value")[0])
    assert new.exists() and first == begin_id(model.vocabulary) is not None
    assert next(iter(model.classify(["the value is the string"])[0])) == "small"


@pytest.mark.slow
def test_scores_are_learned_and_exported(tmp_path: Path, encoder: Path, vocabulary: Path) -> None:
    config = flags.parse_args(arguments(tmp_path, encoder, vocabulary, "score")).config
    assert train(config)["validation"]["pearson"] > 0.95
    convert.run([config.model_dir])
    (folder,) = Path(config.model_dir, "huggingface").glob("step_*")
    about = json.loads((folder / "config.json").read_text())
    assert about["problem_type"] == "regression" and about["id2label"] == {"0": "score"}
    small, large = (each["score"] for each in load(folder).classify(["the value is", "the module is"]))
    assert small < -0.2 < 0.2 < large


def test_wrong_labels_are_one_sentence_before_the_start(tmp_path: Path, encoder: Path, vocabulary: Path) -> None:
    run = arguments(tmp_path, encoder, vocabulary, "classes")

    def refused(run: list[str], match: str) -> None:
        with pytest.raises(InputError, match=match):
            train(flags.parse_args(run).config)

    table = tmp_path / "classes/validation.csv"
    table.write_text(table.read_text() + "the value is,huge\n")
    refused(run, "split 'validation', has the label 'huge', which is not in ModelConfig.labels, 'large', 'small'")
    table.write_text("text,label\nthe value is,\n")
    refused(run, "split 'validation', has a row without text or without label, number 1; correct or remove it")
    table.write_text("text,label\nthe value is,small\n")
    (tmp_path / "classes/train.csv").write_text("text,label\nthe value is,small\n" * 1 + "the value,small\n" * 20)
    refused(run, "those of The corpus .*; give texts with two labels or more")
    refused([*run, "--gin.HEAD=score"], "has the score 'small' in its row number 1; give a number")
    refused([*run, "--gin.HEAD=tags"], "has 3 words and 1 tags in its row number 1")
    refused([*run, "--gin.PACK=True"], "PACK is set, and HEAD is 'classes', whose rows")
    refused([*run, "--gin.OBJECTIVE=masked_lm"], "OBJECTIVE is set, and HEAD is 'classes'")
    refused(
        [*run, "--gin.MIXTURE_OR_TASK_NAME=text_to_text", "--gin.COLUMN={'inputs': 'text', 'targets': 'label'}"],
        "is 'text_to_text', which gives no labels",
    )
    tags = arguments(tmp_path, encoder, vocabulary, "tags")
    refused([*tags, "--gin.COLUMN={'inputs': 'form', 'targets': 'pos'}"], "has no column 'pos'; CoNLL-U has id, form")
    (tmp_path / "tags/train.conllu").write_text("1\tthe\tDET\n")
    refused(tags, "train.conllu line 1 has 3 columns, and CoNLL-U 10")


def test_rows_longer_than_an_encoder_has_learned_are_refused(tmp_path: Path, encoder: Path, vocabulary: Path) -> None:
    def of(start: Path, length: int, *more: str) -> RunConfig:
        lengths = f"--gin.TASK_FEATURE_LENGTHS={{'targets': {length}}}"
        return flags.parse_args(arguments(tmp_path, start, vocabulary, "classes", lengths, *more)).config

    def written_by(run: RunConfig, name: str) -> Path:
        shutil.copytree(encoder, tmp_path / name)
        (tmp_path / name / plain.FILE).write_text(plain.to_text(run))
        return tmp_path / name

    first = written_by(dataclasses.replace(of(encoder, 24), initial_checkpoint_path=None), "first")
    sentence = "gives rows of 32 tokens, .* was trained with 24; .* at most 24, or .*rotary_base above its 250000"
    with pytest.raises(ConfigError, match=sentence):
        train(of(first, 32))
    base = "--gin.config.ModelConfig.rotary_base"
    with pytest.raises(ConfigError, match=sentence):
        check_length(of(first / "checkpoints/5", 32, f"{base}=250_000.0"))
    check_length(of(first, 24))
    check_length(of(first, 32, f"{base}=1_000_000.0"))
    second = written_by(of(first, 16), "second")  # 24 is still what it has learned, as far as that can be seen
    check_length(of(second, 24))
    with pytest.raises(ConfigError, match="second was trained with 24"):
        check_length(of(second, 25))
    check_length(of(written_by(of(tmp_path / "gone", 16), "third"), 2_000))

    convert.run([str(encoder), str(tmp_path / "out"), f"--vocabulary={vocabulary}", "--extra_ids=1", "--no_check"])
    folder = tmp_path / "out/step_5"
    about = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(about | {"max_position_embeddings": 16}))
    check_length(of(folder, 16))
    with pytest.raises(ConfigError, match="step_5 was trained with 16"):
        check_length(of(folder, 17))

    alone = tiny.model(num_decoder_layers=0, head="classes")  # whose relative positions have no end
    check_length(dataclasses.replace(of(first, 32), model=alone))
