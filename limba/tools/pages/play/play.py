"""`limba play`: opens one or two models and serves a page to try them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from limba.api import Parser, add_import_flag
from limba.config import InputError, environment, named
from limba.tools.pages import serving
from limba.tools.pages.play.answers import MAX_SECONDS, Player
from limba.tools.pages.play.server import Server

ABOUT = """Serves a page on this machine on which you try a model: mask words or write a prompt, and see what it writes,
with the probability of each piece. With two models, or one model and two steps, both answer side by side.

    limba play MODEL_DIR
    limba play MODEL_DIR --step=1000 --step=2000
    limba play MODEL_DIR user/name

Nothing leaves the machine. With --host the page is served to others too, and asks for a token."""

MODEL = "a Limba or T5X run, one of its checkpoints, a Hugging Face folder, or a hub id"
NAMES = {"`vocabulary`": "--vocabulary", "DataConfig.vocabulary": "--vocabulary"}  # what messages call a field


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
    given = parser.parse(argv)
    names = given.model or []
    if not 1 <= len(names) <= 2 or (len(names) == 2 and len(given.step) > 1) or len(given.step) > 2:
        raise InputError("Give one or two models, limba play MODEL [MODEL], or one and two --step.")
    if not 0 < given.max_seconds < float("inf"):
        raise InputError(f"--max_seconds is {given.max_seconds:g}; give a number above 0.")
    token = serving.checked(given.host, given.port, given.token, "--port")

    def listening(players: Sequence) -> Server:
        return serving.listening(
            lambda port: Server(given.host, port, players, token), given.host, given.port, "--port"
        )

    with environment.quiet_imports():
        from limba.api import load
    listening(()).server_close()  # before minutes are spent on a model
    steps = given.step or [None]
    chosen = [(name, step) for name in names for step in steps]
    players = []
    for name, step in chosen:
        with named(NAMES):
            trained = load(name, step=step, vocabulary=given.vocabulary, imports=given.imports)
            trained.vocabulary  # noqa: B018  raises if there is none
        label = f"{Path(name.rstrip('/')).name or name}, step {trained.step:,}"
        label = label if label not in [each.name for each in players] else f"{label} (2)"
        players.append(Player(label, trained, given.max_seconds))
    with listening(players) as server:
        serving.serve(server)
