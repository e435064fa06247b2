"""The docs site builds without a warning, links included, and loads nothing from elsewhere."""

import contextlib
import doctest
import functools
import hashlib
import html
import html.parser
import http.server
import importlib
import json
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import pytest

ROOT = Path(__file__).parent.parent


class Loaded(html.parser.HTMLParser):
    """Collects what a browser loads with a page: scripts, styles, pictures."""

    def __init__(self) -> None:
        super().__init__()
        self.addresses = list[str]()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = dict(attrs)
        key = {"script": "src", "img": "src", "iframe": "src", "link": "href"}.get(tag)
        if key and attributes.get(key) and attributes.get("rel") not in ("canonical", "edit", "next", "prev"):
            self.addresses.append(str(attributes[key]))


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "docs/site/build.py", str(folder)]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ended.returncode == 0 and "WARNING" not in ended.stderr, ended.stderr[-4000:]
    return folder


def test_the_pictures_are_those_of_the_run_that_readme_shows_and_of_the_pages_of_today() -> None:
    """`python -m benchmarks.readme` makes all of them again."""
    record = json.loads((ROOT / "docs" / "pictures.json").read_text())
    readme = (ROOT / "README.md").read_text()
    run = record["run"]
    assert f"step {run['step']} validation: loss {run['validation_loss']:.4f} |" in readme
    sources = {
        "report": [*(ROOT / "limba/tools/pages").rglob("*"), *(ROOT / "limba/evaluation").glob("*.py")],
        "play": (ROOT / "limba/tools/pages").rglob("*"),
    }
    for name, paths in sources.items():
        picture = record["pictures"][name]
        assert hashlib.sha256((ROOT / "docs" / f"{name}.webp").read_bytes()).hexdigest() == picture["sha256"]
        texts = [path.read_text() for path in paths if path.suffix in (".html", ".js", ".py", ".yml", ".md")]
        known = [said for said in picture["says"] if any(said in text for text in texts)]
        assert len(known) >= 3 and len(known) >= 0.5 * len(picture["says"]), (name, picture["says"])


@pytest.mark.lint
def test_the_examples_of_the_site_s_program_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "docs/site"))
    for name, least in (("reference", 4), ("examples", 1)):
        tried = doctest.testmod(importlib.import_module(name))
        assert tried.attempted >= least and not tried.failed


@pytest.mark.night
def test_every_page_is_in_the_site_and_loads_nothing_from_elsewhere(site: Path) -> None:
    pages = {path.relative_to(ROOT / "docs").with_suffix(".html") for path in (ROOT / "docs").rglob("*.md")}
    assert not [page for page in pages if not (site / page).is_file()]
    assert (site / "index.html").stat().st_size > 10_000 and (site / "changelog.html").is_file()
    for path in site.rglob("*.html"):
        loaded = Loaded()
        loaded.feed(path.read_text(encoding="utf-8"))
        assert not [address for address in loaded.addresses if "//" in address], path


@pytest.mark.night
def test_examples_are_code_and_pages_have_their_language(site: Path) -> None:
    for page in ("config", "api"):
        text = (site / "reference" / f"{page}.html").read_text()
        assert "&gt;&gt;&gt;" in text and "<blockquote>" not in text
    for name, language in (("start", "en"), ("start.ja", "ja"), ("gcp.ja", "ja"), ("start.ro", "ro")):
        assert f'<html lang="{language}"' in (site / f"{name}.html").read_text()
    assert not re.search(r"[ぁ-ん一-龥]\n[ぁ-ん一-龥]", (site / "start.ja.html").read_text())


@pytest.mark.night
def test_the_reference_has_every_field_command_and_name(site: Path) -> None:
    import dataclasses

    import limba
    from limba import config
    from limba.cli.main import COMMANDS

    fields, commands, api = (
        (site / "reference" / f"{page}.html").read_text() for page in ("config", "commands", "api")
    )
    kinds = [kind for kind in vars(config).values() if dataclasses.is_dataclass(kind)]
    named = [f"<code>{field.name}</code>" for kind in kinds for field in dataclasses.fields(kind)]
    assert len(named) > 120 and not [name for name in named if name not in fields]
    # A field whose meaning is nowhere: its row has an empty cell where the comment would stand.
    empty = re.findall(r"<tr>\s*<td><code>(\w+)</code>.*?</td>\s*<td>.*?</td>\s*<td></td>", fields)
    assert not empty, f"these fields have no comment: {empty}"
    assert all(f"limba {name}" in commands for name in COMMANDS)
    assert all(f'id="limba.{name}"' in api for name in limba.__all__)
    cells = re.findall(r"<td>(.*?)</td>", fields, re.DOTALL)
    assert not [cell for cell in cells if "\\|" in cell]
    assert any("<code>str | None</code>" in html.unescape(cell) for cell in cells)


@contextlib.contextmanager
def served(folder: Path) -> Iterator[str]:
    """Yields the address at which a server has the files of a folder."""
    handler = functools.partial(QuietHandler, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


class QuietHandler(http.server.SimpleHTTPRequestHandler):
    """Serves files, and does not log each of them."""

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.mark.night
@pytest.mark.parametrize("is_served", [False, True], ids=["disk", "server"])
def test_pages_are_searched(site: Path, is_served: bool) -> None:
    """Browsers start no worker for pages of a disk; docs/site/iframe-worker.js stands in for one."""
    from tests.browser import browser

    faults: list[str] = []
    with served(site) as address, browser() as opened:
        start = f"{address}/index.html" if is_served else f"file://{site}/index.html"
        page = opened.new_page()
        page.on("pageerror", lambda error: faults.append(str(error)))
        for words, expected in (("preempted", "resume.html"), ("tokenizer", "data.html"), ("Windows", "install.html")):
            page.goto(start)
            page.locator(".md-search__input").press_sequentially(words)
            page.locator(f".md-search-result__link[href*='{expected}']").first.wait_for(
                state="attached", timeout=60_000
            )
    assert not faults


@pytest.mark.night
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_pages_are_for_everybody(site: Path, scheme: Literal["light", "dark"]) -> None:
    """On a phone and on a desk, by day and by night: nothing is wider than the screen, and axe finds no fault."""
    from tests.browser import browser, faults

    with browser() as opened:
        for width in (390, 1280):
            page = opened.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
            for name in ("index", "cost", "resume", "start.ja", "reference/config", "reference/api"):
                page.goto(f"file://{site}/{name}.html")
                assert page.evaluate("document.documentElement.scrollWidth") <= width, (name, width)
                # Chromium and Firefox let wide tables be scrolled by keys, which axe does not know.
                found = [fault for fault in faults(page) if not fault.startswith("scrollable-region-focusable")]
                assert not found, (name, width, found)
