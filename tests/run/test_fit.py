"""Python that trains: texts in memory give the run that files give, callbacks stop it, and mistakes are told."""

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pandas
import pytest

import limba
from limba import fit
from limba.config import CheckpointConfig, DataConfig, EvaluationConfig, ModelConfig, saved_config
from limba.data.vocabulary import ByteVocabulary
from limba.data.vocabulary.special_ids import SpecialIds
from limba.fit import Rows
from tests import tiny
from tests.export.runs import write_run

SMALL: dict[str, Any] = {
    f"config.ModelConfig.{name}": value
    for name, value in {
        "emb_dim": 32, "num_heads": 2, "head_dim": 8, "mlp_dim": 32, "num_encoder_layers": 1, "num_decoder_layers": 1,
    }.items()
}  # fmt: skip
COLUMNS = {"inputs": "inputs", "targets": "targets"}
TIMES = ("time", "seconds", "tokens_per_second", "per_device", "data_wait", "per_step", "checkpoint", "mfu", "memory")


@pytest.fixture(scope="module")
def texts(corpus: Path) -> list[str]:
    lines = [line for text in map(json.loads, corpus.read_text().splitlines()) for line in text["text"].splitlines()]
    return [line.strip() for line in lines if 20 < len(line.strip()) < 60][:200]


@pytest.fixture(scope="module")
def pairs(texts: list[str]) -> list[tuple[str, str]]:
    return [(text.lower(), text) for text in texts]


@pytest.fixture(scope="module")
def model(texts: list[str], tmp_path_factory: pytest.TempPathFactory) -> limba.TrainedModel:
    directory = tmp_path_factory.mktemp("fit") / "pretrained"
    return limba.pretrain(texts, vocabulary="byte", steps=2, model_dir=directory, BATCH_SIZE=8, **SMALL)


def figures_of(directory: str | Path) -> list[dict[str, Any]]:
    """Returns what a run has logged, without times."""
    lines = [json.loads(line) for line in (Path(directory) / "metrics.jsonl").read_text().splitlines()]
    return [
        {name: value for name, value in line.items() if not any(part in name for part in TIMES)}
        for line in lines
        if line["kind"] in ("train", "validation", "text")
    ]


