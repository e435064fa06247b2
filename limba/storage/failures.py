"""What a failed read or write means: something that passes (network, rights, time), or damage to the files."""

from __future__ import annotations

import errno
import os
import re
import socket
import threading
import time
from collections.abc import Callable, Iterable
from concurrent import futures
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from limba.config import InputError, StorageError, reason_of, without_credentials

if TYPE_CHECKING:
    import tensorstore as ts

T = TypeVar("T")
E = TypeVar("E", bound=InputError)
LONGEST_REASON = 200  # characters
OFFLINE = "OfflineModeIsEnabled"  # a ConnectionError of huggingface_hub: HF_HUB_OFFLINE forbids what was asked
AGAIN_SECONDS = (5.0, 20.0)
AGAIN_STATUSES = (408, 429)  # of HTTP: time-out, too many requests
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)

# Of the machine, the network or the rights: the same files may be read well a minute later.
PASSING_NAMES = re.compile(
    "EACCES|EPERM|ENOMEM|EMFILE|ENFILE|EAGAIN|EBUSY|ESTALE|ENODEV|EREMOTEIO|ENOTCONN|ECONN[A-Z]+|E(HOST|NET)[A-Z]+"
    "|ETIMEDOUT"
)
# Status names in the messages of tensorstore and of clients of buckets.
PASSING_WORDS = re.compile(
    r"\b(UNAVAILABLE|DEADLINE_EXCEEDED|PERMISSION_DENIED|UNAUTHENTICATED|RESOURCE_EXHAUSTED|ABORTED|CANCELLED"
    rf"|{PASSING_NAMES.pattern}|HTTP (?:401|403|408|429|5\d\d))\b"
)
# Clients of buckets, whose own errors are about the network or the credentials; a missing object is FileNotFoundError.
PASSING_PACKAGES = (
    "aiohttp", "azure", "botocore", "gcsfs", "google", "httpcore", "httpx", "requests", "s3fs", "urllib3",
)  # fmt: skip


def is_passing(error: BaseException) -> bool:
    """Returns whether an error is known to be about the network, rights or time, and not about what the files hold.

    >>> is_passing(PermissionError(13, "Permission denied")), is_passing(ValueError("Error decoding: crc32c"))
    (True, False)
    """
    if isinstance(error, FileNotFoundError):
        return False
    if isinstance(error, StorageError | PermissionError | TimeoutError | ConnectionError | MemoryError):
        return True
    if PASSING_NAMES.fullmatch(errno.errorcode.get(_error_number(error), "")):
        return True
    return is_of_client(error) or PASSING_WORDS.search(str(error)) is not None


def is_of_client(error: BaseException) -> bool:
    """Returns whether an error is a bucket client's own: about the network, or the rights."""
    module = type(error).__module__
    return module.partition(".")[0] in PASSING_PACKAGES and not module.startswith("google.protobuf")


def is_outage(error: BaseException) -> bool:
    """Returns whether a server or a storage does not answer at the moment, and has not refused what it was asked.

    >>> is_outage(ConnectionResetError()), is_outage(ValueError("no number"))
    (True, False)
    """
    if type(error).__name__ == OFFLINE:
        return False
    if isinstance(error, ConnectionError | TimeoutError | socket.gaierror):
        return True
    if getattr(error, "exit_status", None) == StorageError.exit_status:
        return True
    response = getattr(error, "response", None)
    statuses = [getattr(error, name, None) for name in ("status", "code", "status_code")]
    statuses.append(getattr(response, "status_code", None))
    status = next((status for status in statuses if isinstance(status, int)), None)
    if status is not None:
        return status in AGAIN_STATUSES or status >= 500
    return is_of_client(error)


def with_status_of(error: BaseException, failure: E) -> E:
    """Returns `failure`, which `error` led to, with the exit status of a server that does not answer if that is why.

    The same command works later then, and what starts a run again does so.

    >>> with_status_of(ConnectionResetError(), InputError("a")).exit_status, InputError("b").exit_status
    (74, 2)
    """
    if is_outage(error):
        failure.exit_status = StorageError.exit_status
    return failure


def kind_of(error: BaseException) -> type[InputError | StorageError]:
    """Returns the kind of error, and so the exit status, of an output that cannot be written, or of an evaluation.

    StorageError for a full disk, a device that fails and a server without an answer: the same command works later.

    >>> kind_of(OSError(28, "No space left on device")).__name__, kind_of(PermissionError(13, "no")).__name__
    ('StorageError', 'InputError')
    """
    return StorageError if is_outage(error) or _error_number(error) in FULL else InputError


