"""What `mkdocs build` and `mkdocs serve` do first and last: half of the pages are made from the code, or lie elsewhere.

mkdocs.yml names this file. `docs/site/build.py` builds by it where mkdocs is installed.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

import reference  # noqa: E402

# Kept up to the end of the process: `mkdocs serve` builds again and again.
PAGES = tempfile.TemporaryDirectory(prefix="limba_pages_")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Writes all pages into a folder, and has mkdocs read that in place of docs/."""
    pages = Path(PAGES.name)
    reference.write(pages)
    config["docs_dir"] = str(pages)
    return config


def on_post_page(output: str, **_: object) -> str:
    """Returns a page whose search has a name, which the theme leaves out and screen readers need."""
    nameless = 'data-md-component="search" role="dialog"'
    return output.replace(nameless, f'{nameless} aria-label="Search"')


def on_post_build(config: MkDocsConfig) -> None:
    """Writes the language of each translated page, such as start.ja.html, into it: mkdocs knows only one."""
    reference.name_languages(Path(config["site_dir"]))
