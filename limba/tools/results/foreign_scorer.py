"""Models that Limba does not read, as transformers' own classes compute them: BERT, XLM-R, Qwen, Gemma and so on.

torch and transformers are imported here only when such a model is opened. No code of a model's folder is run.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import functools
import hashlib
import itertools
import json
import logging
import re
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool, Float

from limba.config import InputError, environment, extras, untrusted_files
from limba.tools.results.scoring_methods import CAUSAL, GAPS, HOW, MASKED

MOST_LOGITS = 1 << 26  # numbers of a batch's logits: 256 MiB in float32
MOST_ROWS = 32  # texts of a batch
SENTINEL = re.compile(r"<extra_id_\d+>")
UNSPACED = re.compile(  # letters of scripts without spaces: Han, kana, Thai, Lao, Burmese, Khmer
    r"[\u3041-\u309f\u30a1-\u30fa\u30fc\u3400-\u4dbf\u4e00-\u9fff\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff]"
)
PROBE = "a"  # a text of one piece in most vocabularies, around which a tokenizer shows its template
WITHOUT_START = "; the model has no start token, so the first token of each text is read and not scored"


class NotThereError(InputError):
    """There is neither a folder nor a model of the hub of that name."""


def way_of(name: str) -> str:
    """Returns how a model of transformers would score texts; InputError for one that it has no such class for."""
    with _libraries():
        return _way(name, _config(name))


def open_folder(name: str) -> ForeignScorer:
    """Returns a folder's model, or one of the hub (`user/name`, `user/name@revision`), in float32.

    Raises InputError for one that needs code of its own, that scores no texts, or that lacks some of its weights.
    """
    with _libraries():
        import torch
        import transformers

        config = _config(name)
        way = _way(name, config)
        path, revision = _path_and_revision(name)
        with untrusted_files.reading(name, "copy the folder again, or check that transformers opens it"), _quiet():
            tokenizer = transformers.AutoTokenizer.from_pretrained(path, revision=revision, trust_remote_code=False)
            made: Any = _class_of(way).from_pretrained(
                path,
                revision=revision,
                config=config,
                dtype=torch.float32,
                output_loading_info=True,
                trust_remote_code=False,
            )
        model, loading_info = made
        missing = sorted(str(key) for key in loading_info["missing_keys"])
        if missing:
            raise InputError(
                f"{name} has no weights for {missing[0]} and {len(missing) - 1} others of"
                f" {type(model).__name__}, so it scores no texts; give a model with its output layer."
            )
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        scorer = ForeignScorer(name, way, model.eval().to(device), tokenizer)
        scorer.check()
        return scorer


@contextlib.contextmanager
def _libraries() -> Iterator[None]:
    """Says in a sentence that torch or transformers is missing."""
    with extras.needed_by("A model that Limba does not read itself"):
        with environment.quiet_imports():
            import torch  # noqa: F401
            import transformers  # noqa: F401
        yield


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Hides what transformers logs while it opens a model: our own error names what is missing."""
    import transformers

    transformers.utils.logging.disable_progress_bar()
    logger = logging.getLogger("transformers")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)


def _path_and_revision(name: str) -> tuple[str, str | None]:
    """Returns what transformers is given for a name, and its revision."""
    folder = Path(name).expanduser()
    if folder.exists():
        return str(folder), None
    first, _, revision = name.partition("@")
    return first, revision or None


def _config(name: str) -> Any:
    """Returns transformers' configuration of a model; InputError for one that it does not know."""
    import transformers

    path, revision = _path_and_revision(name)
    try:
        with _quiet():
            config_dict, _ = transformers.PreTrainedConfig.get_config_dict(path, revision=revision)
    except OSError as error:
        raise NotThereError(f"{name} is neither a folder here nor a model on the hub; correct the name.") from error
    except Exception as error:
        raise InputError(f"{name}: its config.json cannot be read; copy the folder again.") from error
    kind = config_dict.get("model_type")
    if kind not in transformers.CONFIG_MAPPING:
        if config_dict.get("auto_map"):
            raise InputError(
                f"{name} needs code of its own (auto_map in its config.json), which is not run here; give a model that"
                " transformers' own classes open."
            )
        raise InputError(
            f"{name} is of the kind {kind!r}, which transformers {transformers.__version__} does not know; give"
            " another model, or install a version that has it."
        )
    with untrusted_files.reading(f"{name}: its config.json", "copy the folder again"), _quiet():
        return transformers.AutoConfig.from_pretrained(path, revision=revision, trust_remote_code=False)


