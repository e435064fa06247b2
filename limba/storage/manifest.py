"""Whole folders: the manifest of a folder, with the size and checksum of each file, and copies to a bucket and back.

A folder with a manifest is whole if every file is as the manifest says. Checksums are crc32c, which a core computes
at about 20 GB/s; files are read by a few threads. The small files of a checkpoint have blake2b instead: those of an
OCDBT store end with their own crc32c, so the crc32c of such a file depends on its size alone, and would not tell it
from the file of another step.

While a folder is uploaded it has a mark, `uploading.json`; when every file is there, with its size and checksum, its
manifest is written, and the mark removed. `config.json` is the last file before that, so that other programs do not
take an incomplete folder for a model. An interrupted upload or download is resumed.
"""

import base64
import errno
import functools
import hashlib
import json
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

import filelock
import fsspec
import google_crc32c
from etils import epath

from limba.config import InputError, RestartError, StorageError, untrusted_files
from limba.storage import lease, servers
from limba.storage.failures import T, for_each, is_passing, short_reason, twice
from limba.storage.files import is_local, private_folder, read_bytes

FILE = "manifest.json"
FORMAT = 1
CHUNK_BYTES = 1 << 24
NUM_THREADS = 8
SMALL_BYTES = 1 << 20  # of a checkpoint's files with blake2b: an OCDBT store's without arrays in them are smaller
DIGEST_BYTES = 16  # of blake2b

MARK = "uploading.json"  # in a folder whose upload has not ended
LAST = "config.json"
NUM_TRANSFERS = 4
NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
REQUEST_SECONDS = 120.0  # for an answer without a file's content
SLOWEST_BYTES_PER_SECOND = 1 << 18
CACHE = "~/.cache/limba/folders"
logger = logging.getLogger(__name__)

Info = Mapping[str, Any]  # what a store says of an object
Entry = tuple[int, str]  # bytes, and crc32c as 8 hex digits or blake2b as 32


def exists(directory: str | epath.Path) -> bool:
    """Returns whether a directory has a manifest."""
    return (epath.Path(directory) / FILE).exists()


def own_checksum(directory: epath.Path) -> str | None:
    """Returns the crc32c of a directory's manifest file, which tells its content from any other; None without one."""
    return entry(directory / FILE)[1] if exists(directory) else None


def entries(directory: str | epath.Path, wanted: Callable[[str], bool] = lambda name: True) -> dict[str, Entry]:
    """Returns relative path -> (size, checksum) of a directory's files whose path is `wanted`, read now."""
    root = epath.Path(directory)
    chosen = [name for name in sorted(names(root)) if name != FILE and wanted(name)]
    read = _map(lambda name: entry(root / name), chosen)
    return dict(zip(chosen, read, strict=True))


def step_entries(directory: str | epath.Path, wanted: Callable[[str], bool] = lambda name: True) -> dict[str, Entry]:
    """Returns what `entries` does, for a checkpoint that was just written: small files have blake2b.

    In a bucket that gives the checksums of its objects, a large file is not read again.
    """
    root = epath.Path(directory)
    listed: dict[str, Entry | None] = {}  # None for a file that must be read
    if "://" in str(root):
        for name, info in _Bucket(str(root)).listed().items():
            checksum = _checksum(info)
            listed[name] = None
            if checksum is not None and info["size"] > SMALL_BYTES:
                listed[name] = (info["size"], checksum)
    else:
        listed = dict.fromkeys(names(root))

    def step_entry(name: str) -> Entry:
        path = root / name
        return listed[name] or _digest(path, path.stat().length <= SMALL_BYTES)

    chosen = [name for name in sorted(listed) if name != FILE and wanted(name)]
    return dict(zip(chosen, _map(step_entry, chosen), strict=True))


def text_of(
    directory: str | epath.Path,
    known: Mapping[str, Entry] | None = None,
    step: int | None = None,
    wanted: Callable[[str], bool] = lambda name: True,
) -> str:
    """Returns the manifest of a directory's files whose path is `wanted`, as a file's text.

    The entries of `known` are taken as they are. `step` is a checkpoint's. Only the manifest may be written to the
    directory afterwards.
    """
    known = known or {}
    read = entries if step is None else step_entries
    files = {**known, **read(directory, lambda name: name not in known and wanted(name))}
    return text(files, step)


def text(files: Mapping[str, Entry], step: int | None = None) -> str:
    """Returns a manifest of these entries, as a file's text."""
    content: dict[str, object] = {"format": FORMAT, "files": files, "crc32c": _own_checksum(files)}
    if step is not None:
        content["step"] = step
    return json.dumps(content, indent=0, sort_keys=True) + "\n"


