"""hosts.json of a run directory: how each process of the run is doing."""

import contextlib
import json
import os
import threading
import time
from collections.abc import Iterator

from limba.sharding.agreement import service
from limba.sharding.others import reports_of_all
from limba.storage.files import write_whole

# Between two writes, to a disk and to a bucket.
FILE_SECONDS = 5.0
BUCKET_SECONDS = 30.0


@contextlib.contextmanager
def written(model_dir: str) -> Iterator[None]:
    """Writes what the processes report to hosts.json every few seconds inside; no error ends that."""
    every = BUCKET_SECONDS if "://" in model_dir else FILE_SECONDS
    path = f"{model_dir.rstrip('/')}/hosts.json"
    over = threading.Event()
    client = service()
    newest: dict[int, tuple[str, float]] = {}  # the newest report of each process, and when it was new here

    def write() -> None:
        while not over.wait(every):
            with contextlib.suppress(Exception):  # the lease, which is written as often, says what is wrong
                now = time.monotonic()
                for process, report in reports_of_all(client).items():
                    if process not in newest or newest[process][0] != report:
                        newest[process] = report, now
                processes = [
                    {"process": process, "silent_seconds": round(now - since, 1), **json.loads(report)}
                    for process, (report, since) in sorted(newest.items())
                ]
                record = {"format": 1, "written_every_seconds": every, "pid": os.getpid(), "processes": processes}
                write_whole(path, json.dumps(record) + "\n")

    thread = threading.Thread(target=write, daemon=True, name="hosts")
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(1.0)
