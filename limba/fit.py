"""Python that trains: `pretrain` and `finetune` take texts that a program holds, and return the trained model.

The texts are written into the run's directory once, so that the run is like any other: the same call, or the command
that trains its configuration, resumes it, and every command reads it. Its figures equal those that a run on the same
texts in files has.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol, cast

import jax
from etils import epath

from limba.cli.gin import continued, read_gin, read_gin_run
from limba.cli.gin.continued import Continued
from limba.config import InputError, RunConfig, did_you_mean, saved_config
from limba.config.environment import quiet_imports
from limba.inference import source as sources
from limba.inference.load import LENGTHS, TrainedModel, load
from limba.sharding.agreement import of_first
from limba.storage.files import read_text, write_whole
from limba.storage.literal_names import matching, remove_folder
from limba.training.metrics.records import Callback, Callbacks

if TYPE_CHECKING:
    from limba.data.vocabulary.special_ids import SpecialIds
    from limba.data.vocabulary.vocabularies import Vocabulary

PROBE_SECONDS = 10.0  # of steps, whose time says how many fit
PROBE_STEPS = 1_000_000  # more than fit into these seconds
USED = 0.9  # share of the minutes that steps get; evaluations and saves have the rest
LEAST_ROWS = 8  # for each data shard
# The gin files of a new model, of one that goes on from another, and of one that learns from pairs.
FROM_SCRATCH = "gin/demo_fast.gin"
ON_FROM = "gin/continue.gin"
ON_PAIRS = "gin/runs/finetune_pairs.gin"
# A model of minutes hardly moves at T5's rate for fine-tuning, 0.001, which is one for models of weeks.
YOUNG_STEPS = 5_000
YOUNG_RATE = 0.02
# What a gin file would say in an argument's place: the name, and its field.
OF_ARGUMENTS = {
    "steps": ("TRAIN_STEPS", "config.RunConfig.train_steps"),
    "minutes": ("TRAIN_STEPS", "config.RunConfig.train_steps"),
    "model_dir": ("MODEL_DIR", "config.RunConfig.model_dir"),
    "start": ("INITIAL_CHECKPOINT_PATH", "config.RunConfig.initial_checkpoint_path"),
    "model": ("INITIAL_CHECKPOINT_PATH", "config.RunConfig.initial_checkpoint_path"),
    "vocabulary": ("VOCABULARY", "config.DataConfig.vocabulary"),
    "texts": ("CORPUS", "COLUMN", "config.DataConfig.data_files", "config.DataConfig.column"),
    "pairs": ("CORPUS", "COLUMN", "config.DataConfig.data_files", "config.DataConfig.column"),
}
SHORT = 20  # letters of a text without a space that may still be a sentence, as in Japanese


@dataclasses.dataclass(frozen=True)
class Options:
    """What `pretrain` and `finetune` take by name, besides the names of their gin file (`BATCH_SIZE=16`)."""

    steps: int | None = None  # of the whole run
    minutes: float | None = None  # instead of steps: as many as fit; some steps are run to find their time
    model_dir: str | os.PathLike[str] | None = None  # the run's directory; None: runs/…, named by what is given
    on_log: Callback | None = None  # gets (step, figures) at each logged line; False stops the run
    on_evaluation: Callback | None = None  # the same at each evaluation


def pretrain(
    texts: object,
    *,
    like: str | os.PathLike[str] | None = None,
    start: TrainedModel | str | os.PathLike[str] | None = None,
    text: str = "text",
    vocabulary: str | os.PathLike[str] | None = None,
    **options: object,
) -> TrainedModel:
    """Returns a model, trained on texts: a list, a DataFrame or a `datasets.Dataset` with the column `text`.

    It is a new model, or the one at `start` (what `load` returns or takes) pretrained further: its network, vocabulary
    and objective are kept (gin/continue.gin). `like` is the gin file of a run, which says everything else, and the
    network of a new model; None: gin/demo_fast.gin, or gin/continue.gin with `start`. `vocabulary` is a path or 'byte';
    None trains one on the texts. `options` are the fields of `Options`, and names of the gin file. It trains for five
    minutes unless `steps` or `minutes` says otherwise. The same call resumes the run. Raises InputError, one sentence.
    docs/python.md has a run.

    >>> pretrain(["A text."], steps=20, minutes=5)
    Traceback (most recent call last):
    limba.config.errors.InputError: Both steps and minutes are given; leave out one of them.
    """
    choices, names = _options(options, texts=texts, start=start, vocabulary=vocabulary)
    rows = Rows(texts, {"text": text})
    if like is None:
        like = FROM_SCRATCH if start is None else ON_FROM
    if start is None:
        directory = _directory(choices, "pretrain", rows, like, vocabulary, names)
    else:
        checkpoint = _path_of(start.source, start.step) if isinstance(start, TrainedModel) else os.fspath(start)
        directory = _directory(choices, "pretrain", rows, like, checkpoint, vocabulary, names)
        # The texts are written into the directory once it is known that the model can be trained.
        names = {"INITIAL_CHECKPOINT_PATH": checkpoint, "CORPUS": directory, **names}
    if vocabulary is not None:
        rows_of_bytes = {"VOCAB_SIZE": 384} if vocabulary == "byte" and start is None else {}
        names = {"VOCABULARY": vocabulary, **rows_of_bytes, **names}
    run = read_gin_run(like, {"MODEL_DIR": directory, **names})
    config = run.config
    if config.data.vocabulary is None:
        data = dataclasses.replace(config.data, new_vocabulary_size=config.model.vocab_size)
        config = dataclasses.replace(config, data=data)
    if choices.steps is None and choices.minutes is None and not names.keys() & {"TRAIN_STEPS", "NUM_EPOCHS"}:
        choices = dataclasses.replace(choices, minutes=5.0)
    return _trained(config, rows, choices, run.continued)


def finetune(
    model: TrainedModel | str | os.PathLike[str],
    pairs: object,
    *,
    inputs: str = "inputs",
    targets: str = "targets",
    like: str | os.PathLike[str] = ON_PAIRS,
    **options: object,
) -> TrainedModel:
    """Returns the model, fine-tuned to write the targets of pairs for their inputs.

    `model` is what `load` returns or takes. `pairs` are a list of (input, target) or of dictionaries, a DataFrame or a
    `datasets.Dataset`; `inputs` and `targets` name the columns. The lengths are the longest pair's, at most 512
    tokens. `like` is a gin file of a run on pairs, without a network; `options` are the fields of `Options`, and names
    of that file. Without `LEARNING_RATE` and `like` a run of fewer than 5,000 steps from scratch is fine-tuned at 0.02,
    other models at T5's 0.001. A share of the pairs is held out for validation, and the step with the lowest loss on
    it is returned. The same call resumes the run. Raises InputError, one sentence. docs/python.md has a run.

    >>> finetune("runs/demo", [("a small text", "A small text")], step=20)
    Traceback (most recent call last):
    limba.config.errors.InputError: There is no option 'step'; did you mean steps?
    """
    choices, names = _options(options, model=model, pairs=pairs)
    rows = Rows(pairs, {"inputs": inputs, "targets": targets})
    source = model.source if isinstance(model, TrainedModel) else sources.find(str(model))
    if source.model.is_encoder or not source.model.has_logits:
        raise InputError(
            f"{source.path} is an encoder, which writes no targets; export it, and fine-tune that folder with"
            " transformers or sentence-transformers, as the scripts of examples/ do."
        )
    opened = model.tokenizer if isinstance(model, TrainedModel) else sources.open_vocabulary(source)
    name, vocabulary, special = _vocabulary_of_run(source, opened)
    checkpoint = _path_of(source, model.step if isinstance(model, TrainedModel) else None)
    bindings: dict[str, object] = {
        "INITIAL_CHECKPOINT_PATH": checkpoint,
        "VOCABULARY": name.path,
        "EXTRA_IDS": name.extra_ids,
        "TASK_FEATURE_LENGTHS": _lengths(rows, vocabulary, source.model.is_decoder_only, special),
        "MODEL_DIR": _directory(choices, "finetune", rows, checkpoint, like, names),
    }
    if source.run is not None and source.run.data.prefix is not None:
        bindings["PREFIX"] = source.run.data.prefix
    if source.run is not None and _is_young(source.run) and like == ON_PAIRS:
        bindings["LEARNING_RATE"] = YOUNG_RATE
    if choices.steps is not None or choices.minutes is not None:
        bindings |= {"NUM_EPOCHS": None, "TRAIN_STEPS": choices.steps or 1}
    return _trained(read_gin(like, **(_network_of(source) | bindings | names)), rows, choices)


def _vocabulary_of_run(
    source: sources.Source, opened: tuple[sources.VocabularyName, Vocabulary] | None
) -> tuple[sources.VocabularyName, Vocabulary, SpecialIds]:
    """Returns the vocabulary with which a run reads pairs for a model: its name, the vocabulary itself and
    its special ids.

    `opened` is the one with which the model generates; InputError for None.
    """
    if opened is None:
        raise InputError(
            f"{source.path} has no vocabulary beside it; open it as limba.load({source.path!r}, vocabulary=…), with a"
            " path or 'byte', and give that."
        )
    name, vocabulary = opened
    special = sources.special_ids_of(source, vocabulary)
    if not special.has_t5_layout(source.model):
        # The folder's files name its ids, and the run reads their tokenizer as transformers does.
        if os.path.isfile(name.path):
            name = name._replace(path=os.path.dirname(name.path))
    elif source.kind == sources.HUGGING_FACE:
        with quiet_imports():
            from limba.data.vocabulary.load import NUM_SENTINELS, load_vocabulary
        # The run reads its text as a trainer does, not as transformers.
        vocabulary = load_vocabulary(name.path, NUM_SENTINELS if name.extra_ids is None else name.extra_ids)
    return name, vocabulary, special


def _network_of(source: sources.Source) -> dict[str, object]:
    """Returns a model's network as names of a gin file, without what a run chooses for itself."""
    fields = {}
    for field in dataclasses.fields(source.model):
        if field.name not in ("dropout_rate", "dtype"):
            fields[f"config.ModelConfig.{field.name}"] = getattr(source.model, field.name)
    return fields


