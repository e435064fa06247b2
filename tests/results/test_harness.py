"""lm-evaluation-harness through `LimbaLM`: what its own model of transformers finds, and a T5's conditional scores."""

# pyright: reportMissingImports=false

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers

from limba.cli import convert
from limba.config import InputError, RunConfig, saved_config
from tests import tiny
from tests.export.runs import folder_of, write_run
from tests.results.test_pairs import ENCODERS, LANGUAGE_MODELS

pytest.importorskip("lm_eval", reason="lm-evaluation-harness is not installed: pip install -e '.[harness]'")
TASK = """task: {name}
dataset_path: json
dataset_kwargs: {{data_files: {{test: "{file}"}}}}
test_split: test
"""
TASKS = {
    "mine": """output_type: multiple_choice
doc_to_text: "{{context}}"
doc_to_target: 0
doc_to_choice: "{{[good, bad]}}"
metric_list: [{metric: acc}]
""",
    "rolling": """output_type: loglikelihood_rolling
doc_to_text: ""
doc_to_target: "{{context}}{{good}}"
metric_list: [{metric: bits_per_byte}]
""",
    "written": """output_type: generate_until
doc_to_text: "The first of them{{good}}"
doc_to_target: "{{good}}"
generation_kwargs: {until: ["\\n\\n"], max_gen_toks: 8, do_sample: false}
metric_list: [{metric: exact_match}]
""",
}
# `add_bos_token` of --model hf by which it counts a start token once: it puts the prefix before a rolling text itself,
# and the tokenizer's own start, if it is not told otherwise, after that.
SET_BOS = {"mine": None, "written": None, "few_shot": None, "rolling": False}
CONTEXTS = ("", "The first of them")
FEW_SHOT = """fewshot_split: test
fewshot_config: {sampler: first_n}
num_fewshot: 2
"""


def results_of(model: object, folder: Path, name: str = "mine") -> tuple[dict, list]:
    """The figures of a task in a folder, and the likelihoods of each document's choices, or its text."""
    from lm_eval import simple_evaluate
    from lm_eval.tasks import TaskManager

    manager = TaskManager(include_path=str(folder), include_defaults=False)
    results = simple_evaluate(model=model, tasks=[name], task_manager=manager, bootstrap_iters=0)
    return results["results"][name], [
        [response[0] if isinstance(response, tuple | list) else response for response in doc["filtered_resps"]]
        for doc in results["samples"][name]
    ]


def up_to_odd_bytes(text: str) -> str:
    """A text up to bytes that spell no letter: transformers replaces each of them, SentencePiece the remainder."""
    return text.partition("\ufffd")[0]


@pytest.fixture
def workdir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    rows = [
        {"context": context, "good": f" {number} is right", "bad": f" {number} are wrong"}
        for number in range(6)
        for context in CONTEXTS
    ]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "tasks").mkdir()
    for name, text in TASKS.items():
        head = TASK.format(name=name, file=tmp_path / "rows.jsonl")
        (tmp_path / "tasks" / f"{name}.yaml").write_text(head + text)
    return tmp_path


@pytest.mark.parametrize("name", LANGUAGE_MODELS)
def test_a_language_model_gets_the_harness_own_figures(name, workdir, vocabulary) -> None:
    """Multiple choice, bits per byte, written text, and the choices again after two examples."""
    few_shot = TASK.format(name="few_shot", file=workdir / "rows.jsonl") + TASKS["mine"] + FEW_SHOT
    (workdir / "tasks" / "few_shot.yaml").write_text(few_shot)
    from lm_eval.models.huggingface import HFLM

    from limba.tools.results.harness import LimbaLM

    folder = folder_of(LANGUAGE_MODELS[name], vocabulary, workdir / "model")
    ours = LimbaLM(str(folder))
    for task in (*TASKS, "few_shot"):
        theirs = HFLM(str(folder), device="cpu", batch_size=1, add_bos_token=SET_BOS[task])
        (figures, spans), (expected, of_theirs) = (
            results_of(model, workdir / "tasks", task) for model in (ours, theirs)
        )
        for figure in ("acc,none", "bits_per_byte,none", "exact_match,none"):
            assert figures.get(figure) == pytest.approx(expected.get(figure), abs=1e-4), (task, figure)
        if task == "written":
            whole = [up_to_odd_bytes(text) for (text,) in of_theirs]
            assert any(whole) and all(text.startswith(part) for (text,), part in zip(spans, whole, strict=True))
        else:
            assert spans == [[pytest.approx(value, abs=1e-4) for value in doc] for doc in of_theirs], task


@pytest.mark.parametrize("sentinels", [False, True])
def test_a_t5_gets_its_conditional_scores(sentinels, workdir, vocabulary) -> None:
    from limba.tools.results.harness import LimbaLM

    folder = folder_of(tiny.model(vocab_size=1_024), vocabulary, workdir / "model")
    _, scores = results_of(LimbaLM(str(folder), sentinels=sentinels), workdir / "tasks")
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    network = transformers.T5ForConditionalGeneration.from_pretrained(folder).eval()
    gap = "<extra_id_0>" if sentinels else ""
    rows = [json.loads(line) for line in (workdir / "rows.jsonl").read_text().splitlines()]
    for row, likelihoods in zip(rows, scores, strict=True):
        read = tokenizer(f"{row['context']} {gap}".strip(), return_tensors="pt").input_ids
        for choice, ours in zip((row["good"], row["bad"]), likelihoods, strict=True):
            labels = tokenizer(gap + choice, return_tensors="pt", add_special_tokens=False).input_ids
            with torch.no_grad():
                rows_of = torch.log_softmax(network(input_ids=read, labels=labels).logits[0], dim=-1)
            theirs = rows_of.gather(1, labels[0][:, None])[len(gap) > 0 :].sum()
            assert ours == pytest.approx(float(theirs), abs=1e-4)