def check(directory: str | epath.Path, how: str = "checksums", part: tuple[int, int] = (0, 1)) -> list[str]:
    """Returns a short sentence for each file that is not as the manifest says; [] if the directory is whole.

    `how` is 'checksums', or 'sizes', which reads no file but the manifest. `part` (number, of how many) is this
    reader's share of the checksums. Raises what the file system raises if it cannot be read at the moment
    (`failures.is_passing`).
    """
    root = epath.Path(directory)
    try:
        files, step = _read(root)
    except ValueError as error:
        return [str(error)]
    if root.name.isdigit() and step not in (None, int(root.name)):
        return [f"{FILE} belongs to step {step}"]
    sizes = dict(zip(files, _map(lambda name: _size(root / name), files), strict=True))
    sentences = []
    for name, (size, _) in files.items():
        size_now = sizes[name]
        if size_now is None:
            sentences.append(f"{name} is missing")
        elif size_now != size:
            sentences.append(f"{name} has {size_now:,} bytes and had {size:,} when it was saved")
    if how == "sizes" or sentences:
        return sentences
    number, count = part
    names_of_part = sorted(files)[number::count]

    def changed(name: str) -> str | None:
        _, saved = files[name]
        is_blake2b = len(saved) == 2 * DIGEST_BYTES
        try:
            _, checksum = twice(lambda: _digest(root / name, is_blake2b))
        except Exception as error:
            if is_passing(error):
                raise
            return f"{name} cannot be read ({short_reason(error)})"
        if checksum == saved:
            return None
        return f"{name} has other bytes than when it was saved"

    return [sentence for sentence in _map(changed, names_of_part) if sentence is not None]


def size_of(directory: str | epath.Path) -> tuple[int, int]:
    """Returns (number of files, their bytes) by the manifest; ValueError if that is damaged."""
    files, _ = _read(epath.Path(directory))
    return len(files), sum(size for size, _ in files.values())


def _read(root: epath.Path) -> tuple[dict[str, Entry], int | None]:
    """Returns (entries, step or None) of the manifest; ValueError, with a short sentence, if it is bad."""
    try:
        content = json.loads(twice(lambda: read_bytes(root / FILE)))
        files = {str(name): (int(size), str(checksum)) for name, (size, checksum) in content["files"].items()}
        is_good = content["format"] == FORMAT and content["crc32c"] == _own_checksum(files)
    except FileNotFoundError as error:
        raise ValueError(f"{FILE} is missing") from error
    except Exception as error:
        if is_passing(error):
            raise
        what = f"cannot be read ({short_reason(error)})" if isinstance(error, OSError) else "is damaged"
        raise ValueError(f"{FILE} {what}") from error
    if not is_good or not all(map(_is_inside, files)):
        raise ValueError(f"{FILE} is damaged")
    return files, content.get("step")


def _own_checksum(files: Mapping[str, Entry]) -> str:
    content = json.dumps({name: list(files[name]) for name in sorted(files)})
    return f"{google_crc32c.value(content.encode()):08x}"


def _is_inside(name: str) -> bool:
    """Returns whether a file's name stays in its directory, whoever wrote the manifest."""
    return bool(name) and not name.startswith("/") and "\\" not in name and ".." not in PurePosixPath(name).parts


def names(folder: epath.Path, inside: str = "") -> Iterator[str]:
    """Yields the relative paths of all files."""
    for child in folder.iterdir():
        if child.is_dir():
            yield from names(child, f"{inside}{child.name}/")
        else:
            yield f"{inside}{child.name}"


def _size(path: epath.Path) -> int | None:
    try:
        return path.stat().length
    except (FileNotFoundError, NotADirectoryError):
        return None


def entry(path: epath.Path | Path) -> Entry:
    """Returns (size, crc32c) of a file, read now."""
    return _digest(path, is_blake2b=False)


def _digest(path: epath.Path | Path, is_blake2b: bool) -> Entry:
    """Returns (size, checksum) of a file, read now."""
    size = 0
    crc32c = google_crc32c.Checksum()
    blake2b = hashlib.blake2b(digest_size=DIGEST_BYTES)
    checksum = blake2b if is_blake2b else crc32c
    is_remote = "://" in os.fspath(path)
    with path.open("rb") if is_remote else untrusted_files.open_regular(path) as file:
        while chunk := file.read(CHUNK_BYTES):
            size += len(chunk)
            checksum.update(chunk)
    return size, blake2b.hexdigest() if is_blake2b else crc32c.hexdigest().decode()


def _map(call: Callable[[str], T], names: Iterable[str]) -> list[T]:
    return for_each(call, names, NUM_THREADS)


class Uploaded(NamedTuple):
    """What an upload has left in the bucket: the number of files, their bytes, and the bytes sent by this call."""

    files: int
    bytes: int
    sent_bytes: int


