"""The report as a server has it: the page as it is now, and its data as the runs grow."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Any

from limba.tools.pages.page.page import POINTS, content_of, page_of
from limba.tools.pages.page.runs import Run
from limba.tools.pages.serving import PageHandler, PageServer, as_json

# Between two looks at a run, however many pages are open: a request to a bucket costs money.
LOOK_SECONDS = 2.0
BUCKET_SECONDS = 30.0


class ReportServer(PageServer):
    """Serves the report of these runs, which it reads again as they grow."""

    def __init__(self, host: str, port: int, runs: Sequence[Run], token: str | None = None):
        self._runs = runs
        self._lock = threading.Lock()  # requests come in threads of their own
        self._looked = -1e9
        self._data = dict[str, Any]()
        has_bucket = any("://" in str(run.directory) for run in runs)
        self._every = BUCKET_SECONDS if has_bucket else LOOK_SECONDS
        super().__init__(host, port, ReportHandler, token)

    def page(self) -> str:
        """Returns the page as it is now. InputError if a run cannot be read."""
        with self._lock:
            self._update()
            return page_of(self._runs, is_live=True)

    def data(self) -> dict[str, Any]:
        """Returns the data of the page as they are now. InputError as above."""
        with self._lock:
            if time.monotonic() - self._looked > self._every:
                self._update()
                self._data = content_of(self._runs, max(POINTS // len(self._runs), 1)).data
                self._looked = time.monotonic()
            return self._data

    def _update(self) -> None:
        for run in self._runs:
            run.update()


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
