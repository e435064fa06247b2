"""Models as transformers' own classes open them: a folder, a hub id, or what Limba exports for them.

Code that lies beside a model is never run. torch and transformers are an extra: this module is imported where a suite
has a task to fine-tune on.
"""

from __future__ import annotations

import copy
import hashlib
import json
import shutil
from collections.abc import Container, Sequence, Set
from pathlib import Path
from typing import Any

import torch
import transformers

from limba.config import InputError, untrusted_files
from limba.tools.results.files import checksum, hub_id

WEIGHTS = ("*.safetensors", "*.bin")
OTHER_FILES = ("config.json", "tokenizer*", "vocab*", "merges.txt", "*.model", "*_map.json", "added_tokens.json")
# A hybrid's export: a language model, with an encoder for fine-tuning in a folder of its own.
ENCODER = "encoder"
HYBRID = ("llama", "eurobert")  # model_type of the one and of the other
UNKNOWN_LENGTH = 10**9  # a tokenizer's, where its files do not say the longest text


class OpenModel:
    """A model whose configuration and tokenizer are open; its network is opened anew for each training."""

    def __init__(self, name: str, path: str, revision: str | None = None):
        """`name` is as the user gave it, `path` a folder or a name on the hub."""
        self.name = name
        self._path = path
        transformers.logging.set_verbosity_error()  # our own messages name what is missing or cut
        transformers.logging.disable_progress_bar()
        self._options: dict[str, Any] = {"revision": revision or "main", "trust_remote_code": False}
        with self._reading():
            config_dict, _ = transformers.PreTrainedConfig.get_config_dict(path, revision=revision or "main")
        kind = config_dict.get("model_type")
        if kind not in transformers.CONFIG_MAPPING:
            own_code = ", so it needs code of its own, which is never run" if "auto_map" in config_dict else ""
            raise InputError(
                f"{name} cannot be fine-tuned: its config.json has the model_type {kind!r}, which transformers"
                f" {transformers.__version__} does not have{own_code}; give a model of transformers' own classes."
            )
        with self._reading():
            self.config = transformers.AutoConfig.from_pretrained(path, **self._options)
            self.tokenizer: Any = transformers.AutoTokenizer.from_pretrained(path, **self._options)
        self.tokenizer.padding_side = self.tokenizer.truncation_side = "right"
        self._pads_with_end = self.tokenizer.pad_token is None
        if self._pads_with_end:
            if self.tokenizer.eos_token is None:
                raise InputError(f"{name} has neither a padding nor an end token; add pad_token to its tokenizer.")
            self.tokenizer.pad_token = self.tokenizer.eos_token

    def _reading(self) -> Any:
        return untrusted_files.reading(self.name, "give a model that transformers' own classes open")

    def check(self, is_tagged: bool) -> int:
        """Returns the longest text that the model reads, in tokens.

        InputError if it has no class for a task, or if its files lack weights of that class. No weights are read yet,
        so that all models are checked before one is trained.
        """
        _, classes, task = _class_for(is_tagged)
        if type(self.config) not in classes:
            raise InputError(
                f"{self.name} cannot be fine-tuned: transformers {transformers.__version__} has no class of"
                f" {self.config.model_type} for {task}; give another model, or --tasks without it."
            )
        network = self._pretrained(is_tagged, copy.deepcopy(self.config), device_map="meta")
        with self._reading():
            lengths = [self.tokenizer.model_max_length, getattr(self.config, "max_position_embeddings", UNKNOWN_LENGTH)]
            lengths = [int(length) for length in lengths if length]
        for path, module in network.named_modules():
            if isinstance(module, torch.nn.Embedding) and path.endswith("position_embeddings"):
                # RoBERTa counts positions from the one after padding's.
                before = 0 if module.padding_idx is None else module.padding_idx + 1
                lengths.append(module.num_embeddings - before)
        return min(lengths)

    def check_knows(self, ids: Set[int], what: str) -> None:
        """Raises InputError if the tokenizer has no vocabulary: the ids of some texts are nothing but special ones."""
        special = {*self.tokenizer.all_special_ids}
        if len(self.tokenizer) <= len(special) and ids <= special:
            raise InputError(
                f"The tokenizer of {self.name} knows no word of {what}: all that it gives is"
                f" {' '.join(sorted(map(str, self.tokenizer.convert_ids_to_tokens([*ids]))))}; copy its vocabulary"
                " (tokenizer.json, vocab.txt, or a .model) into the folder."
            )

    def check_ids(self, largest: int) -> None:
        """Raises InputError if the model has no row for the largest id of some texts, or for padding."""
        num_rows = getattr(self.config.get_text_config(), "vocab_size", None)
        highest = max(largest, self.tokenizer.pad_token_id)
        if num_rows is not None and highest >= num_rows:
            raise InputError(
                f"The tokenizer of {self.name} gives the id {highest}, and the model has {num_rows:,} rows; resize its"
                " embedding in transformers."
            )

    def network(self, is_tagged: bool, labels: Sequence[str], seed: int, is_random: bool) -> Any:
        """Returns the network with a new head for some labels, or for a score without any; the seed draws it."""
        auto, _, _ = _class_for(is_tagged)
        config = copy.deepcopy(self.config)
        config.num_labels = max(1, len(labels))
        config.id2label = dict(enumerate(labels or ["score"]))
        config.label2id = {label: number for number, label in config.id2label.items()}
        config.problem_type = "single_label_classification" if labels else "regression"
        for part in (config, config.get_text_config()):  # the same one, but of a model that reads pictures too
            # A language model's class looks here for the last token of a text.
            if self._pads_with_end or getattr(part, "pad_token_id", None) is None:
                part.pad_token_id = self.tokenizer.pad_token_id
        transformers.set_seed(seed)
        if is_random:
            return auto.from_config(config, dtype=torch.float32)
        return self._pretrained(is_tagged, config)

    def _pretrained(self, is_tagged: bool, config: Any, device_map: str | None = None) -> Any:
        """Returns the network of a configuration with the weights of the files; on "meta" none of them is read.

        InputError for weights that the class does not find there, except for the head's.
        """
        auto, _, task = _class_for(is_tagged)
        with self._reading():
            network, loading_info = auto.from_pretrained(
                self._path,
                config=config,
                dtype=torch.float32,
                device_map=device_map,
                output_loading_info=True,
                ignore_mismatched_sizes=True,  # a head for other labels
                **self._options,
            )
        lacking = [*loading_info["missing_keys"], *(mismatch[0] for mismatch in loading_info["mismatched_keys"])]
        body = [key for key in sorted(lacking) if key.startswith(f"{network.base_model_prefix}.")]
        body = [key for key in body if ".pooler." not in key]  # a head's, which is not pretrained everywhere
        if body:
            raise InputError(
                f"{self.name} cannot be fine-tuned for {task}: {type(network).__name__} needs {len(body)} weights that"
                f" it does not have, such as {body[0]}; give another model, or --tasks without it."
            )
        return network

    def words(self, words: Sequence[str], longest: int) -> tuple[dict[str, list[int]], list[int | None], bool]:
        """Returns the ids of words with spaces between them, the place of each one's first token, and if any was cut.

        The place is None for a word that was cut off, and for one for which the tokenizer writes nothing.
        """
        if not self.tokenizer.is_fast:
            return self._pieces(words, longest)
        text = " ".join(words)
        ids = self.tokenizer(text, truncation=True, max_length=longest, return_offsets_mapping=True)
        offsets = ids.pop("offset_mapping")
        is_cut = len(ids["input_ids"]) == longest < len(self.tokenizer(text, verbose=False)["input_ids"])
        first_tokens = list[int | None]()
        token = 0
        begin = 0
        for word in words:
            end = begin + len(word)
            while token < len(offsets) and offsets[token][1] <= begin:  # special tokens have no letters
                token += 1
            is_there = token < len(offsets) and offsets[token][0] < end
            first_tokens.append(token if is_there else None)
            begin = end + 1
        return dict(ids), first_tokens, is_cut

    def _pieces(self, words: Sequence[str], longest: int) -> tuple[dict[str, list[int]], list[int | None], bool]:
        """Returns `words` of a tokenizer written in Python, which does not say where its tokens stand."""
        encode = lambda text: self.tokenizer.encode(text, add_special_tokens=False)
        pieces = list[int]()
        firsts = list[int | None]()
        for number, word in enumerate(words):
            pieces += encode(" ") if number else []
            of_word = encode(word)
            firsts.append(len(pieces) if of_word else None)
            pieces += of_word
        room = longest - self.tokenizer.num_special_tokens_to_add()
        ids = self.tokenizer.build_inputs_with_special_tokens(pieces[:room])
        mask = self.tokenizer.get_special_tokens_mask(ids, already_has_special_tokens=True)
        begin = mask.index(0) if 0 in mask else 0
        first_tokens = [begin + first if first is not None and first < room else None for first in firsts]
        return {"input_ids": ids, "attention_mask": [1] * len(ids)}, first_tokens, len(pieces) > room

    def identity(self, is_random: bool) -> str:
        """Returns what decides the model: a checksum of its files, or the hub's commit; random weights need none."""
        commit = getattr(self.config, "_commit_hash", None)
        if commit:
            return f"{self._path}@{commit}"
        digest = hashlib.sha256()
        for pattern in OTHER_FILES if is_random else (*OTHER_FILES, *WEIGHTS):
            for path in sorted(Path(self._path).glob(pattern)):
                digest.update(f"{path.name} {checksum(path)}\n".encode())
        return digest.hexdigest()


