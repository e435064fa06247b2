"""Checkpoints as folders for transformers, each with a proof of equal numbers and a model card, and such folders back.

A folder, or a model of the hub, becomes a Limba checkpoint by `import_folder`.
"""

import dataclasses
import json
import logging
import re
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import jax
import numpy as np
from etils import epath
from jax.sharding import AxisType

from limba.config import CardConfig, DataConfig, InputError, ModelConfig, saved_config
from limba.config.optimizer import Adafactor
from limba.config.waiting import waiting
from limba.data.tasks import Provider, hub_datasets
from limba.data.vocabulary.special_ids import SpecialIds, of_folder
from limba.data.vocabulary.vocabularies import Vocabulary
from limba.export import merging, proof
from limba.export.card import write_card
from limba.export.record import (
    CARD,
    NONE,
    Choices,
    card_of,
    card_told,
    check_named,
    differences,
    made_of,
)
from limba.formats import huggingface
from limba.formats.architectures import has_flax_class
from limba.formats.huggingface import ENDS_INPUTS, RECORD, head_scale
from limba.formats.huggingface_files import ENCODER, Form, write_folder
from limba.formats.names import Json, read_ahead
from limba.formats.open import HUGGING_FACE, VOCABULARIES, open_folder, open_path
from limba.inference import source as sources
from limba.inference.source import Source
from limba.model import Network
from limba.sharding.mesh import leaf_name
from limba.storage import lease, manifest
from limba.storage.files import as_typed_here, write_whole
from limba.training.checkpoints import arrays
from limba.training.checkpoints.directory import position_item
from limba.training.checkpoints.initial import stacked_layers
from limba.training.optimizer import make_optimizer
from limba.training.state import abstract_state

logger = logging.getLogger(__name__)

GIN = "from __gin__ import dynamic_registration\nfrom limba import config\n\n"
TOKENIZER_CONFIG = "tokenizer_config.json"
FILLS = (
    f"a hybrid: the language model is here, and for vectors and fine-tuning there is an EuroBertModel in {ENCODER}/;"
    " masks are predicted at the place before them, which no class of transformers does: TrainedModel.fill fills them"
)
_ENTRY = re.compile(rf"step_\d+(\.writing|\.failed)?|{re.escape(lease.FILE)}")


def chosen_steps(text: str | None, saved: Iterable[int], best: int | None = None) -> list[int]:
    """Parses "best", "latest", "all" or numbers with commas into steps, in order; InputError for one that is not there.

    None is the best step if there is one, else the latest of the saved ones.

    >>> chosen_steps(None, [10, 20]), chosen_steps(None, [10, 20], best=7), chosen_steps("20,7", [10, 20], best=7)
    ([20], [7], [7, 20])
    """
    newest = sorted(saved)[-1:]
    if text is None:
        return newest if best is None else [best]
    if text == "latest":
        return newest
    if text == "best":
        if best is None:
            raise InputError("The run keeps no best step (CheckpointConfig.best_metric); give latest, or a number.")
        return [best]
    there = sorted({*saved} if best is None else {*saved, best})
    if text == "all":
        return there
    if not re.fullmatch(r"\d+(,\d+)*", text):
        raise InputError(f"The steps are {text!r}; give best, latest, all, or numbers such as 1000,2000.")
    chosen = sorted({int(part) for part in text.split(",")})
    absent = [step for step in chosen if step not in there]
    if absent:
        raise InputError(f"There is no checkpoint at step {absent[0]}; choose from {there}.")
    return chosen


