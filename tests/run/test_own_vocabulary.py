"""A run keeps the tokenizer that its task names, so that the hub may be gone and the directory may move."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import seqio
from etils import epath

from limba.config import DataConfig, InputError
from limba.data.tasks import addresses_of, copies_of, resolve_task
from limba.data.vocabulary import TokenizersVocabulary, files
from limba.data.vocabulary.addresses import address_of, content_name, of_run
from limba.data.vocabulary.tokenizer_json import tokenizer_json
from tests.hub_server import hub

ROOT = Path(__file__).parents[2]
SIZES = {
    "emb_dim": 32, "mlp_dim": 64, "num_heads": 2, "head_dim": 16, "num_encoder_layers": 1, "num_decoder_layers": 1
}  # fmt: skip
SET = [
    *(f"config.ModelConfig.{name}={size}" for name, size in SIZES.items()),
    *("VOCAB_SIZE=1024", "MAX_TOKENS=4", "NUM_EXAMPLES=4", "BATCH_SIZE=8", "NUM_EPOCHS=None", "LOG_PERIOD=1"),
    *("INITIAL_CHECKPOINT_PATH=None", "COLUMN={'inputs': 'en', 'targets': 'ms'}", "CHECKPOINT_PERIOD=2"),
    *("TASK_FEATURE_LENGTHS={'inputs': 32, 'targets': 32}", "EVAL_PERIOD=100"),
]


def limba(environment: dict[str, str], *command: str) -> subprocess.CompletedProcess[str]:
    cleared = {name: value for name, value in os.environ.items() if name not in ("XLA_FLAGS", "HF_TOKEN")}
    return subprocess.run(
        [sys.executable, "-m", "limba", *command],
        cwd=ROOT, env={**cleared, **environment}, text=True, capture_output=True, timeout=600, check=False,
    )  # fmt: skip


@pytest.mark.night
def test_a_run_of_the_hubs_tokenizer_is_used_without_the_hub(vocabulary: Path, tmp_path: Path) -> None:
    """gin/en_ms_published.gin, whose task's tokenizer is hf://…; each command is a process of its own."""
    folder = tmp_path / "served" / "mesolitica" / "nanot5-base-malaysian-cased" / "main"
    folder.mkdir(parents=True)
    (folder / "tokenizer.json").write_text(tokenizer_json(str(vocabulary)))
    corpus = {split: str(tmp_path / f"{split}.jsonl") for split in ("train", "validation")}
    for path in corpus.values():
        pairs = [{"en": f"the house is {n}", "ms": f"rumah itu {n}"} for n in range(64)]
        Path(path).write_text("".join(json.dumps(pair) + "\n" for pair in pairs))
    chosen = [f"--gin.{value}" for value in (*SET, f"CORPUS={corpus}")]
    train = ["train", "gin/en_ms_published.gin", f"--gin.MODEL_DIR={tmp_path}/run", *chosen]
    with hub(tmp_path / "served") as (_, environment):
        trained = limba(environment, *train, "--gin.TRAIN_STEPS=2")
    assert trained.returncode == 0, trained.stderr[-3000:]
    (copy,) = (tmp_path / "run").glob("vocabulary-*")
    assert copy.read_bytes() == (folder / "tokenizer.json").read_bytes() and copy.suffix == ".json"

    # The hub does not answer any more, and nothing is in its cache.
    environment["HF_HOME"] = str(tmp_path / "empty")
    readers = "--gin.config.DataConfig.num_reader_processes=2"
    resumed = limba(environment, *train, readers, "--gin.TRAIN_STEPS=4")
    assert resumed.returncode == 0, resumed.stderr[-3000:]
    assert "The run's own copy in" in resumed.stderr + resumed.stdout
    moved = shutil.move(tmp_path / "run", tmp_path / "elsewhere")
    (tmp_path / "pairs.jsonl").write_text(json.dumps({"inputs": "the house", "targets": "rumah"}) + "\n")
    commands = {
        "generate": ("generate", str(moved), "--prompt=the house is 1"),
        "evaluate": ("evaluate", str(moved), "--num_examples=4"),
        "score": (
            "generate",
            str(moved),
            "--score",
            f"--input={tmp_path}/pairs.jsonl",
            f"--output={tmp_path}/scored.jsonl",
        ),
        "convert": ("convert", str(moved), str(tmp_path / "out")),
    }
    for name, command in commands.items():
        ended = limba(environment, *command)
        assert ended.returncode == 0, (name, ended.stdout[-2000:], ended.stderr[-3000:])
    assert list((tmp_path / "out").rglob("tokenizer.json"))

    # The run's copy is lost: one sentence.
    next(Path(moved).glob("vocabulary-*")).unlink()
    for offline in ("0", "1"):
        ended = limba({**environment, "HF_HUB_OFFLINE": offline}, *commands["generate"])
        said = [line for line in (ended.stdout + ended.stderr).splitlines() if line.strip()]
        assert ended.returncode == 2 and len(said) == 1, (offline, said)
        assert "tokenizer.json cannot be read (" in said[0] and "Traceback" not in said[0]


