"""`limba results`: a table that is computed once, tasks as files have them, and errors before time is spent."""

import dataclasses
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import huggingface_hub
import numpy as np
import pytest

import limba
from limba.cli import main
from limba.config import ConfigError, InputError
from limba.tools.results.kinds.bits import BitsPerByte
from limba.tools.results.kinds.fine_tuned import Classification, Example, NamedEntities, PartOfSpeech, Similarity
from limba.tools.results.protocol import QUICK
from limba.tools.results.results import TABLES
from limba.tools.results.scoring import open_scorers
from limba.tools.results.suites import read_suite, read_task
from tests import tiny
from tests.export.runs import folder_of, write_run
from tests.waiting import wait_until

# Two sentences of RONEC (MIT licence).
RONEC = """# global.columns = ID FORM LEMMA UPOS XPOS FEATS HEAD DEPREL DEPS MISC RONEC:CLASS
# sent_id = 3045
1\tPreședintele\tpreședinte\tNOUN\t_\t_\t5\tnsubj\t_\t_\tB-PERSON
2\tIon\tIon\tPROPN\t_\t_\t1\tnmod\t_\t_\tI-PERSON
3\tIliescu\tIliescu\tPROPN\t_\t_\t2\tflat\t_\t_\tI-PERSON
4\ta\tavea\tAUX\t_\t_\t5\taux\t_\t_\tO
5\tparticipat\tparticipa\tVERB\t_\t_\t0\troot\t_\t_\tO

# sent_id = 1
1\tVardar\tVardar\tPROPN\t_\t_\t0\troot\t_\t_\tB-ORGANIZATION
2\tSkopje\tSkopje\tPROPN\t_\t_\t1\tflat\t_\t_\tI-ORGANIZATION
"""


@pytest.mark.slow
def test_a_second_call_computes_nothing_and_a_changed_file_is_seen(workdir, vocabulary, capsys) -> None:
    folder_of(tiny.model(vocab_size=1_024), vocabulary, workdir / "model")
    command = ["results", "model", "--suite=./suite.gin", "--output=out", "--card"]
    assert main.main(command) == 2 and "README.md does not exist, so --card has no card" in capsys.readouterr().err
    (workdir / "model" / "README.md").write_text("---\nlanguage: en\nlicense: mit\n---\n# A model\n")
    assert main.main(command) == 0, capsys.readouterr().err
    assert "4 outcomes computed" in capsys.readouterr().out
    assert set(TABLES) <= {path.name for path in (workdir / "out").iterdir()}
    table = (workdir / "out" / "results.json").read_text()
    cells = {(cell["task"], cell["model"]): cell for cell in json.loads(table)["cells"]}
    assert cells["agreement", "chance"]["mean"] == 50 and ("text", "chance") not in cells
    assert cells["text", "model, random weights"]["mean"] > 1 and cells["agreement", "model"]["over_examples"]
    verb = cells["agreement", "model"]["parts"]["verb"]
    held = cells["text", "model"]["parts"]["held.txt"]
    assert verb == {
        "mean": cells["agreement", "model"]["mean"],
        "interval": cells["agreement", "model"]["over_examples"],
    }
    assert held == {"mean": cells["text", "model"]["mean"], "interval": None}
    markdown, tex = ((workdir / "out" / f"results.{suffix}").read_text() for suffix in ("md", "tex"))
    assert markdown.startswith(
        "| task | figure | model | mean | 95% over examples | 95% over seeds | seeds | protocol | notes |"
    )
    assert "\n|  |  | model, random weights | " in markdown and "\n|  |  | chance | 50.00 |" in markdown
    assert tex.startswith("\\begin{tabular}{lllrrrrll}\n\\toprule") and " \\\\\n\\bottomrule" in tex
    notes = json.loads(table)["notes"]
    assert tex.partition("\\end{tabular}\n")[2].splitlines() == [f"% {n}. {note}" for n, note in enumerate(notes, 1)]
    (number,) = cells["text", "model"]["notes"]
    assert notes[number - 1].startswith("agreement, text, model: log likelihood of the words that stand in gaps")
    assert any(note.startswith("text: fewer bits are better") for note in notes)
    low, high = cells["text", "model"]["over_examples"]
    assert low < cells["text", "model"]["mean"] < high and cells["text", "model"]["seeds"] is None

    picture = ElementTree.fromstring((workdir / "out" / "results.svg").read_text())
    bars = [element for element in picture.iter() if element.tag.endswith("rect")]
    assert len(bars) == len(cells) and {bar.get("class") for bar in bars} == {"b", "o"}

    written = (workdir / "model" / "README.md").read_text()
    data = huggingface_hub.ModelCard(written).data
    assert isinstance(data, huggingface_hub.ModelCardData) and data.eval_results
    results = {result.dataset_type: result for result in data.eval_results}
    assert set(results) == {"suite/agreement", "suite/text"} and data.license == "mit"
    assert results["suite/agreement"].metric_value == cells["agreement", "model"]["mean"]
    assert "# A model" in written and markdown.partition("\n")[0] in written

    assert main.main(command) == 0
    assert "0 outcomes computed" in capsys.readouterr().out
    assert (workdir / "out" / "results.json").read_text() == table
    assert (workdir / "model" / "README.md").read_text() == written, "the section is replaced"
    (workdir / "pairs.tsv").write_text("good\tbad\nOne is.\tOne are.\n")
    assert main.main(command) == 0
    assert "2 outcomes computed" in capsys.readouterr().out
    kept = next((workdir / "out" / "outcomes").glob("text-*"))
    whole = json.loads(kept.read_text())
    edited = {**whole, "outcome": {**whole["outcome"], "predictions": whole["outcome"]["predictions"][1:]}}
    for damaged in ("{", json.dumps(edited), "[]", "[" * 200_000):
        kept.write_text(damaged)
        assert main.main(command) == 2
        error = capsys.readouterr().err
        assert f"{kept.name} cannot be read (" in error and "remove it, and it is computed again" in error


