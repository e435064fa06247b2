"""Buckets are asked by gcsfs's class without gRPC, unless the user wants it, whenever gcsfs was imported."""

import gcsfs.core
import pytest

from limba.storage import servers


@pytest.mark.parametrize("value", ["", "false", "0"])
def test_a_bucket_is_not_asked_by_grpc_where_a_command_says_so_after_gcsfs_was_imported(
    value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """gcsfs chooses its class at its import; the variable of a later command must not bring back the other one."""
    monkeypatch.setenv("GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT", value)
    assert servers._google() is gcsfs.core.GCSFileSystem
