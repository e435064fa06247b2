"""Reading files that lie elsewhere: each request has a time limit and is repeated, and no byte comes twice.

A file is read by requests for exact byte ranges. A request that fails, stalls, trickles or brings fewer
bytes than asked for is made again as a whole, so that whoever reads the file never sees the trouble.
"""

from __future__ import annotations

import functools
import io
import logging
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import IO, Any, TypeVar

import fsspec
import tenacity
from aiohttp import ClientTimeout
from fsspec.asyn import AsyncFileSystem, sync
from fsspec.implementations.http import HTTPStreamFile

from limba.config import InputError
from limba.config.data import READ_FAILURES

logger = logging.getLogger(__name__)

# Else gcsfs asks by gRPC, before every single read where the answer is refused, whether a bucket is of the zonal kind.
os.environ.setdefault("GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT", "false")

BLOCK_BYTES = 1 << 19  # of one request: 256 files open at once hold at most 128 MiB
BUFFER_BYTES = 1 << 16  # of an open file: each fill of it leaves the interpreter to another thread
SMALLEST_BLOCK = 1 << 10  # beyond the end of a unit, where only the rest of a line is wanted
LISTING_TIMEOUTS = 5  # a listing is many requests, which no library lets us time one by one
REPEATED_STATUSES = (408, 425, 429)  # of those below 500
LASTING_ERRORS = (FileNotFoundError, PermissionError, ValueError, TypeError, LookupError, ImportError)
LASTING_KINDS = ("OfflineModeIsEnabled", "DefaultCredentialsError")  # of the hub and of Google, by name: not imported

T = TypeVar("T")


@dataclass(frozen=True)
class ReadPolicy:
    """How long one request may take, how often it is made, and what then: 'stop' or 'skip' the rest of the unit.

    Between attempts it waits 1/60 of the time-out, twice as long each time up to half of it, and as
    much again by chance: 1, 2, 4, 8, 16 seconds and a part with the defaults.
    """

    timeout_seconds: float = 60.0
    attempts: int = 6
    on_failure: str = "stop"

    def __post_init__(self) -> None:
        if not self.timeout_seconds > 0:
            raise InputError(f"ReadPolicy.timeout_seconds is {self.timeout_seconds!r}; give a number above 0.")
        if not (isinstance(self.attempts, int) and self.attempts > 0):
            raise InputError(f"ReadPolicy.attempts is {self.attempts!r}; give a whole number above 0.")
        if self.on_failure not in READ_FAILURES:
            raise InputError(f"ReadPolicy.on_failure is {self.on_failure!r}; choose one of {', '.join(READ_FAILURES)}.")


class ReadError(OSError):
    """A request that failed: its reason, whether it may succeed later, and whether there is no such file."""

    def __init__(self, reason: str, *, passing: bool, missing: bool = False):
        super().__init__(reason)
        self.passing, self.missing = passing, missing


def is_local(system: Any) -> bool:
    return "file" in _protocols(system)


def _protocols(system: Any) -> tuple[str, ...]:
    return (system.protocol,) if isinstance(system.protocol, str) else tuple(system.protocol)


def reason_of(error: BaseException) -> str:
    """Returns the first line of what an error says, or its kind where it says nothing."""
    said = getattr(error, "strerror", None) or str(error).strip().split("\n")[0]
    return said.rstrip(".") or type(error).__name__


def ask(system: Any, policy: ReadPolicy, method: str, *arguments: Any, **options: Any) -> Any:
    """Returns what a method of the file system returns, within the time-out, asked again after passing trouble.

    Raises ReadError once the attempts are used up, or at once for what will not pass (404, 403).
    """
    seconds = policy.timeout_seconds * (LISTING_TIMEOUTS if method in ("glob", "ls") else 1)
    if isinstance(system, AsyncFileSystem):
        return _persist(policy, seconds, lambda: _await(system, seconds, f"_{method}", arguments, options))
    function = functools.partial(getattr(system, method), *arguments, **options)
    return _persist(policy, seconds, lambda: _within(seconds, function))


def fetch(system: Any, path: str, start: int, stop: int, policy: ReadPolicy) -> bytes:
    """Returns bytes [start, stop) of a file, all of them; ReadError as `ask` raises it."""

    def once() -> bytes:
        data: Any
        if "http" in _protocols(system):
            data = sync(system.loop, _http_range, system, path, start, stop, timeout=policy.timeout_seconds)
        elif isinstance(system, AsyncFileSystem):
            data = sync(system.loop, system._cat_file, path, start, stop, timeout=policy.timeout_seconds)
        else:
            # The hub's files would read ahead 5 MB.
            options = {"cache_type": "none"} if "hf" in _protocols(system) else {}
            data = _within(policy.timeout_seconds, lambda: system.cat_file(path, start, stop, **options))
        if len(data) < stop - start:
            raise ReadError(f"only {len(data)} of {stop - start} bytes came", passing=True)
        if len(data) > stop - start:
            raise ReadError("the server does not give ranges of bytes", passing=False)
        return data

    return _persist(policy, policy.timeout_seconds, once)


