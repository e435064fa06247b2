"""Reads Hugging Face's folders: config.json, and arrays by T5X's names, one by one.

Which files are read says weights.py, which names huggingface_names.py, and which keys of config.json
huggingface_keys.py: all as transformers does, or InputError.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tensorstore as ts

from limba import tool_registry
from limba.config import ConfigError, InputError, ModelConfig, reason_of, untrusted_files
from limba.formats.architectures import (
    CLASSES,
    EMBEDDING,
    HEAD,
    HEADS,
    STORED_HEAD,
    Row,
    query_scale,
    rows,
    unfused,
)
from limba.formats.architectures import kind as kind_of_network
from limba.formats.huggingface_config import has_logits, keys_of, model_fields
from limba.formats.huggingface_names import NAMES, canonical, embedding_of, is_of_head, is_passed_over, renamed
from limba.formats.names import BIN, BIN_INDEX, Arrays, Json, Stored, check_names, flatten
from limba.formats.weights import (
    FLAX_FILE,
    check_weights,
    open_safetensors,
    say_once,
    weights_form,
)

RECORD = "conversion.json"  # in a folder that Limba wrote: its source, the proof's results, what the model has learned
OF_FLAX = (
    f"{{}} has its weights as {FLAX_FILE} alone, which is read here only to use or train a T5; save the model with"
    " transformers 4 as safetensors, or give another."
)
ONLY_FILLS_GAPS = "only_fills_gaps"  # there: the T5 has learned to fill gaps, and to write no running text
ENDS_INPUTS = "ends_inputs"  # there: the language model has learned pairs, in which an end follows each input
LEARNED = (ONLY_FILLS_GAPS, ENDS_INPUTS)
# The entry of config.json that says by what the output layer is multiplied in the file; see `head_scale`.
HEAD_SCALE = "limba_lm_head_scale"
ROWS_COMPARED = 4_096  # of two matrices at a time


def copy_learned(record: Json, folder: Path) -> None:
    """Writes the record of a model made from another one, with what that one's record says it has learned, if any."""
    learned = {key: True for key in LEARNED if record.get(key) is True}
    if learned:
        (folder / RECORD).write_text(json.dumps(learned) + "\n")


def head_scale(config: ModelConfig) -> float:
    """Returns by what the output layer is multiplied in a folder for transformers 5: d_model^0.5 for an untied umT5.

    Version 5 multiplies what that layer reads by d_model^-0.5, whatever config.json says; 4.57 does so only for tied
    embeddings.
    """
    has_head = config.has_logits and not (config.logits_via_embedding or config.is_decoder_only)
    is_scaled = config.relative_bias_per_layer and has_head
    return config.emb_dim**0.5 if is_scaled else 1.0


class StoredHead(NamedTuple):
    """The output layer of a folder."""

    is_tied: bool  # Limba's tied network computes it
    name: str = STORED_HEAD  # the array of one that is not; the embedding, where a T5 uses that without scaling
    scale: float = 1.0  # by what that array is divided


def stored_head(folder: Path, stored: Arrays | None, emb_dim: int = 1) -> StoredHead:
    """Returns the output layer of a folder with these arrays, as its writer has it; None: as config.json says.

    transformers 5 writes `tie_word_embeddings` for every T5, also beside an `lm_head.weight` of its own. So the bytes
    decide: only a copy of the embedding, in any dtype, is tied. What a T5's layer reads is multiplied by
    emb_dim^-0.5 in 4.57 if it is tied; in 5 by `scale_decoder_outputs` for a t5, never for an mt5, always for a umt5.
    """
    hf_config = _config_json(folder)
    kind = str(hf_config.get("model_type"))
    version = str(hf_config.get("transformers_version") or "").partition(".")[0]
    is_by_5 = version.isdigit() and int(version) > 4
    # Limba's own folders, t5 and umt5, name no version and have the keys of both.
    is_read_by_5 = is_by_5 or not version
    # What config.json says; a T5 whose file says null is tied, a Llama without the key is not.
    says_tied = bool(hf_config.get("tie_word_embeddings", kind not in ("llama", "eurobert")))
    says_tied = says_tied or (kind.endswith("t5") and hf_config.get("tie_word_embeddings") is None)
    name = HEADS.get(kind, STORED_HEAD)
    embedding = ""
    is_own = False  # the folder holds another matrix than the embedding
    if stored and kind in NAMES:
        embedding = embedding_of(stored, kind)
        is_own = name in stored and not (says_tied and _is_copy(stored.stored[name], stored.stored[embedding]))
    is_scaled = says_tied and not is_own
    if is_read_by_5:
        # A umt5 without a version and without this key is anybody's: it is read as the newest version does.
        is_of_anybody = not is_by_5 and "scale_decoder_outputs" not in hf_config
        by_kind = {
            "t5": hf_config.get("scale_decoder_outputs", is_scaled),
            "mt5": False,
            "umt5": says_tied or is_of_anybody,
        }
        is_scaled = bool(by_kind.get(kind, is_scaled))
    if is_own or not (says_tied or is_by_5):
        scale = emb_dim**0.5 if is_scaled else 1.0
        written = hf_config.get(HEAD_SCALE)
        # Version 4.57 keeps the key of a folder that it saves again, and does not scale.
        if is_read_by_5 and isinstance(written, int | float) and written:
            scale = written
        head = StoredHead(False, scale=scale)
    elif is_scaled or not stored:
        head = StoredHead(True)
    else:
        head = StoredHead(False, embedding)
    if not has_logits(hf_config, kind):
        return head
    if kind == "umt5" and is_by_5 and is_own and not says_tied:
        say_once(
            f"{folder}: config.json has tie_word_embeddings false, as the umT5 was trained; transformers 5 takes it for"
            " true when it reads the folder, so its logits there are these times d_model^-0.5."
        )
    if says_tied and not head.is_tied:
        why = f"{name} is another matrix" if is_own else "its logits are not scaled as a tied T5's"
        say_once(
            f"{folder}: config.json ties the output layer to the embedding, but {why}: read as a layer of its own."
        )
    return head


