"""`limba play`: questions are answered, what is too much or not allowed is refused, and a browser can use the page."""

import contextlib
import errno
import http.client
import itertools
import json
import math
import os
import re
import select
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
from playwright.sync_api import Locator, Page, Route

import limba
from limba.cli import main
from limba.config import InputError
from limba.inference.generate import Deadline
from limba.tools.pages import serving as web
from limba.tools.pages.play import play as servers
from limba.tools.pages.play.answers import MOST_LETTERS, Player, number
from limba.tools.pages.play.play import Server
from tests import browser
from tests.evaluation.report_runs import recorded
from tests.export.runs import write_run
from tests.inference.test_load import config_of
from tests.waiting import wait_until

TEXT = "A text with <extra_id_0> gap."
PASTE = """() => {
  const clipboardData = new DataTransfer();
  clipboardData.setData("text/plain", "x".repeat(10_000_000));
  document.getElementById("text").dispatchEvent(new ClipboardEvent("paste", {clipboardData, cancelable: true}));
}"""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("runs") / "run"
    write_run(directory, config_of(), steps=(7, 9))
    return directory


@pytest.fixture(scope="module")
def players(run: Path) -> list[Player]:
    return [Player(f"run, step {step}", limba.load(run, step=step, vocabulary="byte")) for step in (7, 9)]


@contextlib.contextmanager
def serving(players: list[Player], token: str | None = None) -> Iterator[Server]:
    with Server("127.0.0.1", 0, players, token) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        yield server
        server.shutdown()
        thread.join(10)


def asked(server: Server, path: str, body: Any = None, **headers: str) -> tuple[int, Any]:
    """Returns the status and the answer of one request."""
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=120)
    sent = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
    all_headers = {**({} if body is None else {"Content-Type": "application/json"}), **headers}
    connection.request("GET" if body is None else "POST", path, sent, all_headers)
    answer = connection.getresponse()
    text = answer.read()
    connection.close()
    return answer.status, json.loads(text) if answer.headers.get_content_type() == "application/json" else text


@pytest.fixture
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """As without a network: only addresses of this machine can be reached, and no name is looked up."""
    connect = socket.socket.connect

    def connect_here(self: socket.socket, address: Any) -> None:
        if self.family != socket.AF_UNIX and address[0] != "127.0.0.1":
            raise OSError(errno.ENETUNREACH, f"{address}: the network is off")
        connect(self, address)

    def look_up(host: Any, *arguments: Any, **choices: Any) -> list[Any]:
        if host not in ("127.0.0.1", None):
            raise socket.gaierror(f"{host}: the network is off")
        return lookup(host, *arguments, **choices)

    lookup = socket.getaddrinfo
    monkeypatch.setattr(socket.socket, "connect", connect_here)
    monkeypatch.setattr(socket, "getaddrinfo", look_up)


@pytest.mark.night
@pytest.mark.usefixtures("no_network")
def test_texts_are_those_of_generate_and_probabilities_those_of_score(players: list[Player], run: Path) -> None:
    model = limba.load(run, step=9, vocabulary="byte")
    with serving(players) as server:
        for body, fields in [
            ({"way": "greedy"}, {}),
            ({"way": "beams", "num_beams": "3"}, {"num_beams": 3, "num_samples": 3}),
            ({"way": "sample", "num_samples": 2, "temperature": 0.7, "top_k": 5, "seed": 4},
             {"sample": True, "num_samples": 2, "temperature": 0.7, "top_k": 5, "seed": 4}),
        ]:  # fmt: skip
            status, answer = asked(
                server, "/api/texts", {"model": "run, step 9", "text": TEXT, "max_tokens": 11, **body}
            )
            assert status == 200, answer
            (expected,) = model.samples([TEXT], max_tokens=11, ban_sentinels=False, **fields)
            assert [entry["text"] for entry in answer["texts"]] == [text.text for text in expected]
            for shown in answer["texts"]:
                assert re.match(r"A text with +\[", shown["filled"]) and len(shown["pieces"]) <= 11
                total = sum(math.log(piece["probability"]) for piece in shown["pieces"])
                assert total == pytest.approx(shown["score"], abs=1e-3)
        # The sum is the likelihood that the model gives to what it wrote.
        ids = [(model.tokenize(TEXT), np.asarray([piece["id"] for piece in answer["texts"][0]["pieces"]], np.int32))]
        from limba.inference.scoring import log_likelihoods

        (likelihood,) = log_likelihoods(model.network, model.params, model.mesh, ids, model.batch_size)
        assert answer["texts"][0]["score"] == pytest.approx(float(likelihood), rel=1e-4)


