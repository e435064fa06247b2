"""The server of `limba play`: what the page asks, with limits on length, time and number.

GET / is the page; GET /api/models and /api/so_far?model=…&id=…, POST /api/tokens, /api/fill and /api/texts speak JSON.
"""

from __future__ import annotations

import http
import importlib.resources
import threading
import urllib.parse
from collections.abc import Callable, Sequence

from limba.api import TimeIsOverError
from limba.config import InputError
from limba.tools.pages.play.answers import Json, Player, TooLongError
from limba.tools.pages.serving import PageHandler, PageServer, RefusedError, as_json

MOST_WAITING = 4  # questions at one time, that which is answered included
LONGEST_WAIT = 60.0  # seconds until a question is refused because others are before it


class Server(PageServer):
    """Serves the page for these models. OSError if the port cannot be had. `token` is asked of every request."""

    def __init__(self, host: str, port: int, players: Sequence[Player], token: str | None = None):
        self.players = {player.name: player for player in players}
        self.waiting = threading.BoundedSemaphore(MOST_WAITING)
        self.turn = threading.Lock()
        super().__init__(host, port, Handler, token)


def too_slow(over: TimeIsOverError) -> str:
    """Returns the sentence for an answer whose time is over.

    >>> too_slow(TimeIsOverError(120.0, 31))
    'There was no answer within 120 seconds (31 tokens were written); ask for fewer gaps, tokens, beams or samples.'
    """
    written = f" ({over.num_tokens:,} tokens were written)" if over.num_tokens else ""
    return (
        f"There was no answer within {over.seconds:g} seconds{written}; ask for fewer gaps, tokens, beams or samples."
    )


class Handler(PageHandler):
    """Answers one request."""

    server: Server

    def get(self, path: str) -> tuple[str, bytes]:
        """Returns the page, or what it says of the models."""
        if path == "/":
            page = importlib.resources.files("limba.tools.pages.play").joinpath("page.html").read_bytes()
            return "text/html; charset=utf-8", page
        if path == "/api/models":
            return as_json([player.about() for player in self.server.players.values()])
        if path == "/api/so_far":
            asked = dict(urllib.parse.parse_qsl(urllib.parse.urlsplit(self.path).query))
            return as_json(self._player(asked.get("model")).so_far(asked.get("id", "")))
        return super().get(path)

    def _player(self, name: object) -> Player:
        player = self.server.players.get(name) if isinstance(name, str) else None
        if player is None:
            raise InputError(f"The model {name!r} is not open; there are {', '.join(self.server.players)}.")
        return player

    def post(self, path: str) -> tuple[str, bytes]:
        """Returns a text's tokens, the fills of its gaps, or the texts that a model writes."""
        if path not in ("/api/tokens", "/api/fill", "/api/texts"):
            return super().post(path)
        asked = self.asked()
        player = self._player(asked.get("model"))
        try:
            if path == "/api/tokens":
                return as_json(player.tokens(asked))
            return as_json(self._in_turn(player.fill if path == "/api/fill" else player.texts, asked))
        except TooLongError as error:
            raise RefusedError(http.HTTPStatus.REQUEST_ENTITY_TOO_LARGE, str(error)) from None

    def _in_turn(self, answer: Callable[[Json], Json], asked: Json) -> Json:
        """Returns a model's answer, one question after another; RefusedError where too many wait."""
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
                return answer(asked)
            except TimeIsOverError as over:
                raise RefusedError(http.HTTPStatus.SERVICE_UNAVAILABLE, too_slow(over)) from None
            finally:
                self.server.turn.release()
        finally:
            self.server.waiting.release()
