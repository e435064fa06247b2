"""The board of recipes: sizes, division of text, tables, corpora, and a run of some steps."""

import dataclasses
import gzip
import itertools
import json
import math
import os
import shutil
import signal
import statistics
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest
from scipy import stats

from benchmarks import speedrun
from benchmarks.board import aozora, corpora, paragraphs, proof, tables
from benchmarks.board.recipes import RECIPES, optimizer_of, own_settings, recipe_of
from benchmarks.board.runs import Trial, config_of, results
from benchmarks.board.sizes import size_of
from benchmarks.board.text import Text, _documents, divided, part_of
from limba.config import InputError
from limba.model import Network
from limba.training.metrics.flops import flops_per_sequence
from limba.training.muon import orthogonalized
from tests.waiting import wait_until

ROOT = Path(__file__).parents[2]
LINES = [f"Satz {number} von vielen." for number in range(600)]


@pytest.mark.parametrize(("depth", "least", "most"), [(2, 1.5e6, 2.5e6), (4, 8e6, 15e6)])
def test_the_depth_gives_two_sizes(depth: int, least: float, most: float) -> None:
    config = size_of(depth).model()
    shapes = jax.eval_shape(Network(config).init, jax.random.key(0))
    assert least <= sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(shapes)) <= most
    assert config.num_heads * config.head_dim == config.emb_dim
    assert config.num_encoder_layers == config.num_decoder_layers == depth


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("--recipe=muon --corpus=/nope", "--recipe is muon; did you mean"),
        ("--recipe=adafactor --corpus=/nope", "no file is named /nope"),
        ("--recipe=adafactor --corpus=/nope --depth=0", "--depth is 0, which gives 0 heads"),
        ("--recipe=adafactor --corpus=/nope --depth=2.5", "--depth is 2.5, which gives 2.5 heads of 64"),
        ("--recipe=adafactor --corpus=/nope --depth=nan", "--depth is nan"),
        ("--recipe=adafactor --corpus=/nope --steps=0", "--steps is 0"),
        ("--recipe=adafactor --corpus=/nope --seeds=0", "--seeds is 0"),
        ("--recipe=adafactor --corpus=/nope --set=beta=1", "--set=beta=1 names no field; did you mean beta"),
        ("--recipe=adafactor --corpus=/nope --set=warmup=x", "--set=warmup=x gives no number"),
        ("--recipe=muon_wsd --corpus=/nope --set=decay=0.99", "give shares of the steps, together at most 1"),
        ("--recipe=muon_wsd --corpus=/nope --set=muon_rms=0", "OptimizerConfig.muon_rms is 0"),
        ("sweep --recipe=adafactor --corpus=/nope --rates=x", "--set=learning_rate=x gives no number"),
        ("sweep --recipe=masked --corpus=/nope --rates=0.1", "masked trains an encoder: run its rates one by one"),
        ("--recipe=adafactor --corpus=/nope --set=rows=12", "--set=rows=12: rows are a multiple of 8"),
        ("law --recipe=fast --corpus=de --board=/nope", "A law needs the best rates of two lengths of runs"),
        ("sweeps", "sweeps is none of sweep, law, table, proof, corpus; did you mean sweep?"),
        ("proof --recipe=fast --against=adafactor --corpus=de --steps=300", "--steps is 300; give 2 whole numbers"),
        (
            "proof --recipe=fast --against=adafactor --corpus=de --steps=3,6 --board=/nope",
            "no runs of fast, 3 steps; adafac",
        ),
        ("table --board=/nope", "/nope has no results"),
        ("corpus --language=xx", "--language is xx; choose from"),
        ("corpus --aozora=/nope --percent=0", "--percent is 0; give a whole number from 1 to 100"),
        ("corpus --aozora=/nope", "--aozora is /nope, without works in cards/*/files/*/*.txt"),
    ],
)
def test_what_cannot_be_is_one_sentence(flags: str, message: str) -> None:
    with pytest.raises(InputError) as caught:
        speedrun.main(flags.split())
    assert message in str(caught.value)


@pytest.mark.parametrize("name", RECIPES)
def test_a_rate_is_that_of_the_size(name: str) -> None:
    recipe = recipe_of(name)
    smaller, larger = (optimizer_of(recipe, {}, size_of(depth), 600) for depth in (2, 4))
    assert smaller.name == recipe.optimizer["name"]
    assert smaller.schedule.base_learning_rate == larger.schedule.base_learning_rate * 2**recipe.exponent


