"""The notebook of examples/ runs from text to a converted model, and is committed without outputs."""

import json
import os
import re
from pathlib import Path

import nbformat
import pytest

ROOT = Path(__file__).parent.parent
NOTEBOOK = ROOT / "examples" / "your_language.ipynb"
MINUTES = 0.5  # of training; the notebook as it is has four


def test_notebooks_are_committed_without_outputs_and_read_well() -> None:
    for path in (ROOT / "examples").glob("*.ipynb"):
        notebook = nbformat.read(path, as_version=4)
        nbformat.validate(notebook)
        code = [cell for cell in notebook.cells if cell.cell_type == "code"]
        assert code and not [cell for cell in code if cell.outputs or cell.execution_count], path
        lines = [line for cell in notebook.cells for line in cell.source.splitlines()]
        assert max(map(len, lines)) <= 120 and "/work" not in path.read_text()
        for target in re.findall(r"\]\((\.\.?/[^)]+)\)", "\n".join(lines)):
            assert (path.parent / target).exists(), target
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    source = "\n".join(cell.source for cell in notebook.cells)
    assert len(notebook.cells) <= 10 and "subprocess" not in source
    assert not re.search(r"(from|import) limba\.", source)  # a user's notebook needs the public names alone
    assert json.loads(NOTEBOOK.read_text())["metadata"]["kernelspec"]["name"] == "python3"


@pytest.mark.night
def test_the_notebook_leads_to_a_converted_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from nbclient import NotebookClient

    monkeypatch.setenv("PYTHONPATH", f"{ROOT}:{os.environ.get('PYTHONPATH', '')}")
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    monkeypatch.delenv("XLA_FLAGS", raising=False)
    text = NOTEBOOK.read_text()
    assert text.count("MINUTES = 4") == 1
    notebook = nbformat.reads(text.replace("MINUTES = 4", f"MINUTES = {MINUTES}"), as_version=4)
    NotebookClient(
        notebook, timeout=900, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}}
    ).execute()
    printed = "\n".join(
        output.get("text", "") for cell in notebook.cells for output in cell.get("outputs", ()) if "text" in output
    )
    pictures = [
        output["data"]["image/png"]
        for cell in notebook.cells
        for output in cell.get("outputs", ())
        if "image/png" in output.get("data", {})
    ]
    assert len(pictures) >= 1 and len(pictures[-1]) > 5_000
    assert len(re.findall(r"^[\d,]+ steps fit in [\d.]+ minutes\.$", printed, re.MULTILINE)) == 2
    assert "held out for validation" in printed
    assert len(re.findall(r"^ *\d+\.\d%  .*\w.*$", printed, re.MULTILINE)) == 5  # the likeliest fills of the gap
    assert "T5ForConditionalGeneration with" in printed and "<extra_id_0>" in printed
    (model,) = (
        output["data"]["text/plain"]
        for cell in notebook.cells
        for output in cell.get("outputs", ())
        if output.output_type == "execute_result"
    )
    assert re.match(r"<TrainedModel \S+your_language, step [\d,]+: 1,836,800 parameters, encoder-decoder", model)
    assert (tmp_path / "runs" / "transformers" / "model.safetensors").is_file()
    assert not re.search(r"Traceback|\w+Error:", printed)
