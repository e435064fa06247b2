"""Every block of bash, gin and Python of the docs runs, on tiny sizes, or says why it does not.

`<!-- runs -->` before a block marks one of seconds, `<!-- runs slowly -->` one for the night, and `<!-- not run: … -->`
with the reason one that needs what no test has. Each runs alone, in a new folder with texts, vocabularies, gin files,
Hugging Face's config.json and T5X's gin files. `limba train` gets the flags of TINY, and a bucket is a folder.
`with NAME=t5` puts a trained tiny model there: t5, lm or encoder; or folder, a T5 for transformers.
"""

import gzip
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parent.parent
BLOCK = re.compile(r"<!-- runs( slowly)?(?: with ([^>]+?))? -->\n```(bash|gin|python)\n(.*?)```", re.DOTALL)
MARK = re.compile(r" *<!-- (?:runs(?: slowly)?(?: with (?:[\w/]+=(?:t5|lm|encoder|folder) ?)+)?|not run: \S.{12,}) -->")
SIZES = {"emb_dim": 32, "num_heads": 2, "head_dim": 16, "mlp_dim": 64, "num_encoder_layers": 1, "num_decoder_layers": 1}
TINY = [
    *(f"--gin.config.ModelConfig.{name}={value}" for name, value in SIZES.items()),
    "--gin.TRAIN_STEPS=2", "--gin.BATCH_SIZE=8", "--gin.config.EvaluationConfig.num_batches=1",
    "--gin.config.EvaluationConfig.num_examples=8", "--gin.config.DataConfig.num_data_shards=2",
]  # fmt: skip
# Where a model of Hugging Face's or T5X's sizes is meant.
SCRIPT = {"d_model": 32, "num_heads": 2, "d_kv": 16, "d_ff": 64, "num_layers": 1, "num_decoder_layers": 1,
          "vocab_size": 384, "feed_forward_proj": "gated-gelu", "model_type": "t5"}  # fmt: skip


class Block(NamedTuple):
    """A block as a script of bash, whether it is slow, the runs that it needs by their places, and its pages."""

    text: str
    is_slow: bool
    runs: dict[str, str]
    pages: list[str]


def blocks() -> list[Block]:
    """Returns the blocks that run; one that stands on several pages is one."""
    found: dict[str, Block] = {}
    for page in sorted([*ROOT.glob("docs/*.md"), ROOT / "README.md"]):
        for slowly, runs, language, text in BLOCK.findall(page.read_text()):
            if language == "python":
                text = f"python - <<'PYTHON'\n{text}PYTHON\n"
            elif language == "gin":
                text = f"cat > block.gin <<'GIN'\n{text}GIN\nlimba train block.gin --gin.MODEL_DIR=runs/block\n"
            places = dict(each.split("=") for each in runs.split())
            found.setdefault(text, Block(text, bool(slowly), places, [])).pages.append(page.name)
    return list(found.values())


def guides() -> list[str]:
    text = (ROOT / "mkdocs.yml").read_text()
    return re.findall(r"- (\S+\.md)$", text.partition("- Guides:")[2].partition("- Reference:")[0], re.MULTILINE)


def test_each_guide_begins_with_a_command_that_runs() -> None:
    assert len(guides()) >= 15 and len(blocks()) >= 55
    for page in [*guides(), "start.md", "start.ja.md", "start.ro.md"]:
        text = (ROOT / "docs" / page).read_text()
        match = BLOCK.search(text)
        assert match is not None, f"docs/{page} has no block marked as runnable"
        assert text[: match.start()].count("\n") < 45, f"docs/{page}: the first one comes late"


@pytest.mark.lint
def test_every_block_runs_or_says_why_not() -> None:
    """README.md's are run by tests/run/test_readme.py, since a page that everybody reads has no room for marks."""
    bare = []
    for page in sorted(ROOT.glob("docs/*.md")):
        lines, is_inside = page.read_text().splitlines(), False
        for number, line in enumerate(lines):
            if line.lstrip().startswith("```"):
                has_mark = bool(MARK.fullmatch(lines[number - 1]))
                if not is_inside and not has_mark and line.strip() in ("```bash", "```gin", "```python"):
                    bare.append(f"docs/{page.name}:{number + 1}")
                is_inside = not is_inside
    assert not bare, f"these blocks have no mark: {', '.join(bare)}"


TRAINED = {
    "t5": ["gin/demo.gin"],
    "encoder": [
        "gin/nb_encoder_base.gin", "--gin.NEW_VOCABULARY_SIZE=None", "--gin.TASK_FEATURE_LENGTHS={'targets': 64}",
    ],
    "lm": ["lm.gin"],
}  # fmt: skip
LM = """from __gin__ import dynamic_registration
from tasks import wiki40b
include 'gin/models/lm/tiny.gin'
include 'gin/runs/pretrain_lm.gin'
MIXTURE_OR_TASK_NAME = 'wiki40b_ja_causal_lm'
TASK_FEATURE_LENGTHS = {'targets': 64}
NEW_VOCABULARY_SIZE = None
"""
MINE = """include 'gin/demo.gin'
CORPUS = 'data/*.jsonl'
VOCABULARY = 'byte'
VOCAB_SIZE = 384
MODEL_DIR = 'runs/mine'
"""


