"""Does in an emulated bucket all that a project does in one: test_bucket.py has a share of the requests fail once.

The server (tests/bucket_server.py) speaks Google Cloud Storage's API over real sockets: generations, preconditions,
resumable uploads, listings in pages; it answers 429 and 503, answers late, or closes the connection before or after it
has done what was asked. Real commands train a vocabulary and a model, are killed and resumed, convert, generate, and go
on from what was converted.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import tensorflow as tf
import tensorflow_datasets as tfds

from limba.config import environment
from tests.bucket_server import BucketServer, serving_buckets
from tests.data.batches import write
from tests.waiting import wait_until

ROOT = Path(__file__).parents[2]
NUM_STEPS = 8
KILLED_AFTER = 2
NUM_DOCUMENTS = 320
NUM_SHARDS = 8
NUM_VALIDATION = 10
PAUSES = 0.05  # of the client's own pauses between two attempts
RUN = [
    "--gin_file=gin/demo.gin", "--gin.VOCABULARY=gs://bucket/v.model", "--gin.VOCAB_SIZE=640",
    "--gin.CORPUS={'train': 'gs://bucket/text/train/*.array_record',"
    " 'validation': 'gs://bucket/text/validation/*.array_record'}",
    f"--gin.TRAIN_STEPS={NUM_STEPS}", "--gin.BATCH_SIZE=8", "--gin.TASK_FEATURE_LENGTHS={'inputs': 32}",
    f"--gin.CHECKPOINT_PERIOD={KILLED_AFTER}", "--gin.EVAL_PERIOD=4", "--gin.EVAL_STEPS=1", "--gin.LOG_PERIOD=1",
]  # fmt: skip
FILES = ("t.txt", "t.txt.gz", "t.txt.zst", "t.jsonl", "t.csv", "t.parquet")
TFDS = "tfds:mine"


def documents(number: int) -> list[str]:
    """Returns short Romanian documents, all different."""
    return [
        f"Propoziția {i} spune că {i * 7} este un număr, iar {i * 3 + 1} este altul, și atât." for i in range(number)
    ]


def fill(server: BucketServer, scratch: Path) -> None:
    """Puts a corpus into the bucket in the forms that other programs write."""
    texts = documents(NUM_DOCUMENTS)
    made = scratch / "made"
    for folder in ("corpus", "text/train", "text/validation"):
        (made / folder).mkdir(parents=True)
    for name in FILES:
        write(made / "corpus" / name, texts)
    for shard in range(NUM_SHARDS):
        write(made / "text" / "train" / f"{shard}.array_record", texts[NUM_VALIDATION + shard :: NUM_SHARDS])
    write(made / "text" / "validation" / "0.array_record", texts[:NUM_VALIDATION])
    tfds.dataset_builders.store_as_tfds_dataset(
        name="mine",
        version="1.0.0",
        features=tfds.features.FeaturesDict({"text": tfds.features.Text()}),
        split_datasets={"train": tf.data.Dataset.from_tensor_slices({"text": texts})},
        data_dir=str(made / "tfds"),
        file_format="array_record",
    )
    for path in made.rglob("*"):
        if path.is_file():
            server.put("bucket", str(path.relative_to(made)), path.read_bytes())


class Project:
    """The steps, against one server."""

    def __init__(self, server: BucketServer, scratch: Path):
        self.server = server
        self.scratch = scratch
        self._environment = {
            **os.environ,
            **environment.VARIABLES,
            **server.environment(),
            "HOME": str(scratch),
            "TMPDIR": str(scratch),
            "XLA_FLAGS": f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=2",
            "GLIBC_TUNABLES": "glibc.malloc.hugetlb=0",
        }

    def _start(self, commands: Sequence[Sequence[str]], **files: Any) -> subprocess.Popen[str]:
        argv = [sys.executable, "-m", "tests.run.bucket_project", json.dumps([list(command) for command in commands])]
        return subprocess.Popen(argv, cwd=ROOT, env=self._environment, text=True, **files)

    def commands(self, *commands: Sequence[str]) -> list[dict[str, Any]]:
        """Runs commands in one process; returns what each has printed. Fails unless all end with 0."""
        with self._start(commands, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
            out, error = process.communicate()
        lines = [line.removeprefix("RESULT ") for line in out.splitlines() if line.startswith("RESULT ")]
        results = [json.loads(line) for line in lines]
        for result in results:
            assert not result["status"], f"{result['argv']}: {result['status']}\n{result['out']}\n{result['error']}"
        assert process.returncode == 0 and len(results) == len(commands), error[-4000:]
        return results

    def killed(self, *argv: str) -> None:
        """Trains until the checkpoint of a step is complete, and kills the process without a word."""
        log = self.scratch / "killed.log"
        manifest = f"run/checkpoints/{KILLED_AFTER}/manifest.json"
        with log.open("w") as file, self._start([argv], stdout=file, stderr=file) as process:
            try:
                wait_until(lambda: manifest in self.server.names("run/checkpoints/") or process.poll() is not None)
                assert process.poll() is None, f"no checkpoint was saved:\n{log.read_text()[-4000:]}"
            finally:
                process.send_signal(signal.SIGKILL)

    def metrics_bytes(self) -> tuple[int, int]:
        """Returns (bytes uploaded for figures, bytes of those files)."""
        kinds = ("run/metrics", "run/tensorboard/")
        sent = sum(number for name, number in self.server.received.items() if name.startswith(kinds))
        return sent, sum(len(self.server.data(name)) for kind in kinds for name in self.server.names(kind))

    def run(self) -> None:
        """Runs all steps; fails at the first that is not as it should be."""
        server = self.server
        local = str(self.scratch / "local")
        fill(server, self.scratch)
        corpora = [f"gs://bucket/corpus/{name}" for name in FILES]
        self.commands(
            ["vocabulary", "gs://bucket/corpus/t.txt", "--output=gs://bucket/v.model", "--size=600"],
            ["read", *corpora, "gs://bucket/text/*/*.array_record", TFDS],
            ["train", *RUN, f"--gin.MODEL_DIR={local}"],
        )
        self.killed("train", *RUN, "--gin.MODEL_DIR=gs://bucket/run")
        server.put("bucket", "lines.txt", "Propoziția <extra_id_0>\nși atât".encode())
        after = self.commands(
            ["train", *RUN, "--gin.MODEL_DIR=gs://bucket/run"],
            ["report", "gs://bucket/run"],
            ["status", "gs://bucket/run", "--verify"],
            ["convert", "gs://bucket/run", "gs://bucket/out", "--formats=pytorch"],
            ["convert", "gs://bucket/run", "gs://bucket/out", "--formats=pytorch"],
            ["convert", "gs://bucket/run", "gs://bucket/t5x", "--to=t5x"],
            ["convert", f"gs://bucket/t5x/checkpoint_{NUM_STEPS}", "--to=list"],
            ["load", "gs://bucket/run", f"gs://bucket/out/step_{NUM_STEPS}"],
            ["generate", "gs://bucket/run", "--input=gs://bucket/lines.txt", "--output=gs://bucket/written.jsonl"],
            ["train", *RUN, "--gin.MODEL_DIR=gs://bucket/second", "--gin.TRAIN_STEPS=2",
             f"--gin.INITIAL_CHECKPOINT_PATH=gs://bucket/out/step_{NUM_STEPS}"],
        )  # fmt: skip
        assert "done before" in after[4]["out"], "the second conversion did not find the first"
        assert len(server.data("written.jsonl").splitlines()) == 2
        wanted = losses(Path(local, "metrics.jsonl").read_bytes())
        assert len(wanted) == NUM_STEPS
        assert losses(server.data("run/metrics.jsonl")) == wanted, "the resumed run is not the undisturbed one"
        unfinished = (".lease", "/lease", ".tail", "uploading.json")
        left = [name for name in server.names() if name.endswith(unfinished)]
        assert not left, left
        assert not (ROOT / "gs:").exists(), "a bucket's path was written to the local disk"


def losses(lines: bytes) -> dict[int, float]:
    """Returns step -> loss of a metrics.jsonl."""
    records = [json.loads(line) for line in lines.splitlines() if line.strip()]
    return {record["step"]: record["loss"] for record in records if record["kind"] == "train"}


@contextlib.contextmanager
def project(scratch: Path, troubled: float, seed: int = 0) -> Iterator[Project]:
    """Serves a bucket for the time of the context."""
    with serving_buckets(troubled, seed) as server:
        yield Project(server, scratch)


def read(patterns: Sequence[str]) -> int:
    """Reads each corpus by the path of a run; returns how many differ from what was put there."""
    from limba.data.sources.tfds import TfdsSource
    from limba.data.tasks import source_of_files

    wanted = documents(NUM_DOCUMENTS)
    wrong = 0
    for pattern in patterns:
        source = (
            TfdsSource(
                pattern.removeprefix("tfds:"), {"train": "train"}, data_dir="gs://bucket/tfds", validation_percent=0
            )
            if pattern == TFDS
            else source_of_files(pattern, validation_percent=0)
        )
        rows: Any = source.documents("train", num_epochs=1)
        is_right = sorted(row["text"].decode() for row in rows) == sorted(wanted)
        print(f"{pattern}: {'right' if is_right else 'WRONG'}")
        wrong += not is_right
    return wrong


def load(paths: Sequence[str]) -> int:
    """Loads the same model from two places; returns 1 if they do not write the same ids."""
    import limba

    def written(path: str) -> list[int]:
        # By default a run bans its sentinels, and a folder for transformers may write them, as transformers does. Its
        # text has spaces beside them, as AutoTokenizer decodes it, so that the ids are compared.
        texts = limba.load(path).samples(["Propoziția <extra_id_0> număr"], max_tokens=8, ban_sentinels=False)
        return texts[0][0].ids.tolist()

    one, other = map(written, paths)
    print(one, other)
    return int(one != other or not one)


def main(commands: Sequence[Sequence[str]]) -> None:
    """Runs commands one after the other in this process; prints a JSON line about each."""
    from limba.cli import main as limba_command
    from limba.storage import servers

    servers.settle()  # before gcsfs is imported, which else asks Google by gRPC what each bucket is
    from gcsfs import retry

    retry.asyncio = SimpleNamespace(sleep=lambda seconds: asyncio.sleep(seconds * PAUSES))
    extra = {"read": read, "load": load}
    for argv in commands:
        out = io.StringIO()
        error = io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(error):
            status = extra[argv[0]](argv[1:]) if argv[0] in extra else limba_command.main(argv)
        record = {"argv": argv, "status": status or 0, "out": out.getvalue(), "error": error.getvalue()}
        print("RESULT " + json.dumps(record), flush=True)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
