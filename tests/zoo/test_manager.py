import configparser
import multiprocessing
import os
import sys
from pathlib import Path

import optuna
import pytest
import torch as th
import yaml
from gymnasium.error import DependencyNotInstalled
from optuna.storages.journal import JournalFileBackend
from rl_zoo3.utils import get_latest_run_id

from sb3_ora.zoo import ALGORITHMS
from sb3_ora.zoo.extras import MODULES, extra_of, missing_extra
from sb3_ora.zoo.files import default_config


@pytest.fixture
def config(tmp_path):
    def write(**entry):
        path = tmp_path / "my.yml"
        path.write_text(yaml.dump({"CartPole-v1": {"n_timesteps": 100, "policy": "MlpPolicy", **entry}}))
        return str(path)

    return write


@pytest.fixture
def two_threads(monkeypatch):
    """As on a machine with at least two cores, where the user has chosen nothing."""
    before = th.get_num_threads()
    th.set_num_threads(2)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    yield
    th.set_num_threads(before)


# Hyperparameter files


@pytest.mark.parametrize("algo", ALGORITHMS)
def test_hyperparameters_come_from_this_package(experiment, algo):
    with open(default_config(algo)) as file:
        expected = yaml.safe_load(file)["CartPole-v1"]
    hyperparams, saved = experiment(algo).read_hyperparameters()
    assert hyperparams == expected == dict(saved)


def test_atari_and_unlisted_environments_have_an_entry(experiment):
    assert experiment(env="Pendulum-v1").read_hyperparameters()[0]["policy"] == "MlpPolicy"
    manager = experiment()
    manager.env_name, manager._is_atari = type(manager.env_name)("ALE/Pong-v5"), True
    assert manager.read_hyperparameters()[0]["policy"] == "CnnPolicy"


def test_conf_file_wins(experiment, config):
    path = config(gamma=0.5)
    assert experiment(config=path).config == path
    assert experiment(config=path).read_hyperparameters()[0]["gamma"] == 0.5


def test_missing_conf_file_is_an_error(experiment, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"absent\.yml"):
        experiment(config=str(tmp_path / "absent.yml")).read_hyperparameters()


def test_params_win_over_the_file(experiment):
    assert experiment(hyperparams={"gamma": 0.25}).read_hyperparameters()[0]["gamma"] == 0.25


def test_other_algorithms_keep_their_file(experiment):
    manager = experiment("dqn")
    assert manager.config.endswith("dqn.yml") and "rl_zoo3" in manager.config
    assert manager.read_hyperparameters()[0]["policy"] == "MlpPolicy"


# Keyword arguments of the environment


def reward_of_evaluation(manager):
    """Sutton and Barto's CartPole rewards a step with 0, Gymnasium's with 1."""
    hyperparams, _ = manager.read_hyperparameters()
    manager._preprocess_hyperparams(hyperparams)
    env = manager.create_envs(1, eval_env=True, no_log=True)
    env.reset()
    return env.step([0])[1][0]


@pytest.mark.parametrize(
    "command_line, expected",
    [
        ({}, 0.0),
        ({"env_kwargs": {"sutton_barto_reward": False}}, 1.0),
        ({"eval_env_kwargs": {"sutton_barto_reward": False}}, 1.0),
        ({"env_kwargs": {"sutton_barto_reward": False}, "eval_env_kwargs": {"sutton_barto_reward": True}}, 0.0),
    ],
)
def test_evaluation_has_the_env_kwargs_of_the_file(experiment, config, command_line, expected):
    path = config(env_kwargs={"sutton_barto_reward": True})
    assert reward_of_evaluation(experiment(config=path, **command_line)) == expected


def test_evaluation_without_env_kwargs(experiment):
    assert reward_of_evaluation(experiment()) == 1.0


def test_env_kwargs_of_other_algorithms_are_left_alone(experiment, config):
    assert reward_of_evaluation(experiment("dqn", config=config(env_kwargs={"sutton_barto_reward": True}))) == 1.0


# Run folders


def claim(experiment, algo, barrier, queue):
    manager = experiment(algo)
    barrier.wait()  # now every process has chosen the same folder
    manager.create_log_folder()
    assert os.path.isdir(manager.params_path)
    queue.put((manager.save_path, manager.params_path))


