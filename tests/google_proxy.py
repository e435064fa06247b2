"""A proxy that takes what TensorFlow sends to Google's storage to a server of ours.

TensorFlow's file system knows no other address than Google's, by TLS. So a program that is to reach a `BucketServer`
gets a proxy and a certificate, by variables of the environment that curl and TensorFlow read.
"""

from __future__ import annotations

import contextlib
import select
import socket
import socketserver
import ssl
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

from tests.bucket_server import BucketServer

CERTIFICATE = [
    "openssl",
    "req",
    "-x509",
    "-newkey",
    "rsa:2048",
    "-nodes",
    "-days",
    "3650",
    "-subj",
    "/CN=googleapis.com",
]
NAMES = "subjectAltName=DNS:www.googleapis.com,DNS:storage.googleapis.com"


class Tunnel(socketserver.BaseRequestHandler):
    """Answers CONNECT, speaks TLS as Google would, and relays requests to the bucket server."""

    server: Proxy  # pyright: ignore[reportIncompatibleVariableOverride]

    def handle(self) -> None:
        asked = b""
        while b"\r\n\r\n" not in asked:
            part = self.request.recv(4096)
            if not part:
                return
            asked += part
        self.request.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
        with contextlib.suppress(OSError):  # the client has gone
            client = self.server.tls.wrap_socket(self.request, server_side=True)
            with client, socket.create_connection(self.server.bucket_address) as behind:
                _relay(client, behind)


def _relay(client: ssl.SSLSocket, behind: socket.socket) -> None:
    """Passes on what each of the two says, until one of them ends."""
    while True:
        readable = [client] if client.pending() else select.select([client, behind], [], [])[0]
        for source in readable:
            part = source.recv(65_536)
            if not part:
                return
            (behind if source is client else client).sendall(part)


class Proxy(socketserver.ThreadingTCPServer):
    """The proxy of one server of buckets."""

    daemon_threads = True

    def __init__(self, buckets: BucketServer, folder: Path):
        super().__init__(("127.0.0.1", 0), Tunnel)
        self.bucket_address = ("127.0.0.1", buckets.server_port)
        self.certificate = folder / "google.pem"
        key = folder / "google.key"
        made = [*CERTIFICATE, "-addext", NAMES, "-keyout", str(key), "-out", str(self.certificate)]
        subprocess.run(made, check=True, capture_output=True)
        self.tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.tls.load_cert_chain(self.certificate, key)

    def environment(self) -> dict[str, str]:
        """Returns the variables with which a program's TensorFlow uses the proxy."""
        address = f"http://127.0.0.1:{self.server_address[1]}"
        return {
            "https_proxy": address, "HTTPS_PROXY": address, "CURL_CA_BUNDLE": str(self.certificate),
            "GOOGLE_AUTH_TOKEN_FOR_TESTING": "nobody", "NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1",
        }  # fmt: skip


@contextlib.contextmanager
def serving_google(buckets: BucketServer, folder: Path) -> Iterator[Proxy]:
    """Runs a proxy for the time of the context."""
    with Proxy(buckets, folder) as proxy:
        threading.Thread(target=proxy.serve_forever, args=(0.05,), daemon=True).start()
        try:
            yield proxy
        finally:
            proxy.shutdown()
