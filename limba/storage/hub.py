"""Files of a model of the Hugging Face hub as a local folder: `user/name`, `user/name@revision`, or `t5-small`."""

from __future__ import annotations

import functools
import logging
import re
from collections.abc import Callable, Sequence
from pathlib import Path

from limba.config import InputError, reason_of
from limba.storage import servers
from limba.storage.failures import with_status_of

logger = logging.getLogger(__name__)

_ID = re.compile(r"(?P<name>(?P<owner>[A-Za-z0-9][\w.-]*/)?[A-Za-z0-9][\w.-]*)(?:@(?P<revision>\w[\w./-]*))?")
PATH_BEGINS = (".", "/", "~")  # how a path begins and a hub id does not
SECONDS = 8.0  # for the hub's first answer
# What is downloaded beside the weights.
BESIDE = (
    "config.json",  # the first: by it a copy in the hub's cache is found
    "generation_config.json",
    "conversion.json",
    # The tokenizer: a model of SentencePiece by its three names, tokenizer.json, what transformers makes one of where
    # there is none, and which tokens are special.
    "spiece.model",
    "tokenizer.model",
    "sentencepiece.bpe.model",
    "tokenizer.json",
    "vocab.json",
    "merges.txt",
    "vocab.txt",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    # These go with a model that is made of it.
    "README.md",
    "LICENSE",
    "LICENSE.md",
    "LICENSE.txt",
    "NOTICE",
)


def is_id(text: str) -> bool:
    """Returns whether a text is user/name, user/name@revision, or a name without an owner that `servers` knows.

    >>> is_id("me/t5@v1"), is_id("t5-small"), is_id("folder")
    (True, True, False)
    """
    match = _ID.fullmatch(text)
    return match is not None and (match["owner"] is not None or servers.is_known(match["name"], "model"))


@functools.cache  # a run opens its model several times, and says it once
def _say_copy(name: str, reason: str, folder: str) -> None:
    logger.warning("The hub cannot be reached for %s (%s): using the copy %s.", name, reason, folder)


def download(text: str, wanted: Callable[[Sequence[str]], Sequence[str]]) -> Path:
    """Returns the local folder of a model of the hub with the files that `wanted` chooses of the names there.

    If the hub cannot be reached, the cached copy is used. Raises InputError for a name or a revision that the hub does
    not have, a model that needs a token, and a network failure, and what `wanted` raises.
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
        info = huggingface_hub.HfApi(token=token).model_info(name, revision=revision, timeout=SECONDS)
        names = [entry.rfilename for entry in info.siblings or ()]
        chosen = list(wanted(names))
        if (copy := whole_copy(info.sha, set(names) & set(chosen))) is not None:
            return copy
        return huggingface_hub.snapshot_download(name, revision=revision, allow_patterns=chosen, token=token)

    def kept() -> str:
        """Returns the folder of a download before this one; one file is enough to find it."""
        options = {"allow_patterns": BESIDE[0], "local_files_only": True}
        return huggingface_hub.snapshot_download(name, revision=revision, **options)

    def whole_copy(commit: str | None, files: set[str]) -> str | None:
        """Returns the folder of a download before this one if it is of this commit and has all of the files.

        A run opens its model several times; it asks for its files once.
        """
        try:
            folder = Path(kept())
        except errors.LocalEntryNotFoundError:
            return None
        is_whole = folder.name == commit and all((folder / file).exists() for file in files)
        return str(folder) if is_whole else None

    try:
        try:
            folder = asked()
        except (errors.GatedRepoError, errors.RepositoryNotFoundError, errors.RevisionNotFoundError):
            raise  # an answer, which an older copy does not replace
        except (HTTPError, OSError) as error:
            folder = kept()
            _say_copy(name, reason_of(error), folder)
    except (errors.HFValidationError, HTTPError, OSError) as error:
        cause = error
        if isinstance(error, errors.LocalEntryNotFoundError) and error.__context__ is not None:
            cause = error.__context__  # why the hub was not asked; there is no copy either
        reason, advice = servers.refusal(cause, "model", text, revision)
        failure = InputError(f"{text} cannot be opened ({reason}; asked {servers.asked_as()}); {advice}.")
        raise with_status_of(cause, failure) from error
    return Path(folder)
