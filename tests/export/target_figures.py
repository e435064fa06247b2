"""What other programs make of a run's T5, in figures: the table of docs/next.md.

    bash launch/demo.sh && python -m tests.export.target_figures runs/demo

Each program writes 16 pieces, greedily, for 20 sentences of the run's validation text with two words hidden, and gives
the likelihood of the hidden words of 100 of them, 200 gaps. It has the folder and its own tokenizer, nothing of ours.
What a program needs is installed once, with pip or npm.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import limba
from limba.config import InputError
from limba.data.tasks import parts_of
from limba.data.vocabulary.text_sample import Texts
from limba.export import targets
from limba.inference.generate import score_of

NUM_TEXTS, NUM_SENTENCES, NUM_PIECES = 20, 100, 16
SENTENCES = ("sentence-transformers==6.2.0", "scikit-learn==1.9.1", "transformers==5.23.0", "torch==2.13.0")
JAVASCRIPT = "@huggingface/transformers@4.3.1"
TORCH = """import importlib, json, sys, torch, transformers
folder, package, name = sys.argv[1:]
tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
model = getattr(importlib.import_module(package), name).from_pretrained(folder)
ids = lambda text: tokenizer(text, return_tensors="pt")
def write(text):
    return model.generate(**ids(text), max_new_tokens=PIECES, do_sample=False)[0, 1:].tolist()
def nats(text, words):
    targets = ids(words).input_ids
    begun = torch.cat([torch.zeros_like(targets[:, :1]), targets[:, :-1]], 1)  # 0: pad, with which a T5 begins
    logits = model(**ids(text), decoder_input_ids=begun).logits
    return torch.log_softmax(logits.float(), -1).gather(2, targets[..., None]).sum().item()
with torch.no_grad():
    asked = json.load(sys.stdin)
    written, scored = [write(text) for text in asked["texts"]], [nats(*pair) for pair in asked["pairs"]]
print(json.dumps({"ids": written, "nats": scored}))
"""
CTRANSLATE2 = """import ctranslate2, json, sys, transformers
folder, dtype = sys.argv[1:]
tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
translator = ctranslate2.Translator(folder, compute_type=dtype)
pieces = lambda texts: [tokenizer.convert_ids_to_tokens(tokenizer(text).input_ids) for text in texts]
asked = json.load(sys.stdin)
written = translator.translate_batch(pieces(asked["texts"]), beam_size=1, max_decoding_length=PIECES)
texts, words = zip(*asked["pairs"])
scored = translator.score_batch(pieces(texts), [each[:-1] for each in pieces(words)])  # it adds the end itself
print(json.dumps({"ids": [tokenizer.convert_tokens_to_ids(each.hypotheses[0]) for each in written],
                  "nats": [sum(each.log_probs) for each in scored]}))
"""
NODE = """import { AutoTokenizer, AutoModelForSeq2SeqLM, env } from "@huggingface/transformers";
import { readFileSync } from "fs";
env.localModelPath = "models/";
env.allowRemoteModels = false;
const tokenizer = await AutoTokenizer.from_pretrained("mine");
const model = await AutoModelForSeq2SeqLM.from_pretrained("mine", { dtype: "fp32" });
const ids = [];
for (const text of JSON.parse(readFileSync(0)).texts) {
  const written = await model.generate({ ...tokenizer(text), max_new_tokens: PIECES, do_sample: false });
  ids.push(written.tolist()[0].slice(1).map(Number));
}
console.log(JSON.stringify({ ids }));
"""
VECTORS = """import json, sys
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer import modules
reader = modules.Transformer(sys.argv[1])
pooling = modules.Pooling(reader.get_embedding_dimension(), pooling_mode="mean")
model = SentenceTransformer(modules=[reader, pooling], device="cpu")
print(json.dumps({"vectors": model.encode(json.load(sys.stdin)["texts"]).tolist()}))
"""


class Row(NamedTuple):
    """A program's line of the table; `equal` of NUM_TEXTS texts, None where it writes none, or gives no likelihood."""

    program: str
    version: str
    equal: int | None = None
    bits: float | None = None
    note: str = ""

    def line(self) -> str:
        equal = "" if self.equal is None else f"{self.equal} of {NUM_TEXTS}"
        bits = "" if self.bits is None else f"{self.bits:.4f}"
        cells = [self.program, self.version, equal, ", ".join(filter(None, [bits, self.note]))]
        return "|" + "".join(f" {cell} |" if cell else " |" for cell in cells)


