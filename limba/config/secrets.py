"""Addresses without their credentials, for every message and every file that a run writes."""

from __future__ import annotations

import re

HIDDEN = "***"
# What stands between :// and @, with a colon: user:password. The second form allows a password with a slash (keys of
# S3), where what follows the colon is no port and no chained address (zip://…::https://…).
_PASSWORDS = (
    re.compile(r"(?<=://)[^\s/'\"]*:[^\s/'\"]*(?=@)"),
    re.compile(r"(?<=://)[^\s/:@'\"]+:(?!:|\d*(?:[/\s'\"]|$))[^\s@'\"]*(?=@)"),
    re.compile(r"(?<=http://)[^\s/'\"]+(?=@)|(?<=https://)[^\s/'\"]+(?=@)"),  # a token alone
)
_PARAMETER = re.compile(
    r"([?&](?:[\w.%-]*(?:token|signature|secret|passw|credential|apikey|accesskey|authorization)[\w.%-]*"
    r"|(?:[\w.%-]*[-_.])?(?:sig|key|auth|sas|pwd))=)[^\s&'\"#,;)\]}]*",
    re.IGNORECASE,
)


def without_credentials(text: str) -> str:
    """Returns the text with *** for the passwords, tokens and signatures of all addresses in it.

    >>> without_credentials("https://ana:1234@example.org/a.txt?lang=ro&token=567 cannot be read")
    'https://***@example.org/a.txt?lang=ro&token=*** cannot be read'
    >>> without_credentials("abfs://container@account.dfs.core.windows.net/a.txt, gs://bucket/b@c.txt")
    'abfs://container@account.dfs.core.windows.net/a.txt, gs://bucket/b@c.txt'
    """
    if "://" not in text:
        return text
    for pattern in _PASSWORDS:
        text = pattern.sub(HIDDEN, text)
    return _PARAMETER.sub(rf"\g<1>{HIDDEN}", text)
