"""`limba play`: opens one or two models and serves a page to try them."""

from __future__ import annotations

import http
import importlib.resources
import threading
import urllib.parse
from collections.abc import Callable, Sequence
from pathlib import Path

from limba.api import Parser, TimeIsOverError, add_import_flag
from limba.config import InputError, environment, named
from limba.tools.pages import serving
from limba.tools.pages.play.answers import MAX_SECONDS, Json, Player, TooLongError
from limba.tools.pages.serving import PageHandler, PageServer, RefusedError, as_json

MOST_WAITING = 4  # questions at one time, with the one that is being answered
LONGEST_WAIT = 60.0  # seconds after which a question is refused because others are before it

ABOUT = """Serves a page on this machine on which you try a model: mask words or write a prompt, and see what it writes,
with the probability of each piece. With two models, or one model and two steps, both answer side by side.

    limba play MODEL_DIR
    limba play MODEL_DIR --step=1000 --step=2000
    limba play MODEL_DIR user/name

Nothing leaves the machine. With --host the page is served to others too, and asks for a token."""
MODEL = "a Limba or T5X run, one of its checkpoints, a Hugging Face folder, or a hub id"
NAMES = {"`vocabulary`": "--vocabulary", "DataConfig.vocabulary": "--vocabulary"}  # what messages call a field


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
        """Returns the page, the facts of the models, or a text that is being written."""
        if path == "/":
            page = importlib.resources.files("limba.tools.pages.play").joinpath("page.html").read_bytes()
            return "text/html; charset=utf-8", page
        if path == "/api/models":
            return as_json([player.facts() for player in self.server.players.values()])
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
            if path == "/api/tokens":  # which needs no network, so it does not wait for others
                return as_json(player.tokens(asked))
            if path == "/api/fill":
                return as_json(self._in_turn(player.fill, asked))
            return as_json(self._in_turn(player.texts, asked))
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


def run(argv: Sequence[str]) -> None:
    """Opens the models and serves until Ctrl-C; raises InputError."""
    parser = Parser("play", ABOUT)
    parser.add_object("model", "MODEL", f"one or two of these: {MODEL}", takes_several=True)
    parser.add_argument("--step", type=int, action="append", default=[], help="step of a run; given twice: both")
    parser.add_argument("--vocabulary", metavar="PATH|byte", help="vocabulary that replaces the models' own")
    parser.add_argument(
        "--max_seconds",
        type=float,
        default=MAX_SECONDS,
        help=f"seconds after which an answer is given up; default: {MAX_SECONDS:g}",
    )
    parser.add_argument("--port", type=int, help=f"port; default: the first free one from {serving.FIRST_PORT} on")
    serving.add_flags(parser)
    add_import_flag(parser)
    flags = parser.parse(argv)
    names = flags.model or []
    has_two_of_both = len(names) == 2 and len(flags.step) > 1
    if not 1 <= len(names) <= 2 or len(flags.step) > 2 or has_two_of_both:
        raise InputError("Give one or two models, limba play MODEL [MODEL], or one and two --step.")
    if not 0 < flags.max_seconds < float("inf"):
        raise InputError(f"--max_seconds is {flags.max_seconds:g}; give a number above 0.")
    token = serving.checked(flags.host, flags.port, flags.token, "--port")

    def listening(players: Sequence[Player]) -> Server:
        return serving.listening(
            lambda port: Server(flags.host, port, players, token), flags.host, flags.port, "--port"
        )

    with environment.quiet_imports():
        from limba.api import load
    listening(()).server_close()  # a port in use is an error before minutes are spent on a model
    players = []
    for name in names:
        for step in flags.step or [None]:
            with named(NAMES):
                trained = load(name, step=step, vocabulary=flags.vocabulary, imports=flags.imports)
                trained.vocabulary  # noqa: B018  raises if there is none
            label = f"{Path(name.rstrip('/')).name or name}, step {trained.step:,}"
            if label in [player.name for player in players]:
                label = f"{label} (2)"
            players.append(Player(label, trained, flags.max_seconds))
    with listening(players) as server:
        serving.serve(server)