@pytest.mark.slow
def test_checkpoints_of_a_run_are_columns_by_their_paths(workdir, vocabulary, capsys) -> None:
    write_run(workdir / "run", tiny.model(vocab_size=1_024), steps=(5, 10))
    shutil.copy(vocabulary, workdir / "run" / "spiece.model")
    steps = ["run/checkpoints/5", "run/checkpoints/10"]
    command = ["results", *steps, "--suite=./suite.gin", "--tasks=agreement", "--output=out"]
    assert main.main(command) == 0, capsys.readouterr().err
    cells = json.loads((workdir / "out" / "results.json").read_text())["cells"]
    assert {"run, step 5", "run, step 10"} <= {cell["model"] for cell in cells}
    assert (workdir / "run" / "results" / "suite.svg").read_text() == (workdir / "out" / "results.svg").read_text()


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("a/Pairs.file = 'b'", "suite.gin line 1: Pairs is not a kind of task"),
        ("a/MinimalPairs.fil = 'b'", "line 1: MinimalPairs has no fil; did you mean file?"),
        ("MinimalPairs.file = 'b'", "line 1 names no task; write NAME/MinimalPairs.file = …"),
        ("a/MinimalPairs.most = 5", "the task a has no file; add a/MinimalPairs.file = …"),
        ("a/MinimalPairs.file = 5", "line 1: MinimalPairs.file is 5; give a string."),
        ("a/MinimalPairs.file = 'none.tsv'", "none.tsv does not exist; name the folder of the suite's files as --data"),
        ("suite.languages = 'ro'", "line 1 sets suite.languages; a suite has suite.language"),
        ("suite.language = 'ro'", "suite.gin lists no tasks"),
        ("a/MinimalPairs.file = 'pairs.tsv'", "model does not exist: looked there for a Limba run"),
    ],
)
def test_what_is_wrong_is_said_before_a_model_is_opened(line, says, workdir, capsys) -> None:
    (workdir / "suite.gin").write_text(line + "\n")
    assert main.main(["results", "model", "--suite=./suite.gin"]) == 2
    error = capsys.readouterr().err
    assert says in error and error.count("\n") == 1, error


