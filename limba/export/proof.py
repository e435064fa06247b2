"""The proof of a conversion: the written weights are read back, and must give what the source gives.

That is logits, loss and greedy text; for an encoder with a head, logits and its likeliest pieces at masks; for an
encoder without one, hidden states. Source and written weights both run in Limba's network in float32, and where torch
and transformers are installed, the PyTorch folder also runs in transformers. Differences of logits are relative to the
source's largest logit if that is above 1: float32 has seven significant digits, not decimal places.
"""

import dataclasses
import functools
import importlib.metadata
import importlib.util
import json
import logging
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jaxtyping import PyTree

from limba.config import ModelConfig
from limba.data.vocabulary import export_check
from limba.data.vocabulary.published import PublishedVocabulary
from limba.data.vocabulary.sentinels import mask_id
from limba.data.vocabulary.special_ids import END, START, SpecialIds, of_run
from limba.data.vocabulary.vocabularies import Vocabulary
from limba.formats.huggingface import open_folder
from limba.formats.huggingface_files import as_encoder
from limba.inference.generate import greedy
from limba.inference.load import place_parameters
from limba.model import Network
from limba.model.kernels.local import SHORTEST

TOLERANCES = {"float32": 1e-4, "bfloat16": 2e-2}  # by the dtype of the written weights
NUM_TOKENS = 8  # of greedy text
NUM_TEXTS = 2  # that greedy text is compared for
ROW = 64  # input tokens at most; a network with a window has rows of SHORTEST windows, which are computed in blocks
PROMPT = 16  # ids of a language model's prompt, the start included
TOKENIZER_CONFIG = "tokenizer_config.json"
# The first article of the Universal Declaration of Human Rights.
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


