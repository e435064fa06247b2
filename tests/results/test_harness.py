"""lm-evaluation-harness through `LimbaLM`: what its own model of transformers finds, and a T5's conditional scores."""

# pyright: reportMissingImports=false

import json
from pathlib import Path

import pytest
import torch
import transformers

from tests import tiny
from tests.export.runs import folder_of
from tests.results.test_pairs import LANGUAGE_MODELS

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
    found = simple_evaluate(model=model, tasks=[name], task_manager=manager, bootstrap_iters=0)
    return found["results"][name], [
        [each[0] if isinstance(each, tuple | list) else each for each in doc["filtered_resps"]]
        for doc in found["samples"][name]
    ]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
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
def test_a_language_model_gets_the_harness_own_figures(name, place, vocabulary) -> None:
    """Multiple choice, bits per byte, written text, and the choices again after two examples."""
    few_shot = TASK.format(name="few_shot", file=place / "rows.jsonl") + TASKS["mine"] + FEW_SHOT
    (place / "tasks" / "few_shot.yaml").write_text(few_shot)
    from lm_eval.models.huggingface import HFLM

    from limba.tools.results.harness import LimbaLM

    folder = folder_of(LANGUAGE_MODELS[name], vocabulary, place / "model")
    ours = LimbaLM(str(folder))
    for task in (*TASKS, "few_shot"):
        # Of a rolling text the harness scores a start token of `add_bos_token` itself, after one more.
        theirs = HFLM(str(folder), device="cpu", batch_size=1, add_bos_token=task != "rolling")
        (figures, found), (expected, of_theirs) = (results_of(model, place / "tasks", task) for model in (ours, theirs))
        for figure in ("acc,none", "bits_per_byte,none", "exact_match,none"):
            assert figures.get(figure) == pytest.approx(expected.get(figure), abs=1e-4), (task, figure)
        if task == "written":  # transformers replaces each of some bytes that are no letter, SentencePiece what is left
            whole = [text.partition("\ufffd")[0] for (text,) in of_theirs]
            assert any(whole) and all(text.startswith(part) for (text,), part in zip(found, whole, strict=True))
        else:
            assert found == [[pytest.approx(each, abs=1e-4) for each in doc] for doc in of_theirs], task


@pytest.mark.parametrize("sentinels", [False, True])
def test_a_t5_gets_its_conditional_scores(sentinels, place, vocabulary) -> None:
    from limba.tools.results.harness import LimbaLM

    folder = folder_of(tiny.model(vocab_size=1_024), vocabulary, place / "model")
    _, found = results_of(LimbaLM(str(folder), sentinels=sentinels), place / "tasks")
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    network = transformers.T5ForConditionalGeneration.from_pretrained(folder).eval()
    gap = "<extra_id_0>" if sentinels else ""
    rows = [json.loads(line) for line in (place / "rows.jsonl").read_text().splitlines()]
    for row, likelihoods in zip(rows, found, strict=True):
        read = tokenizer(f"{row['context']} {gap}".strip(), return_tensors="pt").input_ids
        for choice, ours in zip((row["good"], row["bad"]), likelihoods, strict=True):
            labels = tokenizer(gap + choice, return_tensors="pt", add_special_tokens=False).input_ids
            with torch.no_grad():
                rows_of = torch.log_softmax(network(input_ids=read, labels=labels).logits[0], dim=-1)
            theirs = rows_of.gather(1, labels[0][:, None])[len(gap) > 0 :].sum()
            assert ours == pytest.approx(float(theirs), abs=1e-4)


def test_the_command_measures_a_run_by_tasks_of_a_folder(place, vocabulary, monkeypatch, capsys) -> None:
    from limba.cli import main

    monkeypatch.setattr("sys.argv", ["limba"])
    monkeypatch.setenv("GLIBC_TUNABLES", "")  # else the command starts the program again
    folder_of(tiny.language_model(vocab_size=1_024), vocabulary, place / "model")
    command = f"results lm-eval run --model limba --model_args pretrained={place}/model --tasks mine --limit 4"
    assert main.main([*command.split(), "--include_path", str(place / "tasks"), "--output_path", f"{place}/out"]) == 0
    assert "|mine |" in capsys.readouterr().out
    (written,) = (place / "out").rglob("results_*.json")
    assert 0 <= json.loads(written.read_text())["results"]["mine"]["acc,none"] <= 1
