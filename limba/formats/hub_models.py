"""Downloads models of the Hugging Face hub, and of buckets, to local folders.

A hub id is `user/name` or `user/name@revision`, or a name without an owner, such as `t5-small`. Only the configuration,
the tokenizer and one form of the weights are downloaded, to the hub's cache: a second start downloads nothing, and an
interrupted download is resumed.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from limba.config import InputError
from limba.formats.sentence_modules import FILES
from limba.formats.weights import files_to_download
from limba.storage import hub, manifest
from limba.storage.hub import BESIDE
from limba.storage.hub import is_id as is_id

_BUCKETS = ("gs://", "s3://", "az://")


def download(text: str, weights: bool = True) -> Path:
    """Returns the local folder of a model of the hub, downloaded with the token in HF_TOKEN if there is one.

    A name without an owner is the model that the hub redirects it to. Without `weights` only the configuration, the
    tokenizer, the card and the licence are downloaded. If the hub cannot be reached, the cached copy is used. Raises
    InputError for a name or a revision that the hub does not have, a model that needs a token, a model without
    supported weights, and a network failure.
    """

    def wanted(names: Sequence[str]) -> list[str]:
        files = wanted_files(names)
        if not files:
            raise InputError(
                f"The hub's {text} has no model.safetensors, flax_model.msgpack or pytorch_model.bin; give another"
                " model, or one of its revisions, as user/name@revision."
            )
        return files

    return hub.download(text, wanted if weights else lambda names: BESIDE)


def from_bucket(address: str) -> Path | None:
    """Returns a local copy of a folder for transformers at an address, kept until that changes; None if none is there.

    Raises InputError for a folder whose upload has not ended, and StorageError if the bucket fails.
    """
    if not address.startswith(_BUCKETS):
        return None
    return manifest.download(address, lambda names: wanted_files(names) if "config.json" in names else [])


def wanted_files(names: Sequence[str]) -> list[str]:
    """Returns which files of a folder for transformers to download: the weights that it reads; [] without any."""
    weights = files_to_download(names)
    beside = [name for name in names if name in BESIDE or FILES.fullmatch(name)]
    return [*beside, *weights] if weights else []
