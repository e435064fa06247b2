"""A hub of this machine's, with models and data sets, and the redirects of names without an owner."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import unquote

import pyarrow
import pyarrow.parquet

from tests.http_server import FileServer, Handler, ModelHubHandler, serving

MOVED = {"t5-small": "google-t5/t5-small", "wikitext": "Salesforce/wikitext"}
COMMIT = "c" * 40


class HubHandler(ModelHubHandler):
    """As ModelHubHandler; data sets are folder/datasets/<user>/<name>/<file>, each at the commit COMMIT.

    One whose name begins with `private` needs the token `good`.
    """

    def _answer(self, with_body: bool) -> None:
        path, _, query = self.path.partition("?")
        parts = unquote(path).strip("/").split("/")
        if parts[:1] == ["api"] and len(parts) > 2 and parts[1] in ("models", "datasets") and parts[2] in MOVED:
            target = f"/{'/'.join(parts[:2])}/{MOVED[parts[2]]}/{'/'.join(parts[3:])}".rstrip("/")
            return self.reply(307, b"", {"Location": target + (f"?{query}" if query else "")})
        if parts[:2] == ["api", "datasets"]:
            return self._of_data_set(parts[2:], with_body)
        if parts[:1] == ["datasets"]:
            return self._file_of_data_set(parts[1:], with_body)
        return super()._answer(with_body)

    def do_POST(self) -> None:  # noqa: N802
        parts = unquote(self.path.partition("?")[0]).strip("/").split("/")
        asks_model = parts[:2] == ["api", "models"] and parts[4:5] == ["paths-info"]
        if parts[:2] != ["api", "datasets"] and not asks_model:
            return super().do_POST()
        sent = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        folder = self.server.folder / "/".join(parts[2:4]) / "main" if asks_model else self._place(parts[2:4])
        if folder is None or not folder.is_dir() or parts[4:5] != ["paths-info"]:
            return self.reply(404, b"", {"X-Error-Code": "RepoNotFound"})
        asked = json.loads(sent)["paths"]
        asked = [asked] if isinstance(asked, str) else asked
        return self._say([self._entry(folder, folder / name) for name in asked if (folder / name).exists()])

    def _place(self, name: list[str]) -> Path | None:
        folder = self.server.folder / "datasets" / "/".join(name)
        is_hidden = name[-1].startswith("private") and self.headers.get("Authorization") != "Bearer good"
        return None if is_hidden or len(name) != 2 or not folder.is_dir() else folder

    def _entry(self, folder: Path, path: Path) -> dict:
        kind = "directory" if path.is_dir() else "file"
        size = 0 if path.is_dir() else path.stat().st_size
        return {"type": kind, "path": str(path.relative_to(folder)), "size": size, "oid": "b" * 40}

    def _of_data_set(self, parts: list[str], with_body: bool) -> None:
        data_set = self._place(parts[:2])
        if data_set is None:
            return self.reply(404, b"", {"X-Error-Code": "RepoNotFound"})
        if parts[2:3] == ["tree"]:
            folder = data_set / "/".join(parts[4:])
            if not folder.exists():
                return self.reply(404, b"", {"X-Error-Code": "EntryNotFound"})
            files = (
                folder.rglob("*")
                if "recursive=True" in self.path or "recursive=true" in self.path
                else folder.iterdir()
            )
            return self._say([self._entry(data_set, path) for path in sorted(files)], with_body)
        siblings = [{"rfilename": str(path.relative_to(data_set))} for path in data_set.rglob("*") if path.is_file()]
        info = {"id": "/".join(parts[:2]), "sha": COMMIT, "siblings": siblings, "private": False, "tags": []}
        return self._say({**info, "downloads": 0, "likes": 0}, with_body)

    def _file_of_data_set(self, parts: list[str], with_body: bool) -> None:
        if parts[0] in MOVED:
            return self.reply(307, b"", {"Location": f"/datasets/{MOVED[parts[0]]}/{'/'.join(parts[1:])}"})
        data_set = self._place(parts[:2])
        if data_set is None:
            return self.reply(401, b"", {"X-Error-Code": "RepoNotFound"})
        file = data_set / "/".join(parts[4:])
        if not file.is_file():
            return self.reply(404, b"", {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": COMMIT})
        self.path = f"/hub/{file.relative_to(self.server.folder)}"
        self.about = {"ETag": f'"{"d" * 40}"', "X-Repo-Commit": COMMIT}
        Handler._answer(self, with_body)
        self.client = self.name = "api"
        return None


FILES = "{configuration}/{split}-00000-of-00001.parquet"
CONVERTED = "{configuration}/partial-{split}/0000.parquet"  # as the hub converts a part of a large data set


def write_data_set(
    folder: Path, name: str, configurations: Mapping[str, Mapping[str, list[str]]], files: str = FILES
) -> None:
    """Writes a data set as the hub stores one: configuration -> split -> texts, each split a parquet file."""
    lines = ["---", "configs:"]
    for configuration, splits in configurations.items():
        lines += [f"- config_name: {configuration}", "  data_files:"]
        for split, texts in splits.items():
            file = files.format(configuration=configuration, split=split)
            path = folder / "datasets" / name / file
            path.parent.mkdir(parents=True, exist_ok=True)
            pyarrow.parquet.write_table(pyarrow.table({"text": texts}), path, row_group_size=100)
            lines += [f"  - split: {split}", f"    path: {file.replace('00000-of-00001.parquet', '*')}"]
    (folder / "datasets" / name / "README.md").write_text("\n".join([*lines, "---", ""]))


@contextmanager
def hub(folder: Path) -> Iterator[tuple[FileServer, dict[str, str]]]:
    """Serves a folder as the hub; yields the server and the environment in which processes ask it."""
    with serving(folder, handler=HubHandler) as server:
        endpoint = server.url("").removesuffix("/client/")
        environment = {"HF_ENDPOINT": endpoint, "HF_HUB_OFFLINE": "0", "HF_HOME": str(folder.parent / "hf_home")}
        yield server, environment
