"""Limba's checkpoints as T5X's: the whole tree by T5X's names, including Adafactor's averages."""

import re
import zipfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from limba.config import InputError
from limba.export.huggingface import upload_made
from limba.formats import t5x
from limba.formats.limba_checkpoint import LimbaCheckpoint
from limba.formats.names import Arrays, Stored
from limba.formats.open import HUGGING_FACE, LIMBA, open_path
from limba.training.checkpoints.initial import exchanged_kind

# An array of Adafactor's state: the kind of average, and the parameter.
_AVERAGE = re.compile(r"^opt_state/.*?/(v_row|v_col|v)/((?:encoder|decoder|token_embedder)/.+)$")
KINDS = ("m", "v", "v_row", "v_col")
PLACEHOLDER = Stored((1,), np.dtype(np.float32), lambda: np.zeros((1,), np.float32))  # where T5X has no average
NO_STATE = "without optimizer state, which is not plain Adafactor's for every parameter"


class T5xTree(Arrays):
    """A Limba checkpoint as T5X's tree: `target/…`, `state/step`, and Adafactor's `state/param_states/…`.

    `m` holds T5X's placeholders. The optimizer state is only written for Adafactor without momentum on every parameter:
    T5X could not read the state of an optimizer that leaves only some of them to Adafactor.
    """

    def __init__(self, arrays: LimbaCheckpoint):
        averages: dict[tuple[str, str], str] = {}  # kind of average, and parameter as it is stacked -> its array
        for name in arrays.tree:
            match = _AVERAGE.match(name)
            if match:
                averages[match[1], match[2]] = name
        # T5X has other names for the parameters of a T5-like decoder-only network.
        is_t5_decoder = "decoder/relpos_bias/rel_embedding" in arrays and "encoder/encoder_norm/scale" not in arrays
        their_name = t5x.their_name if is_t5_decoder else str
        has_momentum = any("/ema/" in name for name in arrays.tree)  # T5X keeps another one, in `m`
        averaged = {parameter for _, parameter in averages}
        self.has_optimizer = not has_momentum and all(_stacked(name) in averaged for name in arrays)
        step = Stored((), np.dtype(np.int32), lambda: np.asarray(arrays.tree["step"], np.int32))
        tree = {"state/step": step}
        for name, stored in arrays.stored.items():
            tree[f"target/{their_name(name)}"] = stored
        if self.has_optimizer:
            for kind in KINDS:
                averages_of_kind = _averages(arrays, averages, kind)
                for name in arrays:
                    tree[f"state/param_states/{their_name(name)}/{kind}"] = averages_of_kind.get(name, PLACEHOLDER)
        super().__init__(tree)


def _averages(arrays: LimbaCheckpoint, averages: Mapping[tuple[str, str], str], kind: str) -> dict[str, Stored]:
    """Returns the parameter -> its average of one kind, each layer for itself; none of T5X's own `m`."""
    if kind == "m":
        return {}
    layers: dict[str, Stored] = {}
    for name in arrays:
        if name not in layers:  # one array of a stack gives the averages of all its layers
            ours = exchanged_kind(kind, name, arrays.stored[name].shape)
            stacked = _stacked(name)
            layers |= arrays.layers(stacked, averages[ours, stacked])
    return layers


def _stacked(parameter: str) -> str:
    """Returns the name of the stack that a layer's parameter is in."""
    return re.sub(r"/layers_\d+/", "/layers/", parameter)


def open_tree(path: str) -> tuple[T5xTree | t5x.StoredTree, str]:
    """Returns (all arrays by T5X's names, their path) of a checkpoint, or of a run's newest one.

    Raises InputError for a Hugging Face folder, which has no such arrays.
    """
    opened = open_path(path, with_weights=False)
    if opened.kind == LIMBA:
        checkpoint = LimbaCheckpoint(opened.newest)
        return T5xTree(checkpoint), str(checkpoint.path)
    if opened.kind == HUGGING_FACE:
        raise InputError(
            f"{path} is a Hugging Face folder, and only arrays of Limba's and T5X's checkpoints are listed; make a"
            " Limba checkpoint of it first, or give another."
        )
    tree = t5x.open_checkpoint(opened.newest)
    return tree, str(tree.path)


def export(path: str, out: str, step: int | None, dtype: str) -> str:
    """Writes OUT/checkpoint_<step> in T5X's legacy form, which T5X reads; returns a sentence about it."""
    opened = open_path(path, with_weights=False)
    if opened.kind != LIMBA:
        raise InputError(
            f"{path} is a model of {opened.kind}, and only Limba's checkpoints are written for T5X; give a run of Limba"
            " or one of its checkpoints."
        )
    checkpoint = LimbaCheckpoint(opened.checkpoint(step))
    tree = T5xTree(checkpoint)
    if "://" in out:
        written = upload_made(lambda folder: Path(t5x.write_legacy(folder, checkpoint.step, tree, dtype)), out)
    else:
        written = t5x.write_legacy(out, checkpoint.step, tree, dtype)
    state = "with Adafactor state" if tree.has_optimizer else NO_STATE
    weights = "; the weights as they were trained, not their average" if checkpoint.has_average else ""
    return f"{written}: {len(checkpoint)} arrays, {state}{weights}"


def write_npz(tree: Mapping[str, np.ndarray], file: str) -> None:
    """Writes all arrays to a .npz file, one in memory at a time (np.savez would hold all of them).

    bfloat16, which .npy cannot name, becomes float32: every value is the same.
    """
    with zipfile.ZipFile(file, "w") as archive:
        for name in tree:
            with archive.open(f"{name}.npy", "w", force_zip64=True) as entry:
                array = np.asarray(tree[name])
                if array.dtype.name == "bfloat16":
                    array = array.astype(np.float32)
                np.lib.format.write_array(entry, array, allow_pickle=False)
