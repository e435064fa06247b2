"""Multiple choice, questions, texts that are written, lemmas: layouts, figures, and what is said of other files."""

import dataclasses
import json
import re
from pathlib import Path

import pytest
import torch
import transformers

import limba
from limba.config import InputError
from limba.tools.results.kinds import few_shot
from limba.tools.results.kinds.choices import MultipleChoice
from limba.tools.results.kinds.learned import Example, Lemmas, NamedEntities, Parts
from limba.tools.results.kinds.writing import Questions, Writing
from limba.tools.results.protocol import QUICK
from tests import tiny
from tests.export.runs import folder_of
from tests.results.test_pairs import LANGUAGE_MODELS

BELEBELE = [
    {"flores_passage": "The cat is here.", "question": f"Who is here, {n}?", "correct_answer_num": str(n % 2 + 1)}
    | {"mc_answer1": "the cat", "mc_answer2": "a dog that is old"}
    for n in range(8)
]
SQUAD = {
    "data": [
        {
            "paragraphs": [
                {
                    "context": f"In {year} the war ended.",
                    "qas": [{"question": "When?", "answers": [{"text": f"the {year}"}, {"text": str(year)}]}],
                }
                for year in years
            ]
        }
        for years in ((1900, 1910), (1920,))
    ]
}


def choices_of(folder: Path, **fields: object) -> MultipleChoice:
    (folder / "b.jsonl").write_text("".join(json.dumps(row) + "\n" for row in BELEBELE))
    return MultipleChoice(
        "b",
        "b.jsonl",
        ("flores_passage", "question"),
        ("mc_answer1", "mc_answer2"),
        "correct_answer_num",
        first=1,
        **fields,  # pyright: ignore[reportArgumentType]
    )


def test_a_language_models_choice_is_that_of_transformers_likelihoods(vocabulary, tmp_path) -> None:
    task = choices_of(tmp_path, shots=1, train="b.jsonl")
    found = task.read(str(tmp_path))
    assert found[1].question.startswith("The cat is here. Who is here, 0? the cat\n\nThe cat is here. Who is here, 1?")
    assert task.tests(found)[1] == "The cat is here. Who is here, 1?"
    folder = folder_of(next(iter(LANGUAGE_MODELS.values())), vocabulary, tmp_path / "model")
    outcome = task.measure(limba.load(folder), found)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    network = transformers.AutoModelForCausalLM.from_pretrained(folder).eval()
    hits = []
    for each in found:
        read = tokenizer(each.question, return_tensors="pt").input_ids
        scores = []
        for answer in each.answers:
            written = tokenizer(answer, return_tensors="pt").input_ids[:, 1:]  # without the start
            with torch.no_grad():
                logits = torch.log_softmax(network(torch.cat([read, written], 1)).logits[0], dim=-1)
            scores.append(float(logits[read.shape[1] - 1 : -1].gather(1, written[0][:, None]).sum()))
        hits.append(scores.index(max(scores)) == each.right)
    assert outcome.figures["accuracy"] == 100 * sum(hits) / len(hits)
    assert task.floors(found) == {
        "chance": {"accuracy": 50.0, "accuracy per byte": 50.0},
        "majority": {"accuracy": 50.0},
    }


def test_a_t5_fills_the_gap_after_a_question(vocabulary, tmp_path) -> None:
    task = choices_of(tmp_path)
    trained = limba.load(folder_of(tiny.model(vocab_size=1_024), vocabulary, tmp_path / "model"))
    found = task.read(str(tmp_path))
    scores = [
        trained.log_likelihoods(
            [(f"{each.question} <extra_id_0>", f"<extra_id_0> {a} <extra_id_1>") for a in each.answers]
        )
        for each in found
    ]
    right = [int(score.argmax()) == each.right for score, each in zip(scores, found, strict=True)]
    assert task.measure(trained, found).figures["accuracy"] == 100 * sum(right) / len(right)


