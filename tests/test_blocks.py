"""Every block of bash, gin and Python of the docs runs, on tiny sizes, or says why it does not.

`<!-- runs -->` before a block marks one of seconds, `<!-- runs slowly -->` one for the night, and `<!-- not run: … -->`
with the reason one that needs what no test has. Each runs alone, in a new folder with texts, vocabularies, gin files,
Hugging Face's config.json and T5X's gin files. `limba train` gets the flags of TINY, and a bucket is a folder.
`with NAME=t5` puts a trained tiny model there: t5, lm or encoder; or a folder for other programs: folder or
encoder_folder for transformers, ct2, onnx. `in NAME` runs it with the packages of PACKAGES, which are installed for it.
"""

import gzip
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Collection
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.environments import environment_with

ROOT = Path(__file__).parent.parent
BLOCK = re.compile(
    r"<!-- runs( slowly)?(?: in (\S+))?(?: with ([^>]+?))? -->\n```(bash|gin|python)\n(.*?)```", re.DOTALL
)
# What a block needs beside the tests' packages, in an environment that sees these.
BESIDE = {
    "peft": ("peft==0.21.2", "accelerate==1.15.0"),
    "llama.cpp": ("xllamacpp==2026.10.11549",),
    "sentence-transformers": ("sentence-transformers==6.2.0", "scikit-learn==1.9.1", "accelerate==1.15.0"),
    "transformers": ("accelerate==1.15.0",),  # for its Trainer
}
# Of converters for other programs, which need an older transformers: environments that see no other packages.
ALONE = {
    "ct2": ("ctranslate2==4.8.5", "transformers==4.57.6", "torch==2.13.0"),
    "onnx": (
        "optimum-onnx==0.1.0", "optimum==2.1.0", "transformers==4.57.6", "onnx==1.23.2", "onnxruntime==1.32.0",
        "onnxscript==0.7.2", "torch==2.13.0",
    ),
}  # fmt: skip
PACKAGES = {**BESIDE, **ALONE}
KINDS = "t5|lm|encoder|folder|encoder_folder|ct2|onnx"
MARK = re.compile(
    rf" *<!-- (?:runs(?: slowly)?(?: in (?:{'|'.join(PACKAGES)}))?(?: with (?:[\w/]+=(?:{KINDS}) ?)+)?"
    r"|not run: \S.{12,}) -->"
)
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
    """A block as a script of bash, whether it is slow, its packages, the runs that it needs by place, and its pages."""

    text: str
    is_slow: bool
    packages: str
    runs: dict[str, str]
    pages: list[str]


def blocks() -> list[Block]:
    """Returns the blocks that run; one that stands on several pages is one."""
    by_text: dict[str, Block] = {}
    for page in sorted([*ROOT.glob("docs/**/*.md"), ROOT / "README.md"]):
        for slowly, packages, runs, language, text in BLOCK.findall(page.read_text()):
            if language == "python":
                text = f"python - <<'PYTHON'\n{text}PYTHON\n"
            elif language == "gin":
                text = f"cat > block.gin <<'GIN'\n{text}GIN\nlimba train block.gin --gin.MODEL_DIR=runs/block\n"
            places = dict(part.split("=") for part in runs.split())
            by_text.setdefault(text, Block(text, bool(slowly), packages, places, [])).pages.append(page.name)
    return list(by_text.values())


def guides() -> list[str]:
    """Returns the pages for users, as the site's navigation has them."""
    text = (ROOT / "mkdocs.yml").read_text()
    return re.findall(r"- (\S+\.md)$", text.partition("- index.md")[2].partition("- Reference:")[0], re.MULTILINE)


def test_each_guide_begins_with_a_command_that_runs() -> None:
    assert guides() and blocks()
    for page in guides():
        text = (ROOT / "docs" / page).read_text()
        match = BLOCK.search(text)
        assert match is not None, f"docs/{page} has no block marked as runnable"
        assert text[: match.start()].count("\n") < 45, f"docs/{page}: the first one comes late"


def is_program(language: str, begins: str, page: str) -> bool:
    """Whether a block is one of bash, gin or Python: by its language, or by its first line where it names none.

    The commands of other scripts on these pages are run by tests/cli/test_script_page.py, all of them.
    """
    if not language and page not in ("coming_from_huggingface.md", "huggingface_scripts.md"):
        return bool(re.match(r" *(limba|bash|python\S*|pip|git|gcloud|from|import|include|[\w./]+ *=) ?", begins))
    return language in ("bash", "sh", "shell", "console", "gin", "python", "py")


@pytest.mark.lint
def test_every_block_runs_or_says_why_not() -> None:
    """README.md's are run by tests/run/test_readme.py, since a page that everybody reads has no room for marks."""
    bare = []
    for page in sorted([*ROOT.glob("docs/**/*.md"), ROOT / "CONTRIBUTING.md", ROOT / "benchmarks" / "README.md"]):
        lines = page.read_text().splitlines()
        is_inside = False
        for number, line in enumerate(lines):
            if line.lstrip().startswith("```"):
                has_mark = bool(MARK.fullmatch(lines[number - 1]))
                if not is_inside and not has_mark and is_program(line.strip()[3:], lines[number + 1], page.name):
                    bare.append(f"{page.relative_to(ROOT)}:{number + 1}")
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


# Those that are made of another: it, and how.
MADE = {
    "folder": ("t5", "limba convert t5 out && mv out/step_2 folder"),
    "encoder_folder": ("encoder", "limba convert encoder out_encoder && mv out_encoder/step_* encoder_folder"),
    "ct2": ("folder", "ct2-transformers-converter --model folder --output_dir ct2 --copy_files tokenizer_config.json"),
    "onnx": ("folder", "optimum-cli export onnx --model folder --task text2text-generation-with-past onnx"),
}


