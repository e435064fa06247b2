"""Joining the processes of one run: the roll call, jax's service, and a line about it on each console.

jax's own service only ends all processes when one has not come in time, and does not say which. So before it starts,
process 0 answers at the same address, by HTTP: each process tells it its number, again and again, until all have come.
Two processes with one number, or with another count, are an error at once.
"""

import contextlib
import errno
import http.client
import json
import math
import os
import re
import secrets
import socket
import sys
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import quote, unquote

import jax

from limba.config import InputError, RestartError, RunConfig, environment, reason_of
from limba.sharding import clusters, preemption
from limba.sharding.agreement import named
from limba.sharding.clusters import Membership
from limba.sharding.watchdog import OTHERS

JOIN_SECONDS = 1_800.0  # workers of a large pod start minutes apart (marin-community/marin#7232: 300 s are too few)
LEAST_SECONDS = 60.0  # for jax's service, once all have come
PORT_SECONDS = 5.0  # for a run that is just ending to free the port
TOLD_SECONDS = 3.0  # for processes that come a moment after an error
NAMING_SECONDS = 30.0  # between two lines that name who is missing
FORGOTTEN_SECONDS = 20.0  # after which a process that asks no more has left


def join_hosts(run: RunConfig | None = None) -> None:
    """Joins the processes of a run. Call it before any array is made; a second call only tells what `run` is.

    `limba.sharding.clusters.find` finds them; a process that runs alone returns at once. COORDINATOR_BIND_ADDRESS is
    the address of the first process's own host at which it listens (default: all), JOIN_TIMEOUT_SECONDS how long they
    wait for each other (default 1,800); every 30 seconds a line names who is missing. Each process of several prints
    one line when it has joined: in a run to stdout, else to stderr.

    Raises InputError for values that cannot work, and RestartError if not all processes have come in time. Of several
    processes, one that is lost later ends this one within `run.host_timeout_seconds`, by jax's own message.
    """
    if not jax.distributed.is_initialized():
        place = clusters.find()
        if place is None:
            return
        _join(run, place)
    if run is not None:
        OTHERS.model_dir = run.model_dir
    if jax.process_count() > 1:
        _say_joined(run is not None)


_announced: list[str] = []  # the line that was printed, if there was one


def _say_joined(is_run: bool) -> None:
    """Prints that this process has joined, once."""
    if _announced:
        return
    kinds = Counter(device.device_kind for device in jax.local_devices())
    devices = ", ".join(f"{number} x {kind}" for kind, number in kinds.items())
    _announced.append(f"process {jax.process_index()} of {jax.process_count()} on {socket.gethostname()}")
    print(f"{_announced[0]}, {devices}", file=sys.stdout if is_run else sys.stderr, flush=True)


def say_ended() -> None:
    """Prints that this process of several has done its work; one that fails or is stopped ends with a sentence."""
    if _announced:
        print(f"{_announced[0]} has ended", flush=True)


def _check_host_name(place: Membership) -> None:
    """Raises InputError if this machine's own name has no address, as often in a container.

    Gloo, by which processes on CPUs exchange arrays, listens at that address, and ends in lines of C++ without it.
    """
    name = socket.gethostname()
    try:
        socket.getaddrinfo(name, None)
    except (OSError, UnicodeError) as error:
        address = _own_address(place)
        raise InputError(
            f"The name of this machine, {name}, has no address ({reason_of(error)}), and processes on CPUs find one"
            f" another by it; add the line '{address} {name}' to /etc/hosts, or start the container with"
            f" --add-host={name}:{address}."
        ) from None


def _own_address(place: Membership) -> str:
    """Returns the address of this machine from which process 0 is reached; nothing is sent."""
    host = place.address.rpartition(":")[0].strip("[]")
    try:
        family = socket.getaddrinfo(host, place.port, type=socket.SOCK_DGRAM)[0][0]
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((host, place.port))
            return probe.getsockname()[0]
    except OSError:
        return "127.0.0.1"


def _join(run: RunConfig | None, place: Membership) -> None:
    """Waits for all processes, and joins them by jax's service."""
    seconds, bind = _join_seconds(), os.environ.get("COORDINATOR_BIND_ADDRESS")
    if bind and not re.fullmatch(r".*[^:\]]:\d+|\[.*\]:\d+", bind):
        bind = f"{bind}:{place.port}"
    devices = clusters.devices_of(place, environment.num_gpus())
    if os.environ.get("JAX_PLATFORMS", "") == "cpu":
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
        _check_host_name(place)
    began = time.monotonic()
    wait_for_all(place, bind or f":{place.port}", seconds)
    left = max(seconds - (time.monotonic() - began), LEAST_SECONDS)
    with preemption.joining():
        _initialize(run, place, bind, devices, left)


