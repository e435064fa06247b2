"""The model card, README.md, of an exported folder: what the model is, how it was trained, what the proof found."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import huggingface_hub
from etils import epath

from limba.config import CardConfig, DataConfig, ModelConfig
from limba.data.sources.hub_data import hub_name
from limba.evaluation.summary import plot_loss
from limba.formats import architectures
from limba.formats.huggingface import head_scale
from limba.formats.huggingface_files import Form
from limba.formats.huggingface_tokenizer import extra_ids_in
from limba.formats.names import Json
from limba.inference.source import Source
from limba.storage import hub
from limba.storage.files import write_whole
from limba.training.metrics.logging import read_metrics

PIPELINES = {"causal": "text-generation", "bidirectional": "fill-mask"}
TPU_RESEARCH_CLOUD = "Trained with Cloud TPUs of Google's TPU Research Cloud (TRC)."
NO_METRICS = ("kind", "step", "time", "seconds", "examples")  # of a record of metrics.jsonl
UMT5 = {
    5: (
        "transformers 5 multiplies what the output layer of a umT5 reads by d_model^-1/2. So that layer is written"
        " times d_model^1/2 (`limba_lm_head_scale` of config.json), and `from_pretrained` of 5 gives the right logits."
        " In 4.57 divide `model.lm_head.weight` by it: without that, greedy text is right, and loss and sampled text"
        " are not."
    ),
    4: (
        "For transformers 4.57. Version 5 multiplies what the output layer of a umT5 reads by d_model^-1/2, which"
        " flattens the loss and sampled text: multiply `model.lm_head.weight` by d_model^1/2 there."
    ),
}
OWN_LAYER_IN_5 = (
    "Version 5 logs that `shared.weight` and `lm_head.weight` should be tied, as of each T5 with an output layer of its"
    " own: it does not tie them, and the logits are right."
)
DEEP_DECODER_IN_4 = (
    "transformers 4.57 cannot keep what it has computed of a decoder that is deeper than its encoder: give"
    " `use_cache=False` to `generate` there. 5 needs nothing."
)

BYTE_SENTINELS = (
    "As in Google's ByT5, the sentinels are the ids 258, 257, …, 248, of bytes that no text has. The tokenizer of this"
    " folder writes `<extra_id_0>` as 258; Google's own writes 259, a row of the embedding that was never trained."
)
USE = """\
## Use

```python
{code}
```

{notes}"""
LOADED = """\
import torch
from transformers import {auto}, AutoTokenizer

