"""The names of a tree's leaves: the keys to a leaf, joined with slashes."""

from __future__ import annotations

from typing import Any

import jax


def leaf_name(path: tuple) -> str:
    """Returns the name of the leaf at a path of `jax.tree.leaves_with_path`.

    >>> [leaf_name(path) for path, _ in jax.tree.leaves_with_path({"encoder": {"scale": 1.0}, "count": (2, 3)})]
    ['count/0', 'count/1', 'encoder/scale']
    """
    return jax.tree_util.keystr(path, simple=True, separator="/")


def named_leaves(tree: Any) -> dict[str, Any]:
    """Returns each leaf by its name, in the order of `jax.tree.leaves`.

    >>> named_leaves({"encoder": {"scale": 1.0}, "count": (2, 3)})
    {'count/0': 2, 'count/1': 3, 'encoder/scale': 1.0}
    """
    return {leaf_name(path): leaf for path, leaf in jax.tree.leaves_with_path(tree)}
