"""The files that a folder's weights are cut into."""

from __future__ import annotations

import json
import re
from pathlib import Path

from limba.config import InputError
from limba.config.errors import reason_of


def files_of_index(index: Path) -> list[str]:
    """Returns the names of the files that the index of a folder's weights names.

    Raises InputError for an index that cannot be read, and for a name that is not that of a file beside it: an index of
    somebody else must not choose which other files are read.
    """
    try:
        names = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise InputError(f"{index} is no index of weights ({reason_of(error)}); copy it again.") from error
    for name in names:
        if not isinstance(name, str) or name in ("", ".", "..") or re.search(r"[/\\\0:]", name):
            raise InputError(
                f"{index} names the file {name!r}, which is not beside it; copy the folder again, from somebody"
                " whom you trust."
            )
    return names
