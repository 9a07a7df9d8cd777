from importlib.util import find_spec

import pytest


@pytest.fixture
def or_gym():
    """or-gym, or a reason to skip."""
    if find_spec("or_gym") is None:
        pytest.skip("needs or-gym: pip install --no-deps or-gym")
