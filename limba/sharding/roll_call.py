"""Who has come to a run: each process tells the first one its number, which waits for all and names those missing.

jax's own service only says that somebody is missing, and only at the end of its time limit. So before it starts, the
first process listens at the same address for one line from each process, and answers "go" when all have come. Two
processes with one number, or with another count, are an error at once.
"""

from __future__ import annotations

import contextlib
import errno
import json
import selectors
import socket
import sys
import time
from typing import Any, NamedTuple

from limba.config import InputError, RestartError
from limba.config.errors import reason_of
from limba.sharding.clusters import Membership

PORT_SECONDS = 5.0  # for a run that is just ending to free the port
REFUSING_SECONDS = 3.0  # for those that come a moment after an error
NAMING_SECONDS = 30.0  # between two lines that name who is missing
LINE_BYTES = 2_000  # the longest line; what sends a longer one is no process of a run


def wait_for_all(place: Membership, bind: str, seconds: float) -> None:
    """Returns when all processes of a run have come; all must call it, with their own `place`.

    Process 0 listens at `bind`, HOST:PORT or :PORT. Every 30 seconds a line on stderr names who is missing. Raises
    RestartError after the seconds, and InputError if process 0 cannot listen, or if the processes do not agree who
    they are.
    """
    if place.index:
        _report(place, seconds)
    else:
        with _listening(bind, place) as server, selectors.DefaultSelector() as selector:
            _Callers(server, selector, place).wait(seconds)


class _Caller(NamedTuple):
    """A connection, what it has sent so far, and its process, once that is known."""

    connection: socket.socket
    received: bytearray
    process: list[int]


class _Callers:
    """The connections of the other processes to the first."""

    def __init__(self, server: socket.socket, selector: Any, place: Membership):
        self._server, self._selector, self._place = server, selector, place
        self._hosts: dict[int, str] = {}
        self._callers: list[_Caller] = []

    def wait(self, seconds: float) -> None:
        began = named = time.monotonic()
        self._selector.register(self._server, selectors.EVENT_READ)
        try:
            while missing := [index for index in range(1, self._place.count) if index not in self._hosts]:
                now = time.monotonic()
                if now > began + seconds:
                    raise RestartError(_late(missing, self._place.count, seconds))
                if now > named + NAMING_SECONDS:
                    named = now
                    _say(
                        f"Waiting for {_named(missing)} of {self._place.count} to join at {self._place.address}"
                        f" ({now - began:.0f} s of {seconds:,.0f} s)."
                    )
                for key, _ in self._selector.select(min(1.0, seconds / 4)):
                    self._accept() if key.fileobj is self._server else self._read(key.data)
        except (RestartError, InputError) as error:
            words = [type(error).__name__, str(error)]
            self._answer(words)
            self._refuse(words)
            raise
        self._answer(["go", ""])

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            connection, _ = self._server.accept()
            connection.setblocking(False)
            caller = _Caller(connection, bytearray(), [])
            self._callers.append(caller)
            self._selector.register(connection, selectors.EVENT_READ, caller)

    def _read(self, caller: _Caller) -> None:
        try:
            part = caller.connection.recv(LINE_BYTES)
        except BlockingIOError:
            return
        except OSError:
            part = b""
        caller.received.extend(part)
        line, end, _ = bytes(caller.received).partition(b"\n")
        if not part or (not end and len(caller.received) > LINE_BYTES):
            self._forget(caller)
        elif end and not caller.process:
            self._enter(caller, line)

    def _enter(self, caller: _Caller, line: bytes) -> None:
        """Notes a process; InputError if it is not one of this run."""
        try:
            index, count, host = (json.loads(line)[name] for name in ("process", "of", "host"))
            known = isinstance(index, int) and isinstance(count, int) and isinstance(host, str) and 0 <= index < count
        except (ValueError, TypeError, KeyError):
            known = False
        if not known:  # something else on the network
            self._forget(caller)
            return
        if count != self._place.count:
            raise InputError(
                f"Process {index} (host {host}) is one of {count} processes, and process 0 one of"
                f" {self._place.count}; start the same command on every worker, with the same number of processes."
            )
        if index == 0 or index in self._hosts:
            first = self._hosts.get(index, socket.gethostname())
            raise InputError(
                f"Two processes say that they are process {index} of {count}, on the hosts {first} and {host}; give"
                " each its own PROCESS_ID."
            )
        self._hosts[index] = host
        caller.process.append(index)

    def _forget(self, caller: _Caller) -> None:
        for index in caller.process:
            del self._hosts[index]
        self._callers.remove(caller)
        self._selector.unregister(caller.connection)
        caller.connection.close()

    def _refuse(self, words: list[str]) -> None:
        """Answers those that come a moment later in the same way."""
        answered, end = len(self._callers), time.monotonic() + REFUSING_SECONDS
        self._callers.clear()
        while answered < self._place.count - 1 and (left := end - time.monotonic()) > 0:
            self._server.settimeout(left)
            with contextlib.suppress(OSError):
                connection, _ = self._server.accept()
                connection.settimeout(2.0)
                with connection:
                    connection.recv(LINE_BYTES)
                    connection.sendall(json.dumps(words).encode() + b"\n")
                answered += 1

    def _answer(self, words: list[str]) -> None:
        """Answers all, and waits a moment for them to close: the port is then free at once."""
        for caller in self._callers:
            with contextlib.suppress(OSError):
                caller.connection.settimeout(REFUSING_SECONDS)
                caller.connection.sendall(json.dumps(words).encode() + b"\n")
                caller.connection.shutdown(socket.SHUT_WR)
        end = time.monotonic() + REFUSING_SECONDS
        for caller in self._callers:
            with contextlib.suppress(OSError), caller.connection as connection:
                # What is closed with something unread is reset, and the answer is lost.
                connection.settimeout(max(end - time.monotonic(), 0.01))
                while connection.recv(LINE_BYTES):
                    pass


