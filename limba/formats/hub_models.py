"""Downloads models of the Hugging Face hub, and of buckets, to local folders.

A hub id is `user/name` or `user/name@revision`, or a name without an owner, such as `t5-small`. Only the configuration,
the tokenizer and one form of the weights are downloaded, to the hub's cache: a second start downloads nothing, and an
interrupted download is resumed.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from pathlib import Path

from limba.config import InputError, reason_of
from limba.formats.sentence_modules import FILES
from limba.formats.weights import files_to_download
from limba.storage import manifest, servers

logger = logging.getLogger(__name__)

_ID = re.compile(r"(?P<name>(?P<owner>[A-Za-z0-9][\w.-]*/)?[A-Za-z0-9][\w.-]*)(?:@(?P<revision>\w[\w./-]*))?")
PATH_BEGINS = (".", "/", "~")  # how a path begins and a hub id does not
SECONDS = 8.0  # for the hub's first answer
_BUCKETS = ("gs://", "s3://", "az://")
# What is downloaded beside the weights; the last row goes with a model that is made of this one.
_BESIDE = (
    *("config.json", "generation_config.json", "conversion.json"),
    *("spiece.model", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"),
    "chat_template.jinja",
    *("README.md", "LICENSE", "LICENSE.md", "LICENSE.txt", "NOTICE"),
)


def is_id(text: str) -> bool:
    """Returns whether a text is user/name, user/name@revision, or a name without an owner that `servers` knows.

    >>> is_id("me/t5@v1"), is_id("t5-small"), is_id("folder")
    (True, True, False)
    """
    match = _ID.fullmatch(text)
    return match is not None and (match["owner"] is not None or servers.is_known(match["name"], "model"))


def download(text: str, weights: bool = True) -> Path:
    """Returns the local folder of a model of the hub, downloaded with the token in HF_TOKEN if there is one.

    A name without an owner is the model that the hub redirects it to. Without `weights` only the configuration, the
    tokenizer, the card and the licence are downloaded. If the hub cannot be reached, the cached copy is used. Raises
    InputError for a name or a revision that the hub does not have, a model that needs a token, a model without
    supported weights, and a network failure.
    """
    import huggingface_hub
    from huggingface_hub import errors
    from huggingface_hub.errors import HTTPError  # pyright: ignore[reportPrivateImportUsage]

    match = _ID.fullmatch(text)
    if match is None:
        if text.startswith(PATH_BEGINS):
            raise InputError(f"There is no file or folder {text}; correct the path, or give a hub id, user/name.")
        raise InputError(f"{text} is not a hub id; give user/name or user/name@revision.")
    name = servers.full_name(match["name"], "model")
    revision = match["revision"]
    token = servers.token()

    def asked() -> str:
        """Returns the folder of the newest files; the hub is asked which these are."""
        servers.check_hub()
        about = huggingface_hub.HfApi(token=token).model_info(name, revision=revision, timeout=SECONDS)
        names = [entry.rfilename for entry in about.siblings or ()]
        wanted = wanted_files(names) if weights else [*_BESIDE]
        if not wanted:
            raise InputError(
                f"The hub's {text} has no model.safetensors, flax_model.msgpack or pytorch_model.bin; give another"
                " model, or one of its revisions, as user/name@revision."
            )
        return huggingface_hub.snapshot_download(name, revision=revision, allow_patterns=wanted, token=token)

    def kept() -> str:
        """Returns the folder of a download before this one; one file is enough to find it."""
        options = {"allow_patterns": "config.json", "local_files_only": True}
        return huggingface_hub.snapshot_download(name, revision=revision, **options)

    try:
        try:
            folder = asked()
        except (errors.GatedRepoError, errors.RepositoryNotFoundError, errors.RevisionNotFoundError):
            raise  # an answer, which an older copy does not replace
        except (HTTPError, OSError) as error:
            folder = kept()
            logger.warning("The hub cannot be reached for %s (%s): using the copy %s.", name, reason_of(error), folder)
    except (errors.HFValidationError, HTTPError, OSError) as error:
        cause = error.__context__ if isinstance(error, errors.LocalEntryNotFoundError) else None
        reason, advice = servers.refusal(cause or error, "model", text, revision)
        raise InputError(f"{text} cannot be opened ({reason}; asked {servers.asked_as()}); {advice}.") from error
    return Path(folder)


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
    beside = [name for name in names if name in _BESIDE or FILES.fullmatch(name)]
    return [*beside, *weights] if weights else []
