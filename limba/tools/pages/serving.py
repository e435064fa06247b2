"""A server of pages for one machine, as `limba play` and `limba report` have it: HTTP with a token and limits.

Only a request whose Host header names this server is answered, so that no other site in the same browser can ask; with
a token only one that has it.
"""

from __future__ import annotations

import errno
import hmac
import http
import http.server
import io
import json
import math
import re
import secrets
import socket
import sys
import time
import urllib.parse
from collections.abc import Callable
from typing import TypeVar

from limba.api import Parser
from limba.config import InputError, reason_of

HERE = "127.0.0.1"
NAMES = (HERE, "localhost")  # of a page without a token
ALL_ADDRESSES = ("0.0.0.0", "::")  # listened on at every address; other machines cannot open them
# Errors that blame the host, not the port: it is the address of another machine, or of another family.
HOST_ERRORS = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)
FIRST_PORT = 8000  # of those that are tried if no port is given
PORTS = 20
MOST_BYTES = 200_000  # of a request
MOST_READ = 100_000_000  # bytes of a longer request that are read: a browser sees no answer before it has sent all
LONGEST_SILENCE = 30.0  # seconds for which a connection may send nothing
LONGEST_REQUEST = 60.0  # seconds from the end of one request until all of the next must be there
POLICY = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; connect-src 'self'; img-src data:"

ServerT = TypeVar("ServerT", bound="PageServer")


class RefusedError(Exception):
    """A request that is answered with a status and one sentence."""

    def __init__(self, status: http.HTTPStatus, sentence: str):
        super().__init__(sentence)
        self.status = status
        self.sentence = sentence


class PageServer(http.server.ThreadingHTTPServer):
    """Serves a page. OSError if the port cannot be had. `token` is asked of every request."""

    daemon_threads = (
        True  # with its `allow_reuse_address` a port that was just left can be taken; on Linux never one in use
    )
    request_queue_size = 1_024  # connections that come at the same moment; beyond it the kernel resets some

    def __init__(self, host: str, port: int, handler: type[PageHandler], token: str | None = None):
        self.token = token
        if ":" in host:
            self.address_family = socket.AF_INET6
        super().__init__((host, port), handler)

    @property
    def address(self) -> str:
        """The page's address, with the token if there is one; under this machine's name where all may open it."""
        query = f"/?token={urllib.parse.quote(self.token, safe='')}" if self.token else "/"
        host = str(self.server_address[0])
        if host in ALL_ADDRESSES:
            host = socket.gethostname()
        if ":" in host:  # IPv6
            host = f"[{host}]"
        return f"http://{host}:{self.server_port}{query}"

    def handle_error(self, request: object, client_address: object) -> None:
        """Prints one line, and nothing for a browser that went away; the server continues."""
        error = sys.exc_info()[1]
        if not isinstance(error, ConnectionError | TimeoutError):
            print(f"A request failed: {type(error).__name__}: {error}", file=sys.stderr, flush=True)


class _Limited(socket.SocketIO):
    """A connection that is read until `ends`: a client that sends a byte now and then must not keep its thread."""

    ends = math.inf

    def __init__(self, connection: socket.socket, clock: Callable[[], float]):
        super().__init__(connection, "r")
        self._clock = clock

    def readinto(self, buffer: memoryview) -> int | None:
        """As the socket's; TimeoutError when the time is over, which ends the connection."""
        if self._clock() > self.ends:
            raise TimeoutError("The request has not come within its limit.")
        return super().readinto(buffer)


