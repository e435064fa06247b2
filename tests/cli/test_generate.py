"""`limba generate`, also with --score: combinations of flags, long inputs, one writer, and the commands of the docs."""

import argparse
import dataclasses
import itertools
import json
import re
import shlex
import shutil
from pathlib import Path

import pytest

import limba
from limba.cli import generate, main
from limba.config import InputError
from limba.inference import line_files, source
from tests.cli.test_use import error_of, lines, workdir  # noqa: F401  a run
from tests.export.runs import write_run
from tests.tiny import language_model

ROOT = Path(__file__).parent.parent.parent
LONG = "Sentence number one is here. And a second one! " * 6  # 288 bytes; the run reads 128 tokens
BATCH = "--gin.BATCH_SIZE=8"


def given(**values: object) -> argparse.Namespace:
    """What the parser of the command gives."""
    flags = [f"--{'num' if name == 'num_samples' else name}={value}" for name, value in values.items()]
    return generate._parser().parse(["run", *flags])


@pytest.fixture
def language_run(workdir: Path) -> Path:  # noqa: F811
    """A language model's run, of random parameters, with its vocabulary beside the T5's."""
    write_run(
        workdir / "lm", language_model(vocab_size=384, num_decoder_layers=1, emb_dim=32, num_heads=2, head_dim=16)
    )
    return workdir / "lm"


CHOICES = {
    "temperature": (None, 0, 0.7),
    "top_k": (None, 0, 5),
    "top_p": (None, 0.9, 1),
    "num_beams": (None, 1, 3),
    "num_samples": (None, 2),
}


@pytest.mark.parametrize("kind", ["run", "lm"])
def test_every_combination_gives_what_it_says_or_one_sentence(kind: str, workdir: Path, language_run: Path) -> None:  # noqa: F811
    trained = limba.load(kind, vocabulary="byte")
    for values in itertools.product(*CHOICES.values()):
        flags = {name: value for name, value in zip(CHOICES, values, strict=True) if value is not None}
        asked = given(**flags)
        draws = [bool(flags.get("temperature")), bool(flags.get("top_k")), flags.get("top_p") == 0.9]
        beams = flags.get("num_beams", 1) > 1
        zero = flags.get("temperature") == 0
        is_sampled = not zero and not beams and (kind == "lm" or any(draws) or "top_p" in flags)
        too_many = flags.get("num_samples", 1) > 1 and not is_sampled and not beams
        if (beams and any(draws) and not zero) or too_many:
            with pytest.raises(InputError, match="give one|raise that, or sample"):
                generate._check_values(asked)
                generate._generation(asked, trained)
            continue
        generate._check_values(asked)
        config = generate._generation(asked, trained)
        assert (config.sample, config.num_beams) == (is_sampled, flags.get("num_beams", 1)), flags
        assert config.num_samples == flags.get("num_samples", 1)
        if is_sampled:
            top_k = 20  # the default of the command for a language model
            if kind == "run" or "top_k" in flags:
                top_k = 5 if flags.get("top_k") == 5 else None
            assert config.top_k == top_k
            assert config.temperature == flags.get("temperature", 0.6 if kind == "lm" else 1.0)


COMBINATIONS = [
    (["--temperature=0"], 1),
    (["--temperature=0", "--top_k=0", "--top_p=1"], 1),
    (["--num_beams=2", "--temperature=0", "--num=2"], 2),
    (["--temperature=0.7", "--top_k=5", "--top_p=0.9", "--num=2"], 2),
]


@pytest.mark.night
@pytest.mark.parametrize("kind", ["run", "lm"])
def test_combinations_generate_in_both_forms(kind: str, workdir: Path, language_run: Path, capsys) -> None:  # noqa: F811
    """Prompts and lines give the same texts, for a T5 and a language model."""
    (workdir / "one.jsonl").write_text('{"inputs": "A small text"}\n')
    for number, (flags, count) in enumerate(COMBINATIONS if kind == "run" else COMBINATIONS[::2]):
        more = [kind, "--vocabulary=byte", "--max_tokens=5", *flags]
        capsys.readouterr()
        assert main.main(["generate", *more, "--prompt=A small text"]) == 0
        printed = capsys.readouterr().out
        assert printed.startswith("== A small text\n") and ("\n2. " in printed) == (count == 2)
        assert main.main(["generate", *more, "--batch_size=8", "--input=one.jsonl", f"--output={number}.jsonl"]) == 0
        (row,) = lines(workdir / f"{number}.jsonl")
        texts = [sample["text"] for sample in row.get("samples", [{"text": row["prediction"]}])]
        shown = "\n".join(f"{i}. {text}" for i, text in enumerate(texts, 1)) if count == 2 else texts[0]
        assert len(texts) == count and printed == f"== A small text\n{shown}\n"