name = "."  # this folder, or its name on the hub
tokenizer = AutoTokenizer.from_pretrained(name)
model = {auto}.from_pretrained(name, dtype=torch.{dtype})
inputs = tokenizer({text}, return_tensors="pt")
"""
GENERATE = "print(tokenizer.decode(model.generate(**inputs, max_new_tokens=20)[0]))"
CONTINUE = """\
tokens = model.generate(**inputs, max_new_tokens=50, do_sample=True, temperature=0.6, top_k=20)
print(tokenizer.decode(tokens[0], skip_special_tokens=True))"""
ANSWER = """\
tokens = model.generate(**inputs, max_new_tokens=50)[0, inputs.input_ids.shape[1] :]
print(tokenizer.decode(tokens, skip_special_tokens=True))"""
FILL = """\
logits = model(**inputs).logits[0, inputs.input_ids[0] == tokenizer.mask_token_id]
print(tokenizer.convert_ids_to_tokens(logits[0].topk(5).indices))"""
STATES = "print(model(**inputs).last_hidden_state)"


def write_card(
    directory: Path,
    source: Source,
    step: int,
    form: Form,
    findings: Sequence[str],
    card: CardConfig,
    ends_inputs: bool = False,
) -> None:
    """Writes README.md and, where the run has metrics, loss.png beside it.

    `ends_inputs`: a language model has learned pairs, and reads an end after an input.
    """
    records = [] if source.run is None else read_metrics(str(source.directory))
    has_picture = source.run is not None and any(record["kind"] == "train" for record in records)
    if source.run is not None and has_picture:
        plot_loss(source.run, directory)
    records = [record for record in records if record["step"] <= step]
    sections = [
        f"---\n{_front_matter(source, card, _results(records)).to_yaml()}\n---",
        f"# {source.directory.name}, step {step:,}",
        f"Pretrained with {source.kind}, converted by Limba.",
        "No licence has been chosen yet: `license` above says `other`." if card.licence is None else "",
        _table("Architecture", _architecture(source.model)),
        _table("Training", _training(source, step, card.hardware, records)),
        "![loss](loss.png)" if has_picture else "",
        "## Conversion\n\n" + "\n".join(f"* {line}" for line in findings),
        _usage(source.model, form, ends_inputs),
        BYTE_SENTINELS if extra_ids_in(epath.Path(directory)) == 0 else "",
        f"## Acknowledgement\n\n{TPU_RESEARCH_CLOUD}" if card.thank_trc else "",
    ]
    write_whole(directory / "README.md", "\n\n".join(part for part in sections if part) + "\n")


def _front_matter(source: Source, card: CardConfig, results: Mapping[str, float]) -> huggingface_hub.ModelCardData:
    """Returns the data by which the hub lists the model: language, data sets, licence, results."""
    data_set = ("", "")
    if source.run is not None:
        data_set = _text_of(source.run.data)
    evaluated = []
    for name, value in results.items():
        evaluated.append(huggingface_hub.EvalResult("text-generation", *data_set, name, round(value, 4)))
    return huggingface_hub.ModelCardData(
        license=card.licence or "other",
        library_name="transformers",
        pipeline_tag=_pipeline_of(source.model),
        tags=[architectures.kind(source.model)],
        language=[*card.language] if card.language else None,
        datasets=[*card.datasets] if card.datasets else None,
        model_name=source.directory.name if results else None,
        eval_results=evaluated or None,
    )


def _text_of(data: DataConfig) -> tuple[str, str]:
    """Returns the type and the name of a run's evaluation data: its task, or the corpus that replaces the task's.

    >>> _text_of(DataConfig("t5_mlm", {"inputs": 64}, 8, data_files="texts/nb-*.jsonl"))
    ('text', 'nb-*.jsonl')
    """
    files = data.data_files
    if files is None:
        return data.mixture_or_task_name, data.mixture_or_task_name
    if isinstance(files, Mapping):
        files = files.get(data.validation_split) or next(iter(files.values()))
    if not isinstance(files, str):
        files = ",".join(files)
    data_set = hub_name(files)
    if data_set is not None:
        return data_set.path, data_set.path
    return "text", ", ".join(path.strip().rpartition("/")[2] for path in files.split(","))


def _pipeline_of(model: ModelConfig) -> str | None:
    if not (model.is_decoder_only and model.has_logits):  # transformers 5 has no pipeline for encoder-decoders
        return None
    return PIPELINES[model.exported.attention_mask]


def _results(records: Iterable[Json]) -> dict[str, float]:
    """Returns the last figures of the validation split: loss, bits per byte, metrics of text."""
    results: dict[str, float] = {}
    for record in records:
        if record["kind"] == "validation":
            results |= {name: record[name] for name in ("loss", "bits_per_byte") if name in record}
        elif record["kind"] == "text":
            results |= {name: value for name, value in record.items() if name not in NO_METRICS and "/" not in name}
    return results


def _table(heading: str, entries: Mapping[str, object]) -> str:
    rows = "\n".join(f"| {name} | {value} |" for name, value in entries.items() if value is not None)
    return f"## {heading}\n\n| | |\n| --- | --- |\n{rows}"


def _architecture(model: ModelConfig) -> dict[str, object]:
    if model.is_decoder_only:
        layers = {"layers" if model.is_encoder else "decoder layers": model.num_decoder_layers}
        heads = f"{model.num_heads} of width {model.head_dim}, {model.kv_heads} of keys and values"
        tied = "the embedding"
        positions = model.positions
        bias = None
    else:
        layers = {"encoder and decoder layers": f"{model.num_encoder_layers} and {model.num_decoder_layers}"}
        if model.is_encoder:
            layers = {"layers": f"{model.num_encoder_layers} and {model.num_decoder_layers}"}
        heads = f"{model.num_heads} of width {model.head_dim}"
        tied = "the embedding, scaled"
        positions = None
        bias = "one in every layer" if model.relative_bias_per_layer else "one per stack"
    output_layer = "none"
    if model.has_logits:
        output_layer = tied if model.logits_via_embedding else "of its own"
    return {
        **layers,
        "width": model.emb_dim,
        "heads": heads,
        "MLP": f"{model.mlp_dim}, {' x '.join(model.mlp_activations)}",
        "rows of the embedding": f"{model.vocab_size:,}",
        "output layer": output_layer,
        "positions": positions,
        "relative position bias": bias,
    }


def _training(source: Source, step: int, hardware: str | None, records: Iterable[Json] = ()) -> dict[str, object]:
    entries: dict[str, object] = {"steps": f"{step:,}", "hardware": hardware}
    run = source.run
    if run is None:
        return entries
    data = run.data
    lengths = data.task_feature_lengths
    begins_from = run.initial_checkpoint_path
    tasks = []
    for begins, name in data.stages_before(step):
        tasks.append(f"from step {begins:,} on `{name}`" if begins else f"`{name}`")
    entries |= {
        "begun from": None if begins_from is None else f"`{public_name(begins_from)}`",
        "task": ", ".join(tasks),
        "data": None if data.data_files is None else f"`{_names(data.data_files)}`",
        "objective": data.objective,
        "lengths": ", ".join(f"{name} {length}" for name, length in lengths.items()),
        "examples per step": data.batch_size,
        "input tokens at most": f"{step * data.batch_size * (data.sequence_length or lengths['inputs']):,}",
        "optimizer": f"{run.optimizer.name}, {run.optimizer.schedule.name}",
    }
    if source.averages and run.evaluation.average is not None:
        entries["weights"] = f"their moving average, decay {run.evaluation.average}, which is evaluated too"
    last = next((record for record in reversed([*records]) if record["kind"] == "validation"), None)
    if last is not None:
        entries["validation loss"] = f"{last['loss']:.3f} at step {last['step']:,}"
        if last.get("bits_per_byte"):  # the pieces of some vocabularies do not say their bytes
            entries["bits per byte"] = f"{last['bits_per_byte']:.3f} on validation text"
    return entries


def public_name(path: str) -> str:
    """Returns a hub id or an address as it is, and of a local path its last part: the rest is nobody's business.

    A checkpoint has its run's name before its own.

    >>> public_name("google/umt5-base"), public_name("/home/me/models/mine"), public_name("gs://bucket/run")
    ('google/umt5-base', 'mine', 'gs://bucket/run')
    >>> public_name("/home/me/base/checkpoints/20000"), public_name("/home/me/t5x/checkpoint_1000000")
    ('base/20000', 't5x/checkpoint_1000000')
    """
    is_local = path.startswith(hub.PATH_BEGINS) or Path(path).exists()
    if not is_local:
        return path
    parts = [part for part in Path(path).parts if part != "checkpoints"]
    is_step = parts[-1].isdigit() or parts[-1].startswith("checkpoint_")
    return "/".join(parts[-2:]) if is_step else parts[-1]


def _names(files: str | Sequence[str] | Mapping[str, str]) -> str:
    """Returns file names without their directories, since these are private, and names of the hub's data sets whole."""
    if isinstance(files, str):
        files = [files]
    elif isinstance(files, Mapping):
        files = list(files.values())
    names = []
    for path in map(str, files):
        names.append(path if hub_name(path) else path.rpartition("/")[2])
    return ", ".join(names)


