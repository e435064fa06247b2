"""The roll call: every process of a run reports to process 0 before jax's service joins them.

jax's service ends all processes when one has not come in time, and does not say which. So before it starts, process 0
answers HTTP at the service's address. Each process reports its number there, again and again, and is told to wait, to
go, or what is wrong. Two processes with one number, or with different counts of processes, are an error at once.
"""

import contextlib
import http.client
import json
import secrets
import socket
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple
from urllib.parse import quote, unquote

from limba.config import InputError, RestartError
from limba.sharding import clusters, host_names, ports
from limba.sharding.agreement import named
from limba.sharding.clusters import Membership

NAMING_SECONDS = 30.0  # between two lines that name who is missing
FORGOTTEN_SECONDS = 20.0  # without a report, after which a process counts as gone again
GO_SECONDS = 60.0  # in which all processes hear that they may go
TOLD_SECONDS = 3.0  # in which processes that come a moment after an error still hear it
ANSWER_SECONDS = 10.0  # for one report and its answer
MOST_REPORTS_A_SECOND = 200
LEAST_PAUSE_SECONDS = 0.1  # between two reports of a process
LOOK_SECONDS = 0.05  # between two looks of process 0 at who has come


class Verdict(NamedTuple):
    """What a process is told: its `kind` is "wait", "go" or the name of an error, which has a sentence."""

    kind: str
    sentence: str = ""


WAIT = Verdict("wait")
GO = Verdict("go")
KINDS = (WAIT.kind, GO.kind, InputError.__name__, RestartError.__name__)
LONGEST_ANSWER = 10_000  # bytes; whatever else listens at the address may write for ever


def wait_for_all(membership: Membership, bind: str, seconds: float, own_address: str = "") -> None:
    """Returns when all processes of a run have come; each of them calls it, with its own `membership`.

    Process 0 listens at `bind`, HOST:PORT or :PORT. Every 30 seconds a line on stderr names who is missing.
    `own_address` is where the others will look for this process, if they do not learn it from jax's service. Raises
    RestartError after `seconds`, and InputError if process 0 cannot listen, if the processes contradict each other, or
    if processes on other machines could not reach one at its address.
    """
    if membership.index == 0:
        verdict = _call_the_roll(membership, bind, seconds, own_address)
    else:
        verdict = _report(membership, seconds, own_address)
    if verdict.kind == RestartError.__name__:
        raise RestartError(verdict.sentence)
    if verdict != GO:
        raise InputError(verdict.sentence)


class _Report(NamedTuple):
    """What a process says of itself."""

    index: int
    count: int
    token: str  # that the process has drawn: two processes with one number differ in it
    host: str
    own_address: str  # at which the others will look for it; "" if that is not by its host's name

    def path(self) -> str:
        """Returns the report as the path of a request."""
        return f"/{self.index}/{self.count}/{self.token}/{quote(self.host)}/{quote(self.own_address)}"

    @staticmethod
    def of_path(path: str) -> "_Report":
        """Returns the report in a request; ValueError if it holds none."""
        index, count, token, host, own_address = path.split("/")[1:]
        return _Report(int(index), int(count), token, unquote(host), unquote(own_address))


class _LastReport(NamedTuple):
    """The newest report of the process that has a number."""

    host: str
    token: str
    reports: int  # of this process so far
    received: float  # by the monotonic clock of process 0


