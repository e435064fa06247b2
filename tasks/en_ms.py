"""Translation between English and Malay: one task for each direction, and a mixture of both.

`CORPUS` and `COLUMN = {'inputs': 'en', 'targets': 'ms'}` in gin replace the corpus and its
columns, `PREFIX` a task's prefix. Another pair of languages is a few lines.
"""

import functools

from limba.data import metrics as text_metrics
from limba.data.objectives import SUPERVISED, add_prefix, long_inputs_in_segments
from limba.data.registry import Feature, MixtureRegistry, TaskRegistry
from limba.data.sources import HubSource
from limba.data.vocabulary import TokenizersVocabulary

# The tokenizer of the model that is fine-tuned; nothing is read before it is used.
VOCABULARY = TokenizersVocabulary("hf://mesolitica/nanot5-base-malaysian-cased/tokenizer.json")
DATA_SET = "mesolitica/Malaysian-Translation"
SUBSET = "stage1"
LANGUAGES = {"en": "English", "ms": "Malay"}


def register(source: str, target: str, name: str = "", corpus: HubSource | None = None) -> str:
    """Registers the task from one language to the other, which are columns of the data set; returns its name."""
    name = name or f"{source}_{target}_translation"
    TaskRegistry.add(
        name,
        source=corpus or HubSource(DATA_SET, SUBSET, column={"inputs": source, "targets": target}),
        preprocessors=[
            long_inputs_in_segments,
            functools.partial(add_prefix, prefix=f"translate {LANGUAGES[source]} to {LANGUAGES[target]}: "),
            *SUPERVISED,
        ],
        output_features=dict.fromkeys(("inputs", "targets"), Feature(VOCABULARY)),
        metric_fns=[text_metrics.bleu, text_metrics.chrf],
    )
    return name


MixtureRegistry.add("en_ms_both", [register("en", "ms"), register("ms", "en")], default_rate=1.0)
# The published recipe's corpus.
PUBLISHED = HubSource("mesolitica/translation-en-ms", column={"inputs": "en", "targets": "ms"})
register("en", "ms", "en_ms_published", PUBLISHED)