@pytest.mark.parametrize(
    "fields",
    [
        {},
        pytest.param({"num_beams": 2}, marks=pytest.mark.slow),
        pytest.param({"sample": True}, marks=pytest.mark.slow),
    ],
)
@pytest.mark.slow
def test_a_text_is_seen_while_it_is_written(fields: dict[str, Any], players: list[Player]) -> None:
    model = players[1]._trained  # which has traced what other tests ask for
    seen = list[list[int]]()
    config = model.generation.replaced(max_tokens=11, **fields)
    deadline = Deadline(600.0, watch=lambda ids: seen.append(ids.tolist()))
    ((first, *_),) = model.written(["A text."], config, deadline)
    assert len(seen) > 1 and all(len(one) < len(other) for one, other in itertools.pairwise(seen))
    if "num_beams" not in fields:
        whole = [number for number in first.ids.tolist() if number > 0]
        assert all([number for number in ids if number > 0] == whole[: len(ids)] for ids in seen)
    ((alone, *_),) = model.written(["A text."], config)
    assert alone.text == first.text
    with serving(players) as server:
        question = {"model": "run, step 9", "text": TEXT, "max_tokens": 11, "id": "a"}
        (text,) = asked(server, "/api/texts", question)[1]["texts"]
        path = "/api/so_far?model=run%2C+step+9&id="
        written = asked(server, f"{path}a")[1]["text"]
        assert re.match(r"A text with +\[", written) and re.match(r"A text with +\[", text["filled"])
        assert asked(server, f"{path}b") == (200, {"text": ""}), "another question, from another window"
        assert asked(server, "/api/so_far?id=a")[0] == 400


def test_pieces_have_their_bytes_and_models_their_sizes(players: list[Player]) -> None:
    with serving(players) as server:
        status, models = asked(server, "/api/models")
        assert status == 200 and [model["name"] for model in models] == ["run, step 7", "run, step 9"]
        assert models[0]["parameters"] > 10_000 and not models[0]["continues"]
        _, answer = asked(server, "/api/tokens", {"model": "run, step 7", "text": "aß"})
        assert answer["bytes"] == 3 and sum(piece["bytes"] for piece in answer["pieces"]) == 3
        assert answer["pieces"][-1]["special"]


def test_what_is_wrong_is_said_in_a_sentence_and_the_server_continues(players: list[Player]) -> None:
    good = {"model": "run, step 9", "text": TEXT}
    with serving(players) as server:
        for body, status, words in [
            ({**good, "model": "other"}, 400, "is not open"),
            ({**good, "text": "  "}, 400, "There is no text"),
            ({**good, "text": ["a"]}, 400, "There is no text"),
            ({**good, "text": "x" * (MOST_LETTERS + 1)}, 413, "at most 20,000"),
            ({**good, "text": "<extra_id_900>"}, 400, "sentinels"),
            ({**good, "max_tokens": 100_000}, 400, "max_tokens is 100000"),
            ({**good, "max_tokens": "many"}, 400, "max_tokens is 'many'"),
            ({**good, "way": "best"}, 400, "way is 'best'"),
            ({**good, "way": "sample", "temperature": 0}, 400, "temperature is 0"),
            ({**good, "way": "beams", "num_beams": 1}, 400, "num_beams is 1"),
            (b"{", 400, "not JSON"),
            (b"[]", 400, "not a JSON object"),
            (b"[" * 100_000 + b"]" * 100_000, 400, "not JSON"),
            (b'{"model": ' * 10_000 + b"1" + b"}" * 10_000, 400, "not JSON"),
            ({**good, "text": "a \ud83d b"}, 400, "half of a letter"),
            ({**good, "model": "\ud83d"}, 400, "is not open"),
            ({**good, "way": "\udfff"}, 400, "way is"),
            (b"x" * 10_000_000, 413, "10,000,000 bytes"),
        ]:
            code, answer = asked(server, "/api/texts", body)
            assert code == status and words in answer["error"], (str(body)[:80], answer)
            assert "\n" not in answer["error"] and answer["error"].endswith(".")
        assert asked(server, "/api/tokens", {**good, "text": "\udc00"})[0] == 400
        assert asked(server, "/nothing")[0] == 404 and asked(server, "/api/nothing", good)[0] == 404
        assert asked(server, "/api/texts", good, **{"Content-Type": "text/plain"})[0] == 415
        assert asked(server, "/api/models")[0] == 200