def export(source: Source, out: Path, steps: Sequence[int], choices: Choices) -> dict[int, Path]:
    """Writes and proves a folder for each step, saved or the best one, in order; returns the folders.

    Finished folders of an earlier call that were made of the same are kept; their cards are written anew, if they alone
    would differ. Raises InputError if a proof fails.
    """
    check_out(out)
    source = dataclasses.replace(_with_best(source), average=choices.average)
    choices = possible(source.model, choices)
    folders = {step: out / f"step_{step}" for step in steps}
    records = {step: folder / RECORD for step, folder in folders.items()}
    kept = {step: file.read_bytes() if file.is_file() else None for step, file in records.items()}
    wanted: dict[int, Json | None] = {}  # what a folder is made of, where that is known by now
    with_other_cards = []
    for step in steps:
        parts = None if kept[step] is None else made_of(source, step, choices)
        differing = _differing(source, parts, kept[step], folders[step])
        if differing is None or differing - {CARD}:
            wanted[step] = parts
        elif differing:
            with_other_cards.append(step)
        else:
            print(f"step {step:,}: done before, {as_typed_here(str(folders[step]))}", flush=True)
    if not wanted and not with_other_cards:
        return folders
    tokenizer = vocabulary_of(source, choices) if wanted else None
    out.mkdir(parents=True, exist_ok=True)
    with lease.held(str(out)) as mine:
        for step in with_other_cards:
            mine.check()
            _renew_card(source, step, folders[step], choices)
        for step, parts in wanted.items():
            mine.check()
            _convert(source, step, folders[step], choices, tokenizer, parts or made_of(source, step, choices))
    return folders


def _with_best(source: Source) -> Source:
    """Returns the source with its best checkpoint among its steps."""
    if source.best is None or source.best_step is None:
        return source
    return dataclasses.replace(source, steps={**source.steps, source.best_step: source.best})


def check_out(out: Path) -> None:
    """Raises InputError for a directory that holds anything but folders of earlier exports."""
    if out.exists() and not out.is_dir():
        raise InputError(f"{out} is a file; give a directory for the folders.")
    other = [entry.name for entry in sorted(out.iterdir()) if not _ENTRY.fullmatch(entry.name)] if out.exists() else []
    if other:
        raise InputError(f"{out} holds {other[0]}, which no conversion wrote; give an empty or new directory.")


def possible(model: ModelConfig, choices: Choices) -> Choices:
    """Returns the choices without what transformers lacks for this network; says so."""
    if choices.encoder_only and (model.is_decoder_only or model.is_t5_encoder):
        raise InputError(
            "The model is not an encoder-decoder, so it has no encoder that could be written alone; convert it whole."
        )
    if "flax" not in choices.formats or (has_flax_class(model) and not choices.encoder_only):
        return choices
    print("transformers has no Flax class of this network: no flax_model.msgpack is written.", flush=True)
    return dataclasses.replace(choices, formats=("pytorch",))


def _differing(source: Source, parts: Json | None, record: bytes | None, folder: str | Path) -> set[str] | None:
    """Returns in which parts a finished folder is not as wanted, None without one; raises what `differences` raises."""
    if record is None or parts is None:
        return None
    where = str(folder)
    directory = str(source.directory)
    if "://" in where or "://" in directory:
        is_own = where.startswith(f"{directory}/")
    else:
        is_own = Path(where).resolve().is_relative_to(Path(directory).resolve())
    return differences(record, parts, folder, is_own)


def _renew_card(source: Source, step: int, folder: Path, choices: Choices) -> None:
    """Writes the card of a finished folder anew, and says in its record what the card was told.

    What it was told before stays, where nothing else is asked for now.
    """
    record = json.loads((folder / RECORD).read_text())
    record[CARD] = record.get(CARD, {}) | card_told(source, choices)
    if choices.encoder_only:
        source = _encoder_of(source)
    source = dataclasses.replace(source, model=source.model.exported)
    form = Form(record["formats"], record["dtype"], choices.transformers)
    card = _with_datasets(_card_in(record), _task(source))
    write_card(folder, source, step, form, record["findings"], card, record.get(ENDS_INPUTS, False))
    write_whole(folder / RECORD, json.dumps(record, indent=2) + "\n")
    print(f"step {step:,}: done before, {as_typed_here(str(folder))}; its card is new", flush=True)


