"""Checkpoints to Hugging Face's folders and back: `python -m convert.huggingface export|import --help`."""

from __future__ import annotations

import dataclasses
import importlib
import json
import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from limba.cli.data import task_flags
from limba.config import InputError, environment

EXPORT = """Turns checkpoints of ours or T5X's into folders for transformers, and proves that they give the same.

    python -m convert.huggingface export MODEL_DIR [OUT_DIR] [--steps=all] [--dtype=bfloat16]
    python -m convert.huggingface export MODEL_DIR --push=user/name --dry-run

OUT_DIR (MODEL_DIR/huggingface unless given) gets one folder step_<N> per checkpoint. What is done is left as it
is; a folder whose proof failed is named step_<N>.failed."""
IMPORT = """Makes a checkpoint of ours, at step 0, from a folder of transformers' or a model of the hub's.

    python -m convert.huggingface import DIR OUT
    python -m convert.huggingface import user/name[@revision] OUT

Read are model.safetensors, flax_model.msgpack and, where torch is installed, pytorch_model.bin. A private model
needs HF_TOKEN. OUT is for INITIAL_CHECKPOINT_PATH, which also takes the first two forms, and hub ids, directly."""
USAGE = "usage: python -m convert.huggingface export|import ...; --help behind either says more."
FORMATS = ("pytorch", "flax")
RECORD = "conversion.json"  # in a finished folder: what it was made from, and what the proof found
_ENTRY = re.compile(r"step_\d+(\.writing|\.failed)?")


@dataclass(frozen=True)
class Choices:
    """What the flags of `export` ask for."""

    formats: tuple[str, ...]
    dtype: str
    vocabulary: str | None  # a SentencePiece model's path, 'byte', 'none', or None: the run's own
    extra_ids: int
    checks: bool
    licence: str | None = None
    hardware: str | None = None
    acknowledge_trc: bool = False


def _parser(command: str, about: str) -> task_flags.Parser:
    parser = task_flags.Parser("", about)
    parser.prog = f"python -m convert.huggingface {command}"
    return parser


def _export(argv: Sequence[str]) -> None:
    parser = _parser("export", EXPORT)
    parser.add_argument("model_dir", metavar="MODEL_DIR", help="a run directory, or one checkpoint, of ours or T5X's")
    parser.add_argument("out_dir", metavar="OUT_DIR", nargs="?")
    parser.add_argument("--steps", default="latest", help="latest, all, or numbers such as 1000,2000")
    parser.add_argument("--formats", default="pytorch,flax", help="pytorch, flax or both, with a comma")
    parser.add_argument("--dtype", default="float32", help="float32 or bfloat16")
    parser.add_argument(
        "--config", metavar="FILE.gin", help="the network, instead of the run's own config.gin; name --vocabulary too"
    )
    parser.add_argument("--vocabulary", help="a SentencePiece model, or byte, instead of the run's own, or none")
    parser.add_argument("--extra_ids", type=int, default=100, help="sentinels above the pieces of --vocabulary")
    parser.add_argument("--no-check", action="store_true", help="write without the proof")
    parser.add_argument("--licence", help="for the model card, as the hub names it: apache-2.0")
    parser.add_argument("--hardware", help="for the model card: what it was trained on")
    parser.add_argument("--trc", action="store_true", help="thank the TPU Research Cloud in the model card")
    parser.add_argument("--push", metavar="USER/NAME", help="upload to the hub; the token is HF_TOKEN's")
    parser.add_argument("--dry-run", action="store_true", help="with --push: show what would be uploaded")
    given = parser.parse_args(argv)
    formats = tuple(part.strip() for part in given.formats.split(","))
    if not set(formats) <= set(FORMATS):
        raise InputError(f"--formats is {given.formats}; give pytorch, flax, or pytorch,flax.")
    if given.dtype not in ("float32", "bfloat16"):
        raise InputError(f"--dtype is {given.dtype}; give float32 or bfloat16.")
    if given.dry_run and not given.push:
        raise InputError("--dry-run shows what --push would upload; add --push=user/name.")
    from limba.export import push

    if given.push:
        push.check_target(given.push, given.dry_run)
    with environment.quiet_imports():
        from limba.cli.use import sources

        source = sources.open_source(given.model_dir, given.config)
    if given.out_dir is None and "://" in str(source.directory):
        raise InputError(f"{given.model_dir} is a bucket's; name a local OUT_DIR behind it.")
    out = Path(given.out_dir or f"{source.directory}/huggingface").expanduser().resolve()
    choices = Choices(
        formats, given.dtype, given.vocabulary, given.extra_ids, not given.no_check,
        given.licence, given.hardware, given.trc,
    )  # fmt: skip
    folders = export(source, out, chosen_steps(given.steps, source.steps), choices)
    if given.push:
        push.push(given.push, folders, given.dry_run)