def test_a_number_beyond_float64_is_refused() -> None:
    with pytest.raises(InputError, match="give a number from 1 to 100"):
        number({"top_k": 10**400}, "top_k", 20, 1, 100)


def test_only_this_machine_or_the_one_with_the_token_is_answered(players: list[Player]) -> None:
    with serving(players) as server:
        assert server.server_address[0] == "127.0.0.1"
        status, answer = asked(server, "/api/models", Host="evil.example")
        assert status == 403 and server.address in answer["error"]
    with serving(players, token="secret") as server:
        assert asked(server, "/")[0] == 403 and asked(server, "/?token=wrong")[0] == 403
        assert asked(server, "/?token=secret")[0] == 200
        assert asked(server, "/api/models", **{"X-Token": "secret", "Host": "evil.example"})[0] == 200


def test_a_full_server_says_so(players: list[Player], monkeypatch: pytest.MonkeyPatch) -> None:
    begun = threading.Semaphore(0)
    go_on = threading.Event()

    def slow(self: Player, body: Any) -> dict[str, Any]:
        begun.release()
        assert go_on.wait(60)
        return {"texts": []}

    monkeypatch.setattr(Player, "texts", slow)
    good = {"model": "run, step 9", "text": TEXT}
    with serving(players) as server:
        codes: list[int] = []
        threads = [
            threading.Thread(target=lambda: codes.append(asked(server, "/api/texts", good)[0]))
            for _ in range(servers.MOST_WAITING)
        ]
        threads[0].start()
        assert begun.acquire(timeout=60)
        for thread in threads[1:]:
            thread.start()
        wait_until(lambda: not server.waiting._value)  # until all wait
        status, answer = asked(server, "/api/texts", good)
        assert status == 503 and "ask again" in answer["error"]
        assert asked(server, "/api/tokens", {**good, "text": "a"})[0] == 200, "what is cheap is answered still"
        go_on.set()
        for thread in threads:
            thread.join(60)
        assert codes == [200] * servers.MOST_WAITING


def test_of_two_hundred_questions_at_once_each_is_answered(
    players: list[Player], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Player, "texts", lambda self, body: {"texts": []})
    good = {"model": "run, step 9", "text": TEXT}
    start = threading.Barrier(200)

    def ask(_: int) -> int:
        start.wait(60)
        return asked(server, "/api/texts", good)[0]

    with serving(players) as server, ThreadPoolExecutor(200) as pool:
        assert set(pool.map(ask, range(200))) <= {200, 503}


def test_a_request_that_comes_byte_by_byte_is_cut_off(players: list[Player], monkeypatch: pytest.MonkeyPatch) -> None:
    """On a clock on which each look at it takes 4 seconds; the next byte is sent after the look."""
    seconds = itertools.count(0, 4)
    looked = threading.Semaphore(0)

    def clock() -> float:
        looked.release()
        return float(next(seconds))

    monkeypatch.setattr(servers.Handler, "clock", staticmethod(clock))
    with serving(players) as server, socket.create_connection(("127.0.0.1", server.server_port), timeout=60) as sent:
        sent.sendall(b"POST /api/texts HTTP/1.1\r\nContent-Length: 1000\r\nX: ")
        is_open = True
        while is_open:
            looked.acquire(timeout=0.1)
            try:
                is_open = not select.select([sent], [], [], 0)[0] or sent.recv(1) != b""
                sent.sendall(b"a")
            except ConnectionError:
                is_open = False
        assert next(seconds) <= 4 * 20, "it was cut off soon after its 60 seconds"
        monkeypatch.undo()
        assert asked(server, "/api/models")[0] == 200


