"""Files, local, remote or compressed: each request has a time limit and is repeated, and no byte is returned twice.

A file is read by requests for exact byte ranges. A request that fails, stalls, is too slow or returns too few
bytes is repeated; the reader of the file does not notice.
"""

from __future__ import annotations

import bz2
import codecs
import contextlib
import functools
import gzip
import io
import logging
import lzma
import re
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from typing import IO, Any, TypeVar, cast

import fsspec
import tenacity
import zstandard
from fsspec import AbstractFileSystem
from fsspec.asyn import AsyncFileSystem, sync

from limba.config import reason_of, untrusted_files
from limba.config.errors import is_out_of_memory
from limba.storage.failures import limited
from limba.storage.files import is_local

COMPRESSIONS = (".gz", ".zst", ".bz2", ".xz")
STREAMS = {".zst": "a zstandard frame", ".bz2": "a bzip2 stream", ".xz": "an xz stream"}
UNPACKED_BYTES = 1 << 17  # at a time
# Of text that is not UTF-8: letters that text in another of these encodings does not give, one after the other.
ENCODINGS = {"EUC-JP": "[ぁ-ん]{2}", "SHIFT_JIS": "[ぁ-ん]{2}"}
ENCODINGS |= {"WINDOWS-1251": "[а-я]{4}", "WINDOWS-1250": "[a-zăâî][şţłąż][a-zăâî]", "WINDOWS-1252": ""}
ENCODING_BYTES = 1 << 16  # that are looked at


def unpacked(file: IO[bytes], suffix: str) -> IO[bytes]:
    """Returns the content of a file, decompressed according to the suffix; '' is a plain file."""
    if suffix == ".gz":
        return cast(IO[bytes], gzip.open(file))
    return io.BufferedReader(StreamsFile(file, suffix), UNPACKED_BYTES) if suffix in STREAMS else file


class StreamsFile(io.RawIOBase):
    """The content of a .zst, .xz or .bz2 with any number of streams in a row; EOFError if it is truncated.

    zstandard's own reader accepts a truncated file; Python's readers of the other two take damage at the start of a
    later stream for the end of the file.
    """

    def __init__(self, file: IO[bytes], suffix: str):
        self._file = file
        self._suffix = suffix
        self._packed = b""
        self._content = memoryview(b"")
        self._unpacker: Any = None
        self._num_streams = 0
        self._num_padding = 0  # bytes since the last stream

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:
        while not self._content:
            if not self._packed and getattr(self._unpacker, "needs_input", True):
                self._packed = self._file.read(1 << 16)
                if not self._packed:
                    self._check_end()
                    return 0
            if self._unpacker is None:
                self._begin_stream()
                if self._unpacker is None:
                    continue
            if self._suffix == ".zst":  # its library takes no limit
                content = self._unpacker.decompress(self._packed)
            else:
                content = self._unpacker.decompress(self._packed, UNPACKED_BYTES)
            self._content = memoryview(content)
            self._packed = b""
            if self._unpacker.eof:
                self._packed = self._unpacker.unused_data
                self._unpacker = None
                self._num_streams += 1
                self._num_padding = 0
        part = self._content[: len(buffer)]
        buffer[: len(part)] = part
        self._content = self._content[len(part) :]
        return len(part)

    def _begin_stream(self) -> None:
        """Makes the unpacker of the next stream; none yet if all bytes at hand are zeros behind the last one.

        Such zeros are dropped: of .xz in fours (its specification, 2.2), of .bz2 as many as a device adds.
        """
        if self._suffix == ".zst":
            # zstd's long mode needs a larger window than the library's limit of 128 MiB.
            self._unpacker = zstandard.ZstdDecompressor(max_window_size=1 << 31).decompressobj()
            return
        if self._num_streams:
            num_before = len(self._packed)
            self._packed = self._packed.lstrip(b"\0")
            self._num_padding += num_before - len(self._packed)
            if not self._packed:
                return
            self._check_padding()
        self._unpacker = lzma.LZMADecompressor() if self._suffix == ".xz" else bz2.BZ2Decompressor()

    def _check_padding(self) -> None:
        if self._suffix == ".xz" and self._num_padding % 4:
            raise ValueError(f"{self._num_padding} zeros follow an xz stream, not a multiple of four")

    def _check_end(self) -> None:
        is_empty = not self._num_streams and self._suffix != ".zst"
        if self._unpacker is not None or is_empty:
            raise EOFError(f"the file ends within {STREAMS[self._suffix]}")
        self._check_padding()


