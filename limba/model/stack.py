"""Runs a stack of equal layers whose parameters are stacked on axis 0 under `layers`.

A stack runs as one `lax.scan` (compiles once for all layers) or as a loop over its slices (faster steps, longer
compilation). Both give the same numbers. `limba/formats/names.py` unstacks to T5X's `layers_0`, `layers_1`, ….
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax.core import meta
from jax.sharding import Mesh
from jaxtyping import Array, Float, PyTree

from limba.config import ModelConfig
from limba.model.kernels.choose import device_of
from limba.model.layers import ATTENDED, DENSE
from limba.model.trees import Parameters
from limba.sharding.mesh import constrain_batch_sharding

Method = Callable[..., PyTree] | str | None  # of a module; None: its call


def apply_module(
    module: nn.Module, params: Parameters, *inputs: PyTree, method: Method = None, dropout_key: Array | None = None
) -> PyTree:
    """Returns what `method` of a module, by default its call, computes with these parameters."""
    rngs = {} if dropout_key is None else {"dropout": dropout_key}
    return module.apply({"params": params}, *inputs, rngs=rngs, method=method)


def run_layers(
    owner: nn.Module,
    layer_type: type[nn.Module],
    num_layers: int,
    x: Float[Array, "B L D"],
    inputs: tuple[PyTree, ...],
    deterministic: bool,
    numbered: bool = False,
) -> Float[Array, "B L D"]:
    """Returns `x` after `num_layers` layers, whose stacked parameters `owner` holds as `layers`.

    `owner` has the fields `config` and `mesh`; every layer is called with (x, *inputs, deterministic), and
    where they are `numbered` with its number before the last one. Layer i draws its dropout from the stack's key folded
    with i.
    """
    config: ModelConfig = owner.config  # pyright: ignore[reportAttributeAccessIssue]  a field of every stack
    mesh: Mesh | None = owner.mesh  # pyright: ignore[reportAttributeAccessIssue]  another one
    layer = layer_type(config, parent=None)  # pyright: ignore[reportCallIssue]  every layer has this field

    def init(key: Array) -> Parameters:
        init_one = lambda layer_key: layer.init(layer_key, x, *inputs, *((0,) if numbered else ()), True)["params"]
        stacked = jax.vmap(init_one)(jax.random.split(key, num_layers))
        return meta.add_axis(stacked, 0, {meta.PARTITION_NAME: "layers"})

    stacked = owner.param("layers", init)
    dropout_key = owner.make_rng("dropout") if config.dropout_rate > 0 and not deterministic else None

    def step(x: Array, parameters: Parameters, index: Array | int) -> Array:
        key = None if dropout_key is None else jax.random.fold_in(dropout_key, index)
        x = constrain_batch_sharding(x, mesh)
        number = (index,) if numbered else ()
        return apply_module(layer, parameters, x, *inputs, *number, deterministic, dropout_key=key)

    if scans_layers(config, mesh):
        stacked = jax.tree.map_with_path(functools.partial(_cast_kernel, jnp.dtype(config.dtype)), stacked)
        step = _rematerialized(step, config.remat, prevent_cse=False)
        x, _ = jax.lax.scan(lambda x, xs: (step(x, *xs), None), x, (stacked, jnp.arange(num_layers)))
        return x
    step = _rematerialized(step, config.remat, prevent_cse=True)
    for i, parameters in enumerate(unstack(stacked, num_layers)):
        x = step(x, parameters, i)
    return x


def scans_layers(config: ModelConfig, mesh: Mesh | None) -> bool:
    """Returns whether layers run as a scan. Unless the run chooses, GPUs run them as a loop, whose steps are faster."""
    if config.scan_layers is None:
        return device_of(mesh).platform != "gpu"
    return config.scan_layers


def _cast_kernel(dtype: jnp.dtype, path: tuple, array: Array) -> Array:
    """Casts a matrix to the activations' dtype, in which the scan then accumulates the gradient of its stack."""
    return array.astype(dtype) if path[-1].key == "kernel" else array


def unstack(stacked: PyTree, num_layers: int) -> list[PyTree]:
    """Returns the layers' trees. `split` and not indexing: its gradient is one concatenation."""
    leaves, structure = jax.tree.flatten(stacked)
    split = [jax.lax.split(leaf, (1,) * num_layers, axis=0) for leaf in leaves]
    return [structure.unflatten([parts[i][0] for parts in split]) for i in range(num_layers)]


def _rematerialized(step: Callable, remat: str, prevent_cse: bool) -> Callable:
    """Returns the layer with a backward pass that recomputes what `remat` does not save."""
    if remat == "none":
        return step
    policy = jax.checkpoint_policies.save_only_these_names(DENSE, ATTENDED) if remat == "minimal" else None
    return jax.checkpoint(step, policy=policy, prevent_cse=prevent_cse)
