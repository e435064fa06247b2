"""The one door to a trained model: `load` opens it; `TrainedModel` generates, fills, scores, encodes and saves."""

from __future__ import annotations

import dataclasses
import functools
import json
import logging
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Unpack, overload

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Float, Int

from limba import tool_registry
from limba.config import OBJECTIVES, GenerationConfig, InputError, MeshConfig, ModelConfig, RunConfig
from limba.config.environment import quiet_imports
from limba.config.generation import GenerationFields
from limba.config.waiting import waiting
from limba.formats import t5x
from limba.formats.architectures import has_flax_class
from limba.formats.huggingface import RECORD
from limba.formats.huggingface_files import Form, write_folder
from limba.formats.names import flatten, unstack_layers
from limba.formats.open import VOCABULARIES
from limba.inference import source as sources
from limba.inference.source import Source, VocabularyName
from limba.inference.texts import listed, paired, whole_letters
from limba.sharding.mesh import keep_compiled_programs, leaf_name, make_mesh, num_batch_groups, parameter_shardings
from limba.storage import lease, manifest

if TYPE_CHECKING:
    from limba.data.tasks import Provider
    from limba.data.vocabulary.special_ids import SpecialIds
    from limba.data.vocabulary.vocabularies import Vocabulary
    from limba.inference.gap_pieces import Fill
    from limba.inference.generate import Deadline, Written
    from limba.inference.long_inputs import SegmentWriter
    from limba.inference.scoring import Score
    from limba.model import Network
    from limba.model.trees import Parameters

    Tokenizer = tuple[VocabularyName, Vocabulary]

BATCH_SIZE = 32  # texts per batch, over all devices, for a model without a batch size
LENGTHS = {"inputs": 512, "targets": 512}  # tokens, for a model without lengths
FORMATS = ("huggingface", "flax", "t5x")
POOLINGS = ("mean", "first", "last", "max", "mean_sqrt_len", "weighted_mean")  # of hidden states, for `encode`
INTERNAL = (  # what commands use of a model; tab completion does not show it
    "source", "network", "mesh", "tokenizer", "task", "reads_prefix", "rows", "written", "segment_writer",
    "logits_of_ids", "pair_ids", "num_cut", "only_fills_gaps", "answers",
)  # fmt: skip

logger = logging.getLogger(__name__)


def load(
    path: str | Path | Source,
    *,
    step: int | None = None,
    config: RunConfig | ModelConfig | None = None,
    vocabulary: Vocabulary | VocabularyName | str | Path | None = None,
    mesh: Mesh | None = None,
    imports: Sequence[str] = (),
) -> TrainedModel:
    """Returns the trained model at a path, its parameters on the devices.

    `path` is a Limba or T5X run, one of its checkpoints, a Hugging Face folder, or a hub id; see
    `limba.inference.source.find`. `step` chooses a checkpoint of a run; the default is its best one, if it keeps one,
    else the newest. `config` replaces the configuration beside the arrays. `vocabulary` (a path, 'byte', or a seqio
    vocabulary) replaces the model's. `mesh` defaults to the run's if it fits the devices, else to data parallelism.
    `imports` are modules that a run's configuration may have imported, besides Limba's and those in tasks/; the modules
    that `config` names are imported, since the caller chose them.

    Without `config` activations are float32, whatever dtype the model was trained in. Raises NoModelError if no model
    is at the path, InputError if an array is missing or has another shape, or if the vocabulary cannot be read.

    >>> model = limba.load("runs/demo")
    >>> model.step, model.network.config.emb_dim
    (9, 64)
    """
    modules_of_config = config.data.task_modules if isinstance(config, RunConfig) else ()
    keep_compiled_programs()
    if isinstance(path, Source):
        source = path
    else:
        source = sources.find(str(path), config, allowed=(*imports, *modules_of_config))
    model = sources.evaluated(source.model) if config is None else source.model
    from limba.model import Network  # a path without a model is refused before the network is imported

    mesh = mesh or mesh_for(source.run)
    network = Network(model, mesh)
    if step is None and source.best is not None:
        checkpoint = f"{source.path.rstrip('/')}/best"
        arrays = source.arrays(None)
        step = int(source.best.name)
    else:
        checkpoint = source.path
        step = source.step_of(step)
        arrays = source.arrays(step)
    tokenizer = _tokenizer(source, vocabulary)
    with waiting(f"loading step {step:,} of {source.path}", shows=jax.process_index() == 0):
        params = place_parameters(arrays, network, mesh)
    return TrainedModel(source, network, mesh, params, step, checkpoint, tokenizer)


