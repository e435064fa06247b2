"""Bad flags, models and lines for the commands that use a trained model: what is typed or damaged, and the sentence."""

from __future__ import annotations

import gzip
import json
import shlex
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

from limba.config import saved_config
from tests.cli.bad_inputs import Case

PROMPT = "generate hf --prompt=a"
COMMANDS = {
    "generate": "No model is given",
    "generate nowhere --prompt=a": "nowhere does not exist: looked there for a Limba run",
    "generate empty --prompt=a": "empty is an empty folder",
    "generate in.txt --prompt=a": "in.txt is a file, and a model is a folder",
    "generate gss://bucket/run --prompt=a": "begins with gss://",
    "generate ~no_such_user/run --prompt=a": "~no_such_user",
    "generate a//b@c --prompt=a": "a//b@c does not exist",
    "generate run --prompt=a --step=3": "no checkpoint at step 3",
    "generate run --prompt=a --step=x": "invalid int value: 'x'",
    "generate run hf --prompt=a": "hf",
    "generate run --model=hf --prompt=a": "both given as --model",
    "generate run --checkpoint=run/best --prompt=a": "Both MODEL (run) and --checkpoint (run/best)",
    "generate run --prompt=a --input=in.txt": "Both --prompt and --input",
    "generate run --prompt=a --output=out.txt": "Both --prompt and --output",
    "generate run --prompt=a --gin.ZZZ=1": "which nothing uses",
    "generate run --prompt=a --gin.BATCH_SIZE=0": "BATCH_SIZE is 0",
    "generate hf --prompt=a --gin.BATCH_SIZE=8": "changes a run's config.gin, and hf has none",
    "generate --gin_file=none.gin --prompt=a": "none.gin does not exist",
    "generate --gin_file=run/config.gin --gin_search_paths=nowhere --prompt=a": "nowhere, which is not a folder",
    "generate --gin_file=gin/demo.gin --gin.MODEL_DIR=empty --gin.VOCABULARY=byte": "holds no checkpoint",
    f"{PROMPT} --temperature=nan": "--temperature is nan; give a finite number",
    f"{PROMPT} --temperature=inf": "--temperature is inf; give a finite number",
    f"{PROMPT} --temperature=-1": "--temperature is -1.0; give a number above 0",
    f"{PROMPT} --temperature=hot": "invalid float value: 'hot'",
    f"{PROMPT} --top_k=-1": "--top_k is -1",
    f"{PROMPT} --top_k=1.5": "invalid int value: '1.5'",
    f"{PROMPT} --top_p=0": "--top_p is 0.0",
    f"{PROMPT} --top_p=2": "--top_p is 2.0",
    f"{PROMPT} --top_p=nan": "--top_p is nan",
    f"{PROMPT} --num=0": "--num is 0",
    f"{PROMPT} --num=-1": "--num is -1",
    f"{PROMPT} --num=many": "invalid int value: 'many'",
    f"{PROMPT} --temperature=0 --num=2": "more than --num_beams 1",
    f"{PROMPT} --max_tokens=0": "--max_tokens is 0",
    f"{PROMPT} --max_tokens=9999999999": "--max_tokens is 9999999999; give a whole number up to",
    f"{PROMPT} --num_beams=0": "--num_beams is 0",
    f"{PROMPT} --num_beams=-2": "--num_beams is -2",
    f"{PROMPT} --length_penalty=nan": "--length_penalty is nan",
    f"{PROMPT} --no_repeat_ngram_size=-1": "--no_repeat_ngram_size is -1",
    f"{PROMPT} --seed=-1": "--seed is -1",
    f"{PROMPT} --seed=99999999999999999999": "--seed is 99999999999999999999; give a whole number up to",
    f"{PROMPT} --top_k=5 --num_beams=2": "Both --top_k and --num_beams",
    f"{PROMPT} --outptu=x": "did you mean --output",
    f"{PROMPT} --vocabulary=none.model": "none.model",
    f"{PROMPT} --vocabulary=": "vocabulary",
    f"{PROMPT} --vocabulary=empty": "empty",
    "generate hf --input=in.txt --batch_size=0": "0 is not a whole number above 0",
    "generate hf --input=in.txt --batch_size=-1": "-1 is not a whole number above 0",
    "generate hf --input=in.txt --batch_size=x": "x is not a whole number above 0",
    "generate hf --input=none.txt": "The input none.txt does not exist",
    "generate hf --input=empty": "The input empty cannot be read",
    "generate hf --input=zzz://a/b.txt": "zzz",
    "generate hf --input=pairs.jsonl --fields=text": "has no text in field 'text'",
    "generate hf --input=in.txt --output=empty": "The output empty cannot be written (Is a directory)",
    "generate hf --input=in.txt --output=in.txt/out.txt": "cannot be written",
    "generate hf --input=in.txt --output=corpus.jsonl": "The output corpus.jsonl exists",
    "generate hf --input=in.txt --output=zzz://a/b.txt": "The output zzz://a/b.txt cannot be written",
    "generate hf --input=in.txt --output=/proc/none/out.txt": "cannot be written",
    "generate --score": "No model is given",
    "generate run --score --fields=a,b,c": "--fields is a,b,c; give two names",
    "generate run --score --fields=": "give two names",
    "generate run --score --fields=,": "give two names",
    "generate run --score --fields=inputs --input=pairs.jsonl": "the model reads inputs too",
    "generate run --score --input=in.txt": "in.txt has no fields inputs, targets",
    "generate run --score --input=none.jsonl": "none.jsonl does not exist",
    "generate run --score --input=pairs.jsonl --fields=inputs,answer": "has no text in field 'answer'",
    "generate run --score --batch_size=1.5": "1.5 is not a whole number above 0",
    "generate nowhere --score --input=pairs.jsonl": "nowhere does not exist",
    "evaluate": "No model is given",
    "evaluate hf": "hf names no task",
    "evaluate run --num_examples=0": "0 is not a whole number above 0",
    "evaluate run --num_examples=-1": "-1 is not a whole number above 0",
    "evaluate run --split=none": "set --split",
    "evaluate nowhere": "nowhere does not exist",
    "evaluate run --gin.CORPUS=none.jsonl": "none.jsonl",
    "convert": "There is no MODEL",
    "convert nowhere": "nowhere does not exist",
    "convert empty": "empty is an empty folder",
    "convert run --to=tflite": "invalid choice: 'tflite'",
    "convert run --to=t5x": "There is no OUT",
    "convert run out more": "more is one too many",
    "convert run out --formats=onnx": "give pytorch, flax, or pytorch,flax",
    "convert run out --dtype=int8": "--dtype is int8; give float32 or bfloat16",
    "convert run out --steps=5": "There is no checkpoint at step 5",
    "convert run out --steps=x": "give best, latest, all, or numbers",
    "convert run out --dry_run": "--dry_run shows what --push would upload",
    "convert run in.txt": "in.txt is a file",
    "convert run hf": "which no conversion wrote",
    "convert run out --vocabulary=none.model": "none.model",
    "convert run out --extra_ids=-1": "extra_ids",
    "convert run out --extra_ids=x": "invalid int value: 'x'",
    "convert run out --config=none.gin": "none.gin does not exist",
    "convert run out --config=gin/runs/pretrain.gin": "sets nothing of config.ModelConfig",
    "convert run out --push=name": "name",
    "convert run out --gin.A=1": "is a flag of limba train",
    "convert run out --to=t5x --step=7": "7",
    "convert run out --to=t5x --dtype=int8": "invalid choice: 'int8'",
    "convert nowhere --to=list": "nowhere",
    "convert empty --to=list": "empty",
    "convert nowhere out --to=limba": "nowhere",
    "convert empty out --to=limba": "empty",
    "convert hf run --to=limba": "run",
    "convert --to=list": "There is no MODEL",
    "convert --to=list nowhere": "nowhere",
    "convert --to=t5x run": "OUT",
    "convert nowhere out --to=t5x": "nowhere",
    "convert run out --to=t5x --step=x": "invalid int value: 'x'",
}
LINES: dict[str, tuple[bytes, str]] = {
    "utf16.txt": ("A text.\n".encode("utf-16"), "is not UTF-8"),
    "latin1.txt": (b"\xaa\xba\n", "is not UTF-8"),
    "junk.jsonl": (b"{\n", "junk.jsonl line 1 is not JSON"),
    "second.jsonl": (b'{"inputs": "a"}\nb\n', "second.jsonl line 2 is not JSON"),
    "list.jsonl": (b"[1]\n", "list.jsonl line 1 is not an object with columns"),
    "number.jsonl": (b'{"inputs": 5}\n', "line 1 has no text in field 'inputs'"),
    "null.jsonl": (b'{"inputs": null}\n', "line 1 has no text in field 'inputs'"),
    "deep.jsonl": (b"[" * 200_000 + b"\n", "deep.jsonl line 1 is not JSON"),
    "cut.txt.gz": (gzip.compress(b"A text.\n" * 99)[:-9], "cut.txt.gz cannot be read"),
    "plain.txt.gz": (b"A text.\n", "plain.txt.gz cannot be read"),
    "plain.txt.zst": (b"A text.\n", "plain.txt.zst cannot be read"),
}


