"""Looks into checkpoints, and writes ours as T5X's: `python -m convert.t5x inspect|export --help`."""

from __future__ import annotations

import re
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from etils import epath

from limba.cli.data import task_flags
from limba.config import InputError
from limba.formats import limba_checkpoint as own
from limba.formats import t5x

INSPECT = """Lists the arrays of a checkpoint of ours or T5X's, by T5X's names.

    python -m convert.t5x inspect CHECKPOINT [--npz=FILE.npz]"""
EXPORT = """Writes a checkpoint of ours as OUT/checkpoint_<step>, which T5X reads (its legacy form).

    python -m convert.t5x export MODEL_DIR OUT [--step=N]"""
USAGE = "usage: python -m convert.t5x inspect|export ...; --help behind either says more."
_AVERAGE = re.compile(r"^opt_state/.*?/(v_row|v_col|v)/((?:encoder|decoder|token_embedder)/.+)$")
KINDS = ("m", "v", "v_row", "v_col")


class T5xTree(Mapping[str, np.ndarray]):
    """A checkpoint of ours as T5X's whole tree: `target/…`, `state/step`, and Adafactor's `state/param_states/…`.

    T5X's `m` is its placeholder. Another optimizer than Adafactor without momentum has no state here.
    """

    def __init__(self, arrays: own.LimbaCheckpoint):
        self._arrays = arrays
        self._averages = {(m[1], m[2]): name for name in arrays.stored if (m := _AVERAGE.match(name))}
        has_momentum = any("/ema/" in name for name in arrays.stored)  # T5X keeps another one, in `m`
        self.has_optimizer = bool(self._averages) and not has_momentum

    def __getitem__(self, name: str) -> np.ndarray:
        if name == "state/step":
            return np.asarray(self._arrays.stored["step"], np.int32)
        if name.startswith("target/"):
            return self._arrays[name.removeprefix("target/")]
        parameter, _, kind = name.removeprefix("state/param_states/").rpartition("/")
        if kind == "m":
            return np.zeros((1,), np.float32)
        place, layer = self._average(parameter, kind)
        array = self._arrays.stack(place)
        return array if layer is None else array[layer]

    def _average(self, parameter: str, kind: str) -> tuple[str, int | None]:
        from limba.training.initial_checkpoint import exchanged_kind

        ours = exchanged_kind(kind, parameter, self._arrays.describe(parameter)[0])
        match = re.search(r"/layers_(\d+)/", parameter)
        stacked = re.sub(r"/layers_\d+/", "/layers/", parameter)
        return self._averages[ours, stacked], int(match[1]) if match else None

    def __iter__(self) -> Iterator[str]:
        yield "state/step"
        for name in self._arrays:
            yield f"target/{name}"
        if self.has_optimizer:
            for kind in KINDS:  # a kind of one stack is one array: the layers come one after the other
                for name in self._arrays:
                    yield f"state/param_states/{name}/{kind}"

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def describe(self, name: str) -> tuple[tuple[int, ...], str]:
        """Returns (shape, dtype name) without reading the values."""
        if name == "state/step":
            return (), "int32"
        if name.startswith("target/"):
            return self._arrays.describe(name.removeprefix("target/"))
        parameter, _, kind = name.removeprefix("state/param_states/").rpartition("/")
        if kind == "m":
            return (1,), "float32"
        place, layer = self._average(parameter, kind)
        shape, dtype = self._arrays.stored.describe(place)
        return (shape if layer is None else shape[1:]), dtype


def _own_at(path: str, step: int | None) -> own.LimbaCheckpoint | None:
    place = epath.Path(path) if "://" in path else epath.Path(path).expanduser().resolve()
    found = {int(place.name): place} if own.is_own(place) else own.checkpoints_of(place)
    if not found:
        return None
    if step is not None and step not in found:
        raise InputError(f"There is no checkpoint at step {step} in {path}; choose from {sorted(found)}.")
    return own.LimbaCheckpoint(found[max(found) if step is None else step])


def open_tree(path: str) -> tuple[Any, str]:
    """Returns (all arrays by T5X's names, where they lie) of a checkpoint, or of a run's newest one."""
    checkpoint = _own_at(path, None)
    if checkpoint is not None:
        return T5xTree(checkpoint), str(checkpoint.path)
    place = epath.Path(path) if "://" in path else epath.Path(path).expanduser().resolve()
    found = t5x.checkpoints_of(place)
    tree = t5x.open_checkpoint(found[max(found)] if found and not t5x.is_t5x(place) else place)
    return tree, str(tree.path)


def _parser(command: str, about: str) -> task_flags.Parser:
    parser = task_flags.Parser("", about)
    parser.prog = f"python -m convert.t5x {command}"
    return parser


def _inspect(argv: Sequence[str]) -> None:
    parser = _parser("inspect", INSPECT)
    parser.add_argument("checkpoint", metavar="CHECKPOINT")
    parser.add_argument("--npz", metavar="FILE.npz", help="write all arrays there, for comparison")
    given = parser.parse_args(argv)
    tree, where = open_tree(given.checkpoint)
    total = 0
    for name in sorted(tree):
        shape, dtype = tree.describe(name)
        total += int(np.prod(shape)) if name.startswith("target/") else 0
        print(f"{name}  {list(shape)}  {dtype}")
    print(f"{where}: step {int(np.asarray(tree['state/step'])):,}, {total:,} parameters")
    if given.npz:
        with zipfile.ZipFile(given.npz, "w") as file:  # np.savez would first have all of them in memory
            for name in tree:
                with file.open(f"{name}.npy", "w", force_zip64=True) as entry:
                    np.lib.format.write_array(entry, np.asarray(tree[name]), allow_pickle=False)
        print(f"arrays: {given.npz}")


def _export(argv: Sequence[str]) -> None:
    parser = _parser("export", EXPORT)
    parser.add_argument("model_dir", metavar="MODEL_DIR", help="a run directory of ours, or one of its checkpoints")
    parser.add_argument("out", metavar="OUT", help="a directory, which gets checkpoint_<step>")
    parser.add_argument("--step", type=int, help="the newest unless given")
    parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16"), help="of the parameters")
    given = parser.parse_args(argv)
    checkpoint = _own_at(given.model_dir, given.step)
    if checkpoint is None:
        raise InputError(f"{given.model_dir} holds no checkpoint of Limba's; give a run's MODEL_DIR.")
    tree = T5xTree(checkpoint)
    path = t5x.write_legacy(given.out, checkpoint.step, tree, given.dtype)
    kept = "with Adafactor's state" if tree.has_optimizer else "without an optimizer's state: it is no plain Adafactor"
    print(f"{path}: {len(checkpoint)} parameters, {kept}")


def run(argv: Sequence[str]) -> None:
    """Inspects or exports, as the first argument says; ConfigError for what cannot be."""
    commands = {"inspect": _inspect, "export": _export}
    if not argv or argv[0] in ("-h", "--help"):
        print(USAGE)
    elif argv[0] in commands:
        commands[argv[0]](argv[1:])
    else:
        raise InputError(f"The command {argv[0]} is not known; give inspect or export.")
