"""A ByT5 of T5X's users: what `limba convert --gin` prints trains, with the sentinels that T5X gives."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from limba.cli.main import main
from limba.data import run_data as validation
from limba.data.tasks import resolve_task
from limba.run import train
from tests.cli.test_t5x import SIZES, read

MODULE = '''"""Tasks as a national library writes them for its ByT5: the vocabulary has no extra ids."""
import functools
import seqio
from t5.data import preprocessors

FEATURE = seqio.Feature(seqio.ByteVocabulary(), add_eos=True)


@seqio.map_over_dataset
def as_targets(line):
    return {"targets": line}


seqio.TaskRegistry.add(
    "library_byt5",
    source=seqio.TextLineDataSource({"train": CORPUS, "validation": CORPUS}),
    preprocessors=[
        as_targets,
        seqio.preprocessors.tokenize,
        functools.partial(preprocessors.span_corruption, mean_noise_span_length=20.0),
        seqio.preprocessors.append_eos_after_trim,
    ],
    output_features={"inputs": FEATURE, "targets": FEATURE},
    metric_fns=[],
)
'''
GIN = """include "t5x/examples/t5/byt5/small.gin"
include "t5x/configs/runs/pretrain.gin"
import library_tasks
MIXTURE_OR_TASK_NAME = "library_byt5"
TASK_FEATURE_LENGTHS = {"inputs": 128, "targets": 64}
TRAIN_STEPS = 2
DROPOUT_RATE = 0.0
BATCH_SIZE = 8
"""


@pytest.mark.night
def test_what_convert_gin_prints_for_a_byt5_trains(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    corpus = tmp_path / "text.txt"
    corpus.write_text("".join(f"Setning nummer {n} på norsk, med æ, ø og å. " * 4 + "\n" for n in range(200)))
    (tmp_path / "library_tasks.py").write_text(f"CORPUS = {str(corpus)!r}\n{MODULE}")
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "theirs.gin").write_text(GIN)
    main(["convert", "--gin", str(tmp_path / "theirs.gin")])
    (tmp_path / "ours.gin").write_text(capsys.readouterr().out)
    sizes = [f"--gin.config.ModelConfig.{name}={size}" for name, size in SIZES.items()]
    result = read(str(tmp_path / "ours.gin"), f"--gin.MODEL_DIR={tmp_path / 'run'}", *sizes)
    assert result.config.data.vocabulary is None
    assert train(result.config, result.text)["step"] == 2
    assert json.loads((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[-1])["step"] == 2
    assert not list((tmp_path / "run").glob("vocabulary*"))  # bytes have no file
    (batch,) = validation.validation_batches(
        resolve_task(result.config.data), {"inputs": 128, "targets": 64}, result.config.data, 1
    )
    assert {258} <= set(batch["encoder_input_tokens"].ravel().tolist()) <= set(range(259))
    assert batch["decoder_target_tokens"][0, 0] == 258
    sys.modules.pop("library_tasks", None)