async def _http_range(system: Any, url: str, start: int, stop: int) -> bytes:
    # Not the file system's own `_cat_file`: that takes in the whole file where a server ignores the range.
    session = await system.set_session()
    options = dict(system.kwargs)
    # Of a body that is compressed on its way the range would be another.
    headers = {**options.pop("headers", {}), "Range": f"bytes={start}-{stop - 1}", "Accept-Encoding": "identity"}
    async with session.get(system.encode_url(url), headers=headers, **options) as reply:
        system._raise_not_found_for_status(reply, url)
        if reply.status != 206 and reply.content_length != stop - start:
            raise ReadError("the server does not give ranges of bytes", passing=False)
        return await reply.read()


def _await(system: Any, seconds: float, method: str, arguments: tuple, options: dict) -> Any:
    return sync(system.loop, getattr(system, method), *arguments, timeout=seconds, **options)


def _within(seconds: float, function: Callable[[], T]) -> T:
    """Returns what the function returns; TimeoutError after so many seconds, and its thread is left behind.

    There is no other sure way to end a read of a library whose time-outs count from byte to byte. The
    thread is a daemon, so that it does not hold up the end of the program either.
    """
    results: list[T] = []
    errors: list[BaseException] = []

    def work() -> None:
        try:
            results.append(function())
        except BaseException as error:  # noqa: BLE001 - raised again by the thread that waits
            errors.append(error)

    thread = threading.Thread(target=work, name="read", daemon=True)
    thread.start()
    thread.join(seconds)
    if errors:
        raise errors[0]
    if not results:
        raise TimeoutError
    return results[0]


def _persist(policy: ReadPolicy, seconds: float, once: Callable[[], T]) -> T:
    def attempt() -> T:
        try:
            return once()
        except ReadError:
            raise
        except Exception as error:
            raise _as_read_error(error, seconds) from error

    def say(state: tenacity.RetryCallState) -> None:
        logger.info(
            "Attempt %d of %d: %s", state.attempt_number, policy.attempts, state.outcome and state.outcome.exception()
        )

    first = policy.timeout_seconds / 60
    retrying = tenacity.Retrying(
        retry=tenacity.retry_if_exception(lambda error: isinstance(error, ReadError) and error.passing),
        stop=tenacity.stop_after_attempt(policy.attempts),
        wait=tenacity.wait_exponential_jitter(multiplier=first, max=policy.timeout_seconds / 2, jitter=first),
        before_sleep=say,
        reraise=True,
    )
    try:
        return retrying(attempt)
    except ReadError as error:
        if not error.passing:
            raise
        raise ReadError(f"{error}, at the last of {policy.attempts} attempts", passing=True) from error


def _as_read_error(error: Exception, seconds: float) -> ReadError:
    # fsspec calls a file missing whatever has happened, and keeps what it was as the cause.
    told = error.__cause__ if isinstance(error, FileNotFoundError) and error.__cause__ is not None else error
    if isinstance(told, TimeoutError):
        return ReadError(f"it was not answered in full within {seconds:g} seconds", passing=True)
    response = getattr(told, "response", None)
    # aiohttp, gcsfs, and the hub each have a place of their own for the status; aiohttp says 400 also of garbage
    # that came as an answer, and then names a cause.
    holders = ((told if told.__cause__ is None else None, "status"), (told, "code"), (response, "status_code"))
    found = (getattr(holder, name, None) for holder, name in holders)
    status = next((int(str(number)) for number in found if str(number).isdigit()), None)
    if status is not None and status >= 400:
        passing = status >= 500 or status in REPEATED_STATUSES
        said = getattr(told, "message", "") or getattr(response, "reason_phrase", "")
        return ReadError(f"HTTP {status} {said}".strip(), passing=passing, missing=status == 404)
    # gcsfs tells of 403 by this word alone.
    refused = str(told).startswith("Forbidden") or type(told).__name__ in LASTING_KINDS
    passing = not refused and not isinstance(told, LASTING_ERRORS)
    missing = isinstance(told, FileNotFoundError)
    return ReadError("there is no such file" if missing else reason_of(told), passing=passing, missing=missing)