def chosen_steps(text: str, there: Any) -> list[int]:
    """Returns the steps that --steps names, in order; ConfigError for one that is not there."""
    if text in ("latest", "all"):
        return sorted(there)[-1:] if text == "latest" else sorted(there)
    if not re.fullmatch(r"\d+(,\d+)*", text):
        raise InputError(f"--steps is {text}; give latest, all, or numbers such as 1000,2000.")
    chosen = sorted({int(part) for part in text.split(",")})
    absent = [step for step in chosen if step not in there]
    if absent:
        raise InputError(f"There is no checkpoint at step {absent[0]}; choose from {sorted(there)}.")
    return chosen


def export(source: Any, out: Path, steps: Sequence[int], choices: Choices) -> dict[int, Path]:
    """Writes and proves a folder per step, in order; returns them. ConfigError where one fails."""
    if out.exists() and not out.is_dir():
        raise InputError(f"{out} is a file; name a directory for the folders.")
    other = [entry.name for entry in sorted(out.iterdir()) if not _ENTRY.fullmatch(entry.name)] if out.exists() else []
    if other:
        raise InputError(f"{out} holds {other[0]}, which is no conversion's; name an empty or new OUT_DIR.")
    if source.model.is_decoder_only and "flax" in choices.formats:
        print("transformers has a Llama and a GPT-2 for PyTorch alone: no flax_model.msgpack is written.", flush=True)
        choices = dataclasses.replace(choices, formats=("pytorch",))
    folders = {step: out / f"step_{step}" for step in steps}
    wanted = [step for step in steps if not _is_done(folders[step], source.directory.name, choices)]
    for step in steps:
        if step not in wanted:
            print(f"step {step:,}: done before, {folders[step]}", flush=True)
    if not wanted:
        return folders
    tokenizer = vocabulary_of(source, choices)
    for step in wanted:
        _convert(source, step, folders[step], choices, tokenizer)
    return folders


def _is_done(folder: Path, name: str, choices: Choices) -> bool:
    try:
        record = json.loads((folder / RECORD).read_text())
    except (OSError, ValueError):
        return False
    if record["source"] != name:
        raise InputError(f"{folder} was made from another run, {record['source']}; name another OUT_DIR.")
    same = record["dtype"] == choices.dtype and set(record["formats"]) >= set(choices.formats)
    return same and (record["checked"] or not choices.checks)


def vocabulary_of(source: Any, choices: Choices) -> tuple[str, int, Any] | None:
    """Returns (path or 'byte', sentinels, seqio's vocabulary) of the flags or the run; None where none is known."""
    with environment.quiet_imports():
        from limba.data.tasks import resolve_task
        from limba.data.vocabulary import load as vocabularies
    if choices.vocabulary == "none":
        print("No tokenizer files are written, as --vocabulary=none asks.", flush=True)
        return None
    if choices.vocabulary is not None:
        path, extra_ids = choices.vocabulary, choices.extra_ids
        loaded = vocabularies.load_vocabulary(path, extra_ids)
    elif source.vocabulary is not None:
        path, extra_ids = source.vocabulary.path, source.vocabulary.extra_ids or choices.extra_ids
        try:
            loaded = vocabularies.load_vocabulary(path, extra_ids)
        except InputError as error:
            reason = str(error).partition(";")[0]
            raise InputError(
                f"{source.vocabulary.place} names a vocabulary that cannot be read here ({reason}); name a copy with"
                " --vocabulary=PATH, or leave the tokenizer out with --vocabulary=none."
            ) from error
    elif source.run is not None and source.run.data.vocabulary is not None:
        path, extra_ids = source.run.data.vocabulary, source.run.data.extra_ids
        loaded = vocabularies.load_vocabulary(path, extra_ids)
    elif source.run is not None:
        for module in source.modules:
            importlib.import_module(module)
        loaded = resolve_task(source.run.data).output_features["targets"].vocabulary
        path = getattr(loaded, "sentencepiece_model_file", getattr(loaded, "path", "byte"))
        extra_ids = loaded.extra_ids
    else:
        print("No vocabulary is known: no tokenizer files are written. --vocabulary=PATH|byte names one.", flush=True)
        return None
    vocabularies.check_vocabulary(loaded, source.model.vocab_size, needs_sentinels=False)
    return path, extra_ids, loaded