def test_answers_are_judged_as_squad_and_jglue_do(tmp_path) -> None:
    (tmp_path / "squad.json").write_text(json.dumps(SQUAD))
    (tmp_path / "train.json").write_text(json.dumps(SQUAD).replace("19", "18"))
    task = Questions("q", "train.json", "squad.json", dev="train.json")
    with pytest.raises(InputError, match="is in another part of q too"):
        task.read(str(tmp_path))
    parts = dataclasses.replace(task, dev=None).read(str(tmp_path))
    assert [each.inputs for each in parts.test][:1] == ["When? | In 1900 the war ended."]
    judged = task.judge(parts.test, ["1900", "The 1910!", "in 1920 then"], parts)
    assert judged.figures == pytest.approx({"exact match": 200 / 3, "F1": 100 * (1 + 1 + 0.5) / 3})
    letters = dataclasses.replace(task, letters=True)
    example = parts.test[0]._replace(tags=("東京都",))
    assert letters.judge([example], ["東京"], parts).figures == pytest.approx({"exact match": 0, "F1": 80})
    (tmp_path / "squad.json").write_text('{"data": [{"title": "x"}]}')
    with pytest.raises(InputError, match="squad.json is not in SQuAD's layout"):
        list(task.examples(tmp_path / "squad.json"))


def test_lines_of_two_files_are_pairs_and_judged_by_sacrebleu(tmp_path) -> None:
    import sacrebleu

    for name, lines in {"en": "One is here.\nTwo are there.\n", "ro": "Unul e aici.\nDoi sunt acolo.\n"}.items():
        (tmp_path / f"{name}.devtest").write_text(lines)
        (tmp_path / f"{name}.dev").write_text(lines.replace(".", "!") * 12)
    targets = {"en.dev": "ro.dev", "en.devtest": "ro.devtest"}
    task = Writing("mt", "en.dev", "en.devtest", targets=targets, rouge=True)
    parts = task.read(str(tmp_path), dataclasses.replace(QUICK, most_train=3))
    assert parts.test[1][:2] == ("Two are there.", "Doi sunt acolo.") and len(parts.train) <= 3
    figures = task.judge(parts.test, ["Unul e acolo.", "Doi sunt acolo."], parts).figures
    references = [["Unul e aici.", "Doi sunt acolo."]]
    assert figures["BLEU"] == sacrebleu.corpus_bleu(["Unul e acolo.", "Doi sunt acolo."], references).score
    assert figures["chrF++"] > 60 and figures["ROUGE-L"] == pytest.approx(100 * (2 / 3 + 1) / 2)
    assert set(task.floors(parts)) == {"copied input"}
    (tmp_path / "ro.dev").write_text("Unul\n")
    with pytest.raises(InputError, match=re.escape("en.dev has 24 lines, and ") + ".*ro.dev 1; give files whose lines"):
        task.read(str(tmp_path))


def test_japanese_and_thai_that_are_nearly_right_have_high_figures(tmp_path) -> None:
    task = Writing("mt", "train.tsv", "test.tsv", rouge=True)
    for text, nearly in {
        "私は東京で新しい本を買いました。": "私は京都で新しい本を買いました。",
        "ฉันซื้อหนังสือใหม่": "ฉันซื้อหนังสือเก่า",
    }.items():
        figures = task.judge([Example("", text, "")], [nearly], Parts([], [], [], 0)).figures
        assert figures["BLEU-char"] > 50 and figures["ROUGE-L"] > 70


