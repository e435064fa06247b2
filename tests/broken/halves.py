"""A task with a preprocessor of its own, from which the length of the targets does not follow."""

import seqio
import tensorflow as tf

from limba.data.objectives import tokenize_documents
from limba.data.sources import FileSource


def halves(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """Cuts each row of tokens in the middle: the first half is the input, the second the target."""

    def cut(example: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        middle = tf.size(example["targets"]) // 2
        return {"inputs": example["targets"][:middle], "targets": example["targets"][middle:]}

    return dataset.map(cut)


if "broken_halves" not in seqio.TaskRegistry.names():
    seqio.TaskRegistry.add(
        "broken_halves",
        source=FileSource("corpus.jsonl"),
        preprocessors=[tokenize_documents, halves],
        output_features=dict.fromkeys(("inputs", "targets"), seqio.Feature(seqio.ByteVocabulary(), dtype=tf.int32)),
        shuffle_buffer_size=None,
    )