@pytest.mark.night
def test_long_inputs_are_cut_aloud_split_or_refused(workdir: Path, capsys: pytest.CaptureFixture[str]) -> None:  # noqa: F811
    texts = ["short", LONG, "", f"First line.\nSecond, {LONG}"]
    (workdir / "long.jsonl").write_text("".join(json.dumps({"inputs": text}) + "\n" for text in texts))
    command = ["generate", "run", "--max_tokens=60", "--batch_size=8", "--input=long.jsonl"]
    assert main.main([*command, "--output=cut.jsonl"]) == 0
    said = capsys.readouterr().err
    num_tokens = [len(text.encode()) + 1 for text in texts]
    assert f"long.jsonl line 2 has {num_tokens[1]} tokens, and the model reads 128: the rest of it" in said
    assert said.count("the rest of it, and of other long inputs, is not read") == 1, "one warning"
    left = num_tokens[1] + num_tokens[3] - 2 * 128
    assert f"2 inputs were cut to the 128 tokens that the model reads; {left} of their tokens were not read" in said
    rows = lines(workdir / "cut.jsonl")
    assert [row["input_tokens"] for row in rows] == num_tokens
    assert [row["cut_tokens"] for row in rows] == [0, num_tokens[1] - 128, 0, num_tokens[3] - 128]
    assert "segments" not in rows[1]

    assert main.main([*command, "--long_inputs=segments", "--output=split.jsonl"]) == 0
    said = capsys.readouterr().err
    assert "2 inputs were longer than the 26 tokens that are read at once" in said  # 0.9 of the targets' 30
    rows = lines(workdir / "split.jsonl")
    assert [row["cut_tokens"] for row in rows] == [0] * 4
    for row, text in zip(rows, texts, strict=True):
        assert row["inputs"] == text
        if len(text) > 100:
            segments = row["segments"]
            assert row["num_segments"] == len(segments) >= 6
            assert "".join(segment["input"] for segment in segments).replace(" ", "") == re.sub(r"\s", "", text)
            assert all(set(segment) == {"input", "prediction", "score"} and segment["input"] for segment in segments)
            assert row["score"] == pytest.approx(sum(segment["score"] for segment in segments))
            at = 0
            for part in segments:  # every segment's output stands in the whole, in order
                at = row["prediction"].index(part["prediction"], at) + len(part["prediction"])

    sentence = error_of(capsys, *command, "--long_inputs=refuse", "--output=refused.jsonl")
    assert f"line 2 has {num_tokens[1]} tokens, and the model reads 128; split it, or set --long_inputs" in sentence
    assert not (workdir / "refused.jsonl").exists(), "refused before anything is written"
    assert main.main(["generate", "run", f"--prompt={LONG}", "--max_tokens=8"]) == 0
    assert f"Prompt 1 has {len(LONG) + 1} tokens" in capsys.readouterr().err
    assert "--long_inputs: invalid choice: 'no'" in error_of(capsys, *command, "--long_inputs=no")
    assert "another generation" in error_of(capsys, *command, "--long_inputs=segments", "--output=cut.jsonl")


@pytest.mark.slow
def test_an_output_follows_the_content_of_its_input(workdir: Path, capsys: pytest.CaptureFixture[str]) -> None:  # noqa: F811
    (workdir / "a.txt").write_text("one\ntwo\n")
    command = ["generate", "run", "--max_tokens=4", "--output=out.jsonl"]
    assert main.main([*command, "--input=a.txt"]) == 0
    first = lines(workdir / "out.jsonl")
    (workdir / "moved.txt").write_text("one\ntwo\nthree\n")
    assert main.main([*command, "--input=moved.txt"]) == 0
    assert "2 lines are already written" in capsys.readouterr().err
    assert lines(workdir / "out.jsonl")[:2] == first and len(lines(workdir / "out.jsonl")) == 3
    (workdir / "other.txt").write_text("one\n2\nthree\n")
    assert "of another text" in error_of(capsys, *command, "--input=other.txt")
    with line_files.alone("out.jsonl"):
        sentence = error_of(capsys, *command, "--input=moved.txt")
    assert "Another process uses out.jsonl now" in sentence and not (workdir / "out.jsonl.lease").exists()


