"""The translation command of docs/coming_from_huggingface.md, against a hub of this machine's."""

import json
import re
import shlex
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

from tests import hub_server
from tests.cli.test_script_page import PAGE, run_all, shelf  # noqa: F401  a fixture
from tests.hub_server import hub

COMMAND = re.search(r"^```\n(limba train --model_name_or_path t5-small .*?--source_lang.*?)^```$", PAGE, re.S | re.M)


def write_pairs(folder: Path) -> None:
    """Writes wmt/wmt16's configuration ro-en as the hub has it: one column, a pair of texts by language."""
    words = ["casa", "masa", "om", "drum", "apa", "munte", "soare", "carte", "pom"]
    for split, count in (("train", 400), ("validation", 4), ("test", 4)):
        pairs = [{"en": f"the {words[i % 9]} is {i % 7}", "ro": f"{words[i % 9]} este {i % 7}"} for i in range(count)]
        path = folder / "datasets" / "wmt" / "wmt16" / "ro-en" / f"{split}-00000-of-00001.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        pyarrow.parquet.write_table(pyarrow.table({"translation": pairs}), path)
    files = [f"  - split: {split}\n    path: ro-en/{split}-*" for split in ("train", "validation", "test")]
    lines = ["---", "configs:", "- config_name: ro-en", "  data_files:", *files, "---", ""]
    (path.parents[1] / "README.md").write_text("\n".join(lines))


@pytest.mark.night
def test_the_translation_command_trains_and_writes(shelf: Path, tmp_path: Path, monkeypatch) -> None:  # noqa: F811
    assert COMMAND is not None
    monkeypatch.setitem(hub_server.MOVED, "wmt16", "wmt/wmt16")
    write_pairs(shelf)
    argv = shlex.split(COMMAND[1].replace("\\\n", " "))[1:]
    argv += ["--gin.TRAIN_STEPS=20", "--gin.LOG_PERIOD=5", "--gin.LEARNING_RATE=0.003", "--gin.MAX_TOKENS=8"]
    argv += ["--gin.config.DataConfig.num_data_shards=2", "--gin.TASK_FEATURE_LENGTHS={'inputs': 64, 'targets': 32}"]
    with hub(shelf) as (_, environment):
        out = run_all([argv], tmp_path / "runs", environment)
    assert out.count("=== ended 0") == 1, out[-6000:]
    run = tmp_path / "runs" / "0" / "translation"
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    losses = [row["loss"] for row in rows if row["kind"] == "train"]
    assert rows[-1]["step"] == 20 and losses[-1] < losses[0]
    (texts,) = (run / "evaluations").glob("translation-20.jsonl")
    figures, *examples = map(json.loads, texts.read_text().splitlines())
    assert {"bleu"} <= {name.lower() for name in figures["figures"]} and len(examples) == 4
    assert examples[0]["input"].startswith("translate English to Romanian: the ")
