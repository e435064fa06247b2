"""The device mesh and what is divided over it: parameters by their logical axes, a batch, the update."""

import math
import os
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.experimental import mesh_utils
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec
from jaxtyping import PyTree

from limba.config import MeshConfig, compile_cache

# T5X's logical axis names. Matrices are sharded over `model` along heads, mlp and vocabulary, and over `fsdp` along
# the model width; they are gathered when they are used (arXiv:1910.02054, stage 3). Stacked layers and relative
# position buckets are not sharded.
LOGICAL_AXIS_RULES = {
    "batch": ("data", "fsdp"), "vocab": "model", "embed": "fsdp", "mlp": "model", "heads": "model",
    "joined_kv": "model", "relpos_buckets": None, "length": None, "layers": None,
}  # fmt: skip


def keep_compiled_programs() -> None:
    """Has jax keep the programs that it compiles; call it before the first device is used.

    Nothing changes where the user, or the command that runs, has said where they are kept.
    """
    if compile_cache.OF_JAX not in os.environ and jax.config.values["jax_compilation_cache_dir"] is None:
        jax.config.update("jax_compilation_cache_dir", compile_cache.directory())
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)


def make_mesh(config: MeshConfig, described: np.ndarray | None = None) -> Mesh:
    """Returns the mesh (data, fsdp, model) of all devices of all hosts, or of those that a topology describes.

    Raises ConfigError if the sizes do not fit.
    """
    devices = jax.devices() if described is None else list(described.flat)
    sizes = config.sizes(len(devices))
    names = ("data", "fsdp", "model")
    axis_types = (AxisType.Auto,) * 3
    has_one_slice = len({_slice(device) for device in devices}) == 1
    if has_one_slice:
        return jax.make_mesh(sizes, names, axis_types=axis_types, devices=devices)
    return Mesh(across_slices(sizes, devices), names, axis_types=axis_types)


def across_slices(sizes: Sequence[int], devices: Sequence[Any]) -> np.ndarray:
    """Returns the devices of several slices, [data, fsdp, model]: the outermost axes go over the slices.

    A slice has fast links between its devices: a slice of TPUs, or for GPUs a node. Between slices there is a network,
    so `data`, which exchanges least, takes them first, then `fsdp`, then `model`. jax.make_mesh refuses such devices.
    """
    slices_left = len({_slice(device) for device in devices})
    across: list[int] = []  # of each axis, the part that goes over slices
    for size in sizes:
        part = math.gcd(slices_left, size)
        across.append(part)
        slices_left //= part
    if slices_left > 1:  # the number of slices does not divide the sizes: the devices in their order
        ordered = sorted(devices, key=lambda device: (_slice(device), device.id))
        return np.array(ordered).reshape(sizes)
    within = [size // part for size, part in zip(sizes, across, strict=True)]
    return mesh_utils.create_hybrid_device_mesh(within, across, devices)


def _slice(device: object) -> int:
    return getattr(device, "slice_index", 0)


def batch_sharding(mesh: Mesh) -> NamedSharding:
    """Returns the sharding of a batch: its rows over data and fsdp, other axes replicated."""
    return NamedSharding(mesh, PartitionSpec(LOGICAL_AXIS_RULES["batch"]))


def num_batch_groups(mesh: Mesh | None) -> int:
    """Returns the number of groups of devices that hold different rows of a batch; 1 without a mesh."""
    return 1 if mesh is None else math.prod(mesh.shape[axis] for axis in LOGICAL_AXIS_RULES["batch"])


def constrain_batch_sharding(x: jax.Array, mesh: Mesh | None) -> jax.Array:
    """Returns x [B, …] with its rows sharded over data and fsdp, like the batch's.

    Without this the compiler shards activations as it does parameters, along the model width over `fsdp`. Every device
    then computes all rows, and each product must be summed over all devices.
    """
    if mesh is None or mesh.shape["fsdp"] == 1:
        return x
    divides = x.shape[0] % (mesh.shape["data"] * mesh.shape["fsdp"]) == 0
    if not divides:
        return x
    return jax.lax.with_sharding_constraint(x, batch_sharding(mesh))


def is_pure_data_parallel(mesh: Mesh) -> bool:
    """Returns whether there are several devices, all of them on the axis `data`."""
    return mesh.shape["data"] == mesh.size > 1


def update_shardings(mesh: Mesh, shapes: PyTree) -> PyTree:
    """Returns a NamedSharding per parameter, with matrices sharded over `data`: ZeRO-style, each device updates a part.

    See Xu et al. 2020 (arXiv:2004.13336). The first axis that `data` divides is sharded. Mostly that is the axis of
    layers, along which Adafactor takes no means. Relative positions, norms' scales and biases are small and replicated.
    """

    def one(path: tuple, shape: jax.ShapeDtypeStruct) -> NamedSharding:
        is_matrix = path[-1].key in ("kernel", "embedding")
        if is_matrix:
            for axis, size in enumerate(shape.shape):
                if size % mesh.shape["data"] == 0:
                    return NamedSharding(mesh, PartitionSpec(*(None,) * axis, "data"))
        return replicated(mesh)

    return jax.tree.map_with_path(one, shapes)


def replicated(mesh: Mesh) -> NamedSharding:
    """Returns the sharding of a fully replicated array."""
    return NamedSharding(mesh, PartitionSpec())


def parameter_shardings(mesh: Mesh, logical_axes: PyTree, shapes: PyTree) -> PyTree:
    """Returns a NamedSharding per parameter by LOGICAL_AXIS_RULES; an axis that does not divide is not sharded."""

    def one(axes: PartitionSpec, shape: jax.ShapeDtypeStruct) -> NamedSharding:
        spec = []
        for axis, size in zip(axes, shape.shape, strict=True):
            mesh_axis = LOGICAL_AXIS_RULES[axis]
            divides = mesh_axis is not None and size % mesh.shape[mesh_axis] == 0
            spec.append(mesh_axis if divides else None)
        return NamedSharding(mesh, PartitionSpec(*spec))

    return jax.tree.map(one, logical_axes, shapes, is_leaf=lambda x: isinstance(x, PartitionSpec))


def leaf_name(path: tuple) -> str:
    """Returns the name of the leaf at a path of `jax.tree.leaves_with_path`.

    >>> [leaf_name(path) for path, _ in jax.tree.leaves_with_path({"encoder": {"scale": 1.0}, "count": (2, 3)})]
    ['count/0', 'count/1', 'encoder/scale']
    """
    return jax.tree_util.keystr(path, simple=True, separator="/")


def named_leaves(tree: PyTree) -> dict[str, Any]:
    """Returns each leaf by its name, in the order of `jax.tree.leaves`.

    >>> named_leaves({"encoder": {"scale": 1.0}, "count": (2, 3)})
    {'count/0': 2, 'count/1': 3, 'encoder/scale': 1.0}
    """
    return {leaf_name(path): leaf for path, leaf in jax.tree.leaves_with_path(tree)}
