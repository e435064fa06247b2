"""Forms for other programs, each written by its own package in an environment of its own: CTranslate2, ONNX."""

import hashlib
import os
import subprocess
import sys
import tempfile
import venv
from pathlib import Path
from typing import NamedTuple

from limba.config import InputError, kinds
from limba.formats import huggingface
from limba.inference.load import load
from limba.storage import lease

CACHE = "~/.cache/limba/environments"
COMPLETE = "complete"  # a file of an environment whose packages are all there
TOKENIZER = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "spiece.model")


class Target(NamedTuple):
    """What writes a form: packages at the versions that were tried, and a program of (folder, output, its dtype)."""

    packages: tuple[str, ...]
    program: str


CTRANSLATE2 = """import sys
from ctranslate2.converters import TransformersConverter
folder, out, dtype, *files = sys.argv[1:]
TransformersConverter(folder, copy_files=files).convert(out, quantization=dtype)
"""
ONNX = """import sys
from optimum.exporters.onnx import main_export
from transformers import AutoConfig
folder, out, dtype, *files = sys.argv[1:]
kind = "text2text" if AutoConfig.from_pretrained(folder).is_encoder_decoder else "text"
main_export(folder, out, task=f"{kind}-generation-with-past", device="cpu")
"""
TARGETS = {
    # transformers 5 reads each T5 as tied, for which the converter divides the logits by sqrt(d_model)
    "ct2": Target(("ctranslate2==4.8.5", "transformers==4.57.6", "torch==2.13.0"), CTRANSLATE2),
    "onnx": Target(
        ("optimum-onnx==0.1.0", "optimum==2.1.0", "transformers==4.57.6", "onnx==1.23.2", "onnxruntime==1.32.0",
         "onnxscript==0.7.2", "torch==2.13.0"),
        ONNX,
    ),
}  # fmt: skip
DTYPES = {"ct2": ("float32", "int8", "float16", "bfloat16"), "onnx": ("float32",)}


def write(target: str, folder: str, out: str, dtype: str = "float32") -> Path:
    """Writes a folder for transformers, or what `load` opens, in a target's form; returns the output, a new folder.

    The environment is made when it is first needed, which takes minutes and some GB. Raises InputError for a path
    without a model, for a dtype that the form lacks, and for what the package says against the network.
    """
    place, output = Path(os.path.expanduser(folder)), Path(os.path.expanduser(out)).resolve()
    kinds.check_local(out, "OUT")
    if dtype not in DTYPES[target]:
        raise InputError(f"The dtype {dtype} is none of {target}'s; give one of {', '.join(DTYPES[target])}.")
    if output.exists():
        raise InputError(f"{out} exists; give a new folder.")
    if not huggingface.is_huggingface(place):  # a run, or another checkpoint
        with tempfile.TemporaryDirectory(prefix="limba-export-") as local:
            return write(target, str(load(folder).save(Path(local) / "model")), out, dtype)
    files = [name for name in TOKENIZER if (place / name).exists()]
    python = _environment(TARGETS[target].packages)
    command = [str(python), "-c", TARGETS[target].program, str(place.resolve()), str(output), dtype, *files]
    _run(command, f"{folder} cannot be written for {target}")
    return output


def _environment(packages: tuple[str, ...]) -> Path:
    """Returns the Python of an environment with these packages, made unless it is there."""
    digest = hashlib.blake2b(repr((packages, sys.version_info[:2])).encode(), digest_size=4).hexdigest()
    folder = Path(os.path.expanduser(CACHE)) / f"{packages[0].replace('==', '-')}-{digest}"
    python = folder / "bin" / "python"
    if not (folder / COMPLETE).exists():
        folder.mkdir(parents=True, exist_ok=True)
        with lease.held(str(folder), "installs into"):
            if not (folder / COMPLETE).exists():
                print(f"Making {folder}, once: {', '.join(packages)}", flush=True)
                venv.EnvBuilder(with_pip=True).create(folder)
                _run([str(python), "-m", "pip", "install", "-q", *packages], "The packages cannot be installed")
                (folder / COMPLETE).touch()
    return python


def _run(command: list[str], what: str) -> None:
    kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}
    ended = subprocess.run(command, env=kept, capture_output=True, text=True, check=False)
    if ended.returncode:
        reason = (ended.stderr.strip() or "no reason is given").splitlines()[-1][:300]
        raise InputError(f"{what}: {reason.rstrip('.')}.")