@pytest.mark.slow
def test_some_tasks_of_a_suite_are_chosen(workdir, vocabulary, capsys) -> None:
    folder_of(tiny.model(vocab_size=1_024), vocabulary, workdir / "model")
    command = ["results", "model", "--suite=./suite.gin", "--output=out"]
    assert main.main([*command, "--tasks=agreement,tekst"]) == 2
    said = "--tasks names tekst, and the suite suite has the tasks agreement, text; give some of them with commas."
    assert said in capsys.readouterr().err
    assert main.main([*command, "--tasks=agreement"]) == 0, capsys.readouterr().err
    document = json.loads((workdir / "out" / "results.json").read_text())
    assert {cell["task"] for cell in document["cells"]} == {"agreement"}


@pytest.mark.slow
def test_a_task_without_its_files_is_left_out_with_their_address(workdir, vocabulary, capsys) -> None:
    folder_of(tiny.model(vocab_size=1_024), vocabulary, workdir / "model")
    with (workdir / "suite.gin").open("a") as suite:
        suite.write(
            "tags/PartOfSpeech:\n  train = 'a.conllu'\n  test = 'b.conllu'\n  address = 'https://one.example/x'\n"
        )
    (workdir / "held.txt").unlink()
    assert main.main(["results", "model", "--suite=./suite.gin", "--output=out"]) == 0, capsys.readouterr().err
    printed = capsys.readouterr()
    says = "tags is left out: a.conllu is not in .; it is published at https://one.example/x"
    assert f"limba results: {says}\n" in printed.err and f"2. {says}\n" in printed.out
    assert "text is left out: held.txt is not in .\n" in printed.err
    assert says in (workdir / "out" / "results.json").read_text()


SHIPPED = sorted(path.stem for path in (Path(limba.__file__).parents[1] / "gin" / "suites").glob("*.gin"))


@pytest.mark.parametrize("name", SHIPPED)
def test_suites_that_are_shipped_can_be_read(name) -> None:
    suite = read_suite(name)
    assert suite.name == name and suite.language == (None if name in ("any", "wikiann") else name) and suite.tasks


@pytest.mark.parametrize("name", ["ro", "nb", "ja"])
def test_the_comments_of_a_suite_have_a_command_that_downloads_each_file(name) -> None:
    text = (Path(limba.__file__).parents[1] / "gin" / "suites" / f"{name}.gin").read_text()
    downloaded = re.findall(r"^#   curl -fL https://\S+ -o (\S+)", text, re.MULTILINE)
    downloaded += re.findall(r"^#   hf download \S+ (\S+) --repo-type=dataset --local-dir \.", text, re.MULTILINE)
    assert sorted(downloaded) == sorted({file for task in read_suite(name).tasks for file in task.files})


def test_the_suite_of_any_language_reads_two_files(workdir) -> None:
    (workdir / "held_out.txt").write_text("The one is here.\n")
    tasks = [read_task(task, str(workdir)) for task in read_suite("any").tasks]
    assert [task_read.measure is not None for task_read in tasks] == [True, True]
    with pytest.raises(InputError, match="wikiann_.* does not exist"):
        read_task(read_suite("wikiann").tasks[0], str(workdir))


def test_named_entities_of_two_layouts_share_no_sentence(tmp_path) -> None:
    (tmp_path / "train.conllup").write_text(RONEC.replace("\tO\n", "\tSpaceAfter=No|name=O\n"))  # NorNE's way too
    test = [
        {"tokens": ["Vardar-", "Skopje"], "ner_tags": ["B-ORG", "I-ORG"]},
        {"tokens": ["Iliescu"], "ner_tags": ["B-PERSON"]},
    ]
    (tmp_path / "test.json").write_text(json.dumps(test))
    task = NamedEntities(
        "ner", "train.conllup", "test.json", dev="test.json", rename={"ORGANIZATION": "ORG"}, tags="RONEC:CLASS"
    )
    parts = task.read(str(tmp_path))
    tags = ["B-PERSON", "I-PERSON", "I-PERSON", "O", "O"]
    assert [list(example.tags) for example in parts.train] == [tags, ["B-ORG", "I-ORG"]]
    assert parts.labels == ("O", "B-ORG", "I-ORG", "B-PERSON", "I-PERSON")
    assert task.judge(parts.test, [["B-ORG", "I-ORG"], ["O"]]) == pytest.approx(
        {"span F1": 200 / 3, "precision": 100.0, "recall": 50.0}
    )
    known = task.floors(parts)["names of the training part"]
    assert known == [["O", "O"], ["O"]] and task.judge(parts.test, known)["span F1"] == 0
    (tmp_path / "test.json").write_text(json.dumps([{"tokens": ["Vardar", "Skopje"], "ner_tags": ["B-ORG", "I-ORG"]}]))
    with pytest.raises(InputError, match=re.escape("test.json entry 1 has the label ORG, which no example of train")):
        task.read(str(tmp_path))