class _Roll:
    """Which processes have reported to process 0, and what they are told. Threads of the server share it."""

    def __init__(self, count: int, own_address: str):
        self._count = count
        self._own_address = own_address  # of process 0
        self._lock = threading.Lock()
        self._verdict = WAIT
        self._last: dict[int, _LastReport] = {}
        self._replaced: set[str] = set()  # tokens of processes after which another one came with the same number
        self._told: set[str] = set()  # tokens of processes that have heard another verdict than WAIT

    @property
    def verdict(self) -> Verdict:
        return self._verdict

    def decide(self, verdict: Verdict) -> None:
        """Tells all processes this from now on, unless something is decided already."""
        with self._lock:
            if self._verdict == WAIT:
                self._verdict = verdict

    def report(self, report: _Report, peer: tuple, reached_at: str) -> Verdict:
        """Enters a report; returns what the process is told.

        `peer` is the connection's other end, and `reached_at` the address at which it has reached process 0.
        """
        with self._lock:
            if self._verdict == WAIT:
                self._verdict = self._enter(report)
            if self._verdict == WAIT:
                self._verdict = self._judge_addresses(report, peer, reached_at)
            if self._verdict != WAIT:
                self._told.add(report.token)
            return self._verdict

    def _enter(self, report: _Report) -> Verdict:
        last = self._last.get(report.index)
        reports = 1
        if last is not None and last.token == report.token:
            reports = last.reports + 1
        elif last is not None:
            # The process was started again, or there are two with this number: then the first will report once more.
            self._replaced.add(last.token)
        self._last[report.index] = _LastReport(report.host, report.token, reports, time.monotonic())
        if report.count != self._count:
            return Verdict(
                InputError.__name__,
                f"Process {report.index} (host {report.host}) is one of {report.count} processes, and process 0 one of"
                f" {self._count}; start the same command on every worker, with the same number of processes.",
            )
        if report.index == 0 or report.token in self._replaced:
            other_host = socket.gethostname() if last is None else last.host  # process 0 does not report to itself
            return Verdict(
                InputError.__name__,
                f"Two processes say that they are process {report.index} of {report.count}, on the hosts {other_host}"
                f" and {report.host}; give each its own PROCESS_ID.",
            )
        return WAIT

    def _judge_addresses(self, report: _Report, peer: tuple, reached_at: str) -> Verdict:
        """Returns WAIT if process 0 and this one can find each other by the names of their machines, else an error.

        On Debian and Ubuntu a machine's own name usually stands for 127.0.1.1. Gloo would tell that to the others,
        which would look for it on themselves, for minutes. Processes of one machine do find each other there.
        """
        is_its_loopback = host_names.is_loopback(report.own_address)
        is_loopback_of_first = host_names.is_loopback(self._own_address)
        if not (is_its_loopback or is_loopback_of_first) or host_names.is_here(peer):
            return WAIT
        if is_its_loopback:
            return _unreachable(report.index, report.host, report.own_address, host_names.as_written(peer[0]))
        return _unreachable(0, socket.gethostname(), self._own_address, reached_at)

    def missing(self) -> list[int]:
        """Returns the numbers of the processes that have not come, or have left.

        One report is not enough: the process may have been killed after it, and started again.
        """
        with self._lock:
            earliest = time.monotonic() - FORGOTTEN_SECONDS
            present = {index for index, last in self._last.items() if last.reports > 1 and last.received > earliest}
        return [index for index in range(1, self._count) if index not in present]

    def all_are_told(self) -> bool:
        """Returns whether every other process has heard the verdict."""
        with self._lock:
            return len(self._told) >= self._count - 1


def _unreachable(index: int, host: str, own_address: str, address: str) -> Verdict:
    return Verdict(
        InputError.__name__,
        f"The name of the machine of process {index}, {host}, stands for {own_address} there, where no other machine"
        f" reaches it, and processes on CPUs find one another by these names; give it the line '{address} {host}' in"
        " /etc/hosts of that machine instead.",
    )


def _call_the_roll(membership: Membership, bind: str, seconds: float, own_address: str) -> Verdict:
    """Answers the other processes until all have come, in process 0; returns the verdict when they have heard it."""
    roll = _Roll(membership.count, own_address)
    with _answering(roll, bind, membership):
        _wait_for_reports(roll, membership, seconds)
        verdict = roll.verdict
        telling_seconds = GO_SECONDS if verdict == GO else TOLD_SECONDS
        end = time.monotonic() + telling_seconds
        while not roll.all_are_told() and time.monotonic() < end:
            time.sleep(LOOK_SECONDS)
    return verdict


def _wait_for_reports(roll: _Roll, membership: Membership, seconds: float) -> None:
    """Returns when the roll has a verdict: all have come, something is wrong, or the time is over."""
    began = time.monotonic()
    named_at = began  # when a line last said who is missing
    while roll.verdict == WAIT:
        missing = roll.missing()
        now = time.monotonic()
        if not missing:
            roll.decide(GO)
        elif now > began + seconds:
            roll.decide(_late(missing, membership, seconds))
        elif now > named_at + NAMING_SECONDS:
            named_at = now
            _say(
                f"Waiting for {named(missing)} of {membership.count} to join at {membership.address}"
                f" ({now - began:.0f} s of {seconds:,.0f} s)."
            )
        else:
            time.sleep(min(LOOK_SECONDS, seconds / 4))


