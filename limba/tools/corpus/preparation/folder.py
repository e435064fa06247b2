"""The folder that prepared shards are written to, and the scratch folder beside it."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
from fsspec.implementations.local import LocalFileSystem

from limba.api import kind_of_failure, private_folder, write_whole
from limba.config import InputError, reason_of
from limba.tools.corpus.preparation.writers import SHARD_WRITERS

SETTINGS_FILE = "prepared.json"


class OutputFolder:
    """The output folder: a local directory, or an address that fsspec knows."""

    def __init__(self, address: str):
        self.address = address
        with self._input_errors():
            self._system, self._path = fsspec.core.url_to_fs(address)
            self.is_local = isinstance(self._system, LocalFileSystem)
            self._system.makedirs(self._path, exist_ok=True)

    @contextlib.contextmanager
    def _input_errors(self) -> Iterator[None]:
        try:
            yield
        except (OSError, ValueError, ImportError, RuntimeError) as error:
            raise kind_of_failure(error)(
                f"The folder {self.address} cannot be used ({reason_of(error)}); check the path, the permissions and"
                " the space."
            ) from error

    def has(self, name: str) -> bool:
        with self._input_errors():
            return self._system.exists(f"{self._path}/{name}")

    def shards(self) -> list[str]:
        with self._input_errors():
            self._system.invalidate_cache()
            try:
                names = [Path(path).name for path in self._system.ls(self._path, detail=False)]
            except FileNotFoundError:  # a bucket has no empty folders
                names = []
        return sorted(name for name in names if name.endswith(tuple(SHARD_WRITERS)))

    def settings(self) -> dict[str, Any] | None:
        if not self.has(SETTINGS_FILE):
            return None
        with self._input_errors():
            existing = parsed(self._system.cat_file(f"{self._path}/{SETTINGS_FILE}"))
        if existing is None:
            raise InputError(f"{self.address}/{SETTINGS_FILE} is damaged; delete the folder.")
        return existing

    def write(self, name: str, content: bytes) -> None:
        with self._input_errors():
            write_whole(f"{self.address.rstrip('/')}/{name}", content)

    def take(self, file: Path, name: str) -> None:
        """Moves a finished local file into the folder; an object store shows it when it is complete."""
        with self._input_errors():
            if not self.is_local:
                self._system.put_file(str(file), f"{self._path}/{name}")
                file.unlink()
                return
            there = Path(self._path) / f".{file.name}"  # on another disk it is copied, and then has its name at once
            if os.stat(file).st_dev != os.stat(self._path).st_dev:
                file = Path(shutil.move(file, there))
            with file.open("rb") as whole:
                os.fsync(whole.fileno())  # it must not be empty after a power cut
            os.replace(file, f"{self._path}/{name}")  # `write` of the settings, the last file, syncs the folder

    def scratch(self, given: str | None) -> Path:
        if self.is_local and not given:
            path = Path(self._path) / "unfinished"
            with self._input_errors():
                path.mkdir(parents=True, exist_ok=True)
            return path
        # A second call finds the folder by its name, which others of this machine can know as well.
        digest = hashlib.blake2b(self._path.encode(), digest_size=8).hexdigest()
        folder = Path(given or tempfile.gettempdir())
        path = folder / (f"limba-prepare-{digest}" if given else f"limba-{os.getuid()}-prepare-{digest}")
        try:
            return private_folder(path)
        except OSError as error:
            raise InputError(
                f"The scratch folder {path} cannot be used ({reason_of(error)}); give another scratch folder."
            ) from error


def parsed(content: bytes) -> dict[str, object] | None:
    """Returns the JSON object; None if it is damaged."""
    with contextlib.suppress(ValueError, RecursionError):
        found = json.loads(content)
        return found if isinstance(found, dict) else None
    return None