class Asked(NamedTuple):
    """Texts with gaps, pairs of such a text and its hidden words, and Limba's own answers: ids, bits per byte."""

    texts: list[str]
    pairs: list[tuple[str, str]]
    ids: list[list[int]]
    bits: float

    def row(self, program: str, version: str, found: dict[str, Any], note: str = "") -> Row:
        equal = sum(ended(theirs) == ours for theirs, ours in zip(found["ids"], self.ids, strict=True))
        return Row(program, version, equal, bits_of(found["nats"], self.pairs) if "nats" in found else None, note)


def ended(ids: Sequence[int]) -> list[int]:
    """Returns ids up to the end of sequence, which is 1.

    >>> ended([5, 6, 1, 0])
    [5, 6]
    """
    return list(ids[: ids.index(1)] if 1 in ids else ids)


def bits_of(nats: Sequence[float], pairs: Sequence[tuple[str, str]]) -> float:
    """Returns the bits per byte of all hidden words together, their sentinels and the end counted with them."""
    return score_of(sum(nats), 0, "".join(words for _, words in pairs)).bits_per_byte


def asked_of(directory: Path) -> tuple[limba.TrainedModel, Asked]:
    """Returns a run's model, and what is asked; raises InputError for text that gives too few sentences."""
    model = limba.load(directory)
    config = model.config
    if not isinstance(config, limba.RunConfig) or model.task is None:
        raise InputError(f"{directory} is no run of Limba; give the folder that launch/demo.sh wrote.")
    texts = Texts.of_task(parts_of(model.task)[0])
    hidden = texts.sentences(config.data.validation_split, num=NUM_SENTENCES, of_document=10)
    if len(hidden) < NUM_TEXTS:
        raise InputError(f"The validation text of {directory} has {len(hidden)} sentences; {NUM_TEXTS} are needed.")
    pairs = [
        (each.masked, " ".join(f"<extra_id_{number}> {word}" for number, word in enumerate(each.words)))
        for each in hidden
    ]
    given = [each.masked for each in hidden[:NUM_TEXTS]]
    ids = [samples[0].ids.tolist() for samples in model.samples(given, max_tokens=NUM_PIECES, ban_sentinels=False)]
    nats = [score.log_likelihood for score in model.score(pairs)]
    return model, Asked(given, pairs, [ended(each) for each in ids], bits_of(nats, pairs))


