"""Names on the Hugging Face hub that have no owner, such as `t5-small` and `wikitext`, as their full ids.

The hub redirects a name of its first years to where the repository is now. Where the hub cannot be asked, a table
answers for the names that T5's scripts and examples use.
"""

from __future__ import annotations

import functools
import os
import re

from limba.config import InputError
from limba.config.errors import reason_of
from limba.storage import reaching

SECONDS = 5.0  # for the hub's answer
CONNECTION_SECONDS = 4.0  # before that; its library would wait for as long as the system looks for a name
MODELS = {
    **{f"t5-{size}": f"google-t5/t5-{size}" for size in ("small", "base", "large", "3b", "11b")},
    **{name: f"openai-community/{name}" for name in ("gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl")},
}
DATASETS = {
    "ag_news": "fancyzhx/ag_news",
    "billsum": "FiscalNote/billsum",
    "bookcorpus": "bookcorpus/bookcorpus",
    "c4": "allenai/c4",
    "cc100": "statmt/cc100",
    "cnn_dailymail": "abisee/cnn_dailymail",
    "glue": "nyu-mll/glue",
    "imdb": "stanfordnlp/imdb",
    "kde4": "Helsinki-NLP/kde4",
    "lm1b": "billion-word-benchmark/lm1b",
    "mc4": "legacy-datasets/mc4",
    "multi_news": "alexfabbri/multi_news",
    "openwebtext": "Skylion007/openwebtext",
    "opus100": "Helsinki-NLP/opus-100",
    "opus_books": "Helsinki-NLP/opus_books",
    "oscar": "oscar-corpus/oscar",
    "samsum": "Samsung/samsum",
    "squad": "rajpurkar/squad",
    "wiki40b": "google/wiki40b",
    "wikipedia": "legacy-datasets/wikipedia",
    "wikitext": "Salesforce/wikitext",
    **{name: f"wmt/{name}" for name in ("wmt14", "wmt15", "wmt16", "wmt17", "wmt18", "wmt19")},
    "xsum": "EdinburghNLP/xsum",
}
KINDS = {"model": MODELS, "dataset": DATASETS}
WORDS = {"model": "model", "dataset": "data set"}
_BARE = re.compile(r"[A-Za-z0-9][\w.-]*")


def is_known(name: str, kind: str) -> bool:
    """Returns whether a name without an owner is in the table.

    >>> is_known("t5-small", "model"), is_known("wikitext", "dataset"), is_known("t5-tiny", "model")
    (True, True, False)
    """
    return name in KINDS[kind]


def token() -> str | None:
    """Returns the token of HF_TOKEN, or of a login on this machine; None if there is neither."""
    import huggingface_hub

    return os.environ.get("HF_TOKEN") or huggingface_hub.get_token() or None


def asked_as() -> str:
    """Returns how the hub is asked, for messages; never the token itself."""
    if os.environ.get("HF_TOKEN"):
        return "with the token in HF_TOKEN"
    return "with the token of this machine's login" if token() else "without a token, since HF_TOKEN is not set"


def check_hub() -> None:
    """Raises OSError if the hub cannot be connected to; under HF_HUB_OFFLINE nobody asks it, as its library says."""
    from huggingface_hub import constants

    if not constants.HF_HUB_OFFLINE:
        reaching.connect(constants.ENDPOINT, CONNECTION_SECONDS)


@functools.lru_cache(maxsize=64)
def full_name(name: str, kind: str) -> str:
    """Returns `user/name` for a name without an owner, as the hub redirects it; other names unchanged.

    `kind` is model or dataset. Where the hub cannot be reached, the table answers. Raises InputError for a name that
    the hub does not have, or that neither the hub nor the table can tell.

    >>> full_name("me/mine", "dataset")
    'me/mine'
    """
    if not _BARE.fullmatch(name):
        return name
    import huggingface_hub
    from huggingface_hub import errors
    from huggingface_hub.errors import HTTPError  # pyright: ignore[reportPrivateImportUsage]

    table, word = KINDS[kind], WORDS[kind]
    hub = huggingface_hub.HfApi(token=token())
    ask = hub.model_info if kind == "model" else hub.dataset_info
    try:
        check_hub()
        found = ask(name, timeout=SECONDS).id
    except (errors.RepositoryNotFoundError, errors.HFValidationError) as error:
        raise InputError(
            f"The hub has no {word} {name}, or it is private (asked {asked_as()}); check the name, or give user/name."
        ) from error
    except (HTTPError, OSError) as error:
        if name in table:
            return table[name]
        raise InputError(
            f"{name} is no local path, and the hub cannot be asked for a {word} of that name ({reason_of(error)});"
            " check the network, or give user/name."
        ) from error
    return found if "/" in found else table.get(name, found)
