"""Reads how a folder of sentence-transformers makes vectors from a network's hidden states: poolings, and what follows.

modules.json lists modules, each with a folder and a class (`SentenceTransformer._load_modules`, versions 2 to 6). A
folder without one is not for sentence-transformers.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from limba.config import InputError, reason_of, untrusted_files
from limba.formats.names import Arrays, Json

MODULES = "modules.json"  # lists what a text goes through
PROMPTS_FILE = "config_sentence_transformers.json"  # has the prompts
# The folder's files that are read, and so downloaded.
FILES = re.compile(
    r"modules\.json|(config_)?sentence_\w+\.json|\d+_\w+/(config\.json|model\.safetensors|pytorch_model\.bin)"
)
# The poolings of version 6, in the order in which it puts several of them together, the keys of versions 2 to 5, and
# our names.
POOLINGS = (
    ("cls", "pooling_mode_cls_token", "first"),
    ("max", "pooling_mode_max_tokens", "max"),
    ("mean", "pooling_mode_mean_tokens", "mean"),
    ("mean_sqrt_len_tokens", "pooling_mode_mean_sqrt_len_tokens", "mean_sqrt_len"),
    ("weightedmean", "pooling_mode_weightedmean_tokens", "weighted_mean"),
    ("lasttoken", "pooling_mode_lasttoken", "last"),
)
ACTIVATIONS: dict[str, Callable[[np.ndarray], np.ndarray]] = {  # classes of torch.nn.modules
    "Identity": lambda x: x,
    "Tanh": np.tanh,
    "ReLU": lambda x: np.maximum(x, 0),
    "Sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "SiLU": lambda x: x / (1 + np.exp(-x)),
    "GELU": lambda x: x * 0.5 * (1 + np.vectorize(math.erf)(x / math.sqrt(2))).astype(x.dtype),
}
ADVICE = "give `pooling` to choose one yourself, or use the model in sentence-transformers"

Vectors = np.ndarray  # float32 [N, D]


class SentenceModules(NamedTuple):
    """From texts to vectors: what is done with a text, with the states of its tokens, and with the vector of these."""

    poolings: tuple[str, ...]  # ours; the vectors of several stand one after the other
    after: tuple[Callable[[Vectors], Vectors], ...]
    prompt: str = ""  # put before each text
    lowers: bool = False  # texts are read in small letters
    max_tokens: int | None = None  # longer texts are cut


def transformer_folder(folder: Path) -> Path:
    """Returns where the network of a folder lies: in old folders of sentence-transformers in one of its own."""
    if (folder / "config.json").exists() or not (folder / MODULES).exists():
        return folder
    modules = _modules(folder)
    return folder / _path(folder, modules[0]) if modules else folder


def read_modules(folder: Path, open_arrays: Callable[[Path], Arrays]) -> SentenceModules | None:
    """Returns what modules.json says about the network in a folder; None without that file.

    `open_arrays` opens the weights of a module's folder. Raises InputError for a module, or a choice of one, that is
    not known here: another vector would be given than sentence-transformers gives.
    """
    root = folder
    if not (root / MODULES).exists():
        root = folder.parent
        if not (root / MODULES).exists() or transformer_folder(root) != folder:
            return None
    poolings: tuple[str, ...] = ()
    after: list[Callable[[Vectors], Vectors]] = []
    with_prompt = True
    for number, module in enumerate(_modules(root)):
        kind = _kind(root, module)
        module_folder = root / _path(root, module)
        is_in_order = (kind == "Transformer") == (number == 0) and (kind == "Pooling") == (number == 1)
        if not is_in_order:
            raise InputError(
                f"{root / MODULES} does not list a Transformer, a Pooling and what follows them; {ADVICE}."
            )
        if kind == "Pooling":
            module_config = _json(module_folder / "config.json")
            poolings = _poolings(module_config, module_folder)
            with_prompt = bool(module_config.get("include_prompt", True))
        elif kind == "Dense":
            after.append(_dense(module_folder, open_arrays))
        elif kind == "Normalize":
            _check_names(_json(module_folder / "config.json", {}), module_folder)
            after.append(_normalized)
        elif kind not in ("Transformer", "Dropout"):
            raise InputError(f"{root / MODULES} names a module {kind}, which is not known; {ADVICE}.")
    if not poolings:
        raise InputError(f"{root / MODULES} names no Pooling; {ADVICE}.")
    prompt = _prompt(root)
    if prompt and not with_prompt:
        raise InputError(f"{root} leaves its prompt out of the pooling (include_prompt), which is not done; {ADVICE}.")
    limits = _json(folder / "sentence_bert_config.json", {})
    length = limits.get("max_seq_length")
    if length is not None and (not isinstance(length, int) or length < 1):
        raise InputError(f"{folder / 'sentence_bert_config.json'} has a max_seq_length of {length!r}; copy it again.")
    return SentenceModules(poolings, tuple(after), prompt, bool(limits.get("do_lower_case", False)), length)


def _read(path: Path) -> object:
    """Returns the content of a JSON file; InputError where it cannot be read."""
    try:
        return json.loads(untrusted_files.bytes_of(path))
    except InputError:
        raise
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"{path} cannot be read ({reason_of(error)}); copy the folder again.") from error


def _json(path: Path, default: Json | None = None) -> Json:
    """Returns an object of a JSON file; `default`, if there is one, where the file is absent."""
    if default is not None and not path.exists():
        return default
    content = _read(path)
    if not isinstance(content, dict):
        raise InputError(f"{path} is not a JSON object; copy the folder again.")
    return content


def _modules(root: Path) -> Sequence[Json]:
    path = root / MODULES
    modules = _read(path)
    if not isinstance(modules, list) or not all(isinstance(module, dict) for module in modules):
        raise InputError(f"{path} is not a list of modules; copy the folder again.")
    return modules


def _path(root: Path, module: Json) -> str:
    """Returns a module's folder, which lies inside the model's; InputError for any other."""
    path = module.get("path")
    parts = path.split("/") if isinstance(path, str) else [".."]
    if path != "" and not all(re.fullmatch(r"\w[\w.-]*", part) for part in parts):
        raise InputError(f"{root / MODULES} names the folder {path!r}, which is not inside; copy the folder again.")
    return str(path)


def _kind(root: Path, module: Json) -> str:
    """Returns a module's class, without its package; InputError for a class from elsewhere."""
    kind = module.get("type")
    if not isinstance(kind, str) or not kind.startswith("sentence_transformers."):
        raise InputError(f"{root / MODULES} names the class {kind!r}, whose code is not run; {ADVICE}.")
    return kind.rpartition(".")[2]


