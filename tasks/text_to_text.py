"""Templates for your own files with inputs and targets: summaries, classes, anything.

    --gin.CORPUS='reviews/*.jsonl' --gin.COLUMN="{'inputs': 'review', 'targets': 'stars'}" --gin.PREFIX='rate: '

A class is written as the text of its name. `VOCABULARY` in gin names the vocabulary. Without files for validation,
one in a hundred rows is used for it.
"""

import functools

from limba.data import metrics as text_metrics
from limba.data.objectives import SUPERVISED, add_prefix
from limba.data.registry import Feature, TaskRegistry
from limba.data.sources import FileSource
from limba.data.vocabulary import ByteVocabulary

VOCABULARY = ByteVocabulary(extra_ids=125)  # ByT5's
TEMPLATES = {
    # name: (prefix, columns, metrics)
    "summarization": ("summarize: ", ("text", "summary"), [text_metrics.rouge]),
    "translation": ("", ("source", "target"), [text_metrics.bleu, text_metrics.chrf]),
    "classification": ("classify: ", ("text", "label"), [text_metrics.accuracy]),
    "text_to_text": ("", ("inputs", "targets"), [text_metrics.exact_match, text_metrics.word_f1, text_metrics.chrf]),
}

for name, (prefix, (inputs, targets), metrics) in TEMPLATES.items():
    TaskRegistry.add(
        name,
        source=FileSource("data/*.jsonl", column={"inputs": inputs, "targets": targets}),
        preprocessors=[functools.partial(add_prefix, prefix=prefix), *SUPERVISED],
        output_features=dict.fromkeys(("inputs", "targets"), Feature(VOCABULARY)),
        metric_fns=metrics,
    )
