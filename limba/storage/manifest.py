"""The manifest of a directory: the size and the checksum of each of its files, written when all of them are there.

A directory with a manifest is whole if every file is as the manifest says. Checksums are crc32c, which a core computes
at about 20 GB/s; files are read by a few threads.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path, PurePosixPath
from typing import Any

import google_crc32c
from etils import epath

from limba.storage.failures import is_passing, short_reason, twice

FILE = "manifest.json"
FORMAT = 1
CHUNK_BYTES = 1 << 24
NUM_THREADS = 8

Entry = tuple[int, str]  # bytes, crc32c as 8 hex digits


def exists(directory: str | epath.Path) -> bool:
    """Returns whether a directory has a manifest."""
    return (epath.Path(directory) / FILE).exists()


def entries(directory: str | epath.Path, wanted: Callable[[str], bool] = lambda name: True) -> dict[str, Entry]:
    """Returns relative path -> (size, checksum) of a directory's files whose path is `wanted`, read now."""
    root = epath.Path(directory)
    found = [name for name in sorted(names(root)) if name != FILE and wanted(name)]
    with ThreadPoolExecutor(NUM_THREADS) as pool:
        return dict(zip(found, pool.map(lambda name: entry(root / name), found), strict=True))


def write(directory: str | epath.Path, known: Mapping[str, Entry] | None = None, step: int | None = None) -> None:
    """Writes the manifest of all files of a directory; the entries of `known` are taken as they are.

    `step` is that of a checkpoint. Nothing may be written to the directory afterwards.
    """
    known = known or {}
    files = {**known, **entries(directory, lambda name: name not in known)}
    (epath.Path(directory) / FILE).write_text(text(files, step))


def text(files: Mapping[str, Entry], step: int | None = None) -> str:
    """Returns a manifest of these entries, as a file's text."""
    content = {"format": FORMAT, "files": files, "crc32c": _own_checksum(files)} | (
        {} if step is None else {"step": step}
    )
    return json.dumps(content, indent=0, sort_keys=True) + "\n"


def check(directory: str | epath.Path, how: str = "checksums", part: tuple[int, int] = (0, 1)) -> list[str]:
    """Returns a short sentence for each file that is not as the manifest says; [] if the directory is whole.

    `how` is 'checksums', or 'sizes', which reads no file but the manifest. `part` (number, of how many) is this
    reader's share of the checksums. Raises what the file system raises if it cannot be read at the moment
    (`failures.is_passing`).
    """
    root = epath.Path(directory)
    try:
        files, step = _read(root)
    except ValueError as error:
        return [str(error)]
    if root.name.isdigit() and step not in (None, int(root.name)):  # version 0.2.0 wrote no step
        return [f"{FILE} is that of step {step}"]
    is_there = dict(zip(files, _map(lambda name: _size(root / name), files), strict=True))
    found = []
    for name, (size, _) in files.items():
        if is_there[name] is None:
            found.append(f"{name} is missing")
        elif is_there[name] != size:
            found.append(f"{name} has {is_there[name]:,} bytes and had {size:,} when it was saved")
    if how == "sizes" or found:
        return found
    mine = sorted(files)[part[0] :: part[1]]

    def changed(name: str) -> str | None:
        try:
            if twice(lambda: entry(root / name))[1] != files[name][1]:
                return f"{name} has other bytes than when it was saved"
            return None
        except Exception as error:
            if is_passing(error):
                raise
            return f"{name} cannot be read ({short_reason(error)})"

    return [sentence for sentence in _map(changed, mine) if sentence is not None]


def size_of(directory: str | epath.Path) -> tuple[int, int]:
    """Returns (number of files, their bytes) by the manifest; ValueError if that is damaged."""
    files, _ = _read(epath.Path(directory))
    return len(files), sum(size for size, _ in files.values())


def _read(root: epath.Path) -> tuple[dict[str, Entry], int | None]:
    """Returns (entries, step or None) of the manifest; ValueError, with a short sentence, if it is bad."""
    try:
        content = json.loads(twice((root / FILE).read_text))
        files = {str(name): (int(size), str(checksum)) for name, (size, checksum) in content["files"].items()}
        is_good = content["format"] == FORMAT and content["crc32c"] == _own_checksum(files)
    except FileNotFoundError as error:
        raise ValueError(f"{FILE} is missing") from error
    except Exception as error:
        if is_passing(error):
            raise
        what = f"cannot be read ({short_reason(error)})" if isinstance(error, OSError) else "is damaged"
        raise ValueError(f"{FILE} {what}") from error
    if not is_good or not all(map(_is_inside, files)):
        raise ValueError(f"{FILE} is damaged")
    return files, content.get("step")


def _own_checksum(files: Mapping[str, Entry]) -> str:
    return _hex(google_crc32c.value(json.dumps({name: list(files[name]) for name in sorted(files)}).encode()))


def _is_inside(name: str) -> bool:
    """Returns whether a file's name stays in its directory, whoever wrote the manifest."""
    return bool(name) and not name.startswith("/") and "\\" not in name and ".." not in PurePosixPath(name).parts


def _hex(checksum: int) -> str:
    return f"{checksum:08x}"


def names(folder: epath.Path, inside: str = "") -> Iterator[str]:
    """Yields the relative paths of all files."""
    for child in folder.iterdir():
        if child.is_dir():
            yield from names(child, f"{inside}{child.name}/")
        else:
            yield f"{inside}{child.name}"


def _size(path: epath.Path) -> int | None:
    try:
        return path.stat().length
    except (FileNotFoundError, NotADirectoryError):
        return None


def entry(path: epath.Path | Path) -> Entry:
    """Returns (size, checksum) of a file, read now."""
    size, checksum = 0, google_crc32c.Checksum()
    with path.open("rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            size += len(chunk)
            checksum.update(chunk)
    return size, checksum.hexdigest().decode()


def _map(call: Callable[[str], Any], names: Iterable[str]) -> list[Any]:
    with ThreadPoolExecutor(NUM_THREADS) as pool:
        return list(pool.map(call, names))