def _way(name: str, config: Any) -> str:
    """Returns how a model scores texts; InputError for one that does not."""
    import transformers

    kind = type(config)
    classes = [str(class_name) for class_name in config.architectures or ()]
    if getattr(config, "is_encoder_decoder", False):
        if kind not in transformers.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING:
            raise InputError(f"{name} is a {config.model_type}, which writes no texts from texts; give another model.")
        return GAPS
    is_causal = kind in transformers.MODEL_FOR_CAUSAL_LM_MAPPING
    is_masked = kind in transformers.MODEL_FOR_MASKED_LM_MAPPING
    if not (is_causal or is_masked):
        raise InputError(
            f"{name} is a {config.model_type}, for which transformers has no language model; give another."
        )
    if is_causal and is_masked:  # a BERT may be either
        says_causal = any(class_name.endswith(("ForCausalLM", "LMHeadModel")) for class_name in classes)
        is_causal = says_causal or bool(getattr(config, "is_decoder", False))
    return CAUSAL if is_causal else MASKED


def _class_of(way: str) -> Any:
    import transformers

    classes = {
        CAUSAL: transformers.AutoModelForCausalLM,
        MASKED: transformers.AutoModelForMaskedLM,
        GAPS: transformers.AutoModelForSeq2SeqLM,
    }
    return classes[way]


