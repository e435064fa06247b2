"""TCP ports of this host: listening at one, and which program already does."""

import contextlib
import errno
import socket
import time

from limba.config import InputError, reason_of

PORT_SECONDS = 5.0  # in which a run that is just ending frees its port
PAUSE_SECONDS = 0.2  # between two attempts to listen


def listen(address: str, to_change: str) -> socket.socket:
    """Returns a socket that listens at HOST:PORT, or at :PORT of all addresses of this host.

    A port in use is tried again for PORT_SECONDS. Raises InputError if this cannot listen; the sentence names the
    program that does, and `to_change`, the setting with another port. jax's service would end with a segmentation
    fault instead.
    """
    give_up_at = time.monotonic() + PORT_SECONDS
    while True:
        try:
            return _listening_socket(address)
        except (OSError, OverflowError) as error:
            is_in_use = isinstance(error, OSError) and error.errno == errno.EADDRINUSE
            if not is_in_use or time.monotonic() >= give_up_at:
                # The sentence has the address already.
                reason = reason_of(error).partition(" (while attempting")[0]
                if is_in_use:
                    reason = f"{reason} by {listener(_port_of(address))}"
                raise InputError(
                    f"The first process cannot listen at {address} ({reason}); end the program that does, or change"
                    f" {to_change} of all processes, or COORDINATOR_BIND_ADDRESS."
                ) from error
        time.sleep(PAUSE_SECONDS)


def _listening_socket(address: str) -> socket.socket:
    host = address.rpartition(":")[0].strip("[]")
    is_every_address = host in ("", "::")
    # One socket then serves both versions of IP.
    is_dual = is_every_address and socket.has_dualstack_ipv6()
    family = socket.AF_INET
    if is_dual or ":" in host:
        family = socket.AF_INET6
    if is_every_address:
        host = ""
    # Hundreds of processes of a large pod report in the same second.
    return socket.create_server((host, _port_of(address)), family=family, backlog=1024, dualstack_ipv6=is_dual)


def _port_of(address: str) -> int:
    return int(address.rpartition(":")[2])


def listener(port: int) -> str:
    """Returns which program listens at a TCP port of this host, such as "process 71: ssh -N".

    >>> import os
    >>> with socket.create_server(("127.0.0.1", 0)) as server:
    ...     listener(server.getsockname()[1]).startswith(f"process {os.getpid()}: ")
    True
    """
    import psutil

    with contextlib.suppress(psutil.Error, OSError):  # without rights, the programs of other users are not seen
        for connection in psutil.net_connections("tcp"):
            if connection.status != psutil.CONN_LISTEN or connection.pid is None:
                continue
            if tuple(connection.laddr)[1:] == (port,):
                command = " ".join(psutil.Process(connection.pid).cmdline())
                return f"process {connection.pid}: {command[:100]}"
    return "another process"
