"""T5X's gin files, read by a parser of its own: what a run is, as facts that a translation must keep.

Shares no code with Limba and does not use gin-config. Names and defaults are T5X's.
"""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_STRING = r"'(?:[^'\\\n]|\\.)*'|\"(?:[^\"\\\n]|\\.)*\""
_COMMENT = re.compile(rf"({_STRING})|#[^\n]*")
_NAME = re.compile(rf"({_STRING})|([%@][\w./]+(?:\(\))?)")
_BINDING = re.compile(r"([\w./]+)\s*=\s*(.*)", re.DOTALL)
MODELS = ("EncoderDecoderModel", "DecoderOnlyModel")
# Names of 2021 -> today's.
OLD = {"ModelBasedPjitPartitioner": "PjitPartitioner"}


class Name(str):
    """%MACRO or @reference."""


def _value(text: str) -> Any:
    marked = _NAME.sub(lambda match: match[1] or repr("\0" + match[2]), text)
    try:
        return _named(ast.literal_eval(marked.strip()))
    except (SyntaxError, ValueError):
        return Name(text.strip())  # a value that these facts do not use


def _named(value: Any) -> Any:
    if isinstance(value, str) and value.startswith("\0"):
        return Name(value[1:])
    if isinstance(value, dict):
        return {_named(key): _named(item) for key, item in value.items()}
    return type(value)(map(_named, value)) if isinstance(value, list | tuple) else value


def _statements(text: str) -> Iterator[str]:
    """Yields the logical lines: without comments, brackets closed, blocks written out."""
    text = _COMMENT.sub(lambda match: match[1] or "", text).replace("\\\n", " ")
    whole = ""
    block = ""
    for line in text.split("\n"):
        whole += ("\n" if whole else "") + line
        bare = re.sub(_STRING, "''", whole)
        if sum(map(bare.count, "([{")) > sum(map(bare.count, ")]}")):
            continue
        line = whole.rstrip()
        whole = ""
        if not line.strip():
            continue
        if line[0] not in " \t":
            block = line.rstrip()[:-1].strip() if line.rstrip().endswith(":") else ""
            if not block:
                yield line.strip()
        else:
            yield f"{block}.{line.strip()}"


