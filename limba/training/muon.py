"""Muon: the update of a layer's matrix is its momentum, made orthogonal by Newton-Schulz iterations.

Jordan et al. 2024 (kellerjordan.github.io/posts/muon); Liu et al. 2025 (arXiv:2502.16982) for updates of one size.

`optax.contrib.scale_by_muon` computes the same in the gradient's dtype, array by array, and wherever the arrays are.
Here the iterations run in bfloat16, over all matrices of one shape together, each device on its share of them.
"""

import math
from collections.abc import Callable, Iterator, Mapping

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import NamedSharding
from jaxtyping import Array, Float, PyTree

from limba.config.optimizer import Muon
from limba.sharding.mesh import named_leaves

COEFFICIENTS = (3.4445, -4.7750, 2.0315)  # of the quintic iteration (Jordan et al.)
STEPS = 5  # iterations (Jordan et al.)
EPSILON = 1e-20  # added to a matrix's norm: an update does not depend on the gradient's size, and 0 stays 0
MOST_BYTES = 1 << 29  # of the matrices that a device makes orthogonal at one time


def matrices_by_muon(
    config: Muon, others: optax.GradientTransformation, shardings: PyTree = None
) -> optax.GradientTransformation:
    """Returns Muon's rule for the kernels of layers, and `others` for embeddings, head, norms, biases and positions.

    Each matrix of a stack is its own, and so are query, key and value, and the branches of an MLP: their kernels are
    separate parameters. `shardings` are the parameters' shardings in training; None: there is one device.
    """

    def orthogonal(updates: PyTree, _: PyTree) -> PyTree:
        by_name = orthogonalized_by_shares(named_leaves(updates), STEPS, config.muon_dtype, shardings)
        return jax.tree.structure(updates).unflatten([sized(x, config.muon_rms) for x in by_name.values()])

    matrices = optax.chain(optax.trace(config.muon_beta, nesterov=True), optax.stateless(orthogonal))
    return optax.partition({"matrices": matrices, "others": others}, _kinds)


def _kinds(params: PyTree) -> PyTree:
    """Returns for each parameter which of the two rules it has."""
    kinds = []
    for name in named_leaves(params):
        is_matrix_of_layer = name.endswith("/kernel") and "layers" in name
        kinds.append("matrices" if is_matrix_of_layer else "others")
    return jax.tree.structure(params).unflatten(kinds)


def orthogonalized_by_shares(
    stacks: Mapping[str, Array], steps: int, dtype: str, shardings: PyTree = None
) -> dict[str, Array]:
    """Returns `orthogonalized` of each matrix of the stacks [N, n, m], by name; each device computes its share.

    A device has whole layers of a stack whose layers are sharded. Otherwise matrices are exchanged in `dtype`: each
    device sends its part of all matrices of one shape and gets whole ones, as many as each other device, and sends
    back its part of the results. No matrix is gathered on all devices. Results are float32.
    """
    by_name = {} if shardings is None else named_leaves(shardings)
    results: dict[str, Array] = {}
    for names, sharding in _groups(stacks, by_name, jnp.dtype(dtype).itemsize):
        group = [stacks[name].astype(dtype).reshape(-1, *stacks[name].shape[-2:]) for name in names]
        of_group = _by_shares(group, lambda x: orthogonalized(x, steps), sharding)
        for name, result in zip(names, of_group, strict=True):
            results[name] = result.reshape(stacks[name].shape).astype(jnp.float32)
    return {name: results[name] for name in stacks}  # in the order of the stacks again


