import importlib.util
from pathlib import Path

import numpy as np
import pytest

DATA = Path(__file__).parents[1] / "data"
NUMBA = pytest.mark.skipif(importlib.util.find_spec("numba") is None, reason="needs numba, which is optional")

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
