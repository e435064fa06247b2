"""Folders for CTranslate2 and ONNX, written and run by their own packages: the greedy text is the model's own."""

import json
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from benchmarks import readme
from limba.export import targets
from limba.inference.load import load
from tests import tiny
from tests.export import target_figures
from tests.export.runs import write_run
from tests.test_blocks import ROOT, kept_environment

TEXTS = [f"Text number {number} with <extra_id_0> gap{'s' * number}." for number in range(20)]
# Each reads the ids of inputs, and prints those that are written for them, greedily.
READERS = {
    "ct2": """import ctranslate2, json, sys, transformers
folder = sys.argv[1]
tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
translator = ctranslate2.Translator(folder, compute_type="float32")
rows = [tokenizer.convert_ids_to_tokens(tokenizer(text).input_ids) for text in json.loads(sys.stdin.read())]
found = translator.translate_batch(rows, beam_size=1, max_decoding_length=8)
scored = translator.score_batch(rows, [tokenizer.convert_ids_to_tokens(tokenizer("one").input_ids)[:-1]] * len(rows))
print(json.dumps([sum(each.log_probs) for each in scored]))
print(json.dumps([tokenizer.convert_tokens_to_ids(each.hypotheses[0]) for each in found]))""",
    "onnx": """import json, sys, transformers
from optimum.onnxruntime import ORTModelForSeq2SeqLM
tokenizer = transformers.AutoTokenizer.from_pretrained(sys.argv[1])
model = ORTModelForSeq2SeqLM.from_pretrained(sys.argv[1])
write = lambda text: model.generate(**tokenizer(text, return_tensors="pt"), max_new_tokens=8, do_sample=False)[0, 1:]
print(json.dumps([write(text).tolist() for text in json.loads(sys.stdin.read())]))""",
}


def bytes_of(ids: Sequence[int | None]) -> list[int]:
    """Returns the ids of bytes: CTranslate2 has names of its own for ids that are no pieces."""
    return [i for i in ids if i is not None and 2 < i < 259]


@pytest.mark.long
@pytest.mark.parametrize("target", targets.TARGETS)
def test_a_target_writes_the_models_own_text(target: str, tmp_path: Path) -> None:
    """Needs the network once: the packages are installed in an environment that is kept."""
    python = kept_environment(targets.TARGETS[target].packages)
    config = tiny.model(vocab_size=259, emb_dim=64, head_dim=16, mlp_dim=96, num_decoder_layers=2)
    write_run(tmp_path / "run", config)
    model = load(tmp_path / "run", vocabulary="byte")
    model.save(tmp_path / "folder")
    out = targets.write(target, str(tmp_path / "folder"), str(tmp_path / "out"))
    ended = subprocess.run(
        [python, "-c", READERS[target], out], input=json.dumps(TEXTS), capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stderr[-2000:]
    ours = [samples[0].ids.tolist() for samples in model.samples(TEXTS, max_tokens=8, ban_sentinels=False)]
    theirs = json.loads(ended.stdout.splitlines()[-1])
    assert [bytes_of(ids) for ids in theirs] == [bytes_of(ids) for ids in ours]
    if target == "ct2":
        scores = [score.log_likelihood for score in model.score([(text, "one") for text in TEXTS])]
        np.testing.assert_allclose(json.loads(ended.stdout.splitlines()[-2]), scores, rtol=1e-4)


@pytest.mark.long
def test_the_table_of_the_page_is_that_of_the_demos_model(tmp_path: Path) -> None:
    """As docs/next.md says: a row for each program, and its figures within what another machine's training changes."""
    for packages in (*(target.packages for target in targets.TARGETS.values()), target_figures.SENTENCES):
        kept_environment(packages)
    readme.demo(tmp_path)
    found, bits = target_figures.rows(tmp_path / "runs" / "demo", tmp_path)
    shown, shown_bits = target_figures.read((ROOT / "docs" / "next.md").read_text())
    if not (shutil.which("npm") and shutil.which("node")):
        shown = [row for row in shown if row.program != "transformers.js"]
    assert abs(bits - shown_bits) < 0.1
    for row, other in zip(found, shown, strict=True):
        assert other[:2] == row[:2] and (row.equal is None) == (other.equal is None), row
        if row.bits is not None and other.bits is not None:
            assert abs((row.bits - bits) - (other.bits - shown_bits)) < (0.01 if "int8" in row.program else 2e-4), row
        if row.equal is not None and other.equal is not None:
            most = 5 if "int8" in row.program else 2 if row.program == "transformers.js" else 0
            assert abs(row.equal - other.equal) <= most, row
        if row.program == "sentence-transformers":
            assert float(row.note.split()[-1]) < 1e-5 > float(other.note.split()[-1])
        else:
            assert row.note == other.note, row
