"""Prints the table of docs/next.md: greedy text and bits per byte of a model in other programs, beside Limba's.

    python -m tests.export.table RUN TEXTS

TEXTS is a `.jsonl` or `.jsonl.gz` in the model's language, of texts of 24 words or more. CTranslate2 and ONNX are
installed in environments that are kept; the network is needed once.
"""

import gzip
import json
import math
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from limba.export import targets
from limba.inference.load import TrainedModel, load

BEGIN = """import json, sys, transformers
folder, tokens, given = sys.argv[1], int(sys.argv[2]), json.load(sys.stdin)
tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
ids = lambda text: tokenizer(text).input_ids
"""
# Each reads inputs and pairs, and prints the ids that it writes for the ones and the log likelihoods of the others.
CTRANSLATE2 = """import ctranslate2
translator = ctranslate2.Translator(folder, compute_type=sys.argv[3])
pieces = lambda text: tokenizer.convert_ids_to_tokens(ids(text))
found = translator.translate_batch([pieces(text) for text in given[0]], beam_size=1, max_decoding_length=tokens)
sources, aims = zip(*given[1])
scored = translator.score_batch([pieces(text) for text in sources], [pieces(text)[:-1] for text in aims])
written = [tokenizer.convert_tokens_to_ids(each.hypotheses[0]) for each in found]
print(json.dumps([written, [sum(each.log_probs) for each in scored]]))
"""
GREEDY = """import torch
written, scores = [], []
for text in given[0]:
    inputs = tokenizer(text, return_tensors="pt")
    written.append(model.generate(**inputs, max_new_tokens=tokens, do_sample=False, num_beams=1)[0, 1:].tolist())
for text, aim in given[1]:
    labels = torch.tensor([ids(aim)])
    with torch.no_grad():
        scores.append(-float(model(**tokenizer(text, return_tensors="pt"), labels=labels).loss) * labels.numel())
print(json.dumps([written, scores]))
"""
ONNX = "from optimum.onnxruntime import ORTModelForSeq2SeqLM\nmodel = ORTModelForSeq2SeqLM.from_pretrained(folder)\n"
TRANSFORMERS = "model = transformers.T5ForConditionalGeneration.from_pretrained(folder).eval()\n"
READERS = {"ct2": CTRANSLATE2, "onnx": ONNX + GREEDY, "transformers": TRANSFORMERS + GREEDY}


class Written(NamedTuple):
    """The ids that are written for each input, without padding and ends, and the log likelihood of each pair."""

    ids: list[list[int]]
    scores: list[float]


def ours(model: TrainedModel, texts: Sequence[str], pairs: Sequence[tuple[str, str]], tokens: int) -> Written:
    """Returns what the model itself writes, greedily."""
    samples = model.samples(texts, max_tokens=tokens, ban_sentinels=False)
    return Written(
        [[i for i in each[0].ids.tolist() if i > 1] for each in samples],
        [score.log_likelihood for score in model.score(pairs)],
    )


def theirs(
    program: str, folder: Path, texts: Sequence[str], pairs: Sequence[tuple[str, str]], tokens: int, dtype="float32"
) -> Written:
    """Returns what a program writes, in the environment of its target, or in this one."""
    target = targets.TARGETS.get(program)
    python = targets._environment(target.packages) if target else sys.executable
    command = [str(python), "-c", BEGIN + READERS[program], str(folder), str(tokens), dtype]
    given = json.dumps([list(texts), list(pairs)])
    ended = subprocess.run(command, input=given, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr[-2000:]
    ids, scores = json.loads(ended.stdout.splitlines()[-1])
    return Written([[i for i in row if i is not None and i > 1] for row in ids], scores)


def gaps(path: Path) -> tuple[list[str], list[tuple[str, str]]]:
    """Returns 20 inputs of 14 words of which one is missing, and 200 of 24 with the three words that are missing."""
    opened = gzip.open(path, "rt") if path.suffix == ".gz" else path.open()
    with opened as file:
        texts = [words for line in file if len(words := json.loads(line)["text"].split()) >= 24]
    random = np.random.default_rng(1)
    inputs, pairs = [], []
    for words in texts[::7][:20]:
        place = random.integers(2, 11)
        inputs.append(" ".join([*words[:place], "<extra_id_0>", *words[place + 1 : 14]]))
    for words in texts[::3][:200]:
        place = random.integers(3, 18)
        text = " ".join([*words[:place], "<extra_id_0>", *words[place + 3 : 24]])
        pairs.append((text, f"<extra_id_0> {' '.join(words[place : place + 3])} <extra_id_1>"))
    return inputs, pairs


def main() -> None:
    run, (inputs, pairs) = sys.argv[1], gaps(Path(sys.argv[2]))
    size = sum(len(aim.encode()) for _, aim in pairs)
    model = load(run)
    expected = ours(model, inputs, pairs, 16)

    def row(name: str, found: Written, folder: Path | None = None) -> None:
        same = sum(a == b for a, b in zip(found.ids, expected.ids, strict=True))
        bits = -sum(found.scores) / math.log(2) / size
        megabytes = sum(file.stat().st_size for file in folder.glob("model.bin")) / 1e6 if folder else 0
        print(f"| {name} | {same} of {len(inputs)} | {bits:.4f} | {megabytes or '':.3} |", flush=True)

    row("Limba", expected)
    with tempfile.TemporaryDirectory() as place:
        folder = model.save(Path(place) / "folder")
        row("transformers", theirs("transformers", folder, inputs, pairs, 16))
        for dtype in ("float32", "float16", "int8"):
            out = targets.write("ct2", str(folder), f"{place}/ct2_{dtype}", dtype)
            computed = "int8" if dtype == "int8" else "float32"
            row(f"CTranslate2, {dtype}", theirs("ct2", out, inputs, pairs, 16, computed), out)
        out = targets.write("onnx", str(folder), f"{place}/onnx")
        row("ONNX Runtime", theirs("onnx", out, inputs, pairs, 16))


if __name__ == "__main__":
    main()
