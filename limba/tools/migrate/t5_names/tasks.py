"""Registers the tasks of `t5.data.mixtures` that T5X's example files name: C4 and WMT, from TensorFlow Datasets.

Their data sets must be prepared, below TFDS_DATA_DIR; `data_files` of a run replaces them. Nothing is read before a
task is used.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import seqio

from limba.data.sources import TfdsSource
from limba.tools.migrate.t5_names import metrics, preprocessors
from limba.tools.migrate.t5_names.providers import get_default_vocabulary

MixtureRegistry, TaskRegistry = seqio.MixtureRegistry, seqio.TaskRegistry
DEFAULT_OUTPUT_FEATURES = {
    "inputs": seqio.Feature(get_default_vocabulary(), add_eos=True, required=False),
    "targets": seqio.Feature(get_default_vocabulary(), add_eos=True),
}
_C4 = {
    "c4_v220_span_corruption": preprocessors.span_corruption,
    "c4_v220_iid_denoising": preprocessors.iid_denoising,
    "c4_v220_prefix_lm": preprocessors.prefix_lm,
}
_WMT = {  # task -> (data set of TFDS, from, into)
    "wmt14_ende_v003": ("wmt14_translate/de-en:1.0.0", "en", "de"),
    "wmt14_enfr_v003": ("wmt14_translate/fr-en:1.0.0", "en", "fr"),
    "wmt15_enfr_v003": ("wmt15_translate/fr-en:1.0.0", "en", "fr"),
    "wmt16_enro_v003": ("wmt16_translate/ro-en:1.0.0", "en", "ro"),
    "wmt19_ende_v003": ("wmt19_translate/de-en:1.0.0", "en", "de"),
    "wmt_t2t_ende_v003": ("wmt_t2t_translate/de-en:1.0.0", "en", "de"),
}


def _add(name: str, source: Any, steps: Sequence[Callable], metric_fns: Sequence[Callable]) -> None:
    if name not in TaskRegistry.names():
        TaskRegistry.add(
            name,
            source=source,
            preprocessors=[*steps, seqio.preprocessors.append_eos_after_trim],
            output_features=DEFAULT_OUTPUT_FEATURES,
            metric_fns=list(metric_fns),
        )


for _name, _objective in _C4.items():
    _keys = functools.partial(preprocessors.rekey, key_map={"inputs": None, "targets": "text"})
    _add(_name, TfdsSource("c4/en:2.2.0"), [_keys, preprocessors.tokenize, _objective], [])
for _name, (_dataset, _from, _into) in _WMT.items():
    _columns = {language: language for language in (_from, _into)}
    _step = functools.partial(preprocessors.translate, source_language=_from, target_language=_into)
    _add(_name, TfdsSource(_dataset, column=_columns), [_step, preprocessors.tokenize], [metrics.bleu])