def test_each_vocabulary_of_a_task_is_kept(vocabulary: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model for the inputs, a tokenizer.json for the targets; seqio's own class, at relative paths."""
    monkeypatch.chdir(tmp_path)
    shutil.copy(vocabulary, "in.model")
    Path("out.json").write_text(tokenizer_json(str(vocabulary)))
    of_sides = {"inputs": seqio.SentencePieceVocabulary("in.model", 50), "targets": TokenizersVocabulary("out.json")}
    source = seqio.TextLineDataSource({"train": str(tmp_path / "a.txt")})
    task = seqio.Task(
        "kept", source, {name: seqio.Feature(kept, required=False) for name, kept in of_sides.items()}, []
    )
    monkeypatch.setitem(seqio.TaskRegistry._REGISTRY, "kept", task)
    names = [content_name(kept) for kept in of_sides.values()]
    config = DataConfig("kept", {"inputs": 16, "targets": 16}, 8)
    run = tmp_path / "run"
    run.mkdir()
    files.keep(addresses_of(task), str(run))
    assert (
        sorted(files.copies_in(epath.Path(run))) == sorted(path.name for path in run.iterdir())
        and len(list(run.iterdir())) == 2
    )
    times = {path: path.stat().st_mtime_ns for path in run.iterdir()}
    files.keep(addresses_of(task), str(run))  # nothing has changed: nothing is written
    assert times == {path: path.stat().st_mtime_ns for path in run.iterdir()}
    for path in ("in.model", "out.json"):
        Path(path).unlink()
    moved = shutil.move(run, tmp_path / "moved")
    resolved = resolve_task(config, str(moved))
    loaded = [resolved.output_features[side].vocabulary for side in of_sides]
    assert [content_name(kept) for kept in loaded] == names
    assert loaded[0].extra_ids == 50 and copies_of(resolved) == str(moved)
    data_config = DataConfig("kept", {"inputs": 16, "targets": 16}, 8, vocabulary="in.model", extra_ids=50)
    features = resolve_task(data_config, str(moved)).output_features.values()
    assert {content_name(feature.vocabulary) for feature in features} == {names[0]}
    with pytest.raises(InputError, match="in.model does not exist"):
        resolve_task(data_config)


def test_what_lies_in_the_directory_or_is_bytes_has_no_copy(vocabulary: Path, tmp_path: Path) -> None:
    shutil.copy(vocabulary, tmp_path / "vocabulary.model")
    inside = seqio.SentencePieceVocabulary(str(tmp_path / "vocabulary.model"))
    assert not any(map(address_of, [seqio.ByteVocabulary(), seqio.PassThroughVocabulary(100)]))
    files.keep([str(address_of(inside))], str(tmp_path))
    assert [path.name for path in tmp_path.iterdir()] == ["vocabulary.model"]
    assert of_run(inside, str(tmp_path)) is inside and files.directory_of(str(address_of(inside))) is None


def test_a_hub_id_as_vocabulary_is_told_its_address() -> None:
    with pytest.raises(InputError, match=r"user/name does not exist.* give hf://user/name/tokenizer\.json\."):
        files.content("user/name")
    with pytest.raises(InputError, match=r"or to 'byte'\.$"):
        files.content("folder/absent.model")
