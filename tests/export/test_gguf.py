"""The blocks of docs/convert.md on llama.cpp: it cuts texts into the model's pieces, and writes what that writes."""

import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import sentencepiece

from limba.inference.load import load
from tests import tiny
from tests.export.runs import write_run
from tests.test_blocks import ROOT, check
from tests.test_blocks import folder as folder
from tests.test_blocks import python_with as python_with

READ = """
import json, sys, urllib.request
def ask(name, given):
    data, kind = json.dumps(given).encode(), {"Content-Type": "application/json"}
    asked = urllib.request.Request(f"{server.listening_address}/{name}", data, kind)
    return json.load(urllib.request.urlopen(asked))["tokens"]
texts = json.load(open("texts.json"))
pieces = [ask("tokenize", {"content": text}) for text in texts]
greedy = {"n_predict": 8, "temperature": 0, "return_tokens": True}
written = [ask("completion", {"prompt": text, **greedy}) for text in texts[:20]]
json.dump([pieces, written], open("found.json", "w"))
"""


@pytest.mark.night
def test_llama_cpp_reads_and_writes_the_models_pieces(
    corpus: Path, vocabulary: Path, folder: Path, python_with: Callable[[str], Path]
) -> None:
    python = python_with("llama.cpp")
    pieces = sentencepiece.SentencePieceProcessor(model_file=str(vocabulary))
    config = tiny.language_model(
        vocab_size=pieces.vocab_size(), emb_dim=32, num_heads=4, head_dim=8, num_kv_heads=2, mlp_dim=64,
        num_decoder_layers=2, positions="rotary", norm="rms", biases=(), mlp_activations=("silu", "linear"),
        logits_via_embedding=False, dtype="float32",
    )  # fmt: skip
    write_run(folder / "run", config)
    model = load(folder / "run", vocabulary=str(vocabulary))
    model.save(folder / "folder")
    documents = [json.loads(line)["text"] for line in corpus.read_text().splitlines()]
    lines = [" ".join(line.split()) for text in documents for line in text.splitlines() if 20 < len(line) < 80][:200]
    texts = [line for line in lines if not any(map(pieces.is_byte, pieces.encode(line)))]
    assert len(texts) > 190
    (folder / "texts.json").write_text(json.dumps(texts))

    page = (ROOT / "docs" / "convert.md").read_text().partition("## llama.cpp")[2]
    (convert,) = re.findall(r"```bash\n(.*?)```", page, re.DOTALL)
    (read,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    (folder / "bin" / "python").write_text(f'#!/bin/bash\nexec {python} "$@"\n')
    check(convert, folder)
    ended = subprocess.run([python, "-c", read + READ], cwd=folder, capture_output=True, text=True, check=False)
    assert ended.returncode == 0 and "choices" in ended.stdout, ended.stderr[-2000:]
    ids, written = json.loads((folder / "found.json").read_text())
    assert ids == pieces.encode(texts)
    assert written == [sample[0].ids.tolist() for sample in model.samples(texts[:20], max_tokens=8)]