def claim_at_once(experiment, algo, n=6):
    context = multiprocessing.get_context("fork")
    barrier, queue = context.Barrier(n), context.Queue()
    processes = [context.Process(target=claim, args=(experiment, algo, barrier, queue)) for _ in range(n)]
    for process in processes:
        process.start()
    paths = [queue.get(timeout=30) for _ in processes]
    for process in processes:
        process.join()
    return paths


def test_runs_started_at_once_get_different_folders(experiment, tmp_path):
    paths = claim_at_once(experiment, "ora_iqn")
    folder = tmp_path / "logs" / "ora_iqn"
    assert {save_path for save_path, _ in paths} == {str(folder / f"CartPole-v1_{i}") for i in range(1, 7)}
    assert all(params_path == f"{save_path}/CartPole-v1" for save_path, params_path in paths)
    assert get_latest_run_id(str(folder), "CartPole-v1") == 6
    assert experiment().save_path.endswith("CartPole-v1_7")


def test_other_algorithms_share_a_folder_as_before(experiment):
    assert len(set(claim_at_once(experiment, "dqn", n=2))) == 1


def test_a_single_run_takes_the_folder_that_rl_zoo3_chose(experiment):
    manager = experiment(uuid_str="_abc")
    chosen = manager.save_path
    assert chosen.endswith("CartPole-v1_1_abc")
    manager.create_log_folder()
    assert manager.save_path == chosen and os.listdir(chosen) == ["CartPole-v1"]


WRONG = {"n_quantiles": 0}  # the constructor refuses it, after environments and their monitor files were made


def test_a_failed_set_up_leaves_no_folder(experiment, tmp_path):
    folder = tmp_path / "logs" / "ora_iqn"
    (folder / "CartPole-v1_1").mkdir(parents=True)  # another run, even if it is empty
    manager = experiment(hyperparams=WRONG)
    with pytest.raises(ValueError, match="n_quantiles"):
        manager.setup_experiment()
    assert manager.save_path == str(folder / "CartPole-v1_2") and os.listdir(folder) == ["CartPole-v1_1"]
    assert experiment().save_path == str(folder / "CartPole-v1_2")


def test_a_failed_set_up_with_settings_saved(experiment, tmp_path, monkeypatch):
    manager = experiment()
    save = manager._save_config

    def interrupted(saved):
        save(saved)
        raise KeyboardInterrupt

    monkeypatch.setattr(manager, "_save_config", interrupted)
    with pytest.raises(KeyboardInterrupt):
        manager.setup_experiment()
    assert os.listdir(tmp_path / "logs" / "ora_iqn") == []


@pytest.mark.parametrize(
    "kept", ["model.zip", "evaluations.npz", "checkpoints/run_1_steps.zip", "CartPole-v1/vecnormalize.pkl"]
)
def test_a_folder_with_anything_else_is_kept(experiment, monkeypatch, kept):
    manager = experiment(hyperparams=WRONG)
    create = manager.create_log_folder

    def create_and_write():
        create()
        path = os.path.join(manager.save_path, kept)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        open(path, "w").close()

    monkeypatch.setattr(manager, "create_log_folder", create_and_write)
    with pytest.raises(ValueError, match="n_quantiles"):
        manager.setup_experiment()
    assert os.path.exists(os.path.join(manager.save_path, kept))
    assert os.path.exists(os.path.join(manager.save_path, "0.monitor.csv"))


def test_a_failed_set_up_of_other_algorithms_is_left_alone(experiment):
    manager = experiment("dqn", hyperparams={"no_such": 0})
    with pytest.raises(TypeError, match="no_such"):
        manager.setup_experiment()
    assert sorted(os.listdir(manager.save_path)) == ["0.monitor.csv", "CartPole-v1"]


def test_an_optimization_takes_no_folder(experiment, tmp_path):
    manager = experiment(optimize_hyperparameters=True, n_trials=1, n_timesteps=20, no_optim_plots=True, save_freq=10)
    assert manager.setup_experiment() is None
    manager.hyperparameters_optimization()
    names = os.listdir(tmp_path / "logs" / "ora_iqn")
    assert {name.partition("_")[0] for name in names} == {"report"} and len(names) == 2


