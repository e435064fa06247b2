"""One complete run: every choice in frozen dataclasses, which check themselves when they are made.

So a wrong choice costs a second and not an hour on a TPU.
"""

import dataclasses
import os
import re
from dataclasses import dataclass, field
from typing import Annotated, Literal

from limba.config import kinds
from limba.config.data import OBJECTIVES, DataConfig
from limba.config.errors import largest_divisor, require
from limba.config.generation import GenerationConfig
from limba.config.kinds import Limit, NonNegativeInt, OpenShare, PositiveFloat, PositiveInt, choice
from limba.config.loss import LossConfig
from limba.config.model import ModelConfig
from limba.config.optimizer import Adafactor, OptimizerConfig

REPORTS = ("tensorboard", "wandb")
GROUPS = "a whole number above 0, or -1 for all devices that the other axes leave"
Groups = Annotated[int, Limit(lambda groups: groups == -1 or groups > 0, GROUPS)]
# Of sacrebleu's tokenizers those that download no model.
BLEU_TOKENIZERS = ("13a", "intl", "zh", "char", "none", "ja-mecab", "ko-mecab")
LANGUAGE = re.compile(r"[a-z]{2,3}(-[A-Za-z0-9]{2,8})*")
NAME_ON_HUB = re.compile(r"[\w.+-]+(/[\w.-]+)?")


@dataclass(frozen=True)
class MeshConfig:
    """The sizes of the device mesh's axes. -1 for `data` means all devices that the other two leave.

    >>> MeshConfig(fsdp=2).sizes(8)
    (4, 2, 1)
    """

    data: Groups = -1  # groups of devices with their own rows; -1: all that are left
    fsdp: PositiveInt = 1  # devices that share parameters, and have their own rows
    model: PositiveInt = 1  # devices that share each matrix product
    shard_update: bool = True  # pure data parallelism: shard optimizer state and update across devices (ZeRO-style)

    def __post_init__(self) -> None:
        kinds.check(self)

    def sizes(self, num_devices: int) -> tuple[int, int, int]:
        """Returns (data, fsdp, model) for this number of devices; ConfigError if they do not divide."""
        rest = self.fsdp * self.model
        data = num_devices // rest if self.data == -1 else self.data
        require(
            data * rest == num_devices,
            "MeshConfig.data",
            f"is {self.data}, which with MeshConfig.fsdp {self.fsdp} and MeshConfig.model {self.model} does not fit"
            f" {num_devices} devices; give sizes whose product is the number of devices.",
        )
        return data, self.fsdp, self.model


# Figures of an evaluation, perhaps with a task before and a script behind: 'loss', 'mine/bits_per_byte'.
LESS_IS_BETTER = re.compile(r"(^|/)(loss|perplexity|bits_per_byte|\w*error_rate|other_changes)($|/)")


@dataclass(frozen=True)
class CheckpointConfig:
    """When the state and the data position are saved, and how many are kept.

    >>> CheckpointConfig(best_metric="bits_per_byte").best_mode, CheckpointConfig(best_metric="chrf++").best_mode
    ('min', 'max')
    >>> CheckpointConfig(every_steps=0)
    Traceback (most recent call last):
    limba.config.errors.ConfigError: CheckpointConfig.every_steps is 0; ...
    """

    every_steps: PositiveInt | Literal["epoch"] = 10_000  # or at the end of each epoch
    keep: PositiveInt | None = 5  # number of newest checkpoints to keep; None: all
    best_metric: str | None = None  # 'loss', 'chrf', …: the step with the best value is saved in model_dir/best
    # Which value of it is the best; None: the least of losses, bits per byte and rates of errors, else the greatest.
    best_mode: Annotated[str, choice("max", "min")] | None = None
    # What is compared with a checkpoint's manifest before it is used: the checksum of every byte, or only the files'
    # names and sizes, which finds files that are missing or cut, and not a changed byte.
    verify: Annotated[str, choice("checksums", "sizes")] = "checksums"
    save_timeout_seconds: PositiveFloat = 1800.0  # of one save, with all its attempts; also of one restore

    def __post_init__(self) -> None:
        kinds.check(self)
        if self.best_mode is None:
            is_least = self.best_metric is not None and LESS_IS_BETTER.search(self.best_metric) is not None
            object.__setattr__(self, "best_mode", "min" if is_least else "max")


