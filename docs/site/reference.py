"""The pages of the docs site: those of docs/, those that lie elsewhere, and the reference, generated from the code."""

from __future__ import annotations

import ast
import html
import io
import posixpath
import re
import shutil
import subprocess
import sys
import tokenize
from pathlib import Path

from examples import fenced

ROOT = Path(__file__).parents[2]
BESIDE = {  # pages of the repository that lie outside of docs/, by their address in the site
    "changelog.md": "CHANGELOG.md",
    "contributing.md": "CONTRIBUTING.md",
    "benchmarks.md": "benchmarks/README.md",
    "index.md": "README.md",
}
PICTURES = (".png", ".webp")
WORKER = "iframe-worker.js"  # with which pages of a disk are searched
STYLE = "site.css"
LANGUAGES = ("ja", "ro")  # of translated pages, which are called NAME.ja.md
WIDE = r"[\u3000-\u30ff\u4e00-\u9fff\uff00-\uffef]"  # letters and signs of Japanese
LINK = re.compile(r"(!?)\[([^\[\]]*)\]\(([^)\s#]+)(#[^)\s]*)?\)")
CONFIG = "limba/config"
FIRST_LINES = "Made from the code of this version."


def comments_of(path: Path) -> dict[int, str]:
    """Returns the comments of a Python file by line."""
    tokens = tokenize.generate_tokens(io.StringIO(path.read_text(encoding="utf-8")).readline)
    return {each.start[0]: each.string.lstrip("# ") for each in tokens if each.type == tokenize.COMMENT}


def bound_names() -> dict[str, list[str]]:
    """Returns the gin names that the files of gin/ bind to each field, as `ModelConfig.emb_dim`."""
    found: dict[str, list[str]] = {}
    for path in sorted((ROOT / "gin").rglob("*.gin")):
        name = None
        for line in path.read_text(encoding="utf-8").splitlines():
            if match := re.match(r"config\.(\w+):", line):
                name = match[1]
            elif match := re.match(r"(?:config\.(\w+)\.)?\s*(\w+) = %([A-Z_]+)\b", line):
                place = f"{match[1] or name}.{match[2]}"
                if match[3] not in found.setdefault(place, []):
                    found[place].append(match[3])
            elif line and not line.startswith(" "):
                name = None
    return found


def _meaning(node: ast.AnnAssign, comments: dict[int, str], before: int) -> str:
    """Returns a field's comment: that of its lines, or else the lines of comment directly above it."""
    own = [comments[line] for line in range(node.lineno, (node.end_lineno or node.lineno) + 1) if line in comments]
    above = []
    for line in range(node.lineno - 1, before, -1):
        if line not in comments:
            break
        above.insert(0, comments[line])
    return " ".join([*above, *own])


def _code(text: str) -> str:
    """Returns code in a cell of a table, where a bar would end it.

    >>> _code("int | None")
    '<code>int &#124; None</code>'
    """
    return f"<code>{html.escape(text, quote=False).replace('|', '&#124;')}</code>"


def _cell(text: str) -> str:
    parts = text.split("`")
    return "".join(
        _code(part) if i % 2 else part.replace("|", "&#124;").replace("<", "&lt;") for i, part in enumerate(parts)
    )


def config_page() -> str:
    """Returns the page of all fields: type, default, meaning and gin names."""
    names = bound_names()
    lines = [
        "# Configuration",
        "",
        FIRST_LINES,
        "Every field can be set in a gin file as",
        "`config.CLASS.field = VALUE`,",
    ]
    lines += ["on the command line as `--gin.config.CLASS.field=VALUE`,"]
    lines += ["and by the name in capitals below it, where it has one."]
    lines += ["`Positive` numbers are above 0, `NonNegative` ones 0 or more. A `Share` is from 0 to below 1, a"]
    lines += ["`ClosedShare` from 0 to 1, an `OpenShare` above 0 and below 1; a `choice` is one of the names in it."]
    for path in sorted((ROOT / CONFIG).glob("*.py")):
        comments = comments_of(path)
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if not (isinstance(node, ast.ClassDef) and any("dataclass" in ast.unparse(d) for d in node.decorator_list)):
                continue
            fields = [part for part in node.body if isinstance(part, ast.AnnAssign)]
            of_rule = [ast.unparse(base) for base in node.bases if ast.unparse(base) != "NamedTuple"]
            if not (node.name.endswith("Config") or of_rule) or not fields:
                continue
            lines += ["", f"## {node.name}", "", fenced(ast.get_docstring(node) or ""), ""]
            if of_rule:  # an optimizer, which gin files call OptimizerConfig
                fields = [part for part in fields if ast.unparse(part.target) != "name"]
                lines += [f"{'Beside these it has' if fields else 'It has'} the fields of {' and '.join(of_rule)}.", ""]
            if fields:
                lines += ["| field, gin name | type, default | meaning |", "| --- | --- | --- |"]
            before = node.lineno
            for part in fields:
                name = ast.unparse(part.target)
                default = "required" if part.value is None else _code(ast.unparse(part.value))
                owner = "OptimizerConfig" if of_rule else node.name
                called = "<br>".join([_code(name), *map(_code, names.get(f"{owner}.{name}", ()))])
                meaning = _cell(_meaning(part, comments, before))
                lines.append(f"| {called} | {_code(ast.unparse(part.annotation))}<br>{default} | {meaning} |")
                before = part.end_lineno or part.lineno
    return "\n".join(lines) + "\n"


