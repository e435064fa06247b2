"""examples/prepare_with_datatrove.py, run for real in an environment of its own, on one machine, Ray and Slurm.

A corpus of a made-up language has documents in another one, short ones and nearly equal ones, which must go; what is
left is read by Limba. fastText's model of the two languages is trained here: nothing but packages is downloaded.
"""

from __future__ import annotations

import gzip
import json
import os
import random
import subprocess
from pathlib import Path

import pytest

from limba.cli import main
from limba.data.tasks import source_of_files
from tests.environments import environment_with
from tests.launch import slurm_cluster

ROOT = Path(__file__).parents[1]
SCRIPT = ROOT / "examples" / "prepare_with_datatrove.py"
PACKAGES = ("datatrove[io,processing,ray]==0.10.1", "spacy")
ROMANIAN = """
limba română este vorbită de oameni care scriu texte lungi despre munte mare câmp pădure oraș școală carte drum casă
poveste iarnă vară prieten bunic copil grădină râu stea noapte zi soare ploaie vânt zăpadă foc apă pâine
"""
ENGLISH = """
the people of a town write long texts about the sea and their mountains with snow over a river where children have
read books to be happy in winter that they were told of and the road is good
"""
TRAIN = """
import fasttext, sys
model = fasttext.train_supervised(sys.argv[1], epoch=20, dim=16, minn=2, maxn=3, bucket=5_000, thread=1, verbose=0)
model.save_model(sys.argv[2])
"""

pytestmark = pytest.mark.night


@pytest.fixture(scope="module")
def python() -> Path:
    """The Python of an environment with datatrove, which is kept for the next night."""
    return environment_with(PACKAGES)


class Corpus:
    """Three files of documents, the ones that should remain, and a model of the two languages."""

    def __init__(self, folder: Path, python: Path):
        self.folder = folder
        self.python = python
        draw = random.Random(0)

        def text(words: str, number: int = 120) -> str:
            return " ".join(draw.choices(words.split(), k=number)) + "."

        self.kept = [text(ROMANIAN) for _ in range(60)]
        for file in range(3):
            documents = self.kept[file * 20 : file * 20 + 20]
            documents += [text(ENGLISH) for _ in range(5)]
            documents += [f"{self.kept[0]} Sfârșit.", "Meniu Acasă"]  # nearly equal to another one; short
            lines = (json.dumps({"text": document}, ensure_ascii=False) for document in documents)
            (folder / f"{file}.jsonl").write_text("\n".join(lines) + "\n")
        with (folder / "languages.txt").open("w") as languages:
            for _ in range(300):
                languages.write(f"__label__ro {text(ROMANIAN, 20)}\n__label__en {text(ENGLISH, 20)}\n")
        subprocess.run([python, "-c", TRAIN, folder / "languages.txt", folder / "lid.bin"], check=True)

    def command(self, *flags: str) -> list[str]:
        flags_given = ["--output=prepared", "--language=ro", "--language-model=lid.bin", "--shards=6"]
        return [str(self.python), str(SCRIPT), "*.jsonl", *flags_given, *flags]

    def variables(self) -> dict[str, str]:
        return {**os.environ, "HF_HUB_OFFLINE": "1", "HF_ASSETS_CACHE": str(self.folder / "assets"), "PYTHONPATH": ""}

    def run(self, *flags: str, status: int = 0) -> str:
        """Returns what the script prints."""
        ended = subprocess.run(
            self.command(*flags), cwd=self.folder, env=self.variables(), capture_output=True, text=True, check=False
        )
        assert ended.returncode == status, ended.stderr[-4000:]
        return ended.stdout + ended.stderr

    def texts(self, output: str) -> dict[str, list[str]]:
        """Returns the documents of each file that was written."""
        files = sorted((self.folder / output).glob("*.jsonl.gz"))
        lines = {path.name: gzip.decompress(path.read_bytes()).decode().splitlines() for path in files}
        return {name: [json.loads(line)["text"] for line in rows] for name, rows in lines.items()}