def a_t5_run(folder: Path, vocabulary: Path, objective: str) -> Path:
    """A run of this objective on one text, with random weights."""
    (folder / "text.txt").write_text("Some lines of text to learn from.\n" * 8)
    model = tiny.model(vocab_size=1_024)
    data = dataclasses.replace(tiny.demo_data(folder / "text.txt", vocabulary), objective=objective)
    data = dataclasses.replace(data, task_modules=("tasks.demo",))
    write_run(folder / "run", model)
    run = RunConfig(model, data, str(folder / "run"), train_steps=1)
    (folder / "run" / saved_config.FILE).write_text(saved_config.to_text(run))
    return folder / "run"


@pytest.mark.parametrize(("objective", "sentinels"), [("span_corruption", True), ("lm_adaptation", False)])
def test_a_run_and_its_export_have_the_same_figures(objective, sentinels, workdir, vocabulary, caplog) -> None:
    """The run, the record of its export, and the model say whether a T5 is scored with sentinels."""
    from limba.tools.results.harness import LimbaLM

    run = a_t5_run(workdir, vocabulary, objective)
    convert.run([str(run), f"--vocabulary={vocabulary}", "--no_check"])
    models = [LimbaLM(str(path)) for path in (run, run / "huggingface" / "step_5")]
    assert [model.sentinels for model in models] == [sentinels, sentinels]
    said = [record.getMessage() for record in caplog.records if "is scored with" in record.getMessage()]
    assert len(said) == 2 and all(f"sentinels={not sentinels} in --model_args" in message for message in said), said
    for task in TASKS:
        (figures, of_run), (expected, of_export) = (results_of(model, workdir / "tasks", task) for model in models)
        assert {name: value for name, value in figures.items() if "stderr" not in name} == pytest.approx(
            {name: value for name, value in expected.items() if "stderr" not in name}, nan_ok=True
        ), task
        if task == "written":
            parts = [up_to_odd_bytes(text) for (text,) in of_export]
            assert any(parts) or sentinels  # in a gap these random weights write nothing
            assert all(text.startswith(part) for (text,), part in zip(of_run, parts, strict=True))
        else:
            assert np.allclose(of_run, of_export, rtol=1e-6), task


@pytest.mark.parametrize("is_tied", [True, False])
def test_a_t5_without_sentinels_gets_the_harness_own_figures(is_tied, workdir, vocabulary) -> None:
    """Through `--model hf`, but for a T5 with an output layer of its own.

    transformers 5 calls every T5 tied, though it reads such a layer; the harness then ties the model once more, and so
    loses the layer. docs/development/results.md says it; the figures are equal as soon as the layer is put back.
    """
    from lm_eval.models.huggingface import HFLM

    from limba.tools.results.harness import LimbaLM

    folder = folder_of(tiny.model(vocab_size=1_024, logits_via_embedding=is_tied), vocabulary, workdir / "model")
    ours = LimbaLM(str(folder), sentinels=False)
    for task in ("mine", "rolling"):
        theirs = HFLM(str(folder), backend="seq2seq", device="cpu", batch_size=1, add_bos_token=SET_BOS[task])
        _, spans = results_of(ours, workdir / "tasks", task)
        if not is_tied:
            _, without_its_layer = results_of(theirs, workdir / "tasks", task)
            assert not np.allclose(spans, without_its_layer, rtol=1e-2)
            whole = transformers.T5ForConditionalGeneration.from_pretrained(folder)
            theirs.model.lm_head.weight = torch.nn.Parameter(whole.lm_head.weight.detach().clone())
        _, of_theirs = results_of(theirs, workdir / "tasks", task)
        assert spans == [[pytest.approx(value, rel=1e-5, abs=1e-4) for value in doc] for doc in of_theirs], task


def test_an_encoder_is_refused_in_a_sentence(workdir, vocabulary) -> None:
    from limba.tools.results.harness import LimbaLM

    folder = folder_of(ENCODERS["eurobert"], vocabulary, workdir / "model")
    with pytest.raises(InputError, match="is an encoder, which writes no text and which lm-evaluation-harness has no"):
        LimbaLM(str(folder))


def test_the_command_measures_a_run_by_tasks_of_a_folder(workdir, vocabulary, monkeypatch, capsys) -> None:
    from limba.cli import main

    monkeypatch.setattr("sys.argv", ["limba"])
    monkeypatch.setenv("GLIBC_TUNABLES", "")  # else the command starts the program again
    folder_of(tiny.language_model(vocab_size=1_024), vocabulary, workdir / "model")
    command = f"results lm-eval run --model limba --model_args pretrained={workdir}/model --tasks mine --limit 4"
    assert (
        main.main([*command.split(), "--include_path", str(workdir / "tasks"), "--output_path", f"{workdir}/out"]) == 0
    )
    assert "|mine |" in capsys.readouterr().out
    (written,) = (workdir / "out").rglob("results_*.json")
    assert 0 <= json.loads(written.read_text())["results"]["mine"]["acc,none"] <= 1