def commands_page() -> str:
    """Returns the page with the `--help` of every command."""
    from limba.cli.main import COMMANDS

    lines = ["# Commands", "", FIRST_LINES]
    for name, (_, about) in COMMANDS.items():
        words = [name, "--help"] if name != "train" else [name, "gin/demo.gin", "--help"]
        ended = subprocess.run(
            [sys.executable, "-m", "limba", *words], capture_output=True, text=True, cwd=ROOT, check=True
        )
        lines += [
            "",
            f"## limba {name}",
            "",
            f"{about[0].upper()}{about[1:]}.",
            "",
            "``` {.text .printed}",
            ended.stdout.rstrip(),
            "```",
        ]
    return "\n".join(lines) + "\n"


def api_page() -> str:
    """Returns the page of the Python API, which mkdocstrings fills: each name as one writes it, `limba.load`."""
    import limba

    lines = ["# Python", "", FIRST_LINES]
    for name in limba.__all__:
        lines += ["", f"::: limba.{name}"]
    return "\n".join(lines) + "\n"


def apart(text: str) -> str:
    """Returns a page with an empty line behind each block of code, without which Markdown begins no paragraph.

    >>> apart("```\\nlimba\\n```\\nThat was it.\\n").splitlines()
    ['```', 'limba', '```', '', 'That was it.']
    """
    lines = []
    is_inside = False
    has_ended = False
    for line in text.splitlines():
        if has_ended and line.strip():
            lines.append("")
        is_fence = line.lstrip().startswith("```")
        has_ended = is_fence and is_inside
        if is_fence:
            is_inside = not is_inside
        lines.append(line)
    return "\n".join(lines) + "\n"


def write(folder: Path) -> None:
    """Writes all pages and pictures into a folder; links between docs/ and the rest lead to their pages there."""
    for path in (ROOT / "docs").rglob("*.md"):
        place = path.relative_to(ROOT / "docs").as_posix()
        (folder / place).parent.mkdir(parents=True, exist_ok=True)
        text = apart(linked(path.read_text(encoding="utf-8"), place))
        (folder / place).write_text(without_breaks(text) if ".ja." in place else text, encoding="utf-8")
    for path in (ROOT / "docs").rglob("*"):
        if path.suffix in PICTURES:
            shutil.copy(path, folder / path.relative_to(ROOT / "docs"))
    for name in (WORKER, STYLE):
        shutil.copy(ROOT / "docs" / "site" / name, folder / name)
    for place, outside in BESIDE.items():
        text = apart(linked((ROOT / outside).read_text(encoding="utf-8"), place))
        (folder / place).write_text(text, encoding="utf-8")
    (folder / "reference").mkdir(exist_ok=True)
    for name, text in {"config": config_page(), "commands": commands_page(), "api": api_page()}.items():
        (folder / "reference" / f"{name}.md").write_text(text, encoding="utf-8")


def name_languages(site: Path) -> None:
    """Writes the language of each translated page, such as start.ja.html, into it."""
    for path in site.rglob("*.html"):
        language = Path(path.stem).suffix.removeprefix(".")
        if language in LANGUAGES:
            text = path.read_text(encoding="utf-8")
            path.write_text(text.replace('<html lang="en"', f'<html lang="{language}"', 1), encoding="utf-8")


def without_breaks(markdown: str) -> str:
    """Returns Japanese text without the ends of its source lines, for which a browser shows spaces.

    >>> without_breaks("\u6f22\u5b57\\n\u304b\u306a\\n\\n* a\\n")
    '\u6f22\u5b57\u304b\u306a\\n\\n* a\\n'
    >>> without_breaks("\u6f22\u3002\\n2\u3064")
    '\u6f22\u30022\u3064'
    """
    blocks = re.split(r"(^```.*?^```$)", markdown, flags=re.MULTILINE | re.DOTALL)
    ends = rf"(?<={WIDE})\n *(?={WIDE})|(?<=[\u3001\u3002])\n *(?=[^\s|*#<`-]|`[^`])"
    blocks[::2] = [re.sub(ends, "", text) for text in blocks[::2]]
    return "".join(blocks)


def linked(markdown: str, place: str) -> str:
    """Returns a page of the site with links to other pages of it; other files are only named.

    >>> linked("[a](../start.md#b) [c](../../CONTRIBUTING.md) [d](../../setup.py)", "development/libraries.md")
    '[a](../start.md#b) [c](../contributing.md) d (`setup.py`)'
    """
    folder = (ROOT / BESIDE.get(place, f"docs/{place}")).parent
    by_path = {(ROOT / path).resolve(): uri for uri, path in BESIDE.items()}

    def link(match: re.Match[str]) -> str:
        mark, words, target = match.group(1, 2, 3)
        anchor = match[4] or ""
        if "://" in target or target.startswith("mailto:"):
            return match[0]
        path = (folder / target).resolve()
        uri = by_path.get(path)
        if uri is None and path.is_relative_to(ROOT / "docs"):
            uri = path.relative_to(ROOT / "docs").as_posix()
        if uri is None:
            if not path.is_relative_to(ROOT):
                return match[0]
            place_in_repository = f"`{path.relative_to(ROOT).as_posix()}`"
            return words if words == place_in_repository else f"{words} ({place_in_repository})"
        return f"{mark}[{words}]({posixpath.relpath(uri, posixpath.dirname(place) or '.')}{anchor})"

    return LINK.sub(link, markdown)
