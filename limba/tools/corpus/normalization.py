"""SentencePiece's own normalization rules, read from a model, so that rules can be added to them.

A model stores the rules as a double-array trie (Aoe 1989, in the layout of darts-clone) from UTF-8
to UTF-8. SentencePiece takes added rules only as part of a whole table, a TSV of code points.
"""

from __future__ import annotations

import functools
import io
from collections.abc import Mapping

from limba.api import rules_of

# Romanian's letters have a comma below. Old fonts and keyboards only had the cedilla of Turkish.
ROMANIAN_COMMAS = {"ş": "ș", "ţ": "ț", "Ş": "Ș", "Ţ": "Ț"}  # s, t, S, T


def normalization_tsv(rule_name: str, replacements: Mapping[str, str]) -> str:
    """Returns SentencePiece's rules of that name as TSV, with `replacements` of letters applied to their results.

    A letter without a rule gets one. Rules whose result has the letter are changed, since SentencePiece applies only
    one rule at each place: s with a combining cedilla becomes the letter with a comma too.
    """
    table = str.maketrans(dict(replacements))
    rules = {source: target.translate(table) for source, target in builtin_rules(rule_name).items()}
    for source, target in replacements.items():
        rules.setdefault(source, target)
    return "".join(f"{_code_points(source)}\t{_code_points(target)}\n" for source, target in sorted(rules.items()))


def _code_points(text: str) -> str:
    return " ".join(f"{ord(letter):X}" for letter in text)


@functools.lru_cache(maxsize=4)
def builtin_rules(rule_name: str) -> Mapping[str, str]:
    """Returns {text: replacement} of `nmt_nfkc`, `nfkc`, … as this version of SentencePiece has them.

    The package publishes them only inside the models that it trains.
    """
    import sentencepiece
    from sentencepiece import sentencepiece_model_pb2

    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(["a b"] * 9),
        model_writer=model,
        vocab_size=16,
        hard_vocab_limit=False,
        normalization_rule_name=rule_name,
        minloglevel=2,
    )
    trained = sentencepiece_model_pb2.ModelProto.FromString(model.getvalue())  # pyright: ignore[reportAttributeAccessIssue]
    return rules_of(trained.normalizer_spec.precompiled_charsmap)
