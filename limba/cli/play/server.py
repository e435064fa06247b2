"""The server of `limba play`: HTTP for one machine, with limits on length, time and number.

GET / is the page; GET /api/models, POST /api/tokens and POST /api/texts speak JSON. Only a request whose Host header
names this server is answered, so that no other site in the same browser can ask; with a token only one that has it.
"""

from __future__ import annotations

import hmac
import http
import http.server
import importlib.resources
import json
import sys
import threading
import urllib.parse
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from limba.cli.play.answers import Player, TooLongError
from limba.config import InputError

MOST_BYTES = 200_000  # of a request
MOST_WAITING = 4  # questions at one time, that which is answered included
LONGEST_WAIT = 60.0  # seconds until a question is refused because others are before it
LONGEST_SILENCE = 30.0  # seconds for which a connection may send nothing
POLICY = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; connect-src 'self'; img-src data:"


class RefusedError(Exception):
    """A request that is answered with a status and one sentence."""

    def __init__(self, status: http.HTTPStatus, sentence: str):
        super().__init__(sentence)
        self.status, self.sentence = status, sentence


class Server(http.server.ThreadingHTTPServer):
    """Serves the page for these models. OSError if the port cannot be had. `token` is asked of every request."""

    daemon_threads = True
    allow_reuse_address = False  # else a port that another server listens on could be taken
    request_queue_size = 32

    def __init__(self, host: str, port: int, players: Sequence[Player], token: str | None = None):
        self.players, self.token = {player.name: player for player in players}, token
        self.waiting = threading.BoundedSemaphore(MOST_WAITING)
        self.turn = threading.Lock()
        super().__init__((host, port), Handler)
        self.names = {f"{name}:{self.server_port}" for name in ("127.0.0.1", "localhost", host)}

    @property
    def address(self) -> str:
        """The page's address, with the token if there is one."""
        query = f"/?token={self.token}" if self.token else "/"
        host = f"[{self.server_address[0]}]" if ":" in str(self.server_address[0]) else self.server_address[0]
        return f"http://{host}:{self.server_port}{query}"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A browser that went away is no news; anything else is one line, and the server continues."""
        error = sys.exc_info()[1]
        if not isinstance(error, ConnectionError | TimeoutError):
            print(f"A request failed: {type(error).__name__}: {error}", file=sys.stderr, flush=True)


class Handler(http.server.BaseHTTPRequestHandler):
    """Answers one request."""

    server: Server
    server_version, sys_version = "limba", ""
    timeout = LONGEST_SILENCE
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: Any) -> None:
        """Says nothing: the console belongs to the one who started the server."""

    def do_GET(self) -> None:
        self._answer(self._get)

    def do_POST(self) -> None:
        self._answer(self._post)

    def _answer(self, make: Callable[[], tuple[str, bytes]]) -> None:
        status = http.HTTPStatus.OK
        try:
            self._check()
            kind, body = make()
        except RefusedError as error:
            status, kind, body = error.status, *_json({"error": error.sentence})
        except TooLongError as error:
            status, kind, body = http.HTTPStatus.REQUEST_ENTITY_TOO_LARGE, *_json({"error": str(error)})
        except InputError as error:
            status, kind, body = http.HTTPStatus.BAD_REQUEST, *_json({"error": str(error)})
        self.close_connection = status != http.HTTPStatus.OK  # what was not read must not become the next request
        self.send_response(status)
        for name, value in {
            "Content-Type": kind,
            "Content-Length": str(len(body)),
            "Cache-Control": "no-store",
            "Content-Security-Policy": POLICY,
            "X-Content-Type-Options": "nosniff",
            "Referrer-Policy": "no-referrer",
        }.items():
            self.send_header(name, value)
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(body)

    def _check(self) -> None:
        server = self.server
        if server.token is not None:
            query = urllib.parse.parse_qs(urllib.parse.urlsplit(self.path).query)
            given = self.headers.get("X-Token") or query.get("token", [""])[0]
            if not hmac.compare_digest(given.encode(), server.token.encode()):
                raise RefusedError(http.HTTPStatus.FORBIDDEN, "Open the address that limba play has printed, whole.")
        elif self.headers.get("Host") not in server.names:
            raise RefusedError(http.HTTPStatus.FORBIDDEN, f"Open {server.address}: this is not its name.")

    def _get(self) -> tuple[str, bytes]:
        path = urllib.parse.urlsplit(self.path).path
        if path == "/":
            page = importlib.resources.files("limba.cli.play").joinpath("page.html").read_bytes()
            return "text/html; charset=utf-8", page
        if path == "/api/models":
            return _json([player.about() for player in self.server.players.values()])
        raise RefusedError(http.HTTPStatus.NOT_FOUND, f"There is nothing at {path}; open /.")

    def _post(self) -> tuple[str, bytes]:
        path = urllib.parse.urlsplit(self.path).path
        if path not in ("/api/tokens", "/api/texts"):
            raise RefusedError(http.HTTPStatus.NOT_FOUND, f"There is nothing at {path}; open /.")
        asked = self._asked()
        name = asked.get("model")
        player = self.server.players.get(name) if isinstance(name, str) else None
        if player is None:
            raise InputError(f"The model {name!r} is not open; there are {', '.join(self.server.players)}.")
        if path == "/api/tokens":
            return _json(player.tokens(asked))
        if not self.server.waiting.acquire(blocking=False):
            raise RefusedError(
                http.HTTPStatus.SERVICE_UNAVAILABLE,
                f"{MOST_WAITING} questions are being answered already; ask again in a minute.",
            )
        try:
            if not self.server.turn.acquire(timeout=LONGEST_WAIT):
                raise RefusedError(
                    http.HTTPStatus.SERVICE_UNAVAILABLE,
                    f"Other questions took longer than {LONGEST_WAIT:.0f} seconds; ask again.",
                )
            try:
                return _json(player.texts(asked))
            finally:
                self.server.turn.release()
        finally:
            self.server.waiting.release()

    def _asked(self) -> Mapping[str, Any]:
        if self.headers.get_content_type() != "application/json":  # which no form of another site can send
            raise RefusedError(http.HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "Send JSON (Content-Type: application/json).")
        length = self.headers.get("Content-Length", "")
        if not length.isdecimal():
            raise RefusedError(http.HTTPStatus.LENGTH_REQUIRED, "Send Content-Length.")
        if int(length) > MOST_BYTES:
            raise RefusedError(
                http.HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
                f"The request has {int(length):,} bytes; send at most {MOST_BYTES:,}.",
            )
        try:
            asked = json.loads(self.rfile.read(int(length)))
        except ValueError:
            raise InputError("The request is not JSON; send an object.") from None
        if not isinstance(asked, dict):
            raise InputError("The request is not a JSON object; send one.")
        return asked


def _json(value: Any) -> tuple[str, bytes]:
    return "application/json; charset=utf-8", json.dumps(value, ensure_ascii=False).encode()