@dataclass
class Original:
    """The settings of T5X's files: later ones count. Keys are (scope, class, field), for a macro ("", "", name)."""

    folders: Sequence[Path]
    settings: dict[tuple[str, str, str], Any] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)  # files that were not found
    networks: list[str] = field(default_factory=list)  # modules from which `network` and such are imported
    files: list[Path] = field(default_factory=list)

    def read(self, name: str) -> None:
        """Adds a file and those that it includes."""
        path = self._path(name)
        if path is None:
            self.missing.append(name)
            return
        self.files.append(path)
        for line in _statements(path.read_text(encoding="utf-8")):
            if match := re.fullmatch(r"include\s+['\"](.+)['\"]", line):
                self.read(match[1])
            elif re.match(r"(from|import)\s", line):
                if "network" in line or "flaxformer" in line or "architecture" in line:
                    self.networks.append(line)
            elif match := _BINDING.fullmatch(line):
                self.set(match[1], _value(match[2]))

    def _path(self, name: str) -> Path | None:
        tail = re.sub(r"^.*?(?=t5x/(configs|examples|contrib)/)", "", name)
        names = (
            [Path(name)]
            if name.startswith("/")
            else [folder / path for path in (name, tail) for folder in self.folders]
        )
        first_file = next((path for path in names if path.is_file()), None)
        if first_file is None and tail.endswith("pretrain_deterministic.gin"):  # umT5's files name it; it is not public
            return self._path(tail.replace("_deterministic", ""))
        return first_file

    def set(self, name: str, value: Any) -> None:
        """Sets a macro or a field."""
        scope, _, selector = name.rpartition("/")
        owner, _, last = selector.rpartition(".")
        parts = owner.split(".") if owner else [""]
        kind = parts[-1]
        if kind in ("loss_fn", "predict_batch_with_aux"):
            kind = parts[-2] if kind == "loss_fn" else f"{parts[-2]}.{kind}"
        self.settings[scope, OLD.get(kind, kind), last] = value

    def get(self, kind: str, name: str, default: Any = None, scope: str = "") -> Any:
        """Returns a field's value with its macros replaced."""
        settings = self.settings
        return self.plain(settings.get((scope, kind, name), settings.get(("", kind, name), default)))

    def macro(self, name: str) -> Any:
        return self.plain(self.settings.get(("", "", name)))

    def plain(self, value: Any) -> Any:
        for _ in range(20):
            if not (isinstance(value, Name) and value.startswith("%")) or value == "%gin.REQUIRED":
                break
            value = self.settings.get(("", "", value[1:]), Name("%gin.REQUIRED"))
        if isinstance(value, dict):
            return {self.plain(key): self.plain(item) for key, item in value.items()}
        return type(value)(map(self.plain, value)) if isinstance(value, list | tuple) else value

    @property
    def script(self) -> str:
        """train, evaluate, infer, or "" if these files name no run."""
        owners = {kind for _, kind, _ in self.settings}
        return next((name for name in ("train", "evaluate", "infer") if name in owners), "")

    @property
    def model(self) -> str:
        """The class of MODEL, "" without one."""
        return kind_of(self.macro("MODEL"))

    @property
    def is_of_t5x(self) -> bool:
        """Whether the network is one of T5X's examples."""
        module = kind_of(self.get(self.model, "module"))
        others = [
            line for line in self.networks if not re.search(r"t5x\.examples\.(t5|scalable_t5|decoder_only)\b", line)
        ]
        return self.model in MODELS and module in ("Transformer", "DecoderWrapper") and not others

    def required(self) -> set[str]:
        """Returns the macros that a value uses and that have none."""
        used: set[str] = set()

        def visit(value: Any) -> None:
            if isinstance(value, Name) and value.startswith("%") and value != "%gin.REQUIRED":
                used.add(value[1:])
            elif isinstance(value, dict):
                for pair in value.items():
                    visit(list(pair))
            elif isinstance(value, list | tuple):
                for item in value:
                    visit(item)

        for value in self.settings.values():
            visit(value)
        return {
            name for name in used if self.settings.get(("", "", name), "%gin.REQUIRED") in ("%gin.REQUIRED", f"%{name}")
        }

    def facts(self) -> dict[str, Any]:
        """Returns what a run is: sizes, lengths, batch, rate, schedule, length, vocabulary."""
        is_decoder = self.model == "DecoderOnlyModel"
        size = lambda name, default: self.get("TransformerConfig" if is_decoder else "T5Config", name, default)
        scope = "train" if self.script == "train" else ""
        data = lambda name, default=None: self.get("DatasetConfig", name, default, scope)
        run_facts: dict[str, Any] = {
            "sizes": [size("emb_dim", 512), size("num_heads", 8), size("head_dim", 64), size("mlp_dim", 2048)],
            "layers": [0 if is_decoder else size("num_encoder_layers", 6),
                       size("num_layers" if is_decoder else "num_decoder_layers", 6)],
            "vocab_size": size("vocab_size", None),
            "activations": list(size("mlp_activations", ("relu",))),
            "tied": bool(size("logits_via_embedding", False)),
            "dtype": kind_of(size("dtype", "float32")) or size("dtype", "float32"),
            "task": data("mixture_or_task_name"),
            "lengths": data("task_feature_lengths"),
            "batch": data("batch_size"),
            "split": data("split"),
            "z_loss": float(self.get(self.model, "z_loss", 0.0)),
            "smoothing": float(self.get(self.model, "label_smoothing", 0.0)),
            "loss": self.get(self.model, "loss_normalizing_factor"),
            "mesh": math.prod(self.get("PjitPartitioner", "model_parallel_submesh") or ()) if self.get(
                "PjitPartitioner", "model_parallel_submesh") else self.get("PjitPartitioner", "num_partitions", 1),
            "vocabulary": self._vocabulary(),
        }  # fmt: skip
        if is_decoder:
            run_facts["prefix"] = bool(self.get(self.model, "inputs_bidirectional_attention", False))
        path = self.get("RestoreCheckpointConfig", "path")
        if isinstance(path, list | tuple):
            path = path[0] if path else None
        run_facts["start"] = path
        if self.script != "train":
            return run_facts
        if self.get("CheckpointConfig", "restore") is None:
            run_facts["start"] = None
        steps = self.get("SaveCheckpointConfig", "period") if self.get("CheckpointConfig", "save") else None
        return run_facts | {
            "steps": self.get("train", "total_steps"),
            "dropout": float(size("dropout_rate", 0.1)),
            "pack": bool(data("pack", False)),
            "shuffle": data("shuffle"),
            "microbatches": self.get("Trainer", "num_microbatches") or 1,
            "saved": steps,
            "optimizer": kind_of(self.macro("OPTIMIZER")),
            **self._schedule(),
        }

    def _schedule(self) -> dict[str, Any]:
        if kind_of(self.macro("OPTIMIZER")) != "Adafactor":
            return {}
        rate = lambda name, default: self.get("create_learning_rate_scheduler", name, default)
        factors = rate("factors", "constant * linear_warmup * rsqrt_decay")
        return {
            "factors": [part.strip() for part in factors.split("*")],
            "rate": float(rate("base_learning_rate", 0.5)),
            "warmup": rate("warmup_steps", 1000),
            "decay": float(self.get("Adafactor", "decay_rate", 0.8)),
            "offset": self.get("Adafactor", "step_offset", 0),
        }

    def _vocabulary(self) -> list[Any]:
        """Returns the kind of the model's vocabulary, its file, and how many sentinels the files add to it."""
        first = next((self.get(self.model, name) for name in ("input_vocabulary", "vocabulary")
                      if self.get(self.model, name) is not None), None)  # fmt: skip
        kind = kind_of(first)
        if kind == "SentencePieceVocabulary":
            return [kind, self.get(kind, "sentencepiece_model_file"), self.get(kind, "extra_ids")]
        return [kind, None, self.get(kind, "extra_ids")]


def kind_of(value: Any) -> str:
    """Returns the class's own name of a reference; "" for another value."""
    text = value if isinstance(value, Name) and value.startswith("@") else ""
    return text.removeprefix("@").removesuffix("()").rpartition("/")[2].rpartition(".")[2]


def original(files: Sequence[str], folders: Sequence[Path], flags: dict[str, Any] | None = None) -> Original:
    """Returns the settings of these files, and then of the flags `given`."""
    settings = Original(folders)
    for name in files:
        settings.read(name)
    for name, value in (flags or {}).items():
        settings.set(name, value)
    return settings