def mesh_for(run: RunConfig | None) -> Mesh:
    """Returns the mesh of a run if it fits the devices, else a data-parallel mesh of all devices."""
    if run is not None:
        try:
            return make_mesh(run.mesh)
        except InputError:  # it was trained on other devices
            pass
    return make_mesh(MeshConfig())


def place_parameters(arrays: Mapping[str, np.ndarray], network: Network, mesh: Mesh | None = None) -> Parameters:
    """Returns the network's parameters, read from arrays by T5X's names, one stack at a time.

    They are sharded over the mesh as in training; without a mesh they are on one device.
    """
    from limba.training.checkpoints.initial import stacked

    shapes = jax.eval_shape(network.init, jax.random.key(0))

    def read(path: tuple, leaf: jax.ShapeDtypeStruct) -> np.ndarray:
        return np.asarray(stacked(leaf_name(path), leaf.shape[0], arrays.__getitem__), leaf.dtype)

    if mesh is None:
        return jax.tree.map_with_path(lambda path, leaf: jnp.asarray(read(path, leaf)), shapes)

    def placed(path: tuple, leaf: jax.ShapeDtypeStruct, sharding: jax.sharding.Sharding) -> jax.Array:
        array = read(path, leaf)
        return jax.make_array_from_callback(leaf.shape, sharding, lambda index: array[index])

    return jax.tree.map_with_path(placed, shapes, parameter_shardings(mesh, network.logical_axes(), shapes))


def _tokenizer(source: Source, vocabulary: Vocabulary | VocabularyName | str | Path | None) -> Tokenizer | None:
    """Returns the vocabulary that is given, opened, and its name; without one the source's own, or None."""
    if isinstance(vocabulary, str | Path):
        vocabulary = VocabularyName(str(vocabulary))
    if vocabulary is None or isinstance(vocabulary, VocabularyName):
        return sources.open_vocabulary(source, vocabulary)
    path = getattr(vocabulary, "sentencepiece_model_file", getattr(vocabulary, "path", "byte"))
    return VocabularyName(path, vocabulary.extra_ids), vocabulary


