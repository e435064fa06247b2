"""Counts how many of the public runs of T5X in a folder Limba converts, and compares each with the original.

    python -m tests.cli.t5x_public FOLDER --t5x=CLONE

FOLDER holds clones of repositories, one a folder, and CLONE is one of google-research/t5x. A run is a gin file that
names a script and T5X's own network. The originals are read by `t5x_originals`, which shares nothing with Limba, and
with T5X's own files from CLONE; Limba reads them with its tables. What a file leaves to the command line gets the
values of FILLED on both sides.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from limba.cli.gin.read import run_of
from limba.cli.gin.statements import Source, read_with_includes
from limba.config import InputError, RunConfig
from limba.tools.migrate.t5x import tables
from limba.tools.migrate.t5x.translate import translate
from tests.cli.t5x_originals import Original, original

FILLED = {
    "MODEL_DIR": "/m", "TRAIN_STEPS": 2000, "MIXTURE_OR_TASK_NAME": "task", "DROPOUT_RATE": 0.0,
    "TASK_FEATURE_LENGTHS": {"inputs": 512, "targets": 512}, "INITIAL_CHECKPOINT_PATH": "/c", "CHECKPOINT_PATH": "/c",
    "EVAL_OUTPUT_DIR": "/e", "INFER_OUTPUT_DIR": "/i", "TRAIN_EVAL_MIXTURE_OR_TASK_NAME": "task",
}  # fmt: skip
NEVER = 10**9


class Result(NamedTuple):
    """What became of one run: `error` is Limba's sentence, `differs` the facts that are not the original's."""

    repository: str
    path: str
    original: Original
    error: str = ""
    differs: Mapping[str, tuple[Any, Any]] = {}


def runs(folder: Path, t5x: Path) -> Iterator[tuple[Path, Path]]:
    """Yields (clone, gin file) of each run of T5X's networks; files that are T5X's own are left out of forks."""
    for clone in sorted(path for path in folder.iterdir() if path.is_dir()):
        for file in sorted(clone.rglob("*.gin")):
            if clone != t5x and (t5x / file.relative_to(clone)).exists():
                continue
            run = original([str(file)], [file.parent, clone, t5x])
            if run.script and run.is_of_t5x:
                yield clone, file


def filled(run: Original) -> dict[str, Any]:
    """Returns the macros that the command line must give, with values."""
    names = run.required() | {"INITIAL_CHECKPOINT_PATH"} & {name for name in FILLED if run.macro(name) == ""}
    return {name: FILLED.get(name, 1000) for name in sorted(names)}


def converted(files: Sequence[str], values: Mapping[str, Any], folders: Sequence[Path]) -> RunConfig:
    """Returns the run that the printed file of `limba convert --gin` is, without its task modules."""
    printed = translate(files, [f"{name}={value!r}" for name, value in values.items()], folders)
    printed.check()
    source = Source()
    read_with_includes(source, printed.whole_text(), "the printed file")
    return run_of(source).config


def ours(config: RunConfig, script: str) -> dict[str, Any]:
    """Returns the facts of `Original.facts` as Limba's configuration has them."""
    model = config.model
    data = config.data
    optimizer = config.optimizer
    schedule = optimizer.schedule
    facts: dict[str, Any] = {
        "sizes": [model.emb_dim, model.num_heads, model.head_dim, model.mlp_dim],
        "layers": [model.num_encoder_layers, model.num_decoder_layers],
        "vocab_size": model.vocab_size,
        "activations": ["swish" if name == "silu" else name for name in model.mlp_activations],
        "tied": model.logits_via_embedding,
        "dtype": model.dtype,
        "task": data.mixture_or_task_name,
        "lengths": dict(data.task_feature_lengths),
        "batch": data.batch_size,
        "split": data.train_split if script == "train" else data.validation_split,
        "z_loss": config.loss.z_loss,
        "smoothing": config.loss.label_smoothing,
        "loss": config.loss.normalize_by,
        "mesh": config.mesh.model,
        "vocabulary": [data.vocabulary, data.extra_ids],
        "start": config.initial_checkpoint_path,
    }
    if model.is_decoder_only:
        facts["prefix"] = model.prefix_attention == "full"
    if script != "train":
        return facts
    adafactor = {
        "factors": schedule.factors.split(" * "),
        "rate": schedule.base_learning_rate,
        "warmup": schedule.warmup_steps,
        "decay": getattr(optimizer, "decay_rate", None),
        "offset": optimizer.step_offset,
    }
    return facts | {
        "steps": config.train_steps,
        "dropout": model.dropout_rate,
        "pack": data.pack,
        "shuffle": data.shuffle,
        "microbatches": config.num_microbatches,
        "saved": None if config.checkpoint.every_steps == NEVER else config.checkpoint.every_steps,
        "optimizer": {"adafactor": "Adafactor"}.get(optimizer.name, optimizer.name),
        **(adafactor if optimizer.name == "adafactor" else {}),
    }


