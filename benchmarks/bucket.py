"""Does in an emulated bucket all that a project does in one, while a share of the requests fails once.

    python -m benchmarks.bucket
    python -m benchmarks.bucket --troubled=0.3 --seed=1
    python -m benchmarks.bucket --short

The server (tests/bucket_server.py) speaks Google Cloud Storage's API over real sockets: generations, preconditions,
resumable uploads, listings in pages; it answers 429 and 503, answers late, or closes the connection before or after it
has done what was asked. Real commands read a corpus, train a vocabulary and a model, are killed and resumed, and
convert; each line of the table is a step: what was done, seconds, and requests. The resumed run must have the losses of
an undisturbed run on a local disk. `--short` leaves out T5X's form and generation. The client's pauses before it
repeats a request are a twentieth of what they are. The last line is the requests that failed; the exit status is 1 if a
step fails.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gzip
import io
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tests.bucket_server import BucketServer, serving_buckets

ROOT = Path(__file__).parents[1]
NUM_STEPS, KILLED_AFTER = 8, 2
NUM_DOCUMENTS = 320
NUM_SHARDS = 8  # of the corpus that is trained on
PAUSES = 0.05  # of the client's own pauses between two attempts: they are most of what the table's seconds would be
RUN = [
    "--gin_file=gin/demo.gin", "--gin.VOCABULARY=gs://bucket/v.model", "--gin.VOCAB_SIZE=640",
    "--gin.CORPUS=gs://bucket/text/*.array_record",
    f"--gin.TRAIN_STEPS={NUM_STEPS}", "--gin.BATCH_SIZE=8", "--gin.TASK_FEATURE_LENGTHS={'inputs': 32}",
    f"--gin.CHECKPOINT_PERIOD={KILLED_AFTER}", "--gin.EVAL_PERIOD=4", "--gin.EVAL_STEPS=1", "--gin.LOG_PERIOD=1",
]  # fmt: skip
FORMATS = (
    "corpus/t.txt", "corpus/t.txt.gz", "corpus/t.txt.zst", "corpus/t.jsonl", "corpus/t.csv", "corpus/t.parquet",
    "text/*.array_record",
)  # fmt: skip


class FailedError(Exception):
    """A step did not do what it should; with what it printed."""


def documents(number: int) -> list[str]:
    """Returns short Romanian documents, all different."""
    return [
        f"Propoziția {i} spune că {i * 7} este un număr, iar {i * 3 + 1} este altul, și atât." for i in range(number)
    ]


def fill(server: BucketServer) -> None:
    """Puts a corpus into the bucket in the forms that other programs write."""
    import pyarrow
    import pyarrow.parquet
    import zstandard

    texts = documents(NUM_DOCUMENTS)
    lines = "\n".join(texts).encode()
    rows = "\n".join(json.dumps({"text": text}) for text in texts).encode()
    columns = "\n".join(["text", *(f'"{text}"' for text in texts)]).encode()
    for name, data in (
        ("t.txt", lines), ("t.txt.gz", gzip.compress(lines)), ("t.txt.zst", zstandard.compress(lines)),
        ("t.jsonl", rows), ("t.csv", columns),
    ):  # fmt: skip
        server.put("bucket", f"corpus/{name}", data)
    file = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.table({"text": texts}), file)
    server.put("bucket", "corpus/t.parquet", file.getvalue())
    for shard in range(NUM_SHARDS):
        server.put("bucket", f"text/{shard}.array_record", array_record(texts[shard::NUM_SHARDS]))


def array_record(texts: Sequence[str]) -> bytes:
    """Returns the content of an ArrayRecord file of documents."""
    from array_record.python.array_record_module import ArrayRecordWriter

    from limba.data.sources.array_record import example_class

    with tempfile.NamedTemporaryFile(suffix=".array_record") as file:
        writer = ArrayRecordWriter(file.name, "group_size:1")
        for text in texts:
            example = example_class()()
            example.features.feature["text"].bytes_list.value.append(text.encode())
            writer.write(example.SerializeToString())
        writer.close()
        return Path(file.name).read_bytes()


def child(arguments: Sequence[str]) -> None:
    """Runs commands one after the other in this process; prints a JSON line about each."""
    from limba.cli.main import main
    from limba.storage import servers

    servers.settle()  # before gcsfs is imported, which else asks Google by gRPC what each bucket is
    from gcsfs import retry

    retry.asyncio = SimpleNamespace(sleep=lambda seconds: asyncio.sleep(seconds * PAUSES))  # pyright: ignore
    for argv in json.loads(arguments[0]):
        began, out, error = time.monotonic(), io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(error):
            status = {"read": read, "load": load}[argv[0]](argv[1:]) if argv[0] in ("read", "load") else main(argv)
        record = {"argv": argv, "status": status or 0, "out": out.getvalue(), "error": error.getvalue()}
        print("RESULT " + json.dumps({**record, "seconds": time.monotonic() - began}), flush=True)


def read(patterns: Sequence[str]) -> int:
    """Reads each corpus by the path of a run; returns how many differ from what was put there."""
    from limba.data.tasks import source_of_files

    wanted, wrong = set(documents(NUM_DOCUMENTS)), 0
    for pattern in patterns:
        source = source_of_files(pattern, validation_percent=0)
        rows: Any = source.documents("train", num_epochs=1)
        found = [row["text"].decode() for row in rows]
        is_right = len(found) == len(set(found)) and set(found) <= wanted and len(found) > 0.9 * len(wanted)
        print(f"{pattern}: {len(found)} documents{'' if is_right else ', WRONG'}")
        wrong += not is_right
    return wrong


def load(paths: Sequence[str]) -> int:
    """Loads the same model from two places; returns 1 if they do not write the same text."""
    import limba

    one, other = (limba.load(path).generate(["Propoziția <extra_id_0> număr"], max_tokens=8) for path in paths)
    print(one, other)
    return int(one != other)


class Chain:
    """The steps, against one server."""

    def __init__(self, server: BucketServer, scratch: Path, show: Callable[[str], None]):
        self.server, self.scratch, self._show = server, scratch, show
        cache = os.environ.get("LIMBA_TEST_CACHE") or os.path.expanduser("~/.cache/limba/compiled")
        self._environment = {
            **os.environ, **server.environment(), "HOME": str(scratch), "JAX_PLATFORMS": "cpu",
            "XLA_FLAGS": "--xla_force_host_platform_device_count=2", "JAX_COMPILATION_CACHE_DIR": cache,
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0", "GLIBC_TUNABLES": "glibc.malloc.hugetlb=0",
            "HF_HUB_OFFLINE": "1", "TMPDIR": str(scratch),
        }  # fmt: skip

    def commands(self, *commands: Sequence[str]) -> list[dict[str, Any]]:
        """Runs commands in one process; returns what each has printed. FailedError unless all end with 0."""
        argv = [sys.executable, "-m", "benchmarks.bucket", "--child", json.dumps([list(each) for each in commands])]
        process = subprocess.Popen(
            argv, cwd=ROOT, env=self._environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        found, before = [], sum(self.server.requests.values())
        assert process.stdout is not None and process.stderr is not None
        try:
            for line in process.stdout:
                if not line.startswith("RESULT "):
                    continue
                record = json.loads(line.removeprefix("RESULT "))
                now = sum(self.server.requests.values())
                self._show(
                    f"{record['seconds']:7.1f} s {now - before:6,} requests  limba {' '.join(record['argv'])[:90]}"
                )
                before = now
                if record["status"]:
                    raise FailedError(f"{record['argv']}: {record['status']}\n{record['out']}\n{record['error']}")
                found.append(record)
            error = process.stderr.read()
            if process.wait() or len(found) != len(commands):
                raise FailedError(error[-4000:])
        finally:
            process.kill()
            process.communicate()
        return found

    def killed(self, *argv: str) -> None:
        """Trains until the checkpoint of a step is complete, and kills the process without a word."""
        began, log = time.monotonic(), self.scratch / "killed.log"
        command = [sys.executable, "-m", "benchmarks.bucket", "--child", json.dumps([argv])]
        with log.open("w") as file:
            process = subprocess.Popen(command, cwd=ROOT, env=self._environment, stdout=file, stderr=file)
            try:
                while f"run/checkpoints/{KILLED_AFTER}/manifest.json" not in self.server.names("run/checkpoints/"):
                    if process.poll() is not None or time.monotonic() - began > 400:
                        raise FailedError(f"no checkpoint was saved:\n{log.read_text()[-4000:]}")
                    time.sleep(0.05)
            finally:
                process.send_signal(signal.SIGKILL)
                process.wait()
        self._show(f"{time.monotonic() - began:7.1f} s                  limba train, killed after step {KILLED_AFTER}")

    def metrics_bytes(self) -> tuple[int, int]:
        """Returns (bytes uploaded for figures, bytes of those files)."""
        kinds = ("run/metrics", "run/tensorboard/")
        sent = sum(number for name, number in self.server.received.items() if name.startswith(kinds))
        return sent, sum(len(self.server.data(name)) for kind in kinds for name in self.server.names(kind))


def run(chain: Chain, short: bool = False) -> None:
    """Runs all steps, without T5X's form and generation if `short`; raises FailedError for the first that fails."""
    server, local = chain.server, str(chain.scratch / "local")
    fill(server)
    chain.commands(
        ["vocabulary", "gs://bucket/corpus/t.txt", "--output=gs://bucket/v.model", "--size=600"],
        ["read", *(f"gs://bucket/{pattern}" for pattern in FORMATS)],
        ["train", *RUN, f"--gin.MODEL_DIR={local}"],
    )
    chain.killed("train", *RUN, "--gin.MODEL_DIR=gs://bucket/run")
    server.put("bucket", "lines.txt", "Propoziția <extra_id_0>\nși atât".encode())
    uses = [
        ["convert", "gs://bucket/run", "gs://bucket/t5x", "--to=t5x"],
        ["convert", f"gs://bucket/t5x/checkpoint_{NUM_STEPS}", "--to=list"],
        ["load", "gs://bucket/run", f"gs://bucket/out/step_{NUM_STEPS}"],
        ["generate", "gs://bucket/run", "--input=gs://bucket/lines.txt", "--output=gs://bucket/written.jsonl"],
    ]
    after = chain.commands(
        ["train", *RUN, "--gin.MODEL_DIR=gs://bucket/run"],
        ["report", "gs://bucket/run"],
        ["verify", "gs://bucket/run"],
        ["convert", "gs://bucket/run", "gs://bucket/out", "--formats=pytorch"],
        ["convert", "gs://bucket/run", "gs://bucket/out", "--formats=pytorch"],
        *([] if short else uses),
        ["train", *RUN, "--gin.MODEL_DIR=gs://bucket/second", "--gin.TRAIN_STEPS=2",
         f"--gin.INITIAL_CHECKPOINT_PATH=gs://bucket/out/step_{NUM_STEPS}"],
    )  # fmt: skip
    if "done before" not in after[4]["out"]:
        raise FailedError(f"the second conversion did not find the first:\n{after[4]['out']}")
    if not short and len(server.data("written.jsonl").splitlines()) != 2:
        raise FailedError("the written lines are not in the bucket")
    wanted, found = losses(Path(local, "metrics.jsonl").read_bytes()), losses(server.data("run/metrics.jsonl"))
    if found != wanted or len(wanted) != NUM_STEPS:
        different = [step for step in wanted if found.get(step) != wanted[step]]
        raise FailedError(f"the resumed run is not the undisturbed one, at steps {different[:5]}")
    left = [name for name in server.names() if name.endswith((".lease", "lease.json", ".tail", "uploading.json"))]
    if left:
        raise FailedError(f"left in the bucket: {left}")
    if (ROOT / "gs:").exists():
        raise FailedError("a bucket's path was written to the local disk")


