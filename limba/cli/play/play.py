"""`limba play`: opens one or two models and serves a page to try them."""

from __future__ import annotations

import errno
import secrets
from collections.abc import Sequence
from pathlib import Path

from limba.cli.arguments import Parser
from limba.cli.play.server import Server
from limba.cli.program import names_said
from limba.cli.use import model
from limba.config import InputError
from limba.config.errors import reason_of

ABOUT = """Serves a page on this machine on which you try a model: mask words or write a prompt, and see what it writes,
with the probability of each piece. With two models, or one model and two steps, both answer side by side.

    limba play MODEL_DIR
    limba play MODEL_DIR --step=1000 --step=2000
    limba play MODEL_DIR user/name

Nothing leaves the machine. With --host the page is served to others too, and asks for a token."""
FIRST_PORT = 8000
PORTS = 20  # that are tried if none is given
HERE = "127.0.0.1"


def _listening(host: str, port: int | None, players: Sequence, token: str | None) -> Server:
    """Returns the server on this port, or on the first free one; InputError if it cannot be had."""
    for chosen in range(FIRST_PORT, FIRST_PORT + PORTS) if port is None else [port]:
        try:
            return Server(host, chosen, players, token)
        except OSError as error:
            if error.errno != errno.EADDRINUSE or port is not None:
                said = "is in use" if error.errno == errno.EADDRINUSE else f"cannot be had ({reason_of(error)})"
                raise InputError(f"Port {chosen} of {host} {said}; give another --port, or none.") from None
    raise InputError(f"The ports {FIRST_PORT} to {FIRST_PORT + PORTS - 1} of {host} are in use; give a --port.")


def run(argv: Sequence[str]) -> None:
    """Opens the models and serves until Ctrl-C; raises InputError."""
    parser = Parser("play", ABOUT)
    parser.add_object("model", "MODEL", f"one or two of these: {model.MODEL}", takes_several=True)
    parser.add_argument("--step", type=int, action="append", default=[], help="step of a run; given twice: both")
    parser.add_argument("--vocabulary", metavar="PATH|byte", help="vocabulary that replaces the models' own")
    parser.add_argument("--port", type=int, help=f"port; default: the first free one from {FIRST_PORT} on")
    parser.add_argument("--host", default=HERE, help=f"address to listen on; default: {HERE}, for this machine alone")
    parser.add_argument("--token", help="with --host: what the page's address must hold; default: one is made")
    model.add_import_flag(parser)
    given = parser.parse(argv)
    names = given.model or []
    if not 1 <= len(names) <= 2 or (len(names) == 2 and len(given.step) > 1) or len(given.step) > 2:
        raise InputError("Give one or two models, limba play MODEL [MODEL], or one and two --step.")
    if given.port is not None and not 0 <= given.port < 65536:
        raise InputError(f"--port is {given.port}; give a number from 0 to 65535, where 0 is any free port.")
    if given.token is not None and given.host == HERE:
        raise InputError("--token is given without --host; it guards a page that others can open.")
    token = None if given.host == HERE else given.token or secrets.token_urlsafe(16)
    _listening(given.host, given.port, (), token).server_close()  # before minutes are spent on a model
    from limba.cli.play.answers import Player

    steps = given.step or [None]
    chosen = [(name, step) for name in names for step in steps]
    players = []
    for name, step in chosen:
        with names_said(model.NAMES):
            trained = model.load(name, step=step, vocabulary=given.vocabulary, imports=given.imports)
            trained.vocabulary  # noqa: B018  raises if there is none
        label = f"{Path(name.rstrip('/')).name or name}, step {trained.step:,}"
        players.append(Player(label if label not in [each.name for each in players] else f"{label} (2)", trained))
    with _listening(given.host, given.port, players, token) as server:
        print(f"Open {server.address} in a browser. Ctrl-C ends it.", flush=True)
        try:
            server.serve_forever(poll_interval=0.2)
        except KeyboardInterrupt:
            print("Ended.", flush=True)
