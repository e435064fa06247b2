"""The servers of buckets and of the Hugging Face hub: how their clients are set, whether they answer, whom they ask.

gcsfs serves fsspec and epath, tensorstore writes arrays, ArrayRecord's library reads its own files. An emulated bucket
is named once, by STORAGE_EMULATOR_HOST, as Google's own libraries do. Whether a server can be reached at all is asked
once, in seconds, since its client would try for a minute; during a run it is the client that waits.

The hub redirects a name of its first years, such as `t5-small`, to where the repository is now. A table answers for the
names that T5's scripts and examples use.

Every command looks at the addresses among its arguments here, even one that only prints its help, so fsspec, etils and
the clients are imported in the functions that need them.
"""

import functools
import importlib.util
import os
import re
import socket
import time
from collections.abc import Callable
from urllib.parse import urlsplit

from limba.config import InputError, StorageError, extras, reason_of, without_credentials
from limba.config.errors import ELSEWHERE
from limba.storage.failures import limited, with_status_of

# A server that has taken a request and then says nothing is given up; the client asks again.
SILENT_SECONDS = 60
CONNECT_SECONDS = 30
SECONDS = 8.0  # for the name and the connection
NAME_SECONDS = 4.0  # for the name alone; without a name server a library would wait for half a minute
PAUSE_SECONDS = 1.0  # before the second attempt
ADDRESSES = ("FSSPEC_GS_ENDPOINT_URL", "STORAGE_EMULATOR_HOST")  # as gcsfs reads them
PROXIES = ("https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY")
_ADDRESS = re.compile(r"gs://[^\s'\",\]}]*")
HUB_SECONDS = 5.0  # for the hub's answer
HUB_CONNECTION_SECONDS = 4.0  # before that; its library would wait for as long as the system looks for a name
NAMES = {  # the ids by their last part
    "model": """google-t5/t5-small google-t5/t5-base google-t5/t5-large google-t5/t5-3b google-t5/t5-11b
        openai-community/gpt2 openai-community/gpt2-medium openai-community/gpt2-large openai-community/gpt2-xl""",
    "dataset": """fancyzhx/ag_news FiscalNote/billsum bookcorpus/bookcorpus allenai/c4 statmt/cc100 abisee/cnn_dailymail
        nyu-mll/glue stanfordnlp/imdb Helsinki-NLP/kde4 billion-word-benchmark/lm1b legacy-datasets/mc4
        alexfabbri/multi_news Skylion007/openwebtext Helsinki-NLP/opus_books oscar-corpus/oscar Samsung/samsum
        rajpurkar/squad google/wiki40b legacy-datasets/wikipedia Salesforce/wikitext wmt/wmt14 wmt/wmt15 wmt/wmt16
        wmt/wmt17 wmt/wmt18 wmt/wmt19 EdinburghNLP/xsum""",
}
KINDS = {kind: {name.rpartition("/")[2]: name for name in names.split()} for kind, names in NAMES.items()}
KINDS["dataset"]["opus100"] = "Helsinki-NLP/opus-100"
_BARE = re.compile(r"[A-Za-z0-9][\w.-]*")


def settle() -> None:
    """Sets what each library reads at its first use. What the user has set stays; a second call changes nothing.

    No environment variable is set, but for an emulated bucket.
    """
    import fsspec
    from etils.epath import gpath
    from fsspec import config

    for protocol in ("gs", "gcs"):
        fsspec.register_implementation(protocol, f"{__name__}.Google", clobber=True)
        if protocol in fsspec.registry:
            # The program has used buckets before. fsspec keeps the class of that time, gcsfs's own, which asks by gRPC
            # what kind of bucket it is: of an emulated one it waits a minute for the answer, at each use.
            fsspec.register_implementation(protocol, _google(), clobber=True)
    # Otherwise epath reads buckets through TensorFlow, whose address is fixed and whose credentials are its own.
    if "EPATH_USE_TF" not in os.environ:
        gpath._is_tf_installed = lambda: False
    google = config.conf.setdefault("gs", {})
    # tensorstore writes objects of which gcsfs would not know.
    google.setdefault("use_listings_cache", False)
    host = os.environ.get("STORAGE_EMULATOR_HOST")
    if not host or host == "default":
        return
    address = host if "://" in host else f"http://{host}"
    google.setdefault("token", "anon")
    for name in ("TENSORSTORE_GCS_HTTP_URL", "CLOUD_STORAGE_EMULATOR_ENDPOINT"):
        os.environ.setdefault(name, address)
    # Otherwise tensorstore looks for a Google machine's credentials.
    os.environ.setdefault("GOOGLE_AUTH_TOKEN_FOR_TESTING", "emulated")


def __getattr__(name: str) -> type:
    """Returns gcsfs's class as `Google`, when fsspec first asks for it: a start without buckets imports no aiohttp."""
    if name != "Google":
        raise AttributeError(name)
    return _google()


def _google() -> type:
    """Returns gcsfs's class without its queries by gRPC, unless the user has asked for these."""
    import aiohttp
    import gcsfs.core
    from fsspec import config

    limits = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS, sock_read=SILENT_SECONDS)
    config.conf.setdefault("gs", {}).setdefault("requests_timeout", limits)
    # Otherwise gcsfs queries by gRPC whether a bucket is zonal; if that is refused, it queries before every request.
    # It reads the variable when it is imported, which may be before a command sets it.
    zonal = os.environ.get("GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT", "").lower() in ("true", "1")
    return gcsfs.GCSFileSystem if zonal else gcsfs.core.GCSFileSystem


