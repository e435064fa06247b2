"""Where jax keeps compiled programs: a folder that only this user can open, or a bucket that is named explicitly.

An entry is machine code that runs as this user, so no folder of a run is ever used for it, nor one that others can
write. A command sets jax's variable, Python code jax.config; what the user has set stays as it is.
"""

import contextlib
import os
import stat
import sys
from pathlib import Path

VARIABLE = "COMPILE_CACHE"  # a folder, gs://…, or 'off'
OF_JAX = "JAX_COMPILATION_CACHE_DIR"
DEFAULT = "~/.cache/limba/compiled"
BUCKET = "gs://"
MODE = 0o700
WRITABLE_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH


def directory() -> str:
    """Returns the cache's place; "", for jax no cache, and one line on stderr where no place is safe."""
    variable = os.environ.get(VARIABLE, "")
    if variable == "off" or variable.startswith(BUCKET):
        return variable.removeprefix("off")
    problem = f"{VARIABLE} is {variable}; give a folder, {BUCKET}BUCKET/FOLDER or off" if "://" in variable else None
    path = Path(variable or DEFAULT).expanduser()
    problem = problem or problem_of(path, explicit=bool(variable))
    if problem:
        print(f"Compiled programs are not kept: {problem}.", file=sys.stderr)
    return str(path) if problem is None else ""


def problem_of(folder: Path, explicit: bool = True) -> str | None:
    """Returns why a folder cannot be the cache; None if it can: it is made, or is this user's, and has mode 0700 now.

    "" is a problem that needs no sentence: a home that cannot be written, where nobody asked for a cache.
    """
    try:
        folder.mkdir(mode=MODE, parents=True, exist_ok=True)
        status = folder.stat()
        if hasattr(os, "getuid") and status.st_uid != os.getuid():
            return f"{folder} belongs to another user; set {VARIABLE} to a folder of your own"
        if status.st_mode & WRITABLE_BY_OTHERS and any(folder.iterdir()):
            return f"others could write in {folder}, and what is kept there would run as you; delete it"
        if stat.S_IMODE(status.st_mode) != MODE:
            folder.chmod(MODE)
    except OSError as error:
        with contextlib.suppress(OSError):
            if not explicit and not folder.exists():
                return ""
        return f"{folder} cannot be used ({error.strerror}); set {VARIABLE} to a folder that can"
    return None