@pytest.fixture(scope="module")
def corpus(python: Path, tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    return Corpus(tmp_path_factory.mktemp("corpus"), python)


@pytest.fixture(scope="module")
def prepared(corpus: Corpus) -> Corpus:
    """The corpus, prepared by this machine's processes."""
    printed = corpus.run()
    assert "6 files are in prepared. Look at them by: limba inspect 'prepared/*.jsonl.gz' --vocabulary=byte" in printed
    return corpus


def without_one_of_its_copies(corpus: Corpus, documents: dict[str, list[str]]) -> bool:
    """Returns whether the right documents are left; of those that are nearly equal any may be the one that stays."""
    texts = [text.removesuffix(" Sfârșit.") for part in documents.values() for text in part]
    return sorted(texts) == sorted(corpus.kept)


def test_language_quality_and_copies_are_filtered_and_limba_reads_the_shards(
    prepared: Corpus, capsys: pytest.CaptureFixture[str]
) -> None:
    documents = prepared.texts("prepared")
    assert [len(part) for part in documents.values()] == [10] * 6
    assert without_one_of_its_copies(prepared, documents)
    files = f"{prepared.folder}/prepared/*.jsonl.gz"
    read = source_of_files(files, validation_percent=0).texts("train")
    assert sorted(read) == sorted(text for part in documents.values() for text in part)
    assert main.main(["inspect", files, "--vocabulary=byte", "--num=1"]) == 0
    learned = list(source_of_files(files).texts("train"))  # without a hundredth of them, for validation
    assert 55 < len(learned) <= 60 and f"{len(learned)} documents" in capsys.readouterr().out


def test_a_second_start_does_nothing_anew_and_other_choices_are_refused(prepared: Corpus) -> None:
    before = {path: path.stat().st_mtime_ns for path in (prepared.folder / "prepared").iterdir()}
    prepared.run()
    assert {path: path.stat().st_mtime_ns for path in (prepared.folder / "prepared").iterdir()} == before
    said = prepared.run("--min-words=10", status=2)
    assert "was begun with other choices (min_words was 50 and is 10); give another --output" in said


def test_ray_writes_the_same(prepared: Corpus) -> None:
    prepared.run("--executor=ray", "--output=by_ray")
    assert prepared.texts("by_ray") == prepared.texts("prepared")


@pytest.mark.skipif(bool(slurm_cluster.missing()), reason=slurm_cluster.missing())
def test_job_arrays_of_slurm_write_the_same(prepared: Corpus) -> None:
    with slurm_cluster.cluster() as cluster:
        flags = ["--executor=slurm", "--partition=main", "--time=00:10:00", f"--output={prepared.folder}/by_slurm"]
        command = ["env", "-C", str(prepared.folder), *prepared.command(*flags)]
        assert "Queued; the logs are in " in cluster.ask(*command, **prepared.variables())
        slurm_cluster.until(lambda: not cluster.ask("squeue", "--noheader"), "the jobs")
    assert prepared.texts("by_slurm") == prepared.texts("prepared")


def test_lines_of_text_are_only_dealt_if_nothing_is_to_be_dropped(corpus: Corpus) -> None:
    lines = [f"Linia {number}" for number in range(10)]
    (corpus.folder / "lines.txt").write_text("\n".join(lines) + "\n")
    flags = ["--no-quality", "--no-deduplication", "--shards=2", "--output=dealt"]
    command = [str(corpus.python), str(SCRIPT), "lines.txt", *flags]
    ended = subprocess.run(command, cwd=corpus.folder, env=corpus.variables(), capture_output=True, text=True)
    assert ended.returncode == 0 and "Languages are not told apart" in ended.stderr, ended.stderr[-4000:]
    assert list(corpus.texts("dealt").values()) == [lines[::2], lines[1::2]]


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--executor=slurm"], "--executor=slurm needs --partition=NAME"),
        (["--shards=0"], "--shards is 0; give a number above 0."),
        (["--language-model=none.bin"], "--language-model=none.bin is not there"),
    ],
)
def test_what_cannot_work_is_one_sentence(corpus: Corpus, flags: list[str], says: str) -> None:
    assert corpus.run(*flags, "--output=never", status=2).splitlines()[-1].partition("error: ")[2].startswith(says)
    assert not list(corpus.folder.glob("never*"))