@dataclass(frozen=True)
class ForeignScorer:
    """A model of transformers; see `scoring.Scorer`."""

    name: str
    way: str
    model: Any
    tokenizer: Any

    def check(self) -> None:
        """Raises InputError for a tokenizer without the tokens that this way of scoring needs."""
        _ = self.template
        if self.way == MASKED and self.tokenizer.mask_token_id is None:
            raise InputError(f"{self.name} has no mask token, by which an encoder scores texts; give another model.")
        if self.way == GAPS and self._num_sentinels("<extra_id_0> <extra_id_1>") != 2:
            raise InputError(
                f"{self.name} is an encoder-decoder without sentinels (<extra_id_0>, …), so it fills no gaps, by which"
                " one scores texts; give a T5 or its kin."
            )

    @property
    def how(self) -> str:
        has_start = self.way != CAUSAL or self.starts
        return HOW[self.way] if has_start else HOW[self.way].partition(",")[0] + WITHOUT_START

    @functools.cached_property
    def template(self) -> tuple[list[int], list[int]]:
        """What the tokenizer puts before and after a text."""
        plain = self._ids(PROBE)
        whole = self.tokenizer(PROBE).input_ids
        for start in range(len(whole) - len(plain) + 1):
            if plain and whole[start : start + len(plain)] == plain:
                return whole[:start], whole[start + len(plain) :]
        raise InputError(f"The tokenizer of {self.name} does not read the text {PROBE!r}; check its files.")

    @functools.cached_property
    def starts(self) -> list[int]:
        """What a causal model reads before a text: its template, else its start token, else nothing."""
        before, _ = self.template
        named = [self.tokenizer.bos_token_id, *(source.bos_token_id for source in self._configs())]
        ids = [number for number in named if isinstance(number, int) and 0 <= number < self._num_rows]
        return before or ids[:1]

    def _configs(self) -> list[Any]:
        return [
            source for source in (self.model.generation_config, self.model.config) if hasattr(source, "bos_token_id")
        ]

    @property
    def _num_rows(self) -> int:
        return int(self.model.get_input_embeddings().weight.shape[0])

    @property
    def _end(self) -> int | None:
        return self.tokenizer.eos_token_id

    @functools.cached_property
    def longest(self) -> int | None:
        """The most tokens that the model reads; None without an end."""
        positions = getattr(self.model.config, "max_position_embeddings", None)
        if positions is None:
            return None
        for name, module in self.model.named_modules():
            padding = getattr(module, "padding_idx", None)
            if name.endswith("position_embeddings") and padding is not None:  # RoBERTa's begin after it
                return int(positions) - padding - 1
        return int(positions)

    def _ids(self, text: str) -> list[int]:
        return self._checked(self.tokenizer(_whole_letters(text), add_special_tokens=False, verbose=False).input_ids)

    def _checked(self, ids: list[int]) -> list[int]:
        """Returns the ids of a text; InputError for one that was added to the tokenizer, and that the model lacks."""
        if max(ids, default=0) >= self._num_rows:
            raise InputError(
                f"The tokenizer of {self.name} gives a text the id {max(ids)}, and the model has {self._num_rows:,}"
                " rows; resize its embedding in transformers."
            )
        return ids

    def _num_sentinels(self, text: str) -> int:
        names = {self.tokenizer.convert_tokens_to_ids(name) for name in SENTINEL.findall(text)}
        return sum(number in names for number in self._ids(text))

    def _check_length(self, rows: Sequence[Sequence[int]]) -> None:
        longest = max(map(len, rows), default=0)
        if self.longest is not None and longest > self.longest:
            raise InputError(
                f"{self.name} reads at most {self.longest:,} tokens, and a text has {longest:,}; give shorter texts, or"
                " leave this model out."
            )

    # Texts

    def log_likelihoods(self, texts: Sequence[str]) -> Float[np.ndarray, " N"]:
        return self._causal(texts) if self.way == CAUSAL else self._masked(texts)

    def _causal(self, texts: Sequence[str]) -> Float[np.ndarray, " N"]:
        rows = [[*self.starts, *self._ids(text)] for text in texts]
        self._check_length(rows)
        first = max(1, len(self.starts))  # of the tokens that are scored
        sums_of_rows = np.zeros(len(rows))
        for numbers in self._batches([len(row) for row in rows]):
            batch = self._padded([rows[number] for number in numbers])
            likelihoods = self._of_next(self._logits(**batch)[:, :-1], batch["input_ids"][:, 1:])
            for row, number in enumerate(numbers):
                sums_of_rows[number] = likelihoods[row, first - 1 : max(0, len(rows[number]) - 1)].sum()
        return sums_of_rows

    def num_unscored_bytes(self, text: str) -> int:
        if self.way != CAUSAL or self.starts:
            return 0
        text = _whole_letters(text)
        if not self.tokenizer.is_fast:
            return len(self.tokenizer.decode(self._ids(text)[:1]).encode())
        encoding = self.tokenizer(text, add_special_tokens=False, verbose=False, return_offsets_mapping=True)
        # A letter of several pieces is left out as a whole.
        end = encoding.offset_mapping[0][1] if encoding.input_ids else 0
        return len(text[:end].encode())

    def _masked(self, texts: Sequence[str]) -> Float[np.ndarray, " N"]:
        before, after = self.template
        rows = []
        hidden: list[tuple[int, int, int]] = []  # a text's number; the first of the masks, and the last + 1
        for number, text in enumerate(texts):
            ids, begins = self._words(text)
            rows.append([*before, *ids, *after])
            edges = np.flatnonzero(np.append(begins, True))
            for start in range(len(ids)):
                end = int(edges[np.searchsorted(edges, start, side="right")])
                hidden.append((number, len(before) + start, len(before) + end))
        self._check_length(rows)
        sums_of_texts = np.zeros(len(texts))
        for numbers in self._batches([len(rows[number]) for number, _, _ in hidden], 1 if self._is_narrow else None):
            taken = [hidden[index] for index in numbers]
            hidden_rows = []
            for number, start, end in taken:
                row = list(rows[number])
                row[start:end] = [self.tokenizer.mask_token_id] * (end - start)
                hidden_rows.append(row)
            positions = [start for _, start, _ in taken]
            wanted = [[rows[number][start]] for number, start, _ in taken]
            logits = self._logits_at(positions, self._padded(hidden_rows))
            likelihoods = self._of_next(logits, self._tensor(wanted))
            np.add.at(sums_of_texts, [number for number, _, _ in taken], likelihoods[:, 0])
        return sums_of_texts

    def _words(self, text: str) -> tuple[list[int], Bool[np.ndarray, " L"]]:
        """Returns the ids of a text, and which of them begin a word, by the rule of `TrainedModel.log_likelihoods`.

        A word begins after a space, and with each piece that a letter of a script without spaces begins. Pieces of
        single bytes of a letter continue the word before them.
        """
        text = _whole_letters(text)
        if not self.tokenizer.is_fast:  # one that tells no places: a piece of BERT's that goes on says so
            ids = self._ids(text)
            names = self.tokenizer.convert_ids_to_tokens(ids)
            return ids, np.array([not name.startswith("##") for name in names], bool)
        encoding = self.tokenizer(text, add_special_tokens=False, verbose=False, return_offsets_mapping=True)
        offsets = [*encoding.offset_mapping, (len(text), len(text))]
        begins = []
        last = 0  # where the pieces before this one end
        for (start, end), (following, _) in itertools.pairwise(offsets):
            follows_space = any(map(str.isspace, text[last : start + 1]))
            is_whole = last <= start < min(end, following)
            starts_letter = is_whole and UNSPACED.match(text, start) is not None
            begins.append(not begins or follows_space or starts_letter)
            last = max(last, end)
        return self._checked(encoding.input_ids), np.array(begins, bool)

    def in_gaps(self, pairs: Sequence[tuple[str, str]]) -> Float[np.ndarray, " N"]:
        before, after = self.template
        if self._end is not None and after[-1:] != [self._end]:
            after_written = [*after, self._end]
        else:
            after_written = after
        read = []
        written = []
        for inputs, targets in pairs:
            for text in (inputs, targets):
                if self._num_sentinels(text) != len(SENTINEL.findall(text)):
                    raise InputError(f"{self.name} has too few sentinels for the gaps of {text[:60]!r}…; leave it out.")
            read.append([*before, *self._ids(inputs), *after])
            written.append([*before, *self._ids(targets), *after_written])
        start = self._decoder_start()
        likelihoods_of_pairs = np.zeros(len(pairs))
        for numbers in self._batches([len(row) for row in read], max(map(len, written), default=1)):
            targets = [written[number] for number in numbers]
            decoder = self._padded([[start, *row[:-1]] for row in targets])
            batch = self._padded([read[number] for number in numbers])
            batch |= {f"decoder_{name}": tensor for name, tensor in decoder.items()}
            likelihoods = self._of_next(self._logits(**batch), self._padded(targets)["input_ids"])
            for row, number in enumerate(numbers):
                likelihoods_of_pairs[number] = likelihoods[row, : len(written[number])].sum()
        return likelihoods_of_pairs

    def _decoder_start(self) -> int:
        named = [
            getattr(source, "decoder_start_token_id", None)
            for source in (self.model.config, self.model.generation_config)
        ]
        ids = [number for number in [*named, self.tokenizer.pad_token_id] if isinstance(number, int)]
        if not ids:
            raise InputError(f"{self.name} has no decoder_start_token_id in its config.json; write one there.")
        return ids[0]

    # Batches

    def _batches(self, lengths: Sequence[int], num_logits: int | None = None) -> Iterator[list[int]]:
        """Yields the numbers of texts of like lengths; `num_logits` rows of logits are computed of each, or all."""
        order = sorted(range(len(lengths)), key=lambda number: lengths[number])
        while order:
            longest = lengths[order[-1]]
            size = MOST_LOGITS // (self._num_rows * max(1, longest if num_logits is None else num_logits))
            size = max(1, min(MOST_ROWS, size))
            yield order[-size:]
            del order[-size:]

    def _tensor(self, rows: Sequence[Sequence[int]]) -> Any:
        import torch

        return torch.tensor([*rows], dtype=torch.long, device=self.model.device)

    def _padded(self, rows: Sequence[Sequence[int]]) -> dict[str, Any]:
        """Returns the ids of some rows, filled at their ends, and the mask that says which are text."""
        filling = self.tokenizer.pad_token_id
        filling = 0 if filling is None or filling >= self._num_rows else filling
        width = max(map(len, rows))
        ids = [[*row, *[filling] * (width - len(row))] for row in rows]
        is_read = [[1] * len(row) + [0] * (width - len(row)) for row in rows]
        return {"input_ids": self._tensor(ids), "attention_mask": self._tensor(is_read)}

    def _logits(self, **batch: Any) -> Any:
        import torch

        with torch.inference_mode():
            return self.model(**batch).logits

    def _logits_at(self, positions: Sequence[int], batch: dict[str, Any]) -> Any:
        """Returns the logits at one place of each row, [B, 1, V]."""
        if self._is_narrow:
            return self._narrow(positions, batch)
        return _at(positions, self._logits(**batch))

    def _narrow(self, positions: Sequence[int], batch: dict[str, Any]) -> Any:
        """Returns `_logits_at`, for which the output layer is given one hidden state of each row.

        With a vocabulary of 250,000 pieces that layer is most of the work.
        """

        def select(module: Any, inputs: Any, output: Any) -> Any:
            output["last_hidden_state"] = _at(positions, output["last_hidden_state"])
            return output

        hook = self.model.base_model.register_forward_hook(select)
        try:
            return self._logits(**batch)
        finally:
            hook.remove()

    @functools.cached_property
    def _is_narrow(self) -> bool:
        """Whether the output layer works on each place alone, which a model's class does not say: it is tried."""
        if self.model.base_model is self.model:
            return False
        ids = [*self.template[0], *self._ids(f"{PROBE} {PROBE}"), *self.template[1]]
        batch = self._padded([ids])
        expected = self._logits(**batch)[:, 1:2]
        try:
            narrow = self._narrow([1], batch)
        except (TypeError, KeyError, IndexError, RuntimeError):
            return False
        return narrow.shape == expected.shape and bool(abs(narrow - expected).max() < 1e-4)

    def _of_next(self, logits: Any, wanted: Any) -> Float[np.ndarray, "B L"]:
        """Returns ln p of the wanted ids."""
        import torch

        likelihoods = torch.log_softmax(logits.float(), dim=-1).gather(-1, wanted[..., None])[..., 0]
        return likelihoods.double().cpu().numpy()

    # What it is

    def checksum(self, is_random: bool) -> str:
        import torch
        import transformers

        config_dict = {key: value for key, value in self.model.config.to_dict().items() if not key.startswith("_")}
        texts = [
            json.dumps(config_dict, sort_keys=True, default=str),
            self.way,
            torch.__version__,
            transformers.__version__,
        ]
        texts.append(f"{self.template} {self.starts if self.way == CAUSAL else self._end}")
        texts.append(self.tokenizer.backend_tokenizer.to_str() if self.tokenizer.is_fast else repr(self.tokenizer))
        digest = hashlib.sha256("\n".join(texts).encode())
        for name, tensor in () if is_random else sorted(self.model.state_dict().items()):
            digest.update(name.encode())
            digest.update(tensor.cpu().contiguous().numpy().tobytes())
        return digest.hexdigest()

    def with_random_weights(self) -> ForeignScorer:
        import torch

        with torch.random.fork_rng(), _quiet():
            torch.manual_seed(0)
            model = _class_of(self.way).from_config(copy.deepcopy(self.model.config), dtype=torch.float32)
        if self.model.can_generate():
            model.generation_config = self.model.generation_config  # which may name the start of a text
        return dataclasses.replace(self, model=model.eval().to(self.model.device))


def _at(positions: Sequence[int], tensor: Any) -> Any:
    """Returns one place of each row, [B, 1, …]."""
    import torch

    return tensor[torch.arange(len(positions)), torch.tensor([*positions])][:, None]


def _whole_letters(text: str) -> str:
    """Returns a text with a question mark for half a letter, which UTF-8 cannot hold."""
    return text.encode("utf-8", "replace").decode()
