"""What tests/conftest.py makes strict is strict: shapes are checked, ranks are never promoted, warnings are errors."""

import warnings

import jax.numpy as jnp
import jaxtyping
import pytest

from limba.config import LossConfig
from limba.training.losses import cross_entropy
from tests.conftest import CHECKED
from tests.shipped import MODULES


def test_modules_whose_shapes_are_checked_are_there() -> None:
    absent = set(CHECKED) - set(MODULES)
    assert not absent, f"tests/conftest.py has the shapes of {absent} checked, where no module is"


def test_a_wrong_shape_is_an_error() -> None:
    with pytest.raises(jaxtyping.TypeCheckError):
        cross_entropy(jnp.zeros((2, 3, 5)), jnp.zeros((2, 4), jnp.int32), LossConfig())


def test_ranks_are_not_promoted() -> None:
    with pytest.raises(ValueError, match="rank_promotion"):
        jnp.zeros((2, 3)) + jnp.zeros(3)


def test_warnings_are_errors() -> None:
    with pytest.raises(DeprecationWarning):
        warnings.warn("old", DeprecationWarning, stacklevel=1)