logger = logging.getLogger(__name__)

BLOCK_BYTES = 1 << 19  # of one request: 256 open files hold at most 128 MiB
BUFFER_BYTES = 1 << 16  # of an open file; each refill lets another thread take the interpreter
SMALLEST_BLOCK = 1 << 10  # after the end of a unit, where only the rest of a line is needed
LISTING_TIMEOUTS = 5  # a listing is many requests, and no library can time them one by one
REPEATED_STATUSES = (408, 425, 429)  # of those below 500
PERMANENT_ERRORS = (FileNotFoundError, PermissionError, ValueError, TypeError, LookupError, ImportError)
PERMANENT_KINDS = ("OfflineModeIsEnabled", "DefaultCredentialsError")  # of the hub and of Google, by name: not imported

T = TypeVar("T")


@dataclass(frozen=True)
class ReadPolicy:
    """The time limit and attempts of a request, and what follows: 'stop', or 'skip' the rest of the unit.

    The first pause is 1/60 of the time limit; each further one is twice as long, up to half of the limit. A random
    part of up to 1/60 of the limit is added. With the defaults: 1, 2, 4, 8, 16 seconds, plus up to one second.
    """

    timeout_seconds: float = 60.0
    attempts: int = 6
    on_failure: str = "stop"
    keep_blank: bool = False  # True: also the rows without text, to count them
    num_tasks: int = 1  # of the mixture: where many are read side by side, less of each is held


PATIENT = ReadPolicy()


class ReadError(OSError):
    """A request failed: the reason, whether it may succeed later, and whether the file does not exist."""

    def __init__(self, reason: str, *, is_temporary: bool, missing: bool = False):
        super().__init__(reason)
        self.is_temporary = is_temporary
        self.missing = missing


def _protocols(system: AbstractFileSystem) -> tuple[str, ...]:
    return (system.protocol,) if isinstance(system.protocol, str) else tuple(system.protocol)


def ask(system: AbstractFileSystem, policy: ReadPolicy, method: str, *arguments: object, **options: object) -> Any:
    """Calls a method of the file system within the time limit; repeats it if it may succeed later.

    Raises ReadError when the attempts are used up, or at once for a permanent failure (404, 403).
    """
    seconds = policy.timeout_seconds * (LISTING_TIMEOUTS if method in ("glob", "ls") else 1)
    if isinstance(system, AsyncFileSystem):
        function = getattr(system, f"_{method}")
        call = lambda: sync(system.loop, function, *arguments, timeout=seconds, **options)
        return _persist(policy, seconds, call)
    function = functools.partial(getattr(system, method), *arguments, **options)
    return _persist(policy, seconds, lambda: limited(function, seconds, "read"))


def fetch(system: Any, path: str, start: int, stop: int, policy: ReadPolicy) -> bytes:
    """Returns exactly the bytes [start, stop) of a file. Raises ReadError as `ask` does."""

    def once() -> bytes:
        data: Any
        if "http" in _protocols(system):
            data = sync(system.loop, _http_range, system, path, start, stop, timeout=policy.timeout_seconds)
        elif isinstance(system, AsyncFileSystem):
            data = sync(system.loop, system._cat_file, path, start, stop, timeout=policy.timeout_seconds)
        else:
            # The hub's files would prefetch 5 MB.
            options = {"cache_type": "none"} if "hf" in _protocols(system) else {}
            data = limited(lambda: system.cat_file(path, start, stop, **options), policy.timeout_seconds, "read")
        if len(data) < stop - start:
            raise ReadError(f"only {len(data)} of {stop - start} bytes came", is_temporary=True)
        if len(data) > stop - start:
            raise ReadError("the server does not support byte ranges", is_temporary=False)
        return data

    return _persist(policy, policy.timeout_seconds, once)


