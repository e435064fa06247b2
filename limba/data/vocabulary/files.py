"""The bytes of vocabularies, wherever they are, and the copies of them that a run keeps in its directory.

A copy's name follows from the address that the run, or its task, gives. So what is done with the run later finds the
copy first, whatever has become of the address, and a directory that was moved or copied has its vocabularies with it.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable

import fsspec
from etils import epath

from limba.config import InputError, foreign, reason_of, without_credentials
from limba.storage import servers
from limba.storage.files import write_whole

_COPY = re.compile(r"vocabulary-[0-9a-f]{8}\.(?:model|json)")


def content(path: str) -> bytes:
    """Returns a vocabulary's bytes; InputError, and StorageError for a bucket, if they are missing or unreadable."""
    servers.check(path)
    try:
        if path.startswith("hf://"):
            servers.check_hub()
        if "://" not in path:
            return foreign.bytes_of(os.path.expanduser(path))
        with fsspec.open(path, "rb") as file:
            return file.read()  # pyright: ignore[reportAttributeAccessIssue] one path gives one file
    except FileNotFoundError as error:
        is_id = re.fullmatch(r"[\w.-]+/[\w.-]+", path) and not path.endswith((".model", ".json"))
        advice = f"; of a model of the hub give hf://{path}/tokenizer.json" if is_id else ""
        raise InputError(
            f"The vocabulary {path} does not exist; set DataConfig.vocabulary to the path of a SentencePiece model or"
            f" of a tokenizer.json, or to 'byte'{advice}.",
            field="DataConfig.vocabulary",
        ) from error
    except InputError:
        raise
    except Exception as error:  # libraries of buckets and of the hub raise their own exceptions
        raise InputError(
            f"The vocabulary {path} cannot be read ({reason_of(error)}); check the path and its permissions."
        ) from error


def _name(address: str) -> str:
    digest = hashlib.blake2b(without_credentials(address).encode(), digest_size=4).hexdigest()
    return f"vocabulary-{digest}{'.json' if address.endswith('.json') else '.model'}"


def place_of(address: str, directory: str | None) -> str:
    """Returns the path of the copy in a run's directory of the vocabulary at an address; if it has none, the address.

    With None for the directory there are no copies.
    """
    place = f"{directory}/{_name(address)}"
    return place if directory is not None and epath.Path(place).exists() else address


def directory_of(address: str) -> str | None:
    """Returns the directory of the run whose copy of a vocabulary lies at an address; None for another file."""
    directory, name = os.path.split(address)
    return directory or "." if _COPY.fullmatch(name) else None


def keep(addresses: Iterable[str], directory: str) -> None:
    """Writes a copy of each vocabulary into a run's directory, unless the file itself lies there."""
    for address in dict.fromkeys(addresses):
        if os.path.dirname(address) != directory.rstrip("/"):
            copy, data = epath.Path(directory) / _name(address), content(address)
            if not copy.exists() or copy.read_bytes() != data:
                write_whole(copy, data)


def copies_in(directory: epath.Path) -> list[str]:
    """Returns the names of the copies in a run's directory."""
    return [place.name for place in directory.glob("vocabulary-*") if _COPY.fullmatch(place.name)]