def _poolings(module_config: Json, folder: Path) -> tuple[str, ...]:
    """Returns our names of a Pooling's modes; without any it is the mean, as in sentence-transformers."""
    pooling_mode = module_config.get("pooling_mode")
    if pooling_mode is None:
        poolings = tuple(ours for _, key, ours in POOLINGS if module_config.get(key, False))
        return poolings or ("mean",)
    names = {theirs: ours for theirs, _, ours in POOLINGS}
    modes = pooling_mode if isinstance(pooling_mode, list) else [pooling_mode]
    for mode in modes:
        if mode not in names:
            raise InputError(f"{folder / 'config.json'} has the pooling {mode!r}, which is not known; {ADVICE}.")
    return tuple(names[mode] for mode in modes)


def _prompt(root: Path) -> str:
    """Returns the text that the model has before each of its texts; InputError for a name without a prompt."""
    prompts_config = _json(root / PROMPTS_FILE, {})
    name = prompts_config.get("default_prompt_name")
    if name is None:
        return ""
    prompts = prompts_config.get("prompts") or {}
    prompt = prompts.get(name) if isinstance(prompts, dict) else None
    if not isinstance(prompt, str):
        raise InputError(
            f"{root / PROMPTS_FILE} names the prompt {name!r}, and has none of that name; copy the folder again."
        )
    return prompt


def _check_names(module_config: Json, folder: Path) -> None:
    """Raises InputError for a module that reads or writes something else than the vector of a text."""
    for key in ("module_input_name", "module_output_name"):
        if module_config.get(key) not in (None, "sentence_embedding"):
            raise InputError(
                f"{folder / 'config.json'} has {key} {module_config[key]!r}, which is not known; {ADVICE}."
            )


def _dense(folder: Path, open_arrays: Callable[[Path], Arrays]) -> Callable[[Vectors], Vectors]:
    """Returns a linear layer and its activation."""
    module_config = _json(folder / "config.json")
    _check_names(module_config, folder)
    name = module_config.get("activation_function", "torch.nn.modules.activation.Tanh")
    known = str(name).rpartition(".")[2]
    if not str(name).startswith("torch.nn.") or known not in ACTIVATIONS or module_config.get("use_residual"):
        what = f"activation {name!r}" if not module_config.get("use_residual") else "use_residual"
        raise InputError(f"{folder / 'config.json'} has the {what}, which is not known; {ADVICE}.")
    arrays = open_arrays(folder)
    shape = (module_config.get("out_features"), module_config.get("in_features"))
    if "linear.weight" not in arrays or arrays.shapes["linear.weight"] != shape:
        raise InputError(f"{folder} has no linear.weight of its config.json's shape {shape}; copy the folder again.")
    has_bias = module_config.get("bias", True)
    if has_bias and arrays.shapes.get("linear.bias") != shape[:1]:
        raise InputError(f"{folder} has no linear.bias of its config.json's shape {shape[:1]}; copy the folder again.")
    kernel = arrays["linear.weight"].astype(np.float32).T
    bias = arrays["linear.bias"].astype(np.float32) if has_bias else np.float32(0)
    return lambda vectors: ACTIVATIONS[known](vectors @ kernel + bias).astype(np.float32)


def _normalized(vectors: Vectors) -> Vectors:
    """Returns the vectors with length 1, as torch's `normalize` divides."""
    return vectors / np.maximum(np.linalg.norm(vectors, axis=-1, keepdims=True), np.float32(1e-12))