def check(text: str) -> None:
    """Raises StorageError if the text names a bucket, gs://…, whose server cannot be reached from this machine.

    Behind a proxy, which the client asks instead, nothing is checked.
    """
    address = _ADDRESS.search(text)
    if address is not None and importlib.util.find_spec("gcsfs") is None:
        raise InputError(str(extras.sentence(f"The address {address[0]}", ImportError(name="gcsfs"))))
    if address is None or any(os.environ.get(name) for name in PROXIES):
        return
    server = "https://storage.googleapis.com"
    for name in ADDRESSES:
        chosen = os.environ.get(name)
        if chosen and chosen != "default":
            server = chosen if "://" in chosen else f"http://{chosen}"
            break
    _, host, port = place_of(server)
    try:
        _connect(host, port, SECONDS)
    except OSError as error:
        raise StorageError(
            f"{address[0]} cannot be reached: {host} does not answer ({reason_of(error)}); check the network.",
            fix=ELSEWHERE,
        ) from error


def check_name(address: str) -> None:
    """Raises InputError for an address of the web, http://… or https://…, whose host has a name that nobody knows.

    Other texts, and hosts behind a proxy, are not checked.
    """
    scheme, host, _ = place_of(address)
    if scheme not in ("http", "https") or has_proxy(scheme):
        return
    try:
        _look_up(host)
    except (OSError, UnicodeError) as error:  # UnicodeError: a text that can be no host's name
        raise InputError(
            f"{without_credentials(address)} cannot be reached: the host {host} is not found ({reason_of(error)});"
            " check the address, and the network.",
            fix=ELSEWHERE,
        ) from error


def place_of(address: str) -> tuple[str, str, int]:
    """Returns the scheme, host and port of an address; of other texts empty ones.

    >>> place_of("https://me:secret@example.org/a/*.jsonl"), place_of("http://[::1]:80/x"), place_of("a.txt")
    (('https', 'example.org', 443), ('http', '::1', 80), ('', '', 80))
    """
    try:
        parts = urlsplit(address)
        usual_port = 443 if parts.scheme == "https" else 80
        return parts.scheme, parts.hostname or "", parts.port or usual_port
    except ValueError:  # no port, or no brackets
        return "", "", 80


def has_proxy(scheme: str) -> bool:
    """Returns whether the clients ask a proxy for addresses of this scheme."""
    names = (f"{scheme}_proxy", "all_proxy")
    return any(os.environ.get(name) or os.environ.get(name.upper()) for name in names)


@functools.cache  # an error is not kept
def _connect(host: str, port: int, seconds: float) -> None:
    _twice(lambda: socket.create_connection((host, port), seconds).close(), seconds, "the connection")


@functools.cache
def _look_up(host: str) -> None:
    _twice(lambda: socket.getaddrinfo(host, None), NAME_SECONDS, "the search for its name")


def _twice(call: Callable[[], object], seconds: float, what: str) -> None:
    """Calls once, and again after PAUSE_SECONDS if that fails; OSError if both do, or take longer than `seconds`."""
    began = time.monotonic()
    try:
        limited(call, seconds, what)
    except OSError:
        left = seconds - PAUSE_SECONDS - (time.monotonic() - began)
        if left <= 0:
            raise
        time.sleep(PAUSE_SECONDS)
        limited(call, left, what)


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


def refusal(error: BaseException, kind: str, name: str, revision: str | None) -> tuple[str, str]:
    """Returns (why the hub gives no model or data set, what to do) by the error that its library has raised."""
    from huggingface_hub import errors

    if isinstance(error, errors.GatedRepoError):
        return "the hub gives it only to those who accept its terms", "accept them on its page, and set HF_TOKEN"
    if isinstance(error, errors.RevisionNotFoundError):
        return f"it has no revision {revision}", "give a branch or commit"
    if isinstance(error, errors.RepositoryNotFoundError):
        reason = f"there is no local file {name}, and the hub has no {kind} of that name, or it is private"
        return reason, "check the name, or set HF_TOKEN to a token that may read it"
    if isinstance(error, errors.HFValidationError):
        return "it is neither a local path nor a valid hub id", "check it"
    return f"the hub cannot be reached: {reason_of(error)}", "check the network, or give a local path"


def check_hub() -> None:
    """Raises OSError if the hub cannot be connected to; under HF_HUB_OFFLINE, and behind a proxy, nothing is tried."""
    from huggingface_hub import constants

    scheme, host, port = place_of(constants.ENDPOINT)
    if not (constants.HF_HUB_OFFLINE or has_proxy(scheme)):
        _connect(host, port, HUB_CONNECTION_SECONDS)


@functools.lru_cache(maxsize=64)
def full_name(name: str, kind: str) -> str:
    """Returns `user/name` for a name without an owner, by the table or as the hub redirects it; others unchanged.

    `kind` is model or dataset. Raises InputError for a name that the hub does not have, or cannot be asked for.

    >>> full_name("me/mine", "dataset"), full_name("t5-small", "model")
    ('me/mine', 'google-t5/t5-small')
    """
    if not _BARE.fullmatch(name):
        return name
    if name in KINDS[kind]:
        return KINDS[kind][name]
    import huggingface_hub
    from huggingface_hub.errors import HFValidationError, HTTPError  # pyright: ignore[reportPrivateImportUsage]

    hub = huggingface_hub.HfApi(token=token())
    try:
        check_hub()
        return (hub.model_info if kind == "model" else hub.dataset_info)(name, timeout=HUB_SECONDS).id
    except (HTTPError, HFValidationError, OSError) as error:
        reason, _ = refusal(error, "model" if kind == "model" else "data set", name, None)
        failure = InputError(f"{name} has no owner, and {reason} (asked {asked_as()}); give user/name.")
        raise with_status_of(error, failure) from error
