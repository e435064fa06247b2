"""Messages during long work: one passing line on a terminal, lines in a file, nothing if it is short."""

import io
import sys
import time

import pytest

from limba.config import waiting as module
from limba.config.waiting import waiting


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("stream", [Terminal(), io.StringIO()], ids=["terminal", "file"])
def test_long_work_is_said_and_short_work_is_not(stream: io.StringIO, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", stream)
    with waiting("compiling"):
        pass
    with pytest.raises(KeyError), waiting("restoring"):
        raise KeyError
    assert stream.getvalue() == ""
    monkeypatch.setattr(module, "FIRST_SECONDS", 0.05)
    monkeypatch.setattr(module, "SECONDS_BETWEEN", 0.05)
    with waiting("proving", shows=False):
        time.sleep(0.2)
    assert stream.getvalue() == ""
    with waiting("compiling the step"):
        time.sleep(0.3)
    told = stream.getvalue()
    if stream.isatty():
        assert told == "\rcompiling the step: 0 s so far\x1b[K\r\x1b[K"
    else:
        assert set(told.splitlines()) == {"compiling the step: 0 s so far"} and "\x1b" not in told
