"""Exports to a bucket: each folder is written and proved on the local disk, and then uploaded whole."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from limba.config import InputError
from limba.config.errors import reason_of
from limba.export import huggingface
from limba.export.huggingface import RECORD, Choices
from limba.inference.source import Source
from limba.storage import folders


def export(
    source: Source, address: str, steps: Sequence[int], choices: Choices, scratch: str | None = None
) -> dict[int, str]:
    """Writes `address`/step_<N> for each step, proved, as `huggingface.export` does; returns the addresses.

    Needs the space of one folder in `scratch`, by default the machine's temporary directory. Folders that are there
    with the same choices are kept, and one made with other choices is replaced. Raises what `huggingface.export` and
    `folders.upload` raise.
    """
    address = address.rstrip("/")
    addresses = {step: f"{address}/step_{step}" for step in steps}
    choices = huggingface.possible(source.model, choices)
    for step, target in addresses.items():
        record = folders.read_file(target, RECORD) if folders.is_whole(target) else None
        if record is not None and huggingface.is_made_of(_parsed(record), source.directory.name, choices, target):
            print(f"step {step:,}: done before, {target}", flush=True)
            continue
        with _scratch(scratch) as folder:
            made = huggingface.export(source, folder, [step], choices)[step]
            sent = folders.upload(made, target, replace=record is not None)
        print(f"step {step:,}: {target}, {sent.files} files, {sent.bytes:,} bytes, complete", flush=True)
    return addresses


def _parsed(record: bytes) -> Any:
    try:
        return json.loads(record)
    except (ValueError, RecursionError):
        return None  # which is no export's


def upload_made(make: Callable[[Path], Path], address: str, scratch: str | None = None) -> str:
    """Makes one folder in a new local folder, and uploads it to `address`/<its name>; returns that address."""
    with _scratch(scratch) as folder:
        made = make(folder)
        target = f"{address.rstrip('/')}/{made.name}"
        folders.upload(made, target)
    return target


@contextmanager
def _scratch(given: str | None) -> Iterator[Path]:
    try:
        if given is not None:
            os.makedirs(given, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="limba-export-", dir=given) as folder:
            yield Path(folder)
    except OSError as error:
        raise InputError(
            f"The folder for temporary files, {given or tempfile.gettempdir()}, cannot be written"
            f" ({reason_of(error)}); set TMPDIR to a folder with space."
        ) from error
