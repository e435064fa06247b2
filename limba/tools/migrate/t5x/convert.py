"""`limba convert-gin THEIRS.gin > OURS.gin`: prints T5X's gin files as one gin file of ours."""

from __future__ import annotations

from collections.abc import Sequence

from limba.api import Parser
from limba.cli.flags import search_folders
from limba.config import InputError
from limba.tools.migrate.t5x.read import is_t5x
from limba.tools.migrate.t5x.translate import translate

ABOUT = """Prints the gin files of a T5X run as one gin file of Limba's: first a table of what is the same, what differs
and why, and what is dropped, as comments; then the settings, each with the line that it comes from. limba train takes
T5X's files as they are, too.

    limba convert-gin THEIRS.gin --gin_search_paths=DIR > OURS.gin
    limba train OURS.gin --gin.MODEL_DIR=runs/mine"""
# What T5X's users give on the command line; it stays required in the printed file.
GIVEN_LATER = ("MODEL_DIR", "CHECKPOINT_PATH", "EVAL_OUTPUT_DIR", "INFER_OUTPUT_DIR", "INITIAL_CHECKPOINT_PATH")


def run(argv: Sequence[str]) -> None:
    """Prints the translation; raises InputError."""
    parser = Parser("convert-gin", ABOUT)
    parser.add_object("gin_file", "THEIRS.gin", "a gin file of T5X's; later files replace values", takes_several=True)
    parser.add_argument(
        "--gin_search_paths", metavar="A,B", action="append", default=[], help="folders to look for gin files in: A,B"
    )
    parser.add_argument("--gin.NAME", metavar="VALUE", help="set NAME, theirs or ours")
    given = parser.parse(argv)
    if not given.gin_file:
        raise InputError("No gin file is given; write limba convert-gin THEIRS.gin --gin_search_paths=DIR.")
    folders = search_folders(given.gin_search_paths)
    if not is_t5x(given.gin_file, folders):
        found = " and ".join(given.gin_file)
        raise InputError(f"{found} includes none of T5X's files and names none of its modules; give T5X's gin files.")
    found = translate(given.gin_file, given.gin, folders, GIVEN_LATER)
    found.check()
    print(found.whole_text(), end="")