def changed(file: str, **fields: Any) -> Callable[[Path], None]:
    """Returns what sets keys of a JSON file; None removes one."""

    def change(folder: Path) -> None:
        content = json.loads((folder / file).read_text())
        content = {key: value for key, value in {**content, **fields}.items() if value is not None}
        (folder / file).write_text(json.dumps(content))

    return change


def cut(file: str, length: int) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        data = (folder / file).read_bytes()
        (folder / file).write_bytes(data[:length])

    return change


def index(content: bytes) -> Callable[[Path], None]:
    """Returns what replaces hf's weights by an index: beside weights it would not be looked at."""

    def change(folder: Path) -> None:
        (folder / "hf" / "model.safetensors").unlink()
        (folder / "hf" / "model.safetensors.index.json").write_bytes(content)

    return change


def named_by_index(name: Any) -> Callable[[Path], None]:
    """Returns what gives hf an index of its weights that names this file."""
    names = dict.fromkeys(["shared.weight", "lm_head.weight"], name)
    return index(json.dumps({"weight_map": names}).encode())


def header(text: bytes) -> bytes:
    return struct.pack("<Q", len(text)) + text + b"\0" * 64


def run_config(**data: Any) -> Callable[[Path], None]:
    """Returns what gives the run's config.json these fields of its DataConfig."""

    def change(folder: Path) -> None:
        content = json.loads((folder / "run" / saved_config.FILE).read_text())
        content["run"]["data"].update(data)
        (folder / "run" / saved_config.FILE).write_text(json.dumps(content))

    return change


