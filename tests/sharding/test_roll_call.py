"""Processes report to the first one over real sockets; what does not fit ends all of them with one sentence."""

import http.server
import socket
import threading

import pytest

from limba.config import InputError, RestartError
from limba.sharding import roll_call
from limba.sharding.clusters import Membership
from tests.sharding.processes import free_port
from tests.waiting import wait_until


def call(places: list[Membership], seconds: float = 60.0, own_address: str = "") -> list[BaseException | None]:
    """Lets the places wait for each other in threads; returns the error of each."""
    ends: list[BaseException | None] = [RuntimeError("has not ended")] * len(places)

    def one(number: int) -> None:
        try:
            roll_call.wait_for_all(places[number], f":{places[number].port}", seconds, own_address)
            ends[number] = None
        except (InputError, RestartError) as error:
            ends[number] = error

    threads = [threading.Thread(target=one, args=[number]) for number in range(len(places))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    return ends


def places(*indices: int, count: int = 0) -> list[Membership]:
    address = f"127.0.0.1:{free_port()}"
    return [Membership("COORDINATOR_ADDRESS", address, count or len(indices), index) for index in indices]


def test_all_go_when_the_last_has_come() -> None:
    assert call(places(*range(32))) == [None] * 32


def test_the_port_is_free_at_once() -> None:
    members = places(0, 1, 2)
    assert call(members) == [None] * 3 == call(members)
    socket.create_server(("", members[0].port)).close()


def test_who_is_missing_is_named_again_and_again(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(roll_call, "NAMING_SECONDS", 0.5)
    ends = call(places(0, 2, count=5), seconds=2.5)
    late = "Processes 1, 3 and 4 of 5 have not joined within 2 s (JOIN_TIMEOUT_SECONDS); start the command"
    assert all(isinstance(end, RestartError) and str(end).startswith(late) for end in ends), ends
    lines = capfd.readouterr().err.splitlines()
    assert 1 <= len(lines) <= 9
    assert any(line.startswith("Waiting for processes 1, 3 and 4 of 5 to join at 127.0.0.1:") for line in lines), lines


def test_a_first_process_that_does_not_answer_is_waited_for(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(roll_call, "NAMING_SECONDS", 0.5)
    (end,) = call(places(1, count=2), seconds=1.5)
    assert isinstance(end, RestartError) and "The first process did not answer at 127.0.0.1:" in str(end)
    assert capfd.readouterr().err.startswith("Process 1 of 2 waits for process 0, which does not answer at 127.0.0.1:")


@pytest.mark.parametrize("answer", [b"{}", b"5", b"null", b'["go"]', b'["later", ""]', b"<html>", b"\xff"])
def test_another_program_at_the_address_is_not_the_first_process(answer: bytes) -> None:
    class Other(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, format: str, *args: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Other) as server:
        threading.Thread(target=server.serve_forever, args=[0.01], daemon=True).start()
        address = f"127.0.0.1:{server.server_port}"
        (end,) = call([Membership("COORDINATOR_ADDRESS", address, 2, 1)], seconds=0.3)
        server.shutdown()
    assert isinstance(end, RestartError) and f"did not answer at {address} (COORDINATOR_ADDRESS)" in str(end)


def test_a_name_that_stands_for_127_0_1_1_does_on_one_machine() -> None:
    """Between several ends all: tests/sharding/test_networks.py."""
    assert call(places(0, 1, 2), own_address="127.0.1.1") == [None] * 3


def test_two_processes_of_one_number_end_all() -> None:
    ends = call(places(0, 1, 1, count=3))
    for end in ends:
        assert isinstance(end, InputError) and "Two processes say that they are process 1 of 3, on" in str(end)


def test_another_number_of_processes_ends_all() -> None:
    members = places(0, 1, 2)
    members[2] = members[2]._replace(count=8)
    for end in call(members):
        assert isinstance(end, InputError) and "Process 2 (host" in str(end) and "is one of 8 processes" in str(end)


def send(member: Membership, data: bytes) -> None:
    """Sends to the first process as soon as it listens."""

    def is_sent() -> bool:
        try:
            with socket.create_connection(("127.0.0.1", member.port), timeout=60) as connection:
                connection.sendall(data)
                connection.shutdown(socket.SHUT_WR)
                connection.recv(1)  # until it has read all
            return True
        except ConnectionResetError:
            return True
        except OSError:
            return False

    wait_until(is_sent)


@pytest.mark.parametrize("sent", [b"", b"GET / HTTP/1.1\r\n\r\n", b"[]\n", b"{}\n", b"\xff\xfe\n", b"x" * 9_000])
def test_what_is_no_process_of_a_run_is_left_alone(sent: bytes) -> None:
    members = places(0, 1)
    first = threading.Thread(target=call, args=[[members[0]]])
    first.start()
    send(members[0], sent)
    assert call([members[1]]) == [None]
    first.join(60)
    assert not first.is_alive()


def test_a_process_that_has_left_may_come_again() -> None:
    members = places(0, 1, 2)
    first = threading.Thread(target=call, args=[[members[0]]])
    first.start()
    send(members[0], b"GET /1/3/0123/killed/ HTTP/1.1\r\n\r\n")
    assert call(members[1:]) == [None, None]
    first.join(60)
    assert not first.is_alive()


def test_a_process_that_reported_once_and_was_killed_is_missing() -> None:
    members = places(0, 1, 2)
    ends: list[BaseException | None] = []
    others = threading.Thread(target=lambda: ends.extend(call([members[0], members[2]], seconds=1.0)))
    others.start()
    send(members[0], b"GET /1/3/0123/killed/ HTTP/1.1\r\n\r\n")
    others.join(60)
    assert len(ends) == 2
    for end in ends:
        assert isinstance(end, RestartError) and str(end).startswith("Process 1 of 3 has not joined within 1 s")