def expected(run: Original) -> dict[str, Any]:
    """Returns the original's facts in the form in which Limba has them."""
    facts = run.facts()
    lengths = facts["lengths"]
    if lengths is None:  # T5X measures the data
        lengths = {"targets": 1024} if "prefix" in facts else {"inputs": 512, "targets": 512}
    elif "prefix" in facts:  # a decoder-only model: inputs and targets are one row
        lengths = {"targets": sum(lengths.values()), "prefix": lengths.get("inputs", 0)}
    normalizers = {
        "NUM_REAL_TARGET_TOKENS": "tokens", "NUM_TOTAL_TARGET_TOKENS": "all_tokens", "AVERAGE_PER_SEQUENCE": "sequences"
    }  # fmt: skip
    loss = facts["loss"]
    kind, file, extra_ids = facts["vocabulary"]
    has_own = kind == "SentencePieceVocabulary" and not file.startswith("gs://t5-data/vocabs/")
    facts |= {
        "lengths": lengths,
        "loss": normalizers.get(loss.upper(), loss) if isinstance(loss, str) else loss,
        # The task's own vocabulary counts, as in T5X, unless the files name one of the user's.
        "vocabulary": [file, extra_ids or 0] if has_own else None,
        "mesh": facts["mesh"] or 1,
    }
    return facts


def compared(files: Sequence[str], folders: Sequence[Path], t5x: Sequence[Path]) -> tuple[Original, Any]:
    """Returns the original, and what Limba's run has otherwise: {fact: (original's, ours)}; raises InputError."""
    run = original(files, [*folders, *t5x])
    values = filled(run)
    for name, value in values.items():
        run.set(name, value)
    config = converted(files, values, folders)
    wanted = expected(run)
    has = ours(config, run.script)
    if wanted["vocabulary"] is None:
        wanted.pop("vocabulary")
    return run, {name: (value, has.get(name)) for name, value in wanted.items() if has.get(name) != value}


def results(folder: Path, t5x: Path) -> Iterator[Result]:
    """Yields what became of each run in the clones of `folder`."""
    for clone, file in runs(folder, t5x):
        names = (clone.name, str(file.relative_to(clone)))
        folders = [file.parent, clone]
        try:
            run, differs = compared([str(file)], folders, [t5x])
            yield Result(*names, run, "", differs)
        except InputError as error:
            yield Result(*names, original([str(file)], [*folders, t5x]), str(error).replace(f"{clone}/", ""))


def write_tables(folder: Path) -> None:
    """Writes T5X's own files as gin, as Limba's tables have them."""
    for path in tables.PATHS:
        includes, table = tables.include_file(path) or ((), {})
        lines = [
            *(f"include '{include}'" for include in includes),
            *(f"{name} = {value}" for name, value in table.items()),
        ]
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text("\n".join([*lines, ""]))


def wrong_tables(t5x: Path) -> Iterator[str]:
    """Yields a line for each of T5X's files whose facts are others in Limba's tables."""
    with tempfile.TemporaryDirectory() as folder:
        write_tables(Path(folder))
        for path in (path for path in tables.PATHS if (t5x / path).exists()):
            files = ["t5x/examples/t5/t5_1_1/base.gin", "t5x/configs/runs/pretrain.gin", path]
            files = files[2:] if "/examples/" in path.removeprefix("t5x/examples/") else files
            files = [files[0], path] if "t5x/configs/" in path else files
            theirs, written = (filled_facts(files, source) for source in (t5x, Path(folder)))
            if differs := {name: (value, written[name]) for name, value in theirs.items() if written[name] != value}:
                yield f"{path}: {differs}"


def filled_facts(files: Sequence[str], t5x: Path) -> dict[str, Any]:
    """Returns the facts of T5X's own files, with the values that the command line must give."""
    return original(files, [t5x], filled(original(files, [t5x]))).facts()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--t5x", type=Path, required=True, help="a clone of google-research/t5x")
    args = parser.parse_args()
    all_results = list(results(args.folder.resolve(), args.t5x.resolve()))
    for repository in dict.fromkeys(result.repository for result in all_results):
        of_repository = [result for result in all_results if result.repository == repository]
        same = [result for result in of_repository if not result.error and not result.differs]
        print(f"{repository}: {len(same)} of {len(of_repository)} convert with the original's values")
        for result in of_repository:
            if result.error or result.differs:
                print(f"    {result.path}: {result.error or dict(result.differs)}")
    for line in wrong_tables(args.t5x.resolve()):
        print(f"Limba's table is another: {line}")
    converts = sum(not result.error and not result.differs for result in all_results)
    print(f"{converts} of {len(all_results)} runs convert with the original's values")


if __name__ == "__main__":
    main()
