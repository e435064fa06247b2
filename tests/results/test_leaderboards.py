"""Exported encoders opened as EuroEval and MTEB open them, without their data: docs/development/leaderboards.md."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from tests.environments import environment_with
from tests.export.runs import folder_of
from tests.results.test_pairs import ENCODERS

MTEB = ("mteb==2.26.24", "sentence-transformers==6.2.0")
# What EuroEval 16.11 does with a folder, in benchmark_modules/hf.py: it asks for config.json, puts the task's labels
# into the configuration, opens the class of the task, and a fast tokenizer that pads and cuts on the right.
LABELS = {0: "negative", 1: "neutral", 2: "positive"}
OF_TASKS = ("SequenceClassification", "TokenClassification")


@pytest.mark.parametrize("name", ["eurobert", "modernbert"])
def test_an_encoder_is_opened_as_euroeval_opens_it(name: str, vocabulary: Path, tmp_path: Path) -> None:
    folder = folder_of(ENCODERS[name], vocabulary, tmp_path / "model")
    numbers = {label: number for number, label in LABELS.items()}
    config = transformers.AutoConfig.from_pretrained(folder, num_labels=3, id2label=LABELS, label2id=numbers)
    tokenizer: Any = transformers.AutoTokenizer.from_pretrained(
        folder, use_fast=True, padding_side="right", truncation_side="right"
    )
    assert tokenizer.is_fast and None not in (tokenizer.pad_token_id, tokenizer.eos_token_id, tokenizer.mask_token_id)
    texts = ["It is here.", "The module opens the file, and reads it."]
    batch = tokenizer(texts, padding=True, truncation=True, return_tensors="pt")
    assert batch.attention_mask[0].tolist() == sorted(batch.attention_mask[0].tolist(), reverse=True)
    network = transformers.AutoModelForMaskedLM.from_pretrained(folder)
    pretrained = {key.partition(".")[2]: value for key, value in network.base_model.named_parameters(prefix="base")}
    for task in OF_TASKS:
        opened: Any = getattr(transformers, f"AutoModelFor{task}")
        model, loading = opened.from_pretrained(folder, config=config, dtype=torch.float32, output_loading_info=True)
        assert all(key.startswith(("classifier", "head", "score", "dense")) for key in loading["missing_keys"]), loading
        for key, value in model.base_model.named_parameters():
            assert torch.equal(value, pretrained[key]), key
        shape = batch.input_ids.shape if task.startswith("Token") else batch.input_ids.shape[:1]
        loss = model(**batch, labels=torch.ones(shape, dtype=torch.long)).loss
        loss.backward()
        assert torch.isfinite(loss) and model.get_input_embeddings().weight.grad.abs().sum() > 0
    answers = type(config) in transformers.MODEL_FOR_QUESTION_ANSWERING_MAPPING
    assert answers == (name == "modernbert"), "docs/development/leaderboards.md names which of them can"


PROGRAM = """import json, logging, sys
import mteb
from sentence_transformers import SentenceTransformer

model = SentenceTransformer(sys.argv[1], device="cpu")
found = mteb.mock_run(mteb.SentenceTransformerEncoderWrapper(model)).task_results
kinds = {name: type(result).__name__ for name, result in found.items() if result is not None}
print(json.dumps([kinds, model.encode(["It is here.", "One"]).tolist()]))
"""


@pytest.mark.night
def test_an_encoder_runs_through_mteb_s_own_trial_tasks(vocabulary: Path, tmp_path: Path) -> None:
    """Needs the network once; the vectors equal `TrainedModel.encode`'s."""
    import limba

    python = environment_with(MTEB, sees_tests=True)
    folder = folder_of(ENCODERS["eurobert"], vocabulary, tmp_path / "model")
    command = [python, "-c", PROGRAM, folder]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert ended.returncode == 0, ended.stderr[-3000:]
    kinds, vectors = json.loads(ended.stdout.splitlines()[-1])
    assert sum(kind == "TaskResult" for kind in kinds.values()) > 10, kinds
    assert [name for name, kind in kinds.items() if kind != "TaskResult"] == []
    ours = limba.load(folder).encode(["It is here.", "One"])
    assert vectors == [pytest.approx(row, abs=1e-4) for row in ours.tolist()]