def _options(arguments: Mapping[str, object], **others: object) -> tuple[Options, dict[str, object]]:
    """Returns the options, and the names of a gin file, which have capitals or a dot.

    `others` are the function's other arguments. Raises InputError for options that are unknown, wrong, or given twice.
    """
    names = {name: value for name, value in arguments.items() if name.isupper() or "." in name}
    known = [field.name for field in dataclasses.fields(Options)]
    for name in arguments.keys() - names.keys() - set(known):
        near = did_you_mean(name, known)
        near = near if near != "." else f"; choose from {', '.join(known)}."
        raise InputError(f"There is no option {name!r}{near}")
    chosen = {name: value for name, value in arguments.items() if name not in names}
    options = Options(**chosen)  # pyright: ignore[reportArgumentType]
    if options.steps is not None and options.minutes is not None:
        raise InputError("Both steps and minutes are given; leave out one of them.")
    _check_given_once({**vars(options), **others}, names)
    for name in ("steps", "minutes"):
        value = getattr(options, name)
        if value is not None and not (isinstance(value, int | float) and value > 0):
            raise InputError(f"{name} is {value!r}; give a number above 0.")
    for name in ("on_log", "on_evaluation"):
        if getattr(options, name) is not None and not callable(getattr(options, name)):
            raise InputError(f"{name} is {getattr(options, name)!r}; give a function of (step, figures).")
    return options, names