def appended(file: str, text: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        with (folder / file).open("a") as opened:
            opened.write(text)

    return change


def moved(file: str, other: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        (folder / file).rename(folder / other)

    return change


def made(folder: str) -> Callable[[Path], None]:
    def change(shelf: Path) -> None:
        (shelf / folder).unlink(missing_ok=True)
        (shelf / folder).mkdir()

    return change


def line_of(**values: Any) -> bytes:
    return json.dumps(values).encode() + b"\n"


WEIGHTS = "hf/model.safetensors"
ENTRY = b'{"shared.weight": {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 16]}}'
FIGURES = line_of(kind="train", step=1, loss=1.0)
# Files of a model: name -> new content, or what changes the folder; then the expected sentence.
MODELS: list[tuple[str, dict[str, bytes] | Callable[[Path], None], str]] = [
    (PROMPT, {"hf/config.json": b""}, "hf/config.json cannot be read"),
    (PROMPT, {"hf/config.json": b"\xff\xfe{}"}, "hf/config.json cannot be read"),
    (PROMPT, {"hf/config.json": b"[]"}, "hf/config.json describes a None"),
    (PROMPT, {"hf/config.json": b"[" * 100_000}, "hf/config.json cannot be read"),
    (PROMPT, changed("hf/config.json", model_type="bert"), "describes a 'bert'"),
    (PROMPT, changed("hf/config.json", d_model=None), "its config.json belongs to another model"),
    (PROMPT, changed("hf/config.json", d_model="wide"), "hf/config.json: d_model does not give a network of Limba's"),
    (PROMPT, changed("hf/config.json", d_model=-1), "ModelConfig.emb_dim is -1"),
    (PROMPT, changed("hf/config.json", d_model=256), "its config.json belongs to another model"),
    (PROMPT, changed("hf/config.json", num_layers=5), "hf has no"),
    (PROMPT, changed("hf/config.json", feed_forward_proj=5), "hf/config.json has a wrong value"),
    (PROMPT, changed("hf/config.json", dense_act_fn="tanh"), "dense_act_fn is 'tanh', and the activations"),
    (PROMPT, changed("hf/config.json", feed_forward_proj="gelu-gated"), "feed_forward_proj is 'gelu-gated'"),
    (PROMPT, changed("hf/config.json", per_layer_config={"0": {"d_ff": 8}}), "hf/config.json: per_layer_config is"),
    (PROMPT, changed("hf/config.json", layer_norm_epsilon=-1), "ModelConfig.layer_norm_epsilon is -1"),
    (PROMPT, {WEIGHTS: b""}, "cannot be read as safetensors"),
    (PROMPT, {WEIGHTS: b"\xff" * 8}, "its header ends beyond it"),
    (PROMPT, {WEIGHTS: header(b"{")}, "cannot be read as safetensors"),
    (PROMPT, {WEIGHTS: header(b"[]")}, "cannot be read as safetensors"),
    (PROMPT, {WEIGHTS: header(b'{"a": 5}')}, "its entry of a is wrong"),
    (PROMPT, {WEIGHTS: header(ENTRY.replace(b"[0, 16]", b"[0, -16]"))}, "its entry of shared.weight is wrong"),
    (PROMPT, {WEIGHTS: header(ENTRY.replace(b"[2, 2]", b"[2, 3]"))}, "has 16 bytes of shared.weight"),
    (PROMPT, {WEIGHTS: header(ENTRY.replace(b"F32", b"F8_E4M3"))}, "holds shared.weight as F8_E4M3"),
    (PROMPT, {WEIGHTS: header(ENTRY)}, "hf has no"),
    (PROMPT, cut(WEIGHTS, 5000), "copy it again"),
    (PROMPT, made(WEIGHTS), "cannot be read as safetensors"),
    (PROMPT, moved(WEIGHTS, "hf/weights.safetensors"), "hf has a config.json and no weights"),
    (PROMPT, named_by_index("../corpus.jsonl"), "names the file '../corpus.jsonl', which is not beside it"),
    (PROMPT, named_by_index("/etc/passwd"), "names the file '/etc/passwd'"),
    (PROMPT, named_by_index(".."), "names the file '..'"),
    (PROMPT, named_by_index("a\\b"), "which is not beside it"),
    (PROMPT, named_by_index(5), "names the file 5"),
    (PROMPT, named_by_index(["a"]), "is not an index of weights"),
    (PROMPT, named_by_index("none.safetensors"), "none.safetensors cannot be read"),
    (PROMPT, index(b"{}"), "is not an index of weights"),
    (PROMPT, index(b"\xff"), "is not an index of weights"),
    (PROMPT, index(b'{"weight_map": []}'), "is not an index of weights"),
    (PROMPT, {"hf/tokenizer_config.json": b"{"}, "tokenizer_config.json cannot be used (Expecting"),
    (PROMPT, {"hf/tokenizer_config.json": b"[]"}, "tokenizer_config.json cannot be used (it is not a JSON object)"),
    (PROMPT, {"hf/tokenizer_config.json": b"\xff"}, "is not text in UTF-8"),
    (PROMPT, changed("hf/tokenizer_config.json", extra_ids="x"), "extra_ids"),
    # A ByT5, which hf is, reads neither of these two.
    (PROMPT, {"hf/tokenizer_config.json": b"{}", "hf/spiece.model": b"junk"}, "cannot be read as a T5Tokenizer"),
    (PROMPT, {"hf/tokenizer_config.json": b"{}", "hf/tokenizer.json": b"{}"}, "tokenizer.json"),
    ("generate lm --prompt=a", changed("lm/config.json", num_attention_heads=0), "lm/config.json"),
    ("generate lm --prompt=a", changed("lm/config.json", hidden_act="tanh"), "tanh"),
    ("generate lm --prompt=a", changed("lm/config.json", hidden_size=None), "has no 'hidden_size'"),
    ("convert hf out --to=limba", named_by_index("../../etc/passwd"), "which is not beside it"),
    ("generate run --prompt=a", {"run/config.json": b""}, "run/config.json is not JSON"),
    ("generate run --prompt=a", {"run/config.json": b"{}"}, "is not a Limba configuration"),
    ("generate run --prompt=a", {"run/config.json": b"[" * 100_000}, "run/config.json is not JSON"),
    ("generate run --prompt=a", {"run/config.json": b"\xff\xfe"}, "is not text in UTF-8"),
    ("generate run --prompt=a", {"run/config.json": b'{"format": 99, "run": {}}'}, "install a newer version"),
    ("generate run --prompt=a", {"run/config.json": b'{"format": 2, "run": {}}'}, "RunConfig.model is missing"),
    ("generate run --prompt=a --gin.SEED=1", {"run/config.gin": b"BATCH_SIZE = (\n"}, "run/config.gin is not gin"),
    ("generate run --prompt=a --gin.SEED=1", {"run/config.gin": b"\xff\xfe"}, "is not text in UTF-8"),
    (
        "generate run --prompt=a --gin.SEED=1",
        appended("run/config.gin", "include '/etc/passwd'\n"),
        "write its lines there instead",
    ),
    ("generate run --prompt=a", run_config(batch_size=-1), "DataConfig.batch_size is -1"),
    ("generate run --prompt=a", run_config(bach_size=1), "did you mean batch_size?"),
    ("generate run --prompt=a", run_config(vocabulary="none.model"), "names a vocabulary that cannot be read here"),
    ("generate run --prompt=a", run_config(mixture_or_task_name="none"), "no task or mixture has that name"),
    ("generate run --prompt=a", run_config(task_modules=["theirs"]), "limba generate run --prompt=a --import=theirs"),
    ("generate run --score --input=pairs.jsonl", run_config(task_modules=["os.path"]), "--import=os.path"),
    ("evaluate run", run_config(task_modules=["tasks.demo", "theirs.corpus"]), "evaluate run --import=theirs.corpus"),
    ("evaluate run", run_config(task_modules=["tasks.nowhere"]), "tasks.nowhere"),
    (
        "evaluate run --import=theirs",
        run_config(task_modules=["theirs"]),
        "theirs, which does not exist; start in",
    ),
    ("generate run --prompt=a", run_config(task_modules=["tasks.demo; import os"]), "names the module"),
    ("generate run --prompt=a", run_config(task_modules=["..demo"]), "names the module"),
    (
        "generate run --score --input=pairs.jsonl --gin.SEED=1",
        appended("run/config.gin", "import theirs\n"),
        "--import=theirs",
    ),
    ("generate run --prompt=a --gin.BATCH_SIZE=8", appended("run/config.gin", "import theirs\n"), "--import=theirs"),
    ("report --gin_file=run/config.gin", appended("run/config.gin", "import theirs\n"), "--import=theirs"),
    ("report run", {}, "has no figures of training"),
    ("report run", {"run/metrics.jsonl": b"[1]\n5\nnull\n"}, "has no figures of training"),
    ("report run", {"run/metrics.jsonl": b"{broken\n"}, "has no figures of training"),
    ("report run", {"run/metrics.jsonl": b"\xff\xfe"}, "has no figures of training"),
    ("report run", {"run/metrics.jsonl": FIGURES}, "run/metrics.jsonl"),
    (
        "report run",
        {"run/metrics.jsonl": line_of(kind="train", step="one", loss="x")},
        "has no figures of training yet",
    ),
    ("report run", made("run/metrics.jsonl"), "run/metrics.jsonl"),
    ("report run", {"run/config.json": b"{}"}, "is not a Limba configuration"),
]


def cases() -> list[Case]:
    all_cases = [Case(tuple(shlex.split(line)), says) for line, says in COMMANDS.items()]
    for name, (data, says) in LINES.items():
        all_cases.append(Case(("generate", "hf", f"--input={name}", "--output=out.txt"), says, {name: data}))
    for line, damage, says in MODELS:
        files, change = (damage, None) if isinstance(damage, dict) else ({}, damage)
        all_cases.append(Case(tuple(shlex.split(line)), says, files, change))
    return all_cases