def _usage(model: ModelConfig, form: Form, ends_inputs: bool = False) -> str:
    """Returns the section of the card that shows how the model is used."""
    versions = "5" if architectures.kind(model) == "eurobert" else "4.57 and 5"  # that have an encoder's class
    text = '"A text"'
    auto = architectures.class_of(model)
    notes = f"For transformers {versions}; weights are {form.dtype}."
    if not model.has_logits:
        kind = "The encoder of a T5 alone" if model.is_t5_encoder else "An encoder without an output layer"
        code = STATES
        notes = f"{kind}, which gives hidden states. {notes}"
    elif model.is_encoder:
        text = 'f"A text with one {tokenizer.mask_token} hidden."'
        auto = "AutoModelForMaskedLM"
        code = FILL
        notes = f"`AutoModel` gives the hidden states. {notes}"
    elif ends_inputs:
        text = '"An input" + tokenizer.eos_token'
        auto = "AutoModelForCausalLM"
        code = ANSWER
        notes = f"It has learned pairs, and writes a target after an input and its end; weights are {form.dtype}."
    elif model.is_decoder_only:
        text = '"A text that"'
        auto = "AutoModelForCausalLM"
        code = CONTINUE
        notes = f"A text begins with the padding token, which the tokenizer puts there; weights are {form.dtype}."
    else:
        text = '"A text with <extra_id_0> gap."'
        auto = "AutoModelForSeq2SeqLM"
        code = GENERATE
        notes = " ".join(_notes(model, form))
    if "pytorch" not in form.formats:
        return f"## Use\n\n{notes}"
    return USE.format(code=LOADED.format(auto=auto, dtype=form.dtype, text=text) + code, notes=notes)


def _notes(model: ModelConfig, form: Form) -> Iterator[str]:
    """Yields the notes on an encoder-decoder."""
    is_scaled = head_scale(model) != 1
    yield f"For transformers {'4.57 and 5' if not is_scaled else form.transformers}; weights are {form.dtype}."
    if "flax" in form.formats:
        yield "`flax_model.msgpack` is for the Flax classes of transformers 4; version 5 has none."
    if is_scaled:
        yield UMT5[form.transformers]
    if not model.logits_via_embedding:
        yield OWN_LAYER_IN_5
    if model.num_decoder_layers > model.num_encoder_layers:
        yield DEEP_DECODER_IN_4
