"""Saves the folders of `test_published.py` by transformers 4.57.6: python published_in_old.py DIRECTORY."""

import sys
from pathlib import Path

import transformers

from tests import published

if __name__ == "__main__":
    transformers.utils.logging.disable_progress_bar()
    for kind in published.KINDS_OF_4:
        for style in published.STYLES:
            published.saved(Path(sys.argv[1]) / f"{kind}-{style}", kind, published.generic(style))