def upload(folder: str | os.PathLike[str], address: str, *, replace: bool = False) -> Uploaded:
    """Copies a finished local folder to an address such as gs://bucket/name; returns what is there then.

    Files that are there with the same size and checksum are not sent again, so the same call resumes an interrupted
    upload, and after the end it does nothing. Each file is checked after it was sent. With `replace` a folder that was
    uploaded before is replaced. Raises InputError if the address holds anything else, or if another process uploads
    there; StorageError if the bucket fails for good; RestartError if another process has begun to upload meanwhile.
    """
    bucket = _Bucket(address)
    files = entries(os.fspath(folder), lambda name: name != MARK)
    if not files:
        raise InputError(f"{folder} has no files; nothing is uploaded to {address}.")
    whole = sum(size for size, _ in files.values())
    written = text(files)
    with bucket.failures("written", folder), lease.held(address, beside=True) as mine:
        there = bucket.listed()
        if FILE in there and bucket.read(FILE) == written.encode():
            return Uploaded(len(files), whole, 0)
        if not replace:
            _check_free(address, there, files)
        if MARK not in there:
            bucket.write(MARK, b"This folder is being uploaded. The same command resumes it.\n")
        if FILE in there:
            bucket.remove(FILE)
        missing = [name for name, entry in files.items() if not _is_same(there.get(name), entry)]
        missing.sort(key=lambda name: (name == LAST, -files[name][0]))
        first = [name for name in missing if name != LAST]
        with ThreadPoolExecutor(NUM_TRANSFERS) as pool:
            list(pool.map(lambda name: bucket.put(Path(folder) / name, name, files[name]), first))
        mine.check()
        for name in missing[len(first) :]:
            bucket.put(Path(folder) / name, name, files[name])
        for name in set(there) - set(files) - {MARK, FILE}:  # of the folder that is replaced
            bucket.remove(name)
        bucket.write(FILE, written.encode())
        bucket.remove(MARK)
    return Uploaded(len(files), whole, sum(files[name][0] for name in missing))


def read_file(address: str, name: str) -> bytes | None:
    """Returns a file of a folder at an address; None if it is not there. Raises what the bucket's client raises."""
    return _Bucket(address).read(name)


def download(address: str, wanted: Callable[[Sequence[str]], Sequence[str]] = lambda names: names) -> Path | None:
    """Returns a local copy of a folder at an address, kept in the user's cache until it changes; None if not there.

    `wanted` chooses among the names of its files; those in folders below it are not copied. Sizes are checked, and
    checksums where the bucket knows them. An interrupted download is resumed. Raises InputError if an upload has not
    ended; StorageError if the bucket or the cache fails, or the files change meanwhile.
    """
    bucket = _Bucket(address)
    cache = Path(os.path.expanduser(CACHE))
    with bucket.failures("read", cache):
        there = bucket.listed(recursive=False)
        if MARK in there and FILE not in there:
            raise InputError(f"{address} is being uploaded, or its upload was interrupted; repeat the upload first.")
        names = [name for name in wanted(sorted(there)) if name not in (MARK, FILE)]
        if not names:
            return None
        fields = ("size", "generation", "etag", "ETag", "mtime")  # a store has some of them
        rows = [(name, *(str(there[name].get(field)) for field in fields)) for name in sorted(names)]
        digest = hashlib.blake2b(repr((address, rows)).encode(), digest_size=12).hexdigest()
        cache.mkdir(parents=True, exist_ok=True)
        final = cache / digest
        partial = cache / f"{digest}.partial"
        with _locked(cache / f"{digest}.lock"):
            if not final.exists():
                private_folder(partial)
                with ThreadPoolExecutor(NUM_TRANSFERS) as pool:
                    list(pool.map(lambda name: bucket.get(name, partial / name, there[name]), names))
                os.replace(partial, final)
    return final


def _check_free(address: str, there: Mapping[str, Info], files: Mapping[str, Entry]) -> None:
    """Raises InputError if an address holds what neither this upload nor an interrupted one has left there."""
    if MARK in there:
        return
    other = next((name for name in sorted(there) if not _is_same(there[name], files.get(name))), None)
    if other is not None:
        raise InputError(f"{address} holds {other}, which is not of this folder; give another address.")


def _is_same(info: Info | None, entry: Entry | None) -> bool:
    """Returns whether a listed object has a file's size and checksum; False where the bucket knows no checksum."""
    return info is not None and entry is not None and (info.get("size"), _checksum(info)) == entry


