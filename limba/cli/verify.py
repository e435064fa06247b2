"""`limba verify`: checks the files of a run's checkpoints."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from limba.cli.arguments import Parser
from limba.config import InputError, StorageError

ABOUT = """Checks every checkpoint of a run, its best one too: the size and the checksum of each file must be those of
its manifest. Prints a line for each step. Ends with 2 if one is damaged, else with 0.

    limba verify MODEL_DIR"""


def run(argv: Sequence[str]) -> int:
    """Prints a line for each step; returns 2 if one is damaged, else 0. Raises InputError if there is none."""
    parser = Parser("verify", ABOUT)
    parser.add_object("model", "MODEL_DIR", "a run directory, or one of its checkpoints; a path or gs://…")
    parser.add_argument("--sizes", action="store_true", help="compare only sizes; a changed byte is not found then")
    given = parser.parse(argv)
    if given.model is None:
        raise InputError("No run is given; write limba verify MODEL_DIR.")
    from limba.storage.files import resolved

    root = resolved(given.model)
    found = list(_steps(root))
    if not found:
        raise InputError(f"{given.model} has no checkpoints/<step>; name the MODEL_DIR of a run.")
    has_damage = False
    for path in found:
        is_damaged, text = verdict(path, "sizes" if given.sizes else "checksums")
        has_damage = has_damage or is_damaged
        name = path.relative_to(root) if path != root and path.is_relative_to(root) else path
        print(f"{name}: {text}", flush=True)
    return 2 if has_damage else 0


def verdict(path: Any, how: str) -> tuple[bool, str]:
    """Returns (whether a checkpoint is damaged, the sentence about it)."""
    from limba.formats import limba_checkpoint
    from limba.storage import manifest
    from limba.storage.failures import short_reason

    if not path.name.isdigit():
        return False, "set aside by a run"
    try:
        damaged = limba_checkpoint.damage(path, how)
        if damaged:
            return True, f"damaged: {'; '.join(damaged)}"
        number, size = manifest.size_of(path)
    except Exception as error:
        raise StorageError(f"{path} cannot be read at the moment ({short_reason(error)}); try again.") from error
    what = "sizes and checksums" if how == "checksums" else "sizes, not checksums,"
    return False, f"whole ({number} files, {size:,} bytes; {what} are those of its manifest)"


def _steps(root: Any) -> Iterator[Any]:
    """Yields the checkpoints of a run, of its `best` and of its fallback_dir, and those that the run has set aside."""
    from limba.formats import limba_checkpoint

    if root.name.isdigit() and root.parent.name == "checkpoints":
        yield root
        return
    for directory in (root / "checkpoints", root / "best" / "checkpoints", *_fallback(root)):
        yield from limba_checkpoint.steps_in(directory, with_files=True).values()
        for child in sorted(directory.iterdir()) if directory.is_dir() else ():
            if ".broken" in child.name:
                yield child


def _fallback(root: Any) -> Iterator[Any]:
    """Yields where the run saves if its directory cannot be written, if its config.json names such a place."""
    from limba.config import RunConfig, plain
    from limba.formats.limba_checkpoint import fallback_directory
    from limba.storage.files import read_text

    if not (root / plain.FILE).exists():
        return
    config = plain.from_text(read_text(root / plain.FILE), str(root / plain.FILE))
    if isinstance(config, RunConfig):
        place = fallback_directory(config.model_dir, config.checkpoint.fallback_dir)
        if place is not None:
            yield place