def _config_json(folder: Path) -> Json:
    """Returns a folder's config.json; nothing for one that `model_config` refuses."""
    try:
        hf_config = json.loads(untrusted_files.text_of(folder / "config.json"))
    except (OSError, ValueError, RecursionError):
        return {}
    return hf_config if isinstance(hf_config, dict) else {}


def _is_copy(head: Stored, embedding: Stored) -> bool:
    """Returns whether one of two matrices is the other one, perhaps rounded to a shorter dtype.

    They are read some rows at a time: each may have gigabytes.
    """
    if head.shape != embedding.shape:
        return False

    def is_rounded(one: Stored, other: Stored, dtype: np.dtype) -> bool:
        pairs = zip(one.blocks(ROWS_COMPARED), other.blocks(ROWS_COMPARED), strict=True)
        with np.errstate(over="ignore"):
            return all(np.array_equal(left, right.astype(dtype).astype(left.dtype)) for left, right in pairs)

    types = [ts.dtype(name).numpy_dtype for name in ("float32", "bfloat16", "float16")]
    pairs = ((head, embedding), (embedding, head))
    return any(is_rounded(*pair, dtype) for pair in pairs for dtype in types)


def flax_name(row: Row) -> str:
    """Returns transformers' Flax name of a parameter, with slashes; its kernels are not transposed."""
    path = row.pytorch.removesuffix(".weight").replace(".", "/")
    if row.t5x.endswith("embedding"):  # the relative bias too, which is transposed here as well
        return path + "/embedding"
    return path + ("/weight" if row.t5x.endswith("scale") else "/kernel")


class _Contents(NamedTuple):
    """What a folder holds of a network."""

    stored: Arrays  # by the names of the folder
    head: StoredHead
    # T5X's name of an array -> its name in the folder, and whether it is transposed there
    array_of: dict[str, tuple[str, bool]]
    others: set[str]  # arrays that are neither copies of the embedding nor passed over; the network must have them


def open_folder(directory: str | Path, config: ModelConfig, flax: bool | None = None) -> Arrays:
    """Returns a folder's arrays by T5X's names and shapes, unstacked; each is read on access.

    `flax` chooses between two files; None takes the one that transformers reads. Raises InputError for arrays that are
    missing, or that the network does not have; huggingface_names.py says which are passed over.
    """
    folder = Path(directory)
    hf_config = _config_json(folder)
    kind = _kind_of(hf_config, config)
    is_chosen = flax is not None
    if flax or (flax is None and not config.is_decoder_only and weights_form(folder) == "flax"):
        contents = _in_flax(folder, kind, config, is_chosen)
    else:
        contents = _in_pytorch(folder, kind, config, is_chosen)
    stored = contents.stored
    names = [name for name, _ in contents.array_of.values()]
    for name in names:
        if name in stored:
            _check_is_weight(stored, name)
    missing = [name for name in names if name not in stored]
    extra = sorted(contents.others - set(names))
    advice = "give the weights of the model that config.json describes, or use this one in transformers"
    check_names(missing, extra, str(folder), advice)
    arrays_by_name: dict[str, Stored] = {}
    for ours, (name, is_transposed) in contents.array_of.items():
        array = stored.stored[name]
        arrays_by_name[ours] = array.T if is_transposed else array
    if HEAD in arrays_by_name and contents.head.scale != 1:
        arrays_by_name[HEAD] = _scaled(arrays_by_name[HEAD], 1 / np.float32(contents.head.scale))
    arrays = unfused(arrays_by_name, config)
    if kind == "gpt2":
        _scale_queries(arrays, hf_config, config)
    return Arrays(arrays)


