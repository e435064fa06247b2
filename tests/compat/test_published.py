"""Folders that transformers 4.57.6 saved are read as transformers 5 reads them: ids, text, scores, vectors."""

import itertools
import subprocess
import sys
from pathlib import Path

import pytest
import transformers

from tests import published
from tests.compat import overlay
from tests.inference.test_published import compare_saved

pytestmark = pytest.mark.night


@pytest.fixture(scope="module")
def by_4(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("by_4")
    try:
        environment = overlay.environment()
    except RuntimeError as error:
        pytest.fail(str(error))
    script = [sys.executable, "-m", "tests.compat.published_in_old", str(folder)]
    ended = subprocess.run(script, env=environment, cwd=overlay.ROOT, capture_output=True, text=True, check=False)
    assert not ended.returncode, ended.stderr[-3000:]
    return folder


@pytest.mark.parametrize(("kind", "style"), list(itertools.product(published.KINDS_OF_4, published.STYLES)))
def test_a_folder_of_4_57_gives_what_it_gives_in_5(by_4: Path, kind: str, style: str) -> None:
    folder = by_4 / f"{kind}-{style}"
    names = {"t5_encoder": "T5EncoderModel", "llama": "AutoModelForCausalLM", "gpt2": "AutoModelForCausalLM"}
    names["modernbert"] = "AutoModelForMaskedLM"
    model = getattr(transformers, names.get(kind, "AutoModelForSeq2SeqLM")).from_pretrained(folder).eval()
    compare_saved(folder, kind, model)