@pytest.mark.slow
def test_pairs_in_memory_give_the_figures_of_the_same_run_from_files(
    model: limba.TrainedModel, pairs: list[tuple[str, str]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    seen: list[tuple[str, int, dict[str, float]]] = []
    tuned = limba.finetune(
        model, pairs, model_dir=tmp_path / "memory", steps=12, LOG_PERIOD=2,
        on_log=lambda step, figures: seen.append(("log", step, figures)),
        on_evaluation=lambda step, figures: seen.append(("evaluation", step, figures)),
    )  # fmt: skip
    said = capsys.readouterr().out
    rows = [json.loads(line) for line in next((tmp_path / "memory").glob("pairs-*.jsonl")).read_text().splitlines()]
    assert [tuple(row.values()) for row in rows] == pairs
    assert f"200 pairs, of which {tuned_share(tmp_path)} are held out for validation" in said

    file = tmp_path / "mine.jsonl"
    file.write_text("".join(json.dumps({"inputs": a, "targets": b}) + "\n" for a, b in pairs))
    text = (tmp_path / "memory" / "config.json").read_text()
    config = saved_config.from_text(text, "config.json")
    assert isinstance(config, limba.RunConfig) and config.initial_checkpoint_path is not None
    assert config.optimizer.schedule.base_learning_rate == 0.02, "the model has been trained for minutes"
    data = dataclasses.replace(config.data, data_files=str(file))
    limba.train(dataclasses.replace(config, data=data, model_dir=str(tmp_path / "files")))
    figures = figures_of(tmp_path / "memory")
    assert figures == figures_of(tmp_path / "files") and len(figures) > 8
    of_files = limba.load(tmp_path / "files").arrays()
    assert all(np.array_equal(array, of_files[name]) for name, array in tuned.arrays().items())

    kinds = [kind for kind, *_ in seen]
    assert kinds.count("log") == sum(line["kind"] == "train" for line in figures)
    (*_, last) = [values for kind, _, values in seen if kind == "evaluation"]
    assert {"loss", "bits_per_byte", "chrf"} <= last.keys()
    again = limba.finetune(model, pairs, model_dir=tmp_path / "memory", steps=12)
    assert figures_of(tmp_path / "memory") == figures and again.step == tuned.step


def tuned_share(folder: Path) -> int:
    from limba.data.tasks import source_of_files

    (file,) = (folder / "memory").glob("pairs-*.jsonl")
    held_out = source_of_files(str(file), COLUMNS, 5.0).count("validation")
    assert held_out is not None and 0 < held_out.total < 30
    return held_out.total


@pytest.mark.slow
def test_a_callback_stops_the_run_and_the_same_call_resumes_it(
    model: limba.TrainedModel, texts: list[str], tmp_path: Path
) -> None:
    seen: list[int] = []

    def call(answer: Any) -> limba.TrainedModel:
        def on_log(step: int, _: dict[str, float]) -> object:
            seen.append(step)
            return answer(step)

        return limba.pretrain(
            texts, vocabulary="byte", steps=9, model_dir=tmp_path / "run", BATCH_SIZE=8, LOG_PERIOD=2, on_log=on_log,
            **SMALL,
        )  # fmt: skip

    assert call(lambda step: np.bool(step < 4)).step == 5  # the step that had begun is saved
    with pytest.raises(ZeroDivisionError):
        call(lambda step: step // (step - 8))  # a mistake of the user's: what was trained is saved before
    assert limba.load(tmp_path / "run").step == 9
    assert seen[0] == 1 and 6 in seen and 8 in seen
    limba.pretrain(texts, vocabulary="byte", steps=9, model_dir=tmp_path / "whole", BATCH_SIZE=8, LOG_PERIOD=2, **SMALL)
    whole = limba.load(tmp_path / "whole").arrays()
    parts = limba.load(tmp_path / "run").arrays()
    assert all(np.array_equal(array, parts[name]) for name, array in whole.items())
    with pytest.raises(limba.InputError, match=r"run holds a run on other texts, texts-\w+\.jsonl; give another model"):
        limba.pretrain(texts[1:], model_dir=tmp_path / "run", steps=9)


@pytest.mark.night
def test_minutes_are_turned_into_steps_once(
    texts: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(fit, "PROBE_SECONDS", 0.0)
    for _ in range(2):
        fitted = limba.pretrain(texts, minutes=0.01, model_dir=tmp_path / "run", BATCH_SIZE=8, VOCAB_SIZE=800, **SMALL)
    assert isinstance(fitted.config, limba.RunConfig) and fitted.config.train_steps == fitted.step
    assert f"{fitted.step:,} steps fit in 0.01 minutes." in capsys.readouterr().out
    assert not (tmp_path / "run" / "probe").exists() and (tmp_path / "run" / "vocabulary.model").exists()


@pytest.mark.night
def test_a_language_model_and_a_few_pairs(pairs: list[tuple[str, str]], tmp_path: Path) -> None:
    """So few that none of them is held out."""
    write_run(tmp_path / "lm", tiny.language_model(vocab_size=384))
    tuned = limba.finetune(
        limba.load(tmp_path / "lm", vocabulary="byte"), pairs[:4], steps=2, model_dir=tmp_path / "run"
    )
    assert tuned.step == 2 and tuned.network.config.is_decoder_only
    assert tuned.score([pairs[0]])[0].tokens == len(pairs[0][1].encode()) + 1


@pytest.mark.parametrize(
    ("steps", "start", "is_young"), [(1_200, None, True), (5_000, None, False), (1_200, "google/t5-v1_1-base", False)]
)
def test_only_a_short_run_from_scratch_is_fine_tuned_at_the_high_rate(
    steps: int, start: str | None, is_young: bool, tmp_path: Path, corpus: Path, vocabulary: Path
) -> None:
    run = limba.RunConfig(tiny.model(), tiny.demo_data(corpus, vocabulary), str(tmp_path), train_steps=steps)
    assert fit._is_young(dataclasses.replace(run, initial_checkpoint_path=start)) is is_young


@pytest.mark.parametrize(("is_decoder_only", "inputs"), [(False, 16), (True, 8)])
def test_lengths_have_room_for_the_whole_template(is_decoder_only: bool, inputs: int) -> None:
    """Six letters, an end, and two ids before a text, of which the first is the start of a language model's row."""
    special = SpecialIds(before=(5, 6))
    lengths = fit._lengths(Rows([("abcdef", "a")], COLUMNS), ByteVocabulary(), is_decoder_only, special)
    assert lengths == ({"targets": 16, "prefix": inputs} if is_decoder_only else {"inputs": inputs, "targets": 8})
    longer = fit._lengths(Rows([("abcdefg", "a")], COLUMNS), ByteVocabulary(), True, special)
    assert longer["prefix"] == 16


def test_lists_frames_and_data_sets_give_the_same_file(pairs: list[tuple[str, str]], tmp_path: Path) -> None:
    dictionaries = [{"inputs": a, "targets": b, "more": 1} for a, b in pairs]
    frame = pandas.DataFrame(dictionaries).rename(columns={"inputs": "question", "targets": "answer"})
    named = {"inputs": "question", "targets": "answer"}
    expected = Rows(pairs, COLUMNS).write(str(tmp_path / "a"))
    for texts_given, columns in (
        (dictionaries, COLUMNS),
        (frame, named),
        (frame[::-1][::-1], named),
        (datasets.Dataset.from_pandas(frame), named),
        ([list(pair) for pair in pairs], COLUMNS),
        ((pair for pair in pairs), COLUMNS),
    ):
        assert Rows(texts_given, columns).write(str(tmp_path / "a")) == expected
    one = Rows(frame["answer"].tolist(), {"text": "text"})
    assert one.content == Rows(frame, {"text": "answer"}).content == Rows(frame["answer"], {"text": "text"}).content


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ([], r"There are no texts; give some thousands\."),
        ("data.txt", r"The texts are a str; give a list of texts, or a DataFrame; limba\.train reads files\."),
        ({"train": ["A text."]}, r"The texts are a dict; give a list of texts, or a DataFrame or a split of"),
        (3, r"The texts are a int; give a list of texts"),
        (["one", "two"], r"The texts are single words, such as 'one', and .*; give whole sentences or documents"),
        (["A text.", None], r"Row 1 of the texts is None; give a text\."),
        (["  "], r"All 1 texts are empty; give some with letters\."),
        (pandas.DataFrame({"txt": ["A text."]}), r"The DataFrame has no column 'text'; it has txt: name one as text"),
        (pandas.DataFrame({"text": ["A text.", float("nan")]}), r"Row 1 of the texts is nan; give a text\."),
        (datasets.Dataset.from_dict({"body": ["A text."]}), r"The Dataset has no column 'text'; it has body"),
    ],
)  # fmt: skip
def test_wrong_texts_are_told(wrong: Any, sentence: str) -> None:
    with pytest.raises(limba.InputError, match=sentence):
        limba.pretrain(wrong)


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        (["A text."], r"Row 0 of the pairs is 'A text\.'; give two texts, \(input, target\)"),
        ([("a", "b", "c")], r"Row 0 of the pairs is \('a', 'b', 'c'\); give two texts"),
        ([("a", "b"), ("a", 3)], r"Row 1 of the pairs is \('a', 3\); give two texts"),
        ([{"input": "a", "targets": "b"}], r"Row 0 of the pairs has no column 'inputs'; it has input, targets"),
        (pandas.DataFrame({"inputs": ["a"]}), r"The DataFrame has no column 'targets'; it has inputs"),
        (datasets.DatasetDict({"train": datasets.Dataset.from_dict({"a": ["b"]})}), r"or a split of a datasets"),
    ],
)  # fmt: skip
def test_wrong_pairs_are_told(wrong: Any, sentence: str) -> None:
    with pytest.raises(limba.InputError, match=sentence):
        limba.finetune("nowhere", wrong)


