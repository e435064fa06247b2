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
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import PurePosixPath
from typing import Any

import msgpack
import numpy as np
import tensorstore as ts
from etils import epath

from limba.config import InputError, ModelConfig
from limba.config.errors import reason_of
from limba.storage import lease

ARRAY_EXTENSION = 1  # flax's msgpack code of an ndarray: (shape, dtype name, bytes)
SCALAR_EXTENSION = 3
FORMAT_VERSION = 3
_STEP = re.compile(r"checkpoint_(\d+)")
_SCANNED = re.compile(r"(encoder|decoder)/\1/")
_LAYER = re.compile(r"(encoder|decoder)/layers_(\d+)/")
_INSIDE, _OUTSIDE = "decoder/token_embedder/", "token_embedder/"  # T5X's decoder-only network, and all others


class StoredTree(Mapping[str, np.ndarray]):
    """A checkpoint's arrays by name; `tree[name]` reads one, `shapes` and `dtypes` read none."""

    def __init__(self, path: epath.Path, leaves: dict[str, Any]):
        self.path, self._leaves = path, leaves

    def __getitem__(self, name: str) -> np.ndarray:
        leaf = self._leaves[name]
        if isinstance(leaf, np.ndarray):
            return leaf
        try:
            return np.asarray(self._opened(name).read().result())
        except InputError:
            raise
        except (ValueError, OSError) as error:
            raise _unreadable(self.path, name, error) from error

    def __iter__(self) -> Iterator[str]:
        return iter(self._leaves)

    def __len__(self) -> int:
        return len(self._leaves)

    def _opened(self, name: str) -> ts.TensorStore:
        try:
            store = ts.open(self._leaves[name], read=True).result()
        except (ValueError, OSError) as error:
            raise _unreadable(self.path, name, error) from error
        return store

    def describe(self, name: str) -> tuple[tuple[int, ...], str]:
        """Returns (shape, dtype name) without reading the values."""
        leaf = self._leaves[name]
        if isinstance(leaf, np.ndarray):
            return tuple(leaf.shape), leaf.dtype.name
        store = self._opened(name)
        return tuple(store.shape), store.dtype.name

    def check_whole(self) -> None:
        """Raises InputError that names the first array whose data is missing, in whole or in part.

        Zarr reads a missing chunk as zeros, so a truncated array would be read without an error. An array without any
        chunk is accepted as zeros only in the optimizer state, which starts at zero.
        """
        outside = [name for name, leaf in self._leaves.items() if not isinstance(leaf, np.ndarray)]
        with ThreadPoolExecutor(16) as pool:
            for name, (there, wanted) in zip(outside, pool.map(self.pieces, outside), strict=True):
                if there < wanted and (there or name.startswith("target/")):
                    raise InputError(
                        f"{self.path} is truncated: {name} has {there} of its {wanted} pieces; copy it again."
                    )

    def pieces(self, name: str) -> tuple[int, int]:
        """Returns the number of zarr chunks that an array has, and the number that it needs."""
        store: Any = self._opened(name)
        chunks = store.chunk_layout.read_chunk.shape or ()
        wanted = math.prod(-(-size // chunk) for size, chunk in zip(store.shape, chunks, strict=True))
        keys = [key for key in store.kvstore.list().result() if not key.rsplit(b"/", 1)[-1].startswith(b".z")]
        return len(keys), wanted

    @property
    def step(self) -> int:
        return int(np.asarray(self["state/step"]))


def own_name(name: str) -> str:
    """Returns the name that a parameter of T5X's decoder-only network has in Limba.

    >>> own_name("target/decoder/token_embedder/embedding")
    'target/token_embedder/embedding'
    """
    return name.replace(_INSIDE, _OUTSIDE)


def their_name(name: str) -> str:
    """Returns the name that a parameter of a decoder-only network has in T5X."""
    return name if _INSIDE in name else name.replace(_OUTSIDE, _INSIDE)


class DecoderOnlyTree(Mapping[str, np.ndarray]):
    """The arrays of T5X's decoder-only network under the names of all other networks."""

    def __init__(self, stored: StoredTree):
        self._stored = stored
        self._names = {own_name(name): name for name in stored}

    def __getitem__(self, name: str) -> np.ndarray:
        return self._stored[self._names[name]]

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def describe(self, name: str) -> tuple[tuple[int, ...], str]:
        """Returns (shape, dtype name) without reading the values."""
        return self._stored.describe(self._names[name])


def is_t5x(path: epath.Path) -> bool:
    """Returns whether a directory is a T5X checkpoint, of either form."""
    return (path / "checkpoint").exists() or (path / "state" / "manifest.ocdbt").exists()


def checkpoints_of(path: epath.Path) -> dict[int, epath.Path]:
    """Returns step -> directory of the finished T5X checkpoints in a run directory."""
    found = {}
    for child in path.iterdir() if path.is_dir() else ():
        match = _STEP.fullmatch(child.name)
        if match and is_t5x(child):
            found[int(match[1])] = child
    return dict(sorted(found.items()))


def open_checkpoint(path: str | epath.Path) -> StoredTree:
    """Returns the arrays of one T5X checkpoint; InputError if it is not one, or its index cannot be read."""
    path = epath.Path(path)
    if (path / "checkpoint").exists():
        return StoredTree(path, _legacy_leaves(path))
    if (path / "state" / "manifest.ocdbt").exists():
        return StoredTree(path, orbax_leaves(path / "state"))
    raise InputError(
        f"{path} is not a T5X checkpoint (no file 'checkpoint', no state/manifest.ocdbt); give a checkpoint_<step>."
    )


def network_of(shapes: Mapping[str, tuple[int, ...]], place: str) -> ModelConfig:
    """Returns the T5, or decoder-only network of T5X, with parameters of these names and shapes, in float32.

    Shapes do not show the activation: a gated MLP is assumed to be T5 1.1's ("gelu", "linear"), a plain one T5 1.0's
    ("relu",). `relpos_max_distance` and `layer_norm_epsilon` keep T5's values. Raises InputError, which names `place`,
    if an array that determines a size is missing.
    """
    num_layers = {"encoder": 0, "decoder": 0}
    found: dict[str, tuple[int, ...]] = {}  # a layer's arrays without the layer's number
    for name, shape in ((own_name(name), shape) for name, shape in shapes.items()):
        if scanned := _SCANNED.match(name):
            num_layers[scanned[1]] = shape[1]
            found[_SCANNED.sub(r"\1/", name)] = (shape[0], *shape[2:])
        elif layer := _LAYER.match(name):
            num_layers[layer[1]] = max(num_layers[layer[1]], int(layer[2]) + 1)
            found[_LAYER.sub(r"\1/", name)] = shape
        else:
            found[name] = shape
    gate = "wi_0" if "decoder/mlp/wi_0/kernel" in found else "wi"
    try:
        vocab_size, emb_dim = found["token_embedder/embedding"]
        num_heads, num_buckets = found["decoder/relpos_bias/rel_embedding"]
        joined = math.prod(found["decoder/self_attention/query/kernel"][1:])
        mlp_dim = found[f"decoder/mlp/{gate}/kernel"][1]
    except KeyError as error:
        raise InputError(
            f"{place} has no array {error.args[0]}, so its network is not known; give the network's configuration."
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
        logits_via_embedding="decoder/logits_dense/kernel" not in found,
        relative_bias_per_layer=bool(per_layer),
        num_relpos_buckets=num_buckets,
        dtype="float32",
    )


def _unreadable(path: epath.Path, name: str, error: Exception) -> InputError:
    return InputError(f"{path} cannot be read at {name} ({reason_of(error)}); copy the checkpoint again.")


def key_value_store(path: epath.Path | str) -> dict[str, str]:
    """Returns tensorstore's address of a directory, local or gs://; InputError for another address."""
    text = str(path).rstrip("/") + "/"
    if text.startswith("gs://"):
        bucket, _, inside = text.removeprefix("gs://").partition("/")
        return {"driver": "gcs", "bucket": bucket, "path": inside}
    if "://" in text:
        raise InputError(f"{path} holds no arrays that can be read: they are at gs:// or on a disk; copy it there.")
    return {"driver": "file", "path": text}


def decode_extension(code: int, data: bytes) -> Any:
    """Returns the array of flax's msgpack extension."""
    if code in (ARRAY_EXTENSION, SCALAR_EXTENSION):
        shape, dtype, content = msgpack.unpackb(data, raw=True)
        return np.frombuffer(content, numpy_dtype(dtype.decode())).reshape(shape)
    raise ValueError(f"unknown msgpack extension {code}")


def numpy_dtype(name: str) -> np.dtype:
    # numpy knows bfloat16 only once ml_dtypes is imported, which tensorstore does.
    return ts.dtype(name).numpy_dtype


def joined(chunks: Mapping[str, Any]) -> np.ndarray:
    """Returns an array that flax cut into pieces because it is over a gibibyte."""
    pieces = [chunks["chunks"][str(i)] for i in range(len(chunks["chunks"]))]
    shape = [chunks["shape"][str(i)] for i in range(len(chunks["shape"]))]
    return np.concatenate([piece.ravel() for piece in pieces]).reshape(shape)


def _legacy_leaves(path: epath.Path) -> dict[str, Any]:
    try:
        content = msgpack.unpackb(
            (path / "checkpoint").read_bytes(), ext_hook=decode_extension, raw=False, strict_map_key=False
        )
        tree = content["optimizer"]
        parts = {"target": tree["target"], "state": tree["state"]}
    except (ValueError, KeyError, TypeError, msgpack.UnpackException) as error:
        raise InputError(
            f"{path / 'checkpoint'} is not a T5X checkpoint index ({type(error).__name__}: {error}); copy it again."
        ) from error
    leaves: dict[str, Any] = {}

    def walk(node: Any, name: str) -> None:
        if isinstance(node, Mapping) and "driver" in node and "kvstore" in node:
            inside = PurePosixPath(node["kvstore"].get("path") or node["path"]).name
            leaves[name] = {"driver": "zarr", "kvstore": key_value_store(path / inside)}
        elif isinstance(node, Mapping) and "__msgpack_chunked_array__" in node:
            leaves[name] = joined(node)
        elif isinstance(node, Mapping):
            for key, value in node.items():
                walk(value, f"{name}/{key}")
        elif node is not None:
            leaves[name] = np.asarray(node)

    for part, node in parts.items():
        walk(node, part)
    return leaves


def orbax_leaves(path: epath.Path) -> dict[str, Any]:
    """Returns the zarr arrays of an OCDBT store, whose names Orbax joins with dots."""
    base = {"driver": "ocdbt", "base": key_value_store(path)}
    try:
        keys = ts.KvStore.open(base).result().list().result()
    except (ValueError, OSError) as error:
        raise InputError(f"{path} cannot be read as Orbax's store ({error}); copy the checkpoint again.") from error
    names = sorted(key.decode().removesuffix("/.zarray") for key in keys if key.endswith(b"/.zarray"))
    if not names:
        raise InputError(f"{path} holds no arrays; copy the checkpoint again.")
    return {name.replace(".", "/"): {"driver": "zarr", "kvstore": {**base, "path": name + "/"}} for name in names}


def _packed(value: Any) -> msgpack.ExtType:
    array = np.asarray(value)
    content = msgpack.packb((array.shape, array.dtype.name, array.tobytes()), use_bin_type=True)
    return msgpack.ExtType(ARRAY_EXTENSION, content)


def write_legacy(
    directory: str | os.PathLike[str], step: int, tree: Mapping[str, np.ndarray], dtype: str = "float32"
) -> epath.Path:
    """Writes `checkpoint_<step>` as T5X's own legacy writer lays it out; returns its path.

    `tree` has T5X's names, `target/…` cast to `dtype`, `state/…` as it is. It is read one array at a time. The
    directory is renamed to its final name when it is complete.
    """
    directory = epath.Path(directory)
    final = directory / f"checkpoint_{step}"
    if final.exists():
        raise InputError(f"{final} exists already; remove it, or give another directory.")
    with lease.held(os.fspath(final), "exports", beside=True):
        return _write_legacy(final, step, tree, dtype)


def _write_legacy(final: epath.Path, step: int, tree: Mapping[str, np.ndarray], dtype: str) -> epath.Path:
    writing = final.with_name(f"{final.name}.tmp-{secrets.token_hex(4)}")
    writing.mkdir(parents=True)
    root: dict[str, Any] = {"version": FORMAT_VERSION, "optimizer": {"target": {}, "state": {}}}
    for name in tree:
        array = tree[name]
        part, *_ = name.split("/", 1)
        if part == "target":
            array = array.astype(numpy_dtype(dtype))
        # T5X keeps these inside: the step, the factored averages, and placeholders for unused averages.
        if part == "state" and (name == "state/step" or "/v_" in name or array.shape == (1,)):
            leaf: Any = _packed(np.asarray(array, np.int32) if name == "state/step" else array)
        else:
            leaf = _write_zarr(writing, name.replace("/", "."), array)
        node = root["optimizer"]
        *parents, last = name.split("/")
        for parent in parents:
            node = node.setdefault(parent, {})
        node[last] = leaf
    content: Any = msgpack.packb(root, use_bin_type=True)
    (writing / "checkpoint").write_bytes(content)
    return writing.rename(final)


def _write_zarr(directory: epath.Path, name: str, array: np.ndarray) -> dict[str, Any]:
    metadata = {
        "chunks": list(array.shape),
        "compressor": {"id": "gzip", "level": 1},
        "shape": list(array.shape),
    }
    spec = {"driver": "zarr", "dtype": ts.dtype(array.dtype).name, "metadata": metadata}
    store = ts.open(
        {**spec, "kvstore": key_value_store(directory / name), "store_data_equal_to_fill_value": True},
        create=True,
        open=True,
    ).result()
    store.write(array).result()
    return {**spec, "kvstore": {"driver": "file", "path": name + "/"}}