def _initialize(
    run: RunConfig | None, place: Membership, bind: str | None, devices: Sequence[int] | None, seconds: float
) -> None:
    """Starts jax's service, in which all processes that have come meet, and listens to what the others say."""
    try:
        jax.distributed.initialize(
            coordinator_address=place.address,
            num_processes=place.count,
            process_id=place.index,
            coordinator_bind_address=bind if place.index == 0 else None,
            cluster_detection_method="deactivate",  # it would take other devices than those found here
            initialization_timeout=math.ceil(seconds),
            heartbeat_timeout_seconds=math.ceil((run or RunConfig).host_timeout_seconds),
            local_device_ids=devices,
        )
    except ValueError as error:
        raise InputError(
            f"The processes of this run cannot join ({reason_of(error)}); start the command on every worker, or set"
            " COORDINATOR_ADDRESS, NUM_PROCESSES and PROCESS_ID."
        ) from error
    if place.count > 1:
        OTHERS.watch()


def _join_seconds() -> float:
    given = os.environ.get("JOIN_TIMEOUT_SECONDS", str(JOIN_SECONDS))
    try:
        seconds = float(given)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < 1e6:
        raise InputError(f"JOIN_TIMEOUT_SECONDS is {given}; give a number of seconds above 0.")
    return seconds


class _Roll:
    """Who has come: for each number the host, the token of its process, how often and when that was heard."""

    def __init__(self, place: Membership):
        self.verdict, self.told = ["wait", ""], set[str]()
        self._place, self._lock = place, threading.Lock()
        self._heard: dict[int, tuple[str, str, int, float]] = {}
        self._replaced = set[str]()

    def hear(self, index: int, count: int, token: str, host: str) -> list[str]:
        """Returns what a process is told: "wait", "go", or the name of an error with its sentence."""
        with self._lock:
            if self.verdict[0] == "wait":
                self._enter(index, count, token, host)
            if self.verdict[0] != "wait":
                self.told.add(token)
            return self.verdict

    def _enter(self, index: int, count: int, token: str, host: str) -> None:
        first, known, times, _ = self._heard.get(index, (socket.gethostname(), token, 0, 0.0))
        if known != token:  # it was started again, or there are two: then the one before is heard once more
            self._replaced.add(known)
            times = 0
        if count != self._place.count:
            self.verdict = [
                InputError.__name__,
                f"Process {index} (host {host}) is one of {count} processes, and process 0 one of {self._place.count};"
                " start the same command on every worker, with the same number of processes.",
            ]
        elif index == 0 or token in self._replaced:
            self.verdict = [
                InputError.__name__,
                f"Two processes say that they are process {index} of {count}, on the hosts {first} and {host}; give"
                " each its own PROCESS_ID.",
            ]
        self._heard[index] = host, token, times + 1, time.monotonic()

    def missing(self) -> list[int]:
        """Returns the numbers that were not heard twice by the same process, the last time just now."""
        with self._lock:
            last = time.monotonic() - FORGOTTEN_SECONDS
            here = {index for index, (_, _, times, when) in self._heard.items() if times > 1 and when > last}
            return [index for index in range(1, self._place.count) if index not in here]


def wait_for_all(place: Membership, bind: str, seconds: float) -> None:
    """Returns when all processes of a run have come; all must call it, with their own `place`.

    Process 0 listens at `bind`, HOST:PORT or :PORT. Every 30 seconds a line on stderr names who is missing. Raises
    RestartError after the seconds, and InputError if process 0 cannot listen, or if the processes do not agree who
    they are.
    """
    kind, sentence = _asked(place, seconds) if place.index else _called(place, bind, seconds)
    if kind != "go":
        raise {"RestartError": RestartError}.get(kind, InputError)(sentence)


def _called(place: Membership, bind: str, seconds: float) -> list[str]:
    """Calls the roll, in process 0; returns the verdict when all have heard it."""
    roll, began = _Roll(place), time.monotonic()
    named_at = began
    with _answering(roll, bind, place):
        while (missing := roll.missing()) and roll.verdict[0] == "wait":
            now = time.monotonic()
            if now > began + seconds:
                name, has = named(missing), "has" if len(missing) == 1 else "have"
                roll.verdict = [
                    RestartError.__name__,
                    f"{name[0].upper()}{name[1:]} of {place.count} {has} not joined within {seconds:.0f} s"
                    " (JOIN_TIMEOUT_SECONDS); start the command on every worker, each with its own PROCESS_ID from 0 to"
                    f" {place.count - 1}.",
                ]
            elif now > named_at + NAMING_SECONDS:
                named_at = now
                waited = f"{now - began:.0f} s of {seconds:,.0f} s"
                _say(f"Waiting for {named(missing)} of {place.count} to join at {place.address} ({waited}).")
            time.sleep(min(0.05, seconds / 4))
        if roll.verdict[0] == "wait":
            roll.verdict = ["go", ""]
        end = time.monotonic() + (LEAST_SECONDS if roll.verdict[0] == "go" else TOLD_SECONDS)
        while len(roll.told) < place.count - 1 and time.monotonic() < end:
            time.sleep(0.05)
    return roll.verdict


