"""A task module as users of T5X write it: a generator that streams a data set, and t5's span corruption."""

import functools

import seqio
import t5.data
import tensorflow as tf
from seqio import FunctionDataSource, utils
from t5.data import postprocessors, preprocessors  # noqa: F401
from t5.evaluation import metrics

vocabulary = seqio.SentencePieceVocabulary("gs://my-bucket/ro.model", extra_ids=0)
byte_vocabulary = t5.data.ByteVocabulary()
feature = seqio.Feature(vocabulary=vocabulary, add_eos=True)


def documents(split, column="text", dataset_params=None):
    from datasets import load_dataset

    while True:
        for item in load_dataset(**dataset_params)[str(split)]:
            yield item[column]


def dataset_fn(split, shuffle_files, seed=None, dataset_params=None):
    return tf.data.Dataset.from_generator(
        functools.partial(documents, split, dataset_params=dataset_params),
        output_signature=tf.TensorSpec(shape=(), dtype=tf.string),
    )


@utils.map_over_dataset
def target_to_key(x, key_map, target_key):
    return {**key_map, target_key: x}


dataset_params = {"path": "someone/ro-corpus", "streaming": True}
seqio.TaskRegistry.add(
    "ro_stream",
    source=FunctionDataSource(
        dataset_fn=functools.partial(dataset_fn, dataset_params=dataset_params),
        splits=("train", "validation"),
        caching_permitted=False,
    ),
    preprocessors=[
        functools.partial(target_to_key, key_map={"inputs": None, "targets": None}, target_key="targets"),
        seqio.preprocessors.tokenize,
        preprocessors.span_corruption,
        seqio.preprocessors.append_eos_after_trim,
    ],
    output_features={"targets": feature},
    metric_fns=[metrics.bleu],
)
