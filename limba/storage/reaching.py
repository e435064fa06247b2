"""Whether a server can be reached at all: asked once, in seconds; its client would try for a minute.

During a run it is the client that waits: a network that is gone for a while ends nothing there.
"""

from __future__ import annotations

import functools
import os
import re
import socket
import time
from collections.abc import Callable
from urllib.parse import urlsplit

from limba.config import InputError, StorageError
from limba.config.errors import reason_of
from limba.config.secrets import without_credentials
from limba.storage.failures import limited

SECONDS = 8.0  # for the name and the connection
NAME_SECONDS = 4.0  # for the name alone; without a name server a library would wait for half a minute
PAUSE_SECONDS = 1.0  # before the second attempt
ELSEWHERE = "name an address that answers, or look from a machine whose network reaches it"
ADDRESSES = ("FSSPEC_GS_ENDPOINT_URL", "STORAGE_EMULATOR_HOST")  # as gcsfs reads them
PROXIES = ("https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY")
_ADDRESS = re.compile(r"gs://[^\s'\",\]}]*")


def check(text: str) -> None:
    """Raises StorageError if the text names a bucket, gs://…, whose server cannot be reached from this machine.

    Behind a proxy, which the client asks instead, nothing is checked.
    """
    address = _ADDRESS.search(text)
    if address is None or any(os.environ.get(name) for name in PROXIES):
        return
    chosen = [os.environ.get(name) for name in ADDRESSES]
    place = next((each for each in chosen if each and each != "default"), "https://storage.googleapis.com")
    _, host, port = place_of(place if "://" in place else f"http://{place}")
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
        return parts.scheme, parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)
    except ValueError:  # no port, or no brackets
        return "", "", 80


def has_proxy(scheme: str) -> bool:
    """Returns whether the clients ask a proxy for addresses of this scheme."""
    names = (f"{scheme}_proxy", "all_proxy")
    return any(os.environ.get(name) or os.environ.get(name.upper()) for name in names)


def connect(address: str, seconds: float) -> None:
    """Raises OSError if the address's server cannot be connected to; at the second attempt, in `seconds` in all.

    Behind a proxy nothing is tried.
    """
    scheme, host, port = place_of(address)
    if not has_proxy(scheme):
        _connect(host, port, seconds)


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
