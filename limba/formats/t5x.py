"""T5X's checkpoints: the legacy form (msgpack beside zarr directories) and today's (Orbax, OCDBT), array by array.

Names are T5X's with slashes: `target/encoder/layers_0/mlp/wo/kernel` for parameters,
`state/param_states/…/v_row` for the optimizer, `state/step`. Arrays are read on access, so that
a converter holds one array at a time.
"""

from __future__ import annotations

import math
import os
import re
import secrets
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import PurePosixPath

import numpy as np
import tensorstore as ts
from etils import epath

from limba.config import InputError, ModelConfig, reason_of
from limba.formats.names import Arrays, Json, Stored, unflatten
from limba.storage import lease
from limba.storage.failures import waited
from limba.storage.files import key_value_store, read_bytes

FORMAT_VERSION = 3
STEP = "state/step"
_STEP = re.compile(r"checkpoint_(\d+)")
_SCANNED = re.compile(r"(encoder|decoder)/\1/")
_LAYER = re.compile(r"(encoder|decoder)/layers_(\d+)/")
_INSIDE = "decoder/token_embedder/"  # where T5X's decoder-only network has its embedding
_OUTSIDE = "token_embedder/"  # where all other networks have it, Limba's too


class StoredTree(Arrays):
    """The arrays of a checkpoint, read on access.

    `leaves` are arrays that the index itself holds, or specs for tensorstore. InputError for one that does not open.
    """

    def __init__(self, path: epath.Path, leaves: Mapping[str, np.ndarray | Json]):
        self.path = path
        self._stores: dict[str, ts.TensorStore] = {}
        context = ts.Context()
        # All are opened at once, and waited for one by one: in a bucket each takes some requests.
        opening = {
            name: ts.open(leaf, read=True, context=context) for name, leaf in leaves.items() if type(leaf) is dict
        }
        for name, opened in opening.items():
            try:
                self._stores[name] = opened.result()
            except (ValueError, OSError) as error:
                raise self._unreadable(name, error) from error
        super().__init__({name: self._stored(name, leaf) for name, leaf in leaves.items()})

    def _stored(self, name: str, leaf: np.ndarray | Json) -> Stored:
        if isinstance(leaf, np.ndarray):
            return Stored(leaf.shape, leaf.dtype, lambda: leaf)
        store = self._stores[name]
        read_rows = partial(self._read_rows, name) if store.shape else None
        return Stored(tuple(store.shape), store.dtype.numpy_dtype, partial(self._read, name), read_rows)

    def _read(self, name: str) -> np.ndarray:
        try:
            return np.asarray(self._stores[name].read().result())
        except (ValueError, OSError) as error:
            raise self._unreadable(name, error) from error

    def _read_rows(self, name: str, start: int, stop: int) -> np.ndarray:
        try:
            return np.asarray(self._stores[name][start:stop].read().result())
        except (ValueError, OSError) as error:
            raise self._unreadable(name, error) from error

    def _unreadable(self, name: str, error: Exception) -> InputError:
        return InputError(f"{self.path} cannot be read at {name} ({reason_of(error)}); copy the checkpoint again.")

    def check_whole(self, required: Sequence[str] | None = None) -> None:
        """Raises InputError that names the first of all, or the required, arrays whose data is missing, even in part.

        Zarr reads a missing chunk as zeros, so a truncated array would be read without an error. An array without any
        chunk is accepted as zeros only in T5X's optimizer state, which starts at zero.
        """
        names = [*self._stores] if required is None else required
        with ThreadPoolExecutor(16) as pool:
            for name, (there, wanted) in zip(names, pool.map(self._pieces, names), strict=True):
                if there < wanted and (there or not name.startswith("state/")):
                    raise InputError(
                        f"{self.path} is truncated: {name} has {there} of its {wanted} pieces; copy it again."
                    )

    def _pieces(self, name: str) -> tuple[int, int]:
        """Returns the number of zarr chunks that an array has, and the number that it needs."""
        store = self._stores[name]
        chunks = store.chunk_layout.read_chunk.shape or ()
        wanted = math.prod(-(-size // (chunk or 1)) for size, chunk in zip(store.shape, chunks, strict=True))
        keys = store.kvstore.list().result()  # pyright: ignore[reportOptionalMemberAccess]
        return sum(not key.rsplit(b"/", 1)[-1].startswith(b".z") for key in keys), wanted

    def rows_of_chunk(self, name: str) -> int:
        """Returns how many rows of axis 0 a zarr chunk of an array has."""
        chunk = self._stores[name].chunk_layout.read_chunk.shape or ()
        return chunk[0] or 1 if chunk else 1

    @property
    def step(self) -> int:
        return int(np.asarray(self[STEP]))


def own_name(name: str) -> str:
    """Returns the name that a parameter of T5X's decoder-only network has in Limba.

    >>> own_name("target/decoder/token_embedder/embedding")
    'target/token_embedder/embedding'
    """
    return name.replace(_INSIDE, _OUTSIDE)


def their_name(name: str) -> str:
    """Returns the name that a parameter of a decoder-only network has in T5X."""
    return name if _INSIDE in name else name.replace(_OUTSIDE, _INSIDE)


def unscanned(tree: StoredTree, model: ModelConfig) -> Arrays:
    """Returns the tree with one array per layer, under Limba's names.

    The arrays of a scanned tree (`scalable_t5`) have the layers on axis 1, and attention kernels an axis of heads. Its
    optimizer state is left out: an average over all layers together cannot be cut into layers.
    """
    if not any(_SCANNED.search(name) for name in tree):
        is_decoder_only = any(_INSIDE in name for name in tree)
        return Arrays({own_name(name): array for name, array in tree.stored.items()}) if is_decoder_only else tree
    if not model.relative_bias_per_layer:
        raise InputError(
            f"{tree.path} is a scanned T5X network (examples/scalable_t5), which has a relative bias in every layer;"
            " set ModelConfig.relative_bias_per_layer to True.",
            fix=("ModelConfig.relative_bias_per_layer", True),
        )
    stacks = _Stacks(tree)
    arrays = {}
    for name, array in tree.stored.items():
        scanned = _SCANNED.search(name)
        if scanned and not name.startswith("state/"):
            num_layers = _num_layers(tree, name, scanned[1], model)
            shape = (array.shape[0], *array.shape[2:])
            if len(shape) == 3:  # [D, H, C] or, for `out`, [H, C, D]
                first, second, last = shape
                shape = (first * second, last) if name.endswith("/out/kernel") else (first, second * last)
            for i in range(num_layers):
                unscanned_name = _SCANNED.sub(rf"\1/layers_{i}/", name)
                arrays[unscanned_name] = Stored(shape, array.dtype, partial(stacks.layer, name, i, shape))
        elif not name.startswith("state/param_states/"):
            arrays[name] = array
    return Arrays(arrays)


def _num_layers(tree: StoredTree, name: str, side: str, model: ModelConfig) -> int:
    """Returns the layers of a stack, the encoder's or the decoder's; InputError if the network has another number."""
    field = f"num_{side}_layers"
    num_layers: int = getattr(model, field)
    shape = tree.stored[name].shape
    if shape[1:2] == (num_layers,):
        return num_layers
    if len(shape) < 2:
        raise InputError(f"{tree.path} has {name} of shape {shape}, without an axis of layers; copy it again.")
    raise InputError(
        f"{tree.path} has {shape[1]} layers in {name}, and ModelConfig.{field} is {num_layers}; set it to {shape[1]}.",
        fix=(f"ModelConfig.{field}", shape[1]),
    )


class _Stacks:
    """The layers of a scanned tree's stacks, read one after the other.

    The stack that was read last is held until its last layer is asked for: a chunk usually has a part of every layer,
    so one layer alone costs as much to read as all of them.
    """

    def __init__(self, tree: StoredTree):
        self._tree = tree
        self._held: tuple[str, np.ndarray] | None = None  # the stack's name, and its array

    def layer(self, name: str, number: int, shape: tuple[int, ...]) -> np.ndarray:
        """Returns one layer of a stack as an array of its own, of this shape."""
        if self._held is None or self._held[0] != name:
            self._held = None  # freed before another is read
            self._held = (name, self._tree[name])
        stack = self._held[1]
        if number == stack.shape[1] - 1:
            self._held = None
        return np.take(stack, number, axis=1).reshape(shape)


def is_t5x(path: epath.Path) -> bool:
    """Returns whether a directory is a T5X checkpoint, of either form."""
    return (path / "checkpoint").exists() or (path / "state" / "manifest.ocdbt").exists()


def checkpoints_of(path: epath.Path) -> dict[int, epath.Path]:
    """Returns step -> directory of the finished T5X checkpoints in a run directory."""
    directories = {}
    for child in path.iterdir() if path.is_dir() else ():
        match = _STEP.fullmatch(child.name)
        if match and is_t5x(child):
            directories[int(match[1])] = child
    return dict(sorted(directories.items()))


def open_checkpoint(path: str | epath.Path) -> StoredTree:
    """Returns the arrays of one T5X checkpoint; InputError if it is not one, or its index cannot be read."""
    path = epath.Path(path)
    if (path / "checkpoint").exists():
        return StoredTree(path, _legacy_leaves(path))
    if (path / "state" / "manifest.ocdbt").exists():
        return StoredTree(path, stored_arrays(path / "state"))
    raise InputError(
        f"{path} is not a T5X checkpoint (no file 'checkpoint', no state/manifest.ocdbt); give a checkpoint_<step>."
    )


def network_of(shapes: Mapping[str, tuple[int, ...]], where: str) -> ModelConfig:
    """Returns the T5, or decoder-only network of T5X, with parameters of these names and shapes, in float32.

    Shapes do not show the activation: a gated MLP is assumed to be T5 1.1's ("gelu", "linear"), a plain one T5 1.0's
    ("relu",). `relpos_max_distance` and `layer_norm_epsilon` keep T5's values. Raises InputError, which names `where`,
    if an array that determines a size is missing.
    """
    num_layers = {"encoder": 0, "decoder": 0}
    shape_of: dict[str, tuple[int, ...]] = {}  # a layer's arrays without the layer's number
    for name, shape in ((own_name(name), shape) for name, shape in shapes.items()):
        if scanned := _SCANNED.match(name):
            num_layers[scanned[1]] = shape[1]
            shape_of[_SCANNED.sub(r"\1/", name)] = (shape[0], *shape[2:])
        elif layer := _LAYER.match(name):
            num_layers[layer[1]] = max(num_layers[layer[1]], int(layer[2]) + 1)
            shape_of[_LAYER.sub(r"\1/", name)] = shape
        else:
            shape_of[name] = shape
    gate = "wi_0" if "decoder/mlp/wi_0/kernel" in shape_of else "wi"
    try:
        vocab_size, emb_dim = shape_of["token_embedder/embedding"]
        num_heads, num_buckets = shape_of["decoder/relpos_bias/rel_embedding"]
        joined = math.prod(shape_of["decoder/self_attention/query/kernel"][1:])
        mlp_dim = shape_of[f"decoder/mlp/{gate}/kernel"][1]
    except KeyError as error:
        raise InputError(
            f"{where} has no array {error.args[0]}, so its network is not known; give the network's configuration."
        ) from None
    per_layer = [name for name in shapes if name.endswith("relpos_bias/rel_embedding") and name.count("/") > 2]
    return ModelConfig(
        vocab_size=vocab_size,
        emb_dim=emb_dim,
        num_heads=num_heads,
        head_dim=joined // num_heads,
        mlp_dim=mlp_dim,
        num_encoder_layers=num_layers["encoder"],
        num_decoder_layers=num_layers["decoder"],
        mlp_activations=("gelu", "linear") if gate == "wi_0" else ("relu",),
        logits_via_embedding="decoder/logits_dense/kernel" not in shape_of,
        relative_bias_per_layer=bool(per_layer),
        num_relpos_buckets=num_buckets,
        dtype="float32",
    )


def numpy_dtype(name: str) -> np.dtype:
    """Returns numpy's dtype by its name, bfloat16 too.

    >>> numpy_dtype("bfloat16").itemsize
    2
    """
    # numpy knows bfloat16 only once ml_dtypes is imported, which tensorstore does.
    return ts.dtype(name).numpy_dtype


def _legacy_leaves(path: epath.Path) -> dict[str, np.ndarray | Json]:
    from flax import serialization

    try:
        tree = serialization.msgpack_restore(read_bytes(path / "checkpoint"))["optimizer"]
        parts = {"target": tree["target"], "state": tree["state"]}
    except InputError:
        raise
    except Exception as error:  # msgpack's own errors, and numpy's, of many kinds
        raise InputError(
            f"{path / 'checkpoint'} is not a T5X checkpoint index ({type(error).__name__}: {error}); copy it again."
        ) from error
    leaves: dict[str, np.ndarray | Json] = {}

    def walk(node: object, name: str) -> None:
        if isinstance(node, Mapping) and "driver" in node and "kvstore" in node:
            inside = PurePosixPath(node["kvstore"].get("path") or node["path"]).name
            leaves[name] = {"driver": "zarr", "kvstore": key_value_store(path / inside)}
        elif isinstance(node, Mapping):
            for key, value in node.items():
                walk(value, f"{name}/{key}")
        elif node is not None:
            leaves[name] = np.asarray(node)

    for part, node in parts.items():
        walk(node, part)
    return leaves


def stored_arrays(path: epath.Path) -> dict[str, Json]:
    """Returns the zarr arrays of an OCDBT store by their names, in which a dot stands for a slash."""
    base = {"driver": "ocdbt", "base": key_value_store(path)}
    try:
        store = waited(ts.KvStore.open(base))
        keys = waited(store.list())
    except TimeoutError:  # says nothing of the store
        raise
    except (ValueError, OSError) as error:
        raise InputError(f"{path} cannot be read as an OCDBT store ({error}); copy the checkpoint again.") from error
    names = sorted(key.decode().removesuffix("/.zarray") for key in keys if key.endswith(b"/.zarray"))
    if not names:
        raise InputError(f"{path} holds no arrays; copy the checkpoint again.")
    return {name.replace(".", "/"): {"driver": "zarr", "kvstore": {**base, "path": name + "/"}} for name in names}


def write_legacy(
    directory: str | os.PathLike[str], step: int, tree: Mapping[str, np.ndarray], dtype: str = "float32"
) -> epath.Path:
    """Writes `checkpoint_<step>` as T5X's own legacy writer lays it out; returns its path.

    `tree` has T5X's names, `target/…` cast to `dtype`, `state/…` as it is. It is read one array at a time. The
    directory is renamed to its final name when it is complete.
    """
    from flax import serialization

    directory = epath.Path(directory)
    final = directory / f"checkpoint_{step}"
    if final.exists():
        raise InputError(f"{final} exists already; remove it, or give another directory.")
    with lease.held(os.fspath(final), beside=True):
        writing = final.with_name(f"{final.name}.tmp-{secrets.token_hex(4)}")
        writing.mkdir(parents=True)
        leaves = {name: _write_leaf(writing, name, tree[name], dtype) for name in tree}
        root = {"version": FORMAT_VERSION, "optimizer": {"target": {}, "state": {}, **unflatten(leaves)}}
        (writing / "checkpoint").write_bytes(serialization.msgpack_serialize(root, in_place=True))
        return writing.rename(final)


def _write_leaf(directory: epath.Path, name: str, array: np.ndarray, dtype: str) -> np.ndarray | Json:
    """Writes an array, and returns its entry in T5X's index: its place, or the array itself.

    The step, the factored averages and the placeholders for unused averages are in the index itself.
    """
    if name == STEP:
        array = np.asarray(array, np.int32)
    elif name.startswith("target/"):
        array = array.astype(numpy_dtype(dtype))
    if name.startswith("state/") and (name == STEP or "/v_" in name or array.shape == (1,)):
        return array
    return _write_zarr(directory, name.replace("/", "."), array)


def _write_zarr(directory: epath.Path, name: str, array: np.ndarray) -> Json:
    metadata = {"chunks": list(array.shape), "compressor": {"id": "gzip", "level": 1}, "shape": list(array.shape)}
    spec = {"driver": "zarr", "dtype": ts.dtype(array.dtype).name, "metadata": metadata}
    store = ts.open(
        {**spec, "kvstore": key_value_store(directory / name), "store_data_equal_to_fill_value": True},
        create=True,
        open=True,
    ).result()
    store.write(array).result()
    return {**spec, "kvstore": {"driver": "file", "path": name + "/"}}