def _report(place: Membership, seconds: float) -> None:
    """Tells the first process who this one is, again and again until all have come."""
    began = named = time.monotonic()
    host, _, port = place.address.rpartition(":")
    hello = {"process": place.index, "of": place.count, "host": socket.gethostname()}
    reached = False
    while (now := time.monotonic()) < began + seconds:
        kind = sentence = ""
        with (
            contextlib.suppress(OSError, ValueError, OverflowError),
            socket.create_connection((host.strip("[]"), int(port)), timeout=2.0) as connection,
        ):
            connection.settimeout(max(began + seconds - time.monotonic(), 1.0) + 5.0)  # it speaks at its limit
            connection.sendall(json.dumps(hello).encode() + b"\n")
            reached = True
            with connection.makefile("rb") as answers:
                kind, sentence = json.loads(answers.readline(LINE_BYTES))
        if kind == "go":
            return
        if kind:
            raise {"RestartError": RestartError}.get(kind, InputError)(sentence)
        if now > named + NAMING_SECONDS:
            named = now
            _say(
                f"Process {place.index} of {place.count} waits for process 0, which does not answer at"
                f" {place.address} ({now - began:.0f} s of {seconds:,.0f} s)."
            )
        time.sleep(min(0.5, seconds / 4))
    advice = "see its output" if reached else "start it, and check the address and the firewall"
    raise RestartError(
        f"The first process did not answer at {place.address} ({place.found_by}) for {seconds:.0f} s; {advice}."
    )


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
            change = {"COORDINATOR_ADDRESS": f"the port in COORDINATOR_ADDRESS ({place.address})"}
            raise InputError(
                f"The first process cannot listen at {bind} ({_plain(error)}{by}); end the program that does, or change"
                f" {change.get(place.port_name, place.port_name)} of all processes, or COORDINATOR_BIND_ADDRESS."
            ) from error


def _plain(error: BaseException) -> str:
    """Returns the reason without the address that `create_server` adds to it.

    >>> _plain(OSError(98, "Address already in use (while attempting to bind on address ('', 1))"))
    'Address already in use'
    """
    return reason_of(error).partition(" (while attempting")[0]


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


def _named(indices: list[int]) -> str:
    """Returns the processes in words, not more than eight of them.

    >>> _named([1]), _named([1, 2]), _named(list(range(1, 20)))
    ('process 1', 'processes 1 and 2', 'processes 1, 2, 3, 4, 5, 6, 7, 8 and 11 more')
    """
    if len(indices) == 1:
        return f"process {indices[0]}"
    shown = [str(index) for index in indices[:8]]
    last = f"{len(indices) - 8} more" if len(indices) > 8 else shown.pop()
    return f"processes {', '.join(shown)} and {last}"


def _late(missing: list[int], count: int, seconds: float) -> str:
    has = "has" if len(missing) == 1 else "have"
    name = _named(missing)
    return (
        f"{name[0].upper()}{name[1:]} of {count} {has} not joined within {seconds:.0f} s (JOIN_TIMEOUT_SECONDS); start"
        f" the command on every worker, each with its own PROCESS_ID from 0 to {count - 1}."
    )


def _say(sentence: str) -> None:
    print(sentence, file=sys.stderr, flush=True)