@dataclass(frozen=True)
class EvaluationConfig:
    """What is evaluated on the validation split: loss, accuracy, perplexity and bits per byte.

    Tasks with metrics can also evaluate generated text; language models can generate samples.

    >>> EvaluationConfig(every_steps=500).num_batches
    20
    """

    every_steps: PositiveInt | Literal["epoch"] = 1_000  # or at the end of each epoch
    num_batches: PositiveInt | None = 20  # maximum number of validation batches; None: the whole split
    batch_size: PositiveInt | None = None  # rows of a validation batch; None: DataConfig.batch_size
    num_examples: NonNegativeInt = 0  # validation examples to generate text for, for the task's metrics; 0: none
    # sacrebleu's tokenizer for BLEU: '13a', 'intl', 'zh', 'char', 'none', 'ja-mecab' or 'ko-mecab'; None: by the script
    # of the references and CardConfig.language. The figure is `bleu` by 13a, else `bleu-char` and so on
    bleu_tokenizer: Annotated[str, choice(*BLEU_TOKENIZERS)] | None = None
    # Decay of the average of the weights that is evaluated in their place, such as 0.999; None: no average
    average: OpenShare | None = None
    patience: PositiveInt | None = None  # evaluations without a better best_metric that end the run; None: no limit
    # texts that a decoder-only model continues, or whose gaps (<extra_id_0> …) a T5 fills, at each evaluation
    prompts: tuple[str, ...] = ()
    # sentences of the validation text, two words of each hidden, whose gaps a T5 or an encoder fills too
    num_sentences: NonNegativeInt = 0
    # how samples for `prompts` are drawn
    sampling: GenerationConfig = field(
        default_factory=lambda: GenerationConfig(max_tokens=64, sample=True, temperature=0.6, top_k=20)
    )

    def __post_init__(self) -> None:
        object.__setattr__(self, "prompts", (self.prompts,) if isinstance(self.prompts, str) else self.prompts)
        kinds.check(self)


@dataclass(frozen=True)
class GuardConfig:
    """What is done about a step whose loss or gradient norm is not finite, or stands far out of the recent steps.

    'off': nothing is looked for. 'warn': a sentence. 'skip': the update is dropped. 'rewind': the run returns to the
    last good checkpoint and passes over the batches around the step. With 'off' and 'warn', a number that is not
    finite ends the run. What is dropped or passed over is written to model_dir/skipped_batches.jsonl.

    >>> GuardConfig("skip").threshold  # by how much a step has to stand out
    8.0
    """

    action: Annotated[str, choice("off", "warn", "skip", "rewind")] = "warn"  # see above
    window: PositiveInt = 200  # recent steps that a step is compared with
    threshold: PositiveFloat = 8.0  # of the robust z-score: distance from the median, in 1.4826 x its MAD
    batches_around: NonNegativeInt = 1  # 'rewind' also passes over this many batches before and after

    def __post_init__(self) -> None:
        kinds.check(self)


@dataclass(frozen=True)
class CardConfig:
    """What the card of an exported model says, by which the hub lists it; several names with commas, or a tuple.

    >>> CardConfig(language="en,ms").language
    ('en', 'ms')
    """

    language: str | tuple[str, ...] | None = None  # by ISO 639's codes: 'ro'
    licence: str | None = None  # by the hub's name: 'apache-2.0'; None: 'other', and a sentence that none is chosen yet
    datasets: str | tuple[str, ...] | None = None  # on the hub; None: those that the task reads from it
    hardware: str | None = None  # that trained it: 'TPU v4-8'
    thank_trc: bool = False  # thank Google's TPU Research Cloud

    def __post_init__(self) -> None:
        kinds.check(self)
        for name in ("language", "datasets"):
            value = getattr(self, name)
            names = tuple(part.strip() for part in (value.split(",") if isinstance(value, str) else value or ()))
            object.__setattr__(self, name, names or None)
        for name, pattern, example in (
            ("language", LANGUAGE, "codes such as 'ro' or 'en,ms'"),
            ("datasets", NAME_ON_HUB, "names on the hub such as 'user/name'"),
        ):
            wrong = [part for part in getattr(self, name) or () if not pattern.fullmatch(part)]
            require(not wrong, f"CardConfig.{name}", f"holds {(wrong or [''])[0]!r}; give {example}.")
        require(
            self.licence is None or bool(NAME_ON_HUB.fullmatch(self.licence)),
            "CardConfig.licence",
            f"is {self.licence!r}; give the hub's name of one, such as 'apache-2.0'.",
        )