def _in_flax(folder: Path, kind: str, config: ModelConfig, is_chosen: bool) -> _Contents:
    """Returns what a flax_model.msgpack holds."""
    check_weights(folder, is_chosen)
    stored = open_flax(folder / FLAX_FILE)
    array_of = {row.t5x: (flax_name(row), row.t5x.endswith("rel_embedding")) for row in rows(config)}
    others = set()
    for name in stored:
        is_copy = re.fullmatch(r"(en|de)coder/embed_tokens/\w+", name) is not None
        if not is_copy and not _is_passed_over_in_flax(name, kind, config):
            others.add(name)
    return _Contents(stored, stored_head(folder, None, config.emb_dim), array_of, others)


def _in_pytorch(folder: Path, kind: str, config: ModelConfig, is_chosen: bool) -> _Contents:
    """Returns what a folder's safetensors or .bin files hold."""
    stored = _pytorch_arrays(folder, kind, is_chosen)
    head = stored_head(folder, stored, config.emb_dim)
    if config.has_logits:
        _check_tied(config, head, folder)
    else:
        _say_what_is_left_out(stored, kind, folder)
    array_of = {row.t5x: (canonical(row.pytorch, kind), row.transposed) for row in rows(config)}
    if HEAD in array_of and not config.is_decoder_only:
        array_of[HEAD] = (head.name, True)
    copies = _copies_of_embedding(stored, kind, folder)
    array_of[EMBEDDING] = (_name_of_embedding(stored, kind, head), False)
    others = {name for name in stored if not is_passed_over(name, kind, is_encoder=not config.has_logits)}
    return _Contents(stored, head, array_of, others - set(copies))


def _check_is_weight(stored: Arrays, name: str) -> None:
    """Raises InputError for an array of booleans or of small integers, which are a quantized model's."""
    dtype = stored.stored[name].dtype
    if dtype.kind in "bui" and dtype.itemsize < 4:
        stored[name]  # reading it raises the error, which names the file


def _scale_queries(arrays: dict[str, Stored], hf_config: Json, config: ModelConfig) -> None:
    """Multiplies a GPT-2's queries by `query_scale` of their layers."""
    for name, array in arrays.items():
        if "/query/" in name:
            layer = int(re.findall(r"layers_(\d+)", name)[0])
            scale = query_scale(hf_config, config.head_dim, layer)
            if scale != 1:
                arrays[name] = _scaled(array, np.float32(scale))


def _kind_of(hf_config: Json, config: ModelConfig) -> str:
    """Returns the model_type of a folder; without one in its config.json, the network's own."""
    kind = hf_config.get("model_type")
    return kind if kind in NAMES else kind_of_network(config)


def _scaled(stored: Stored, factor: np.float32) -> Stored:
    """Returns an array times a number, as float32."""
    return Stored(stored.shape, np.dtype("float32"), lambda: stored.read().astype(np.float32) * factor)


def _check_tied(config: ModelConfig, head: StoredHead, folder: Path) -> None:
    """Raises InputError where a folder has an output layer of its own and the network has not, or the other way."""
    if head.is_tied == config.logits_via_embedding:
        return
    if not head.is_tied:
        check_names([], [STORED_HEAD], str(folder))
    elif not config.is_decoder_only:  # a decoder's own layer may be a copy: its tied logits are not scaled
        check_names([STORED_HEAD], [], str(folder))


def _say_what_is_left_out(stored: Mapping[str, np.ndarray], kind: str, folder: Path) -> None:
    """Logs what a folder has on top of an encoder that is read alone."""
    on_top = sorted({name.partition(".")[0] for name in stored if is_of_head(name, kind)})
    if on_top:
        say_once(
            f"{folder}: its encoder is read, and what stands on top of it ({', '.join(on_top)}) is left out; use"
            " transformers for that."
        )


def _name_of_embedding(stored: Mapping[str, np.ndarray], kind: str, head: StoredHead) -> str:
    """Returns the name under which the embedding is read; the class's own where the folder has none."""
    name = embedding_of(stored, kind)
    is_output = name == NAMES[kind].output
    if not name or (is_output and not head.is_tied):
        return NAMES[kind].embedding[0]
    return name


