import argparse

import pytest
from rl_zoo3.exp_manager import ExperimentManager

from sb3_ora.zoo import register


@pytest.fixture(scope="session", autouse=True)
def registered():
    register()


@pytest.fixture
def experiment(tmp_path):
    """Make an experiment as rl_zoo3.train does, with its logs in a folder of the test."""

    def make(algo="ora_iqn", env="CartPole-v1", num_threads=-1, **kwargs):
        kwargs = {"log_folder": str(tmp_path / "logs"), "eval_freq": -1, "verbose": 0, "device": "cpu"} | kwargs
        return ExperimentManager(argparse.Namespace(num_threads=num_threads), algo, env, **kwargs)

    return make