def fill(folder: Path, corpus: Path, vocabulary: Path) -> None:
    """Puts there what a reader of the docs has: texts, vocabularies, configurations, and `limba` with TINY."""
    lines = corpus.read_text(encoding="utf-8").splitlines()
    texts = [" ".join(json.loads(line)["text"].split()) for line in lines]
    packed = gzip.compress(corpus.read_bytes())
    pair = json.dumps({"inputs": "The module ___ a file.", "targets": "reads"}) + "\n"
    script = {
        "config_name": "model", "tokenizer_name": "byte", "train_file": "data/a.jsonl", "output_dir": "out",
        "max_seq_length": 64, "per_device_train_batch_size": 8, "do_train": True,
    }  # fmt: skip
    files: dict[str, bytes | str] = {
        "data/a.jsonl": corpus.read_bytes(), "corpus/a.jsonl": corpus.read_bytes(), "corpus.jsonl": corpus.read_bytes(),
        "corpus/a.jsonl.gz": packed, "nb/a.jsonl.gz": packed, "fr.jsonl.gz": packed, "BUCKET/text/a.jsonl.gz": packed,
        "corpus/a.txt": "\n".join(texts), "ro.txt": "\n".join(texts), "texts.txt": "\n".join(texts[:4]),
        "in.txt": "The module ___ a file.\nA list ___ values.\n", "pairs.jsonl": pair * 4,
        "my.model": vocabulary.read_bytes(), "vocabulary.model": vocabulary.read_bytes(), "lm.gin": LM,
        "gin/my_run.gin": MINE, "my_run.gin": MINE, "gin/my_base.gin": MINE,
        "model/config.json": json.dumps(SCRIPT), "config.json": json.dumps(script),
    }  # fmt: skip
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    (folder / "models").mkdir()
    (folder / "models" / "t5x_models").symlink_to(ROOT / "tests" / "cli" / "t5x")
    (folder / "ro_base.gin").symlink_to(ROOT / "tests" / "cli" / "t5x" / "ro_base.gin")
    # `limba`, and python as launch/pretrain.sh calls it, in the environment that VENV names.
    (folder / "bin").mkdir()
    tiny = " ".join(f"'{each}'" for each in TINY if "encoder_layers" not in each)
    layers = "'--gin.config.ModelConfig.num_encoder_layers=1'"
    limba, python = folder / "bin" / "limba", folder / "bin" / "python"
    case = f'case "$1 $2" in "train --json"* | "train "*config.json) ;; train*) set -- "$@" {tiny} ;; esac\n'
    others = r"train*encoder*|train\ lm.gin*|train\ --json*|train*config.json*"  # networks without an encoder, or whole
    one = f'case "$*" in {others}) ;; train*) set -- "$@" {layers} ;; esac\n'
    limba.write_text(f'#!/bin/bash\n{case}{one}exec {sys.executable} -m limba "$@"\n')
    both = f'[ "${{1:-}} ${{2:-}}" != "-m limba" ] || {{ shift 2; exec {limba} "$@"; }}\n'
    python.write_text(f'#!/bin/bash\n{both}exec {sys.executable} "$@"\n')
    for path in (limba, python):
        path.chmod(0o755)


@pytest.fixture
def folder(corpus: Path, vocabulary: Path, tmp_path: Path) -> Path:
    fill(tmp_path, corpus, vocabulary)
    return tmp_path


@pytest.fixture(scope="module")
def trained(corpus: Path, vocabulary: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Returns a function from a kind to a run of it, which is trained once."""
    place = tmp_path_factory.mktemp("trained")
    fill(place, corpus, vocabulary)

    def run(kind: str) -> Path:
        if kind == "folder" and not (place / kind).exists():
            run("t5")
            check("limba convert t5 out && mv out/step_2 folder", place)
        elif not (place / kind).exists():
            names = {"CORPUS": "data/*.jsonl", "VOCABULARY": "byte", "VOCAB_SIZE": 384, "MODEL_DIR": kind}
            flags = [f"--gin.{name}={value}" for name, value in names.items()]
            check(shlex.join(["limba", "train", *TRAINED[kind], *flags]), place)
        return place / kind

    return run


def check(text: str, folder: Path) -> None:
    if "bash launch/" in text and not (folder / "launch").exists() and "limba new" not in text:
        (folder / "launch").symlink_to(ROOT / "launch")
    path = f"{folder}/bin:{Path(sys.executable).parent}:{os.environ['PATH']}"
    variables = {
        **os.environ, "PATH": path, "PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu", "VENV": str(folder),
        "HF_HUB_OFFLINE": "1", "SETUP": "no", "RETRIES": "1",
    }  # fmt: skip
    command = ["bash", "-euo", "pipefail", "-c", text.replace("gs://", f"{folder}/")]
    with (folder / "log").open("w") as log:
        ended = subprocess.run(command, cwd=folder, env=variables, stdout=log, stderr=subprocess.STDOUT, check=False)
    works = (0, 2) if "limba preflight" in text else (0,)  # 2: it works, with a warning about this text
    assert ended.returncode in works, f"{text}\n{(folder / 'log').read_text()[-4000:]}"


def named(slow: bool) -> pytest.MarkDecorator:
    chosen = [pytest.param(each, id=each.pages[0]) for each in blocks() if each.is_slow is slow]
    return pytest.mark.parametrize("block", chosen)


@named(slow=False)
def test_quick_blocks_run(block: Block, folder: Path) -> None:
    check(block.text, folder)


@pytest.mark.night
@named(slow=True)
def test_slow_blocks_run(block: Block, folder: Path, trained: Callable[[str], Path]) -> None:
    for place, kind in block.runs.items():
        shutil.copytree(trained(kind), folder / place)
    check(block.text, folder)