def test_a_port_that_was_just_left_is_taken_again(players: list[Player]) -> None:
    """The server closed the last connection first, so the kernel keeps the port for a minute (TIME_WAIT)."""
    with serving(players) as server:
        assert asked(server, "/nothing", Connection="close")[0] == 404
        port = server.server_port
    with web.listening(lambda port: Server("127.0.0.1", port, players), "127.0.0.1", port, "--port") as again:
        assert again.server_port == port
        with pytest.raises(InputError, match=f"Port {port} of 127.0.0.1 is in use by process {os.getpid()}"):
            web.listening(lambda port: Server("127.0.0.1", port, players), "127.0.0.1", port, "--port")


def test_a_question_that_has_waited_too_long_is_refused(players: list[Player], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(servers, "LONGEST_WAIT", 0.1)
    monkeypatch.setattr(Player, "texts", lambda self, body: {"texts": []})
    good = {"model": "run, step 9", "text": TEXT}
    with serving(players) as server:
        with server.turn:  # as while another question is answered
            status, answer = asked(server, "/api/texts", good)
        assert status == 503 and "Other questions took longer" in answer["error"]
        assert asked(server, "/api/texts", good) == (200, {"texts": []}), "and the server continues"


@pytest.mark.slow
def test_an_answer_that_takes_too_long_is_given_up_and_the_next_one_is_answered(
    players: list[Player], monkeypatch: pytest.MonkeyPatch
) -> None:
    seconds = itertools.count()  # a clock on which each look at it, after 16 tokens, takes a second
    monkeypatch.setattr(players[1], "_clock", lambda: float(next(seconds)))
    monkeypatch.setattr(players[1], "_max_seconds", 12.0)
    asked_of = {"model": "run, step 9", "text": TEXT, "way": "sample", "num_samples": 1}
    with serving(players) as server:
        status, answer = asked(server, "/api/texts", {**asked_of, "max_tokens": 400})
        assert status == 503 and answer["error"] == (
            "There was no answer within 12 seconds (176 tokens were written); ask for fewer gaps, tokens, beams or"
            " samples."
        )
        assert next(seconds) < 20, "it ended soon after its time"
        status, answer = asked(server, "/api/texts", {**asked_of, "max_tokens": 3})
        assert status == 200 and len(answer["texts"][0]["pieces"]) <= 3
        assert server.waiting._value == servers.MOST_WAITING and not server.turn.locked()


def test_a_host_alone_makes_a_token() -> None:
    made = [web.checked("0.0.0.0", None, None, "--port") for _ in range(2)]
    assert made[0] != made[1] and all(token and len(token) >= 20 for token in made)
    assert web.checked("0.0.0.0", None, "mine", "--port") == "mine"
    assert web.checked(web.HERE, None, None, "--port") is None
    for token in ("ă", "a b", " "):
        with pytest.raises(InputError, match="--token has a space, or a letter that is not ASCII"):
            web.checked("0.0.0.0", None, token, "--port")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "limba play MODEL"),
        (["a", "b", "c"], "one or two models"),
        (["a", "--port=70000"], "--port is 70000"),
        (["a", "--max_seconds=0"], "--max_seconds is 0"),
        (["a", "--max_seconds=nan"], "--max_seconds is nan"),
        (["a", "--token=x"], "--token is given without --host"),
        (["nothing-here"], "does not exist"),
        (["tests/tiny.py"], "tests/tiny.py"),
    ],
)
def test_bad_input_is_one_sentence(arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["play", *arguments]) == 2
    (sentence,) = capsys.readouterr().err.strip().splitlines()
    assert words in sentence


def test_what_is_no_model_is_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "empty").mkdir()
    begun = recorded(tmp_path, 1, "begun")
    newer = recorded(tmp_path, 1, "newer")
    (newer / "config.json").write_text((newer / "config.json").read_text().replace('"format": 2', '"format": 99'))
    for name, words in (
        ("empty", "is an empty folder"),
        (begun.name, "holds no checkpoint yet"),
        (newer.name, "reads format 2"),
    ):
        assert main.main(["play", str(tmp_path / name)]) == 2
        (sentence,) = capsys.readouterr().err.strip().splitlines()
        assert words in sentence, (name, sentence)


def test_a_port_in_use_is_refused_if_it_was_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        assert main.main(["play", "a", f"--port={port}"]) == 2
    assert f"Port {port} of 127.0.0.1 is in use by process {os.getpid()}: " in capsys.readouterr().err


def opened(page: Page, server: Server) -> None:
    page.goto(server.address)
    page.locator("#models section").first.wait_for()


