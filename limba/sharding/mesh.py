"""The device mesh and what lies where on it: logical axis -> mesh axis, and a batch's split."""

from __future__ import annotations

from typing import Any

import jax
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from limba.config import MeshConfig

Tree = Any

# T5X's logical axis names. Matrices are cut over `model` along heads, mlp and vocabulary, and over
# `fsdp` along the model width, gathered when used (arXiv:1910.02054, stage 3). Stacked layers and
# relative position buckets stay whole.
LOGICAL_AXIS_RULES = {
    "batch": ("data", "fsdp"),
    "vocab": "model",
    "embed": "fsdp",
    "mlp": "model",
    "heads": "model",
    "joined_kv": "model",
    "relpos_buckets": None,
    "length": None,
    "layers": None,
}


def make_mesh(config: MeshConfig) -> Mesh:
    """Returns the mesh (data, fsdp, model) over all devices of all hosts; ConfigError if sizes do not fit."""
    sizes = config.sizes(jax.device_count())
    return jax.make_mesh(sizes, ("data", "fsdp", "model"), axis_types=(AxisType.Auto,) * 3)


def batch_sharding(mesh: Mesh) -> NamedSharding:
    """Rows over data and fsdp, whole along the rest."""
    return NamedSharding(mesh, PartitionSpec(LOGICAL_AXIS_RULES["batch"]))


def constrain_batch_sharding(x: jax.Array, mesh: Mesh | None) -> jax.Array:
    """Returns x [B, …], its rows kept over data and fsdp as the batch's are.

    Without this the compiler lets activations lie as the parameters do, cut along the model width over `fsdp`: every
    device then works on all rows, and each product is added up over all of them.
    """
    if mesh is None or mesh.shape["fsdp"] == 1 or x.shape[0] % (mesh.shape["data"] * mesh.shape["fsdp"]):
        return x
    return jax.lax.with_sharding_constraint(x, batch_sharding(mesh))


def is_pure_data_parallel(mesh: Mesh) -> bool:
    """True where several devices hold the same parameters, and nothing is cut over `fsdp` or `model`."""
    return mesh.shape["data"] == mesh.size > 1


def update_shardings(mesh: Mesh, shapes: Tree) -> Tree:
    """Returns a NamedSharding per parameter: matrices cut over `data`, each device updating its share of them
    (Xu et al. 2020, arXiv:2004.13336).

    Cut is the first axis that divides. Mostly that is the layers', along which Adafactor takes no means. Relative
    positions, norms' scales and biases are small, and whole.
    """

    def one(path: tuple, shape: jax.ShapeDtypeStruct) -> NamedSharding:
        sizes = shape.shape if path[-1].key in ("kernel", "embedding") else ()
        axis = next((i for i, size in enumerate(sizes) if size % mesh.shape["data"] == 0), None)
        return NamedSharding(mesh, PartitionSpec() if axis is None else PartitionSpec(*(None,) * axis, "data"))

    return jax.tree.map_with_path(one, shapes)


def replicated(mesh: Mesh) -> NamedSharding:
    return NamedSharding(mesh, PartitionSpec())


def parameter_shardings(mesh: Mesh, logical_axes: Tree, shapes: Tree) -> Tree:
    """Returns a NamedSharding per parameter; an axis that does not divide stays whole."""

    def one(axes: PartitionSpec, shape: jax.ShapeDtypeStruct) -> NamedSharding:
        spec = []
        for axis, size in zip(axes, shape.shape, strict=True):
            mesh_axis = LOGICAL_AXIS_RULES[axis]
            divides = mesh_axis is not None and size % mesh.shape[mesh_axis] == 0
            spec.append(mesh_axis if divides else None)
        return NamedSharding(mesh, PartitionSpec(*spec))

    return jax.tree.map(one, logical_axes, shapes, is_leaf=lambda x: isinstance(x, PartitionSpec))