def rows(directory: Path, folder: Path) -> tuple[list[Row], float]:
    """Returns the table's rows and Limba's bits per byte; writes the forms of the model into a new folder."""
    model, asked = asked_of(directory)
    model.save(folder / "model")

    def answers(python: str | Path, program: str, *arguments: str | Path, cwd: Path | None = None) -> dict[str, Any]:
        option = ["--input-type=module", "-e"] if python == "node" else ["-c"]
        command = [python, *option, program.replace("PIECES", str(NUM_PIECES)), *arguments]
        given = json.dumps({"texts": asked.texts, "pairs": asked.pairs})
        kept = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        done = subprocess.run(command, input=given, capture_output=True, text=True, check=False, cwd=cwd, env=kept)
        if done.returncode:
            raise InputError(f"{command[0]}: {done.stderr[-2000:]}")
        return json.loads(done.stdout.splitlines()[-1])

    found = []
    versions = {name: dict(each.split("==") for each in target.packages) for name, target in targets.TARGETS.items()}
    ct2, onnx = (targets._environment(targets.TARGETS[name].packages) for name in ("ct2", "onnx"))
    sentences = targets._environment(SENTENCES)
    for python, version in ((sentences, "5.23.0"), (ct2, versions["ct2"]["transformers"])):
        written = answers(python, TORCH, folder / "model", "transformers", "T5ForConditionalGeneration")
        found.append(asked.row("transformers", version, written))
    sizes = {}
    for dtype in ("float32", "float16", "int8"):
        out = targets.write("ct2", str(folder / "model"), str(folder / dtype), dtype)
        sizes[dtype] = (out / "model.bin").stat().st_size / 1e6
        note = f"in {sizes[dtype]:.1f} MB for {sizes['float32']:.1f}" if dtype == "int8" else ""
        written = answers(ct2, CTRANSLATE2, out, "int8" if dtype == "int8" else "float32")
        found.append(asked.row(f"CTranslate2, {dtype}", versions["ct2"]["ctranslate2"], written, note))
    out = targets.write("onnx", str(folder / "model"), str(folder / "onnx"))
    written = answers(onnx, TORCH, out, "optimum.onnxruntime", "ORTModelForSeq2SeqLM")
    program = f"ONNX Runtime {versions['onnx']['onnxruntime']}, by optimum-onnx"
    found.append(asked.row(program, versions["onnx"]["optimum-onnx"], written))
    if shutil.which("node") and shutil.which("npm"):
        in_browser(out, folder / "js")
        found.append(
            asked.row("transformers.js", JAVASCRIPT.rpartition("@")[2], answers("node", NODE, cwd=folder / "js"))
        )
    vectors = np.array(answers(sentences, VECTORS, folder / "model")["vectors"])
    difference = np.abs(vectors - np.array(model.encode(asked.texts))).max()
    note = f"vectors differ from `model.encode` by at most {difference:.1e}".replace("e-0", "e-")
    found.append(Row("sentence-transformers", SENTENCES[0].split("==")[1], note=note))
    return found, asked.bits


def in_browser(onnx: Path, folder: Path) -> None:
    """Lays a folder for ONNX out as docs/next.md has it for transformers.js, which is installed beside it."""
    (folder / "models" / "mine" / "onnx").mkdir(parents=True)
    for path in onnx.glob("*.json"):
        shutil.copy(path, folder / "models" / "mine")
    for name in ("encoder_model.onnx", "decoder_model_merged.onnx"):
        shutil.copy(onnx / name, folder / "models" / "mine" / "onnx")
    command = ["npm", "install", "--ignore-scripts", JAVASCRIPT]  # their scripts download what only a GPU needs
    subprocess.run(command, cwd=folder, check=True, capture_output=True)


HEAD = "| program | version | equal text | bits per byte of 200 gaps (Limba: {:.4f}) |\n| --- | --- | --- | --- |\n"


def table(found: Sequence[Row], bits: float) -> str:
    """Returns the table of docs/next.md."""
    return HEAD.format(bits) + "".join(f"{row.line()}\n" for row in found)


def read(page: str) -> tuple[list[Row], float]:
    """Returns what `table` was made of.

    >>> read(HEAD.format(1.5) + "| CTranslate2, int8 | 4.8 | 3 of 20 | 1.6100, in 2.0 MB for 7.4 |")
    ([Row(program='CTranslate2, int8', version='4.8', equal=3, bits=1.61, note='in 2.0 MB for 7.4')], 1.5)
    """
    form, _, _ = HEAD.partition("{")
    lines = page[page.index(form) :].partition("\n\n")[0].splitlines()
    found = []
    for line in lines[2:]:
        program, version, equal, last = (cell.strip() for cell in line.strip("|").split("|"))
        bits, _, note = last.partition(", ") if re.match(r"\d", last) else ("", "", last)
        found.append(
            Row(program, version, int(equal.split()[0]) if equal else None, float(bits) if bits else None, note)
        )
    return found, float(re.findall(r"Limba: ([\d.]+)", lines[0])[0])


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        print(table(*rows(Path(sys.argv[1]), Path(temporary))), end="")