def test_a_development_part_that_is_drawn_has_whole_documents_and_nothing_of_the_test_part(tmp_path) -> None:
    row = lambda number: {"text": f"Text {number}.", "label": "ab"[number % 2], "document": f"d{number // 2}"}
    (tmp_path / "train.jsonl").write_text("".join(json.dumps(row(number)) + "\n" for number in range(60)))
    (tmp_path / "test.jsonl").write_text("".join(json.dumps(row(number)) + "\n" for number in (0, 2, 80)))
    parts = Classification("c", "train.jsonl", "test.jsonl").read(str(tmp_path))
    drawn = [example.texts[0] for example in parts.dev]
    assert drawn == [f"Text {number}." for number in (1, 20, 21, 40, 41)], "one document in ten, less what is tested"
    assert not {example.document for example in parts.dev} & {example.document for example in parts.train}
    assert len(parts.train) == 53 and parts.left_out == 1
    for name in ("train", "test"):
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row(number)) + "\n" for number in (0, 1)))
    with pytest.raises(InputError, match="each example in them is in test.jsonl too; name a file as its dev"):
        Classification("c", "train.jsonl", "test.jsonl").read(str(tmp_path))
    (tmp_path / "test.jsonl").write_text(json.dumps(row(80)) + "\n")
    with pytest.raises(InputError, match=r"train.jsonl has one document, from which .* name a file as its dev"):
        Classification("c", "train.jsonl", "test.jsonl").read(str(tmp_path))


def test_figures_of_each_kind(tmp_path) -> None:
    rows = "5.0\tA b c\tA b\n0.4\tD\tE\n2.2\tF g\tF\n"
    for name in ("train", "test"):
        (tmp_path / f"{name}.tsv").write_text(rows if name == "test" else rows.replace("\t", "\t- "))
        (tmp_path / f"{name}.conllu").write_text("1\ta\t_\tX\t_\t_\t0\troot\t_\t_\n")
    sts = Similarity("sts", "train.tsv", "test.tsv", dev="test.tsv", score=0, first=1, second=2)
    parts = sts.read(str(tmp_path))
    assert [example.answer for example in parts.test] == [5.0, 0.4, 2.2] and parts.left_out == 0
    assert parts.test[0].texts == ("A b c", "A b") and parts.labels == ()
    quick = read_task(sts, str(tmp_path), dataclasses.replace(QUICK, most_test=2))
    assert quick.parts and quick.parts.test == [parts.test[0], parts.test[1]]
    letters = [(0.0, "彼が行く", "雨です"), (2.0, "彼が行く", "彼は来た"), (4.0, "彼が行く", "彼が行く")]
    others = [Example("", texts, value, str(value)) for value, *texts in letters]
    without_spaces = parts._replace(test=others)
    floors = sts.floors(without_spaces)
    assert sts.judge(others, floors["word overlap"])["Spearman"] == pytest.approx(100)
    assert sts.judge(others, floors["mean"]) == {"Pearson": 0, "Spearman": 0}
    with pytest.raises(InputError, match="Each example of test.tsv is in another part of sts too"):
        Similarity("sts", "test.tsv", "test.tsv", dev="test.tsv", score=0, first=1, second=2).read(str(tmp_path))
    with pytest.raises(InputError, match=re.escape("test.tsv line 1: the column 1 is not a finite number")):
        Similarity("sts", "test.tsv", "test.tsv", score=1, first=1, second=2).read(str(tmp_path))
    with pytest.raises(InputError, match=re.escape("test.tsv line 1 has no column 7; it has 0, 1, 2")):
        Classification("c", "test.tsv", "test.tsv", columns=(7,), label=1).read(str(tmp_path))
    with pytest.raises(ConfigError, match="Classification.columns needs the column of a text, or of two"):
        Classification("c", "test.tsv", "test.tsv", columns=(1, 2, 0), label=1)
    with pytest.raises(InputError, match="conllu line 1 has 10 columns and no column 30"):
        PartOfSpeech("pos", "test.conllu", "test.conllu", tags=30).read(str(tmp_path))


