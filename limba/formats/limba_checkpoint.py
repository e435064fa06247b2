"""Limba's checkpoints under T5X's names: one array for each layer, read on demand, at most one stack in memory.

`checkpoints/<step>/state` is Orbax's store: `params/encoder/layers/mlp/wo/kernel` with the layers on axis 0, and
`opt_state/…`. Iteration goes stack by stack, so in this order every stack is read once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
from etils import epath

from limba.config import InputError
from limba.formats.t5x import StoredTree, orbax_leaves

_PARAMETERS = "params/"


def is_own(path: epath.Path) -> bool:
    """Returns whether the path is a Limba checkpoint, `checkpoints/<step>`."""
    return (path / "state" / "manifest.ocdbt").exists() and path.name.isdigit() and path.parent.name == "checkpoints"


def checkpoints_of(path: epath.Path) -> dict[int, epath.Path]:
    """Returns step -> directory of the finished checkpoints in a Limba run directory, oldest first."""
    root = path / "checkpoints"
    found = {int(child.name): child for child in (root.iterdir() if root.is_dir() else ()) if is_own(child)}
    return dict(sorted(found.items()))


class LimbaCheckpoint(Mapping[str, np.ndarray]):
    """The parameters of one `checkpoints/<step>` by T5X's names, unstacked; `stored` has all arrays by Limba's names.

    Raises InputError if the store cannot be read, and for an array with missing pieces.
    """

    def __init__(self, path: str | epath.Path):
        self.path = epath.Path(path)
        self.step = int(self.path.name)
        self.stored = StoredTree(self.path, orbax_leaves(self.path / "state"))
        self._places: dict[str, tuple[str, int | None]] = {}
        self._held: tuple[str, np.ndarray] = ("", np.zeros(0))
        for name in self.stored:
            if not name.startswith(_PARAMETERS):
                continue
            there, wanted = self.stored.pieces(name)
            if there < wanted:
                raise InputError(f"{self.path} is truncated: {name} has {there} of its {wanted} pieces; copy it again.")
            short = name.removeprefix(_PARAMETERS)
            if "/layers/" not in short:
                self._places[short] = (name, None)
                continue
            for i in range(self.stored.describe(name)[0][0]):
                self._places[short.replace("/layers/", f"/layers_{i}/")] = (name, i)

    def __getitem__(self, name: str) -> np.ndarray:
        place, layer = self._places[name]
        return self.stored[place] if layer is None else self.stack(place)[layer]

    def stack(self, place: str) -> np.ndarray:
        """Returns an array by Limba's name; the last one stays in memory, for its next layer."""
        if self._held[0] != place:
            self._held = ("", np.zeros(0))  # freed first: two stacks are never in memory
            self._held = (place, self.stored[place])
        return self._held[1]

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)

    def describe(self, name: str) -> tuple[tuple[int, ...], str]:
        """Returns (shape, dtype name) of a parameter without reading its values."""
        place, layer = self._places[name]
        shape, dtype = self.stored.describe(place)
        return (shape if layer is None else shape[1:]), dtype
