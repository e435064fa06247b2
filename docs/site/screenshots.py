"""Makes the pictures of the report and of the page to try a model, from a real run.

    python docs/site/screenshots.py MODEL_DIR [OTHER_MODEL_DIR]

Needs Debian's Chromium and the packages of requirements-test.txt. Writes docs/report.webp and docs/play.webp, each
under 150 kB, and docs/pictures.json, by which tests/test_site.py sees pictures that are no longer those of the pages.
`python -m benchmarks.readme` calls it with the run whose output README.md shows.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from PIL import Image
from playwright.sync_api import Browser, Page, ViewportSize, sync_playwright

ROOT = Path(__file__).parent.parent.parent
MOST_BYTES = 150_000
SIZE = {"width": 1280, "height": 960}
WIDE: ViewportSize = {"width": 1280, "height": 680}  # of the page to try a model, which is no longer than that
TEXT = "If the file does not exist, an exception is raised."
MASKED = "exception"  # the word of TEXT that is masked
ABOUT = ROOT / "docs" / "pictures.json"
# The words of headings, buttons and labels that a picture shows.
SEEN = """[...document.querySelectorAll("h1, h2, h3, button, label, summary")].filter(each => {
  const at = each.getBoundingClientRect();
  return at.width > 0 && at.top >= 0 && at.bottom <= innerHeight && at.right <= innerWidth;
}).map(each => each.innerText.trim()).filter(text => text)"""


def write(name: str, page: Page) -> dict[str, object]:
    """Writes what a page shows as docs/<name>.webp, with the best quality that is small enough.

    Returns the picture's checksum, its height, and the words that it shows.
    """
    image = Image.open(io.BytesIO(page.screenshot())).convert("RGB")
    for quality in (90, 80, 70, 60, 50, 40):
        buffer = io.BytesIO()
        image.save(buffer, "webp", quality=quality, method=6)
        if len(buffer.getvalue()) < MOST_BYTES:
            break
    else:
        raise SystemExit(f"{name} is larger than {MOST_BYTES:,} bytes.")
    path = ROOT / "docs" / f"{name}.webp"
    path.write_bytes(buffer.getvalue())
    print(f"{path}: {len(buffer.getvalue()):,} bytes, quality {quality}")
    checksum = hashlib.sha256(buffer.getvalue()).hexdigest()
    return {"sha256": checksum, "height": image.height, "says": page.evaluate(SEEN)}


@contextlib.contextmanager
def served(*arguments: str) -> Iterator[str]:
    """Yields the address that a command of ours serves a page at."""
    command = [sys.executable, "-m", "limba", *arguments]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            line = next((line for line in process.stdout if line.startswith("Open ")), None)
            if line is None:
                raise SystemExit(f"{' '.join(arguments)} serves no page.")
            yield line.split()[1]
        finally:
            process.terminate()


def report(page: Page, runs: Sequence[str]) -> dict[str, object]:
    """Makes the picture of the report of these runs."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "report.html"
        subprocess.run([sys.executable, "-m", "limba", "report", *runs, f"--output={path}"], cwd=ROOT, check=True)
        page.goto(f"file://{path}")
        page.wait_for_function("document.documentElement.dataset.drawn")
        page.wait_for_timeout(1_000)
        return write("report", page)


def play(page: Page, run: str) -> dict[str, object]:
    """Makes the picture of the page to try a model: a word is masked, and the model fills the gap."""
    with served("play", run) as address:
        page.set_viewport_size(WIDE)
        page.goto(address)
        page.locator("#models section").first.wait_for()
        box = page.get_by_label("Text", exact=True)
        if not box.is_visible():  # the run's own examples are shown
            page.get_by_text("Change the text").click()
        box.fill(TEXT)
        page.get_by_text("Change the text").click()
        page.locator("#words").get_by_role("button", name=MASKED, exact=True).first.click()
        page.get_by_role("button", name="Fill the gaps").click()
        page.get_by_text("Done.").wait_for(timeout=300_000)
        return write("play", page)


def main(runs: Sequence[str]) -> None:
    """Makes the pictures; `runs` are directories of runs, of which the first is tried."""
    program = shutil.which("chromium") or shutil.which("google-chrome")
    if program is None or not runs:
        raise SystemExit("Give MODEL_DIR, and install Chromium (apt-get install chromium).")
    with sync_playwright() as playwright:
        browser: Browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        with contextlib.closing(browser):
            page = browser.new_page(viewport=SIZE, bypass_csp=True)  # pyright: ignore[reportArgumentType]
            made = {
                "report": report(page, [str(Path(run).resolve()) for run in runs]),
                "play": play(page, str(Path(runs[0]).resolve())),
            }
    records = map(json.loads, Path(runs[0], "metrics.jsonl").read_text(encoding="utf-8").splitlines())
    last = [record for record in records if record["kind"] == "validation"][-1]
    about = {"run": {"step": last["step"], "validation_loss": round(last["loss"], 4)}, "pictures": made}
    ABOUT.write_text(json.dumps(about, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
