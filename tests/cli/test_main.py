"""The command `limba`: its commands, the examples of their --help, and what `import limba` costs."""

import json
import re
import shlex
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import limba
from limba.cli import main

ROOT = Path(__file__).resolve().parents[2]


def help_of(command: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit) as ended:
        main.main([*command, "--help"])
    assert ended.value.code in (0, None)
    return capsys.readouterr().out


def test_help_lists_the_commands(capsys: pytest.CaptureFixture[str]) -> None:
    for argv in ([], ["--help"]):
        assert main.main(argv) == 0
        printed = capsys.readouterr().out
        assert all(f"  {command} " in printed for command in main.COMMANDS)
    assert "    limba inspect 'data/*.txt' --vocabulary=byte\n" in printed


def test_the_version_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["--version"]) == 0
    assert re.fullmatch(r"\d+\.\d+\.\d+", limba.__version__)
    assert capsys.readouterr().out == f"limba {limba.__version__}\n"
    assert f"\nversion: {limba.__version__}\n" in (ROOT / "CITATION.cff").read_text()


def test_help_of_a_command_is_its_help(capsys: pytest.CaptureFixture[str]) -> None:
    expected = help_of(["status"], capsys)
    assert expected.startswith("usage: limba status ")
    with pytest.raises(SystemExit) as ended:
        main.main(["help", "status"])
    assert ended.value.code in (0, None) and capsys.readouterr().out == expected
    assert main.main(["help", "statsu"]) == 2 and "did you mean status?" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("typed", "says"),
    [
        ("finetune", "; did you mean train, with a gin file that includes gin/runs/finetune.gin?"),
        ("infer", "; did you mean generate?"),
        ("pretrain", "; did you mean train?"),
        ("quantize", "; limba --help lists them."),
        ("trian", "; did you mean train?"),
    ],
)
def test_a_command_that_does_not_exist_names_the_nearest(typed: str, says: str, capsys) -> None:
    assert main.main([typed, "run"]) == 2
    assert capsys.readouterr().err == f"limba has no command {typed}{says}\n"


@pytest.mark.parametrize("command", ["train", "preflight", "evaluate"])
def test_a_gin_name_that_is_given_as_a_flag_is_named(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    status = main.main([command, "gin/demo.gin", "--batch_size=16"])
    assert status == (1 if command == "preflight" else 2)
    shown = capsys.readouterr()
    sentence = "The argument --batch_size=16 is not known; write --gin.BATCH_SIZE=16;"
    assert sentence in (shown.out if command == "preflight" else shown.err)  # a preflight's page has it


@pytest.mark.night
@pytest.mark.parametrize(
    ("command", "makes"),
    [
        ("inspect", None),  # it prints alone
        ("vocabulary", "vocabulary/tokenizer.json"),
        ("train", "runs/first/checkpoints/20"),
    ],
)
def test_the_example_of_help_runs(command, makes, corpus: Path, tmp_path: Path, capsys, monkeypatch) -> None:
    text = help_of([command], capsys)
    assert text.startswith(f"usage: limba {command} ")
    example = text.partition(f"\n    limba {command} ")[2].replace("\\\n", " ").partition("\n")[0]
    (tmp_path / "data").mkdir()
    documents = [json.loads(line)["text"] for line in corpus.read_text().splitlines()]
    for part in range(8):
        (tmp_path / "data" / f"{part}.txt").write_text("\n".join(" ".join(d.split()) for d in documents[part::8]))
    monkeypatch.chdir(tmp_path)
    assert main.main([command, *shlex.split(example)]) == 0
    if makes is None:
        assert "tokens per document" in capsys.readouterr().out
    else:
        assert (tmp_path / makes).exists()


@pytest.mark.parametrize("command", ["merge", "report"])
def test_of_several_processes_the_first_alone_does_what_one_can(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As when srun or mpirun starts the command several times."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SLURM_NTASKS", "4")
    monkeypatch.setenv("SLURM_PROCID", "3")
    assert main.main([command, "none.txt"]) == 0
    assert capsys.readouterr().out == f"Process 3 does nothing: limba {command} is done by process 0 alone.\n"
    monkeypatch.setenv("LIMBA_ALONE", "1")
    assert main.main([command, "--none"]) == 2


def test_import_is_quick_and_light(tmp_path: Path) -> None:
    code = (
        "import sys, time; began = time.perf_counter(); import limba; print(time.perf_counter() - began)\n"
        "assert not {'jax', 'flax', 'numpy', 'tensorflow', 'seqio', 'gin'} & set(sys.modules), sys.modules"
    )

    def seconds() -> float:
        environment = {"PYTHONPATH": str(ROOT)}
        return float(subprocess.check_output([sys.executable, "-c", code], cwd=tmp_path, env=environment, timeout=60))

    assert min(seconds() for _ in range(3)) < 0.3  # the machine may be busy


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Limba's wheel, built from a copy of what is in the repository."""
    source = tmp_path_factory.mktemp("source") / "limba"
    out = tmp_path_factory.mktemp("wheel")
    files = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"], cwd=ROOT, capture_output=True, check=True
    )
    for name in files.stdout.decode().split("\n"):
        if name and not name.startswith("tests/") and (ROOT / name).is_file():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            (source / name).write_bytes((ROOT / name).read_bytes())
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    subprocess.run([*command, f"--wheel-dir={out}", str(source)], check=True, timeout=300)
    (path,) = out.glob("limba-*.whl")
    return path


@pytest.mark.slow
def test_the_wheel_holds_limba_alone(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.partition("/")[0] for name in names} == {"limba", f"{wheel.name.partition('-py')[0]}.dist-info"}
    for folder, pattern in (("limba", "**/*.py"), ("tasks", "*.py"), ("gin", "**/*.gin")):
        prefix = "limba" if folder == "limba" else f"limba/shipped/{folder}"
        there = {f"{prefix}/{path.relative_to(ROOT / folder)}" for path in (ROOT / folder).glob(pattern)}
        assert there <= set(names)
    with zipfile.ZipFile(wheel) as file:
        (scripts,) = (name for name in names if name.endswith("entry_points.txt"))
        assert "limba = limba.cli.main:script" in file.read(scripts).decode()


@pytest.mark.slow
def test_an_installed_wheel_finds_its_gin_files_and_tasks_from_anywhere(wheel: Path, tmp_path: Path) -> None:
    zipfile.ZipFile(wheel).extractall(tmp_path / "site")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "tasks").mkdir()
    (tmp_path / "mine" / "tasks" / "own.py").write_text("print('own task module')\n")
    (tmp_path / "mine" / "run.gin").write_text("from tasks import own\ninclude 'gin/demo.gin'\nMODEL_DIR = 'out'\n")
    code = (
        "import limba.cli.main, sys, limba.cli.gin as gin\nsys.path.insert(0, '')\n"
        "run = gin.read_run(['run.gin']).config\n"
        "print(run.data.task_modules, sys.modules['tasks.demo'].__file__)"
    )
    variables = {"PYTHONPATH": str(tmp_path / "site")}
    command = [sys.executable, "-W", "ignore", "-c", code]
    done = subprocess.run(command, cwd=tmp_path / "mine", env=variables, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    demo = tmp_path / "site" / "limba" / "shipped" / "tasks" / "demo.py"
    assert done.stdout == f"own task module\n('tasks.own', 'tasks.demo') {demo}\n"