def _card_in(record: Json) -> CardConfig:
    """Returns what a record says that the card was told."""
    fields = {field.name for field in dataclasses.fields(CardConfig)}
    return CardConfig(**{name: value for name, value in record[CARD].items() if name in fields})


def _encoder_of(source: Source) -> Source:
    """Returns a T5 without its decoder."""
    return dataclasses.replace(source, model=dataclasses.replace(source.model, num_decoder_layers=0))


def vocabulary_of(source: Source, choices: Choices) -> tuple[sources.VocabularyName, Vocabulary] | None:
    """Returns (name, seqio's vocabulary) of the choices or the source; None if it is not wanted or not known."""
    if choices.vocabulary == NONE:
        print("No tokenizer files are written, as requested.", flush=True)
        return None
    chosen = None if choices.vocabulary is None else sources.VocabularyName(choices.vocabulary, choices.extra_ids)
    of_source = source.vocabulary
    if (
        chosen is None
        and source.kind == sources.T5X
        and of_source is not None
        and of_source.path != "byte"
        and not of_source.extra_ids
    ):
        source = dataclasses.replace(source, vocabulary=of_source._replace(extra_ids=choices.extra_ids))
    name_and_vocabulary = sources.open_vocabulary(source, chosen)
    if name_and_vocabulary is None:
        print("No vocabulary is known, so no tokenizer files are written; give a vocabulary to write them.", flush=True)
    return name_and_vocabulary


def _convert(
    source: Source,
    step: int,
    final: Path,
    choices: Choices,
    tokenizer: tuple[sources.VocabularyName, Vocabulary] | None,
    parts: Json,
) -> None:
    """Writes a folder under a temporary name, proves it, and renames it to its final name or to `….failed`.

    `parts` is `made_of`.
    """
    writing = final.with_name(f"{final.name}.writing")
    failed = final.with_name(f"{final.name}.failed")
    for old in (writing, failed):
        shutil.rmtree(old, ignore_errors=True)
    writing.mkdir(parents=True)  # a link of this name is an error
    weights = source.arrays(step)
    if choices.encoder_only:
        source = _encoder_of(source)
    vocabulary = tokenizer[1] if tokenizer else None
    task = _task(source)
    model = dataclasses.replace(source.model, dropout_rate=choices.dropout)
    special = sources.special_ids_of(source, vocabulary)
    learned = sources.learned(source, special)
    form = Form(
        choices.formats,
        choices.dtype,
        choices.transformers,
        length=sources.trained_length(source),
        special=special if special.is_published else None,
        published=sources.published_folder(source, tokenizer[0] if tokenizer else None),
    )
    # What the card and the proof are about: of a hybrid the language model, and beside it the encoder.
    hybrid = source.model if source.model.predicts_next else None
    source = dataclasses.replace(source, model=source.model.exported)
    sentinels = sources.unused_sentinels(source, vocabulary)
    with waiting(f"step {step:,}: writing the folder"):
        write_folder(writing, weights, model, form, tokenizer, sentinels)
    with waiting(f"step {step:,}: proving it"):
        passed, findings = prove(writing, weights, source.model, choices, vocabulary, form.special)
        for is_equal, finding in _proofs_of_tokenizer_and_encoder(
            writing, weights, hybrid, choices, vocabulary, special
        ):
            passed &= is_equal
            findings.append(finding)
    card = _with_datasets(card_of(source, choices), task)
    write_card(writing, source, step, form, findings, card, ENDS_INPUTS in learned)
    for line in findings:
        print(f"step {step:,}: {line}", flush=True)
    if not passed:
        writing.rename(failed)
        raise InputError(
            f"The folder for step {step} does not give the source's numbers; do not use it (now {failed}):"
            " convert again, and check the disk if it fails again."
        )
    record = {**parts, "findings": findings, **learned}
    write_whole(writing / RECORD, json.dumps(record, indent=2) + "\n")
    if final.exists():
        shutil.rmtree(final)  # was made of something else
    writing.rename(final)
    print(f"step {step:,}: {as_typed_here(str(final))}", flush=True)


