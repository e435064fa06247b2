"""The names of `t5.data.preprocessors` that task modules use: templates of texts, and the objectives of tokens."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import seqio
import tensorflow as tf

from limba.data.objectives.spans import num_noise
from limba.data.vocabulary.load import has_byte_sentinels, warn_of_byte_sentinels
from limba.tools.migrate.t5_names import denoising
from limba.tools.migrate.t5_names.denoising import Example, Features, denoise

rekey = seqio.preprocessors.rekey
tokenize = seqio.preprocessors.tokenize

LONGEST = 65_536  # tokens of a document that t5's objectives keep
_CODES = (
    "af:Afrikaans am:Amharic ar:Arabic az:Azerbaijani be:Belarusian bg:Bulgarian bn:Bangla bs:Bosnian ca:Catalan"
    " cs:Czech cy:Welsh da:Danish de:German el:Greek en:English eo:Esperanto es:Spanish et:Estonian eu:Basque"
    " fa:Persian fi:Finnish fil:Filipino fr:French ga:Irish gl:Galician gu:Gujarati ha:Hausa he:Hebrew hi:Hindi"
    " hr:Croatian hu:Hungarian hy:Armenian id:Indonesian ig:Igbo is:Icelandic it:Italian ja:Japanese ka:Georgian"
    " kk:Kazakh km:Khmer kn:Kannada ko:Korean ky:Kyrgyz lo:Lao lt:Lithuanian lv:Latvian mk:Macedonian ml:Malayalam"
    " mn:Mongolian mr:Marathi ms:Malay mt:Maltese my:Burmese ne:Nepali nl:Dutch no:Norwegian pa:Punjabi pl:Polish"
    " ps:Pashto pt:Portuguese ro:Romanian ru:Russian si:Sinhala sk:Slovak sl:Slovenian so:Somali sq:Albanian"
    " sr:Serbian sv:Swedish sw:Swahili ta:Tamil te:Telugu tg:Tajik th:Thai tk:Turkmen tr:Turkish uk:Ukrainian"
    " ur:Urdu uz:Uzbek vi:Vietnamese xh:Xhosa yo:Yoruba zh:Chinese zu:Zulu"
)
LANGUAGES = {pair.partition(":")[0]: pair.partition(":")[2] for pair in _CODES.split()}


def _language(code: str) -> str:
    if code[:2] not in LANGUAGES:
        raise ValueError(f"translate has the language {code!r}; give a code such as {', '.join(list(LANGUAGES)[:4])}.")
    return LANGUAGES[code[:2]]


@seqio.map_over_dataset
def translate(x: Example, source_language: str, target_language: str) -> Example:
    """Returns {"inputs": "translate German to English: …", "targets"} of {"de", "en"}."""
    prefix = f"translate {_language(source_language)} to {_language(target_language)}: "
    return {"inputs": tf.strings.join([prefix, x[source_language]]), "targets": x[target_language]}


@seqio.map_over_dataset
def summarize(x: Example, article_key: str, summary_key: str) -> Example:
    """Returns {"inputs": "summarize: …", "targets"} of an article and its summary."""
    return {"inputs": tf.strings.join(["summarize: ", x[article_key]]), "targets": x[summary_key]}


@seqio.map_over_dataset
def lm(x: Example) -> Example:
    """Returns {"inputs": "", "targets"} of {"text"}."""
    return {"inputs": tf.constant(""), "targets": x["text"]}


@seqio.map_over_dataset
def parse_tsv(
    line: tf.Tensor,
    field_names: Sequence[str] | None = None,
    field_delim: str = "\t",
    field_columns: Sequence[int] | None = None,
) -> Example:
    """Returns a line's columns by name, 'inputs' and 'targets' by default; quotation marks are text."""
    names = field_names or ["inputs", "targets"]
    columns = list(range(len(names))) if field_columns is None else field_columns
    values = tf.io.decode_csv(line, [""] * len(names), field_delim, use_quote_delim=False, select_cols=columns)
    return dict(zip(names, values, strict=True))


@seqio.map_over_dataset
def preprocess_tsv(
    line: tf.Tensor,
    field_delim: str = "\t",
    num_fields: int = 2,
    inputs_format: str = "{0}",
    targets_format: str = "{1}",
    field_names: Sequence[str] | None = None,
    use_quote_delim: bool = False,
) -> Example:
    """Returns inputs and targets made of a line's fields by templates: 'numerator: {2} denominator: {1}'.

    With `field_names` the templates have names in place of numbers.
    """
    names = [str(number) for number in range(num_fields)] if field_names is None else list(field_names)
    values = tf.io.decode_csv(line, [""] * len(names), field_delim, use_quote_delim=use_quote_delim)
    fields = dict(zip(names, values, strict=True))
    known = "|".join(map(re.escape, names))

    def filled(template: str) -> tf.Tensor:
        parts = re.split(rf"\{{({known})\}}", template)  # text and names in turn
        return tf.strings.join([fields[part] if place % 2 else part for place, part in enumerate(parts)])

    return {"inputs": filled(inputs_format), "targets": filled(targets_format)}


