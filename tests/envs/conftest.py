from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

DATA = Path(__file__).parents[1] / "data"
NUMBA = pytest.mark.skipif(find_spec("numba") is None, reason="needs numba, which is optional")


@pytest.fixture
def or_gym():
    """or-gym, or a reason to skip."""
    if find_spec("or_gym") is None:
        pytest.skip("needs or-gym: pip install --no-deps or-gym")


# Arguments of the environments
VARIANTS = [
    {},
    {"mode": "eval", "n_obstacles": 2},
    {"mode": "fixed", "obs_mode": "partial", "normalize": True},
    {"mode": "curriculum", "obs_mode": "velocity", "max_steps": 40},
    {"mode": "second", "ranger_noise": 0.0, "n_obstacles": 0},
]


@pytest.fixture(scope="session")
def golden():
    """Episodes and sensor probes of the reference code, without noise."""
    with np.load(DATA / "nano_drone.npz") as arrays:
        return dict(arrays)


@pytest.fixture(params=[False, pytest.param(True, marks=NUMBA)], ids=["numpy", "numba"])
def compiled(request):
    return request.param
