"""The keys of `run_summarization.py` and `run_translation.py`: pairs of inputs and targets."""

from __future__ import annotations

from typing import Any

from limba.config import InputError

# Data sets of the scripts' own table: columns of the text and of its summary.
COLUMNS = {
    "amazon_reviews_multi": ("review_body", "review_title"), "big_patent": ("description", "abstract"),
    "billsum": ("text", "summary"), "cnn_dailymail": ("article", "highlights"), "orange_sum": ("text", "summary"),
    "pn_summary": ("article", "summary"), "multi_news": ("document", "summary"), "samsum": ("dialogue", "summary"),
    "xglue": ("news_body", "news_title"), "xsum": ("document", "summary"), "wiki_summary": ("article", "highlights"),
}  # fmt: skip
ONLY = {  # keys that have one meaning here
    "ignore_pad_token_for_loss": "padding never counts",
    "pad_to_max_length": "rows have one length",
    "resize_position_embeddings": "T5 has relative positions",
    "sortish_sampler": "rows have one length",
    "val_max_target_length": "validation targets are cut like those of training; MAX_TOKENS limits generated text",
}


def set_pairs(translation: Any) -> None:
    """Sets task, columns, prefix, lengths and generation."""
    values = translation.values
    translates = values.get("source_lang") is not None or values.get("target_lang") is not None
    translation.set("MIXTURE_OR_TASK_NAME", "translation" if translates else "summarization", "source_lang")
    translation.set("COLUMN", _columns(translation, translates), "source_lang" if translates else "text_column")
    for name, field, usual in (
        ("VALIDATION_PERCENT", "config.DataConfig.validation_percent", (5.0, "validation_split_percentage")),
        ("WEIGHT_DECAY", "config.OptimizerConfig.weight_decay", (0.0, "weight_decay")),
    ):  # names that only the gin file of span corruption has
        translation.bindings[field] = translation.bindings.pop(name, usual)
    translation.bindings.setdefault("EVAL_STEPS", (None, "max_eval_samples: the whole validation split"))
    translation.set("PREFIX", values.get("source_prefix", ""), "source_prefix")
    inputs, targets = values.get("max_source_length", 1024), values.get("max_target_length", 128)
    translation.set(
        "TASK_FEATURE_LENGTHS", {"inputs": inputs, "targets": targets}, "max_source_length, max_target_length"
    )
    most, key = translation.get("generation_max_length", "val_max_target_length", "max_target_length")
    translation.set("MAX_TOKENS", targets if most is None else most, key)
    beams, key = translation.one_of("generation_num_beams", "num_beams")
    if beams is not None:
        translation.set("NUM_BEAMS", beams, key)
    if not values.get("predict_with_generate"):
        translation.set("NUM_EXAMPLES", 0, "predict_with_generate")
    for key in ("lang", "forced_bos_token"):
        if values.get(key) is not None:
            raise InputError(
                f"{translation.place} gives {key} {values[key]!r}, which is for mBART and M2M-100; leave it out."
            )
    if values.get("test_file") is not None:
        translation.notes.append(
            f"test_file {values['test_file']!r}: is not read while training; limba generate MODEL_DIR --input=FILE"
            " writes its texts."
        )
    translation.notes += [f"{key}: {meaning}." for key, meaning in ONLY.items() if key in values]


def _columns(translation: Any, translates: bool) -> dict[str, str]:
    values = translation.values
    if translates:
        source, target = values.get("source_lang"), values.get("target_lang")
        if source is None or target is None:
            missing = "source_lang" if source is None else "target_lang"
            raise InputError(f"{translation.place} gives no {missing}; give both, such as en and ro.")
        short = [language.split("_")[0] for language in (source, target)]
        return {"inputs": f"translation.{short[0]}", "targets": f"translation.{short[1]}"}
    dataset = str(values.get("dataset_name", "")).rpartition("/")[2]
    text, summary = COLUMNS.get(dataset, ("text", "summary"))
    return {"inputs": values.get("text_column", text), "targets": values.get("summary_column", summary)}