def short_reason(error: BaseException, within: str = "") -> str:
    """Returns why a read or write failed, in a few words; paths below `within` are shortened.

    >>> text = "RESOURCE_EXHAUSTED: Error writing /x: No space left on device [os_error_code='28']"
    >>> short_reason(ValueError(text)), short_reason(OSError(13, "Permission denied"))
    ('No space left on device', 'Permission denied')
    """
    if isinstance(error, KeyError):
        return f"KeyError: {error}"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    if number := _error_number(error):
        return os.strerror(number)
    text = without_credentials(str(error).replace(f"{within}/", "") if within else str(error))  # before the cut
    text = re.sub(r"\s*\[[a-z][^\[\]]*='.*", "", text.strip().split("\n")[0])  # tensorstore adds where it was
    return text[:LONGEST_REASON].rstrip(".") or reason_of(error)


def _error_number(error: BaseException) -> int:
    """Returns the operating system's number of an error, also where tensorstore has written it down; 0 if none."""
    if isinstance(error, OSError):
        return error.errno or 0
    match = re.search(r"os_error_code='(\d+)'|OS error (\d+)", str(error))
    return int(match[1] or match[2]) if match else 0


def twice(read: Callable[[], T]) -> T:
    """Returns what a read returns; one that ends with EIO is tried again, after pauses of AGAIN_SECONDS.

    A network's file system that is mounted `soft` gives EIO when its server does not answer, a bad disk does always.
    """
    for pause in AGAIN_SECONDS:
        try:
            return read()
        except Exception as error:
            if _error_number(error) != errno.EIO:
                raise
            time.sleep(pause)
    return read()


@dataclass(frozen=True)
class _Limit:
    """How long a call of `limited` may take."""

    what: str
    seconds: float
    end: float  # by time.monotonic()

    def error(self) -> TimeoutError:
        return TimeoutError(f"{self.what} has not ended after {self.seconds:,.0f} s")


_OF_THREAD = threading.local()  # `limit`: the _Limit of the call that this thread makes, if it has one


def limited(call: Callable[[], T], seconds: float, what: str) -> T:
    """Returns the result of a call that may stand still: TimeoutError, naming `what`, after that many seconds.

    The call is left to itself then, on a thread that ends with the process. In the call, use `waited` for what
    tensorstore gives.
    """
    limit = _Limit(what, seconds, time.monotonic() + seconds)
    future = futures.Future[T]()

    def run() -> None:
        _OF_THREAD.limit = limit
        try:
            future.set_result(call())
        except BaseException as error:  # noqa: BLE001  raised where the caller is
            future.set_exception(error)

    threading.Thread(target=run, daemon=True, name=what).start()
    if not futures.wait([future], max(0.0, seconds)).done:
        raise limit.error()
    return future.result()


def waited(future: ts.Future[T]) -> T:
    """Returns the result of a future of tensorstore's; in a call of `limited` it waits no longer than that does.

    A thread that waits inside of C++ and comes back while Python ends takes the process with it: it ends by SIGABRT,
    and not with its own exit status.
    """
    limit = getattr(_OF_THREAD, "limit", None)
    if limit is None:
        return future.result()
    try:
        return future.result(timeout=max(0.0, limit.end - time.monotonic()))
    except TimeoutError as error:
        if time.monotonic() < limit.end:  # the storage's own
            raise
        raise limit.error() from error


def for_each(call: Callable[[str], T], names: Iterable[str], num_threads: int) -> list[T]:
    """Returns what a call returns for each name, in order, on several threads; raises the first name's error.

    The threads end with the process, as those of `limited` do. Python waits at its end for the threads of an executor,
    which is minutes where a bucket stands still.
    """
    futures_of_names = [(name, futures.Future[T]()) for name in names]
    left = iter(futures_of_names)
    lock = threading.Lock()

    def work() -> None:
        while True:
            with lock:
                pair = next(left, None)
            if pair is None:
                return
            name, future = pair
            if not future.set_running_or_notify_cancel():
                continue
            try:
                future.set_result(call(name))
            except BaseException as error:  # noqa: BLE001  raised where the caller is
                future.set_exception(error)

    for _ in range(min(num_threads, len(futures_of_names))):
        threading.Thread(target=work, daemon=True).start()
    try:
        return [future.result() for _, future in futures_of_names]
    finally:
        for _, future in futures_of_names:
            future.cancel()  # what has not begun, after an error
