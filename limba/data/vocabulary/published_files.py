"""What the files of a folder for transformers say of its tokenizer, as transformers 5 reads them: roles and tokens."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from etils import epath

from limba.config import InputError, reason_of
from limba.storage.files import read_text

Json = dict[str, Any]
_OF_A_VERSION = re.compile(r"tokenizer\..*\.json")  # as in tokenizer.4.0.0.json
_NEWER = "extra_special_tokens"
_OLDER = "additional_special_tokens"
ROLES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")  # in their order


@dataclass(frozen=True)
class Files:
    """The files beside a model that say how its text is read, each {} where it is missing."""

    folder: epath.Path
    tokenizer_config: Json  # tokenizer_config.json
    special_tokens_map: Json  # special_tokens_map.json
    added_tokens: Json  # added_tokens.json
    config: Json  # config.json
    tokenizer_json: Json | None  # tokenizer.json, None where it is missing

    @classmethod
    def of(cls, folder: epath.Path) -> Files:
        """Reads them; InputError for one that is not a JSON object, and where tokenizer.json is not the only one."""
        tokenizer_config = read_json(folder, "tokenizer_config.json") or {}
        named = tokenizer_config.get("fast_tokenizer_files")
        if isinstance(named, list) and any(_OF_A_VERSION.search(str(name)) for name in named):
            raise InputError(
                f"{folder}/tokenizer_config.json names fast_tokenizer_files, of which transformers reads the one for"
                " its own version, and Limba reads only tokenizer.json; write that by"
                f" transformers.AutoTokenizer.from_pretrained({str(folder)!r}).save_pretrained({str(folder)!r}), and"
                " then take fast_tokenizer_files out of tokenizer_config.json."
            )
        return cls(
            folder,
            tokenizer_config=tokenizer_config,
            special_tokens_map=read_json(folder, "special_tokens_map.json") or {},
            added_tokens=read_json(folder, "added_tokens.json") or {},
            config=read_json(folder, "config.json") or {},
            tokenizer_json=read_json(folder, "tokenizer.json"),
        )

    @property
    def tokens_by_id(self) -> dict[int, Any]:
        """The tokens that are added: {id: what AddedToken takes}."""
        if isinstance(self.tokenizer_config.get("added_tokens_decoder"), dict):
            return {int(number): token for number, token in self.tokenizer_config["added_tokens_decoder"].items()}
        roles = self.roles({})
        special = {name_of(roles[role]) for role in ROLES if roles.get(role)}
        special |= {name_of(token) for token in self.extra_before_class or ()}
        tokens: dict[int, Any] = {}
        for name, number in self.added_tokens.items():
            tokens[int(number)] = {"content": name, "special": name in special, "normalized": name not in special}
        for token in (self.tokenizer_json or {}).get("added_tokens", ()):
            tokens[token["id"]] = {key: value for key, value in token.items() if key != "id"}
        return tokens

    def roles(self, defaults: Mapping[str, str]) -> Json:
        """Returns {role: its token}: a class's defaults, tokenizer_config.json, special_tokens_map.json, the last wins.

        They are in transformers' order, in which tokens without an id get one. transformers does not look into
        special_tokens_map.json where tokenizer_config.json has added_tokens_decoder.
        """
        tokens: Json = dict(defaults)
        for file_content in self.files_with_roles:
            extra = file_content.get(_NEWER)
            named: Json = extra if isinstance(extra, dict) else {}  # tokens with names of their own
            for key, value in {**file_content, **named}.items():
                is_token = isinstance(value, str) or (isinstance(value, dict) and "content" in value)
                if key in ROLES or key in named or (key.endswith("_token") and is_token):
                    if file_content is self.special_tokens_map and isinstance(value, dict):
                        value = {**value, "special": True}
                    tokens[key] = value
        order = [*(role for role in ROLES if role in tokens), *(role for role in tokens if role not in ROLES)]
        return {role: tokens[role] for role in order if tokens[role] is not None}

    @property
    def files_with_roles(self) -> list[Json]:
        """The files that name the tokens with a role, the last one wins."""
        if "added_tokens_decoder" in self.tokenizer_config:
            return [self.tokenizer_config]
        return [self.tokenizer_config, self.special_tokens_map]

    @property
    def extra(self) -> list[Any] | None:
        """The special tokens without a role; None where no file has a list of them, not even an empty one."""
        tokens = self.extra_before_class
        return self._extra_through_class if tokens is None else tokens

    @property
    def extra_before_class(self) -> list[Any] | None:
        """The special tokens without a role that no class is asked about; None where the files leave it to the class.

        A null says that there are none.
        """
        first = self._extra_of_config
        if "added_tokens_decoder" in self.tokenizer_config or _NEWER not in self.special_tokens_map:
            return first
        later = self.special_tokens_map[_NEWER]
        if isinstance(later, dict):  # tokens with names of their own, see `roles`
            return None
        if not isinstance(later, list):
            return []
        special = [{**token, "special": True} if isinstance(token, dict) else token for token in later]
        return [*(first or ()), *special]

    @property
    def _extra_of_config(self) -> list[Any] | None:
        """The list of tokenizer_config.json; None where it has none."""
        tokens = self.tokenizer_config.get(_NEWER)
        if not tokens and _OLDER in self.tokenizer_config:
            tokens = self.tokenizer_config[_OLDER]
        elif _NEWER not in self.tokenizer_config:
            return None
        if isinstance(tokens, dict):  # tokens with names of their own, see `roles`
            return None
        return list(tokens or ())

    @property
    def _extra_through_class(self) -> list[Any] | None:
        """The older list, where a class gets it: a T5Tokenizer adds its sentinels to it."""
        tokens = self.tokenizer_config.get(_OLDER)
        if "added_tokens_decoder" not in self.tokenizer_config:
            tokens = self.special_tokens_map.get(_OLDER, tokens)
        return None if tokens is None else list(tokens)


def read_json(folder: epath.Path, name: str) -> Json | None:
    """Returns a JSON object of a folder, None if there is no such file; InputError if it holds anything else."""
    file = folder / name
    if not file.exists():
        return None
    try:
        content = json.loads(read_text(file))
        if not isinstance(content, dict):
            raise ValueError("it is not a JSON object")
    except InputError:
        raise
    except (ValueError, TypeError, RecursionError) as error:
        raise InputError(f"{file} cannot be used ({reason_of(error)}); copy the folder again.") from error
    return content


def name_of(token: Any) -> str:
    """Returns the text of a token, which a file holds as a text or as what AddedToken takes."""
    return str(token["content"] if isinstance(token, dict) else token)