@dataclass(frozen=True)
class RunConfig:
    """One complete training run, as `limba.train` takes it.

    >>> t5 = ModelConfig(384, emb_dim=64, num_heads=2, head_dim=32, mlp_dim=128, num_encoder_layers=2,
    ...                  num_decoder_layers=2)
    >>> run = RunConfig(t5, DataConfig("my_task", {"inputs": 512}, batch_size=16), "runs/mine", train_steps=100)
    >>> run.optimizer.name, run.checkpoint.keep
    ('adafactor', 5)
    """

    model: ModelConfig  # the network
    data: DataConfig  # the corpus and its rows
    model_dir: str  # directory, local or gs://, of checkpoints and logs
    train_steps: PositiveInt | None  # at most; None: up to the end of data.num_epochs
    optimizer: OptimizerConfig = field(default_factory=Adafactor)  # optimizer and learning rate
    loss: LossConfig = field(default_factory=LossConfig)  # the training loss
    mesh: MeshConfig = field(default_factory=MeshConfig)  # how devices share the work
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)  # when the state is saved
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)  # what is evaluated, and when
    generation: GenerationConfig = field(default_factory=GenerationConfig)  # how text is generated
    guard: GuardConfig = field(default_factory=GuardConfig)  # what happens to steps that spike
    # Initialize from this checkpoint (Limba, T5X, Hugging Face folder or hub id) if model_dir has none.
    initial_checkpoint_path: str | None = None
    # At its end the run writes its last step here, as a folder step_<N> for transformers: a directory or gs://…
    export_to: str | tuple[str, ...] | None = None
    card: CardConfig = field(default_factory=CardConfig)  # of every folder that is exported
    hub_model_id: str | None = None  # model of the hub, user/name, that gets the model too; needs a token
    hub_private: bool = False  # of a model that the hub does not have yet
    hub_strategy: Annotated[str, choice("end", "every_save")] = "end"  # when: at the run's end, or also every_save
    reset_step: bool = False  # start at step 0 with a new optimizer state; read only the parameters
    num_microbatches: PositiveInt = 1  # parts of a batch, computed one after the other to save memory
    # in which devices sum gradients; see training/step.py
    gradient_reduce_dtype: Annotated[str, choice("auto", "float32", "bfloat16")] = "auto"
    log_every_steps: PositiveInt = 100  # steps between two lines of the log
    random_seed: int = 0  # of initial values and dropout
    # dropout's generator; rbg and unsafe_rbg are faster on a TPU, with other numbers
    random_bits: Annotated[str, choice("threefry2x32", "rbg", "unsafe_rbg")] = "threefry2x32"
    step_timeout_seconds: PositiveFloat | None = 3600.0  # a step that takes longer ends the process; None: no limit
    host_timeout_seconds: PositiveFloat = 30.0  # after which a process that gives no sign of life counts as dead
    report_to: str = "tensorboard"  # who else gets metrics.jsonl's figures: tensorboard, wandb, both with a comma, none
    profile_steps: NonNegativeInt = 0  # number of steps to trace into model_dir/profile, from a start's third step on

    def __post_init__(self) -> None:
        kinds.check(self, of_64_bits=("random_seed",))
        kinds.check_address(self.model_dir, "RunConfig.model_dir", kinds.WRITABLE)
        if "://" not in self.model_dir:
            object.__setattr__(self, "model_dir", os.path.abspath(os.path.expanduser(self.model_dir)))
        require(
            set(self.reports) <= set(REPORTS),
            "RunConfig.report_to",
            f"is {self.report_to!r}; give {', '.join(REPORTS)}, several with commas, or none.",
        )
        self._resolve_exports()
        require(
            self.train_steps is not None or self.data.num_epochs is not None,
            "RunConfig.train_steps",
            "is None, and so is DataConfig.num_epochs: the run would never end; give one of them.",
        )
        for owner, period in (("CheckpointConfig", self.checkpoint), ("EvaluationConfig", self.evaluation)):
            require(
                not (self.data.stages and period.every_steps == "epoch"),
                f"{owner}.every_steps",
                f"is 'epoch', and DataConfig.stages {self.data.stages!r}, which have epochs of their own; give a number"
                " of steps.",
            )
        self._check_sides()
        require(
            self.loss.logits != "chunked" or self.model.has_plain_head,
            "LossConfig.logits",
            "is 'chunked', which is for a matrix alone, and ModelConfig.biases holds 'logits' or"
            " ModelConfig.local_attention is set; choose whole or auto.",
        )
        if self.data.vocabulary is None and self.data.new_vocabulary_size is not None:
            data = dataclasses.replace(self.data, vocabulary=f"{self.model_dir.rstrip('/')}/vocabulary.model")
            object.__setattr__(self, "data", data)
        require(
            self.evaluation.patience is None or self.checkpoint.best_metric is not None,
            "EvaluationConfig.patience",
            "waits for a better CheckpointConfig.best_metric, which is None; set that, such as to 'loss'.",
        )
        rows = self.data.batch_size
        parts = self.num_microbatches
        require(
            rows % parts == 0,
            "DataConfig.batch_size",
            f"is {rows}, which does not divide by RunConfig.num_microbatches {parts}; give a multiple.",
            ("RunConfig.num_microbatches", largest_divisor(rows, parts)),
        )

    @property
    def reports(self) -> tuple[str, ...]:
        """The parts of `report_to`, without 'none'."""
        parts = tuple(dict.fromkeys(part.strip() for part in self.report_to.split(",")))
        return () if parts == ("none",) else parts

    def _resolve_exports(self) -> None:
        """Makes `export_to` a tuple of absolute paths and addresses, or None."""
        addresses = (self.export_to,) if isinstance(self.export_to, str) else tuple(self.export_to or ())
        for target in addresses:
            kinds.check_address(target, "RunConfig.export_to")
        targets = tuple(
            address if "://" in address else os.path.abspath(os.path.expanduser(address)) for address in addresses
        )
        object.__setattr__(self, "export_to", targets or None)

    def _check_sides(self) -> None:
        """Raises ConfigError if the rows of the data do not fit the network."""
        length = self.data.sequence_length
        model = self.model
        require(
            not model.is_t5_encoder,
            "ModelConfig.num_decoder_layers",
            "is 0: the encoder of a T5 alone, which has no objective; give the decoder's layers.",
        )
        require(
            model.has_logits,
            "ModelConfig.has_logits",
            "is False: the network gives hidden states, and no objective learns from these; set it to True.",
            ("ModelConfig.has_logits", True),
        )
        if not model.is_decoder_only:
            require(
                self.data.objective is None or OBJECTIVES[self.data.objective].has_inputs,
                "DataConfig.objective",
                f"is {self.data.objective!r}, which gives no inputs, and the model has an encoder that reads them;"
                " choose prefix_lm or lm_adaptation, or set ModelConfig.num_encoder_layers to 0.",
                ("ModelConfig.num_encoder_layers", 0),
            )
            require(
                length is None,
                "DataConfig.task_feature_lengths",
                f"is {dict(self.data.task_feature_lengths)!r}, and the model has an encoder; give"
                " {'inputs': 512}, or with 'targets' too.",
            )
            return
        masked = [name for name, objective in OBJECTIVES.items() if objective.is_masked]
        require(
            self.data.is_masked == model.is_encoder,
            "DataConfig.objective",
            f"is {self.data.objective!r}, and ModelConfig.attention_mask {model.attention_mask!r}; an encoder, which is"
            f" 'bidirectional', learns {' or '.join(masked)}, and no other network does.",
            ("DataConfig.objective", "masked_lm" if model.is_encoder else "causal_lm"),
        )
        require(
            length is not None,
            "DataConfig.task_feature_lengths",
            f"is {dict(self.data.task_feature_lengths)!r}, and the model is decoder-only, which reads one sequence;"
            " give {'targets': 256}.",
        )
        require(
            model.positions != "learned" or length is None or length <= model.max_length,
            "DataConfig.task_feature_lengths",
            f"gives rows of {length} tokens, and the model has {model.max_length} learned positions; raise"
            " ModelConfig.max_length.",
        )
