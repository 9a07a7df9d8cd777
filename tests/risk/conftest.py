import io

import pytest
import torch as th


@pytest.fixture
def through_file():
    """Write a state the way models are saved and read it back as strictly as torch can."""

    def round_trip(state):
        file = io.BytesIO()
        th.save(state, file)
        file.seek(0)
        return th.load(file, weights_only=True)

    return round_trip
