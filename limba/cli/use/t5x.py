"""Lists checkpoints, and writes Limba's as T5X's: the flags of `inspect` and `export`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from limba.cli.arguments import Parser
from limba.config import InputError, kinds

INSPECT = """Lists the arrays of a Limba or T5X checkpoint by T5X's names.

    limba t5x inspect CHECKPOINT [--npz=FILE.npz]"""
EXPORT = """Writes a Limba checkpoint as OUT/checkpoint_<step>, in the legacy format of T5X.

    limba t5x export MODEL_DIR OUT [--step=N]"""
USAGE = "usage: limba t5x inspect|export ...; add --help to either for details."


def list_arrays(path: str, npz: str | None) -> None:
    """Prints the arrays of a checkpoint, and writes them to a .npz file if one is named; raises InputError."""
    if npz:
        kinds.check_local(npz, "--npz")
    from limba.export import t5x

    tree, where = t5x.open_tree(path)
    total = 0
    for name in sorted(tree):
        shape, dtype = tree.describe(name)
        total += int(np.prod(shape)) if name.startswith("target/") else 0
        print(f"{name}  {list(shape)}  {dtype}")
    state = "" if getattr(tree, "has_optimizer", True) else f", {t5x.NO_STATE}"
    print(f"{where}: step {int(np.asarray(tree['state/step'])):,}, {total:,} parameters{state}")
    if npz:
        t5x.write_npz(tree, npz)
        print(f"arrays: {npz}")


def run(argv: Sequence[str]) -> None:
    """Inspects or exports, as the first argument says; raises InputError."""
    command, *rest = argv or ["--help"]
    if command in ("-h", "--help"):
        print(USAGE)
    elif command == "inspect":
        parser = Parser("t5x inspect", INSPECT)
        parser.add_argument("checkpoint", metavar="CHECKPOINT")
        parser.add_argument("--npz", metavar="FILE.npz", help="also write all arrays to this file")
        given = parser.parse(rest)
        list_arrays(given.checkpoint, given.npz)
    elif command == "export":
        parser = Parser("t5x export", EXPORT)
        parser.add_argument("model_dir", metavar="MODEL_DIR", help="a Limba run or checkpoint")
        parser.add_argument("out", metavar="OUT", help="directory for checkpoint_<step>")
        parser.add_argument("--step", type=int, help="step of the checkpoint; default: the newest")
        parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16"), help="parameter dtype")
        given = parser.parse(rest)
        from limba.export import t5x

        print(t5x.export(given.model_dir, given.out, given.step, given.dtype))
    else:
        raise InputError(f"The command {command} is not known; give inspect or export.")