def _with_datasets(card: CardConfig, task: Provider | None) -> CardConfig:
    """Returns a card with the task's data sets of the hub, where it names none."""
    if card.datasets or task is None:
        return card
    return dataclasses.replace(card, datasets=tuple(hub_datasets(task)))


def _task(source: Source) -> Provider | None:
    """Returns the run's task; None if it is not known here, as for a T5X checkpoint."""
    try:
        return None if source.run is None else sources.task_of(source)
    except InputError:
        return None


def prove(
    folder: Path,
    weights: Mapping[str, np.ndarray],
    model: ModelConfig,
    choices: Choices,
    vocabulary: Vocabulary | None,
    special: SpecialIds | None = None,
) -> tuple[bool, list[str]]:
    """Returns whether a written folder gives the source's numbers, and the findings as sentences.

    `special` are the ids with a role, by default a run's with this vocabulary.
    """
    if not choices.checks:
        return True, ["NOT CHECKED: written without the proof, nothing shows that it gives the source's numbers"]
    proof.quiet_libraries()
    generation = folder / "generation_config.json"  # an encoder has none
    suppressed = json.loads(generation.read_text()).get("suppress_tokens", ()) if generation.exists() else ()
    kind = proof.Proof if model.has_logits else proof.StatesProof
    source = kind(weights, model, vocabulary, suppressed, special)
    figures = [source.check_own(folder, choices.dtype, form == "flax") for form in choices.formats]
    findings = [] if vocabulary is not None else ["no vocabulary is known: compared on random ids"]
    if "pytorch" in choices.formats and head_scale(model) != 1 and proof.version() not in (0, choices.transformers):
        findings.append(
            f"not compared in transformers {proof.version()}: an untied umT5 is written for one version, here"
            f" {choices.transformers}"
        )
    elif "pytorch" in choices.formats and proof.has_transformers():
        figures.append(source.check_transformers(folder, choices.dtype))
    elif "pytorch" in choices.formats:
        findings.append("torch and transformers are not installed: compared by Limba's own reader of the files only")
    return all(figure.passed for figure in figures), [*map(str, figures), *findings]


def _proofs_of_tokenizer_and_encoder(
    folder: Path,
    weights: Mapping[str, np.ndarray],
    hybrid: ModelConfig | None,
    choices: Choices,
    vocabulary: Vocabulary | None,
    special: SpecialIds,
) -> Iterator[tuple[bool, str]]:
    """Yields findings, and whether they are good: on the written tokenizer's ids, and a hybrid's encoder's states."""
    if not choices.checks:
        return
    before = [*special.before]
    after = [*special.after]
    if hybrid is not None:
        before = [special.decoder_start, *before]
        after = []
    if vocabulary is not None and (folder / TOKENIZER_CONFIG).is_file():
        yield proof.check_tokenizer(folder, vocabulary, (before, after))
    if hybrid is not None:
        yield from proof.check_encoder(folder / ENCODER, weights, hybrid, vocabulary, choices.dtype)
        yield True, FILLS


def export_to_bucket(source: Source, address: str, steps: Sequence[int], choices: Choices) -> None:
    """Writes `address`/step_<N> for each step, proved, as `export` does.

    Needs the space of one folder in the machine's temporary directory. Folders that are there and were made of the
    same are kept, and one made by other choices is replaced: by one of the same formats and proof, if its card alone
    would differ. Raises what `export` and `manifest.upload` raise.
    """
    source = _with_best(source)
    choices = possible(source.model, choices)
    for step in steps:
        target = f"{address.rstrip('/')}/step_{step}"
        record = manifest.read_file(target, RECORD) if manifest.read_file(target, manifest.FILE) else None
        parts = None if record is None else made_of(source, step, choices)
        differing = _differing(source, parts, record, target)
        if differing is not None and not differing:
            print(f"step {step:,}: done before, {target}", flush=True)
            continue
        to_make = choices
        if record is not None and differing == {CARD}:
            to_make = _as_recorded(json.loads(record), source, choices, target)
        with tempfile.TemporaryDirectory(prefix="limba-export-") as folder:
            made = export(source, Path(folder), [step], to_make)[step]
            sent = manifest.upload(made, target, replace=record is not None)
        print(f"step {step:,}: {target}, {sent.files} files, {sent.bytes:,} bytes, complete", flush=True)