def words(page: Page) -> Locator:
    return page.locator("#words button")


def fill_a_gap(page: Page, server: Server) -> None:
    """Masks words, has both models fill the gaps, and compares what the page shows with `TrainedModel.fill`."""
    page.route(
        "**/api/models", lambda route: (time.sleep(1), route.continue_())
    )  # who asks before it is answered waits
    page.goto(server.address)
    page.get_by_label("Text", exact=True).fill("A text with gap.")
    page.locator("#masking").wait_for()
    page.get_by_role("button", name="Fill the gaps").click()
    page.get_by_text("There is no gap: click a word to mask it").wait_for()
    words(page).nth(0).click()
    words(page).nth(1).click()
    page.get_by_text("2 masked.").wait_for()
    assert words(page).all_text_contents() == ["[1]", "[2]", "with", "gap"]
    words(page).nth(0).click()  # and it is there again
    assert words(page).all_text_contents() == ["A", "[1]", "with", "gap"]
    page.get_by_role("button", name="Fill the gaps").click()
    page.get_by_text("Done.").wait_for(timeout=120_000)
    sections = page.locator("#models section")
    assert sections.count() == 2 and sections.nth(1).locator(".said").count() == 1
    question = {"model": "run, step 9", "text": "A <extra_id_0> with gap."}
    (fills,) = asked(server, "/api/fill", question)[1]["gaps"]
    assert sections.nth(1).locator(".said").text_content() == f"A {fills[0]['text']} with gap."
    assert sections.nth(1).locator(".fills bdi").all_text_contents() == [fill["text"] for fill in fills]
    assert len(fills) == 5 and "%" in (sections.nth(1).locator(".fills small").first.text_content() or "")
    assert sections.nth(1).locator(".hidden").all_text_contents() == ["hidden: text, not among the first 5"]


@pytest.mark.night
@pytest.mark.parametrize(("scheme", "width"), [("light", 1280), ("dark", 360)])
def test_the_page_in_a_browser(scheme: Literal["light", "dark"], width: int, players: list[Player]) -> None:
    requests: list[str] = []
    errors: list[str] = []
    with serving(players) as server, browser.browser() as chromium:
        page = chromium.new_page(color_scheme=scheme, viewport={"width": width, "height": 900})
        page.on("request", lambda request: requests.append(request.url))
        page.on("pageerror", lambda error: errors.append(str(error)))
        fill_a_gap(page, server)
        assert not browser.faults(page) and not errors
        wide = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        assert wide <= 0, "the page is wider than the screen"
        assert all(url.startswith((server.address, "data:")) for url in requests), requests
        if "LIMBA_SCREENSHOTS" in os.environ:
            page.screenshot(path=Path(os.environ["LIMBA_SCREENSHOTS"], f"play_{scheme}.png"), full_page=True)
        page.evaluate(PASTE)
        page.get_by_text("The pasted text has 10,000,000 letters; give at most 20,000.").wait_for()
        assert page.get_by_label("Text", exact=True).input_value() == "A text with gap."
        sent = "{method: 'POST', headers, body: JSON.stringify({text: 'x'.repeat(10_000_000)})}"
        answer = page.evaluate(f"fetch('/api/texts', {sent}).then((answer) => answer.json())")
        assert answer["error"] == "The request has 10,000,011 bytes; send at most 200,000."
        assert page.evaluate("fetch('/api/models').then((answer) => answer.status)") == 200 and not errors