@seqio.map_over_dataset
def squad(x: Mapping[str, Any], include_context: bool = True) -> Mapping[str, Any]:
    """Returns {"inputs": "question: … context: …", "targets"} with the first answer, of SQuAD's examples."""
    answers = x["answers"]["text"]
    question, context = (_spaced(x[name]) for name in ("question", "context"))
    parts = ["question:", question, "context:", context] if include_context else ["squad trivia question:", question]
    inputs = _single_spaced(tf.strings.join(parts, separator=" "))
    about = {"id": x["id"], "context": context, "question": question, "answers": answers}
    return {"inputs": inputs, "targets": _spaced(answers[0]), **about}


def _single_spaced(text: tf.Tensor) -> tf.Tensor:
    return tf.strings.regex_replace(text, r"\s+", " ")


def _spaced(text: tf.Tensor) -> tf.Tensor:
    """Puts spaces around punctuation."""
    return _single_spaced(tf.strings.regex_replace(text, r"([[:punct:]])", r" \1 "))


def span_corruption(
    dataset: tf.data.Dataset,
    sequence_length: Mapping[str, int],
    output_features: Features,
    mean_noise_span_length: float = 3.0,
    noise_density: float = 0.15,
    input_feature_key: str = "inputs",
    merge_examples_to_reduce_padding: bool = True,
    reserved_for_packing: int | None = None,
    passthrough_feature_keys: Sequence[str] | None = None,
) -> tf.data.Dataset:
    """Returns t5's span corruption of tokenized documents (Raffel et al. 2020, section 3.3), without ends of sequence.

    Raises ValueError if the targets do not fit their length.
    """
    inputs_length = sequence_length[input_feature_key] - (reserved_for_packing or 0)
    raw, targets_length = denoising.random_spans_helper(inputs_length, noise_density, mean_noise_span_length, 1, 1)
    if sequence_length["targets"] < targets_length:
        given = sequence_length["targets"]
        raise ValueError(f"Span corruption of {inputs_length} inputs makes {targets_length} targets; {given} is less.")
    if merge_examples_to_reduce_padding and passthrough_feature_keys:
        raise ValueError("merge_examples_to_reduce_padding joins documents, and cannot pass features through.")
    if has_byte_sentinels(output_features["targets"].vocabulary):
        _, spans = num_noise(raw, noise_density, mean_noise_span_length)
        warn_of_byte_sentinels(spans, f"Span corruption of {inputs_length} inputs")
    keys = passthrough_feature_keys
    dataset = denoising.select_random_chunk(dataset, output_features, LONGEST, passthrough_feature_keys=keys)
    if merge_examples_to_reduce_padding:
        dataset = denoising.reduce_concat_tokens(dataset)
    dataset = denoising.split_tokens(dataset, max_tokens_per_segment=raw, passthrough_feature_keys=keys)
    return denoise(
        dataset,
        output_features,
        noise_density,
        functools.partial(denoising.random_spans_noise_mask, mean_noise_span_length=mean_noise_span_length),
        denoising.noise_span_to_unique_sentinel,
        denoising.nonnoise_span_to_unique_sentinel,
        input_feature_key=input_feature_key,
        passthrough_feature_keys=keys,
    )


def iid_denoising(
    dataset: tf.data.Dataset, sequence_length: Mapping[str, int], output_features: Features
) -> tf.data.Dataset:
    """Returns t5's denoising of single tokens, 15 % of them."""
    dataset = denoising.reduce_concat_tokens(denoising.select_random_chunk(dataset, output_features, LONGEST))
    dataset = denoising.split_tokens_to_inputs_length(dataset, sequence_length, output_features)
    functions = (
        denoising.iid_noise_mask,
        denoising.noise_span_to_unique_sentinel,
        denoising.nonnoise_span_to_unique_sentinel,
    )
    return denoise(dataset, output_features, 0.15, *functions)


def prefix_lm(
    dataset: tf.data.Dataset, sequence_length: Mapping[str, int], output_features: Features, noise_density: float = 0.5
) -> tf.data.Dataset:
    """Returns t5's prefix language modeling: the beginning of a document's piece, and its rest."""
    dataset = denoising.select_random_chunk(dataset, output_features, LONGEST)
    dataset = denoising.split_tokens_to_inputs_length(dataset, sequence_length, output_features)
    functions = (denoising.random_prefix_noise_mask, denoising.drop_nonnoise_tokens, denoising.drop_noise_tokens)
    return denoise(dataset, output_features, noise_density, *functions)


def full_lm(dataset: tf.data.Dataset, sequence_length: Mapping[str, int], output_features: Features) -> tf.data.Dataset:
    """Returns targets of their full length, with an end of sequence only where a document ends."""
    dataset = denoising.select_random_chunk(dataset, output_features, LONGEST)
    dataset = denoising.reduce_concat_tokens(seqio.preprocessors.append_eos(dataset, output_features))
    return denoising.split_tokens(dataset, max_tokens_per_segment=sequence_length["targets"])


def unsupervised(
    dataset: tf.data.Dataset,
    preprocessors: Sequence[Callable[..., tf.data.Dataset]] | None = None,
    output_features: Features | None = None,
    sequence_length: Mapping[str, int] | None = None,
) -> tf.data.Dataset:
    """Applies the preprocessors in their order; without any, ValueError: t5's configuration of them is a gin file."""
    if preprocessors is None:
        raise ValueError("unsupervised has no preprocessors; give them with functools.partial, or use span_corruption.")
    given = {"output_features": output_features, "sequence_length": sequence_length}
    for step in preprocessors:
        dataset = step(dataset, **{name: value for name, value in given.items() if value})
    return dataset
