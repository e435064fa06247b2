"""Task modules written for aa13acc import what they did, with one DeprecationWarning for each module that moved."""

import importlib
import re
import sys
import warnings
from types import ModuleType

import pytest

# Public names of the modules of aa13acc that task modules import, and where they are now.
MOVED = {
    "limba.data.records": (
        "limba.data.sources",
        "ArrayRecordSource TfdsSource permuted RECORDS_PER_UNIT RECORDS_PER_READ FEISTEL_ROUNDS SUFFIX OPTIONAL",
    ),
    "limba.data.supervised": (
        "limba.data.objectives",
        "SUPERVISED TOKENIZERS add_prefix is_supervised lengths_of prefix_of text_of truncation_report with_prefix",
    ),
    "limba.data.diacritics": (
        "limba.data.objectives",
        "COMMAS LETTERS PLAIN WORD letters_of normalized restore_diacritics segments stripped table",
    ),
    "limba.data.tokenizers_vocabulary": (
        "limba.data.vocabulary",
        "BYTE ENDS SENTINEL UNKNOWN TokenizersVocabulary byte_of_letter",
    ),
    "limba.text_metrics": (
        "limba.data.metrics",
        "Figures Metric Texts accuracy bleu chrf diacritics error_rates exact_match rouge word_f1",
    ),
}
OBJECTIVES = (
    "causal_lm derive_lengths lm_adaptation of_one_sequence prefix_lm span_corruption tokenize_documents ul2"
    " whole_word_span_corruption with_objective"
)
SOURCES = (
    "FileSource HubSource UnitSource BYTES_CHECKED ENDLESS INTERLEAVED_UNITS PIECE_BYTES Column DataFiles Rewrite"
    " call_numpy patterns_of random_generator unit_order"
)


@pytest.mark.parametrize("module", MOVED)
def test_moved_modules_keep_their_names_and_warn_once(module: str) -> None:
    home, names = MOVED[module]
    sys.modules.pop(module, None)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = importlib.import_module(module)
        importlib.import_module(module)
    messages = [str(each.message) for each in caught if each.category is DeprecationWarning and module in str(each)]
    assert messages == [f"{module} has moved; import from {home} instead."]
    assert caught[0].filename == importlib.__file__ or "old_names" in caught[0].filename
    missing = [name for name in names.split() if not hasattr(found, name)]
    assert not missing
    new = importlib.import_module(home)
    there = [name for name in names.split() if not isinstance(getattr(new, name, new), ModuleType)]  # no submodule
    assert all(getattr(new, name) is getattr(found, name) for name in there)


def test_folders_with_an_old_name_keep_its_names() -> None:
    from limba.data import objectives, sources

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert all(hasattr(objectives, name) for name in OBJECTIVES.split())
        assert all(hasattr(sources, name) for name in SOURCES.split())


@pytest.mark.parametrize(
    "task", ["cc100", "demo", "en_ms", "lm1b", "ro", "ro_diacritics", "t5_mlm", "text_to_text", "wiki40b"]
)
def test_tasks_import_no_old_name(task: str) -> None:
    with open(importlib.util.find_spec(f"tasks.{task}").origin) as file:
        text = file.read()
    assert not [module for module in MOVED if re.search(rf"{re.escape(module)}\b", text)]
    assert not re.search(r"from limba\.data\.\w+\.", text)  # a folder's public names alone