def test_a_language_model_reads_shots_and_writes_what_transformers_does(vocabulary, tmp_path, monkeypatch) -> None:
    judge, seen = Writing.judge, list[str]()
    monkeypatch.setattr(Writing, "judge", lambda *given: seen.extend(given[2]) or judge(*given))
    sources = [f"the module {word} it" for word in ("is", "was", "finds", "opens")]
    for name, lines in {"a.dev": sources * 6, "b.dev": [f"{s} too" for s in sources] * 6}.items():
        (tmp_path / name).write_text("\n".join(f"{line} {n}" for n, line in enumerate(lines)) + "\n")
    (tmp_path / "a.test").write_text("One is here.\nTwo are there.\n")
    (tmp_path / "b.test").write_text("Unul e aici.\nDoi sunt acolo.\n")
    task = Writing("mt", "a.dev", "a.test", targets={"a.dev": "b.dev", "a.test": "b.test"}, shots=2)
    parts = task.read(str(tmp_path))
    first, second = (f"{parts.train[n].inputs} => {parts.train[n].targets} ### " for n in (0, len(parts.train) // 2))
    given = few_shot.prompts(task, parts)
    assert given == [f"{first}{second}One is here. =>", f"{first}{second}Two are there. =>"]
    folder = folder_of(tiny.language_model(vocab_size=1_024, emb_dim=32), vocabulary, tmp_path / "model")
    trained = limba.load(folder)
    figures = few_shot.measure(trained, task, parts).figures
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    network = transformers.LlamaForCausalLM.from_pretrained(folder).eval()
    longest = max(len(trained.vocabulary.encode(each.targets)) + 1 for each in (*parts.train, *parts.dev))
    for prompt, ours in zip(given, seen, strict=True):
        ids = read = tokenizer(prompt, return_tensors="pt").input_ids
        for _ in range(longest):
            with torch.no_grad():
                logits = network(ids).logits[:, -1]
            logits[:, [0, *range(800, 1_024)]] = -torch.inf  # the start, sentinels, rows without a piece
            ids = torch.cat([ids, logits.argmax(-1, keepdim=True)], 1)
        written = ids[0, read.shape[1] :].tolist()
        written = written[: written.index(1)] if 1 in written else written
        theirs = few_shot.answer_of(tokenizer.decode(written)).partition("\ufffd")[0]
        assert theirs and ours.startswith(theirs)
    assert set(figures) == {"chrF++", "BLEU"} and any(seen)
    quick = few_shot.measure(trained, task, parts, QUICK)
    assert quick.figures == figures and set(quick.intervals) == {"chrF++", "BLEU"}
    assert all(quick.intervals[name][0] <= figures[name] <= quick.intervals[name][1] for name in figures)


def test_lemmas_and_wikiann(tmp_path) -> None:
    row = "1\t{0}\t{1}\tNOUN\t_\t_\t0\troot\t_\t_\n\n"
    (tmp_path / "train.conllu").write_text("".join(row.format(f"fete{n}", "fată") for n in range(20)))
    (tmp_path / "test.conllu").write_text(row.format("mere", "măr") + row.format("fete3x", "fete3x"))
    task = Lemmas("lemmas", "train.conllu", "test.conllu")
    parts = task.read(str(tmp_path))
    assert task.judge(parts.test, ["măr", "x y"], parts).figures == {"accuracy": 50.0}
    assert task.judge(parts.test, ["măr", "x y"], parts).notes == {"malformed": 1}
    assert task.floors(parts) == {"majority": {"accuracy": 50.0}}, "a new word is its own lemma"
    (tmp_path / "train.tsv").write_text("ro:Ana\tB-PER\nro:din\tO\nro:Cluj\tB-LOC\n\nro:a:b\tO\n")
    names = NamedEntities("ner", "train.tsv", "train.tsv", tokens=0, tags=1)
    assert [each.inputs for each in names.examples(tmp_path / "train.tsv")] == ["Ana din Cluj", "a:b"]
    (tmp_path / "train.jsonl").write_text('{"tokens": ["Ana", "din"], "ner_tags": [1, 0]}\n')
    numbered = dataclasses.replace(names, names=("O", "B-PER"))
    assert [each.targets for each in numbered.examples(tmp_path / "train.jsonl")] == ["PER Ana"]
    with pytest.raises(InputError, match=re.escape("line 1 has the tag 1, and the task ner 0 names; add them")):
        list(names.examples(tmp_path / "train.jsonl"))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (
            {"correct_answer_num": "3"},
            "line 1: the column correct_answer_num is '3'; give the number of an answer, 1 to 2",
        ),
        ({"question": None}, "line 1 has no column question"),
    ],
)
def test_other_questions_are_refused(change, says, tmp_path) -> None:
    task = choices_of(tmp_path)
    row = {name: value for name, value in (BELEBELE[0] | change).items() if value is not None}
    (tmp_path / "b.jsonl").write_text(json.dumps(row) + "\n")
    with pytest.raises(InputError, match=re.escape(says)):
        task.read(str(tmp_path))