def _groups(
    stacks: Mapping[str, Array], shardings: Mapping[str, NamedSharding], itemsize: int
) -> Iterator[tuple[list[str], NamedSharding | None]]:
    """Yields the names of stacks of one shape and sharding, and that sharding: at most MOST_BYTES on a device."""
    groups: dict[tuple[PyTree, PyTree], list[str]] = {}
    for name, stack in stacks.items():
        groups.setdefault((stack.shape[-2:], shardings.get(name)), []).append(name)
    for (shape, sharding), names in groups.items():
        parts = 1 if sharding is None else math.prod(sharding.mesh.shape[axis] for axis in sharding.spec if axis)
        most = max(1, MOST_BYTES * parts // (itemsize * math.prod(shape)))  # matrices
        chunk = list[str]()
        total = 0
        for name in names:
            number = math.prod(stacks[name].shape[:-2])
            if chunk and total + number > most:
                yield chunk, sharding
                chunk = []
                total = 0
            chunk.append(name)
            total += number
        yield chunk, sharding


def _by_shares(stacks: list[Array], function: Callable[[Array], Array], sharding: NamedSharding | None) -> list[Array]:
    """Returns `function` of the matrices of stacks [N, n, m] of one sharding, each device computing its share."""
    if sharding is None or sharding.mesh.size == 1:
        return _split(function(jnp.concatenate(stacks)), stacks)
    mesh = sharding.mesh
    spec = (*sharding.spec, None, None, None)[:3]
    # The axes of the mesh that do not divide layers, each with the axis of the matrices that it divides, or None.
    exchanged = [
        (name, spec.index(name) if name in spec else None)
        for name in mesh.axis_names
        if mesh.shape[name] > 1 and name != spec[0]
    ]
    shares = math.prod(mesh.shape[name] for name, _ in exchanged)

    def on_device(*parts: Array) -> tuple[Array, ...]:
        x = jnp.concatenate(parts)
        number = len(x)
        x = jnp.pad(x, ((0, -number % shares), (0, 0), (0, 0)))
        for name, axis in exchanged:
            if axis is None:
                size = len(x) // mesh.shape[name]
                x = jax.lax.dynamic_slice_in_dim(x, jax.lax.axis_index(name) * size, size)
            else:
                x = jax.lax.all_to_all(x, name, 0, axis, tiled=True)
        x = function(x)
        for name, axis in reversed(exchanged):
            if axis is None:
                x = jax.lax.all_gather(x, name, tiled=True)
            else:
                x = jax.lax.all_to_all(x, name, axis, 0, tiled=True)
        return tuple(_split(x[:number], parts))

    specs = (sharding.spec,) * len(stacks)
    return list(jax.shard_map(on_device, mesh=mesh, in_specs=specs, out_specs=specs, check_vma=False)(*stacks))


def _split(x: Array, stacks: PyTree) -> list[Array]:
    """Returns the concatenation as arrays of these lengths."""
    return jnp.split(x, np.cumsum([len(stack) for stack in stacks])[:-1])


def orthogonalized(x: Float[Array, "N n m"], steps: int = 5) -> Float[Array, "N n m"]:
    """Returns about U V^T of each matrix's singular value decomposition U S V^T, in the dtype of `x`.

    After 5 steps the singular values of the result are between 0.5 and 1.5 or so, and not 1: these coefficients bring
    small ones up the fastest.
    """
    a, b, c = COEFFICIENTS
    dtype = x.dtype
    is_wide = x.shape[1] < x.shape[2]  # G is smaller for a tall matrix
    y = (x.swapaxes(1, 2) if is_wide else x).astype(jnp.float32)
    y = (y / (jnp.linalg.norm(y, axis=(1, 2), keepdims=True) + EPSILON)).astype(dtype)
    identity = jnp.broadcast_to(jnp.eye(y.shape[2]), (len(y), y.shape[2], y.shape[2]))
    for _ in range(steps):
        # y(aI + (bI + cG)G) with G = y^T y. To a TPU's compiler this form is a quarter cheaper than ay + (bG + cGG)y
        # of wide matrices: no sum reads y again, and the barrier keeps two products out of one operation.
        gram = y.swapaxes(1, 2) @ y
        factor = a * identity + (b * identity + c * gram).astype(dtype) @ gram
        y = y @ jax.lax.optimization_barrier(factor.astype(dtype))
    return y.swapaxes(1, 2) if is_wide else y


def sized(x: Float[Array, "*layers n m"], rms: float) -> Float[Array, "*layers n m"]:
    """Returns orthogonal matrices with this root mean square of their elements."""
    return x * (rms * max(x.shape[-2:]) ** 0.5)