def _copies_of_embedding(stored: Arrays, kind: str, folder: Path) -> list[str]:
    """Returns the other names under which a folder holds its embedding; InputError for one with another matrix."""
    first = embedding_of(stored, kind)
    copies = [name for name in NAMES[kind].embedding if name in stored and name != first]
    for name in copies:
        if not _is_copy(stored.stored[name], stored.stored[first]):
            raise InputError(
                f"{folder} holds {name} and {first}, two different matrices; Limba's networks have one embedding for"
                " both sides: use this model in transformers."
            )
    return [*copies, NAMES[kind].output]  # `stored_head` has looked at the output layer


def _is_passed_over_in_flax(name: str, kind: str, config: ModelConfig) -> bool:
    """Returns `is_passed_over` of a Flax name."""
    pytorch = re.sub(r"\.(embedding|kernel)$", ".weight", name.replace("/", "."))
    return is_passed_over(pytorch, kind, is_encoder=not config.has_logits)


def _pytorch_arrays(folder: Path, kind: str, is_chosen: bool = False) -> Arrays:
    """Returns the arrays of a folder by PyTorch's names, each as the class with a language head calls it."""
    return renamed(open_pytorch(folder, is_chosen), kind, str(folder))


def open_pytorch(folder: Path, is_chosen: bool = False) -> Arrays:
    """Returns the arrays of a folder by the names in its files.

    The file is the one that transformers would read; a .bin is read as safetensors, which Limba's tools write.
    `is_chosen`: see `check_weights`.
    """
    check_weights(folder, is_chosen)
    directory = folder
    if weights_form(folder) == "flax":
        raise InputError(OF_FLAX.format(folder))
    if any((folder / name).exists() for name in (BIN, BIN_INDEX)):
        migrate = tool_registry.find("migrate")
        if migrate is not None:
            directory = migrate.as_safetensors(folder)
        elif weights_form(folder) == "bin":
            raise InputError(f"{folder} has only a pytorch_model.bin; save safetensors, or install Limba's tools.")
    return open_safetensors(directory)


def model_config(directory: str | Path, kind: str | None = None, **choices: object) -> ModelConfig:
    """Returns the network in a config.json (a file, or in a folder); InputError for unknown models.

    `kind` is the model_type of a file that names none.
    """
    path = Path(directory) if Path(directory).is_file() else Path(directory) / "config.json"
    try:
        hf_config = json.loads(untrusted_files.text_of(path))
    except InputError:
        raise
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"{path} cannot be read ({reason_of(error)}); give a Hugging Face folder.") from error
    kind = (hf_config.get("model_type") or kind) if isinstance(hf_config, dict) else None
    if kind not in ("mt5", *CLASSES):
        raise InputError(f"{path} describes a {kind!r}; only mt5, {', '.join(CLASSES)} are read.")
    form = weights_form(directory)  # None for a file
    try:
        fields = model_fields(hf_config, kind)
        if form in ("safetensors", "bin"):
            fields["logits_via_embedding"] = stored_head(
                Path(directory), _pytorch_arrays(Path(directory), kind)
            ).is_tied
        return ModelConfig(**{**fields, "dtype": "float32", **choices})
    except ConfigError as error:
        named = keys_of(str(error.field).removeprefix("ModelConfig."), kind)
        raise InputError(f"{path}: {named} does not give a network of Limba's ({str(error).rstrip('.')}).") from error
    except KeyError as error:
        raise InputError(f"{path} has no {error}; give the config.json of a Hugging Face model.") from error
    except InputError as error:
        raise InputError(f"{path}: {error}") from error
    except (TypeError, AttributeError, ValueError, ArithmeticError) as error:
        raise InputError(f"{path} has a wrong value ({reason_of(error)}); copy it again.") from error


def has_flax_alone(folder: Path) -> bool:
    """Returns whether a folder's weights are in Flax's form alone, in which only a T5's are read."""
    return weights_form(folder) == "flax" and not str(_config_json(folder).get("model_type")).endswith("t5")


def open_flax(path: Path) -> Arrays:
    """Returns the arrays of a flax_model.msgpack by names joined with slashes; the file is read into memory."""
    from flax import serialization

    try:
        tree: Any = serialization.msgpack_restore(untrusted_files.bytes_of(path))
        arrays = {name: np.asarray(leaf) for name, leaf in flatten(tree).items()}
    except InputError:
        raise
    except Exception as error:  # msgpack's own errors, and numpy's, of many kinds
        raise InputError(f"{path} cannot be read as flax's msgpack ({reason_of(error)}); copy it again.") from error
    return Arrays(
        {name: Stored(array.shape, array.dtype, partial(np.asarray, array)) for name, array in arrays.items()}
    )