def test_training_on_during_an_optimization_has_a_folder(experiment, tmp_path):
    """rl-zoo3 trains an agent that it is given, whatever else is asked for."""
    model = experiment().setup_experiment()[0]
    model.save(tmp_path / "given.zip")
    manager = experiment(optimize_hyperparameters=True, trained_agent=str(tmp_path / "given.zip"))
    assert manager.setup_experiment() is not None
    assert sorted(os.listdir(manager.save_path)) == ["0.monitor.csv", "CartPole-v1"]


# Optuna's trials


@pytest.mark.parametrize("name", ["tune.log", "tune.db"])
@pytest.mark.parametrize(("n_trials", "allowed"), [(2, "one of 0..1"), (0, "left out, as there is no trial")])
def test_a_trial_that_is_not_there(experiment, tmp_path, name, n_trials, allowed):
    path = str(tmp_path / name)
    given = path if name.endswith(".log") else f"sqlite:///{path}"
    storage = optuna.storages.JournalStorage(JournalFileBackend(path)) if name.endswith(".log") else given
    study = optuna.create_study(storage=storage, study_name="cartpole")
    for _ in range(n_trials):
        study.add_trial(optuna.trial.create_trial(value=0.0))
    manager = experiment(storage=given, study_name="cartpole", trial_id=7)
    with pytest.raises(ValueError, match=f"^trial_id must be {allowed} of study 'cartpole', got 7$"):
        manager.read_hyperparameters()


# Environments of extras that are not installed


def test_the_extra_of_an_environment_is_named(experiment, monkeypatch):
    monkeypatch.setitem(sys.modules, "Box2D", None)
    for name in [name for name in sys.modules if name.startswith("gymnasium.envs.box2d")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr("sb3_ora.zoo.extras.find_spec", lambda name: None if name == "Box2D" else object())
    manager = experiment(env="LunarLander-v3")
    with pytest.raises(DependencyNotInstalled) as error:
        manager.setup_experiment()
    assert str(error.value) == r"LunarLander-v3 needs the extra [box2d]: pip install -c constraints.txt '.[box2d]'"
    assert not os.path.exists(manager.save_path)


@pytest.mark.parametrize(
    ("env_id", "extra"),
    [
        ("ALE/Pong-v5", "atari"),
        ("PongNoFrameskip-v4", "atari"),
        ("BipedalWalker-v3", "box2d"),
        ("CartPole-v1", None),
        ("Unknown-v0", None),
    ],
)
def test_extras(monkeypatch, env_id, extra):
    assert extra_of(env_id) == extra
    monkeypatch.setattr("sb3_ora.zoo.extras.find_spec", lambda name: None)
    assert (missing_extra(env_id) or "").endswith(f"'.[{extra}]'" if extra else "")
    monkeypatch.setattr("sb3_ora.zoo.extras.find_spec", lambda name: object())
    assert missing_extra(env_id) is None


def test_names_of_extras_are_those_of_the_package():
    parser = configparser.ConfigParser()
    parser.read(Path(__file__).parents[2] / "setup.cfg")
    assert MODULES.keys() <= parser["options.extras_require"].keys()


# Threads


def test_small_networks_on_the_cpu_use_one_thread(experiment, two_threads, capsys):
    experiment(verbose=1).read_hyperparameters()
    assert th.get_num_threads() == 1
    assert capsys.readouterr().out.count("one torch thread") == 1


def test_quiet_when_not_verbose(experiment, two_threads, capsys):
    experiment(verbose=0).read_hyperparameters()
    assert th.get_num_threads() == 1 and "torch thread" not in capsys.readouterr().out


@pytest.mark.parametrize(
    "options",
    [
        {"num_threads": 2},
        {"algo": "dqn"},
        {"hyperparams": {"policy": "CnnPolicy"}},
        {"device": "meta"},  # any device but the CPU
    ],
)
def test_threads_are_left_alone(experiment, two_threads, options):
    experiment(**options).read_hyperparameters()
    assert th.get_num_threads() == 2


def test_threads_chosen_by_variable_are_left_alone(experiment, two_threads, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    experiment().read_hyperparameters()
    assert th.get_num_threads() == 2