class _Server(ThreadingHTTPServer):
    def handle_error(self, request: object, client_address: object) -> None:
        """Says nothing about a process that was killed while it asked."""


@contextlib.contextmanager
def _answering(roll: _Roll, bind: str, place: Membership) -> Iterator[None]:
    class Answer(BaseHTTPRequestHandler):
        timeout = 10.0

        def do_GET(self) -> None:
            with contextlib.suppress(ValueError):  # something else on the network, which gets no answer
                index, count, token, host = self.path.split("/")[1:]
                words = roll.hear(int(index), int(count), token, unquote(host))
                self.send_response(200)
                self.end_headers()
                self.wfile.write(json.dumps(words).encode())

        def log_message(self, format: str, *args: object) -> None:
            pass

    with _listening(bind, place) as listening:
        server = _Server(("", 0), Answer, bind_and_activate=False)
        server.socket.close()
        server.socket = listening
        thread = threading.Thread(target=server.serve_forever, args=[0.05], daemon=True)
        thread.start()
        try:
            yield
        finally:
            server.shutdown()
            thread.join()


def _asked(place: Membership, seconds: float) -> list[str]:
    """Tells the first process who this one is, again and again until all have come; returns the verdict."""
    began = named_at = time.monotonic()
    who = f"{place.index}/{place.count}/{secrets.token_hex(8)}/{quote(socket.gethostname())}"
    ask = urllib.request.build_opener(urllib.request.ProxyHandler({})).open  # a cluster's own address has no proxy
    pause = min(max(0.1, place.count / 200), seconds / 4)  # no more than 200 requests a second
    answered = False
    while (now := time.monotonic()) < began + seconds + answered * TOLD_SECONDS:  # it speaks at its limit
        with contextlib.suppress(OSError, ValueError, http.client.HTTPException):
            with ask(f"http://{place.address}/{who}", timeout=10.0) as answer:
                words = json.load(answer)
            answered, named_at = True, now
            if words[0] != "wait":
                return words
        if now > named_at + NAMING_SECONDS:
            named_at = now
            _say(
                f"Process {place.index} of {place.count} waits for process 0, which does not answer at"
                f" {place.address} ({now - began:.0f} s of {seconds:,.0f} s)."
            )
        time.sleep(pause)
    advice = "see its output" if answered else "start it, and check the address and the firewall"
    sentence = f"The first process did not answer at {place.address} ({place.found_by}) for {seconds:.0f} s; {advice}."
    return [RestartError.__name__, sentence]


def _listening(bind: str, place: Membership) -> socket.socket:
    """Returns a socket that listens; InputError if that cannot be. jax would end with a fault of memory access."""
    host, _, port = bind.rpartition(":")
    host = host.strip("[]")
    began = time.monotonic()
    while True:
        both = host in ("", "::") and socket.has_dualstack_ipv6()
        family = socket.AF_INET6 if ":" in host or both else socket.AF_INET
        try:
            return socket.create_server(
                ("" if host == "::" else host, int(port)), family=family, backlog=1024, dualstack_ipv6=both
            )
        except (OSError, OverflowError) as error:
            in_use = getattr(error, "errno", None) == errno.EADDRINUSE
            if in_use and time.monotonic() < began + PORT_SECONDS:
                time.sleep(0.2)
                continue
            by = f" by {listener(int(port))}" if in_use else ""
            reason = reason_of(error).partition(" (while attempting")[0]  # without the address, which comes again
            is_explicit = place.found_by == clusters.EXPLICIT[0]
            change = f"the port in COORDINATOR_ADDRESS ({place.address})" if is_explicit else clusters.PORT
            raise InputError(
                f"The first process cannot listen at {bind} ({reason}{by}); end the program that does, or change"
                f" {change} of all processes, or COORDINATOR_BIND_ADDRESS."
            ) from error


def listener(port: int) -> str:
    """Returns which program listens at a TCP port of this host, such as "process 71: ssh -N"."""
    import psutil

    with contextlib.suppress(psutil.Error, OSError):
        for connection in psutil.net_connections("tcp"):
            is_it = connection.status == psutil.CONN_LISTEN and tuple(connection.laddr)[1:] == (port,)
            if is_it and connection.pid:
                command = " ".join(psutil.Process(connection.pid).cmdline())
                return f"process {connection.pid}: {command[:100]}"
    return "another process"


def _say(sentence: str) -> None:
    print(sentence, file=sys.stderr, flush=True)
