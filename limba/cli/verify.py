"""`limba status --verify`: compares the files of a run's checkpoints with their manifests."""

from collections.abc import Iterator

from etils import epath

from limba.config import InputError, RunConfig, StorageError, plain
from limba.formats import limba_checkpoint
from limba.storage import manifest
from limba.storage.failures import short_reason
from limba.storage.files import read_text, resolved


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
        is_inside = path != root and path.is_relative_to(root)  # a fallback_dir is elsewhere
        name = path.relative_to(root) if is_inside else path
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
    """Yields the checkpoints of a run, of its `best` and of its fallback_dir, and those that the run has set aside."""
    if root.name.isdigit() and root.parent.name == "checkpoints":
        yield root
        return
    for directory in (root / "checkpoints", root / "best" / "checkpoints", *_fallback(root)):
        yield from limba_checkpoint.steps_in(directory, with_files=True).values()
        if not directory.is_dir():
            continue
        for child in sorted(directory.iterdir()):
            if ".broken" in child.name:
                yield child


def _fallback(root: epath.Path) -> Iterator[epath.Path]:
    """Yields the directory in which the run saves when its own cannot be written, where its config.json names one."""
    if not (root / plain.FILE).exists():
        return
    config = plain.from_text(read_text(root / plain.FILE), str(root / plain.FILE))
    if isinstance(config, RunConfig):
        directory = limba_checkpoint.fallback_directory(config.model_dir, config.checkpoint.fallback_dir)
        if directory is not None:
            yield directory
