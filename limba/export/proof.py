"""The proof of a conversion, and the model card, README.md, that says it.

The written weights are read back and must give the source's logits, loss and text, or an encoder's likeliest pieces in
the place of masks. Source and written weights both run
in Limba's network in float32, and where torch and transformers are installed, the PyTorch folder also in transformers.
Differences of logits are relative to the source's largest logit if that is above 1: float32 has seven significant
digits, not decimal places.
"""

from __future__ import annotations

import dataclasses
import importlib.metadata
import importlib.util
import json
import logging
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import huggingface_hub
import jax
import numpy as np
from etils import epath
from jaxtyping import PyTree

from limba.config import CardConfig, ModelConfig
from limba.data.sources.hub_data import hub_name
from limba.data.vocabulary.load import Vocabulary, mask_id
from limba.evaluation.history import plot_loss
from limba.formats import architectures
from limba.formats.huggingface import head_scale, open_folder
from limba.formats.huggingface_files import Form, extra_ids_in
from limba.formats.names import Json
from limba.inference.generate import EOS, START, greedy
from limba.inference.load import place_parameters
from limba.inference.source import Source
from limba.model import Network
from limba.training.metrics.logging import read_metrics

TOLERANCES = {"float32": 1e-4, "bfloat16": 2e-2}
NUM_TOKENS = 8  # of greedy text
NUM_TEXTS = 2  # that greedy text is compared for
ROW = 64  # input tokens at most
PROMPT = 16  # ids of a language model's prompt, the start included
TEXTS = (
    "Toate ființele umane se nasc libere și egale în demnitate și în drepturi. Ele sunt înzestrate cu rațiune.",
    "All human beings are born free and equal in dignity and rights. They are endowed with reason and conscience.",
    "Tous les êtres humains naissent libres et égaux en dignité et en droits. Ils sont doués de raison.",
    "Усі люди народжуються вільними і рівними у своїй гідності та правах.",
)


@dataclass(frozen=True)
class Figures:
    """The results of a comparison; `logits` is the largest difference, `loss` the relative difference."""

    reader: str
    logits: float
    loss: float
    texts_equal: int
    texts: int
    texts_astray: int  # texts whose first difference was not a near tie in the source
    tolerance: float
    what: str = "greedy text"

    @property
    def passed(self) -> bool:
        # A comparison with NaN is false, so NaN fails.
        return self.logits <= self.tolerance and self.loss <= self.tolerance and not self.texts_astray

    def __str__(self) -> str:
        verdict = "passed" if self.passed else "FAILED"
        return (
            f"{self.reader}: logits differ by {self.logits:.1e}, loss by {self.loss:.1e}, {self.what} equal in"
            f" {self.texts_equal} of {self.texts} ({verdict}, limit {self.tolerance:.0e})"
        )