@pytest.mark.parametrize("wrong", [None, ["a model"], Path("nowhere")])
def test_what_is_no_model_is_told(wrong: Any) -> None:
    with pytest.raises(limba.InputError, match="does not exist: looked there for a Limba run"):
        limba.finetune(wrong, [("a", "b")])


@pytest.mark.parametrize("network", [tiny.ENCODER, tiny.model(num_decoder_layers=0)], ids=["encoder", "T5's encoder"])
def test_an_encoder_is_fine_tuned_elsewhere(network: ModelConfig, tmp_path: Path) -> None:
    write_run(tmp_path / "run", network)
    with pytest.raises(limba.InputError, match="is an encoder, which writes no targets; export it, and fine-tune that"):
        limba.finetune(tmp_path / "run", [("a", "b")])


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"step": 3}, r"There is no option 'step'; did you mean steps\?"),
        ({"wait": 3}, r"There is no option 'wait'; choose from steps, minutes, model_dir, on_log, on_evaluation\."),
        ({"steps": 3, "minutes": 1}, r"Both steps and minutes are given; leave out one of them\."),
        ({"steps": 4, "TRAIN_STEPS": 3}, r"Both steps and TRAIN_STEPS are given; leave out TRAIN_STEPS\."),
        ({"minutes": 4, "config.RunConfig.train_steps": 3}, r"Both minutes and config\.RunConfig\.train_steps are"),
        ({"MODEL_DIR": "z"}, r"Both model_dir and MODEL_DIR are given; leave out MODEL_DIR\."),
        ({"CORPUS": "a.jsonl"}, r"Both texts and CORPUS are given; leave out CORPUS\."),
        ({"COLUMN": "body"}, r"Both texts and COLUMN are given"),
        ({"vocabulary": "byte", "VOCABULARY": "a.model"}, r"Both vocabulary and VOCABULARY are given"),
        ({"start": "a", "INITIAL_CHECKPOINT_PATH": "b"}, r"Both start and INITIAL_CHECKPOINT_PATH are given"),
        ({"minutes": 0}, r"minutes is 0; give a number above 0\."),
        ({"on_log": "yes"}, r"on_log is 'yes'; give a function of \(step, figures\)\."),
        ({"BATCH": 3}, r"BATCH"),
    ],
)
def test_wrong_options_are_told(options: dict[str, Any], sentence: str, tmp_path: Path) -> None:
    with pytest.raises(limba.InputError, match=sentence):
        limba.pretrain(["A text of words."], **({"model_dir": str(tmp_path)} | options))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("name", "argument"),
    [("CORPUS", "pairs"), ("config.DataConfig.data_files", "pairs"), ("INITIAL_CHECKPOINT_PATH", "model")],
)
def test_what_a_fine_tuning_is_given_is_given_once(name: str, argument: str) -> None:
    with pytest.raises(limba.InputError, match=f"Both {argument} and {name} are given; leave out {name}"):
        limba.finetune("nowhere", [("a", "b")], **{name: "a.jsonl"})