@pytest.mark.night
def test_what_one_does_on_the_page(players: list[Player], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    waiting = [["A ", "text", " that ", "waits", "."], ["Another one."], ["A longer one. " * 20]]
    monkeypatch.setattr(players[0], "_examples", waiting)
    (tmp_path / "mine.jsonl").write_text('{"inputs": "Mine has ___ gap."}\nnone\n{"text": "Ours."}\n')
    errors: list[str] = []
    with serving(players[:1]) as server, browser.browser() as chromium:
        allowed = ["clipboard-read", "clipboard-write"]
        context = chromium.new_context(permissions=allowed, viewport={"width": 360, "height": 900})
        page = context.new_page()
        other = context.new_page()
        for tab in (page, other):  # a page opened twice
            tab.on("pageerror", lambda error: errors.append(str(error)))
            opened(tab, server)
            assert words(tab).all_text_contents() == ["A", "[1]", "that", "[2]"]
            tab.get_by_role("button", name="Fill the gaps").click()
        for tab in (page, other):
            tab.get_by_text("Done.").wait_for(timeout=120_000)
            assert tab.locator(".hidden").count() == 2 and tab.locator(".fills").count() == 2
        page.get_by_role("button", name="Copy").click()
        page.get_by_text("Copied.").wait_for()
        copied = page.evaluate("navigator.clipboard.readText()")
        assert copied == page.locator(".said").text_content() and copied.startswith("A ")
        box = page.get_by_label("Text", exact=True)
        assert not box.is_visible()  # its words are shown above
        page.get_by_text("Change the text").click()
        box.fill("Now, A text that waits.")  # what is masked stays so, and moves
        assert words(page).all_text_contents() == ["Now", "A", "[1]", "that", "[2]"]
        assert page.locator(".hidden").count() == 0  # the answer was another text's
        page.locator("#words").click(position={"x": 2, "y": 2})
        page.get_by_text("There is no word here").wait_for()
        box.fill("One")
        words(page).nth(0).click()
        page.get_by_role("button", name="Fill the gaps").click()
        page.get_by_text("Done.").wait_for(timeout=120_000)
        assert page.locator(".hidden").text_content() == "hidden: One, not among the first 5"
        page.get_by_text("Asked before").click()
        page.get_by_role("button", name="A <extra_id_0> that <extra_id_1>.").click()
        assert box.input_value() == "A text that waits." and page.locator(".hidden").count() == 2
        page.get_by_label("Texts of a file").set_input_files(tmp_path / "mine.jsonl")
        page.get_by_text("2 of 3 lines of mine.jsonl are among the examples.").wait_for()
        assert words(page).all_text_contents() == ["Mine", "has", "[1]", "gap"]
        words(page).nth(2).click()
        page.get_by_text("This gap was typed, and no word is hidden in it.").wait_for()
        page.get_by_label("Examples").select_option(label="Another one.")
        assert words(page).all_text_contents() == ["Another", "one"]
        held: list[Route] = []
        page.route("**/api/texts", lambda route: held.append(route))
        page.get_by_text("Write a text, or see its pieces").click()
        page.get_by_role("button", name="Write", exact=True).click()
        page.get_by_text("Working").wait_for()
        answer = held[0].fetch(timeout=120_000)
        page.locator(".said", has_text=re.compile(" …$")).wait_for()  # what is written so far
        held[0].fulfill(response=answer)
        page.get_by_text("Done.").wait_for(timeout=120_000)
        assert page.locator(".said", has_text=re.compile(" …$")).count() == 0
        assert not errors and not browser.faults(page)
        assert page.evaluate("document.documentElement.scrollWidth") <= 360, "the page is wider than the screen"


@pytest.mark.slow
def test_gaps_are_filled_as_in_python_and_pieces_of_others_are_not_shown(players: list[Player], run: Path) -> None:
    with serving(players) as server:
        status, answer = asked(server, "/api/fill", {"model": "run, step 9", "text": TEXT, "top": 3})
        (expected,) = limba.load(run, step=9, vocabulary="byte").fill(TEXT, top=3)
        assert status == 200 and [fill["text"] for fill in answer["gaps"][0]] == [fill.text for fill in expected]
        np.testing.assert_allclose(
            [fill["probability"] for fill in answer["gaps"][0]], [fill.probability for fill in expected], atol=1e-6
        )
        for text, words in (("no gap", "has no gap"), ("<extra_id_1>", "Gap 1 of the text"), ("a", "top is 0")):
            asked_of = {"model": "run, step 9", "text": text, "top": 0 if text == "a" else 5}
            status, answer = asked(server, "/api/fill", asked_of)
            assert status == 400 and words in answer["error"]
        body = {"model": "run, step 9", "text": TEXT, "way": "sample", "num_samples": 8, "temperature": 5}
        _, answer = asked(server, "/api/texts", body)
        named = [[piece["text"] for piece in written["pieces"]] for written in answer["texts"]]
        assert any("<extra_id_" in pieces[-1] for pieces in named), "some began a gap that the text does not have"
        assert not any(re.fullmatch("<extra_id_[1-9]>", piece) for pieces in named for piece in pieces[:-1])