def test_pairs_that_are_cut_are_said(workdir: Path, capsys: pytest.CaptureFixture[str]) -> None:  # noqa: F811
    pairs = [{"inputs": "a", "targets": "b"}, {"inputs": LONG, "targets": LONG}]
    (workdir / "pairs.jsonl").write_text("".join(json.dumps(pair) + "\n" for pair in pairs))
    assert (
        main.main(["generate", "run", "--score", "--batch_size=8", "--input=pairs.jsonl", "--output=scored.jsonl"]) == 0
    )
    num_tokens = len(LONG) + 1
    lengths = limba.load("run").lengths
    cut = 2 * num_tokens - lengths["inputs"] - lengths["targets"]
    assert [row["cut_tokens"] for row in lines(workdir / "scored.jsonl")] == [0, cut]
    assert f"1 of the pairs were longer than the model's lengths; {cut} of their tokens were not read" in (
        capsys.readouterr().err
    )


def documented() -> list[str]:
    """The commands of README, docs, headers of gin files and --help that write, fill or score text."""
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "gin").rglob("*.gin")]
    pages.append(ROOT / "limba" / "cli" / "generate.py")
    commands = []
    for page in pages:
        for line in re.sub(r" *\\\n#?", " ", page.read_text()).splitlines():
            plain = re.sub(r"^\s*#\s*|`[^`]*`", "", line).strip()
            if match := re.match(r"(?:.*: )?(limba generate [^;`]*)", plain):
                commands.append(match[1].split("  #")[0].strip().rstrip("."))
    return sorted({command for command in commands if "theirs" not in command})


def test_the_documented_commands_are_found() -> None:
    assert len(documented()) >= 8
    for flag in ("--num_beams", "--fill", "--score"):
        assert any(flag in command for command in documented()), flag


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--fill", "--score"], "Both --fill and --score are given; give one."),
        (["--fill", "--num=3"], "--num is about texts that are written, and --fill writes none; leave one out."),
        (["--score", "--max_tokens=3"], "--max_tokens is about texts that are written, and --score writes none"),
        (["--fill", "--keep_sentinels"], "--keep_sentinels is about texts that are written, and --fill writes none"),
        (["--score", "--long_inputs=cut"], "--long_inputs is about texts that are written"),
        (["--top=3"], "--top is the number of fills of a gap; add --fill, or leave it out."),
        (["--score", "--top=3"], "--top is the number of fills of a gap"),
        (["--score", "--prompt=a"], "--score reads pairs of an input and a target, not --prompt; give --input=FILE."),
        (["--fields=a,b", "--prompt=a"], "--fields is a,b; give one name, such as inputs."),
        (["--fill", "--fields=", "--prompt=a"], "--fields is ; give one name"),
        (["--fill", "--prompt=a ___", "--input=in.txt"], "Both --prompt and --input are given; give one."),
        (["--fill", "--input=in.txt", "--output=out.txt"], "--output is out.txt; with --fill it is a .jsonl file"),
    ],
)
def test_flags_of_two_doors_are_one_sentence(flags: list[str], words: str) -> None:
    """Before a model is looked for: there is none of this name."""
    with pytest.raises(InputError) as refused:
        generate.run(["nowhere", *flags])
    assert words in str(refused.value)