async def _http_range(system: Any, url: str, start: int, stop: int) -> bytes:
    # Not the file system's `_cat_file`, which reads the whole file if a server ignores the range.
    session = await system.set_session()
    options = dict(system.kwargs)
    # The range of a compressed body would differ.
    headers = {**options.pop("headers", {}), "Range": f"bytes={start}-{stop - 1}", "Accept-Encoding": "identity"}
    async with session.get(system.encode_url(url), headers=headers, **options) as reply:
        system._raise_not_found_for_status(reply, url)
        if reply.status != 206 and reply.content_length != stop - start:
            raise ReadError("the server does not support byte ranges", is_temporary=False)
        return await reply.read()


def _persist(policy: ReadPolicy, seconds: float, once: Callable[[], T]) -> T:
    def attempt() -> T:
        try:
            return once()
        except ReadError:
            raise
        except Exception as error:
            if is_out_of_memory(error):  # of this host: another attempt would not help, and the file is not at fault
                raise
            raise _as_read_error(error, seconds) from error

    def log(state: tenacity.RetryCallState) -> None:
        logger.info(
            "Attempt %d of %d: %s", state.attempt_number, policy.attempts, state.outcome and state.outcome.exception()
        )

    first = policy.timeout_seconds / 60
    retrying = tenacity.Retrying(
        retry=tenacity.retry_if_exception(lambda error: isinstance(error, ReadError) and error.is_temporary),
        stop=tenacity.stop_after_attempt(policy.attempts),
        wait=tenacity.wait_exponential_jitter(multiplier=first, max=policy.timeout_seconds / 2, jitter=first),
        before_sleep=log,
        reraise=True,
    )
    try:
        return retrying(attempt)
    except ReadError as error:
        if not error.is_temporary:
            raise
        count = retrying.statistics["attempt_number"]
        raise ReadError(f"{error}, at the last of {count} attempts", is_temporary=True) from error


def _as_read_error(error: Exception, seconds: float) -> ReadError:
    cause: BaseException = error
    # fsspec raises FileNotFoundError whatever has happened, with the real error as its cause.
    if isinstance(error, FileNotFoundError) and error.__cause__ is not None:
        cause = error.__cause__
    if isinstance(cause, TimeoutError):
        return ReadError(f"there was no complete response within {seconds:g} seconds", is_temporary=True)
    response = getattr(cause, "response", None)
    # aiohttp, gcsfs and the hub each have a different attribute for the status. aiohttp also reports 400 if the
    # response is garbage, and then has a cause.
    holders = ((cause if cause.__cause__ is None else None, "status"), (cause, "code"), (response, "status_code"))
    numbers = (getattr(holder, name, None) for holder, name in holders)
    status = next((int(str(number)) for number in numbers if str(number).isdigit()), None)
    if status is not None and status >= 400:
        is_temporary = status >= 500 or status in REPEATED_STATUSES
        said = getattr(cause, "message", "") or getattr(response, "reason_phrase", "")
        return ReadError(f"HTTP {status} {said}".strip(), is_temporary=is_temporary, missing=status == 404)
    # gcsfs reports 403 only by this word.
    refused = str(cause).startswith("Forbidden") or type(cause).__name__ in PERMANENT_KINDS
    is_temporary = not refused and not isinstance(cause, PERMANENT_ERRORS)
    missing = isinstance(cause, FileNotFoundError)
    reason = "there is no such file" if missing else reason_of(cause)
    return ReadError(reason, is_temporary=is_temporary, missing=missing)