def _convert(source: Any, step: int, final: Path, choices: Choices, tokenizer: tuple[str, int, Any] | None) -> None:
    """Writes one folder beside its name, proves it, and then gives it its name, or one that says `failed`."""
    from limba.export import card
    from limba.formats import huggingface_files as files

    writing, failed = (final.with_name(final.name + end) for end in (".writing", ".failed"))
    for old in (writing, failed):
        shutil.rmtree(old, ignore_errors=True)
    arrays = source.arrays(step)
    files.config_json(source.model)  # refuses before anything is written
    writing.mkdir(parents=True)
    eos_id = 1 if tokenizer is None else int(tokenizer[2].eos_id)
    files.write_configs(writing, source.model, choices.dtype, eos_id)
    if "pytorch" in choices.formats:
        files.write_pytorch(writing, arrays, source.model, choices.dtype)
    if "flax" in choices.formats:
        files.write_flax(writing, arrays, source.model, choices.dtype)
    if tokenizer is not None:
        files.write_tokenizer(writing, *tokenizer[:2], starts=source.model.is_decoder_only)
    passed, findings = prove(writing, arrays, source.model, choices, tokenizer and tokenizer[2])
    card.write_card(
        writing, source, step, choices.formats, choices.dtype, findings,
        choices.licence, choices.hardware, choices.acknowledge_trc,
    )  # fmt: skip
    for line in findings:
        print(f"step {step:,}: {line}", flush=True)
    if not passed:
        writing.rename(failed)
        raise InputError(
            f"What was written for step {step} does not give the source's numbers; it is {failed}, not to be used:"
            " convert again, and check the disk if it fails again."
        )
    record = {"step": step, "source": source.directory.name, "kind": source.kind, "dtype": choices.dtype}
    record |= {"formats": choices.formats, "checked": choices.checks, "findings": findings}
    (writing / RECORD).write_text(json.dumps(record, indent=2) + "\n")
    if final.exists():
        shutil.rmtree(final)  # made with other choices
    writing.rename(final)
    print(f"step {step:,}: {final}", flush=True)


def prove(folder: Path, arrays: Any, model: Any, choices: Choices, vocabulary: Any) -> tuple[bool, list[str]]:
    """Returns whether a written folder gives the source's numbers, and what was found, a sentence each."""
    if not choices.checks:
        return True, ["NOT CHECKED: written with --no-check, nothing shows that it gives the source's numbers"]
    from limba.export import proof as check

    check.quiet_libraries()
    if model.is_decoder_only:
        from limba.export.proof_lm import LanguageModelProof as Proof
    else:
        Proof = check.Proof
    proof = Proof(arrays, model, vocabulary)
    figures = [proof.check_own(folder, choices.dtype, kind == "flax") for kind in choices.formats]
    findings = [] if vocabulary is not None else ["no vocabulary is known: compared on random ids"]
    if "pytorch" in choices.formats and check.has_transformers():
        figures.append(proof.check_transformers(folder, choices.dtype))
    elif "pytorch" in choices.formats:
        findings.append("torch and transformers are not installed: compared by our own reader of the files alone")
    return all(each.passed for each in figures), [*map(str, figures), *findings]


def _import(argv: Sequence[str]) -> None:
    parser = _parser("import", IMPORT)
    parser.add_argument("source", metavar="DIR|user/name", help="a folder of transformers', or a model of the hub's")
    parser.add_argument("out", metavar="OUT", help="a new run directory; its checkpoint is OUT/checkpoints/0")
    given = parser.parse_args(argv)
    with environment.quiet_imports():
        from limba.export.from_huggingface import import_folder
    print(import_folder(given.source, Path(given.out).expanduser().resolve()))


def run(argv: Sequence[str]) -> None:
    """Exports or imports, as the first argument says; ConfigError for what cannot be."""
    commands = {"export": _export, "import": _import}
    if not argv or argv[0] in ("-h", "--help"):
        print(USAGE)
    elif argv[0] in commands:
        commands[argv[0]](argv[1:])
    else:
        raise InputError(f"The command {argv[0]} is not known; give export or import.")
