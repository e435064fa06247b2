"""`limba results fetch`: the files of a suite, from where they are published, each with its licence and its size."""

from __future__ import annotations

import contextlib
import gzip
import http.client
import sys
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path

import huggingface_hub
from huggingface_hub.errors import HTTPError  # pyright: ignore[reportPrivateImportUsage]

from limba.api import Parser, hub_token, size_text, write_whole
from limba.config import InputError, kinds
from limba.config.errors import reason_of
from limba.tools.results import files
from limba.tools.results.suites import Suite, read_suite

ABOUT = """Says what each task of a suite needs, from where it is downloaded, under which licence and how large it is;
asks, and downloads it. A file that is there stays. What a suite names as hub:user/name/path stays in the hub's cache.

    limba results fetch ro --data=data/ro"""
SECONDS = 60.0  # for an answer


def run(argv: Sequence[str]) -> None:
    """Downloads the files of the suite that the flags name; raises InputError."""
    parser = Parser("results fetch", ABOUT)
    parser.add_object("suite", "SUITE", "a name of gin/suites/, or a gin file")
    parser.add_argument("--data", default=".", metavar="FOLDER", help="where the files go; default: the current one")
    parser.add_argument("--yes", action="store_true", help="downloads without asking")
    given = parser.parse(argv)
    if not given.suite:
        raise InputError("No suite is given; write limba results fetch SUITE --data=FOLDER.")
    kinds.check_local(given.data, "--data")
    suite, folder = read_suite(given.suite), Path(given.data).expanduser()
    wanted = _wanted(suite, given.data)
    if not wanted:
        print(f"Nothing is downloaded: {given.data} has the files of {suite.name}, or nobody publishes them.")
        return
    if not given.yes and not _agreed(f"Download {len(wanted)} files to {given.data}? [y/N] "):
        raise InputError("Nothing was downloaded; answer y, or add --yes.")
    for name, address in wanted.items():
        content = _content(address)
        if files.on_hub(given.data, name):
            print(f"{address}: {size_text(len(content))}, in the cache of the hub's library", flush=True)
            continue
        content = gzip.compress(content, mtime=0) if name.endswith(".gz") and not address.endswith(".gz") else content
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        write_whole(str(folder / name), content)
        print(f"{folder / name}: {size_text(len(content))}", flush=True)


def _wanted(suite: Suite, folder: str) -> dict[str, str]:
    """Prints what each task needs; returns the files that are to be downloaded, and from where."""
    found = dict[str, str]()
    for task in suite.tasks:
        print(f"{task.name}:")
        for name in dict.fromkeys(task.files):
            if files.found_at(folder, name):
                print(f"  {name}: is there")
            elif file := files.on_hub(folder, name):
                print(f"  {name}: {size_text(_size(file.address))} from {file.address}, {_licence(file)}")
                found[name] = file.address
            elif name not in suite.sources:
                print(f"  {name}: not downloaded; the comments of the suite say how it is made, or where it is")
            else:
                address, licence = suite.sources[name]
                print(f"  {name}: {size_text(_size(address))} from {address}, {licence}")
                found[name] = address
    return found


def _agreed(question: str) -> bool:
    return sys.stdin.isatty() and input(question).strip().lower() in ("y", "yes")


@contextlib.contextmanager
def _asking(address: str) -> Iterator[None]:
    """Raises InputError if a server does not answer, or breaks off."""
    try:
        yield
    except (OSError, ValueError, RuntimeError, HTTPError, http.client.HTTPException) as error:  # RuntimeError: Xet's
        raise InputError(
            f"{address} cannot be downloaded ({reason_of(error)}); try again, or copy the file from elsewhere."
        ) from None


def _size(address: str) -> int:
    with _asking(address):
        if file := files.on_hub("", address):
            place = huggingface_hub.hf_hub_url(file.name, file.path, revision=file.revision, repo_type="dataset")
            return huggingface_hub.get_hf_file_metadata(place, token=hub_token(), timeout=SECONDS).size or 0
        with urllib.request.urlopen(urllib.request.Request(address, method="HEAD"), timeout=SECONDS) as reply:
            return int(reply.headers.get("Content-Length") or 0)


def _licence(file: files.HubFile) -> str:
    with _asking(file.address):
        api = huggingface_hub.HfApi(token=hub_token())
        card = api.dataset_info(file.name, timeout=SECONDS).card_data  # other revisions may have none
        return str((card and card.license) or "its card names no licence")


def _content(address: str) -> bytes:
    with _asking(address):
        if file := files.on_hub("", address):
            get, token = huggingface_hub.hf_hub_download, hub_token()
            path = get(file.name, file.path, revision=file.revision, repo_type="dataset", token=token)
            return Path(path).read_bytes()
        with urllib.request.urlopen(address, timeout=SECONDS) as reply:
            return reply.read()