def test_a_gin_file_is_no_configuration() -> None:
    with pytest.raises(
        limba.InputError, match=r"needs a RunConfig, got 'gin/demo\.gin'; read one with limba\.read_gin"
    ):
        limba.train("gin/demo.gin")  # pyright: ignore[reportArgumentType]


@pytest.mark.slow
def test_texts_may_come_one_by_one(model: limba.TrainedModel) -> None:
    texts = ["A <extra_id_0> text.", "One <extra_id_0>."]
    assert model.fill(iter(texts), top=1) == model.fill(texts, top=1)  # pyright: ignore[reportArgumentType]
    assert np.array_equal(model.encode(iter(texts)), model.encode(texts))  # pyright: ignore[reportArgumentType]


@pytest.mark.slow
def test_wrong_calls_of_a_model_are_told(model: limba.TrainedModel) -> None:
    wrong: Any = model
    for call, sentence in (
        (lambda: wrong.generate(["A"], num_bems=2), r"GenerationConfig has no field 'num_bems'; did you mean"),
        (lambda: wrong.generate([3]), r"texts\[0\] is 3, expected a str"),
        (lambda: wrong.encode("A text"), r"A single text is given instead of a list"),
        (lambda: wrong.score(["ab"]), r"pairs\[0\] is 'ab'; give pairs of two texts, \(input, target\)"),
        (lambda: wrong.fill(None), r"texts\[0\] is None, expected a str; give a list of texts"),
        (lambda: wrong.fill(["A ___", 3]), r"texts\[1\] is 3, expected a str"),
        (lambda: wrong.fill("A ___", top="5"), r"`top` is '5'; give a whole number above 0"),
        (lambda: wrong.logits([("a", None)]), r"pairs\[0\] is \('a', None\)"),
    ):  # fmt: skip
        with pytest.raises(limba.InputError, match=sentence):
            call()


@pytest.mark.slow
def test_a_model_says_what_it_is(model: limba.TrainedModel) -> None:
    size = sum(array.size for array in model.arrays().values())
    assert repr(model) == (
        f"<TrainedModel {model.path}, step 2: {size:,} parameters, encoder-decoder, 1 + 1 layers of width 32, 384 ids,"
        " vocabulary byte, task demo_span_corruption>"
    )
    shown = {name for name in dir(model) if not name.startswith("_")}
    assert {"generate", "score", "encode", "save", "params", "step", "path", "config", "vocabulary"} <= shown
    assert not shown & {"pair_ids", "rows", "written", "segment_writer", "num_cut", "logits_of_ids", "source"}


def test_the_probe_of_minutes_keeps_and_publishes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It ended by its epochs or its patience, as if Ctrl-C had been pressed, and its model went to the hub."""
    probes: list[limba.RunConfig] = []

    def timed(config: limba.RunConfig, measure: Callable[[int, dict[str, float]], bool]) -> None:
        probes.append(config)
        Path(config.model_dir).mkdir(parents=True)
        while measure(5, {"seconds_per_step": 0.01}):
            pass

    monkeypatch.setattr(fit, "_train", timed)
    monkeypatch.setattr(fit, "PROBE_SECONDS", 0.0)
    data = DataConfig("t", {"inputs": 8, "targets": 8}, 4, num_epochs=3)
    config = limba.RunConfig(
        tiny.MODEL,
        data,
        str(tmp_path / "run"),
        None,
        evaluation=EvaluationConfig(every_steps="epoch", patience=2),
        checkpoint=CheckpointConfig(every_steps="epoch", best_metric="loss"),
        export_to=str(tmp_path / "out"),
        hub_model_id="me/model",
        hub_strategy="every_save",
    )
    assert fit._steps_in(config, 1.0) > 1
    (probe,) = probes
    assert (probe.data.num_epochs, probe.evaluation.patience, probe.checkpoint.best_metric) == (None, None, None)
    assert (probe.export_to, probe.hub_model_id, probe.report_to) == (None, None, "none")
    assert probe.checkpoint.every_steps == probe.evaluation.every_steps == probe.train_steps