def _checksum(info: Info) -> str | None:
    """Returns an object's crc32c as a manifest writes it; None where the store does not give it."""
    encoded = info.get("crc32c")
    return base64.b64decode(encoded).hex() if isinstance(encoded, str) else None


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Lets one process of this machine at a time into the context."""
    lock = filelock.FileLock(path)
    try:
        lock.acquire(blocking=False)
    except filelock.Timeout:
        logger.warning("Another process downloads the same folder; waiting for its end.")
        lock.acquire()  # the kernel frees it when that process ends, however it does
    try:
        yield
    finally:
        lock.release()


class _Bucket:
    """A folder at an address: its files by their relative names, each request within a time limit."""

    def __init__(self, address: str):
        self.address = address
        servers.check(address)
        try:
            self._system, path = fsspec.core.url_to_fs(address)
        except (ValueError, ImportError, OSError) as error:
            raise InputError(f"{address} cannot be used ({short_reason(error)}); check the address.") from error
        self._root = path.rstrip("/")
        if is_local(self._system) or address.startswith(("hf://", "http://", "https://")):
            raise InputError(f"{address} is not in a bucket; give an address such as gs://bucket/name.")

    @contextmanager
    def failures(self, what: str, local: str | os.PathLike[str]) -> Iterator[None]:
        """Makes a StorageError of what the bucket's client raises, or this machine's file system.

        `local` is the folder on this machine that is written to or read.
        """
        try:
            yield
        except (InputError, StorageError, RestartError):
            raise
        except Exception as error:
            # A bucket's client names no local file, and runs out of no space.
            if isinstance(error, OSError) and (error.filename or error.errno in NO_SPACE):
                raise StorageError(
                    f"{error.filename or os.fspath(local)} on this machine cannot be used ({short_reason(error)}), so"
                    f" {self.address} cannot be {what}; make room or give rights there, and repeat the command, which"
                    " resumes."
                ) from error
            raise StorageError(
                f"{self.address} cannot be {what} ({short_reason(error)}); check the network and the permissions, and"
                " repeat the command, which resumes."
            ) from error

    def _ask(self, method: str, *arguments: object, seconds: float = REQUEST_SECONDS, **options: object) -> Any:
        """Returns the answer of the bucket's client, which repeats a request that fails, but not one that we end."""
        limit = {"timeout": seconds} if getattr(self._system, "async_impl", False) else {}
        call = functools.partial(getattr(self._system, method), *arguments, **options, **limit)
        try:
            return call()
        except fsspec.exceptions.FSTimeoutError:
            return call()

    def listed(self, recursive: bool = True) -> dict[str, Info]:
        """Returns relative name -> what the bucket says of the object, of those in folders too if `recursive`."""
        self._system.invalidate_cache()
        try:
            if recursive:
                infos = [*self._ask("find", self._root, detail=True).values()]
            else:
                infos = [info for info in self._ask("ls", self._root, detail=True) if info["type"] == "file"]
        except FileNotFoundError:
            return {}
        named = {info["name"].removeprefix(f"{self._root}/"): info for info in infos}
        return {name: info for name, info in named.items() if name and name != self._root}

    def read(self, name: str) -> bytes | None:
        try:
            return self._ask("cat_file", f"{self._root}/{name}")
        except FileNotFoundError:
            return None

    def write(self, name: str, content: bytes) -> None:
        self._ask("pipe_file", f"{self._root}/{name}", content)

    def remove(self, name: str) -> None:
        with suppress(FileNotFoundError):  # an earlier attempt's answer was lost
            self._ask("rm_file", f"{self._root}/{name}")

    def put(self, file: Path, name: str, entry: Entry) -> None:
        """Sends one file, and compares what the bucket has got with it."""
        path = f"{self._root}/{name}"
        size, checksum = entry
        self._ask("put_file", str(file), path, seconds=REQUEST_SECONDS + size / SLOWEST_BYTES_PER_SECOND)
        self._system.invalidate_cache()
        info = self._ask("info", path)
        if info.get("size") != size or _checksum(info) not in (None, checksum):
            raise StorageError(f"{self.address}/{name} has other bytes than {file}; repeat the command, which resumes.")

    def get(self, name: str, file: Path, info: Info) -> None:
        """Receives one file, unless it is there whole."""
        size = info.get("size")
        checksum = _checksum(info)
        if file.exists() and checksum and entry(file) == (size, checksum):
            return
        file.parent.mkdir(parents=True, exist_ok=True)
        unfinished = file.with_name(f".{file.name}.tmp")
        seconds = REQUEST_SECONDS + (size or 0) / SLOWEST_BYTES_PER_SECOND
        self._ask("get_file", f"{self._root}/{name}", str(unfinished), seconds=seconds)
        size_got, checksum_got = entry(unfinished)
        if size_got != size or checksum not in (None, checksum_got):
            raise StorageError(f"{self.address}/{name} came with other bytes than the bucket has; repeat the command.")
        os.replace(unfinished, file)