@dataclasses.dataclass(eq=False)
class TrainedModel:
    """A model with its parameters on the devices and its vocabulary. `limba.load` makes it.

    `config` is the RunConfig of a run, else the ModelConfig of the network. In the methods' examples `model` is a T5 of
    bytes, `limba.load("runs/demo")`. Ids are int32 and logits, likelihoods and vectors float32, in numpy. Texts are a
    list of str; one str instead of a list is an InputError.
    """

    source: Source  # where the model is from
    network: Network
    mesh: Mesh
    params: Parameters
    step: int  # with `path`: the checkpoint
    path: str
    tokenizer: Tokenizer | None  # the vocabulary and its name, if it is known
    # The warning about texts that are cut is logged once.
    _said_cut: bool = dataclasses.field(default=False, init=False, repr=False)

    @property
    def config(self) -> RunConfig | ModelConfig:
        """The run's configuration if it is known, else the network's."""
        return self.network.config if self.source.run is None else self.source.run

    @property
    def vocabulary(self) -> Vocabulary:
        """The vocabulary, a seqio object; InputError if it is not known."""
        if self.tokenizer is None:
            folder = self.source.directory
            other = next((name for name in sources.OTHER_VOCABULARIES if (folder / name).exists()), None)
            if other is not None:
                raise InputError(
                    f"{self.path} has its vocabulary as {other}, from which transformers makes a tokenizer.json, which"
                    f" Limba reads: transformers.AutoTokenizer.from_pretrained({str(folder)!r})"
                    f".save_pretrained({str(folder)!r})."
                )
            raise InputError(
                f"{self.path} has no vocabulary ({' or '.join(VOCABULARIES)}) beside it; give one as"
                " `vocabulary`: a path, or 'byte'."
            )
        return self.tokenizer[1]

    @functools.cached_property
    def special_ids(self) -> SpecialIds:
        """The ids with a role: padding, start, ends, mask, and the ids around a text."""
        vocabulary = None if self.tokenizer is None else self.tokenizer[1]
        special = sources.special_ids_of(self.source, vocabulary)
        if self.source.model.predicts_next and not self.network.config.is_encoder:
            # As a language model a hybrid reads what it learned in causal rows: the start, then <cls>, then the text.
            return dataclasses.replace(special, before=(special.decoder_start, *special.before), after=())
        return dataclasses.replace(special, input_end=sources.input_end_of(self.source, special))

    @functools.cached_property
    def decoder(self) -> TrainedModel:
        """The language model that a hybrid is too; any other model is itself."""
        model = self.network.config
        if not model.predicts_next:
            return self
        from limba.model import Network

        return dataclasses.replace(self, network=Network(model.exported, self.mesh))

    @functools.cached_property
    def task(self) -> Provider | None:
        """The seqio task or mixture of a run; None if only the network is known."""
        return None if self.source.run is None else sources.task_of(self.source)

    @functools.cached_property
    def lengths(self) -> Mapping[str, int]:
        """The maximum number of tokens of inputs and targets; longer ones are truncated."""
        run = self.source.run
        task = self.task
        if run is None or task is None:
            if self.source.length is None:
                return LENGTHS
            return {**LENGTHS, "inputs": self.source.length}
        with quiet_imports():
            from limba.data.objectives import derive_lengths
        return derive_lengths(task, run.data.task_feature_lengths)

    @functools.cached_property
    def prefix(self) -> str:
        """The prefix that the task adds to its inputs."""
        if self.task is None:
            return ""
        from limba.data.objectives.supervised import prefix_of

        return prefix_of(self.task)

    @functools.cached_property
    def reads_prefix(self) -> bool:
        """Whether a language model learned to read a prompt in both directions, as the inputs of its rows.

        False, with a warning, if the modules of the run's task are not imported.
        """
        model = self.network.config
        run = self.source.run
        if not model.is_decoder_only or model.prefix_attention != "full" or run is None:
            return False
        if run.data.objective is not None:
            return OBJECTIVES[run.data.objective].has_prefix
        try:
            task = self.task
        except InputError as error:
            logger.warning("Prompts are read from left to right, whatever the model learned: %s", error)
            return False
        from limba.data.objectives.choice import reads_prefix

        return task is not None and reads_prefix(task, run.data.task_feature_lengths)

    @functools.cached_property
    def only_fills_gaps(self) -> bool:
        """Whether it is known that the model fills gaps and writes no running text; see `source.only_fills_gaps`."""
        return sources.only_fills_gaps(self.source)

    @property
    def generation(self) -> GenerationConfig:
        """The run's GenerationConfig; greedy if only the network is known.

        A model of a folder for transformers may write its sentinels, as in transformers, unless its
        generation_config.json suppresses them, and has that file's no_repeat_ngram_size.
        """
        if self.source.run is not None:
            return self.source.run.generation
        special = self.special_ids
        return GenerationConfig(
            ban_sentinels=not special.is_published, no_repeat_ngram_size=special.no_repeat_ngram_size
        )

    @property
    def batch_size(self) -> int:
        """The number of texts in a batch, over all devices."""
        if self.source.run is None:
            return self.rows(BATCH_SIZE)
        return self.rows(self.source.run.data.batch_size)

    def __repr__(self) -> str:
        model = self.network.config
        run = self.source.run
        if model.is_encoder:
            kind = "encoder"
        elif model.is_decoder_only:
            kind = "decoder-only"
        else:
            kind = f"encoder-decoder, {model.num_encoder_layers} +"
        size = sum(leaf.size for leaf in jax.tree.leaves(self.params))
        pieces = "no vocabulary" if self.tokenizer is None else f"vocabulary {self.tokenizer[0].path}"
        task = "" if run is None else f", task {run.data.mixture_or_task_name}"
        return (
            f"<TrainedModel {self.path}, step {self.step:,}: {size:,} parameters, {kind} {model.num_decoder_layers}"
            f" layers of width {model.emb_dim}, {model.vocab_size:,} ids, {pieces}{task}>"
        )

    def __dir__(self) -> list[str]:
        return [name for name in super().__dir__() if name not in INTERNAL]

    def tokenize(self, text: str) -> Int[np.ndarray, " L"]:
        """Returns the ids of an input as the network reads it.

        For a T5 they begin with the run's prefix, end with the end of sequence, and are truncated to the run's length.
        For a language model they begin with the start id, 0; if it learned pairs, they have its prefix and an end too.
        <extra_id_0> and so on become sentinels. For an encoder they end with the end of sequence, and <mask> becomes
        its mask. For a folder for transformers they are its AutoTokenizer's ids, but for a ByT5's sentinels and the
        names of its special tokens, which are bytes.

        >>> model.tokenize("Ab").tolist()  # UTF-8 bytes, each 3 higher, and the end of sequence
        [68, 101, 1]
        """
        return self._ids_of(text, self._longest_input)

    @property
    def _longest_input(self) -> int | None:
        """The number of tokens at which an input is cut; None for a language model, which reads all of it."""
        if self.network.config.is_decoder_only and not self.network.config.is_encoder:
            return None
        return self.lengths["inputs"]

    def _ids_of(self, text: str, length: int | None = None) -> Int[np.ndarray, " L"]:
        """Returns `tokenize` of a text, cut to so many tokens, or uncut; a language model's are never cut."""
        from limba.inference.mask_filling import masked_ids
        from limba.inference.token_ids import input_ids, prompt_ids

        text = whole_letters(text)
        vocabulary = self.vocabulary
        special = self.special_ids
        if self.network.config.is_encoder:
            return masked_ids(text, vocabulary, special, length)
        if self.network.config.is_decoder_only:
            return prompt_ids(self._prompt(text), vocabulary, special)
        return input_ids(self.prefix + text, vocabulary, special, length)

    @property
    def answers(self) -> bool:
        """Whether a language model learned pairs: it reads an input with an end, and writes a target, as a T5."""
        return self.special_ids.input_end is not None

    def _prompt(self, text: str) -> str:
        """Returns a text as a language model reads it; as the input of a pair it has the task's prefix."""
        return self.prefix + text if self.answers and text else text

    def _special_before(self, inputs: str) -> SpecialIds:
        """Returns the ids around an input before a target that is scored; without an input the target is a text."""
        return self.special_ids if inputs else dataclasses.replace(self.special_ids, input_end=None)

    def generate(self, texts: Sequence[str], **fields: Unpack[GenerationFields]) -> list[str]:
        """Returns the text that the model generates for each input.

        A language model's text begins with its prompt, which it reads as it learned to (`reads_prefix`); one that
        learned pairs writes a target alone. A hybrid generates as the language model that it is too. `fields` are
        GenerationConfig's, such as `max_tokens=64`, `num_beams=4`, or `temperature=0.6, top_k=20`; the defaults are the
        run's. `long_inputs` says what is done with texts longer than the run's length. Raises InputError for fields
        that exclude each other, and for an encoder.

        >>> len(model.generate(["Ab", "c"], max_tokens=4))
        2
        """
        config = self.generation.replaced(**fields)
        if config.num_samples > 1:
            raise InputError(
                f"num_samples is {config.num_samples}, and generate returns one text per input; call samples."
            )
        return [samples[0].text for samples in self.written(texts, config)]

    def samples(self, texts: Sequence[str], **fields: Unpack[GenerationFields]) -> list[list[Written]]:
        """Returns `num_samples` texts for each input, each with its score and its ids; see `generate`.

        Scores are described by `search.Generated`.

        >>> [[written.ids.dtype.name for written in texts] for texts in model.samples(["Ab"], num_samples=2, top_k=9)]
        [['int32', 'int32']]
        """
        return self.written(texts, self.generation.replaced(**fields))

    def written(
        self, texts: Sequence[str], config: GenerationConfig, deadline: Deadline | None = None
    ) -> list[list[Written]]:
        """Returns `samples` for a complete GenerationConfig; raises TimeIsOverError soon after the deadline."""
        rows = self.rows(min(self.batch_size, max(1, len(listed(texts)))))
        writer = self.segment_writer(config, rows, deadline=deadline)
        results = dict(writer.results(texts))  # they come in any order
        return [list(results[number].samples) for number in range(len(texts))]

    def segment_writer(
        self,
        config: GenerationConfig,
        num_rows: int,
        say: Callable[[str], None] | None = None,
        deadline: Deadline | None = None,
    ) -> SegmentWriter:
        """Returns a `SegmentWriter`, which generates text for texts of any length in batches of `num_rows`.

        `say` gets the warning of an input that is cut; the default logs it.
        """
        if self.decoder is not self:
            return self.decoder.segment_writer(config, num_rows, say, deadline)
        self._require_text("generates")
        from limba.inference.generate import Writer
        from limba.inference.long_inputs import SegmentWriter

        writer = Writer(
            self.network,
            self.mesh,
            self.vocabulary,
            config,
            num_rows,
            self.reads_prefix,
            with_prompt=not self.answers,
            deadline=deadline,
            special=self.special_ids,
        )
        return SegmentWriter(self, config, writer, say)

    @overload
    def fill(self, text: str, top: int = 5, deadline: Deadline | None = None) -> list[list[Fill]]: ...

    @overload
    def fill(self, text: Sequence[str], top: int = 5, deadline: Deadline | None = None) -> list[list[list[Fill]]]: ...

    def fill(
        self, text: str | Sequence[str], top: int = 5, deadline: Deadline | None = None
    ) -> list[list[Fill]] | list[list[list[Fill]]]:
        """Returns, for each gap of a text, its `top` likeliest fills, best first; for a list, the same for each text.

        Gaps are <extra_id_0>, <extra_id_1>, … in order, or `<mask>` or `___` each. A `Fill` is (text, probability,
        ids): the probability that the model writes exactly this there, its end included, after the best fills of the
        gaps before. A fill has a letter and begins with a word, or a good part of one (`gap_filling.fills`). An
        encoder's fill is one piece, with its probability there, whatever the other gaps get
        (`mask_filling.fills_of_masks`). Raises InputError for a model or a text without gaps, gaps that are not in
        order, and a text longer than the model reads, and TimeIsOverError soon after the deadline.

        >>> [len(fills) for fills in model.fill("A <extra_id_0> b <extra_id_1>.", top=3)]
        [3, 3]
        """
        from limba.data.vocabulary.sentinels import num_sentinels
        from limba.inference.gap_filling import Filler, with_sentinels
        from limba.inference.mask_filling import fills_of_masks

        if not isinstance(top, int) or top < 1:
            raise InputError(f"`top` is {top!r}; give a whole number above 0.")
        if top > self.network.config.vocab_size:
            raise InputError(
                f"`top` is {top:,}, and the model has {self.network.config.vocab_size:,} ids; give a smaller number."
            )
        if isinstance(text, str):
            return self.fill([text], top, deadline)[0]
        texts = list(map(whole_letters, listed(text)))
        if self.network.config.is_encoder and self.network.config.has_logits:
            special = self.special_ids
            return fills_of_masks(self.network, self.params, self.mesh, self.vocabulary, special, texts, top, deadline)
        self._require_text("fills")
        if self.network.config.is_decoder_only:
            raise InputError(
                f"{self.path} is a decoder-only model, which continues texts and fills no gaps; call `generate`."
            )
        if not num_sentinels(self.vocabulary):
            raise InputError(f"The vocabulary of {self.path} has no sentinels (<extra_id_0>, …), so it fills no gaps.")
        masked = [with_sentinels(prompt) for prompt in texts]
        ids = []
        for masked_text in masked:
            ids.append(self.tokenize(masked_text))
            num_cut = self.num_cut(masked_text, "")
            if num_cut:  # a gap may be in the part that is cut
                raise InputError(
                    f"The text {masked_text[:60]!r}… has {len(ids[-1]) + num_cut:,} tokens, and the model reads"
                    f" {self.lengths['inputs']:,}; give a shorter one."
                )
        filler = Filler(self.network, self.params, self.mesh, self.vocabulary, self.special_ids)
        return filler.fill(masked, ids, top, deadline)

    def score(self, pairs: Sequence[tuple[str, str]], num_rows: int | None = None) -> list[Score]:
        """Returns how likely the model finds each (input, target): ln p(target | input), tokens, bits per byte.

        The target includes its end of sequence. The input of a language model is a prompt and may be empty: it scores
        the target as a text of its own then. One that learned pairs reads an input as `tokenize` has it. A T5's
        target that is longer than the model reads is cut, with a warning, and scored as far as it was read. A batch has
        `num_rows` pairs, by default `batch_size`. Raises InputError for an encoder.

        >>> (score,) = model.score([("Ab", "c")])
        >>> score.tokens, score.log_likelihood < 0 < score.bits_per_byte
        (2, True)
        """
        from limba.data.vocabulary.covered_bytes import covered_bytes
        from limba.inference.scoring import log_likelihoods, score_of
        from limba.inference.token_ids import text_ids

        if self.decoder is not self:
            return self.decoder.score(pairs, num_rows)
        self._require_text("scores")
        ids = [self.pair_ids(*pair) for pair in paired(pairs)]
        rows = num_rows or self.batch_size
        special = self.special_ids
        likelihoods = log_likelihoods(self.network, self.params, self.mesh, ids, rows, self.reads_prefix, special)
        self._warn_of_cut([inputs for inputs, _ in pairs], [read for read, _ in ids], self._longest_input)
        scores = []
        num_cut = 0
        for likelihood, (_, read), (_, target) in zip(likelihoods.tolist(), ids, pairs, strict=True):
            text = whole_letters(target)
            num_tokens = None  # all of the text was read
            if len(read) == self.lengths["targets"] and not self.network.config.is_decoder_only:
                num_tokens = len(read) - len(special.target([]))  # without its end
                num_cut += num_tokens < len(text_ids(text, self.vocabulary))
            scores.append(score_of(likelihood, len(read), covered_bytes(self.vocabulary, text, num_tokens)))
        if num_cut:
            logger.warning(
                "%d of %d targets are longer than the %d tokens that the model reads; only these tokens are scored, and"
                " their bits per byte are of the bytes that were read.",
                num_cut, len(scores), self.lengths["targets"],
            )  # fmt: skip
        return scores

    def log_likelihoods(self, pairs: Sequence[tuple[str, str]], ends: bool = True) -> Float[np.ndarray, " N"]:
        """Returns ln p(target | input) of whole texts: as `score`, but nothing is truncated and no prefix is added.

        `ends`: the target includes its end of sequence. For an encoder see `pseudo_likelihood.pseudo_log_likelihoods`.

        >>> model.log_likelihoods([("Ab", "c"), ("Ab", "d")]).shape
        (2,)
        """
        from limba.inference.pseudo_likelihood import pseudo_log_likelihoods
        from limba.inference.scoring import log_likelihoods
        from limba.inference.token_ids import input_ids, read_before, target_ids

        network = self.network
        special = self.special_ids
        if network.config.is_encoder and network.config.has_logits:
            return pseudo_log_likelihoods(
                network, self.params, self.mesh, self.vocabulary, special, pairs, self.batch_size
            )
        self._require_text("scores")
        follows = network.config.is_decoder_only
        vocabulary = self.vocabulary
        read = read_before if follows else input_ids
        ids = []
        for inputs, targets in pairs:
            read_ids = read(whole_letters(inputs), vocabulary, self._special_before(inputs))
            written_ids = target_ids(whole_letters(targets), vocabulary, special, ends=ends, follows=follows)
            ids.append((read_ids, written_ids))
        return log_likelihoods(network, self.params, self.mesh, ids, self.batch_size, self.reads_prefix, special)

    def logits(self, pairs: Sequence[tuple[str, str]]) -> list[Float[np.ndarray, "Q V"]]:
        """Returns the logits of each (input, target): one row per target token, including its end of sequence.

        Raises InputError for an encoder.

        >>> [rows.shape for rows in model.logits([("Ab", "c")])]  # tokens of the target, ids of the vocabulary
        [(2, 384)]
        """
        return self.logits_of_ids([self.pair_ids(*pair) for pair in paired(pairs)], self.batch_size)

    def logits_of_ids(
        self, pairs: Sequence[tuple[np.ndarray, np.ndarray]], num_rows: int | None = None
    ) -> list[Float[np.ndarray, "Q V"]]:
        """Returns `logits` of pairs of ids; a batch has `num_rows` pairs, by default all of them."""
        from limba.inference.scoring import logits

        if self.decoder is not self:
            return self.decoder.logits_of_ids(pairs, num_rows)
        self._require_text("scores")
        rows = num_rows or self.rows(len(pairs))
        return logits(self.network, self.params, self.mesh, pairs, rows, self.reads_prefix, self.special_ids)

    def pair_ids(self, inputs: str, targets: str) -> tuple[np.ndarray, np.ndarray]:
        """Returns the ids of an input and its target as `score` compares them."""
        from limba.inference.token_ids import read_before, target_ids

        if self.decoder is not self:
            return self.decoder.pair_ids(inputs, targets)
        vocabulary = self.vocabulary
        special = self.special_ids
        target = whole_letters(targets)
        if self.network.config.is_decoder_only:
            read = read_before(self._prompt(whole_letters(inputs)), vocabulary, self._special_before(inputs))
            return read, target_ids(target, vocabulary, special, follows=True)
        return self.tokenize(inputs), target_ids(target, vocabulary, special, self.lengths["targets"])

    def num_cut(self, inputs: str, targets: str) -> int:
        """Returns how many tokens of a pair `pair_ids` truncates."""
        from limba.inference.token_ids import input_ids, target_ids

        if self.network.config.is_decoder_only:
            return 0
        vocabulary = self.vocabulary
        special = self.special_ids
        sizes = {
            "inputs": len(input_ids(self.prefix + whole_letters(inputs), vocabulary, special)),
            "targets": len(target_ids(whole_letters(targets), vocabulary, special)),
        }
        return sum(max(0, size - self.lengths[name]) for name, size in sizes.items())

    def _require_text(self, what: str) -> None:
        network = self.network.config
        if not network.has_logits:
            raise InputError(f"{self.path} is an encoder, which {what} no text; call `encode` for vectors.")
        if not network.is_encoder:
            return
        uses = "`fill` for the words of <mask>, or `encode` for vectors"
        if what == "scores":
            raise InputError(
                f"{self.path} is an encoder, which scores no text from left to right; call `log_likelihoods` for the"
                f" pseudo log likelihoods of texts, {uses}."
            )
        raise InputError(f"{self.path} is an encoder, which {what} no text; call {uses}.")

    def _warn_of_cut(self, texts: Sequence[str], ids: Sequence[np.ndarray], length: int | None) -> None:
        """Logs, once for a model, that texts are longer than what is read of each, and were cut."""
        if length is None or self._said_cut:
            return
        # Only texts that fill the length can have been cut: the others are not tokenized again.
        full = [text for text, text_ids in zip(texts, ids, strict=True) if len(text_ids) >= length]
        num_cut = sum(len(self._ids_of(text)) > length for text in full)
        if num_cut:
            self._said_cut = True
            logger.warning(
                "%d of %d texts are longer than %s; what comes after them is not read.",
                num_cut, len(texts), self._name_of_length(length),
            )  # fmt: skip

    def _name_of_length(self, length: int) -> str:
        """Returns a length with where it is from."""
        is_known = self.source.run is not None or self.source.length is not None
        if not is_known or length != self._longest_input:
            return f"the {length:,} tokens that are read of each"
        return f"the {length:,} tokens that the model was trained with"

    def encode(self, texts: Sequence[str], pooling: str | None = None) -> Float[np.ndarray, "N D"]:
        """Returns one vector per text, from the encoder's output, or from a language model's last hidden states.

        `pooling` is one of POOLINGS: the mean of the tokens' states, the first or last token's state, and so on. The
        default is what the modules of a sentence-transformers folder define, with its prompt and the modules after its
        pooling, and the mean for any other model. Raises InputError for modules that are not known, and an empty text
        around which the tokenizer puts nothing.

        >>> model.encode(["Ab", "c"]).shape
        (2, 64)
        """
        if pooling is not None and pooling not in POOLINGS:
            raise InputError(f"The pooling is {pooling!r}; choose one of {', '.join(POOLINGS)}.")
        from limba.formats.sentence_modules import SentenceModules
        from limba.inference.vectors import computed_in_batches, pooled, truncated

        modules = self.source.sentence_modules() if pooling is None else None
        modules = modules or SentenceModules((pooling or "mean",), ())
        texts = [modules.prompt + text for text in listed(texts)]
        if modules.lowers:
            texts = [text.lower() for text in texts]
        # The folder's own limit counts, whatever length its tokenizer or its network names.
        length = modules.max_tokens or self._longest_input
        ids = [self._ids_of(text, length) for text in texts]
        self._warn_of_cut(texts, ids, length)
        if any(not len(text_ids) for text_ids in ids):
            raise InputError(
                "A text is empty, and the model's tokenizer puts nothing around it; give texts with letters."
            )
        after = self.special_ids.after
        end = after[-1] if after else None
        ids = [truncated(text_ids, length, end) for text_ids in ids]  # of a language model: the others are cut
        compute = functools.partial(pooled, self.network, modules.poolings, self.special_ids.is_published, self.params)
        rows = computed_in_batches(compute, ids, self.rows(min(self.batch_size, len(ids))), self.mesh)
        width = self.network.config.emb_dim * len(modules.poolings)
        vectors = np.stack(rows) if rows else np.zeros((0, width), np.float32)
        for change in modules.after:
            vectors = change(vectors)
        return vectors

    def arrays(self) -> dict[str, np.ndarray]:
        """Returns the parameters by T5X's names, one array per layer.

        >>> model.arrays()["token_embedder/embedding"].shape
        (384, 64)
        """
        return unstack_layers({name: np.asarray(leaf) for name, leaf in flatten(self.params).items()})

    def save(self, folder: str | Path, format: str = "huggingface", dtype: str = "float32") -> Path | str:
        """Writes the model to a new or empty folder, local or in a bucket; returns it.

        `format` is "huggingface" (model.safetensors for transformers, with the tokenizer), "flax" (flax_model.msgpack
        instead) or "t5x" (a legacy checkpoint_<step>). Only `limba.export` also proves the result. `dtype` is float32
        or bfloat16, of the weights in the files. Raises InputError for a folder that is not empty, and for a network
        that the format cannot represent.

        >>> sorted(file.name for file in model.save("exported").iterdir())[:3]
        ['config.json', 'conversion.json', 'generation_config.json']
        """
        if "://" in str(folder):
            with tempfile.TemporaryDirectory(prefix="limba-export-") as local:
                made = self.save(Path(local) / "model", format, dtype)
                target = str(folder).rstrip("/") + (f"/{Path(made).name}" if format == "t5x" else "")
                manifest.upload(made, target)
            return target
        folder = Path(os.path.expanduser(folder))
        if format not in FORMATS:
            raise InputError(f"The format {format!r} is not known; give one of {', '.join(FORMATS)}.")
        if dtype not in ("float32", "bfloat16"):
            raise InputError(f"The dtype {dtype!r} is not known; give float32 or bfloat16.")
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise InputError(f"{folder} is not empty; give a new folder.")
        config = self.network.config
        if format == "flax" and not has_flax_class(config):
            raise InputError('transformers has no Flax class of this network; give the format "huggingface".')
        arrays = self.arrays()
        if format == "t5x":
            name_of = t5x.their_name if config.is_t5_decoder else str
            parameters = {f"target/{name_of(name)}": array for name, array in arrays.items()}
            tree = {"state/step": np.int32(self.step), **parameters}
            return Path(t5x.write_legacy(folder, self.step, tree, dtype))
        folder.mkdir(parents=True, exist_ok=True)
        with lease.held(str(folder)):
            writing = folder / ".writing"
            form = Form(
                ("pytorch" if format == "huggingface" else "flax",),
                dtype,
                length=sources.trained_length(self.source),
                special=self.special_ids if self.special_ids.is_published else None,
                published=sources.published_folder(self.source, self.tokenizer[0] if self.tokenizer else None),
            )
            vocabulary = self.tokenizer[1] if self.tokenizer else None
            suppressed = sources.unused_sentinels(self.source, vocabulary)
            write_folder(writing, arrays, config, form, self.tokenizer, suppressed)
            learned = sources.learned(self.source, self.special_ids)
            if learned:
                (writing / RECORD).write_text(json.dumps(learned) + "\n")
            for file in sorted(writing.iterdir(), key=lambda file: file.name == "config.json"):
                file.replace(folder / file.name)  # config.json last: until then the folder is not a model
            writing.rmdir()
        return folder

    def trim(self, texts: Sequence[str], folder: str | Path, coverage: float = 0.9999) -> TrainedModel:
        """Writes the model with the rows of its vocabulary that texts need to a new folder; returns it from there.

        They are the rows of the pieces that make up the share `coverage` of the texts' tokens, see
        `limba.export.trimming`. Every fiftieth text is not counted: what the others leave of it is logged. Raises
        InputError for a model that was opened with another vocabulary than its own, for one of bytes, and for a folder
        that is not empty.

        >>> model.trim(["Ab"], "trimmed")
        Traceback (most recent call last):
        limba.config.errors.InputError: The vocabulary is UTF-8's bytes, ...: there is nothing to trim.
        """
        own_tokenizer = sources.open_vocabulary(self.source)
        if self.tokenizer is not None and (own_tokenizer is None or own_tokenizer[0].path != self.tokenizer[0].path):
            raise InputError(f"{self.path} was opened with another vocabulary than its own; open it without that.")
        tool = tool_registry.find("trim")
        if tool is None:
            raise InputError("Limba's tools, which trim a vocabulary, are not installed; install all of limba/.")
        step = None if self.path.endswith("/best") else self.step
        whole_texts = [whole_letters(text) for text in listed(texts)]
        return load(tool.of_loaded(self.source, step, whole_texts, str(folder), coverage))

    def rows(self, num: int) -> int:
        """Returns the smallest number of rows, at least `num` and 1, that divides over the mesh."""
        groups = num_batch_groups(self.mesh)
        return -(-max(num, 1) // groups) * groups