def _as_recorded(record: Json, source: Source, choices: Choices, folder: str) -> Choices:
    """Returns the choices by which a finished folder is made again with another card, and keeps all else."""
    record[CARD] = record[CARD] | card_told(source, choices)
    if choices.extra_ids is None:
        choices = dataclasses.replace(choices, extra_ids=record["extra_ids"])
    if choices.vocabulary is None and record["vocabulary"] in (NONE, "byte"):
        choices = dataclasses.replace(choices, vocabulary=record["vocabulary"])
    elif choices.vocabulary is None:
        check_named(record, folder)
    return dataclasses.replace(
        choices, formats=tuple(record["formats"]), checks=record["checked"], card=_card_in(record)
    )


def upload_made(make: Callable[[Path], Path], address: str) -> str:
    """Makes one folder in a new local folder, and uploads it to `address`/<its name>; returns that address."""
    with tempfile.TemporaryDirectory(prefix="limba-export-") as folder:
        made = make(Path(folder))
        target = f"{address.rstrip('/')}/{made.name}"
        manifest.upload(made, target)
    return target


def network_gin(model: ModelConfig) -> str:
    """Returns the network as a gin file's text."""
    fields = [
        f"config.ModelConfig.{field.name} = {getattr(model, field.name)!r}" for field in dataclasses.fields(model)
    ]
    return GIN + "\n".join(fields) + "\n"


def import_folder(source: str | Path, out: Path) -> str:
    """Writes OUT/checkpoints/0 and OUT/config.gin from a folder or a hub id; returns a sentence about them.

    Arrays are read and written a few at a time; the optimizer state is a new Adafactor's. OUT is renamed to its final
    name when it is complete. Raises InputError for an invalid folder, another architecture, arrays that do not fit,
    special ids that Limba's checkpoints do not have, and an OUT that is not empty.
    """
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise InputError(f"{out} is not empty; name a new directory.")
    opened = open_path(str(source))
    if opened.kind != HUGGING_FACE:
        raise InputError(
            f"{source} is a model of {opened.kind}, and only a Hugging Face folder or a hub id is made into a Limba"
            " checkpoint; a run begins from it as it is, by RunConfig.initial_checkpoint_path."
        )
    folder = Path(opened.directory)
    model = huggingface.model_config(folder)
    special = of_folder(epath.Path(folder), None, model)
    if not special.has_t5_layout(model):
        raise InputError(
            f"{source} has padding (pad_token_id {special.padding}) or a start of its own, which our checkpoint"
            " does not have; start a run from the folder itself: set RunConfig.initial_checkpoint_path and"
            f" DataConfig.vocabulary to {source}."
        )
    stored = open_folder(folder, model)
    with lease.held(str(out), beside=True):
        return write_start(folder, stored, model, out)