def batch_of(vocabulary: Vocabulary | None, num_rows: int, length: int = ROW) -> dict[str, np.ndarray]:
    """Returns four sentences with a gap each, encoded; random ids below `num_rows` without a vocabulary."""
    inputs = np.zeros((len(TEXTS), length), np.int32)
    targets = np.zeros((len(TEXTS), length // 2), np.int32)
    top = num_rows if vocabulary is None else min(vocabulary.vocab_size, num_rows)
    for row, ids in enumerate(_ids(vocabulary, num_rows, length - 2, length)):
        *ids, eos = ids
        third = len(ids) // 3
        # The middle third is a gap. Sentinels count down from the last id.
        encoder = [*ids[:third], top - 1, *ids[2 * third :], eos]
        decoder = [top - 1, *ids[third : 2 * third], top - 2, eos]
        inputs[row, : len(encoder)] = encoder
        targets[row, : len(decoder)] = decoder
    return {"encoder_input_tokens": inputs, **_shifted(targets)}


def prompts_of(vocabulary: Vocabulary | None, num_rows: int, length: int = ROW) -> dict[str, np.ndarray]:
    """Returns the same sentences whole, as a language model reads them."""
    targets = np.zeros((len(TEXTS), length), np.int32)
    for row, ids in enumerate(_ids(vocabulary, num_rows, length - 1, length)):
        targets[row, : len(ids)] = ids
    return _shifted(targets)


def masked_of(vocabulary: Vocabulary | None, num_rows: int, length: int = ROW) -> dict[str, np.ndarray]:
    """Returns the same sentences as an encoder reads them: every fourth token is its mask."""
    targets = prompts_of(vocabulary, num_rows, length)["decoder_target_tokens"]
    mask = num_rows - 1 if vocabulary is None else mask_id(vocabulary)
    is_masked = (targets > 0) & (np.arange(length) % 4 == 1)
    return {"decoder_input_tokens": np.where(is_masked, mask, targets), "decoder_target_tokens": targets}


def texts_of(vocabulary: Vocabulary | None, num_rows: int, length: int = ROW) -> dict[str, np.ndarray]:
    """Returns the same sentences whole, as an encoder without logits reads them."""
    targets = prompts_of(vocabulary, num_rows, length)["decoder_target_tokens"]
    return dict.fromkeys(("decoder_input_tokens", "decoder_target_tokens"), targets)


def _ids(vocabulary: Vocabulary | None, num_rows: int, most: int, length: int) -> Iterator[list[int]]:
    """Yields the ids of each text, truncated, or repeated if rows are longer than ROW, with the end of sequence."""
    random = np.random.default_rng(0)
    for row, text in enumerate(TEXTS):
        if vocabulary is None:
            yield [*random.integers(2, num_rows, length - 8 * row).tolist()[:most], END]
        else:
            # 0 is padding in these rows, also where a published vocabulary has a piece there.
            ids = [number for number in vocabulary.encode(text) if number != START]
            if length != ROW:
                ids = np.resize(ids, length - 8 * row).tolist()
            yield [*ids[:most], END if vocabulary.eos_id is None else int(vocabulary.eos_id)]


def _shifted(targets: np.ndarray, start: int = START) -> dict[str, np.ndarray]:
    """Returns the decoder's targets with its inputs, which are the targets one position later."""
    shifted = np.pad(targets[:, :-1], ((0, 0), (1, 0)), constant_values=start)
    return {"decoder_input_tokens": shifted.astype(np.int32), "decoder_target_tokens": targets.astype(np.int32)}


class Proof:
    """The source's logits, loss and greedy text on one batch, to compare written folders with."""

    def __init__(
        self,
        arrays: Mapping[str, np.ndarray],
        config: ModelConfig,
        vocabulary: Vocabulary | None,
        suppressed: Sequence[int] = (),
        special: SpecialIds | None = None,
    ):
        """`vocabulary` is seqio's, or None; `suppressed` ids are never generated. Reads all of `arrays` into memory.

        `special` are the ids with a role, by default a run's.
        """
        self._config = dataclasses.replace(
            config, dtype="float32", dropout_rate=0.0, remat="none", scan_layers=True, attention="auto"
        )
        self._network = Network(self._config)
        self._apply = jax.jit(self._network.apply)
        self._special = special or of_run(vocabulary, config)
        params = place_parameters(arrays, self._network)
        if config.is_encoder or not config.has_logits:
            self._read_texts(params, vocabulary)
        else:
            self._write_text(params, vocabulary, suppressed)

    def _read_texts(self, params: PyTree, vocabulary: Vocabulary | None) -> None:
        """Sets what an encoder is compared by: a batch, its logits, and the likeliest pieces at the first masks."""
        config = self._config
        if config.has_logits:
            make = masked_of
        elif config.is_t5_encoder:
            make = batch_of
        else:
            make = texts_of
        length = ROW
        if config.local_attention:
            length = max(ROW, SHORTEST * config.local_attention[0])
        self._batch = make(vocabulary, config.vocab_size, length)
        self._banned: list[int] = []
        self._all = self._batch
        self._first = 1  # position of the first mask
        self._logits, self._followed = self._run(params)
        self._tokens = self._greedy(self._followed)

    def _write_text(self, params: PyTree, vocabulary: Vocabulary | None, suppressed: Sequence[int]) -> None:
        """Sets what a model that writes is compared by: a batch, its logits, and greedy text with its logits.

        The batch and the rows of the greedy text are one array (`_all`), which the network reads at once.
        """
        config = self._config
        if config.is_decoder_only:
            self._batch = prompts_of(vocabulary, config.vocab_size)
            self._prompts = self._batch["decoder_input_tokens"][:NUM_TEXTS, :PROMPT]
            self._banned = [START, *suppressed]  # START is padding, which transformers does not generate either
            before = self._prompts[:, 1:]
            start = START
        else:
            self._batch = batch_of(vocabulary, config.vocab_size)
            self._prompts = self._batch["encoder_input_tokens"][:NUM_TEXTS]
            self._banned = list(suppressed)
            before = np.zeros((NUM_TEXTS, 0), np.int32)
            start = self._special.generation_start
        self._first = before.shape[1]  # position of the logits of the first token
        tokens = greedy(
            self._network, params, self._prompts, NUM_TOKENS, config.vocab_size, self._special, self._banned
        )
        self._tokens = np.asarray(tokens)
        width = self._batch["decoder_target_tokens"].shape[1] - self._first - NUM_TOKENS
        written = np.pad(np.concatenate([before, self._tokens], axis=1), ((0, 0), (0, width)))
        following = {"encoder_input_tokens": self._prompts, **_shifted(written, start)}
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
            is_text = self._at_masks(self._batch["decoder_target_tokens"]) > 0
            return np.where(is_text, followed.argmax(axis=-1), 0)
        ends = np.isin(self._tokens, self._special.ends)
        ended = np.cumsum(ends, axis=1) - ends  # ends before a token, which is then padding
        allowed = followed[..., : self._config.vocab_size].copy()
        allowed[..., self._banned] = -np.inf
        return np.where(ended, 0, allowed.argmax(axis=-1))

    def _figures(self, reader: str, logits: np.ndarray, tokens: np.ndarray, tolerance: float) -> Figures:
        targets = self._batch["decoder_target_tokens"]
        real = targets > 0
        unit = max(1.0, float(np.abs(self._logits[real]).max()))
        difference = float(np.abs(logits[real] - self._logits[real]).max()) / unit
        loss_of_source = _loss(self._logits[real], targets[real])
        loss = abs(_loss(logits[real], targets[real]) - loss_of_source) / max(1.0, loss_of_source)
        differing = np.flatnonzero((tokens != self._tokens).any(axis=1))
        # Each of two logits may be off by the tolerance, so a lead of less than twice that is a near tie.
        astray = sum(self._lead(int(row), tokens[row]) > 2 * tolerance * unit for row in differing)
        what = "top pieces" if self._config.is_encoder else "greedy text"
        return Figures(reader, difference, loss, NUM_TEXTS - len(differing), NUM_TEXTS, astray, tolerance, what)

    def _lead(self, row: int, tokens: np.ndarray) -> float:
        """Returns by how much the source prefers its token to the other text's, in logits, at the first difference."""
        position = int(np.flatnonzero(tokens != self._tokens[row])[0])
        logits = self._followed[row, position]
        return float(logits[self._tokens[row, position]] - logits[tokens[position]])

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

        model, loading_info = load_in_transformers(directory)
        with torch.no_grad():
            logits, tokens = self._in_transformers(model)
        figures = self._figures(f"transformers {transformers.__version__}", logits, tokens, TOLERANCES[dtype])
        is_whole = not loading_info["missing_keys"] and not loading_info["unexpected_keys"]
        return figures if is_whole else dataclasses.replace(figures, logits=float("inf"))

    def _in_transformers(self, model: Any) -> tuple[np.ndarray, np.ndarray]:
        """Returns the logits of the batch and greedy text there."""
        import torch

        read = {name: torch.tensor(rows, dtype=torch.long) for name, rows in self._batch.items()}
        if self._config.is_encoder:
            inputs = read["decoder_input_tokens"]
            logits = model(inputs, attention_mask=(inputs > 0).long()).logits.float().numpy()
            return logits, self._greedy(self._at_masks(logits))
        prompts = torch.tensor(self._prompts, dtype=torch.long)
        length = {"max_new_tokens": NUM_TOKENS, "do_sample": False, "num_beams": 1}
        if self._config.is_decoder_only:
            inputs = read["decoder_input_tokens"]
            batch = {"input_ids": inputs, "attention_mask": torch.ones_like(inputs)}
            prompt_mask = torch.ones_like(prompts)
            length["suppress_tokens"] = self._banned
        else:
            inputs = read["encoder_input_tokens"]
            batch = {"input_ids": inputs, "attention_mask": (inputs > 0).long()}
            batch["decoder_input_ids"] = read["decoder_input_tokens"]
            prompt_mask = (prompts > 0).long()
        if self._special.is_published:
            model.generation_config = self._plain_search()
        logits = model(**batch).logits.float().numpy()
        tokens = model.generate(input_ids=prompts, attention_mask=prompt_mask, **length).numpy()[:, self._first + 1 :]
        tokens = np.pad(tokens, ((0, 0), (0, NUM_TOKENS - tokens.shape[1])))
        ends = np.isin(tokens, self._special.ends)
        return logits, np.where(np.cumsum(ends, axis=1) - ends > 0, 0, tokens)

    def _plain_search(self) -> Any:
        """Returns transformers' choices of a search with a published model's ids, and without its file's own rules."""
        import transformers

        special = self._special
        start = None if self._config.is_decoder_only else special.generation_start
        return transformers.GenerationConfig(
            eos_token_id=list(special.ends) or None,
            pad_token_id=special.filling,
            decoder_start_token_id=start,
            suppress_tokens=self._banned or None,
        )


class StatesProof(Proof):
    """The hidden states of an encoder without logits; in place of text, their largest entries are compared."""

    def _run(self, params: PyTree) -> tuple[np.ndarray, np.ndarray]:
        states = np.asarray(self._apply(params, self._all), np.float32)
        return states, states

    @property
    def _inputs(self) -> np.ndarray:
        return self._batch["encoder_input_tokens" if self._config.is_t5_encoder else "decoder_input_tokens"]

    def _greedy(self, followed: np.ndarray) -> np.ndarray:
        return followed.argmax(axis=-1)

    def _figures(self, reader: str, logits: np.ndarray, tokens: np.ndarray, tolerance: float) -> Figures:
        real = self._inputs > 0
        unit = max(1.0, float(np.abs(self._logits[real]).max()))
        difference = float(np.abs(logits[real] - self._logits[real]).max()) / unit
        differs = ((tokens != self._tokens) & real).any(axis=1)
        chosen = np.take_along_axis(self._logits, tokens[..., None], axis=-1)[..., 0]
        leads = (self._logits.max(axis=-1) - chosen)[real]
        equal = int((~differs).sum())
        astray = int((leads > 2 * tolerance * unit).sum())
        return Figures(reader, difference, 0.0, equal, len(differs), astray, tolerance, "largest entries")

    def _in_transformers(self, model: Any) -> tuple[np.ndarray, np.ndarray]:
        import torch

        inputs = torch.tensor(self._inputs, dtype=torch.long)
        states = model(inputs, attention_mask=(inputs > 0).long()).last_hidden_state.float().numpy()
        return states, self._greedy(states)


def check_tokenizer(directory: Path, vocabulary: Vocabulary, template: tuple[list[int], list[int]]) -> tuple[bool, str]:
    """Returns whether the written tokenizer gives the ids of the training, and a sentence about it.

    `template` are the ids before and after each text. It is read by transformers where that is installed; else nothing
    more is compared than `write_tokenizer` has compared.
    """
    tokenizer_config = json.loads((directory / TOKENIZER_CONFIG).read_text())
    # What a published tokenizer reads in a gap is its own choice, which the copy of its files keeps.
    has_gaps = "bos_token" not in tokenizer_config and not isinstance(vocabulary, PublishedVocabulary)
    gaps = export_check.sentinels_of(vocabulary) if has_gaps else []
    if "mask_token" in tokenizer_config and not isinstance(vocabulary, PublishedVocabulary):
        gaps = [(tokenizer_config["mask_token"], mask_id(vocabulary))] * 2
    count = export_check.num_texts(vocabulary, gaps)
    if not has_transformers():
        if tokenizer_config["tokenizer_class"] == "ByT5Tokenizer":
            text = "the tokenizer is transformers' ByT5Tokenizer, which is not installed: its ids are not compared"
            return True, text
        return True, f"tokenizer.json in tokenizers: equal ids in {count} of {count} texts"
    import transformers

    tokenizer: Any = transformers.AutoTokenizer.from_pretrained(directory)
    differing = export_check.differences(
        vocabulary, lambda text: tokenizer(text, add_special_tokens=False).input_ids, gaps
    )
    reader = f"the tokenizer in transformers {transformers.__version__}"
    if differing:
        example = export_check.in_words(differing[0])
        return False, f"{reader}: other ids in {len(differing)} of {count} texts, {example} (FAILED)"
    before, after = template
    framed = tokenizer(TEXTS[0]).input_ids
    wanted = [*before, *map(int, vocabulary.encode(TEXTS[0])), *after]
    if framed != wanted:
        around = f"begins {framed[:3]} and ends {framed[-2:]}, where the model learned {wanted[:3]} and {wanted[-2:]}"
        return False, f"{reader}: a text {around} (FAILED)"
    return True, f"{reader}: equal ids in {count} of {count} texts"


def check_encoder(
    directory: Path, arrays: Mapping[str, np.ndarray], hybrid: ModelConfig, vocabulary: Vocabulary | None, dtype: str
) -> Iterator[tuple[bool, str]]:
    """Yields whether the encoder of a hybrid has its hidden states, in each reader, and a sentence.

    The hybrid reads a row's inputs one position later, after the start; the encoder is given them shifted like that.
    """
    config = dataclasses.replace(hybrid, dtype="float32", dropout_rate=0.0, remat="none", scan_layers=True)
    batch = prompts_of(vocabulary, config.vocab_size)
    targets = batch["decoder_target_tokens"]
    real = targets > 0
    network = Network(config)
    whole = {"decoder_input_tokens": targets, "decoder_target_tokens": targets}
    states = _states(network, place_parameters(arrays, network), whole)
    unit = max(1.0, float(np.abs(states[real]).max()))
    limit = TOLERANCES[dtype]

    def compared(reader: str, others: np.ndarray) -> tuple[bool, str]:
        difference = float(np.abs(others[real] - states[real]).max()) / unit
        passed = difference <= limit  # NaN fails
        verdict = "passed" if passed else "FAILED"
        return passed, f"{reader}: hidden states differ by {difference:.1e} ({verdict}, limit {limit:.0e})"

    encoder = Network(as_encoder(config))
    shifted = {"decoder_input_tokens": batch["decoder_input_tokens"], "decoder_target_tokens": targets}
    written = place_parameters(open_folder(directory, encoder.config), encoder)
    yield compared("the encoder's model.safetensors in Limba's network", _states(encoder, written, shifted))
    if not has_transformers():
        return
    import torch
    import transformers

    if version() < 5:
        yield True, f"transformers {transformers.__version__} has no EuroBertModel: the encoder is not compared there"
        return
    model, loading_info = load_in_transformers(directory)
    with torch.no_grad():
        inputs = torch.tensor(batch["decoder_input_tokens"], dtype=torch.long)
        mask = torch.tensor(real.astype(np.int64))
        others = model(inputs, attention_mask=mask).last_hidden_state.float().numpy()
    passed, sentence = compared(f"EuroBertModel in transformers {transformers.__version__}", others)
    yield passed and not loading_info["missing_keys"] and not loading_info["unexpected_keys"], sentence


def _states(network: Network, params: PyTree, batch: Mapping[str, np.ndarray]) -> np.ndarray:
    compute = jax.jit(functools.partial(network.apply, as_states=True))
    return np.asarray(compute(params, dict(batch)), np.float32)


def load_in_transformers(directory: Path) -> tuple[Any, dict[str, Any]]:
    """Returns (transformers' model of a written folder in float32, its report of missing and unexpected keys)."""
    import torch
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    config = json.loads((directory / "config.json").read_text())
    architecture = config["architectures"][0]
    if architecture.endswith("T5EncoderModel"):  # the encoder of a T5 alone is loaded by its own class
        name = architecture
    elif config["model_type"].endswith("bert"):
        head = architecture.removeprefix("EuroBert").removeprefix("ModernBert").removeprefix("Model")
        name = f"AutoModel{head}"
    elif config.get("is_encoder_decoder"):
        name = "AutoModelForSeq2SeqLM"
    else:
        name = "AutoModelForCausalLM"
    kind = getattr(transformers, name)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        loaded: Any = kind.from_pretrained(directory, dtype=torch.float32, output_loading_info=True)
    model, loading_info = loaded
    model.eval()
    return model, loading_info


def _loss(logits: np.ndarray, targets: np.ndarray) -> float:
    """Returns the mean cross entropy in nats, summed in double precision."""
    logits = logits.astype(np.float64)
    highest = logits.max(axis=-1, keepdims=True)
    normalizer = np.log(np.exp(logits - highest).sum(axis=-1)) + highest[..., 0]
    of_targets = np.take_along_axis(logits, targets[:, None], axis=-1)[:, 0]
    return float((normalizer - of_targets).mean())


def has_transformers() -> bool:
    """Returns whether torch and transformers are installed, without importing them."""
    return all(importlib.util.find_spec(name) for name in ("torch", "transformers"))


def version() -> int:
    """Returns the first number of transformers' version; 0 if torch or transformers is not installed."""
    if not has_transformers():
        return 0
    return int(importlib.metadata.version("transformers").split(".")[0])


def quiet_libraries() -> None:
    """Hides log messages below errors from transformers and the hub's client."""
    for name in ("transformers", "huggingface_hub", "httpx"):
        logging.getLogger(name).setLevel(logging.ERROR)
