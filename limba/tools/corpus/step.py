"""`limba inspect MODEL_DIR --step=N`: shows the documents of the batch of a step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from limba.api import documents_of_step
from limba.config.waiting import waiting

SHOWN = 80  # characters of a document


def lines(model_dir: str, step: int, stood_out: bool, imports: Sequence[str]) -> Iterator[str]:
    """Yields a Markdown table of the documents of a step: of all rows, or of those that stood out."""
    with waiting("reading"):
        rows = documents_of_step(model_dir, step, stood_out, imports)
    yield "| shard | row | source | unit | document | text |"
    yield "| --- | --- | --- | --- | --- | --- |"
    is_about = False
    for row in rows:
        for document in row.documents:
            beginning = " ".join(document.text.split())[:SHOWN].replace("|", "\\|")
            cells = (row.shard, row.row, document.source, document.unit, document.row, beginning)
            yield f"| {' | '.join(map(str, cells))} |"
            is_about = is_about or not document.is_exact
    if is_about:
        yield ""
        yield "A preprocessor in TensorFlow: these documents were read shortly before the rows were made."
