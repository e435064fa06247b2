"""The files of vocabularies, wherever they are, and the copies of them that a run keeps in its directory.

A vocabulary is one file, or several files beside the weights in a folder for transformers. A copy's name follows from
the address that the run, or its task, names. So whatever opens the run later finds the copy first, even if the address
is gone, and a run directory that was moved or copied has its vocabularies with it.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable

import fsspec
from etils import epath

from limba.config import InputError, reason_of, untrusted_files, without_credentials
from limba.storage import hub, servers
from limba.storage.failures import is_outage, with_status_of
from limba.storage.files import resolved, write_whole
from limba.storage.literal_names import matching

CONFIG = "config.json"  # a folder for transformers has it
OF_TOKENIZER = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "spiece.model",
    "sentencepiece.bpe.model",
    "tokenizer.model",
    "vocab.json",
    "merges.txt",
    "vocab.txt",
)
# What such a folder has beside its weights that says how text is read and written.
OF_FOLDER = (CONFIG, "generation_config.json", *OF_TOKENIZER)
_COPY = re.compile(r"vocabulary-[0-9a-f]{8}(?:\.model|\.json)?")
_FILES = (".model", ".json")  # an address that ends so is a file, and neither a folder nor a hub id
_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")


def is_folder(address: str) -> bool:
    """Returns whether a vocabulary is a folder for transformers, or a hub id, and not a file."""
    if address == "byte" or address.endswith(_FILES):
        return False
    path = resolved(address)
    if path.is_dir():
        return True
    return "://" not in address and not path.exists() and hub.is_id(address)


def folder_at(address: str) -> epath.Path:
    """Returns the folder of a vocabulary for which `is_folder` holds; a model of the hub is downloaded.

    Raises InputError for a folder without config.json, and what `hub.download` raises.
    """
    folder = resolved(address)
    if not folder.is_dir():
        folder = epath.Path(hub.download(address, lambda names: [*hub.BESIDE, *OF_FOLDER]))
    if not (folder / CONFIG).exists():
        raise InputError(
            f"The vocabulary {address} is a folder without config.json, which says the ids with a role; give a folder"
            " as transformers saves it, or the path of its tokenizer.json.",
            field="DataConfig.vocabulary",
        )
    return folder


def check_there(address: str) -> None:
    """Raises InputError, and StorageError for a bucket, if a vocabulary is missing or cannot be read."""
    if is_folder(address):
        folder_at(address)
    else:
        content(address)


def content(path: str) -> bytes:
    """Returns a vocabulary's bytes; InputError, and StorageError for a bucket, if they are missing or unreadable."""
    servers.check(path)
    try:
        if path.startswith("hf://"):
            servers.check_hub()
        if "://" not in path:
            return untrusted_files.bytes_of(os.path.expanduser(path))
        with fsspec.open(path, "rb") as file:
            return file.read()  # pyright: ignore[reportAttributeAccessIssue] one path gives one file
    except FileNotFoundError as error:
        is_hub_id = _HUB_ID.fullmatch(path) and not path.endswith(_FILES)
        advice = f"; for a model of the hub give hf://{path}/tokenizer.json" if is_hub_id else ""
        raise InputError(
            f"The vocabulary {path} does not exist; set DataConfig.vocabulary to the path of a SentencePiece model or"
            f" of a tokenizer.json, or to 'byte'{advice}.",
            field="DataConfig.vocabulary",
        ) from error
    except InputError:
        raise
    except Exception as error:  # libraries of buckets and of the hub raise their own exceptions
        advice = "try again later" if is_outage(error) else "check the path and its permissions"
        failure = InputError(f"The vocabulary {path} cannot be read ({reason_of(error)}); {advice}.")
        raise with_status_of(error, failure) from error


def _names(address: str) -> tuple[str, str]:
    """Returns the names that a copy has: if it is a file, and if it is a folder."""
    digest = hashlib.blake2b(without_credentials(address).encode(), digest_size=4).hexdigest()
    name = f"vocabulary-{digest}"
    return f"{name}{'.json' if address.endswith('.json') else '.model'}", name


def place_of(address: str, directory: str | None) -> str:
    """Returns the path of the copy of a vocabulary in a run's directory; without a copy, the vocabulary's address.

    With None for the directory there are no copies. The copy of a folder is whole when it has its config.json.
    """
    if directory is None:
        return address
    of_file, of_folder = (f"{directory}/{name}" for name in _names(address))
    if epath.Path(of_file).exists():
        return of_file
    if (epath.Path(of_folder) / CONFIG).exists():
        return of_folder
    return address


def directory_of(address: str) -> str | None:
    """Returns the directory of the run whose copy of a vocabulary lies at an address; None for another file."""
    directory, name = os.path.split(address)
    return directory or "." if _COPY.fullmatch(name) else None


def keep(addresses: Iterable[str], directory: str) -> None:
    """Writes a copy of each vocabulary into a run's directory, unless the vocabulary itself lies there."""
    for address in dict.fromkeys(addresses):
        if os.path.dirname(address) == directory.rstrip("/"):
            continue
        of_file, of_folder = (epath.Path(directory) / name for name in _names(address))
        if is_folder(address):
            _keep_folder(folder_at(address), of_folder)
        else:
            _write(of_file, content(address))


def _keep_folder(folder: epath.Path, copy: epath.Path) -> None:
    """Copies what says how text is read and written; config.json last, since only then the copy counts."""
    copy.mkdir(parents=True, exist_ok=True)
    for name in reversed(OF_FOLDER):
        if (folder / name).exists():
            _write(copy / name, (folder / name).read_bytes())


def _write(file: epath.Path, data: bytes) -> None:
    if not file.exists() or file.read_bytes() != data:
        write_whole(file, data)


def copies_in(directory: epath.Path) -> list[str]:
    """Returns the paths, below a run's directory, of the files of its copies."""
    paths = []
    for copy in matching(directory, "vocabulary-*"):
        if not _COPY.fullmatch(copy.name):
            continue
        if copy.is_dir():
            paths += [f"{copy.name}/{name}" for name in OF_FOLDER if (copy / name).exists()]
        else:
            paths.append(copy.name)
    return paths