@pytest.mark.slow
def test_bits_per_byte_are_those_of_each_file_and_script(workdir, vocabulary) -> None:
    (workdir / "other.txt").write_text("Здесь один.\nOne is here.\n1 + 1\n")
    task = BitsPerByte("text", ("held.txt", "other.txt"))
    (scorer,) = open_scorers(str(folder_of(tiny.language_model(vocab_size=1_024), vocabulary, workdir / "model")))
    result = task.measure(scorer, task.read(str(workdir)))
    assert set(result.parts) == {"held.txt", "other.txt", "latin script", "cyrillic script", "no script"}
    alone = dataclasses.replace(task, texts=("other.txt",))
    assert alone.measure(scorer, alone.read(str(workdir))).figures["bits per byte"] == result.parts["other.txt"]
    lines = ("Здесь один.", "One is here.", "1 + 1")
    nats = -scorer.log_likelihoods(lines)
    cyrillic = len(lines[0].encode())
    assert result.parts["cyrillic script"] == pytest.approx(nats[0] / np.log(2) / cyrillic, rel=1e-5)


def test_a_model_without_a_vocabulary_is_refused_before_another_one_is_measured(workdir, vocabulary, capsys) -> None:
    folder_of(tiny.model(vocab_size=1_024), vocabulary, workdir / "model")
    shutil.copytree(workdir / "model", workdir / "bare")
    for name in ("spiece.model", "tokenizer.json", "tokenizer_config.json"):
        (workdir / "bare" / name).unlink(missing_ok=True)
    write_run(workdir / "run", tiny.model(vocab_size=1_024))
    for bare in ("bare", "run"):
        assert main.main(["results", "model", bare, "--suite=./suite.gin"]) == 2
        error = capsys.readouterr().err
        assert f"{bare} has no vocabulary beside it, without which no text is read; copy it there." in error
        assert error.count("\n") == 1 and not (workdir / "results").exists()


def test_a_disk_without_room_is_one_sentence(workdir, vocabulary) -> None:
    folder_of(tiny.model(vocab_size=1_024), vocabulary, workdir / "model")
    program = (  # no file can grow
        # Python would keep what it has compiled cut off, for all processes after this one.
        "import resource, runpy, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (64, 64));"
        " sys.dont_write_bytecode = True;"
        " sys.argv = ['limba', 'results', 'model', '--suite=./suite.gin', '--output=out'];"
        " runpy.run_module('limba', run_name='__main__')"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": str(Path(limba.__file__).parent.parent)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 74 and re.fullmatch(r"\S*out\S* cannot be written \(.*\);? .*\n", done.stderr), done
    assert not any(path.is_file() for path in (workdir / "out").rglob("*.json"))


@pytest.mark.slow
def test_what_had_ended_before_a_kill_is_not_repeated(workdir, vocabulary, capsys) -> None:
    folder_of(tiny.model(vocab_size=1_024), vocabulary, workdir / "model")
    command = ["results", "model", "--suite=./suite.gin", "--output=out"]
    program = [sys.executable, "-m", "limba", *command]
    kept = lambda: {path: path.stat().st_mtime_ns for path in (workdir / "out" / "outcomes").glob("*.json")}
    with subprocess.Popen(program, env={**os.environ, "PYTHONPATH": str(Path(limba.__file__).parent.parent)}) as killed:
        wait_until(lambda: kept() or killed.poll() is not None)
        killed.kill()
    before = kept()
    assert 0 < len(before) < 4 and not (workdir / "out" / "results.txt").exists()
    assert main.main(command) == 0, capsys.readouterr().err
    assert f"{4 - len(before)} outcomes computed" in capsys.readouterr().out
    assert before.items() <= kept().items() and len(kept()) == 4