def _late(missing: Sequence[int], membership: Membership, seconds: float) -> Verdict:
    processes = named(missing)
    verb = "has" if len(missing) == 1 else "have"
    return Verdict(
        RestartError.__name__,
        f"{processes[0].upper()}{processes[1:]} of {membership.count} {verb} not joined within {seconds:.0f} s"
        " (JOIN_TIMEOUT_SECONDS); start the command on every worker, each with its own PROCESS_ID from 0 to"
        f" {membership.count - 1}.",
    )


class _Server(ThreadingHTTPServer):
    def handle_error(self, request: object, client_address: object) -> None:
        """Says nothing about a process that was killed in the middle of its report."""


@contextlib.contextmanager
def _answering(roll: _Roll, bind: str, membership: Membership) -> Iterator[None]:
    """Answers reports, each the path of a GET request, by threads of a server inside."""

    class Answer(BaseHTTPRequestHandler):
        timeout = ANSWER_SECONDS

        def do_GET(self) -> None:
            try:
                report = _Report.of_path(self.path)
            except ValueError:  # something else on the network, which gets no answer
                return
            reached_at = host_names.as_written(self.connection.getsockname()[0])
            verdict = roll.report(report, self.client_address, reached_at)
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps(verdict).encode())

        def log_message(self, format: str, *args: object) -> None:
            """Prints no line for each request."""

    to_change = clusters.PORT
    if membership.found_by == clusters.EXPLICIT[0]:
        to_change = f"the port in COORDINATOR_ADDRESS ({membership.address})"
    with ports.listen(bind, to_change) as listening:
        server = _Server(("", 0), Answer, bind_and_activate=False)
        server.socket.close()
        server.socket = listening
        thread = threading.Thread(target=server.serve_forever, args=[LOOK_SECONDS], daemon=True)
        thread.start()
        try:
            yield
        finally:
            server.shutdown()
            thread.join()


def _report(membership: Membership, seconds: float, own_address: str) -> Verdict:
    """Reports to process 0 again and again; returns its verdict, or that it has given none within `seconds`."""
    began = time.monotonic()
    named_at = began  # when process 0 last answered, or a line said that it does not
    give_up_at = began + seconds
    token = secrets.token_hex(8)
    report = _Report(membership.index, membership.count, token, socket.gethostname(), own_address)
    address = f"http://{membership.address}{report.path()}"
    has_answered = False
    # All processes together must not report more often than process 0 can answer.
    pause = max(LEAST_PAUSE_SECONDS, membership.count / MOST_REPORTS_A_SECOND)
    pause = min(pause, seconds / 4)
    now = began
    while now < give_up_at:
        verdict = _answer(address)
        if verdict is not None and verdict != WAIT:
            return verdict
        if verdict == WAIT:
            has_answered = True
            named_at = now
            give_up_at = began + seconds + TOLD_SECONDS  # process 0 names the missing when its own time is over
        elif now > named_at + NAMING_SECONDS:
            named_at = now
            _say(
                f"Process {membership.index} of {membership.count} waits for process 0, which does not answer at"
                f" {membership.address} ({now - began:.0f} s of {seconds:,.0f} s)."
            )
        time.sleep(pause)
        now = time.monotonic()
    advice = "see its output" if has_answered else "start it, and check the address and the firewall"
    return Verdict(
        RestartError.__name__,
        f"The first process did not answer at {membership.address} ({membership.found_by}) for {seconds:.0f} s;"
        f" {advice}.",
    )


def _answer(address: str) -> Verdict | None:
    """Returns what process 0 answers; None if it does not, or if another program listens there."""
    # A cluster's own address is not reached through a proxy.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(address, timeout=ANSWER_SECONDS) as answer:
            kind, sentence = json.loads(answer.read(LONGEST_ANSWER))
    except (OSError, ValueError, TypeError, http.client.HTTPException):
        return None
    return Verdict(kind, str(sentence)) if kind in KINDS else None


def _say(sentence: str) -> None:
    print(sentence, file=sys.stderr, flush=True)
