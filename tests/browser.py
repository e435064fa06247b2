"""A real browser without a window: Debian's Chromium, driven by playwright's client."""

import contextlib
import shutil
from collections.abc import Iterator

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, sync_playwright

OFFLINE = "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"  # this machine is all that can be reached
NAMES = ("chromium", "chromium-browser", "google-chrome")


@contextlib.contextmanager
def browser() -> Iterator[Browser]:
    """A headless browser; a test that needs one fails without it."""
    program = next((path for name in NAMES if (path := shutil.which(name))), None)
    if program is None:
        pytest.fail("There is no Chromium; apt-get install chromium.")
    with sync_playwright() as play:
        launched = play.chromium.launch(executable_path=program, args=["--no-sandbox", OFFLINE])
        try:
            yield launched
        finally:
            launched.close()


def faults(page: Page) -> list[str]:
    """Returns what axe-core finds wrong with a page that is serious or worse."""
    violations = Axe().run(page).response["violations"]
    return [
        f"{violation['id']}: {violation['help']}"
        for violation in violations
        if violation["impact"] in ("serious", "critical")
    ]
