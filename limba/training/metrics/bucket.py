"""metrics.jsonl and TensorBoard's event files, on a disk or in a bucket, where each upload holds only what is new.

Figures are not worth a run: a full disk, or a bucket in trouble, delays them and ends nothing. Whether a step can be
saved then is the checkpoints' business.
"""

from __future__ import annotations

import logging
import os
import threading

from limba.config.errors import reason_of
from limba.storage.files import GrowingFile, LocalFile

logger = logging.getLogger(__name__)

FLUSH_SECONDS = 60.0
LAST_ATTEMPTS = 3  # at the end of a run
LOCAL = "file://"


class Uploads:
    """Bytes that are collected and appended to a file, local or at gs://…; what fails delays them and ends nothing.

    The three methods are what tensorboardX asks of the file behind its writer. A file fails with one warning while the
    run goes on, and one at the end if its last lines are lost; a copy (TensorBoard's, of metrics.jsonl) with one.
    """

    def __init__(self, address: str, is_copy: bool = False):
        self._is_copy, self._reason = is_copy, ""
        self._file = GrowingFile(address) if "://" in address else LocalFile(address)
        self._pending, self._lock = [], threading.Lock()
        self._sending, self._has_complained, self._is_closing = threading.Lock(), False, False

    def write(self, data: bytes) -> None:
        """Keeps the bytes for the next `flush`."""
        with self._lock:
            self._pending.append(data)

    def flush(self) -> bool:
        """Appends what is kept; returns whether nothing is left. What cannot be sent now is sent with the next."""
        with self._sending:
            with self._lock:
                taken, self._pending = b"".join(self._pending), []
            try:
                self._file.append(taken)
            except Exception as error:  # noqa: BLE001  a bucket's client has errors of its own
                with self._lock:
                    self._pending.insert(0, taken)
                self._reason = reason_of(error)
                if not self._has_complained and not self._is_closing:
                    self._has_complained = True
                    logger.warning(
                        "%s cannot be written at the moment (%s); it is tried again, and the run goes on.",
                        self._file.address, self._reason,
                    )  # fmt: skip
                return False
            return True

    def close(self) -> None:
        """Appends what is left; warns if it is not taken."""
        self._is_closing = True
        if not any(self.flush() for _ in range(LAST_ATTEMPTS)):
            if not (self._is_copy and self._has_complained):
                logger.warning("The last lines of %s could not be written (%s).", self._file.address, self._reason)
            self._pending = []
        if isinstance(self._file, LocalFile):
            self._file.close()


class LinesOnDisk:
    """Lines of a local file, which are there at once."""

    def __init__(self, path: str):
        self._lines = Uploads(path)
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size and os.pread(file.fileno(), 1, size - 1) != b"\n":
                self._lines.write(b"\n")  # ends a line that a killed run left incomplete

    def append(self, line: str) -> None:
        """Writes a line, with its end."""
        self._lines.write(line.encode())
        self._lines.flush()

    def upload(self) -> None:
        """There is nothing to do."""

    def close(self) -> None:
        """Writes what could not be written before."""
        self._lines.close()


class LinesInBucket:
    """Lines of a file at gs://…, appended once a minute by a thread, so that training does not wait for the bucket."""

    def __init__(self, address: str):
        self._uploads, self._due, self._over = Uploads(address), threading.Event(), False
        self._thread = threading.Thread(target=self._send, daemon=True, name="metrics")
        self._thread.start()

    def append(self, line: str) -> None:
        """Keeps a line, with its end, for the next upload."""
        self._uploads.write(line.encode())

    def upload(self) -> None:
        """Has the thread append what is kept now."""
        self._due.set()

    def _send(self) -> None:
        while not self._over:
            self._due.wait(FLUSH_SECONDS)
            self._due.clear()
            self._uploads.flush()

    def close(self) -> None:
        """Uploads what is left."""
        self._over = True
        self._due.set()
        self._thread.join()
        self._uploads.close()


class EventFiles:
    """Opens TensorBoard's event files, file://… or gs://…, as tensorboardX's `register_writer_factory` takes it.

    In its own, an error of the disk ends the thread that writes, and the next figures wait for that thread for ever.
    """

    def open(self, path: str) -> Uploads:
        return Uploads(path.removeprefix(LOCAL), is_copy=True)

    def directory_check(self, path: str) -> None:
        """Makes the folder; a bucket has none."""
        if path.startswith(LOCAL):
            os.makedirs(path.removeprefix(LOCAL), exist_ok=True)