def _class_for(is_tagged: bool) -> tuple[Any, Container[type], str]:
    """Returns the class that opens a model for a task, the configurations that it knows, and the task in words."""
    if is_tagged:
        known = transformers.MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING
        return transformers.AutoModelForTokenClassification, known, "the classification of tokens"
    known = transformers.MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING
    return transformers.AutoModelForSequenceClassification, known, "the classification of texts"


def open_model(name: str, exports: Path, imports: Sequence[str] = ()) -> OpenModel:
    """Returns a model of transformers: a folder, a hub id, or a run or checkpoint of Limba's, which is exported first.

    An export is kept in `exports` under the checksum of its weights. From a hybrid's the encoder is taken, in a
    folder of its own. InputError for anything else.
    """
    folder = Path(name).expanduser()
    of_hub = hub_id(name)
    if of_hub is not None and not folder.exists():
        return OpenModel(name, *of_hub)
    if _model_type(folder) is None:
        folder = _exported(name, exports, imports)
    if (_model_type(folder), _model_type(folder / ENCODER)) == HYBRID:
        folder = folder / ENCODER
    return OpenModel(name, str(folder))


def _model_type(folder: Path) -> str | None:
    """Returns the model_type in transformers' config.json; None without one, as in the config.json of a run."""
    file = folder / "config.json"
    if not untrusted_files.is_regular(file):
        return None
    with untrusted_files.reading(file):
        config_dict = json.loads(untrusted_files.text_of(file))
    model_type = config_dict.get("model_type") if isinstance(config_dict, dict) else None
    return None if model_type is None else str(model_type)


def _exported(name: str, exports: Path, imports: Sequence[str]) -> Path:
    from limba.api import load
    from limba.tools.results.scoring import checksum_of_model

    trained = load(name, imports=imports)
    folder = exports / checksum_of_model(trained)[:16]
    if not (folder / "config.json").exists():  # which is written last
        shutil.rmtree(folder, ignore_errors=True)
        trained.save(folder)
    return folder