class PageHandler(http.server.BaseHTTPRequestHandler):
    """Answers one request with what `get` or `post` returns: a type of content and its bytes."""

    server: PageServer
    server_version = "limba"
    sys_version = ""  # Python's version is nobody's business
    timeout = LONGEST_SILENCE
    protocol_version = "HTTP/1.1"
    clock = staticmethod(time.monotonic)

    def setup(self) -> None:
        super().setup()
        self._limited = _Limited(self.connection, self.clock)
        self.rfile = io.BufferedReader(self._limited)

    def handle_one_request(self) -> None:
        self._limited.ends = self.clock() + LONGEST_REQUEST
        super().handle_one_request()

    def get(self, path: str) -> tuple[str, bytes]:
        """Returns the content at a path; this base class has nothing."""
        raise RefusedError(http.HTTPStatus.NOT_FOUND, f"There is nothing at {path}; open /.")

    def post(self, path: str) -> tuple[str, bytes]:
        """Returns the answer to a request's body; this base class takes none."""
        raise RefusedError(http.HTTPStatus.NOT_FOUND, f"There is nothing at {path}; open /.")

    def log_message(self, *_: object) -> None:
        """Prints nothing: the console belongs to the person who started the server."""

    def do_GET(self) -> None:
        self._answer(self.get)

    def do_POST(self) -> None:
        self._answer(self.post)

    def _answer(self, make: Callable[[str], tuple[str, bytes]]) -> None:
        status = http.HTTPStatus.OK
        try:
            self._check()
            kind, body = make(urllib.parse.urlsplit(self.path).path)
        except RefusedError as error:
            status = error.status
            kind, body = as_json({"error": error.sentence})
        except InputError as error:
            status = http.HTTPStatus.BAD_REQUEST
            kind, body = as_json({"error": str(error)})
        # After an error the rest of the request may be unread, and must not become the next request.
        self.close_connection = status != http.HTTPStatus.OK
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("Content-Security-Policy", POLICY)
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Referrer-Policy", "no-referrer")  # the address has the token
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(body)

    def _check(self) -> None:
        """Raises RefusedError for a request without the token, or without one for a Host that is not this server."""
        server = self.server
        if server.token is not None:
            query = urllib.parse.parse_qs(urllib.parse.urlsplit(self.path).query)
            token = self.headers.get("X-Token") or query.get("token", [""])[0]
            if not hmac.compare_digest(token.encode(), server.token.encode()):  # in the same time for any token
                raise RefusedError(http.HTTPStatus.FORBIDDEN, "Open the address that the command has printed, whole.")
        elif _name_in(self.headers.get("Host", "")) not in NAMES:
            raise RefusedError(http.HTTPStatus.FORBIDDEN, f"Open {server.address}: this is not its name.")

    def asked(self) -> dict[str, object]:
        """Returns the JSON object that was sent; RefusedError and InputError for anything else."""
        if self.headers.get_content_type() != "application/json":  # which no form of another site can send
            raise RefusedError(http.HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "Send JSON (Content-Type: application/json).")
        length = self.headers.get("Content-Length", "")
        if not length.isdecimal():
            raise RefusedError(http.HTTPStatus.LENGTH_REQUIRED, "Send Content-Length.")
        if int(length) > MOST_BYTES:
            if int(length) <= MOST_READ:
                self._discard(int(length))
            raise RefusedError(
                http.HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
                f"The request has {int(length):,} bytes; send at most {MOST_BYTES:,}.",
            )
        try:
            asked = json.loads(self.rfile.read(int(length)))
        except (ValueError, RecursionError):
            raise InputError("The request is not JSON; send an object.") from None
        if not isinstance(asked, dict):
            raise InputError("The request is not a JSON object; send one.")
        return asked

    def _discard(self, num_bytes: int) -> None:
        while num_bytes:
            chunk = self.rfile.read(min(num_bytes, 1 << 20))
            if not chunk:  # the client has closed the connection
                return
            num_bytes -= len(chunk)


def _name_in(host: str) -> str:
    """Returns the name in a Host header: a browser leaves out port 80, and behind a tunnel the port is another one.

    >>> _name_in("LOCALHOST:9000"), _name_in("127.0.0.1"), _name_in("localhost.evil:8000")
    ('localhost', '127.0.0.1', 'localhost.evil')
    """
    name, _, port = host.rpartition(":")
    return (name if port.isdecimal() else host).lower()


def as_json(value: object) -> tuple[str, bytes]:
    """Returns an answer in JSON, with question marks for halves of surrogate pairs."""
    return "application/json; charset=utf-8", json.dumps(value, ensure_ascii=False).encode(errors="replace")


def add_flags(parser: Parser) -> None:
    """Adds the flags that say where a page is served."""
    parser.add_argument("--host", default=HERE, help=f"address to listen on; default: {HERE}, for this machine alone")
    parser.add_argument("--token", help="with --host: what the page's address must hold; default: one is made")


def checked(host: str, port: int | None, token: str | None, name: str) -> str | None:
    """Returns the token of a page, None for a page of this machine alone; `name` is the flag of the port.

    Raises InputError for a port outside of 0 to 65535, for a token that would guard nothing, and for one that a header
    cannot hold as it is.
    """
    if port is not None and not 0 <= port < 65536:
        raise InputError(f"{name} is {port}; give a number from 0 to 65535, where 0 is any free port.")
    if token is not None and host == HERE:
        raise InputError("--token is given without --host; it guards a page that others can open.")
    if token and not re.fullmatch("[!-~]+", token):
        raise InputError("--token has a space, or a letter that is not ASCII; give ASCII letters, digits and signs.")
    if host == HERE:
        return None
    return token or secrets.token_urlsafe(16)


def listening(make: Callable[[int], ServerT], host: str, port: int | None, name: str) -> ServerT:
    """Returns the server that `make` starts on this port, or on the first free one; InputError if it cannot be had."""
    ports = range(FIRST_PORT, FIRST_PORT + PORTS) if port is None else [port]
    for chosen in ports:
        try:
            return make(chosen)
        except OSError as error:
            if isinstance(error, socket.gaierror) or error.errno in HOST_ERRORS:
                raise InputError(
                    f"--host is {host}, where this machine cannot listen ({reason_of(error)}); give an address of its"
                    " own, or 0.0.0.0 for all of them."
                ) from None
            tries_next = port is None and error.errno == errno.EADDRINUSE
            if not tries_next:
                raise InputError(
                    f"Port {chosen} of {host} {_why(error, chosen)}; give another {name}, or none."
                ) from None
    raise InputError(f"The ports {FIRST_PORT} to {FIRST_PORT + PORTS - 1} of {host} are in use; give a {name}.")


def _why(error: OSError, port: int) -> str:
    if error.errno != errno.EADDRINUSE:
        return f"cannot be had ({reason_of(error)})"
    from limba.api import listener

    return f"is in use by {listener(port)}"


def serve(server: PageServer) -> None:
    """Serves until Ctrl-C."""
    print(f"Open {server.address} in a browser. Ctrl-C ends it.", flush=True)
    try:
        server.serve_forever(poll_interval=0.2)
    except KeyboardInterrupt:
        print("Ended.", flush=True)
