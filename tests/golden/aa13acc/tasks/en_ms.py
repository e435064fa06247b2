"""Translation between English and Malay: each way a task, both a mixture. Any other pair is a few lines.

`CORPUS` and `COLUMN = {'inputs': 'en', 'targets': 'ms'}` in gin replace the corpus and its
columns, `PREFIX` the prefix.
"""

import functools

import seqio
import tensorflow as tf

from limba import text_metrics
from limba.data.sources import HubSource
from limba.data.supervised import SUPERVISED, add_prefix
from limba.data.tokenizers_vocabulary import TokenizersVocabulary

# The tokenizer of the model that is fine-tuned; nothing is read before it is used.
VOCABULARY = TokenizersVocabulary("hf://mesolitica/nanot5-base-malaysian-cased/tokenizer.json")
DATA_SET, SUBSET = "mesolitica/Malaysian-Translation", "stage1"
LANGUAGES = {"en": "English", "ms": "Malay"}


def register(source: str, target: str) -> str:
    """Registers the task from one language to the other, of the data set's columns of those names; returns its name."""
    name = f"{source}_{target}_translation"
    seqio.TaskRegistry.add(
        name,
        source=HubSource(DATA_SET, SUBSET, column={"inputs": source, "targets": target}),
        preprocessors=[
            functools.partial(add_prefix, prefix=f"translate {LANGUAGES[source]} to {LANGUAGES[target]}: "),
            *SUPERVISED,
        ],
        output_features={
            "inputs": seqio.Feature(VOCABULARY, dtype=tf.int32),
            "targets": seqio.Feature(VOCABULARY, dtype=tf.int32),
        },
        metric_fns=[text_metrics.bleu, text_metrics.chrf],
        shuffle_buffer_size=None,
    )
    return name


seqio.MixtureRegistry.add("en_ms_both", [register("en", "ms"), register("ms", "en")], default_rate=1.0)
