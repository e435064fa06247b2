"""The examples for encoders, as a reader runs them on a folder that Limba has written: what they save has learned."""

import json
import random
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import transformers

from tests import tiny
from tests.export.runs import folder_of
from tests.test_blocks import ROOT
from tests.test_blocks import python_with as python_with

pytestmark = pytest.mark.night
ENCODER = tiny.language_model(
    vocab_size=1_024, attention_mask="bidirectional", emb_dim=32, num_heads=2, num_kv_heads=2, head_dim=16, mlp_dim=64,
    num_decoder_layers=1,
)  # fmt: skip
KINDS = {"good": "yes", "bad": "no"}  # a word, and the label of a text or word that has it
FILLERS = ["here", "one", "of", "them", "is", "the", "module"]


def run(python: Path, name: str, *arguments: object) -> str:
    """Runs an example in a folder of its own packages; returns what it prints."""
    command = [python, ROOT / "examples" / f"{name}.py", *map(str, arguments)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr[-4000:]
    return ended.stdout


def write_sentences(folder: Path) -> None:
    """Texts and words whose labels follow from one word in them, as JSON lines and as CSV."""
    chosen = random.Random(0)
    for part, count in (("train", 160), ("test", 40)):
        rows = []
        for _ in range(count):
            word = chosen.choice(list(KINDS))
            tokens = [*chosen.sample(FILLERS, 3), word, chosen.choice(FILLERS)]
            rows.append({"tokens": tokens, "tags": [KINDS.get(token, "O") for token in tokens], "label": KINDS[word]})
        (folder / f"{part}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        lines = [f"{' '.join(row['tokens'])},{row['label']}" for row in rows]
        (folder / f"{part}.csv").write_text("\n".join(["text,label", *lines]) + "\n")


@pytest.mark.parametrize(("task", "ending"), [("texts", "csv"), ("tags", "jsonl")])
def test_an_exported_encoder_learns_labels_in_transformers(
    task: str, ending: str, vocabulary: Path, tmp_path: Path, python_with: Callable[[str], Path]
) -> None:
    python = python_with("transformers")
    folder_of(ENCODER, vocabulary, tmp_path / "model")
    write_sentences(tmp_path)
    files = [tmp_path / f"{part}.{ending}" for part in ("train", "test")]
    flags = [f"--task={task}", "--epochs=12", "--batch_size=16", "--learning_rate=3e-3", "--max_length=32"]
    printed = run(python, "classify_with_transformers", tmp_path / "model", *files, tmp_path / "out", *flags)
    assert float(printed.rpartition(": ")[2].removesuffix(" %\n")) > 95, printed
    kind = "text-classification" if task == "texts" else "token-classification"
    opened = transformers.pipeline(kind, str(tmp_path / "out"), device="cpu")
    results = [opened(f"one of them is {word}")[-1] for word in KINDS]
    assert [result["label" if task == "texts" else "entity"] for result in results] == list(KINDS.values())


NEAREST = """import sys
from sentence_transformers import SentenceTransformer
model = SentenceTransformer(sys.argv[1], device="cpu")
names = sys.argv[2].split(",")
anchors = model.encode([f"{name} is here" for name in names])
positives = model.encode([f"the {name} module" for name in names])
print((model.similarity(anchors, positives).argmax(1).numpy() == range(len(names))).sum())
"""


def test_an_exported_encoder_learns_vectors_in_sentence_transformers(
    vocabulary: Path, tmp_path: Path, python_with: Callable[[str], Path]
) -> None:
    python = python_with("sentence-transformers")
    folder_of(ENCODER, vocabulary, tmp_path / "model")
    names = ["cat", "dog", "file", "string", "class", "function", "value", "loop"]
    rows = [{"anchor": f"{name} is here", "positive": f"the {name} module", "id": 1} for name in names] * 20
    random.Random(0).shuffle(rows)
    (tmp_path / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    flags = ["--batch_size=8", "--epochs=4", "--learning_rate=3e-3", "--max_length=32"]
    arguments = [tmp_path / "model", tmp_path / "pairs.jsonl", tmp_path / "out", *flags]
    assert "out gives vectors of 32 numbers" in run(python, "vectors_with_sentence_transformers", *arguments)
    asked = [python, "-c", NEAREST, tmp_path / "out", ",".join(names)]
    assert int(subprocess.run(asked, capture_output=True, text=True, check=True).stdout) == len(names)


@pytest.mark.parametrize("name", ["classify_with_transformers", "vectors_with_sentence_transformers"])
def test_an_example_says_what_it_takes(name: str, python_with: Callable[[str], Path]) -> None:
    packages = "transformers" if name.endswith("with_transformers") else "sentence-transformers"
    printed = run(python_with(packages), name, "--help")
    assert "usage:" in printed and "--learning_rate" in printed