def test_help_shows_the_three_doors(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        generate.run(["--help"])
    text = capsys.readouterr().out
    filling, writing = (
        text.index(f"\n{title}") for title in ("with --fill:\n", "writing, without --fill and --score:\n")
    )
    assert text.index("\n  --fill ") < text.index("\n  --score ") < filling < text.index("\n  --top N ") < writing
    assert all(f"\n  {flag} " in text[writing:] for flag in generate.NAMES.values())


def answer(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[str, str]:
    """What the command prints on stdout, and on stderr but for the texts that --max_tokens ends."""
    capsys.readouterr()
    assert main.main(["generate", *argv]) == 0, argv
    said = capsys.readouterr()
    return said.out, "".join(line for line in said.err.splitlines(True) if not line.startswith("--max_tokens ended"))


@pytest.mark.slow
def test_a_t5_that_has_learned_only_gaps_fills_those_of_a_prompt(
    workdir: Path,  # noqa: F811
    capsys: pytest.CaptureFixture[str],
) -> None:
    for gap in ("<extra_id_0>", "___"):
        prompt = f"--prompt=A {gap} gap"
        filled, said = answer(capsys, "run", prompt)
        assert filled == answer(capsys, "run", "--fill", prompt)[0] and filled.startswith(f"== A {gap} gap\n1. ")
        (sentence,) = said.splitlines()
        assert sentence.endswith(
            "has learned to fill gaps, not to write texts; the prompt's gaps are filled, as with --fill."
        )
    assert answer(capsys, "run", "--prompt=A <extra_id_0> gap", "--max_tokens=2", "--keep_sentinels")[1] == ""
    (sentence,) = answer(capsys, "run", "--prompt=A ___ gap", "--max_tokens=2")[1].splitlines()
    assert sentence == "A prompt has a gap: with --fill the model says which words are likeliest there."
    (sentence,) = answer(capsys, "run", "--prompt=No gap", "--max_tokens=2")[1].splitlines()
    assert "has learned to fill gaps, not to write texts: write ___ in place of a word, or fine-tune" in sentence


def test_what_a_model_has_learned_is_known_of_a_run_and_of_what_is_saved_from_it(
    workdir: Path,  # noqa: F811
    language_run: Path,
) -> None:
    trained = limba.load("run")
    trained.save("folder")
    assert source.only_fills_gaps(source.find("run")) and source.only_fills_gaps(source.find("folder"))
    Path("folder/conversion.json").unlink()
    assert not source.only_fills_gaps(source.find("folder")) and not source.only_fills_gaps(source.find("lm"))
    assert isinstance(trained.config, limba.RunConfig)
    for objective in ("ul2", "prefix_lm", "lm_adaptation"):
        data = dataclasses.replace(trained.config.data, objective=objective)
        other = dataclasses.replace(trained.config, data=data)
        assert not source.only_fills_gaps(dataclasses.replace(trained.source, run=other))


@pytest.mark.slow
def test_a_decoder_only_model_continues_a_prompt_with_a_gap(
    workdir: Path,  # noqa: F811
    language_run: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    command = ["lm", "--vocabulary=byte", "--max_tokens=2"]
    written, said = answer(capsys, *command, "--prompt=A <extra_id_0> gap")
    assert written.startswith("== A <extra_id_0> gap\nA ") and "does not take <extra_id_0> as a gap" in said
    assert answer(capsys, *command, "--prompt=A text")[1] == ""


STANDS_FOR_A_MODEL = re.compile(r"[A-Z_]+DIR|FOLDER|runs/\S+|user/name")


@pytest.mark.night
def test_each_documented_command_runs(workdir: Path, language_run: Path) -> None:  # noqa: F811
    (workdir / "texts.txt").write_text("A text.\n")
    for folder in ("gin",):
        shutil.copytree(ROOT / folder, workdir / folder)
    for number, command in enumerate(documented()):
        is_language = "昔々" in command or "Once upon" in command or "LANGUAGE" in command or "=targets" in command
        _, _, *words = shlex.split(command)
        model = "lm" if is_language else "run"
        words = [model if STANDS_FOR_A_MODEL.fullmatch(word) else word for word in words]
        if any(word.startswith("--gin_file") for word in words):  # the sizes of the tiny run in place of base
            words = [word for word in words if not word.startswith(("--gin_file", "--checkpoint", "--gin.", "--vocab"))]
            words = ["--gin_file=run/config.gin", BATCH, *words]
        else:
            words += ["--vocabulary=byte"] if is_language else []
        words += ["--max_tokens=4"] if not {"--fill", "--score"} & set(words) else []
        if "--fill" in words:  # each text has to have a gap
            (workdir / "in.txt").write_text("A text with <extra_id_0> gap.\nAnother ___.\n")
        assert main.main(["generate", *(word for word in words if word)]) == 0, command
        for path in [*workdir.glob("out.*"), *workdir.glob("scored.*"), *workdir.glob("fills.*")]:
            path.rename(workdir / f"kept-{number}-{path.name}")
