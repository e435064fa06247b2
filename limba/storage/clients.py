"""The libraries that read and write buckets, told of one another's settings.

gcsfs serves fsspec and epath, tensorstore writes arrays, ArrayRecord's library reads its own files. An emulated bucket
is named once, by STORAGE_EMULATOR_HOST, as Google's own libraries do.
"""

from __future__ import annotations

import os

import aiohttp
import fsspec
from etils.epath import gpath
from fsspec import config

# A server that has taken a request and then says nothing is given up; the client asks again.
SILENT_SECONDS = 60
CONNECT_SECONDS = 30


def settle() -> None:
    """Sets what each library reads at its first use. What the user has set stays; a second call changes nothing.

    No environment variable is set, but for an emulated bucket.
    """
    # Otherwise gcsfs queries by gRPC whether a bucket is zonal; if that is refused, it queries before every request.
    if "GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT" not in os.environ:
        for protocol in ("gs", "gcs"):
            fsspec.register_implementation(protocol, "gcsfs.core.GCSFileSystem", clobber=True)
    # Otherwise epath reads buckets through TensorFlow, whose address is fixed and whose credentials are its own.
    if "EPATH_USE_TF" not in os.environ:
        gpath._is_tf_installed = lambda: False
    google = config.conf.setdefault("gs", {})
    google.setdefault(
        "requests_timeout",
        aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS, sock_read=SILENT_SECONDS),
    )
    # tensorstore writes objects of which gcsfs would not know.
    google.setdefault("use_listings_cache", False)
    host = os.environ.get("STORAGE_EMULATOR_HOST")
    if not host or host == "default":
        return
    address = host if "://" in host else f"http://{host}"
    google.setdefault("token", "anon")
    for name, value in (
        ("TENSORSTORE_GCS_HTTP_URL", address),
        ("GOOGLE_AUTH_TOKEN_FOR_TESTING", "emulated"),  # else tensorstore looks for a Google machine's credentials
        ("CLOUD_STORAGE_EMULATOR_ENDPOINT", address),
    ):
        os.environ.setdefault(name, value)