def test_only_what_differs_from_the_recipe_is_its_setting() -> None:
    settings = {"muon_rms": 0.1, "learning_rate": 0.2, "beta2": 0.95, "rows": 16, "decay": 0.7}
    assert own_settings(recipe_of("fast"), settings) == {"beta2": 0.95, "learning_rate": 0.2, "rows": 16}
    assert own_settings(recipe_of("adamw_wsd"), {"beta2": 0.999, "warmup": 0.05}) == {}


def test_text_is_divided_by_documents(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("\n".join(LINES))
    (tmp_path / "b.txt").write_text("\n".join(reversed(LINES)))
    parts = []
    for name in ("a.txt", "b.txt"):
        text = divided(str(tmp_path / name), tmp_path / "board")
        files = text.train, text.evaluated(final=False), text.evaluated(final=True)
        parts.append([path.read_text() for path in files])
        texts = [[json.loads(line)["text"] for line in part.splitlines()] for part in parts[-1]]
        assert sorted(itertools.chain(*texts)) == sorted(LINES) and all(texts)
        assert [part_of(part[0])[1] for part in texts] == ["train", "search", "final"]
        assert text.vocabulary.exists()
    assert parts[0] == parts[1]  # whatever the order of the documents
    (tmp_path / "a.txt").write_text("\n".join(LINES[1:]))
    with pytest.raises(InputError, match="these have changed since"):
        divided(str(tmp_path / "a.txt"), tmp_path / "board")
    (tmp_path / "c.txt").write_text("\n".join(LINES[:3]))
    with pytest.raises(InputError, match="3 documents leave none for"):
        divided(str(tmp_path / "c.txt"), tmp_path / "board")


def test_steps_to_a_loss_are_interpolated() -> None:
    steps = [30, 60, 90, 120]
    losses = [6.0, 5.0, 4.5, 4.7]
    assert tables.steps_to(steps, losses, 5.25) == pytest.approx(52.5)
    assert tables.steps_to(steps, losses, 4.5) == 90
    assert tables.steps_to(steps, losses, 7.0) == 30  # the most it can be
    assert tables.steps_to(steps, losses, 4.4) is None
    assert tables.steps_to([], [], 4.4) is None
    nan = float("nan")
    assert tables.steps_to(steps, [6.0, nan, nan, nan], 4.5) is None and tables.steps_to([30], [nan], 4.5) is None
    assert tables.steps_to(steps, [6.0, nan, 4.4, 4.3], 4.5) == 90


def result(recipe: str, seed: int, losses: list[float], steps: int = 40, status: str = "finished") -> dict:
    at = [steps * (number + 1) // len(losses) for number in range(len(losses))]
    curve = {"steps": at, "loss": losses, "bits_per_byte": [loss / 2 for loss in losses], "seconds": at}
    trial = Trial(recipe, "de", 2, steps, seed)
    return {
        "key": trial.key, "status": status, "recipe": recipe, "corpus": "de", "depth": 2, "steps": steps, "seed": seed,
        "settings": {}, "final": False, "date": "2026-11-22 20:00", "parameters": 1_840_000, "rows": 32,
        "flops_per_step": 1e12, "seconds_per_step": 0.25, "passes": 0.5, "devices": "1 x cpu", "curve": curve,
    }  # fmt: skip


def test_the_table_has_every_recipe_with_its_spread(tmp_path: Path) -> None:
    known = [result("adafactor", seed, [6.0, 5.0, 4.5, 4.0 + seed / 10]) for seed in (0, 1)]
    known += [result("muon_wsd", seed, [5.0, 4.05, 3.8, 3.7]) for seed in (0, 1)]
    known += [result("adamw_wsd", 0, [7.0, 6.0, 5.5, 5.0]), result("muon_cosine", 0, [7.0], status="diverged")]
    ((board, groups),) = tables.boards(known).items()
    lines = tables.markdown(board, groups).splitlines()
    assert "the baseline's loss is 4.050 after 40 steps" in lines[0]
    assert "--steps=STEPS --seeds=SEEDS --depth=2 --corpus=de.jsonl`" in lines[0]
    cells = {line.split(" | ")[0].removeprefix("| "): line.split(" | ") for line in lines[4:]}
    assert list(cells) == ["muon_wsd", "adafactor", "adamw_wsd", "muon_cosine"]  # the best first, the losing ones too
    assert cells["muon_wsd"][4:8] == ["3.700 ± 0.000", "1.850 ± 0.000", "20 ± 0", "50 %"]
    assert cells["adafactor"][4] == "4.050 ± 0.071" and cells["adafactor"][6] == "not reached by 1 of 2"
    assert cells["adamw_wsd"][6] == "not reached by 1 of 1" and cells["muon_cosine"][4] == "diverged"
    assert tables.draw(board, groups, tmp_path).stat().st_size > 10_000


def test_a_diverged_run_reaches_nothing_and_is_not_reached() -> None:
    nan = float("nan")
    losing = result("muon_wsd", 0, [nan] * 4, status="diverged")
    late = result("adamw_wsd", 0, [4.0, 3.0, nan, nan], status="diverged")
    finished = result("adafactor", 0, [6.0, 5.0, 4.5, 4.0])
    diverged = result("adafactor", 1, [6.0, 5.0], status="diverged")
    for baselines, words, reached in (
        ([finished], "the baseline's loss is 4.000 after 40 steps", "not reached by 1 of 1"),
        ([finished, diverged], "the baseline diverged, so", ""),
    ):
        ((board, groups),) = tables.boards([*baselines, losing, late]).items()
        first, _, *lines = tables.markdown(board, groups).splitlines()
        assert words in first
        cells = {line.split(" | ")[0].removeprefix("| "): line.split(" | ") for line in lines}
        for name in ("muon_wsd", "adamw_wsd"):
            assert cells[name][6:8] == [reached, ""], cells[name]


def test_lines_of_json_are_read_as_training_reads_them(tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    rows = [{"text": line, "author": number % 50} for number, line in enumerate(LINES)]
    rows[0] = {"text": LINES[0], "author": None}
    lines = [json.dumps(row) + "\n" for row in rows]
    file.write_text("\ufeff" + "\n".join(lines), encoding="utf-8")  # a byte order mark, and empty lines
    read = list(_documents([str(file)]))
    assert read == [(LINES[0], ""), *((line, str(number % 50)) for number, line in enumerate(LINES) if number)]
    for content, words in (
        (b'{"inputs": "a"}\n', "a.jsonl line 1 has no text"), (b'{"text": "a"}\n{"text": 5}\n', "line 2 has no text"),
        (b'["a"]\n', "line 1 has no text"), (b'{"text": "caf\xe9"}\n', "a.jsonl is not UTF-8"),
        (b'{"text": "a"}\n{"te\n', "line 2 is not JSON"),
    ):  # fmt: skip
        file.write_bytes(content)
        with pytest.raises(InputError, match=words):
            list(_documents([str(file)]))


PAGE = """<html><head><title>Handbuch</title></head><body><p>Das Programm ist auf dem Rechner und wird mit der
<b>Maus</b> bedient. Wenn Sie es nicht finden, sehen Sie in die Liste.</p><p>The program is on the computer and it is
used with the mouse, as you can see.</p><pre>make install</pre>{more}</body></html>"""
MANUAL = r""".TH DATEI 1
.SH BESCHREIBUNG
Der Befehl \fBdatei\fP zeigt die Namen der Dateien, die in dem Verzeichnis sind.
.nf
datei \-\-alles
.fi
.PP
Das Programm ist auf dem Rechner und wird mit der Maus bedient. Wenn Sie es nicht finden, sehen Sie in die Liste.
.PP
"""


@pytest.mark.skipif(shutil.which("dpkg-deb") is None, reason="dpkg-deb is Debian's")
def test_a_corpus_is_made_of_packages_once_in_each_paragraph(tmp_path: Path) -> None:
    more = "".join(f"<p>Der Absatz {word} ist von der Seite und wird für das Buch gelesen.</p>" for word in "abcdef")
    files = {
        "usr/share/doc/buch/de/index.html": PAGE.format(more=more).encode(),
        "usr/share/doc/buch/de/zweite.html": PAGE.format(more=more).encode(),  # says nothing new
        "usr/share/doc/buch/en/index.html": PAGE.format(more=more).encode(),
        "usr/share/man/de/man1/datei.1.gz": gzip.compress((MANUAL + "Der Rest ist für die Nutzer. " * 10).encode()),
        "DEBIAN/control": b"Package: buch\nVersion: 1:2.0\nArchitecture: all\nMaintainer: A <a@b.c>\nDescription: x\n",
    }
    for path, content in files.items():
        (tmp_path / "tree" / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "tree" / path).write_bytes(content)
    package = tmp_path / "buch_1%3a2.0_all.deb"
    subprocess.run(["dpkg-deb", "--build", str(tmp_path / "tree"), str(package)], check=True, capture_output=True)
    said = corpora.make("de", tmp_path / "made", [package])
    lines = [json.loads(line) for line in (tmp_path / "made" / "de.jsonl").read_text().splitlines()]
    assert [line["file"] for line in lines] == ["usr/share/doc/buch/de/index.html", "usr/share/man/de/man1/datei.1.gz"]
    text = "\n".join(line["text"] for line in lines)
    assert text.count("Das Programm ist auf dem Rechner") == 1 and "The program" not in text
    assert "Der Befehl datei zeigt" in text and "make install" not in text and "--alles" not in text
    assert said["packages"][0]["version"] == "1:2.0" and said["documents"] == 2
    assert corpora.make("de", tmp_path / "again", [package]) == said  # the same text, to the byte
    with pytest.raises(InputError, match="is there already"):
        corpora.make("de", tmp_path / "made", [package])
    with pytest.raises(InputError, match="have no text in ja"):
        corpora.make("ja", tmp_path / "made", [package])


def test_without_apt_a_sentence_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(InputError, match="apt-get or dpkg-deb is missing"):
        corpora.make("de", tmp_path)


def test_files_that_are_no_text_for_people_are_left_out() -> None:
    for path in ("a/de/_sources/x.txt", "doc/de/copyright", "de/changelog.gz", "de/page.css", "de/picture.png"):
        assert paragraphs.reader_of(path) is None, path
    assert paragraphs.of_catalogue(b"no catalogue") == []


@pytest.fixture(scope="module")
def board(tmp_path_factory: pytest.TempPathFactory, corpus: Path) -> tuple[Path, list[str]]:
    """A board with a finished run of one layer and six steps, whose final part has never been there to be read."""
    folder = tmp_path_factory.mktemp("board")
    divided(str(corpus), folder).evaluated(final=True).unlink()
    flags = [f"--corpus={corpus}", f"--board={folder}", "--depth=1", "--steps=6"]
    speedrun.main(["--recipe=adamw_wsd", "--seeds=1", *flags])
    return folder, flags


@pytest.mark.night
def test_a_run_gives_a_curve_and_does_not_read_the_final_part(board: tuple[Path, list[str]], corpus: Path) -> None:
    folder, flags = board
    (of_run,) = results(folder).values()
    assert of_run["curve"]["steps"] == list(range(1, 7)) and of_run["status"] == "finished"
    assert of_run["curve"]["loss"][-1] < of_run["curve"]["loss"][0] and 0 < of_run["passes"] < 1
    assert of_run["curve"]["seconds"] == sorted(of_run["curve"]["seconds"]) and of_run["flops_per_step"] > 1e9
    text = divided(str(corpus), folder)
    config = config_of(Trial("muon_wsd", text.name, 1, 6), text, folder)
    assert "final" not in str(config.data.data_files)
    with pytest.raises(InputError, match=r"final\.jsonl"):  # with --final, and only then, it is needed
        speedrun.main(["--recipe=adamw_wsd", "--seeds=1", "--final", *flags])


@pytest.mark.parametrize("name", [name for name, recipe in RECIPES.items() if recipe.is_encoder])
def test_encoders_have_boards_of_their_own_and_equal_networks(name: str, tmp_path: Path) -> None:
    text = Text("de", tmp_path)
    config = config_of(Trial(name, "de", 2, 400), text, tmp_path)
    masked = config_of(Trial("masked", "de", 2, 400), text, tmp_path)
    assert dataclasses.replace(config.model, attention_mask="bidirectional") == masked.model
    assert config.data.named_stages[-1][1].startswith("demo_span_corruption") and config.data.is_masked
    assert [start for start, _ in config.data.named_stages] == ([0, 200] if name == "causal_then_masked" else [0])
    counted = flops_per_sequence(config.model, 0, 128, config.data.num_predicted)
    assert (counted > 1.3 * flops_per_sequence(masked.model, 0, 128, masked.data.num_predicted)) is (name != "masked")
    known = [result(recipe, 0, [5.0, 4.0]) for recipe in ("adafactor", name, "masked")]
    names = {board.name: {group.recipe for group in groups} for board, groups in tables.boards(known).items()}
    assert names == {"de-d2": {"adafactor"}, "de-d2-encoder": {name, "masked"}}


@pytest.mark.night
def test_a_board_goes_on_where_it_was(
    board: tuple[Path, list[str]], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, flags = board
    (before,) = results(folder).values()
    with open(folder / "results.jsonl", "a") as file:
        file.write('{"key": "half a li')  # as a killed process leaves it

    def trained(config: object, gin_text: str = "") -> dict:
        raise AssertionError("a known run must not be run again")

    with monkeypatch.context() as patched:
        patched.setattr("limba.run.train", trained)
        speedrun.main(["--recipe=adamw_wsd", "--seeds=1", *flags])
        speedrun.main(["table", f"--board={folder}", "--baseline=adamw_wsd"])
        with pytest.raises(AssertionError):  # another rate than the known run's
            speedrun.main(["--recipe=adamw_wsd", "--seeds=1", "--set=learning_rate=0.01", *flags])
    assert "| adamw_wsd |" in capsys.readouterr().out
    assert list(results(folder).values()) == [before]


@pytest.mark.night
def test_runs_side_by_side_are_those_run_one_by_one(
    board: tuple[Path, list[str]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, flags = board
    (alone,) = results(folder).values()
    shutil.copytree(folder / "text", tmp_path / "text")
    flags = ["sweep", "--recipe=adamw_wsd", "--rates=0.0025,0.005", "--seeds=2", *flags, f"--board={tmp_path}"]
    speedrun.main(flags)
    by_key = results(tmp_path)
    assert {(run["seed"], run["settings"].get("learning_rate")) for run in by_key.values()} == {
        (seed, rate) for seed in (0, 1) for rate in (0.0025, None)
    }
    beside = by_key[alone["key"]]
    for figure in ("loss", "bits_per_byte"):
        assert beside["curve"][figure] == pytest.approx(alone["curve"][figure], rel=1e-4)
    for name in ("parameters", "flops_per_step", "rows", "parameter_norm", "status"):
        assert beside[name] == pytest.approx(alone[name])
    assert len({tuple(run["curve"]["loss"]) for run in by_key.values()}) == 4
    with pytest.raises(InputError, match="Adafactor's momentum comes after the rate"):
        speedrun.main(["sweep", "--recipe=adafactor", "--set=momentum=0.9", *flags[2:]])
    speedrun.main(flags)  # known
    assert results(tmp_path) == by_key and capsys.readouterr().out.count("s/step") == 8


@pytest.mark.night
def test_a_killed_run_is_resumed(tmp_path: Path, corpus: Path) -> None:
    flags = [f"--corpus={corpus}", f"--board={tmp_path}", "--depth=1", "--steps=200", "--seeds=1"]
    command = [sys.executable, "-m", "benchmarks.speedrun", "--recipe=adafactor", *flags]
    variables = {**os.environ, "XLA_FLAGS": "--xla_force_host_platform_device_count=1"}
    with open(tmp_path / "said.txt", "w+") as said:
        killed = subprocess.Popen(command, cwd=ROOT, stdout=said, stderr=said, env=variables)
        wait_until(lambda: killed.poll() is not None or list((tmp_path / "runs").glob("*/checkpoints/50")))
        assert killed.poll() is None, (tmp_path / "said.txt").read_text()
        killed.send_signal(signal.SIGKILL)
        killed.wait()
        assert not results(tmp_path)
        subprocess.run(command, cwd=ROOT, stdout=said, stderr=said, env=variables, check=True)
    assert "resumes at step" in (tmp_path / "said.txt").read_text()
    (of_run,) = results(tmp_path).values()
    assert of_run["curve"]["steps"] == list(range(10, 201, 10))


def test_the_page_has_each_recipe() -> None:
    page = (ROOT / "docs" / "development" / "board.md").read_text()
    for name, recipe in RECIPES.items():
        assert f"| `{name}` | {recipe.about} | " in page


def board_of(folder: Path, losses: dict[str, list[float]]) -> Path:
    """Writes results as runs of depth 2 leave them, with these last losses by seed."""
    lines = []
    for recipe, of_seeds in losses.items():
        for seed, loss in enumerate(of_seeds):
            curve = {"steps": [300], "loss": [loss], "bits_per_byte": [loss / 2], "seconds": [60.0]}
            fields = {"recipe": recipe, "corpus": "de", "depth": 2, "steps": 300, "seed": seed, "settings": {}}
            figures = {"status": "finished", "flops_per_step": 1.6e10, "seconds_per_step": 0.2, "curve": curve}
            lines.append(json.dumps({"key": f"{recipe}-{seed}", "final": True, **fields, **figures}))
    folder.mkdir()
    (folder / "results.jsonl").write_text("\n".join(lines) + "\n")
    return folder


PROOF = "proof --recipe=fast --against=adafactor --corpus=de --final --steps=300,300 --board="


@pytest.mark.parametrize(
    ("ours", "theirs", "says"),
    [
        ([4.60, 4.61, 4.58, 4.59, 4.60, 4.62], [4.70, 4.72, 4.69, 4.68, 4.71, 4.72], "fast is lower."),
        ([4.60, 4.61, 4.58], [4.70, 4.72, 4.69], "No winner: 6 pairs are the least, and by this deviation 6 would"),
        ([4.6, 4.8, 4.5, 4.7, 4.6, 4.7], [4.7, 4.7, 4.6, 4.7, 4.7, 4.6], "No winner: p must be below 0.01"),
        ([4.71, 4.72, 4.69, 4.68, 4.71, 4.72], [4.6, 4.61, 4.58, 4.59, 4.6, 4.6], "and the difference below 0."),
    ],
)
def test_a_winner_needs_six_pairs_and_a_small_p(
    ours: list[float], theirs: list[float], says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    board = board_of(tmp_path / "board", {"fast": ours, "adafactor": theirs})
    speedrun.main(f"{PROOF}{board}".split())
    said = capsys.readouterr().out
    assert says in said and "% of the FLOPs" in said
    differences = [a - b for a, b in zip(ours, theirs, strict=True)]
    statistic = statistics.fmean(differences) / (statistics.stdev(differences) / math.sqrt(len(differences)))
    assert f"p {2 * stats.t.sf(abs(statistic), len(differences) - 1):.2g};" in said


def test_runs_without_a_partner_are_no_pairs(tmp_path: Path) -> None:
    board = board_of(tmp_path / "board", {"fast": [4.6, 4.5, 4.4], "adafactor": [4.7, 4.6]})
    with pytest.raises(InputError, match=r"the board has \[0, 1, 2\] of fast and \[0, 1\] of adafactor"):
        speedrun.main(f"{PROOF}{board}".split())


@pytest.mark.parametrize("shape", [(512, 128), (256, 256), (64, 512)])
def test_the_products_of_newton_schulz_are_those_that_the_compiler_counts(shape: tuple[int, int]) -> None:
    compiled = jax.jit(orthogonalized).lower(jax.ShapeDtypeStruct((1, *shape), "float32")).compile()
    counted = compiled.cost_analysis()["flops"]
    assert 1.0 <= counted / proof.newton_schulz_flops([shape]) < 1.05  # and sums beside the products


# Three rows of Aozora's index: a work without copyright, one whose translation is under copyright, and one more.
INDEX = """作品ID,作品名,作品著作権フラグ,人物ID,人物著作権フラグ
"046340","ファラデーの伝","なし","001234","なし"
"054333","食品の混ぜ物処理および調理の毒物（1820）","あり","001657","なし"
"046512","菊の根分をしながら","なし","001245","なし"
"""
NOTES = "\r\n底本：「作品」\r\nこのファイルは、青空文庫で作られました。あたったのは、ボランティアの皆さんです。\r\n"


def test_a_corpus_of_aozora_has_what_is_free_once_and_is_held_out_by_author(tmp_path: Path) -> None:
    sentence = "｜青空《あおぞら》の※［＃「雨／鬼」、U+9B57］と※［＃「口＋世」、第3水準1-15-8］。"
    for author in range(300):
        for number, kind in ((10 * author + 1, "txt"), (10 * author + 1, "ruby"), (10 * author + 2, "ruby")):
            folder = tmp_path / f"clone/cards/{author:06}/files/{number}_{kind}_9"
            folder.mkdir(parents=True)
            text = f"題\r\n人\r\n\r\n-----------------------\r\n記号\r\n-----------------------\r\n\r\n　{number}{kind}"
            notes = NOTES + ("クリエイティブ・コモンズで公開します。" if author == 7 else "")
            (folder / f"{number}_{kind}_9.txt").write_bytes((text + sentence * 40 + notes).encode("cp932"))
    for author, number in (("001657", "54333"), ("001245", "46512")):
        folder = tmp_path / f"clone/cards/{author}/files/{number}_ruby_9"
        folder.mkdir(parents=True)
        (folder / f"{number}_ruby_9.txt").write_bytes(("題\r\n\r\n" + sentence * 40 + NOTES).encode("cp932"))
    (tmp_path / "index.csv").write_text(INDEX, encoding="utf-8-sig")
    said = aozora.make(tmp_path / "clone", tmp_path / "index.csv", tmp_path)
    rows = [json.loads(line) for line in (tmp_path / "ja_aozora.jsonl").read_text(encoding="utf-8").splitlines()]
    assert len(rows) == said["documents"] == 599
    assert (said["left_out"], said["index"]) == (3, str(tmp_path / "index.csv"))
    assert rows[0]["text"] == "1ruby" + "青空の魗と啞。" * 40
    assert {row["author"] for row in rows} >= {"000000", "001245"} and "001657" not in {row["author"] for row in rows}
    part = aozora.make(tmp_path / "clone", None, tmp_path / "part", percent=20)
    lines = (tmp_path / "part/ja_aozora.jsonl").read_text(encoding="utf-8").splitlines()
    assert 80 < part["documents"] == len(lines) < 160  # of 601, without an index
    text = divided(str(tmp_path / "ja_aozora.jsonl"), tmp_path / "board")
    authors = {row["text"]: row["author"] for row in rows}
    parts = [
        {authors[json.loads(line)["text"]] for line in path.read_text(encoding="utf-8").splitlines()}
        for path in (text.train, text.evaluated(False), text.evaluated(True))
    ]
    assert all(parts) and not (parts[0] & parts[1] or parts[0] & parts[2] or parts[1] & parts[2])


@pytest.mark.night
def test_the_example_goes_from_a_clone_to_fills_and_resumes(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    texts = tmp_path / "texts"
    words = [
        ["私は", "彼女は", "父は", "猫は"],
        ["古い", "白い", "遠い"],
        ["町で", "川で", "家で"],
        ["本を", "花を", "夢を"],
    ]
    for number in range(80):
        folder = texts / f"cards/{number:06}/files/{number}_ruby_9"
        folder.mkdir(parents=True)
        lines = ("".join(random.choice(word) for word in words) + f"{number}見た。" for _ in range(200))
        (folder / f"{number}_ruby_9.txt").write_bytes(("題\r\n人\r\n\r\n" + "".join(lines) + NOTES).encode("cp932"))
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@b"]
    for command in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "works"]):
        subprocess.run([*git, *command], cwd=texts, check=True)
    shutil.copytree(ROOT / "examples", tmp_path / "clone/examples", ignore=shutil.ignore_patterns("runs"))
    for name in ("limba", "benchmarks", "gin", ".venv"):
        (tmp_path / "clone" / name).symlink_to(ROOT / name)
    script = tmp_path / "clone/examples/aozora.sh"
    variables = os.environ | {"AOZORA": str(texts)}
    said = [
        subprocess.run(["bash", script, f"TRAIN_STEPS={steps}"], env=variables, capture_output=True, text=True)
        for steps in (2, 3)
    ]
    assert all(run.returncode == 0 for run in said), said
    assert "ja_tiny/checkpoints" in said[0].stdout and "resumes at step 2" in said[1].stdout + said[1].stderr


def test_an_index_of_other_columns_is_refused(tmp_path: Path) -> None:
    (tmp_path / "other.csv").write_text("work,flag\n1,x\n", encoding="utf-8")
    with pytest.raises(InputError, match="lacks the columns 作品ID"):
        aozora.held(tmp_path / "other.csv")
