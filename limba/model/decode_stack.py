"""Runs a decoder's layers for one decode step, with their KV cache.

On TPUs and GPUs the layers run as a scan over stacked parameters, and the cache is stacked too. On a CPU a slice of a
stack is copied before each product, which doubles what a token reads: there a loop runs, over parameters that are
unstacked before the first token, and each layer has a cache of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PyTree

from limba.config import ModelConfig
from limba.model.layers import KERNEL_ROWS
from limba.model.stack import unstack
from limba.model.trees import Cache, Parameters

# (x, cache, the layer's part of the stack, its index) -> (x, cache); in a loop the cache is the layer's, the index None
DecodeLayer = Callable[[Array, Cache, PyTree, Array | None], tuple[Array, Cache]]


def _scans(config: ModelConfig) -> bool:
    return config.scan_layers is not False and jax.default_backend() != "cpu"


def decode_runner(
    config: ModelConfig, num_layers: int, stacked: PyTree, by_rows: bool = False
) -> Callable[[DecodeLayer, Array, Cache], tuple[Array, Cache]]:
    """Returns a function (one_layer, x, cache) -> (x, cache) that runs the layers of one decode step.

    The cache is as `stack_cache` returns it. In a loop `by_rows` transposes the layers' kernels.
    """
    if _scans(config):

        def scanned(one_layer: DecodeLayer, x: Array, cache: Cache) -> tuple[Array, Cache]:
            xs = (stacked, jnp.arange(num_layers))
            return jax.lax.scan(lambda carry, xs: (one_layer(*carry, *xs), None), (x, cache), xs)[0]

        return scanned
    layers = unstack(stacked, num_layers)
    if by_rows:
        layers = [with_kernel_rows(layer, jnp.dtype(config.dtype)) for layer in layers]

    def unrolled(one_layer: DecodeLayer, x: Array, cache: Cache) -> tuple[Array, Cache]:
        caches = []
        for layer, layer_cache in zip(layers, cache, strict=True):
            x, layer_cache = one_layer(x, layer_cache, layer, None)
            caches.append(layer_cache)
        return x, caches

    return unrolled


def with_kernel_rows(parameters: Parameters, dtype: jnp.dtype) -> Parameters:
    """Returns a tree whose kernels [I, O] are transposed, in the activations' dtype, as `dense_by_rows` reads them."""
    changed = {}
    for name, value in parameters.items():
        if name == "kernel":
            changed[KERNEL_ROWS] = value.T.astype(dtype)
        else:
            changed[name] = with_kernel_rows(value, dtype) if isinstance(value, Mapping) else value
    return changed


def stack_cache(config: ModelConfig, keys: Float[Array, "N R H L C"], values: Float[Array, "N R H L C"]) -> Cache:
    """Returns the cache with these keys and values of N layers: "key" and "value" [R, N, H, L, C], or in a loop a list
    of N caches with [R, H, L, C].
    """
    if _scans(config):
        return {"key": jnp.swapaxes(keys, 0, 1), "value": jnp.swapaxes(values, 0, 1)}
    return [{"key": key, "value": value} for key, value in zip(keys, values, strict=True)]


def extend_cache(
    cache: Cache,
    key: Float[Array, "R H 1 C"],
    value: Float[Array, "R H 1 C"],
    position: Int[Array, ""],
    index: Int[Array, ""] | None,
) -> tuple[Cache, Float[Array, "R H L C"], Float[Array, "R H L C"]]:
    """Returns a `DecodeLayer`'s cache with one position more, and the keys and values of this layer."""
    if index is None:
        start = (0, 0, position, 0)
        keys = jax.lax.dynamic_update_slice(cache["key"], key, start)
        values = jax.lax.dynamic_update_slice(cache["value"], value, start)
        return {"key": keys, "value": values}, keys, values
    start = (0, index, 0, position, 0)
    all_keys = jax.lax.dynamic_update_slice(cache["key"], key[:, None], start)
    all_values = jax.lax.dynamic_update_slice(cache["value"], value[:, None], start)
    keys = jax.lax.dynamic_index_in_dim(all_keys, index, axis=1, keepdims=False)
    values = jax.lax.dynamic_index_in_dim(all_values, index, axis=1, keepdims=False)
    return {"key": all_keys, "value": all_values}, keys, values
