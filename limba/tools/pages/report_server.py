"""The server of a live report: the page at /, and at /api/report the data by which an open page is kept new."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Any

from limba.tools.pages.page.page import POINTS, content_of, page_of
from limba.tools.pages.page.runs import Run
from limba.tools.pages.serving import PageHandler, PageServer, as_json

LOOK_SECONDS, BUCKET_SECONDS = 2.0, 30.0  # between two looks at a disk and at a bucket, however many pages are open


class ReportServer(PageServer):
    """Serves the report of these runs, which it reads again as they grow."""

    def __init__(self, host: str, port: int, runs: Sequence[Run], token: str | None = None):
        self._runs, self._turn = runs, threading.Lock()
        self._looked, self._data = -1e9, dict[str, Any]()
        remote = any("://" in str(run.directory) for run in runs)
        self._every = BUCKET_SECONDS if remote else LOOK_SECONDS
        super().__init__(host, port, ReportHandler, token)

    def page(self) -> str:
        """Returns the page as it is now. InputError if a run cannot be read."""
        with self._turn:
            for run in self._runs:
                run.update()
            return page_of(self._runs, is_live=True)

    def data(self) -> dict[str, Any]:
        """Returns the data of the page as they are now. InputError as above."""
        with self._turn:
            if time.monotonic() - self._looked > self._every:
                for run in self._runs:
                    run.update()
                self._data = content_of(self._runs, max(POINTS // len(self._runs), 1)).data
                self._looked = time.monotonic()
            return self._data


class ReportHandler(PageHandler):
    """Answers one request."""

    server: ReportServer

    def get(self, path: str) -> tuple[str, bytes]:
        """Returns the page or its data."""
        if path == "/":
            return "text/html; charset=utf-8", self.server.page().encode()
        if path == "/api/report":
            return as_json(self.server.data())
        return super().get(path)
