"""Whether the server of a bucket can be reached at all: asked once, in seconds; its client would try for a minute.

During a run it is the client that waits: a network that is gone for a while ends nothing there.
"""

from __future__ import annotations

import functools
import os
import re
import socket
import time
from urllib.parse import urlsplit

from limba.config import StorageError
from limba.config.errors import reason_of
from limba.storage.failures import limited

SECONDS = 8.0  # for the name and the connection
PAUSE_SECONDS = 1.0  # before the second attempt
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
    parts = urlsplit(place if "://" in place else f"http://{place}")
    host, port = parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)
    try:
        _connect(host, port)
    except OSError as error:
        raise StorageError(
            f"{address[0]} cannot be reached: {host} does not answer ({reason_of(error)}); check the network."
        ) from error


@functools.cache  # an error is not kept
def _connect(host: str, port: int) -> None:
    """Connects once, at the second attempt if need be; OSError if that fails, or takes longer than SECONDS in all."""
    began = time.monotonic()

    def connect() -> None:
        socket.create_connection((host, port), SECONDS).close()

    try:
        limited(connect, SECONDS, "the connection")
    except OSError:
        left = SECONDS - PAUSE_SECONDS - (time.monotonic() - began)
        if left <= 0:
            raise
        time.sleep(PAUSE_SECONDS)
        limited(connect, left, "the connection")
