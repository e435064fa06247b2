"""Files of a run that grow line by line, on a disk or in a bucket, and must not end the run if they fail."""

from __future__ import annotations

import logging
import os
import threading

from limba.config import reason_of
from limba.storage.files import GrowingFile, LocalFile

logger = logging.getLogger(__name__)

FLUSH_SECONDS = 60.0  # between two uploads to a bucket
LAST_ATTEMPTS = 3  # at the end of a run
LOCAL = "file://"


class Uploads:
    """Bytes that are collected and appended to a file, local or at gs://…; a failure delays them and ends nothing.

    The three methods are those that tensorboardX calls on the file behind its writer. A file that fails gives one
    warning while the run goes on, and one at the end if its last lines are lost; with `is_copy` (TensorBoard's copy of
    metrics.jsonl) one in all.
    """

    def __init__(self, address: str, is_copy: bool = False):
        self._is_copy = is_copy
        self._reason = ""  # of the last failure
        self._file = GrowingFile(address) if "://" in address else LocalFile(address)
        self._pending = list[bytes]()
        self._lock = threading.Lock()  # of `_pending`, for moments: who writes a line never waits for a bucket
        self._sending = threading.Lock()  # while the file is written
        self._has_complained = False
        self._is_closing = False
        self._num_failed = 0  # attempts in a row

    def write(self, data: bytes) -> None:
        """Keeps the bytes for the next `flush`."""
        with self._lock:
            self._pending.append(data)

    def flush(self) -> bool:
        """Appends the bytes kept so far; returns whether all are written. After a failure the next call sends them."""
        with self._sending:
            with self._lock:
                taken = b"".join(self._pending)
                self._pending = []
            try:
                self._file.append(taken)
            except Exception as error:  # noqa: BLE001  a bucket's client has errors of its own
                with self._lock:
                    self._pending.insert(0, taken)
                self._reason = reason_of(error)
                self._num_failed += 1
                if not self._has_complained and not self._is_closing:
                    self._has_complained = True
                    logger.warning(
                        "%s cannot be written at the moment (%s); it is tried again, and the run goes on.",
                        self._file.address, self._reason,
                    )  # fmt: skip
                return False
            self._num_failed = 0
            return True

    def close(self) -> None:
        """Appends the rest; warns if that fails. A bucket that failed before is asked less often."""
        self._is_closing = True
        num_attempts = max(1, LAST_ATTEMPTS - self._num_failed)  # each takes a minute where nothing answers
        if not any(self.flush() for _ in range(num_attempts)):
            if not (self._is_copy and self._has_complained):
                logger.warning("The last lines of %s could not be written (%s).", self._file.address, self._reason)
            self._pending = []
        if isinstance(self._file, LocalFile):
            self._file.close()


class Lines:
    """The lines of a file: on a disk at once; at gs://… once a minute, by a thread for which no step waits.

    `is_copy`: the same is written elsewhere too; see `Uploads`.
    """

    def __init__(self, path: str, is_copy: bool = False):
        self._uploads = Uploads(path, is_copy)
        self._due = threading.Event()
        self._over = False
        self._thread: threading.Thread | None = None
        if "://" in path:
            self._thread = threading.Thread(target=self._send, daemon=True, name="metrics")
            self._thread.start()
            return
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size and os.pread(file.fileno(), 1, size - 1) != b"\n":
                self._uploads.write(b"\n")  # ends a line that a killed run left incomplete

    def append(self, line: str) -> None:
        """Writes a line, with its end; in a bucket it is kept for the next upload."""
        self._uploads.write(line.encode())
        if self._thread is None:
            self._uploads.flush()

    def upload(self) -> None:
        """Has the thread append the lines now."""
        self._due.set()

    def _send(self) -> None:
        while not self._over:
            self._due.wait(FLUSH_SECONDS)
            self._due.clear()
            self._uploads.flush()

    def close(self) -> None:
        """Writes the rest."""
        self._over = True
        self._due.set()
        if self._thread is not None:
            self._thread.join()
        self._uploads.close()


class EventFiles:
    """Opens TensorBoard's event files, file://… or gs://…, as tensorboardX's `register_writer_factory` takes it.

    An error of the disk ends the thread of its own writer, and the next figures wait for that thread for ever.
    """

    def open(self, path: str) -> Uploads:
        return Uploads(path.removeprefix(LOCAL), is_copy=True)

    def directory_check(self, path: str) -> None:
        """Makes the folder; a bucket has none."""
        if path.startswith(LOCAL):
            os.makedirs(path.removeprefix(LOCAL), exist_ok=True)
