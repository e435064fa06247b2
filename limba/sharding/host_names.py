"""The address of this machine's own name, at which gloo listens: processes on CPUs exchange arrays by it."""

import ipaddress
import socket

from limba.config import InputError, reason_of
from limba.sharding.clusters import Membership


def own_address(membership: Membership) -> str:
    """Returns the address that this machine's own name stands for, the first one, as gloo takes it.

    Raises InputError if there is none, as often in a container: gloo would end in lines of C++.
    """
    name = socket.gethostname()
    try:
        addresses = [entry[4][0] for entry in socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)]
        return str(addresses[0])
    except (OSError, UnicodeError) as error:
        address = _address_towards_first(membership)
        raise InputError(
            f"The name of this machine, {name}, has no address ({reason_of(error)}), and processes on CPUs find one"
            f" another by it; add the line '{address} {name}' to /etc/hosts, or start the container with"
            f" --add-host={name}:{address}."
        ) from None


def _address_towards_first(membership: Membership) -> str:
    """Returns the address by which this machine would reach process 0; nothing is sent."""
    host = membership.address.rpartition(":")[0].strip("[]")
    try:
        family = socket.getaddrinfo(host, membership.port, type=socket.SOCK_DGRAM)[0][0]
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((host, membership.port))
            return probe.getsockname()[0]
    except OSError:
        return "127.0.0.1"


def is_loopback(address: str) -> bool:
    """Returns whether an address stands for each machine itself; "" does not.

    >>> is_loopback("127.0.1.1"), is_loopback("10.0.0.7"), is_loopback("")
    (True, False, False)
    """
    return bool(address) and ipaddress.ip_address(address.partition("%")[0]).is_loopback


def is_here(peer: tuple) -> bool:
    """Returns whether a connection's other end, as sockets name it, is on this machine: it can listen there too."""
    host, _, *rest = peer
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        try:
            probe.bind((host, 0, *rest))
        except OSError:
            return False
    return True


def as_written(address: str) -> str:
    """Returns an address of a connection as people write it: of IPv4 also where one socket serves both versions.

    >>> as_written("::ffff:10.0.0.7"), as_written("fd00::7")
    ('10.0.0.7', 'fd00::7')
    """
    mapped = getattr(ipaddress.ip_address(address.partition("%")[0]), "ipv4_mapped", None)
    return address if mapped is None else str(mapped)
