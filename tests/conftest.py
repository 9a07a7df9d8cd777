"""Settings for all tests."""

import io
import os
import sys
from pathlib import Path

# Before torch and matplotlib are imported, here and in the processes that tests start
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("MPLBACKEND", "Agg")
# So that `pytest` finds the helper modules in tests/ as `python -m pytest` does
sys.path.insert(0, str(Path(__file__).parents[1]))

import pytest
import torch as th


def pytest_configure(config):
    if config.option.markexpr != "gpu":  # what takes the device that is there takes the CPU, with which tests compare
        os.environ["CUDA_VISIBLE_DEVICES"] = ""


def pytest_collection_modifyitems(items):
    if not th.cuda.is_available():
        for item in items:
            if "gpu" in item.keywords:
                item.add_marker(pytest.mark.skip(reason="no CUDA device, or not run with -m gpu"))


@pytest.fixture
def through_file():
    """Write a state the way models are saved and read it back as strictly as torch can."""

    def round_trip(state):
        file = io.BytesIO()
        th.save(state, file)
        file.seek(0)
        return th.load(file, weights_only=True)

    return round_trip