def fill(folder: Path, corpus: Path, vocabulary: Path) -> None:
    """Puts there what a reader of the docs has: texts, vocabularies, configurations, and `limba` with TINY."""
    lines = corpus.read_text(encoding="utf-8").splitlines()
    texts = [" ".join(json.loads(line)["text"].split()) for line in lines]
    packed = gzip.compress(corpus.read_bytes())
    pairs = [json.dumps({"inputs": f"The module {number} ___ a file.", "targets": "reads"}) for number in range(400)]
    script = {
        "config_name": "model", "tokenizer_name": "byte", "train_file": "data/a.jsonl", "output_dir": "out",
        "max_seq_length": 64, "per_device_train_batch_size": 8, "do_train": True,
    }  # fmt: skip
    files: dict[str, bytes | str] = {
        "data/a.jsonl": corpus.read_bytes(), "corpus/a.jsonl": corpus.read_bytes(), "corpus.jsonl": corpus.read_bytes(),
        "corpus/a.jsonl.gz": packed, "nb/a.jsonl.gz": packed, "fr.jsonl.gz": packed, "BUCKET/text/a.jsonl.gz": packed,
        "corpus/a.txt": "\n".join(texts), "ro.txt": "\n".join(texts), "texts.txt": "\n".join(texts[:4]),
        "in.txt": "The module ___ a file.\nA list ___ values.\n", "pairs.jsonl": "\n".join(pairs),
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
    tiny = " ".join(f"'{flag}'" for flag in TINY if "encoder_layers" not in flag)
    layers = "'--gin.config.ModelConfig.num_encoder_layers=1'"
    limba = folder / "bin" / "limba"
    python = folder / "bin" / "python"
    case = f'case "$1 $2" in "train "*config.json) ;; train*) set -- "$@" {tiny} ;; esac\n'
    others = r"train*encoder*|train\ lm.gin*|train*config.json*"  # networks without an encoder, or whole
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
    shelf = tmp_path_factory.mktemp("trained")
    fill(shelf, corpus, vocabulary)

    def run(kind: str) -> Path:
        if (shelf / kind).exists():
            return shelf / kind
        if kind in MADE:
            begins, command = MADE[kind]
            run(begins)
            check(command, shelf, environment_with(ALONE[kind]) if kind in ALONE else None)
        else:
            names = {"CORPUS": "data/*.jsonl", "VOCABULARY": "byte", "VOCAB_SIZE": 384, "MODEL_DIR": kind}
            flags = [f"--gin.{name}={value}" for name, value in names.items()]
            check(shlex.join(["limba", "train", *TRAINED[kind], *flags]), shelf)
        return shelf / kind

    return run


def check(text: str, folder: Path, python: Path | None = None) -> None:
    """Runs a block in a folder; `python`: of the environment whose programs come first."""
    if "bash launch/" in text and not (folder / "launch").exists() and "limba new" not in text:
        (folder / "launch").symlink_to(ROOT / "launch")
    environments = [str(program.parent) for program in (python, Path(sys.executable)) if program is not None]
    path = ":".join([f"{folder}/bin", *environments, os.environ["PATH"]])
    variables = {
        **os.environ, "PATH": path, "PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu", "VENV": str(folder),
        "HF_HUB_OFFLINE": "1", "SETUP": "no", "RETRIES": "1",
    }  # fmt: skip
    command = ["bash", "-euo", "pipefail", "-c", text.replace("gs://", f"{folder}/")]
    with (folder / "log").open("w") as log:
        ended = subprocess.run(command, cwd=folder, env=variables, stdout=log, stderr=subprocess.STDOUT, check=False)
    assert ended.returncode == 0, f"{text}\n{(folder / 'log').read_text()[-4000:]}"


@pytest.fixture(scope="module")
def python_with() -> Callable[[str], Path]:
    """Returns a function from a name of PACKAGES to a Python that has them; it skips where pip cannot have them."""
    return lambda name: environment_with(PACKAGES[name], sees_tests=name in BESIDE)


def named(slow: bool, packages: Collection[str] = ("",)) -> pytest.MarkDecorator:
    chosen = [
        pytest.param(block, id=block.pages[0])
        for block in blocks()
        if block.is_slow is slow and block.packages in packages
    ]
    return pytest.mark.parametrize("block", chosen)


@pytest.mark.slow
@named(slow=False)
def test_quick_blocks_run(block: Block, folder: Path) -> None:
    check(block.text, folder)


@pytest.mark.night
@named(slow=True)
def test_slow_blocks_run(block: Block, folder: Path, trained: Callable[[str], Path]) -> None:
    for name, kind in block.runs.items():
        shutil.copytree(trained(kind), folder / name)
    check(block.text, folder)


def run_with(block: Block, folder: Path, trained: Callable[[str], Path], python: Path) -> None:
    """Runs a block in which `python` and other programs are of another environment, and `limba` is our own."""
    (folder / "bin" / "python").write_text(f'#!/bin/bash\nexec {python} "$@"\n')
    for name, kind in block.runs.items():
        shutil.copytree(trained(kind), folder / name)
    check(block.text, folder, python)


@pytest.mark.night
@named(slow=True, packages=BESIDE)
def test_blocks_of_other_programs_run(
    block: Block, folder: Path, trained: Callable[[str], Path], python_with: Callable[[str], Path]
) -> None:
    run_with(block, folder, trained, python_with(block.packages))


@pytest.mark.long
@named(slow=True, packages=ALONE)
def test_blocks_of_converters_run(
    block: Block, folder: Path, trained: Callable[[str], Path], python_with: Callable[[str], Path]
) -> None:
    """They need the network once: the packages are installed in an environment that is kept."""
    run_with(block, folder, trained, python_with(block.packages))