def losses(lines: bytes) -> dict[int, float]:
    """Returns step -> loss of a metrics.jsonl."""
    records = [json.loads(line) for line in lines.splitlines() if line.strip()]
    return {record["step"]: record["loss"] for record in records if record["kind"] == "train"}


@contextlib.contextmanager
def chain(troubled: float, seed: int = 0, show: Callable[[str], None] = print) -> Iterator[Chain]:
    """Serves a bucket for the time of the context."""
    with tempfile.TemporaryDirectory(prefix="limba-bucket-") as folder, serving_buckets(troubled, seed) as server:
        yield Chain(server, Path(folder), show)


def main(argv: Sequence[str]) -> int:
    """Runs the benchmark; returns its exit status."""
    if argv[:1] == ["--child"]:
        child(argv[1:])
        return 0
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--troubled", type=float, default=0.1, help="share of the requests that fail once")
    parser.add_argument("--seed", type=int, default=0, help="seed of the failures")
    parser.add_argument("--short", action="store_true", help="leave out T5X's form and generation")
    given = parser.parse_args(argv)
    with chain(given.troubled, given.seed) as steps:
        try:
            run(steps, given.short)
        except FailedError as error:
            print(f"FAILED: {error}")
            return 1
        sent, size = steps.metrics_bytes()
        print(f"figures: {sent:,} bytes uploaded for files of {size:,} bytes")
        number, troubles = sum(steps.server.requests.values()), sum(steps.server.troubles.values())
        kinds = ", ".join(f"{kind} {count}" for kind, count in sorted(steps.server.troubles.items()))
        print(f"all steps passed; {number:,} requests, of which {troubles:,} failed or were slow once ({kinds})")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
