"""Paths, files that are written whole or not at all, and free space: local, or at any address that fsspec knows."""

from __future__ import annotations

import os
import shutil

import fsspec
from etils import epath


def resolved(path: str) -> epath.Path:
    """Returns a local path as an absolute path, and an address such as gs://… unchanged."""
    return epath.Path(path) if "://" in path else epath.Path(path).expanduser().resolve()


def write_whole(path: str, data: bytes) -> None:
    """Writes a file at a path or address atomically; OSError if that fails."""
    system, stripped = fsspec.core.url_to_fs(path)
    if "file" not in ((system.protocol,) if isinstance(system.protocol, str) else system.protocol):
        system.pipe_file(stripped, data)  # an object store shows an object when it is complete
        return
    os.makedirs(os.path.dirname(stripped) or ".", exist_ok=True)
    unfinished = f"{stripped}.{os.getpid()}.tmp"
    with open(unfinished, "wb") as file:
        file.write(data)
    os.replace(unfinished, stripped)


def free_bytes(path: str) -> int | None:
    """Returns the free bytes of the file system that holds a local path; None for an address such as gs://….

    The path need not exist; then the nearest folder above it counts.
    """
    if "://" in path:
        return None
    place = os.path.abspath(os.path.expanduser(path))
    while not os.path.exists(place):
        place = os.path.dirname(place)
    return shutil.disk_usage(place).free