def write_start(folder: Path, network_arrays: Mapping[str, np.ndarray], model: ModelConfig, out: Path) -> str:
    """Writes what `import_folder` does, from arrays by T5X's names and the vocabulary in `folder`."""
    devices = jax.local_devices(backend="cpu")[:1]  # only a name; nothing is placed there
    mesh = jax.make_mesh((1, 1, 1), ("data", "fsdp", "model"), (AxisType.Auto,) * 3, devices=devices)
    abstract = abstract_state(Network(model), make_optimizer(Adafactor(), 1), mesh)

    def host_arrays() -> Iterator[arrays.HostArray]:
        for tree_path, leaf in jax.tree.leaves_with_path(abstract):
            path = leaf_name(tree_path)
            shape = tuple(leaf.shape)
            dtype = np.dtype(leaf.dtype)
            chunk = arrays.chunk_shape(shape, None, 1, dtype.itemsize)
            for block, part in _parts_of(path, shape, chunk, network_arrays):
                part = np.asarray(part, dtype)
                yield arrays.HostArray(path.replace("/", "."), shape, dtype, chunk, ((block, part),))

    needed = arrays.num_bytes(abstract)
    return write_checkpoint(folder, model, out, 0, needed, read_ahead(host_arrays()))


def _parts_of(
    path: str, shape: tuple[int, ...], chunk: tuple[int, ...], network_arrays: Mapping[str, np.ndarray]
) -> Iterator[tuple[arrays.Index, np.ndarray]]:
    """Yields the parts of an array of the state, by its path there: of a stack some layers, else the array."""
    parameter = path.removeprefix("params/")
    if parameter == path:  # the optimizer begins anew
        yield (), np.zeros(shape, np.float32)
    elif "/layers/" in parameter:
        for block in merging.blocks(shape, chunk):
            layers = range(block[0].start, block[0].stop)
            yield block, stacked_layers(parameter, layers, network_arrays.__getitem__)
    else:
        yield (), network_arrays[parameter]


def write_checkpoint(
    folder: Path,
    model: ModelConfig,
    out: Path,
    step: int,
    needed: int,
    host_arrays: Iterable[arrays.HostArray],
) -> str:
    """Writes OUT/checkpoints/<step>, with its network and the vocabulary in `folder`; returns a sentence about them.

    `needed` bytes must be free. OUT has its name when it is complete.
    """
    writing = out.with_name(out.name + ".importing")
    shutil.rmtree(writing, ignore_errors=True)
    writing.mkdir(parents=True)
    data = position_item(DataConfig("imported", {"inputs": 1}, 1), {})  # no corpus has been read yet
    merging.write_step(epath.Path(writing / "checkpoints"), step, needed, host_arrays, data)
    (writing / "config.gin").write_text(network_gin(model))
    (writing / saved_config.FILE).write_text(saved_config.to_text(model))
    sentence = f"{out}/checkpoints/{step}, with its network in {out}/config.gin"
    vocabulary = _vocabulary_in(folder)
    if vocabulary is not None:
        sentence += f" and its vocabulary in {out}/{vocabulary}"
    for name in (vocabulary, TOKENIZER_CONFIG):  # the latter has its class and number of sentinels
        if name and (folder / name).is_file():
            shutil.copyfile(folder / name, writing / name)
    huggingface.copy_learned(sources.json_of(epath.Path(folder) / RECORD), writing)
    if out.exists():
        out.rmdir()
    writing.rename(out)
    return f"{sentence}; start from it with RunConfig.initial_checkpoint_path={out}."


def _vocabulary_in(folder: Path) -> str | None:
    """Returns the name of a folder's vocabulary, None without one; warns where transformers reads text otherwise."""
    from limba.data.vocabulary.load import load_vocabulary
    from limba.data.vocabulary.published import text_read_otherwise

    name = next((name for name in VOCABULARIES if (folder / name).is_file()), None)
    if name is None:
        return None
    path = str(folder / name)
    other = text_read_otherwise(path, lambda text: load_vocabulary(path, 0).encode(text))
    if other is not None:
        logger.warning(
            "%s, which the checkpoint takes, reads %r as other ids than transformers does in the folder: tokens that"
            " were added are plain text, and the rules of tokenizer.json may be others. For the same ids start a run"
            " from the folder itself: set RunConfig.initial_checkpoint_path and DataConfig.vocabulary to it.",
            path, other,
        )  # fmt: skip
    return name
