"""`limba report`: what is written, served and refused, and that a browser shows the page and keeps it new."""

import contextlib
import http.client
import json
import os
import re
import shlex
import socket
import subprocess
import sys
import threading
import xml.etree.ElementTree
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import fsspec
import numpy as np
import pytest
from playwright.sync_api import Error, Page

from limba.cli import flags, main
from limba.evaluation.run_directory import RunDirectory
from limba.tools.pages import report
from limba.tools.pages.page.page import MARK, MOST_BYTES
from limba.tools.pages.page.runs import Run
from limba.tools.pages.page.server import ReportServer
from limba.training.metrics.growing_files import Uploads
from tests import browser
from tests.bucket_server import emulated
from tests.evaluation import report_runs
from tests.evaluation.report_runs import append, opened, recorded, rich, train_record, validation_record
from tests.evaluation.test_page import write_long


@contextlib.contextmanager
def serving(*directories: Path, token: str | None = None) -> Iterator[ReportServer]:
    with ReportServer("127.0.0.1", 0, opened(*directories), token) as server:
        server._every = 0.0
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        yield server
        server.shutdown()
        thread.join(10)


def asked(server: ReportServer, path: str, **headers: str) -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=120)
    connection.request("GET", path, headers=headers)
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    return answer.status, text


def error_of(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    capsys.readouterr()
    assert main.main(["report", *arguments]) == 2, arguments
    (sentence,) = capsys.readouterr().err.strip().splitlines()
    return sentence


@pytest.mark.slow
def test_a_report_is_printed_and_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = recorded(tmp_path)
    assert main.main(["report", str(run)]) == 0
    printed = capsys.readouterr().out
    for words in ("steps               300", "training loss       8.", "validation loss     ", "bits per byte       ",
                  f"picture             {run}/loss.png", f"report              {run}/report.html"):  # fmt: skip
        assert words in printed, words
    assert (run / "loss.png").stat().st_size > 5_000
    assert MARK in (run / "report.html").read_text() and (run / "report.html").stat().st_size < MOST_BYTES
    # Two of them, into a named file; nothing is written into the directories.
    (run / "report.html").unlink()
    (run / "loss.png").unlink()
    other = recorded(tmp_path, 1)
    before = sorted(tmp_path.rglob("*"))
    page = tmp_path / "both.html"
    assert main.main(["report", str(run), str(other), f"--output={page}"]) == 0
    printed = capsys.readouterr().out
    assert f"run                 {run}" in printed and f"run                 {other}" in printed
    assert "Report of 2 runs" in page.read_text() and sorted(tmp_path.rglob("*")) == sorted([*before, page])
    assert main.main(["report", str(run), str(other), f"--output={page}"]) == 0, "our own page may be replaced"
    assert main.main(["report", str(run), str(other)]) == 0 and (run / "compared.html").exists()


@pytest.mark.slow
def test_an_evaluation_without_a_finite_number_leaves_a_report(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = recorded(tmp_path)
    diverged = dict.fromkeys(("loss", "cross_entropy", "perplexity", "accuracy", "bits_per_byte"), float("nan"))
    append(run, train_record(400), {**validation_record(400), **diverged, "bits_per_byte/cyrillic": float("nan")})
    assert main.main(["report", str(run)]) == 0, capsys.readouterr().err
    text = capsys.readouterr().out
    assert "perplexity          nan a token" in text and "token accuracy      nan%" in text
    assert "bits per byte       nan of the text" in text and "latin 1.000 (75 % of the bytes)" in text
    assert "cyrillic nan (25 %)" in text and (run / "report.html").exists() and (run / "loss.png").exists()


def test_bad_input_is_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = recorded(tmp_path)
    (tmp_path / "empty").mkdir()
    (tmp_path / "notes.txt").write_text("mine")
    begun = recorded(tmp_path, 1, "begun")
    (begun / "metrics.jsonl").unlink()
    newer = recorded(tmp_path, 1, "newer")
    (newer / "config.json").write_text((newer / "config.json").read_text().replace('"format": 2', '"format": 99'))
    for arguments, words in [
        ([], "write limba report MODEL_DIR"),
        ([str(tmp_path / "none")], "is not a folder"),
        ([str(tmp_path / "notes.txt")], "is not a folder"),
        ([str(tmp_path / "empty")], "it is not a run, or one that has not begun"),
        ([str(begun)], "compiles its step"),
        ([str(newer)], "reads format 2"),
        ([str(run), str(newer)], "reads format 2"),
        ([str(run), f"--output={tmp_path}/notes.txt"], "is not a report"),
        ([str(run), f"--output={tmp_path}"], "a folder"),
        ([f"{run}/{number}" for number in range(9)], "give at most 8"),
        ([str(run), "--serve=70000"], "--serve is 70000"),
        ([str(run), "--serve", "--output=a.html"], "--output goes without --serve"),
        ([str(run), "--host=0.0.0.0"], "go with --serve"),
        ([str(run), "--serve", "--token=x"], "--token is given without --host"),
        (["--serve", str(tmp_path / "none")], "is not a folder"),
    ]:
        assert words in error_of(capsys, *arguments), arguments
    assert (tmp_path / "notes.txt").read_text() == "mine"
    with (run / "metrics.jsonl").open("ab") as file:
        file.write(b'{"kind": "tr\n')
    assert main.main(["report", str(run)]) == 0
    assert "note                1 line of metrics.jsonl cannot be read" in capsys.readouterr().out


def test_a_port_in_use_is_named_with_its_program(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = recorded(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        sentence = error_of(capsys, str(run), f"--serve={port}")
    assert f"Port {port} of 127.0.0.1 is in use by process {os.getpid()}: " in sentence


def test_the_next_port_is_taken_if_none_was_asked_for(tmp_path: Path) -> None:
    run = recorded(tmp_path)
    command = [sys.executable, "-m", "limba", "report", str(run), "--serve"]
    with contextlib.ExitStack() as taken:
        with contextlib.suppress(OSError):  # it may be in use already
            taken.enter_context(socket.create_server(("127.0.0.1", 8000)))
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            line = process.stdout.readline()
            process.terminate()
    assert line.startswith("Open http://127.0.0.1:80") and ":8000/" not in line, line


@pytest.mark.slow
def test_a_report_needs_neither_jax_nor_tensorflow(tmp_path: Path) -> None:
    run = recorded(tmp_path)
    code = (
        "import sys; from limba.cli import main; status = main.main(sys.argv[1:]);"
        "print({'jax', 'tensorflow', 'seqio', 'torch'} & set(sys.modules), file=sys.stderr); sys.exit(status)"
    )
    ended = subprocess.run([sys.executable, "-c", code, "report", str(run)], capture_output=True, text=True, check=True)
    assert ended.stderr == "set()\n"


def test_the_documented_prompt_with_a_gap_is_that_of_a_run() -> None:
    page = (Path(__file__).parents[2] / "docs" / "development" / "report.md").read_text()
    commands = re.findall(r"^limba train (.*?)^(?:```|limba )", page, re.MULTILINE | re.DOTALL)
    (command,) = (command for command in commands if "EvaluationConfig.prompts" in command)
    config = flags.parse_args(shlex.split(command.replace("\\\n", " "))).config
    assert config.evaluation.prompts == ("Bucharest is the <extra_id_0> of Romania.",)
    assert not config.model.is_decoder_only and config.data.vocabulary == "byte"


def test_only_this_machine_or_the_one_with_the_token_is_answered(tmp_path: Path) -> None:
    run = recorded(tmp_path)
    with serving(run) as server:
        assert server.server_address[0] == "127.0.0.1"
        assert asked(server, "/api/report", Host="evil.example")[0] == 403
        status, text = asked(server, "/api/report")
        assert status == 200 and json.loads(text)["charts"]["loss"]
        assert asked(server, "/nothing")[0] == 404
        (run / "metrics.jsonl").unlink()
        (run / "metrics.jsonl").mkdir()
        status, text = asked(server, "/api/report")
        assert status == 400 and "metrics.jsonl cannot be read" in json.loads(text)["error"], "and the server continues"
    (run / "metrics.jsonl").rmdir()
    with serving(recorded(tmp_path, 1), token="secret") as server:
        assert asked(server, "/")[0] == 403 and asked(server, "/?token=secret")[0] == 200


def test_the_server_is_known_by_its_name_at_any_port(tmp_path: Path) -> None:
    with serving(recorded(tmp_path)) as server:
        for host in ("127.0.0.1", "localhost", "LocalHost:9000", f"localhost:{server.server_port}"):
            assert asked(server, "/api/report", Host=host)[0] == 200, host  # port 80, or behind an SSH tunnel
        for host in ("evil.example", f"evil.example:{server.server_port}", "localhost.evil:80", "", "localhost:80:80"):
            assert asked(server, "/api/report", Host=host)[0] == 403, host


@pytest.mark.parametrize("token", ["p+q", "a&b=c", "50%41", "a#b"])
def test_the_printed_address_is_answered(token: str, tmp_path: Path) -> None:
    with serving(recorded(tmp_path), token=token) as server:
        path = server.address.removeprefix(f"http://127.0.0.1:{server.server_port}")
        assert asked(server, path)[0] == 200, path
        assert asked(server, "/?token=x")[0] == 403


def test_a_configuration_of_flags_is_kept_when_the_run_starts_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = recorded(tmp_path)
    served = list[Run]()
    monkeypatch.setattr(report, "_serve", lambda runs, *_: served.extend(runs))
    names = {"CORPUS": "'a.txt'", "VOCABULARY": "'byte'", "VOCAB_SIZE": "384", "TRAIN_STEPS": "700"}
    gin = [f"--gin.{name}={value}" for name, value in names.items()]
    assert main.main(["report", "--serve", "--gin_file=gin/demo.gin", *gin, f"--gin.MODEL_DIR='{run}'"]) == 0
    assert main.main(["report", "--serve", str(run)]) == 0
    append(run, {"kind": "start", "step": 300}, train_record(310))
    (run / "config.json").write_text((run / "config.json").read_text().replace("300", "600"))
    assert [each.update() for each in served] == [True, True]
    assert [each.config.train_steps for each in served] == [700, 600]


def has_ipv6() -> bool:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        return False
    return True


needs_ipv6 = pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6")


@pytest.mark.parametrize(
    "host", ["0.0.0.0", pytest.param("::", marks=needs_ipv6), pytest.param("::1", marks=needs_ipv6)]
)
def test_an_address_that_others_can_open_is_printed(host: str, tmp_path: Path) -> None:
    with ReportServer(host, 0, opened(recorded(tmp_path)), "secret") as server:
        name = "[::1]" if host == "::1" else socket.gethostname()
        assert server.address == f"http://{name}:{server.server_port}/?token=secret"


@pytest.mark.parametrize("host", ["nohost.invalid", "192.0.2.1"])  # RFC 2606 and 5737: no machine has these
def test_a_host_that_is_not_this_machine_is_named(
    host: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sentence = error_of(capsys, str(recorded(tmp_path)), "--serve", f"--host={host}")
    assert f"--host is {host}, where this machine cannot listen" in sentence and "Port" not in sentence


@pytest.mark.filterwarnings("ignore:Sending a large body:ResourceWarning")
@pytest.mark.slow
def test_a_run_in_a_bucket_is_reported_there_and_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = rich(tmp_path)
    with emulated(monkeypatch) as server:
        system, _ = fsspec.core.url_to_fs("gs://bucket/run")
        for path in run.rglob("*"):
            if path.is_file():
                system.pipe_file(f"bucket/run/{path.relative_to(run)}", path.read_bytes())
        assert main.main(["report", "gs://bucket/run"]) == 0, capsys.readouterr().err
        assert "report              gs://bucket/run/report.html" in capsys.readouterr().out
        page = server.data("run/report.html").decode()
        assert MARK in page and report_runs.HEBREW in page and len(server.data("run/loss.png")) > 5_000
        (read,) = opened(run)
        followed = Run("run", RunDirectory("gs://bucket/run"), read.config)
        assert followed.update() and followed.train.steps.tolist() == read.train.steps.tolist()
        lines = Uploads("gs://bucket/run/metrics.jsonl")  # as a run writes them
        for step in (305, 310):
            lines.write(json.dumps(train_record(step)).encode() + b"\n")
            assert lines.flush() and followed.update() and followed.train.steps[-1] == step
        assert not followed.update() and not followed.history.num_damaged


# Whether a chart shows something: pixels of its canvas that are not transparent, and how many colours they have.
PIXELS = """name => {
  const found = [];
  const look = (node) => {
    if (node.tagName === 'CANVAS') found.push(node);
    for (const each of [...(node.shadowRoot ? node.shadowRoot.children : []), ...node.children]) look(each);
  };
  look(document.getElementById('chart-' + name));
  let pixels = 0;
  const colours = new Set();
  for (const canvas of found) {
    if (!canvas.width || !canvas.height) continue;
    const data = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data;
    for (let i = 0; i < data.length; i += 4) {
      if (data[i + 3] > 0) { pixels++; if (data[i + 3] === 255) colours.add(data.slice(i, i + 3).join()); }
    }
  }
  return {pixels, colours: [...colours]};
}"""


def opened_page(chromium: Any, address: str, errors: list[str], **options: Any) -> Page:
    page = chromium.new_page(**options)
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
    page.goto(address)
    until(page, "document.documentElement.dataset.drawn")
    return page


def until(page: Page, expression: str) -> None:
    """Waits until an expression is true; playwright's own way needs `eval`, which the page forbids."""
    for _ in range(600):
        with contextlib.suppress(Error):  # the page is being loaded again
            if page.evaluate(expression):
                return
        page.wait_for_timeout(100)
    pytest.fail(f"never true: {expression}")


def check_drawn(page: Page) -> None:
    """Every chart has lines of its palette's colours."""
    page.wait_for_timeout(300)  # a frame is drawn
    names = page.evaluate("Object.keys(window.limba.plots)")
    assert len(names) >= 15
    for name in names:
        pixels = page.evaluate(PIXELS, name)
        assert pixels["pixels"] > 1_000, (name, pixels["pixels"])
    palette = page.evaluate(
        "[0, 1].map(i => getComputedStyle(document.documentElement).getPropertyValue('--line-' + i).trim())"
    )
    drawn = page.evaluate(PIXELS, "loss")["colours"]
    for colour in palette:
        rgb = [int(colour[i : i + 2], 16) for i in (1, 3, 5)]
        nearest = min(
            max(abs(int(part) - wanted) for part, wanted in zip(seen.split(","), rgb, strict=True)) for seen in drawn
        )
        assert nearest < 32, f"no line has the colour {colour}"  # edges are blended with the background


def check_scales(page: Page) -> None:
    """Logarithms, smoothing, and a chart as a file that stands alone."""
    page.get_by_role("combobox", name="Shown").select_option("all")
    page.wait_for_timeout(300)
    drawn = "window.limba.plots.loss.document.get_model_by_name('loss/0').data.y"
    raw = page.evaluate(drawn)
    scales = "['x_scale', 'y_scale'].map(each => window.limba.plots.loss[each].type)"
    assert page.evaluate(scales) == ["LinearScale", "LinearScale"]
    page.get_by_role("combobox", name="Scale").select_option("log of both")
    page.get_by_role("combobox", name="Smoothing").select_option("some")
    page.wait_for_timeout(300)
    assert page.evaluate(scales) == ["LogScale", "LogScale"]
    assert page.evaluate("window.limba.plots.padding.y_scale.type") == "LinearScale"
    reach = max(1, round(0.02 * len(raw)))
    weights = 1 - np.abs(np.arange(-reach, reach + 1)) / (reach + 1)
    sums = np.convolve(raw, weights)[reach:-reach]
    counted = np.convolve(np.ones(len(raw)), weights)[reach:-reach]
    assert page.evaluate(drawn) == pytest.approx((sums / counted).tolist(), rel=1e-6)
    assert page.evaluate(drawn.replace("loss/0", "loss/0/raw")) == raw  # the pale line under it
    with page.expect_download() as download:
        page.get_by_role("button", name="Save Loss as SVG").click()
    assert download.value.suggested_filename == "loss.svg"
    text = download.value.path().read_text(encoding="utf-8")
    root = xml.etree.ElementTree.fromstring(text)
    words = [element.text for element in root.iter("{http://www.w3.org/2000/svg}text")]
    assert words[0] == "Loss" and {"training", "validation (square)", "nats per target token"} <= set(words)
    assert "href" not in text.replace('xlink:href="#', "") and len(text) > 5_000
    page.get_by_role("combobox", name="Scale").select_option("linear")
    page.get_by_role("combobox", name="Smoothing").select_option("none")
    page.wait_for_timeout(300)
    assert page.evaluate(scales) == ["LinearScale", "LinearScale"] and page.evaluate(drawn) == raw


# The charts whose button does not stand in the row of their title.
BELOW_ITS_TITLE = """[...document.querySelectorAll("figcaption")].filter(each => {
  const [title, button] = ["h3", ".svg"].map(name => each.querySelector(name).getBoundingClientRect());
  return button.width > 0 && button.top >= title.bottom;
}).map(each => each.innerText)"""


@pytest.mark.night
@pytest.mark.parametrize(("scheme", "width"), [("light", 1280), ("dark", 360)])
def test_the_page_in_a_browser(scheme: Literal["light", "dark"], width: int, tmp_path: Path) -> None:
    """The file itself, without a server: nothing is loaded, everything is drawn."""
    run = rich(tmp_path)
    errors = list[str]()
    requests = list[str]()
    assert main.main(["report", str(run), f"--output={tmp_path}/page.html"]) == 0
    with browser.browser() as chromium:
        page = opened_page(
            chromium, f"file://{tmp_path}/page.html", errors, color_scheme=scheme,
            viewport={"width": width, "height": 900},
        )  # fmt: skip
        page.on("request", lambda request: requests.append(request.url))
        check_drawn(page)
        assert page.evaluate("document.documentElement.dataset.scheme") == scheme
        wide = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        assert wide <= 0, "the page is wider than the screen"
        assert page.evaluate(BELOW_ITS_TITLE) == []
        # The slider moves through the steps, by the keyboard.
        slider = page.get_by_role("slider", name="Step")
        assert page.locator("#sample-step").text_content() == "step 300"
        slider.press("Home")
        assert page.locator("#sample-step").text_content() == "step 100"
        assert slider.get_attribute("aria-valuetext") == "step 100"
        gap = page.locator(".panel", has_text="Filled gaps")
        assert gap.locator("p.text").all_text_contents() == ["The <extra_id_0> is", "The [gap 100] is"]
        hebrew = page.locator(".panel p.text", has_text=f"{report_runs.HEBREW} 100")
        assert hebrew.evaluate("node => getComputedStyle(node).direction") == "rtl"
        japanese = page.locator(".panel p.text", has_text=report_runs.JAPANESE * 2)
        assert japanese.get_attribute("lang") == "ja"
        assert page.evaluate("window.broken") is None and page.locator(".panel img").count() == 0
        # Another axis, a part of the run, and the numbers of a chart.
        before = page.evaluate(PIXELS, "loss")
        page.get_by_role("combobox", name="Over").select_option("hours")
        page.get_by_role("combobox", name="Shown").select_option("the last half")
        page.wait_for_timeout(300)
        assert page.evaluate("window.limba.plots.loss.below[0].axis_label") == "hours in steps"
        first = page.evaluate("window.limba.plots.loss.document.get_model_by_name('loss/0').data.x[0]")
        assert first > 0 and page.evaluate(PIXELS, "loss")["pixels"] != before["pixels"]
        assert page.get_by_role("navigation", name="Contents").get_by_role("link").all_text_contents()[:2] == [
            "Loss", "Figures"
        ]  # fmt: skip
        check_scales(page)
        page.get_by_text("Loss: the numbers").click()
        rows = page.locator("[data-chart=loss] table tr")
        rows.nth(50).wait_for()  # the table is written after it has been opened
        assert "8.79" in (rows.nth(1).text_content() or "")
        page.get_by_text("Events: the numbers").click()
        page.locator("[data-chart=events] td", has_text="fault: NonFiniteError").first.wait_for()
        assert not browser.faults(page) and not errors and not requests
        if "LIMBA_SCREENSHOTS" in os.environ:
            page.screenshot(path=Path(os.environ["LIMBA_SCREENSHOTS"], f"report_{scheme}.png"), full_page=True)


@pytest.mark.night
def test_events_before_a_branch_stand_where_it_begins(tmp_path: Path) -> None:
    run = recorded(tmp_path)
    start = {"kind": "start", "step": 40, "flops_per_step": 1e12, "environment": {}}
    (run / "metrics.jsonl").write_text("")
    append(run, start, train_record(45), train_record(50))
    (run / "skipped_batches.jsonl").write_text(json.dumps({"batch": 30, "reason": "x", "rows": []}) + "\n")
    assert main.main(["report", str(run)]) == 0
    errors = list[str]()
    with browser.browser() as chromium:
        page = opened_page(chromium, f"file://{run}/report.html", errors)
        page.get_by_role("combobox", name="Over").select_option("flop")
        page.wait_for_timeout(300)
        drawn = "window.limba.plots.{}.document.get_model_by_name('{}/0').data.x"
        assert page.evaluate(drawn.format("events", "events")) == [0, 0]
        assert page.evaluate(drawn.format("loss", "loss")) == pytest.approx([5, 10])
        assert not errors


@pytest.mark.slow
def test_an_open_page_follows_the_run_and_keeps_its_place(tmp_path: Path) -> None:
    run = recorded(tmp_path)
    other = recorded(tmp_path, 1)
    errors = list[str]()
    with serving(run, other) as server, browser.browser() as chromium:
        page = opened_page(chromium, server.address, errors, viewport={"width": 1000, "height": 700})
        check_drawn(page)
        page.get_by_role("combobox", name="Over").select_option("tokens")
        page.get_by_text("Update norm: the numbers").click()
        page.evaluate("scrollTo({top: 900, behavior: 'instant'})")
        last = "window.limba.plots.loss.document.get_model_by_name('loss/0').data.said.at(-1)"
        assert page.evaluate(last).endswith("at step 300")
        record = {name: value for name, value in train_record(305, loss=1.25).items() if name in
                  json.loads((run / "metrics.jsonl").read_text().splitlines()[1])}  # fmt: skip
        append(run, record)
        page.evaluate("window.limba.refresh()")
        until(page, f"{last} === '1.25 at step 305'")
        assert "1.25 at step 305" in (page.locator("#said-loss").text_content() or "")
        assert "305 of 300" in (page.locator("#facts").text_content() or "")
        assert page.evaluate("scrollY") == 900
        # Something that has no chart yet: the page is loaded again, at the same place, with the same choices.
        page.evaluate("window.isFirst = true")
        append(run, {"kind": "text", "step": 305, "chrf": 12.5}, validation_record(305))
        page.evaluate("window.limba.refresh()")
        until(page, "!window.isFirst && document.documentElement.dataset.drawn && scrollY === 900")
        assert page.locator("#said-text-chrf").text_content() == "seed0: 12.5 at step 305."
        assert page.get_by_role("combobox", name="Over").input_value() == "tokens"
        assert page.locator("[data-chart=update_norm] details").get_attribute("open") is not None
        assert not errors
        (run / "metrics.jsonl").unlink()
        (run / "metrics.jsonl").mkdir()
        page.evaluate("window.limba.refresh()")
        page.get_by_text("Not up to date").wait_for(timeout=30_000)


@pytest.mark.night
def test_a_million_steps_open_in_two_seconds(tmp_path: Path) -> None:
    run = write_long(tmp_path, 1_000_000, 100)
    assert main.main(["report", str(run)]) == 0
    with browser.browser() as chromium:
        page = chromium.new_page()
        errors = list[str]()
        page.on("pageerror", lambda error: errors.append(str(error)))
        measured = page.context.new_cdp_session(page)
        measured.send("Performance.enable", {"timeDomain": "threadTicks"})  # other programs may have the processor too
        page.goto(f"file://{run}/report.html")
        until(page, "document.documentElement.dataset.drawn")
        figures = {metric["name"]: metric["value"] for metric in measured.send("Performance.getMetrics")["metrics"]}
        elapsed = page.evaluate("performance.now()") / 1000
    print(f"{figures['TaskDuration']:.2f} s of the page's own time, {elapsed:.2f} s by the clock")
    assert 0.05 < figures["TaskDuration"] < 2.0 and not errors


KEYS = [(make(1)["kind"], key, None) for make in (train_record, validation_record) for key in make(1)]


@pytest.mark.parametrize(
    ("kind", "key", "value"),
    [("train", "seconds_per_step", "x"), *(pytest.param(*key, marks=pytest.mark.night) for key in KEYS)],
)
def test_records_that_lack_a_figure_get_a_sentence_or_a_report(
    kind: str, key: str, value: str | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = recorded(tmp_path)
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    for record in records:
        if record["kind"] == kind and record.pop(key, None) is not None and value is not None:
            record[key] = value
    (run / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    for command in ("report", "status"):
        status = main.main([command, str(run)])
        said = capsys.readouterr().err.splitlines()
        assert (status, len(said)) in ((0, 0), (2, 1)), said
        if key == "seconds_per_step" and kind == "train":
            assert status == 2 and "metrics.jsonl has a record that no run writes" in said[0]
