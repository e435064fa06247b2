"""A run's checkpoint with the rows of its vocabulary that stay, in the weights and in the optimizer's averages.

Adam's moments, a momentum, Adafactor's second moment where it is not factored, and the average of the weights hold a
number for each weight, so their rows are cut as the weights' rows are. A factored average holds means over a whole
matrix: the mean over the rows that stay cannot be computed from it, and the optimizer begins anew.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import tensorstore as ts
from etils import epath

from limba.config import ModelConfig
from limba.data.vocabulary.addresses import address_of
from limba.data.vocabulary.files import content
from limba.data.vocabulary.load import load_vocabulary
from limba.data.vocabulary.tokenizers import TokenizersVocabulary
from limba.data.vocabulary.trimmed_files import Kept, sentencepiece_model, tokenizer_state
from limba.data.vocabulary.vocabularies import Vocabulary
from limba.export import merging
from limba.export.huggingface import write_checkpoint
from limba.formats.architectures import EMBEDDING, HEAD
from limba.formats.names import Stored, taken
from limba.training.checkpoints import arrays

# The parameters with a row for each id, by T5X's names, and the axis on which they have it.
TABLES = {EMBEDDING: 0, HEAD: 1, HEAD.replace("kernel", "bias"): 0}
UNUSED = (1,)  # optax's shape of an average that its rule does not use for a parameter


@dataclass(frozen=True)
class State:
    """The arrays of a checkpoint, opened and not read."""

    path: epath.Path
    stores: arrays.Stores
    axes: Mapping[str, int]  # of the arrays with a row for each id: the axis on which they have it
    means: Sequence[str]  # the optimizer's arrays that are means over such rows

    @property
    def step(self) -> int:
        return int(self.path.name)

    @property
    def has_averages(self) -> bool:
        """Whether an optimizer has made updates, of which the checkpoint holds averages."""
        return self.step > 0 and any(name.startswith("opt_state/") for name in self.stores)


def open_state(path: epath.Path) -> State:
    """Returns the state in `checkpoints/<step>`, whose files have been checked."""
    stores = arrays.opened(path / "state")
    axes: dict[str, int] = {}
    means: list[str] = []
    for table, axis in TABLES.items():
        if f"params/{table}" not in stores:
            continue
        shape = tuple(stores[f"params/{table}"].shape)
        for name, store in stores.items():
            if not name.endswith(f"/{table}"):
                continue
            if tuple(store.shape) == shape:
                axes[name] = axis
            elif tuple(store.shape) != UNUSED:
                means.append(name)
    return State(path, stores, axes, means)


def write_cut_state(state: State, rows: np.ndarray, folder: Path, model: ModelConfig, out: Path) -> None:
    """Writes OUT/checkpoints/<step> with these rows of a state's tables, all else as it is.

    `model` is the network with so many rows, and `folder` holds the vocabulary. Arrays are copied some rows at a time.
    """
    needed = sum(math.prod(store.shape) * store.dtype.numpy_dtype.itemsize for store in state.stores.values())
    write_checkpoint(folder, model, out, state.step, needed, _cut_blocks(state, rows))


def _cut_blocks(state: State, rows: np.ndarray) -> Iterator[arrays.HostArray]:
    for name, store in state.stores.items():
        if name in state.axes:
            table = taken(_stored(store), rows, state.axes[name])
            array_name = merging.name_in_store(store)
            chunk = arrays.chunk_shape(table.shape, None, 1, table.dtype.itemsize)
            yield arrays.HostArray(array_name, table.shape, table.dtype, chunk, (((), table),))
            continue
        for block in merging.blocks_of(store):
            part = np.asarray(store[block].read().result())
            yield merging.block_to_write(store, block, part)


def _stored(store: ts.TensorStore) -> Stored:
    def read_rows(start: int, stop: int) -> np.ndarray:
        return np.asarray(store[start:stop].read().result())

    shape = tuple(store.shape)
    return Stored(shape, store.dtype.numpy_dtype, partial(read_rows, 0, shape[0]), read_rows)


def write_vocabulary(vocabulary: Vocabulary, kept: Kept, folder: Path) -> Vocabulary:
    """Writes a run's vocabulary as a file of its own, with the number of its sentinels; returns it as it is read."""
    path = address_of(vocabulary)
    assert path is not None, "a vocabulary of bytes has been refused"
    if isinstance(vocabulary, TokenizersVocabulary):
        file = folder / "tokenizer.json"
        state = tokenizer_state(json.loads(content(path)), kept)
        file.write_text(json.dumps(state, ensure_ascii=False, indent=2) + "\n")
        return load_vocabulary(str(file))
    file = folder / "spiece.model"
    file.write_bytes(sentencepiece_model(content(path), kept))
    tokenizer_config = {"extra_ids": vocabulary.extra_ids}
    (folder / "tokenizer_config.json").write_text(json.dumps(tokenizer_config, indent=2) + "\n")
    return load_vocabulary(str(file), vocabulary.extra_ids)