class RemoteFile(io.RawIOBase):
    """A remote file that is read from any byte, in blocks, up to `stop`.

    After `stop` it requests little at first, then twice as much each time. `size` is requested on first use.
    """

    def __init__(
        self,
        system: AbstractFileSystem,
        path: str,
        policy: ReadPolicy,
        start: int = 0,
        stop: int | None = None,
        size: int | None = None,
    ):
        self._system = system
        self._path = path
        self._policy = policy
        self._stop = stop
        self._known_size = size
        self._position = 0
        self._block = memoryview(b"")
        self._block_start = 0
        self._beyond = BLOCK_BYTES if stop is None else min(max((stop - start) >> 6, SMALLEST_BLOCK), BLOCK_BYTES)

    @property
    def size(self) -> int:
        if self._known_size is None:
            self._known_size = ask(self._system, self._policy, "info", self._path).get("size")
            if self._known_size is None:
                raise ReadError("the server does not report the size", is_temporary=False)
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

    def readinto(self, buffer: memoryview) -> int:
        offset = self._position - self._block_start
        if not 0 <= offset < len(self._block):
            self._block = memoryview(self._next_block())
            self._block_start = self._position
            offset = 0
        part = self._block[offset : offset + len(buffer)]
        buffer[: len(part)] = part
        self._position += len(part)
        if offset + len(part) == len(self._block):
            self._block = memoryview(b"")  # a waiting file takes no memory
        return len(part)

    def _next_block(self) -> bytes:
        start = self._position
        if self._stop is not None and start < self._stop:
            stop = min(start + BLOCK_BYTES, self._stop)
        else:
            stop = min(start + self._beyond, self.size)
            self._beyond = min(2 * self._beyond, BLOCK_BYTES)
        return fetch(self._system, self._path, start, stop, self._policy) if start < stop else b""


def open_file(
    path: str, policy: ReadPolicy, start: int = 0, stop: int | None = None, size: int | None = None
) -> IO[bytes]:
    """Returns the file for reading; of a remote one at most bytes [start, stop) are prefetched."""
    system, stripped = fsspec.core.url_to_fs(path)
    if is_local(system):
        return open(stripped, "rb", buffering=BUFFER_BYTES)
    return io.BufferedReader(RemoteFile(system, stripped, policy, start, stop, size), BUFFER_BYTES)


def in_place(path: str, command: str) -> str | None:
    """Returns the shell's commands that replace a local file, {}, by what `command` makes of it; None if it is remote.

    >>> in_place("a b.txt", "sed 7d {}")
    "mv 'a b.txt' 'a b.txt'.old; sed 7d 'a b.txt'.old > 'a b.txt'"
    """
    name = shlex.quote(path)
    return None if "://" in path else f"mv {name} {name}.old; {command.format(f'{name}.old')} > {name}"


def in_utf8(path: str) -> str | None:
    """Returns the shell's commands that write a local text as UTF-8, from its likeliest encoding; None for none."""
    if "://" in path or path.endswith((".zst", ".bz2", ".xz")):
        return None
    if not untrusted_files.is_regular(path):
        return None  # as standard input
    is_packed = path.endswith(".gz")
    with (gzip.open if is_packed else open)(path, "rb") as file:
        content = file.read(ENCODING_BYTES)
    encoding = _likeliest_encoding(content)
    if encoding is None:
        return None
    command = f"iconv -f {encoding} -t UTF-8"
    command = f"gzip -dc {{}} | {command} | gzip" if is_packed else f"{command} {{}}"
    return in_place(path, command)


def _likeliest_encoding(content: bytes) -> str | None:
    """Returns the encoding of a text that is not UTF-8, by its mark or by the letters that it then has."""
    if content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "UTF-16"
    if b"\0" in content:
        return None
    whole_lines = content.rpartition(b"\n")[0] or content  # a letter may be cut at the end
    for encoding, letters in ENCODINGS.items():
        with contextlib.suppress(UnicodeDecodeError):
            if re.search(letters, whole_lines.decode(encoding)):
                return encoding
    return None