class RemoteFile(io.RawIOBase):
    """Bytes of a remote file from any position; ahead of what is asked for it reads only within [.., stop).

    Beyond `stop` it asks for little at first, then for twice as much each time. `size` is found out
    when it is needed.
    """

    def __init__(
        self,
        system: Any,
        path: str,
        policy: ReadPolicy,
        start: int = 0,
        stop: int | None = None,
        size: int | None = None,
    ):
        self._system, self._path, self._policy = system, path, policy
        self._stop = stop
        self._known_size = size
        self._position = 0
        self._block, self._block_start = memoryview(b""), 0
        self._beyond = BLOCK_BYTES if stop is None else min(max((stop - start) >> 6, SMALLEST_BLOCK), BLOCK_BYTES)

    @property
    def size(self) -> int:
        if self._known_size is None:
            self._known_size = ask(self._system, self._policy, "info", self._path).get("size")
            if self._known_size is None:
                raise ReadError("the server does not tell the size", passing=False)
        return self._known_size

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position}
        self._position = offset + (self.size if whence == io.SEEK_END else base[whence])
        return self._position

    def readinto(self, buffer: Any) -> int:
        offset = self._position - self._block_start
        if not 0 <= offset < len(self._block):
            self._block, self._block_start, offset = memoryview(self._next_block()), self._position, 0
        part = self._block[offset : offset + len(buffer)]
        buffer[: len(part)] = part
        self._position += len(part)
        if offset + len(part) == len(self._block):
            self._block = memoryview(b"")  # nothing is kept of a file that waits for its turn
        return len(part)

    def _next_block(self) -> bytes:
        start = self._position
        if self._stop is not None and start < self._stop:
            stop = min(start + BLOCK_BYTES, self._stop)
        else:
            stop = min(start + self._beyond, self.size)
            self._beyond = min(2 * self._beyond, BLOCK_BYTES)
        return fetch(self._system, self._path, start, stop, self._policy) if start < stop else b""


class RemoteStream(io.RawIOBase):
    """A remote file from its beginning, for a server that tells no size or gives no ranges.

    After a failure it is opened again and read up to where it stood.
    """

    def __init__(self, system: Any, path: str, policy: ReadPolicy):
        self._system, self._path, self._policy = system, path, policy
        self._file: Any = None
        self._position = 0  # of this stream
        self._read = 0  # of self._file

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = _persist(self._policy, self._policy.timeout_seconds, lambda: self._next(len(buffer)))
        buffer[: len(data)] = data
        self._position += len(data)
        return len(data)

    def _next(self, length: int) -> bytes:
        seconds = self._policy.timeout_seconds
        try:
            if self._file is None:
                self._read = 0
                self._file = _within(seconds, self._open)
            file = self._file
            while True:
                wanted = self._position - self._read or length
                data = _within(seconds, functools.partial(file.read, min(wanted, BLOCK_BYTES)))
                if self._read == self._position:
                    self._read += len(data)
                    return data
                if not data:
                    raise ReadError(f"it ended at byte {self._read}, which it had passed before", passing=True)
                self._read += len(data)
        except BaseException:
            self._leave()
            raise

    def _leave(self) -> None:
        if self._file is not None:
            self._file.close()
        self._file = None

    def close(self) -> None:
        self._leave()
        super().close()

    def _open(self) -> Any:
        if "http" not in _protocols(self._system):
            return self._system.open(self._path, "rb", block_size=0)
        session = sync(self._system.loop, self._system.set_session)
        # The session's own limit of 5 minutes is for the whole of a file.
        options = {"timeout": ClientTimeout(), "headers": {"Accept-Encoding": "identity"}}
        return HTTPStreamFile(self._system, self._path, session=session, loop=self._system.loop, **options)


def open_file(
    path: str, policy: ReadPolicy, start: int = 0, stop: int | None = None, size: int | None = None
) -> IO[bytes]:
    """Returns the file for reading; of a remote one no more than bytes [start, stop) is read ahead."""
    system, stripped = fsspec.core.url_to_fs(path)
    if is_local(system):
        return open(stripped, "rb", buffering=BUFFER_BYTES)
    if stop is None and size is None:
        details = ask(system, policy, "info", stripped)
        size = details.get("size")
        if size is None or details.get("partial") is False:
            return io.BufferedReader(RemoteStream(system, stripped, policy), BUFFER_BYTES)
    return io.BufferedReader(RemoteFile(system, stripped, policy, start, stop, size), BUFFER_BYTES)
