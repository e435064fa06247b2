"""Converters of CTranslate2 and ONNX, as docs/convert.md calls them: the greedy text is the model's own."""

import json
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from limba.inference.load import load
from tests import tiny
from tests.environments import environment_with
from tests.export.runs import write_run
from tests.test_blocks import ALONE, ROOT, check

PAGE = (ROOT / "docs" / "convert.md").read_text()
TEXTS = [f"Text number {number} with <extra_id_0> gap{'s' * number}." for number in range(20)]
# Each reads texts, and prints the ids that are written for them, greedily.
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
    """Returns the ids of bytes: CTranslate2 has names of its own for ids without a piece."""
    return [i for i in ids if i is not None and 2 < i < 259]


@pytest.mark.lint
@pytest.mark.parametrize("name", ALONE)
def test_the_page_installs_the_versions_that_are_tested(name: str) -> None:
    (section,) = re.findall(rf"python -m venv {name}_env.*?\n(pip install .*?)```", PAGE, re.DOTALL)
    assert tuple(section.replace("\\\n", "").split()[2:]) == ALONE[name]


@pytest.mark.long
@pytest.mark.parametrize("name", ALONE)
def test_a_converter_writes_the_models_own_text(name: str, tmp_path: Path) -> None:
    """Needs the network once: the packages are installed in an environment that is kept."""
    python = environment_with(ALONE[name])
    config = tiny.model(vocab_size=259, emb_dim=64, head_dim=16, mlp_dim=96, num_decoder_layers=2)
    write_run(tmp_path / "run", config)
    model = load(tmp_path / "run", vocabulary="byte")
    model.save(tmp_path / "folder")
    (convert,) = re.findall(rf"<!-- runs slowly in {name} with folder=folder -->\n```bash\n(.*?)```", PAGE, re.DOTALL)
    check(convert, tmp_path, python)
    ended = subprocess.run(
        [python, "-c", READERS[name], tmp_path / name],
        input=json.dumps(TEXTS),
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr[-2000:]
    ours = [samples[0].ids.tolist() for samples in model.samples(TEXTS, max_tokens=8, ban_sentinels=False)]
    theirs = json.loads(ended.stdout.splitlines()[-1])
    assert [bytes_of(ids) for ids in theirs] == [bytes_of(ids) for ids in ours]
    if name == "ct2":
        scores = [score.log_likelihood for score in model.score([(text, "one") for text in TEXTS])]
        np.testing.assert_allclose(json.loads(ended.stdout.splitlines()[-2]), scores, rtol=1e-4)
