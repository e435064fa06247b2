"""Real processes that hold, lose and contend for leases, many rounds of them, for tests/storage/test_lease_rounds.py.

`python -m tests.storage.lease_rounds FOLDER ROUNDS SECONDS` prints how often each promise was kept. Under strace, with
`-e inject=renameat2:error=EINVAL`, the file system is one that cannot swap two names, as NFS, SMB and CephFS.
"""

import collections
import errno
import json
import multiprocessing
import os
import signal
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from pathlib import Path

# A holder is forked from a server that has imported this module.
CONTEXT = multiprocessing.get_context("forkserver")
AT_ONCE = 10  # rounds


def hold(directory: str, seconds: float, swaps: bool, tell: Connection) -> None:
    """Holds the lease of a directory: tells what became of that, and answers each question whether it may commit."""
    import filelock._util

    from limba.config import InputError, RestartError
    from limba.storage import lease_places
    from limba.storage.lease import held

    lease_places.LEASE_SECONDS = seconds
    lease_places.BEAT_SECONDS = seconds * 0.4
    sys.stderr = open(os.devnull, "w")
    if not swaps:  # what the kernel answers for NFS
        filelock._util._rename_call = lambda: (lambda source, target, flags: errno.EINVAL, 2)  # pyright: ignore
    tell.send("ready")
    tell.recv()
    try:
        with held(directory) as lease:
            tell.send("holds")
            while tell.recv() == "commit":
                try:
                    lease.confirm()
                    tell.send("commits")
                except RestartError:
                    tell.send("commits nothing")
    except InputError as error:
        tell.send("refused" if "Another process uses" in str(error) else str(error))
    except EOFError:
        pass


class Holder:
    """A process that tries to hold a directory's lease."""

    def __init__(self, directory: Path, seconds: float, swaps: bool):
        self._pipe, theirs = CONTEXT.Pipe()
        self._process = CONTEXT.Process(target=hold, args=(str(directory), seconds, swaps, theirs))
        self._process.start()
        theirs.close()
        assert self.answer() == "ready"

    def go(self) -> None:
        """Lets it try now."""
        self._pipe.send("go")

    def answer(self) -> str:
        """Returns what it tells next."""
        return self._pipe.recv()

    def commits(self) -> str:
        """Asks it to commit; returns what it did."""
        self._pipe.send("commit")
        return self.answer()

    def send(self, number: signal.Signals) -> None:
        """Sends it a signal."""
        assert self._process.pid is not None
        os.kill(self._process.pid, number)

    def kill(self) -> None:
        """Kills it, and waits for its end."""
        self._process.kill()
        self._process.join()


def move_to_another_machine(file: Path) -> None:
    """Makes a lease one of the same process on a machine of the same name: of another boot."""
    text = file.read_text()
    (line,) = [line for line in text.splitlines() if line.startswith("start=")]
    start = int(line.removeprefix("start="))
    with file.open("r+") as there:
        there.write(text.replace(line, f"start={start ^ (1 << 100)}"))


def one_round(directory: Path, seconds: float, swaps: bool) -> dict[str, bool]:
    """Returns promise -> whether it was kept, in a directory that is not there yet."""
    kept = {}
    holders = list[Holder]()

    def start(count: int) -> list[Holder]:
        """Starts so many at the same moment."""
        started = [Holder(directory, seconds, swaps) for _ in range(count)]
        holders.extend(started)
        for one in started:
            one.go()
        return started

    both = start(2)
    kept["of two starts at once one holds"] = sorted(one.answer() for one in both) == ["holds", "refused"]
    for one in both:
        one.kill()
    (first,) = start(1)
    kept["after SIGKILL the next start holds"] = first.answer() == "holds"
    first.send(signal.SIGSTOP)
    (second,) = start(1)
    kept["a stopped holder of this machine is not replaced"] = second.answer() == "refused"
    move_to_another_machine(directory / "lease")
    several = start(3)
    answers = [one.answer() for one in several]
    kept["of three one takes over from a silent holder elsewhere"] = sorted(answers) == ["holds", "refused", "refused"]
    first.send(signal.SIGCONT)
    kept["who stood still past its lease commits nothing"] = first.commits() == "commits nothing"
    if "holds" in answers:
        kept["who took over commits"] = several[answers.index("holds")].commits() == "commits"
    for one in holders:
        one.kill()
    return kept


def rounds(folder: Path, count: int, seconds: float, swaps: bool = True) -> dict[str, int]:
    """Returns promise -> in how many of the rounds it was kept."""
    CONTEXT.set_forkserver_preload([__name__, "limba.storage.lease"])
    one: Callable[[int], dict[str, bool]] = lambda number: one_round(folder / str(number), seconds, swaps)
    total = collections.Counter[str]()
    with ThreadPoolExecutor(AT_ONCE) as pool:
        for kept in pool.map(one, range(count)):
            total.update({promise: int(is_kept) for promise, is_kept in kept.items()})
    return dict(total)


if __name__ == "__main__":
    print(json.dumps(rounds(Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]))))