def batch_of(vocabulary: Vocabulary | None, num_rows: int) -> dict[str, np.ndarray]:
    """Returns four sentences with a gap each, encoded; random ids below `num_rows` without a vocabulary."""
    inputs = np.zeros((len(TEXTS), ROW), np.int32)
    targets = np.zeros((len(TEXTS), ROW // 2), np.int32)
    top = num_rows if vocabulary is None else vocabulary.vocab_size
    for row, ids in enumerate(_ids(vocabulary, num_rows, ROW - 2)):
        *ids, eos = ids
        third = len(ids) // 3
        encoder = [*ids[:third], top - 1, *ids[2 * third :], eos]
        decoder = [top - 1, *ids[third : 2 * third], top - 2, eos]
        inputs[row, : len(encoder)] = encoder
        targets[row, : len(decoder)] = decoder
    return {"encoder_input_tokens": inputs, **_shifted(targets)}


def prompts_of(vocabulary: Vocabulary | None, num_rows: int) -> dict[str, np.ndarray]:
    """Returns the same sentences whole, as a language model reads them."""
    targets = np.zeros((len(TEXTS), ROW), np.int32)
    for row, ids in enumerate(_ids(vocabulary, num_rows, ROW - 1)):
        targets[row, : len(ids)] = ids
    return _shifted(targets)


def masked_of(vocabulary: Vocabulary | None, num_rows: int) -> dict[str, np.ndarray]:
    """Returns the same sentences as an encoder reads them: every fourth token is its mask."""
    targets = prompts_of(vocabulary, num_rows)["decoder_target_tokens"]
    mask = num_rows - 1 if vocabulary is None else mask_id(vocabulary)
    is_masked = (targets > 0) & (np.arange(ROW) % 4 == 1)
    return {"decoder_input_tokens": np.where(is_masked, mask, targets), "decoder_target_tokens": targets}


def _ids(vocabulary: Vocabulary | None, num_rows: int, most: int) -> Iterator[list[int]]:
    """Yields the ids of each text, truncated, with the end of sequence."""
    random = np.random.default_rng(0)
    for row, text in enumerate(TEXTS):
        if vocabulary is None:
            yield [*random.integers(2, num_rows, ROW - 8 * row).tolist()[:most], EOS]
        else:
            yield [*list(vocabulary.encode(text))[:most], int(vocabulary.eos_id or EOS)]


def _shifted(targets: np.ndarray) -> dict[str, np.ndarray]:
    shifted = np.pad(targets[:, :-1], ((0, 0), (1, 0)))
    return {"decoder_input_tokens": shifted.astype(np.int32), "decoder_target_tokens": targets.astype(np.int32)}


class Proof:
    """The source's logits, loss and greedy text on one batch, to compare written folders with."""

    def __init__(
        self,
        arrays: Mapping[str, np.ndarray],
        config: ModelConfig,
        vocabulary: Vocabulary | None,
        suppressed: Sequence[int] = (),
    ):
        """`vocabulary` is seqio's, or None; `suppressed` ids are never generated. Reads all of `arrays` into memory."""
        self._config = dataclasses.replace(
            config, dtype="float32", dropout_rate=0.0, remat="none", scan_layers=True, attention="auto"
        )
        self._network = Network(self._config)
        self._apply = jax.jit(self._network.apply)
        self._eos_id = EOS if vocabulary is None else int(vocabulary.eos_id or EOS)
        params = place_parameters(arrays, self._network)
        if config.is_encoder or config.is_t5_encoder:
            make = masked_of if config.is_encoder else batch_of
            self._batch, self._banned = make(vocabulary, config.vocab_size), list[int]()
            self._all, self._first = self._batch, 1
            self._logits, self._followed = self._run(params)
            self._tokens = self._greedy(self._followed)
            return
        if config.is_decoder_only:
            self._batch = prompts_of(vocabulary, config.vocab_size)
            self._prompts = self._batch["decoder_input_tokens"][:NUM_TEXTS, :PROMPT]
            self._banned = [START, *suppressed]  # START is padding, which transformers does not generate either
            before = self._prompts[:, 1:]
        else:
            self._batch = batch_of(vocabulary, config.vocab_size)
            self._prompts = self._batch["encoder_input_tokens"][:NUM_TEXTS]
            self._banned, before = list(suppressed), np.zeros((NUM_TEXTS, 0), np.int32)
        self._first = before.shape[1]  # position of the logits of the first token
        rows = self._config.vocab_size
        tokens = greedy(self._network, params, self._prompts, NUM_TOKENS, rows, self._eos_id, self._banned)
        self._tokens = np.asarray(tokens)
        width = self._batch["decoder_target_tokens"].shape[1] - self._first - NUM_TOKENS
        following = _shifted(np.pad(np.concatenate([before, self._tokens], axis=1), ((0, 0), (0, width))))
        following = {"encoder_input_tokens": self._prompts, **following}
        self._all = {name: np.concatenate([rows, following[name]]) for name, rows in self._batch.items()}
        self._logits, self._followed = self._run(params)

    def _run(self, params: PyTree) -> tuple[np.ndarray, np.ndarray]:
        """Returns the logits of the batch, and the logits of each token of the source's greedy text."""
        logits = np.asarray(self._apply(params, self._all), np.float32)
        if self._config.is_encoder:
            return logits, self._at_masks(logits)
        return logits[: len(TEXTS)], logits[len(TEXTS) :, self._first : self._first + NUM_TOKENS]

    def _at_masks(self, logits: np.ndarray) -> np.ndarray:
        """Returns what an array [B, Q, …] has at the first masks of the first texts, as if that were greedy text."""
        return logits[:NUM_TEXTS, self._first : self._first + 4 * NUM_TOKENS : 4]

    def _greedy(self, followed: np.ndarray) -> np.ndarray:
        """Returns greedy text up to its first difference from the source's, from the logits at the source's tokens."""
        if self._config.is_encoder:
            return np.where(self._at_masks(self._batch["decoder_target_tokens"]) > 0, followed.argmax(axis=-1), 0)
        ends = self._tokens == self._eos_id
        ended = np.cumsum(ends, axis=1) - ends
        allowed = followed[..., : self._config.vocab_size].copy()
        allowed[..., self._banned] = -np.inf
        return np.where(ended, 0, allowed.argmax(axis=-1))

    def _figures(self, reader: str, logits: np.ndarray, tokens: np.ndarray, tolerance: float) -> Figures:
        targets = self._batch["decoder_target_tokens"]
        real = targets > 0
        unit = max(1.0, float(np.abs(self._logits[real]).max()))
        difference = float(np.abs(logits[real] - self._logits[real]).max()) / unit
        losses = [_loss(each[real], targets[real]) for each in (self._logits, logits)]
        loss = abs(losses[1] - losses[0]) / max(1.0, losses[0])
        differing = np.flatnonzero((tokens != self._tokens).any(axis=1))
        astray = sum(self._lead(int(row), tokens[row]) > 2 * tolerance * unit for row in differing)
        what = "top pieces" if self._config.is_encoder else "greedy text"
        return Figures(reader, difference, loss, NUM_TEXTS - len(differing), NUM_TEXTS, astray, tolerance, what)

    def _lead(self, row: int, tokens: np.ndarray) -> float:
        """Returns the source's logit of its token minus that of the other text's token, at the first difference."""
        place = int(np.flatnonzero(tokens != self._tokens[row])[0])
        logits = self._followed[row, place]
        return float(logits[self._tokens[row, place]] - logits[tokens[place]])

    def check_own(self, directory: Path, dtype: str, flax: bool) -> Figures:
        """Compares the written weights, read back by Limba, in Limba's network."""
        arrays = open_folder(directory, self._config, flax)
        logits, followed = self._run(place_parameters(arrays, self._network))
        file = "flax_model.msgpack" if flax else "model.safetensors"
        return self._figures(f"{file} in Limba's network", logits, self._greedy(followed), TOLERANCES[dtype])

    def check_transformers(self, directory: Path, dtype: str) -> Figures:
        """Compares logits and greedy text in transformers; a missing or unexpected weight there is a failure."""
        import torch
        import transformers

        model, about = load_in_transformers(directory)
        whole = not about["missing_keys"] and not about["unexpected_keys"]
        read = {name: torch.tensor(rows, dtype=torch.long) for name, rows in self._batch.items()}
        if self._config.is_encoder:
            with torch.no_grad():
                inputs = read["decoder_input_tokens"]
                logits = model(inputs, attention_mask=(inputs > 0).long()).logits.float().numpy()
            reader, tokens = f"transformers {transformers.__version__}", self._greedy(self._at_masks(logits))
            figures = self._figures(reader, logits, tokens, TOLERANCES[dtype])
            return figures if whole else dataclasses.replace(figures, logits=float("inf"))
        prompts = torch.tensor(self._prompts, dtype=torch.long)
        length = {"max_new_tokens": NUM_TOKENS, "do_sample": False, "num_beams": 1}
        if self._config.is_decoder_only:
            given = {"input_ids": read["decoder_input_tokens"]}
            given["attention_mask"], mask = torch.ones_like(given["input_ids"]), torch.ones_like(prompts)
            length["suppress_tokens"] = self._banned
        else:
            inputs = read["encoder_input_tokens"]
            given = {"input_ids": inputs, "attention_mask": (inputs > 0).long()}
            given["decoder_input_ids"], mask = read["decoder_input_tokens"], (prompts > 0).long()
        with torch.no_grad():
            logits = model(**given).logits.float().numpy()
            tokens = model.generate(input_ids=prompts, attention_mask=mask, **length).numpy()
        tokens = tokens[:, self._first + 1 :]
        tokens = np.pad(tokens, ((0, 0), (0, NUM_TOKENS - tokens.shape[1])))
        figures = self._figures(f"transformers {transformers.__version__}", logits, tokens, TOLERANCES[dtype])
        return figures if whole else dataclasses.replace(figures, logits=float("inf"))


def load_in_transformers(directory: Path) -> tuple[Any, dict[str, Any]]:
    """Returns (transformers' model of a written folder in float32, its report of missing and unexpected keys)."""
    import torch
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    config = json.loads((directory / "config.json").read_text())
    name = "ForSeq2SeqLM" if config.get("is_encoder_decoder") else "ForCausalLM"
    if config["model_type"].endswith("bert"):
        name = config["architectures"][0].removeprefix("EuroBert").removeprefix("ModernBert").removeprefix("Model")
    is_alone = config["architectures"][0].endswith("T5EncoderModel")
    kind = getattr(transformers, config["architectures"][0] if is_alone else f"AutoModel{name}")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        loaded: Any = kind.from_pretrained(directory, dtype=torch.float32, output_loading_info=True)
    model, about = loaded
    model.eval()
    return model, about


def _loss(logits: np.ndarray, targets: np.ndarray) -> float:
    """Returns the mean cross entropy in nats, summed in double precision."""
    logits = logits.astype(np.float64)
    highest = logits.max(axis=-1, keepdims=True)
    normalizer = np.log(np.exp(logits - highest).sum(axis=-1)) + highest[..., 0]
    return float((normalizer - np.take_along_axis(logits, targets[:, None], axis=-1)[:, 0]).mean())


def has_transformers() -> bool:
    """Returns whether torch and transformers are installed, without importing them."""
    return all(importlib.util.find_spec(name) for name in ("torch", "transformers"))


def version() -> int:
    """Returns the first number of transformers' version; 0 if torch or transformers is not installed."""
    return int(importlib.metadata.version("transformers").split(".")[0]) if has_transformers() else 0


def quiet_libraries() -> None:
    """Hides log messages below errors from transformers and the hub's client."""
    for name in ("transformers", "huggingface_hub", "httpx"):
        logging.getLogger(name).setLevel(logging.ERROR)


PIPELINES = {"causal": "text-generation", "bidirectional": "fill-mask"}
OF_HEADS: dict[str, str] = dict.fromkeys(("classes", "score"), "text-classification")
OF_HEADS |= {"tags": "token-classification", "vectors": "sentence-similarity"}
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


def write_card(
    directory: Path,
    source: Source,
    step: int,
    form: Form,
    findings: Sequence[str],
    about: CardConfig,
    usage: str = "",
) -> None:
    """Writes README.md and, where the run has metrics, loss.png beside it; `usage` is its section of a head's own."""
    records = [] if source.run is None else read_metrics(str(source.directory))
    has_picture = source.run is not None and any(record["kind"] == "train" for record in records)
    if source.run is not None and has_picture:
        plot_loss(source.run, directory)
    records = [record for record in records if record["step"] <= step]
    sections = [
        f"---\n{_front_matter(source, about, _results(records)).to_yaml()}\n---",
        f"# {source.directory.name}, step {step:,}",
        f"Pretrained with {source.kind}, converted by Limba.",
        "No licence has been chosen yet: `license` above says `other`." if about.licence is None else "",
        _table("Architecture", _architecture(source.model)),
        _table("Training", _training(source, step, about.hardware, records)),
        "![loss](loss.png)" if has_picture else "",
        "## Conversion\n\n" + "\n".join(f"* {line}" for line in findings),
        usage or _usage(source.model, form),
        BYTE_SENTINELS if extra_ids_in(epath.Path(directory)) == 0 else "",
        f"## Acknowledgement\n\n{TPU_RESEARCH_CLOUD}" if about.thank_trc else "",
    ]
    (directory / "README.md").write_text("\n\n".join(part for part in sections if part) + "\n", encoding="utf-8")


def _front_matter(source: Source, about: CardConfig, results: Mapping[str, float]) -> huggingface_hub.ModelCardData:
    """Returns that by which the hub lists the model: language, data sets, licence, results."""
    task = "" if source.run is None else source.run.data.mixture_or_task_name
    return huggingface_hub.ModelCardData(
        license=about.licence or "other",
        library_name="transformers",
        # transformers 5 has no pipeline for encoder-decoders
        pipeline_tag=_pipeline_of(source.model),
        tags=[architectures.kind(source.model)],
        language=[*about.language] if about.language else None,
        datasets=[*about.datasets] if about.datasets else None,
        model_name=source.directory.name if results else None,
        eval_results=[
            huggingface_hub.EvalResult("text-generation", task, task, name, round(value, 4))
            for name, value in results.items()
        ]
        or None,
    )


def _pipeline_of(model: ModelConfig) -> str | None:
    if model.has_own_head:
        return OF_HEADS[model.head]
    return PIPELINES[model.exported.attention_mask] if model.is_decoder_only else None


def _results(records: Iterable[Json]) -> dict[str, float]:
    """Returns the last figures of the validation split: loss, bits per byte, metrics of text."""
    found: dict[str, float] = {}
    for record in records:
        if record["kind"] == "validation":
            found |= {name: record[name] for name in ("loss", "bits_per_byte") if name in record}
        elif record["kind"] == "text":
            found |= {name: value for name, value in record.items() if name not in NO_METRICS and "/" not in name}
    return found


def _table(heading: str, entries: Mapping[str, object]) -> str:
    rows = "\n".join(f"| {name} | {value} |" for name, value in entries.items() if value is not None)
    return f"## {heading}\n\n| | |\n| --- | --- |\n{rows}"


def _architecture(model: ModelConfig) -> dict[str, object]:
    is_alone = model.is_decoder_only
    layers, heads = f"{model.num_encoder_layers} and {model.num_decoder_layers}", f"{model.num_heads} of width"
    tied, per_layer = "the embedding" if is_alone else "the embedding, scaled", model.relative_bias_per_layer
    return {
        "layers"
        if model.is_encoder
        else "decoder layers"
        if is_alone
        else "encoder and decoder layers": model.num_decoder_layers if is_alone else layers,
        "width": model.emb_dim,
        "heads": f"{heads} {model.head_dim}" + (f", {model.kv_heads} of keys and values" if is_alone else ""),
        "MLP": f"{model.mlp_dim}, {' x '.join(model.mlp_activations)}",
        "rows of the embedding": f"{model.vocab_size:,}",
        "output layer": model.head if model.has_own_head else tied if model.logits_via_embedding else "of its own",
        "labels": ", ".join(model.labels) or None,
        "positions": model.positions if is_alone else None,
        "relative position bias": None if is_alone else "one in every layer" if per_layer else "one per stack",
    }


def _training(source: Source, step: int, hardware: str | None, records: Iterable[Json] = ()) -> dict[str, object]:
    entries: dict[str, object] = {"steps": f"{step:,}", "hardware": hardware}
    run = source.run
    if run is None:
        return entries
    data, lengths = run.data, run.data.task_feature_lengths
    last = next((record for record in reversed([*records]) if record["kind"] == "validation"), None)
    average = run.evaluation.average if source.averages else None
    stages, bits = data.stages_before(step), last and last.get("bits_per_byte")  # of labeled texts there are none
    return entries | {
        "task": ", ".join(f"from step {begins:,} on `{name}`" if begins else f"`{name}`" for begins, name in stages),
        "data": None if data.data_files is None else f"`{_names(data.data_files)}`",
        "objective": data.objective,
        "lengths": ", ".join(f"{name} {length}" for name, length in lengths.items()),
        "examples per step": data.batch_size,
        "input tokens at most": f"{step * data.batch_size * (data.sequence_length or lengths['inputs']):,}",
        "optimizer": f"{run.optimizer.name}, {run.optimizer.schedule.name}",
        "weights": None if average is None else f"their moving average, decay {average}, which is evaluated too",
        "validation loss": last and f"{last['loss']:.3f} at step {last['step']:,}",
        "bits per byte": bits and f"{bits:.3f} on validation text",
    }


def _names(files: str | Sequence[str] | Mapping[str, str]) -> str:
    """Returns file names without their directories, since these are private, and names of the hub's data sets whole."""
    parts = files.values() if isinstance(files, Mapping) else [files] if isinstance(files, str) else files
    return ", ".join(str(part) if hub_name(str(part)) else str(part).rpartition("/")[2] for part in parts)


USAGE = """\
## Use

```python
import torch
from transformers import {auto}, AutoTokenizer

name = "."  # this folder, or its name on the hub
tokenizer = AutoTokenizer.from_pretrained(name)
model = {auto}.from_pretrained(name, dtype=torch.{dtype})
{code}
```

"""
GENERATE = """\
inputs = tokenizer("A text with <extra_id_0> gap.", return_tensors="pt")
print(tokenizer.decode(model.generate(**inputs, max_new_tokens=20)[0]))"""
CONTINUE = """\
inputs = tokenizer("A text that", return_tensors="pt")
tokens = model.generate(**inputs, max_new_tokens=50, do_sample=True, temperature=0.6, top_k=20)
print(tokenizer.decode(tokens[0], skip_special_tokens=True))"""


FILL = """\
inputs = tokenizer(f"A text with one {tokenizer.mask_token} hidden.", return_tensors="pt")
logits = model(**inputs).logits[0, inputs.input_ids[0] == tokenizer.mask_token_id]
print(tokenizer.convert_ids_to_tokens(logits[0].topk(5).indices))"""


def _usage(model: ModelConfig, form: Form) -> str:
    formats, dtype, transformers = form
    if model.is_encoder:
        code = USAGE.format(auto="AutoModelForMaskedLM", dtype=dtype, code=FILL)
        return code + f"`AutoModel` gives the hidden states. For transformers 5; weights are {dtype}."
    if model.is_decoder_only:
        begins = f"A text begins with the padding token, which the tokenizer puts there; weights are {dtype}."
        return USAGE.format(auto="AutoModelForCausalLM", dtype=dtype, code=CONTINUE) + begins
    is_scaled = head_scale(model) != 1
    notes = [f"For transformers {'4.57 and 5' if not is_scaled else transformers}; weights are {dtype}."]
    if "flax" in formats:
        notes.append("`flax_model.msgpack` is for the Flax classes of transformers 4; version 5 has none.")
    if is_scaled:
        notes.append(UMT5[transformers])
    if not model.logits_via_embedding:
        notes.append(OWN_LAYER_IN_5)
    if model.num_decoder_layers > model.num_encoder_layers:
        notes.append(DEEP_DECODER_IN_4)
    code = USAGE.format(auto="AutoModelForSeq2SeqLM", dtype=dtype, code=GENERATE)
    return (code if "pytorch" in formats else "## Use\n\n") + " ".join(notes)
