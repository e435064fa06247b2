"""The blocks of the pages that are marked as runnable do run, on tiny sizes.

`<!-- runs -->` before a block of bash or Python marks one of seconds, `<!-- runs slowly -->` one for the slow suite.
Each runs alone, in a new folder with data/a.jsonl, config.json (of Hugging Face's scripts) and T5X's gin files; `limba
train` gets the flags of TINY.
"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
BLOCK = re.compile(r"<!-- runs( slowly)? -->\n```(bash|python)\n(.*?)```", re.DOTALL)
SIZES = {"emb_dim": 32, "num_heads": 2, "head_dim": 16, "mlp_dim": 64, "num_encoder_layers": 1, "num_decoder_layers": 1}
TINY = [
    *(f"--gin.config.ModelConfig.{name}={value}" for name, value in SIZES.items()),
    "--gin.TRAIN_STEPS=2", "--gin.BATCH_SIZE=8", "--gin.config.EvaluationConfig.num_batches=1",
    "--gin.config.EvaluationConfig.num_examples=8", "--gin.config.DataConfig.num_data_shards=2",
]  # fmt: skip
# Where a model of Hugging Face's or T5X's sizes is meant.
SCRIPT = {"d_model": 32, "num_heads": 2, "d_kv": 16, "d_ff": 64, "num_layers": 1, "num_decoder_layers": 1,
          "vocab_size": 384, "feed_forward_proj": "gated-gelu", "model_type": "t5"}  # fmt: skip


def blocks() -> dict[str, tuple[bool, list[str]]]:
    """Returns block -> (whether it is slow, the pages that have it)."""
    found: dict[str, tuple[bool, list[str]]] = {}
    for page in sorted([*ROOT.glob("docs/*.md"), ROOT / "README.md"]):
        for slowly, language, text in BLOCK.findall(page.read_text()):
            text = text if language == "bash" else f"python - <<'PYTHON'\n{text}PYTHON\n"
            found.setdefault(text, (bool(slowly), []))[1].append(page.name)
    return found


def guides() -> list[str]:
    text = (ROOT / "mkdocs.yml").read_text()
    return re.findall(r"- (\S+\.md)$", text.partition("- Guides:")[2].partition("- Reference:")[0], re.MULTILINE)


def test_each_guide_begins_with_a_command_that_runs() -> None:
    found = blocks()
    assert len(guides()) >= 15
    for page in [*guides(), "start.md", "start.ja.md", "start.ro.md"]:
        text = (ROOT / "docs" / page).read_text()
        match = BLOCK.search(text)
        assert match is not None, f"docs/{page} has no block marked as runnable"
        assert text[: match.start()].count("\n") < 45, f"docs/{page}: the first one comes late"
    assert all(pages for _, pages in found.values())


@pytest.fixture
def folder(corpus: Path, tmp_path: Path) -> Path:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a.jsonl").write_bytes(corpus.read_bytes())
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text(json.dumps(SCRIPT))
    script = {
        "config_name": "model", "tokenizer_name": "byte", "train_file": "data/a.jsonl", "output_dir": "out",
        "max_seq_length": 64, "per_device_train_batch_size": 8, "do_train": True,
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(script))
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "t5x_models").symlink_to(ROOT / "tests" / "cli" / "t5x")
    (tmp_path / "ro_base.gin").symlink_to(ROOT / "tests" / "cli" / "t5x" / "ro_base.gin")
    (tmp_path / "bin").mkdir()
    tiny = " ".join(TINY)
    limba = tmp_path / "bin" / "limba"
    limba.write_text(
        "#!/bin/bash\n"
        f'case "$1 $2" in "train --json"*) ;; train*) set -- "$@" {tiny} ;; esac\n'
        f'exec {sys.executable} -m limba "$@"\n'
    )
    limba.chmod(0o755)
    return tmp_path


def check(text: str, folder: Path) -> None:
    if "bash launch/" in text and not (folder / "launch").exists() and "limba new" not in text:
        (folder / "launch").symlink_to(ROOT / "launch")
    path = f"{folder}/bin:{Path(sys.executable).parent}:{os.environ['PATH']}"
    variables = {
        **os.environ, "PATH": path, "PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu",
        "HF_HUB_OFFLINE": "1", "SETUP": "no",
    }  # fmt: skip
    command = ["bash", "-euo", "pipefail", "-c", text]
    with (folder / "log").open("w") as log:
        ended = subprocess.run(command, cwd=folder, env=variables, stdout=log, stderr=subprocess.STDOUT, check=False)
    works = (0, 2) if "limba preflight" in text else (0,)  # 2: it works, with a warning about this text
    assert ended.returncode in works, f"{text}\n{(folder / 'log').read_text()[-4000:]}"


def named(slow: bool) -> pytest.MarkDecorator:
    chosen = [pytest.param(text, id=pages[0]) for text, (slowly, pages) in blocks().items() if slowly is slow]
    return pytest.mark.parametrize("text", chosen)


@named(slow=False)
def test_quick_blocks_run(text: str, folder: Path) -> None:
    check(text, folder)


@pytest.mark.night
@named(slow=True)
def test_slow_blocks_run(text: str, folder: Path) -> None:
    check(text, folder)
