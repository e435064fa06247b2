"""Run directories as a report reads them: two recorded runs of gin/demo.gin, with two seeds, and long ones."""

import json
import math
import shutil
from pathlib import Path
from typing import Any

from limba.config import RunConfig, saved_config
from limba.evaluation.run_directory import RunDirectory
from limba.tools.pages.page.runs import Run

GOLDEN = Path(__file__).parent.parent / "golden" / "report"
HEBREW = "שלום עולם"
JAPANESE = "吾輩は猫である。名前はまだ無い。"
HOSTILE = "</script><script>window.broken = 1</script><img src=x onerror='window.broken = 1'>"


def recorded(directory: Path, seed: int = 0, name: str = "") -> Path:
    """Copies a recorded run into a directory; returns the run's."""
    run = directory / (name or f"seed{seed}")
    shutil.copytree(GOLDEN / f"seed{seed}", run)
    return run


def append(run: Path, *records: dict[str, Any]) -> None:
    with (run / "metrics.jsonl").open("a", encoding="utf-8") as file:
        file.writelines(json.dumps({"time": "2026-11-22T12:00:00+00:00", **record}) + "\n" for record in records)


def train_record(step: int, **values: float) -> dict[str, Any]:
    """A logged line, with everything that a run on a TPU logs."""
    loss = 4 + 6 * math.exp(-step / 1e5) + 0.1 * math.sin(step)
    return {
        "kind": "train", "step": step, "loss": loss, "cross_entropy": loss, "accuracy": 0.3, "learning_rate": 0.01,
        "gradient_norm": 0.5 + 0.1 * math.cos(step), "parameter_norm": 700.0, "update_norm": 20.0,
        "seconds_per_step": 0.25, "tokens_per_second": 100_000.0 + step % 977, "data_wait": 0.01,
        "sequences_per_second_per_device": 10.0, "epochs/ro": step / 1e5, "epochs/en": step / 3e5, "mfu": 0.45,
        "hbm_peak_gib": 12.0, "host_memory_gib": 20.0, **values,
    }  # fmt: skip


def validation_record(step: int) -> dict[str, Any]:
    loss = 4.2 + 6 * math.exp(-step / 1e5)
    return {
        "kind": "validation", "step": step, "loss": loss, "cross_entropy": loss, "accuracy": 0.25, "perplexity": 60.0,
        "bits_per_byte": 1.1, "target_tokens": 9_000, "bits_per_byte/latin": 1.0, "bytes/latin": 9_000,
        "bits_per_byte/cyrillic": 1.4, "bytes/cyrillic": 3_000, "seconds": 3.0,
    }  # fmt: skip


def rich(directory: Path) -> Path:
    """A recorded run that was resumed, had a spike and failed, and wrote texts in several scripts."""
    run = recorded(directory, name="rich")
    long = "ă" * 2_000
    for step in (100, 200, 300):
        texts = {
            "The <extra_id_0> is": [f"The [gap {step}] is"],
            HOSTILE: [HOSTILE],
            JAPANESE: [JAPANESE * 2],
            "x": [long],
        }
        append(run, {"kind": "samples", "step": step, "texts": texts})
        (run / "evaluations").mkdir(exist_ok=True)
        lines = [{"figures": {"chrf": 10.0}}, {"input": HEBREW, "target": "hi", "prediction": f"{HEBREW} {step}"}]
        text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
        (run / "evaluations" / f"he_en-{step}.jsonl").write_text(text, encoding="utf-8")
        append(run, {"kind": "text", "step": step, "chrf": step / 10, "bleu": step / 30})
    append(
        run,
        {"kind": "row_lengths", "step": 300, "rows": {"inputs": [[100, 10], [128, 950]], "targets": [[29, 960]]}},
        {"kind": "start", "step": 300},
        {"kind": "event", "step": 310, "action": "skip", "reason": "loss 9.1 stands out", "loss": 9.1},
        {"kind": "end", "step": 320, "reason": "NonFiniteError: the loss is nan", "failed": True},
    )
    (run / "skipped_batches.jsonl").write_text(json.dumps({"batch": 310, "reason": "loss 9.1 stands out", "rows": []}))
    return run


def opened(*directories: Path) -> list[Run]:
    """Returns the runs of directories, up to date."""
    runs = []
    for directory in directories:
        config = saved_config.from_text((directory / "config.json").read_text(), str(directory))
        assert isinstance(config, RunConfig)
        runs.append(Run(directory.name, RunDirectory(directory), saved_config.moved(config, str(directory))))
        runs[-1].update()
    return runs
