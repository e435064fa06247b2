"""Checks of a run before anything is compiled: its processes, directory, batch, corpus and metrics; and its memory."""

import contextlib
import hashlib
import os
import secrets
import time
from collections.abc import Iterable, Iterator, Sequence

import jax
from etils import epath
from jax.sharding import Mesh

from limba.config import ConfigError, DataConfig, InputError, RunConfig, reason_of, saved_config, without_credentials
from limba.config.errors import is_out_of_memory
from limba.data.sources.units import UnitSource
from limba.data.tasks import Provider, check_prefix, parts_of
from limba.data.vocabulary.addresses import content_name
from limba.sharding.agreement import is_first, of_first, together
from limba.storage import servers
from limba.storage.literal_names import remove_file
from limba.training.metrics import weights_and_biases

SEEN_SECONDS = 60.0  # for which a file may stay unseen on another host: caches of network file systems
MOST_SHARDS = 512  # on one process
GIB = 2**30


def check_run(config: RunConfig, mesh: Mesh) -> None:
    """Raises ConfigError for a directory that cannot be written, and choices that do not fit the mesh or memory."""
    for directory in (config.model_dir, f"{config.model_dir.rstrip('/')}/checkpoints"):
        check_writable(directory, "RunConfig.model_dir", config.model_dir)
    _check_microbatches(config, mesh.shape["data"] * mesh.shape["fsdp"])
    _check_memory(config)
    if is_first():
        weights_and_biases.check(config.reports)
    _check_prompts(config)
    model = config.model
    length = config.data.sequence_length or 0
    if model.is_encoder and length > model.max_length and not _has_checkpoints(config):
        raise ConfigError(
            "DataConfig.task_feature_lengths",
            f"gives rows of {length:,} tokens, and the encoder reads at most {model.max_length:,}; give shorter rows,"
            " or raise ModelConfig.max_length.",
            ("ModelConfig.max_length", length),
        )
    if config.gradient_reduce_dtype != "auto" and mesh.shape["data"] != mesh.size:
        raise ConfigError(
            "RunConfig.gradient_reduce_dtype",
            f"is {config.gradient_reduce_dtype!r}, which needs all parameters on every device, and MeshConfig.fsdp is"
            f" {mesh.shape['fsdp']} and MeshConfig.model {mesh.shape['model']}; set it to 'auto', or both of these"
            " to 1.",
        )


def check_prefix_of_new_run(config: RunConfig) -> None:
    """Raises ConfigError for one prefix in place of the tasks' own in a mixture; a run that was begun so goes on."""
    if config.data.prefix and not (epath.Path(config.model_dir) / saved_config.FILE).exists():
        check_prefix(config.data)


def _check_prompts(config: RunConfig) -> None:
    """Raises ConfigError for a prompt without a gap, which a model with an encoder cannot continue."""
    model = config.model
    if model.is_encoder:
        mark = "<mask>"
    elif model.is_decoder_only:
        return
    else:
        mark = "<extra_id_0>"
    for prompt in config.evaluation.prompts:
        if mark not in prompt:
            raise ConfigError(
                "EvaluationConfig.prompts",
                f"has {prompt!r}, and the model {'is' if model.is_encoder else 'has'} an encoder, which does not"
                f" continue a prompt; write {mark} in place of a word.",
            )


def _has_checkpoints(config: RunConfig) -> bool:
    checkpoints = epath.Path(config.model_dir) / "checkpoints"
    return checkpoints.exists() and any(checkpoints.iterdir())


def check_num_shards(shards: Sequence[int], config: RunConfig) -> None:
    """Raises ConfigError for a new run with more data shards on a process than it can open in a minute or two."""
    if len(shards) > MOST_SHARDS and not _has_checkpoints(config):
        raise ConfigError(
            "DataConfig.num_data_shards",
            f"is {config.data.num_data_shards:,}, and this process would open {len(shards):,} pipelines, a fifth of a"
            f" second each; give at most {MOST_SHARDS * jax.process_count():,}: as many as the hosts that the run may"
            " ever have are enough, such as 16.",
        )


def check_shared(model_dir: str) -> None:
    """Raises ConfigError, in all processes, if one does not see in model_dir what the first process writes there.

    Each process writes its own part of a checkpoint, so all must write into one directory.
    """
    probe = epath.Path(model_dir) / f".seen-{of_first(secrets.token_hex(8))}"
    try:
        with together():
            if is_first():
                probe.write_text("")
        with together():
            deadline = time.monotonic() + SEEN_SECONDS
            while not probe.exists():
                if time.monotonic() > deadline:
                    raise ConfigError(
                        "RunConfig.model_dir",
                        f"is {model_dir}, where process {jax.process_index()} does not see what process 0 writes; give"
                        " a directory that all processes share: a bucket (gs://…) or a network file system.",
                    )
                time.sleep(0.5)
    finally:
        if is_first():
            remove_file(probe)


def facts_of_data(task: Provider, config: DataConfig) -> dict[str, str]:
    """Returns what decides the rows: the content of each task's vocabularies, and the parts of its train split."""
    facts = {}
    for part in parts_of(task):
        for name, feature in part.output_features.items():
            facts[f"the vocabulary of {part.name}'s {name} with content"] = content_name(feature.vocabulary)
        if isinstance(part.source, UnitSource):
            names = list(part.source.list_shards(config.train_split))
            facts |= {f"the corpus part {name} of {part.name}": "" for name in names}
            for mark in part.source.marks(config.train_split):
                if mark.has_content:
                    name = f"the file {without_credentials(mark.path)} of {part.name} with content"
                    facts[name] = f"{mark.size:,} bytes {mark.content}"
            order = hashlib.blake2b("\n".join(names).encode(), digest_size=6).hexdigest()
            facts[f"the order of the corpus of {part.name}"] = order
    return facts


