"""The published recipes as they are shipped, trained by their commands against a hub and buckets of this machine's.

Data sets and start models are there by their names, small; only the network and the generated text are smaller.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
import torch

from limba.formats import huggingface_files as files
from limba.formats.huggingface import open_safetensors
from limba.formats.huggingface_tokenizer import write_tokenizer
from limba.formats.names import flatten, unstack_layers
from tests import tiny
from tests.bucket_server import BucketServer, serving_buckets
from tests.hub_server import hub, write_data_set

ROOT = Path(__file__).parents[2]
SMALL = {
    "emb_dim": 32, "mlp_dim": 64, "num_heads": 2, "head_dim": 16, "num_encoder_layers": 1, "num_decoder_layers": 1
}  # fmt: skip
OVERRIDES = [
    *(f"--gin.config.ModelConfig.{name}={size}" for name, size in SMALL.items()),
    *("VOCAB_SIZE=1024", "MAX_TOKENS=8", "NUM_EXAMPLES=8", "LOG_PERIOD=1"),
]


def write_model(folder: Path, vocabulary: Path) -> None:
    """Writes a T5 1.1 and its tokenizer, in Hugging Face's form."""
    folder.mkdir(parents=True)
    model = tiny.model(vocab_size=1024, **SMALL)
    leaves = {name: np.asarray(leaf) for name, leaf in flatten(tiny.parameters(model)).items()}
    files.write_configs(folder, model, "float32")
    files.write_pytorch(folder, unstack_layers(leaves), model)
    write_tokenizer(folder, str(vocabulary), 100)


def write_pairs(folder: Path, **sizes: int) -> None:
    """Writes mesolitica/translation-en-ms: split -> number of pairs, each split a parquet file."""
    for split, size in sizes.items():
        path = folder / "datasets" / "mesolitica" / "translation-en-ms" / "data" / f"{split}-00000-of-00001.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        pairs = {"en": [f"the house is {n}" for n in range(size)], "ms": [f"rumah itu {n}" for n in range(size)]}
        pyarrow.parquet.write_table(pyarrow.table(pairs), path, row_group_size=100)


def train(recipe: str, *arguments: str, shelf: Path, server: BucketServer) -> tuple[str, list[dict]]:
    """Runs the recipe by its command, in gs://bucket/run; returns what it prints and its figures."""
    cleared = {name: value for name, value in os.environ.items() if name not in ("XLA_FLAGS", "HF_TOKEN")}
    variables = {"VENV": sys.prefix, "SETUP": "no", "ACCELERATOR": "cpu", "RETRIES": "0"}
    command = ["bash", "launch/pretrain.sh", recipe, "MODEL_DIR=gs://bucket/run", "EXPORT_TO=gs://bucket/final"]
    with hub(shelf) as (_, environment):
        ended = subprocess.run(
            [*command, *OVERRIDES, *arguments], env={**cleared, **variables, **environment, **server.environment()},
            cwd=ROOT, text=True, timeout=600, check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
    assert ended.returncode == 0, ended.stdout[-6000:]
    return ended.stdout, [json.loads(line) for line in server.data("run/metrics.jsonl").splitlines()]


@pytest.mark.night
def test_the_published_translation_trains_three_epochs_of_the_hub_s_pairs(vocabulary: Path, tmp_path: Path) -> None:
    """1,000 pairs three times, 128 a step, are 24 steps; the rate falls to 0 there, and the model is exported."""
    shelf = tmp_path / "served"
    write_model(shelf / "mesolitica" / "nanot5-base-malaysian-cased" / "main", vocabulary)
    write_pairs(shelf, train=1000, validation=20)
    with serving_buckets() as server:
        printed, rows = train("gin/en_ms_published.gin", shelf=shelf, server=server)
        exported = server.names("final/step_24/")
    assert "1,000 examples, about, an epoch, 7.81 steps of 128" in printed
    steps = {row["step"]: row for row in rows if row["kind"] == "train"}
    assert list(steps) == list(range(1, 25)) and steps[24]["epochs/en_ms_published"] == pytest.approx(3)
    rates = [row["learning_rate"] for row in steps.values()]
    assert rates == pytest.approx([5e-5 * (1 - step / 24) for step in range(24)], rel=1e-4)
    assert steps[24]["loss"] < steps[1]["loss"]
    assert any("bleu" in name.lower() for row in rows for name in row)
    names = {name.rpartition("/")[2] for name in exported}
    assert {"config.json", "model.safetensors", "tokenizer.json", "README.md"} <= names


@pytest.mark.night
def test_the_published_diacritics_train_ten_epochs_of_the_hub_s_texts(vocabulary: Path, tmp_path: Path) -> None:
    """From a pytorch_model.bin, at the constant rate; the rows of its documents are not known, the epochs end it."""
    shelf = tmp_path / "served"
    model_folder = shelf / "dumitrescustefan" / "mt5-base-romanian" / "main"
    write_model(model_folder, vocabulary)
    stored = open_safetensors(model_folder)
    torch.save({name: torch.tensor(stored[name]) for name in stored}, model_folder / "pytorch_model.bin")
    (model_folder / "model.safetensors").unlink()
    texts = [f"Țara de după {n} are șapte poști și o fântână în câmp." for n in range(100)]
    write_data_set(shelf, "dumitrescustefan/diacritic", {"default": {"train": texts[:64], "validation": texts[64:]}})
    with serving_buckets() as server:
        server.put("t5-data", "vocabs/mc4.250000.100extra/sentencepiece.model", vocabulary.read_bytes())
        _, rows = train("gin/ro_diacritics_published.gin", shelf=shelf, server=server)
        exported = server.names("final/step_10/")
    steps = {row["step"]: row for row in rows if row["kind"] == "train"}
    assert list(steps) == list(range(1, 11))
    # The rows of an epoch are not known beforehand, so what was read ahead counts too; so few texts are read at once.
    epochs = [row["epochs/ro_diacritics_published"] for row in steps.values()]
    assert epochs == sorted(epochs) and epochs[0] >= 1 and epochs[-1] == pytest.approx(10)
    assert [row["learning_rate"] for row in steps.values()] == pytest.approx([1e-4] * 10)
    assert any("word_accuracy" in name for row in rows for name in row)
    names = {name.rpartition("/")[2] for name in exported}
    assert {"config.json", "model.safetensors", "tokenizer.json", "README.md"} <= names