def _check_given_once(arguments: Mapping[str, object], names: Mapping[str, object]) -> None:
    """Raises InputError for a name of a gin file beside the argument that says the same."""
    for argument, same in OF_ARGUMENTS.items():
        if arguments.get(argument) is None:
            continue
        for name in same:
            if name in names:
                raise InputError(f"Both {argument} and {name} are given; leave out {name}.")


def _directory(options: Options, kind: str, rows: Rows, *choices: object) -> str:
    if options.model_dir is not None:
        return os.fspath(options.model_dir)
    digest = hashlib.blake2b(repr((rows.digest, *choices)).encode(), digest_size=4).hexdigest()
    return os.path.join("runs", f"{kind}-{digest}")


def _path_of(source: sources.Source, step: int | None) -> str:
    """Returns the checkpoint at which fine-tuning begins: the opened one, or what `load` would open."""
    if source.best is not None and step in (None, int(source.best.name)):
        return str(source.best)
    return str(source.steps[source.step_of(step)])


def _is_young(run: RunConfig) -> bool:
    """Returns whether a run was one of minutes, from scratch: few steps after another model do not make it young."""
    return run.initial_checkpoint_path is None and (run.train_steps or YOUNG_STEPS) < YOUNG_STEPS


def _lengths(rows: Rows, vocabulary: Vocabulary, is_decoder_only: bool, special: SpecialIds) -> dict[str, int]:
    """Returns the tokens of the longest input and target with the ids around them, as a multiple of 8.

    Each has an end. Before it stands the template, but a language model reads inputs and targets as one text, whose
    first id is the start of the row.
    """
    before = dict.fromkeys(LENGTHS, len(special.before))
    if is_decoder_only:
        before = {"inputs": max(0, len(special.before) - 1), "targets": 0}
    sizes = {}
    for name in LENGTHS:
        longest = max(len(vocabulary.encode(row[name])) for row in rows.rows)
        sizes[name] = before[name] + longest + 1
    lengths = {name: min(-(-size // 8) * 8, LENGTHS[name]) for name, size in sizes.items()}
    return {"targets": sum(lengths.values()), "prefix": lengths["inputs"]} if is_decoder_only else lengths


def _trained(config: RunConfig, rows: Rows, options: Options, start: Continued | None = None) -> TrainedModel:
    file = rows.write(config.model_dir)
    column = "text" if rows.what == "texts" else {"inputs": "inputs", "targets": "targets"}
    data = dataclasses.replace(config.data, data_files=file, column=column)
    if len(rows.rows) < LEAST_ROWS * data.num_shards:
        data = dataclasses.replace(data, num_data_shards=1)
    config = dataclasses.replace(config, data=data)
    with quiet_imports():
        from limba.data.tasks import source_of_files
    held_out = source_of_files(file, column, data.validation_percent).count(data.validation_split)
    num_held_out = held_out.total if held_out else 0
    if not num_held_out:
        checkpoint = dataclasses.replace(config.checkpoint, best_metric=None)
        evaluation = dataclasses.replace(config.evaluation, patience=None, num_examples=0)
        config = dataclasses.replace(config, checkpoint=checkpoint, evaluation=evaluation)
    if options.steps is not None:
        config = dataclasses.replace(config, train_steps=options.steps)
    elif options.minutes is not None:
        config = dataclasses.replace(config, train_steps=_steps_in(config, options.minutes))
    if jax.process_index() == 0:
        count = f"{len(rows.rows):,} {rows.what}, of which {num_held_out:,} are held out for validation"
        print(f"{count}, in {file}", flush=True)
        for line in () if start is None else continued.lines(start, config):
            print(line, flush=True)
    _train(config, options.on_log, options.on_evaluation)
    return load(config.model_dir, imports=config.data.task_modules)


def _train(config: RunConfig, *callbacks: Callback | None) -> None:
    from limba.run import train

    train(config, callbacks=Callbacks(*callbacks))


def _steps_in(config: RunConfig, minutes: float) -> int:
    """Returns the steps that fit: an existing run's, or by the time of a few steps that are thrown away."""
    file = epath.Path(config.model_dir) / saved_config.FILE
    if file.exists():
        run = saved_config.from_text(read_text(file), str(file))
        if isinstance(run, RunConfig) and run.train_steps:
            return run.train_steps
    begun = time.monotonic()
    times = []
    seen = []

    def measure(step: int, figures: dict[str, float]) -> bool:
        times.append(figures["seconds_per_step"])
        seen.append(time.monotonic())
        return seen[-1] < seen[0] + PROBE_SECONDS

    schedule = config.optimizer.schedule.in_steps(1_000)  # no rate 'auto' for the steps of the probe
    probe = dataclasses.replace(
        config,
        optimizer=dataclasses.replace(config.optimizer, schedule=schedule),
        train_steps=PROBE_STEPS,
        model_dir=f"{config.model_dir}/probe",
        log_every_steps=5,
        # It ends by time alone, and nothing of it is kept, shown or published.
        data=dataclasses.replace(config.data, num_epochs=None),
        evaluation=dataclasses.replace(config.evaluation, every_steps=PROBE_STEPS, patience=None),
        checkpoint=dataclasses.replace(config.checkpoint, every_steps=PROBE_STEPS, best_metric=None),
        report_to="none",
        export_to=None,
        hub_model_id=None,
    )
    _train(probe, measure)
    steps = 0
    if jax.process_index() == 0:
        remove_folder(epath.Path(probe.model_dir))
        if seen[-1] < seen[0] + PROBE_SECONDS:  # a signal has ended it
            raise KeyboardInterrupt
        left = max(60 * minutes - 2 * (time.monotonic() - begun), 15 * minutes)
        steps = max(1, int(left * USED / min(times[1:] or times)))
        print(f"{steps:,} steps fit in {minutes:g} minutes.", flush=True)
    return int(of_first(str(steps)))


class _Table(Protocol):
    def __getitem__(self, name: str) -> Iterable[object]: ...


class Rows:
    """Rows of one or two texts, from a list, a pandas DataFrame, or a `datasets.Dataset`.

    `columns` are the names that the rows have in the file, each with the column that it is read from. A list holds
    texts for one column, pairs or dictionaries for two. Raises InputError, one sentence, for anything else.

    >>> Rows([("un", "one"), ("doi", "two")], {"inputs": "inputs", "targets": "targets"}).rows[1]
    {'inputs': 'doi', 'targets': 'two'}
    """

    def __init__(self, rows: object, columns: Mapping[str, str]):
        self.what = "texts" if len(columns) == 1 else "pairs"
        items, names = _items(rows, self.what, list(columns.values()))
        self.rows = [dict(zip(columns, self._row(n, item, names), strict=True)) for n, item in enumerate(items)]
        if not self.rows:
            raise InputError(f"There are no {self.what}; give some thousands.")
        if not any(text.strip() for row in self.rows for text in row.values()):
            raise InputError(f"All {len(self.rows):,} {self.what} are empty; give some with letters.")
        texts = [row["text"] for row in self.rows] if self.what == "texts" else []
        if texts and not any(" " in text or len(text) > SHORT for text in texts):
            raise InputError(
                f"The texts are single words, such as {texts[0]!r}, and a model learns from their context; give whole"
                " sentences or documents, each one text of the list."
            )
        lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in self.rows)
        self.content = lines.encode("utf-8", "replace")  # lone surrogates cannot be encoded
        self.digest = hashlib.blake2b(self.content, digest_size=8).hexdigest()

    def _row(self, number: int, item: object, names: Sequence[str]) -> Sequence[str]:
        if isinstance(item, Mapping):
            if missing := [name for name in names if name not in item]:
                raise InputError(_without(f"Row {number} of the {self.what}", missing[0], list(map(str, item))))
            item = [item[name] for name in names]
        texts = [item] if self.what == "texts" and not isinstance(item, list) else item
        whole_texts = [text for text in texts if isinstance(text, str)] if isinstance(texts, list | tuple) else []
        if not isinstance(texts, list | tuple) or not len(whole_texts) == len(texts) == len(names):
            wanted = "a text" if self.what == "texts" else "two texts, (input, target), or a dictionary of them"
            raise InputError(f"Row {number} of the {self.what} is {item!r:.80}; give {wanted}.")
        return whole_texts

    def write(self, directory: str) -> str:
        """Writes the rows into a run's directory, once; returns the file's path, whose name holds their checksum.

        Raises InputError for the directory of a run on other texts.
        """
        folder = epath.Path(directory)
        name = f"{self.what}-{self.digest}.jsonl"
        others = [file.name for file in matching(folder, "*-" + "[0-9a-f]" * 16 + ".jsonl")]
        if others and name not in others:
            raise InputError(
                f"{directory} holds a run on other {self.what}, {others[0]}; give another model_dir, or the same"
                f" {self.what} to resume it."
            )
        if not others:
            folder.mkdir(parents=True, exist_ok=True)
            write_whole(folder / name, self.content)
        return str(folder / name)


def _items(rows: object, what: str, names: list[str]) -> tuple[Iterable[object], list[str]]:
    """Returns the rows of what is given, and the names of their columns."""
    columns = getattr(rows, "column_names", getattr(rows, "columns", None))
    if isinstance(rows, str | bytes | Mapping) or not isinstance(rows, Iterable) or isinstance(columns, Mapping):
        of_files = "" if not isinstance(rows, str) else "; limba.train reads files"
        wanted = "a DataFrame or a split of a datasets.DatasetDict" if isinstance(rows, Mapping) else "a DataFrame"
        raise InputError(f"The {what} are a {type(rows).__name__}; give a list of {what}, or {wanted}{of_files}.")
    if columns is None:
        return rows, names
    table = cast("_Table", rows)
    for name in names:
        if name not in columns:
            raise InputError(_without(f"The {type(rows).__name__}", name, list(map(str, columns))))
    values = [list(table[name]) for name in names]
    return (values[0] if len(values) == 1 else zip(*values, strict=True)), names


def _without(what: str, name: str, columns: list[str]) -> str:
    argument = "text" if name == "text" else "inputs or targets"
    near = did_you_mean(name, columns)
    known = f"it has {', '.join(columns) or 'none'}: name one as {argument}"
    return f"{what} has no column {name!r}; {known}{near if near != '.' else '.'}"
