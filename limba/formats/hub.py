"""Models of the Hugging Face hub as local folders: `user/name`, or `user/name@revision`.

Only what is read here is brought: the configuration, the tokenizer and one form of the weights. It lies in the
hub's own cache, so that a second start fetches nothing, and an interrupted download goes on.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterable
from pathlib import Path

from limba.config import InputError
from limba.formats.huggingface import WEIGHTS

logger = logging.getLogger(__name__)

_ID = re.compile(r"(?P<name>[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)(?:@(?P<revision>\w[\w./-]*))?")
_BESIDE = ("config.json", "generation_config.json", "spiece.model", "tokenizer.json", "tokenizer_config.json")


def is_id(text: str) -> bool:
    """True for a text of the form user/name or user/name@revision."""
    return _ID.fullmatch(text) is not None


def download(text: str, weights: bool = True) -> Path:
    """Returns the local folder of a model by its hub id, fetched with HF_TOKEN's token if there is one.

    Without `weights` only the configuration and the tokenizer are fetched.

    A hub that cannot be reached is done without where all is in the cache already. ConfigError for a name or a
    revision that is not there, one that needs a token, one without weights that are read here, and no network.
    """
    import huggingface_hub
    from huggingface_hub import errors

    match = _ID.fullmatch(text)
    if match is None:
        raise InputError(f"{text} is no hub id; give user/name or user/name@revision.")
    name, revision, token = match["name"], match["revision"], os.environ.get("HF_TOKEN") or None
    try:
        try:
            about = huggingface_hub.HfApi(token=token).model_info(name, revision=revision)
            wanted = _wanted(text, [entry.rfilename for entry in about.siblings or ()]) if weights else list(_BESIDE)
            folder = huggingface_hub.snapshot_download(name, revision=revision, allow_patterns=wanted, token=token)
        except (errors.GatedRepoError, errors.RepositoryNotFoundError, errors.RevisionNotFoundError):
            raise
        except (errors.HTTPError, OSError) as error:
            folder = huggingface_hub.snapshot_download(
                name, revision=revision, allow_patterns=_BESIDE[0], local_files_only=True
            )
            logger.warning("The hub cannot be asked for %s (%s): %s is taken.", name, _reason(error), folder)
    except errors.GatedRepoError as error:
        raise InputError(
            f"The hub's {name} is given only to those who accept its terms; accept them on its page, and set"
            " HF_TOKEN to a token of yours."
        ) from error
    except errors.RepositoryNotFoundError as error:
        raise InputError(
            f"{name} is no local path, and the hub has no model of that name, or a private one; check it, or set"
            " HF_TOKEN to a token that may read it."
        ) from error
    except errors.RevisionNotFoundError as error:
        raise InputError(f"The hub's {name} has no revision {revision}; give a branch or a commit of its.") from error
    except errors.HFValidationError as error:
        raise InputError(f"{text} is no local path and no name that the hub allows; check it.") from error
    except (errors.HTTPError, OSError) as error:
        raise InputError(
            f"{text} is no local path, and the hub cannot be asked for it ({_reason(error.__context__ or error)});"
            " check the network, or give a local folder."
        ) from error
    return Path(folder)


def _wanted(text: str, names: Iterable[str]) -> list[str]:
    """Returns the files to fetch of those that are there: of the weights the first form in WEIGHTS' order."""
    names = set(names)
    for form in WEIGHTS:
        weights = [name for name in sorted(names) if form.fullmatch(name)]
        if weights:
            return [*(name for name in _BESIDE if name in names), *weights]
    raise InputError(
        f"The hub's {text} has no model.safetensors, flax_model.msgpack or pytorch_model.bin; give another model, or"
        " one of its revisions, as user/name@revision."
    )


def _reason(error: BaseException) -> str:
    return (str(error).strip().split("\n")[0] or type(error).__name__)[:160]
