"""A command on a terminal, and the rows that a person sees there when it has ended."""

from __future__ import annotations

import contextlib
import os
import pty
import re
import subprocess
import termios
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path


def shown_on(
    command: Sequence[str], folder: Path, environment: Mapping[str, str], columns: int
) -> tuple[int, str, list[str]]:
    """Returns a command's exit status, all that it draws on a terminal of so many columns, and the rows that stay.

    A row that is longer than the terminal is several.
    """
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (50, columns))
    parts: list[bytes] = []

    def read() -> None:
        with contextlib.suppress(OSError):  # at the end, when nobody has the other side open
            while part := os.read(ours, 65_536):
                parts.append(part)

    reader = threading.Thread(target=read, daemon=True)
    process = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, cwd=folder, env=dict(environment))
    os.close(theirs)
    reader.start()
    status = process.wait()
    reader.join(30)
    os.close(ours)
    drawn = b"".join(parts).decode()
    return status, drawn, rows_of(drawn, columns)


def rows_of(drawn: str, columns: int) -> list[str]:
    """Returns the rows that stay of what is drawn; each carriage return begins its row anew.

    >>> rows_of("one\\r\\nhalf of it: 3 s\\r\\x1b[Kdone\\r\\n" + "a" * 9 + "\\r\\n", 8)
    ['one', 'done', 'aaaaaaaa', 'a']
    """
    rows = []
    for line in drawn.replace("\r\n", "\n").split("\n"):
        cells: list[str] = []
        for part in line.split("\r"):
            text = re.sub(r"\x1b\[[0-9;]*[A-JL-Za-z]", "", part)
            if "\x1b[K" in text:  # erases to the end of the row
                text = text.replace("\x1b[K", "")
                cells = cells[: len(text)]
            cells[: len(text)] = text
        row = "".join(cells).rstrip()
        if row:
            rows += [row[first : first + columns] for first in range(0, len(row), columns)]
    return rows
