"""The documents of a batch whose rows are given: of one file, by their numbers."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from limba.config import DataConfig
from limba.data.dataset import Document
from limba.data.objectives import span_corruption, tokenize_documents
from limba.data.registry import Feature, Task
from limba.data.sources import FileSource
from limba.data.stream.names import BatchDocuments
from limba.data.stream.shard import Recipe
from limba.data.vocabulary.load import load_vocabulary
from tests.data.text_files import write

NUM_LINES = 100


def batch_documents(folder: Path, rows: Mapping[int, Sequence[Sequence[int]]]) -> BatchDocuments:
    """Returns the documents of rows, given by shard: numbers of lines of `folder/part-07.txt.gz`, which is written."""
    path = write(folder / "part-07.txt.gz", [f"text {number}" for number in range(NUM_LINES)])
    lengths = {"inputs": 24, "targets": 10}
    feature = Feature(load_vocabulary("byte"))
    steps = [tokenize_documents, span_corruption]
    task = Task("task", FileSource(str(path), validation_percent=0.0), dict.fromkeys(lengths, feature), steps)
    recipe = Recipe(task, lengths, DataConfig("task", lengths, batch_size=8, num_data_shards=2))
    by_shard = {
        shard: [[Document(0, 0, 0, number, 0, 0.0) for number in of_row] for of_row in of_shard]
        for shard, of_shard in rows.items()
    }
    return BatchDocuments(by_shard, recipe)
