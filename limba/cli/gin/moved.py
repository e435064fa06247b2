"""The config.gin of a directory that is made from a run's: the same run, in another MODEL_DIR."""

from __future__ import annotations

import re
from typing import Any

from limba.cli.gin.statements import OWN_FILE
from limba.storage.files import read_text, resolved

MACRO = re.compile(r"^MODEL_DIR = .*(?:\n {4}.*)*$", re.MULTILINE)
FIELD = re.compile(r"^config\.RunConfig\.model_dir = (?!%).*(?:\n {4}.*)*$", re.MULTILINE)


def text_in(directory: Any, out: str) -> dict[str, str]:
    """Returns {"config.gin": the text of a run's, with `out` as its MODEL_DIR}; {} if the run has none."""
    file = directory / OWN_FILE
    if not file.exists():
        return {}
    place = repr(str(resolved(out)))
    text = MACRO.sub(lambda _: f"MODEL_DIR = {place}", read_text(file))
    return {OWN_FILE: FIELD.sub(lambda _: f"config.RunConfig.model_dir = {place}", text)}