def check_best_metric(config: RunConfig, names: Iterable[str]) -> None:
    """Raises ConfigError for a best_metric that is not one of `names`, the figures of the run's evaluations."""
    wanted = config.checkpoint.best_metric
    known = sorted(names)
    if wanted is None or wanted in known:
        return
    if known:
        advice = f"the evaluation gives {', '.join(known)}; name one of them"
        # BLEU with another tokenizer, which was chosen by the script of the references.
        others = [name for name in known if name.startswith(f"{wanted}-")]
        if wanted.rpartition("/")[2] == "bleu" and others:
            raise ConfigError(
                "CheckpointConfig.best_metric",
                f"is {wanted!r}, BLEU with the words of tokenizer 13a, and the evaluation gives {others[0]!r}; name"
                " that one, or set EvaluationConfig.bleu_tokenizer to '13a', as in a run that was begun with it.",
                ("EvaluationConfig.bleu_tokenizer", "13a"),
            )
        if not config.evaluation.num_examples:
            advice += ", or set EvaluationConfig.num_examples for the metrics of generated text"
    else:
        advice = (
            "there is no validation text; give some, raise DataConfig.validation_percent, or set"
            " CheckpointConfig.best_metric to None"
        )
    raise ConfigError("CheckpointConfig.best_metric", f"is {wanted!r}, and {advice}.")


def check_steps(config: RunConfig, saved_step: int, is_new: bool = False) -> None:
    """Raises ConfigError if the checkpoint is after train_steps, or for a new run at it: no step is left then."""
    if config.train_steps is None:
        return
    if saved_step > config.train_steps or (is_new and saved_step == config.train_steps):
        raise ConfigError(
            "RunConfig.train_steps",
            f"is {config.train_steps}, and the checkpoint is at step {saved_step}",
            give="a larger number",
        )


@contextlib.contextmanager
def memory_advice(config: RunConfig) -> Iterator[None]:
    """Raises InputError that says what to lower, in place of an out-of-memory error."""
    try:
        yield
    except (MemoryError, jax.errors.JaxRuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        raise InputError(memory_sentence(config, error)) from error


def memory_sentence(config: RunConfig, error: BaseException) -> str:
    """Returns what to change if a step does not fit the memory."""
    remat = ""
    if config.model.remat == "none":
        remat = "set ModelConfig.remat to 'minimal' or 'full', "
    devices = jax.device_count()
    shared = ""
    if devices > 1:
        shared = f", or set MeshConfig.fsdp to {devices}, which shards the parameters"
    return (
        f"A step does not fit the memory ({reason_of(error, 160)}). Raise RunConfig.num_microbatches, now"
        f" {config.num_microbatches}, which keeps the numbers; {remat}lower DataConfig.batch_size, now"
        f" {config.data.batch_size}{shared}."
    )


def _check_memory(config: RunConfig) -> None:
    """Raises ConfigError if one layer's activations, or the batch itself, exceed the memory for certain."""
    data = config.data
    tokens = data.batch_size * (data.sequence_length or sum(data.task_feature_lengths.values()))
    device = jax.local_devices()[0]
    host = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    limit = (device.memory_stats() or {}).get("bytes_limit") or host
    width = 4 if config.model.dtype == "float32" else 2
    # The devices of a CPU share its memory.
    parts = jax.process_count() if limit == host else jax.device_count()
    of_layer = tokens * config.model.emb_dim * width // (config.num_microbatches * parts)
    of_batch = 4 * tokens // jax.process_count()  # int32 ids
    for needed, has in ((of_batch, host), (of_layer, limit)):
        if needed > has:
            raise ConfigError(
                "DataConfig.batch_size",
                f"is {data.batch_size:,}, which needs at least {needed // GIB:,} GiB of memory, and there are"
                f" {has // GIB:,} GiB; give a smaller one, or raise RunConfig.num_microbatches.",
            )


def _check_microbatches(config: RunConfig, num_groups: int) -> None:
    rows = config.data.batch_size
    parts = config.num_microbatches
    if rows % (num_groups * parts):
        raise ConfigError(
            "DataConfig.batch_size",
            f"is {rows}, which does not divide into RunConfig.num_microbatches {parts} parts over {num_groups} groups"
            " of devices (the mesh's data x fsdp); give a multiple of their product.",
        )


def check_writable(directory: str, field: str, value: str) -> None:
    """Raises ConfigError, which shows a field's value, for a directory in which this process cannot write a file."""
    probe = epath.Path(directory) / f".writable-{secrets.token_hex(8)}"
    servers.check(directory)
    try:
        probe.parent.mkdir(parents=True, exist_ok=True)
        probe.write_text("")
        remove_file(probe)  # a repeated request, whose first answer was lost, finds none
    except Exception as error:  # a bucket's client has errors of its own
        sentence = f"is {value}, and {directory} cannot be written ({reason_of(error)})"
        raise ConfigError(field, sentence, give="a directory that can") from error
