import subprocess
import sys
from types import ModuleType

import pytest
import rl_zoo3.exp_manager
import rl_zoo3.hyperparams_opt
import rl_zoo3.utils
import yaml
from sb3_contrib import QRDQN
from stable_baselines3 import DQN

import sb3_ora
from sb3_ora.zoo import ALGORITHMS, patch, register
from sb3_ora.zoo.files import default_config


def test_rl_zoo3_knows_the_algorithms():
    names = {"iqn": sb3_ora.IQN, "ora_iqn": sb3_ora.ORAIQN, "art_iqn": sb3_ora.ARTIQN, "top_iqn": sb3_ora.TOPIQN}
    assert {name: rl_zoo3.utils.ALGOS[name] for name in names} == names
    assert names.keys() <= rl_zoo3.hyperparams_opt.HYPERPARAMS_SAMPLER.keys()
    assert names.keys() <= rl_zoo3.hyperparams_opt.HYPERPARAMS_CONVERTER.keys()
    assert rl_zoo3.utils.ALGOS["dqn"] is DQN and rl_zoo3.utils.ALGOS["qrdqn"] is QRDQN


def test_registering_again_changes_nothing():
    manager = rl_zoo3.exp_manager.ExperimentManager
    before = dict(vars(manager))
    register()
    assert dict(vars(manager)) == before


def test_the_manager_imported_first():
    code = """
import sb3_ora.zoo.manager
from rl_zoo3.exp_manager import ExperimentManager
assert ExperimentManager.__init__._sb3_ora
"""
    done = subprocess.run([sys.executable, "-W", "error::RuntimeWarning", "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_names_already_taken_keep_their_meaning():
    module = ModuleType("rl_zoo3.utils")
    module.ALGOS = {"dqn": DQN, "iqn": QRDQN}
    patch(module)
    assert module.ALGOS == {**ALGORITHMS, "dqn": DQN, "iqn": QRDQN}


def test_other_modules_are_refused():
    with pytest.raises(ValueError, match=r"exp_manager, not rl_zoo3\.train"):
        patch(ModuleType("rl_zoo3.train"))


def test_registering_by_hand_reaches_modules_that_are_loaded_already():
    code = """
import rl_zoo3.train as train, rl_zoo3.utils, rl_zoo3.hyperparams_opt
assert "ora_iqn" not in train.ALGOS
from sb3_ora.zoo import register
register()
assert "ora_iqn" in train.ALGOS and "ora_iqn" in rl_zoo3.hyperparams_opt.HYPERPARAMS_SAMPLER
assert train.ExperimentManager.create_log_folder.__wrapped__
"""
    # -S: without start-up hook, should the package be installed
    code = f"import sys; sys.path[:] = {sys.path}\n{code}"
    subprocess.run([sys.executable, "-S", "-c", code], check=True)


@pytest.mark.parametrize("algo", ALGORITHMS)
def test_hyperparameter_files_have_the_same_entries(algo):
    with open(default_config(algo)) as file:
        entries = yaml.safe_load(file)
    assert {"default", "atari", "CartPole-v1", "Acrobot-v1", "MountainCar-v0", "LunarLander-v3"} <= entries.keys()
    assert all(entry["n_timesteps"] > 0 for entry in entries.values())
