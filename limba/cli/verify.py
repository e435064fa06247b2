"""`limba status --verify`: compares the files of a run's checkpoints with their manifests."""

from collections.abc import Iterator

from etils import epath

from limba.config import InputError, StorageError
from limba.formats import limba_checkpoint
from limba.storage import manifest
from limba.storage.failures import short_reason
from limba.storage.files import resolved


def run(model_dir: str, how: str) -> int:
    """Prints a line for each step; returns 2 if one is damaged, else 0. Raises InputError if there is none.

    `how` is 'checksums' or 'sizes', which reads no file.
    """
    root = resolved(model_dir)
    checkpoints = list(_steps(root))
    if not checkpoints:
        raise InputError(f"{model_dir} has no checkpoints/<step>; name the MODEL_DIR of a run.")
    has_damage = False
    for path in checkpoints:
        is_damaged, text = verdict(path, how)
        has_damage = has_damage or is_damaged
        name = path if path == root else path.relative_to(root)
        print(f"{name}: {text}", flush=True)
    return 2 if has_damage else 0


def verdict(path: epath.Path, how: str) -> tuple[bool, str]:
    """Returns (whether a checkpoint is damaged, the sentence about it)."""
    if not path.name.isdigit():  # such as 1000.broken, which a run has renamed when it could not read it
        return False, "set aside by a run"
    try:
        damaged = limba_checkpoint.damage(path, how)
        if damaged:
            return True, f"damaged: {'; '.join(damaged)}"
        number, size = manifest.size_of(path)
    except Exception as error:
        raise StorageError(f"{path} cannot be read at the moment ({short_reason(error)}); try again.") from error
    what = "sizes and checksums" if how == "checksums" else "sizes, not checksums,"
    return False, f"whole ({number} files, {size:,} bytes; {what} match its manifest)"


def _steps(root: epath.Path) -> Iterator[epath.Path]:
    """Yields the checkpoints of a run and of its `best`, and those that the run has set aside."""
    if root.name.isdigit() and root.parent.name == "checkpoints":
        yield root
        return
    for directory in (root / "checkpoints", root / "best" / "checkpoints"):
        yield from limba_checkpoint.steps_in(directory, with_files=True).values()
        if not directory.is_dir():
            continue
        for child in sorted(directory.iterdir()):
            if ".broken" in child.name:
                yield child
