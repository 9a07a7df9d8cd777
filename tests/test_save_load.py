"""Saving, loading and what survives it."""

import io
import zipfile
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch as th
from stable_baselines3.common.vec_env import VecNormalize

from sb3_ora import ARTIQN, IQN, ORAIQN, TOPIQN
from sb3_ora.adapters import EWAFAdapter, FTPLAdapter, RecursiveAdapter
from sb3_ora.iqn import CnnPolicy, IQNPolicy, MultiInputPolicy
from sb3_ora.risk import StateKey
from tests.test_spaces import model_for
from tests.tiny import ALGORITHMS, ENSEMBLE, same_parameters, several, tiny
from tests.toy_envs import Chain, Scripted

CARTPOLE = partial(gym.make, "CartPole-v1")
#: Models of all kinds: algorithm, environment, number of environments, arguments
MODELS: dict[str, tuple[Any, Any, int, dict[str, Any]]] = {
    "IQN": (IQN, Chain, 1, {}),
    "IQN schedule": (IQN, Chain, 1, {"distortion": "wang", "risk_level": "-1->0.5", "double_q": True, "evaluation_eps": 0.2}),
    "ORAIQN": (ORAIQN, CARTPOLE, 1, {}),
    "ORAIQN visits": (ORAIQN, Chain, 1, {"eta": "auto", "epistemic_measure": "quantile", "n_steps": 3, "max_keys": 7}),
    "ORAIQN recursive": (ORAIQN, Scripted, 2, {"risk_adapter": "recursive", "alpha_max": 0.8}),
    "ORAIQN object": (ORAIQN, Chain, 1, {"risk_adapter": FTPLAdapter(), "policy_kwargs": {"prior_scale": 1.0}}),
    "ORAIQN global": (ORAIQN, Chain, 1, {"risk_scope": "global", "next_action": "ensemble", "alpha_step": 0.1}),
    "ARTIQN": (ARTIQN, Chain, 3, {}),
    "ARTIQN published": (ARTIQN, Chain, 2, {"mode": "published", "bandit_lr": 2.0}),
    "TOPIQN": (TOPIQN, Chain, 2, {"feedback_window": 5, "weight_decay": 0.1, "risk_levels": [0.1, 0.2, 0.7]}),
}


def make(name):
    algorithm, env, n_envs, kwargs = MODELS[name]
    return tiny(algorithm, several(env, n_envs), **kwargs)


#: Not arguments, and as in SB3 not kept or newly made: run-time objects, and what a run counts
NOT_KEPT = {"env", "policy", "adapter", "replay_buffer", "_vec_normalize_env", "_logger", "action_space", "observation_space"}
NOT_KEPT |= {"quantile_net", "quantile_net_target", "batch_norm_stats", "batch_norm_stats_target", "_previous_actions"}
NOT_KEPT |= {
    "_probes",
    "_acting",
    "_acting_alphas",
    "_last_obs",
    "_custom_logger",
    "risk_adapter",
    "device",
    "_last_episode_starts",
}


def through_file(model, **kwargs):
    file = io.BytesIO()
    model.save(file)
    return type(model).load(file, device="cpu", **kwargs)


def attributes(model):
    return {name: value for name, value in vars(model).items() if name not in NOT_KEPT and not callable(value)}


def saved_parameters(model):
    file = io.BytesIO()
    model.save(file)
    with zipfile.ZipFile(file) as archive:
        names = [name for name in archive.namelist() if name.endswith(".pth")]
        return {name: th.load(io.BytesIO(archive.read(name)), weights_only=True) for name in names}


@pytest.mark.parametrize("name", MODELS)
def test_three_times_through_a_file(name):
    model = make(name).learn(80)
    parameters, plain = model.get_parameters(), attributes(model)
    for _ in range(3):
        model = through_file(model)
        assert same_parameters(model.get_parameters(), parameters)
        assert attributes(model).keys() == plain.keys()
        for attribute, value in attributes(model).items():
            assert same_parameters(value, plain[attribute]), attribute
    assert parameters["adapter"]["kind"] == model.adapter.kind


@pytest.mark.parametrize("name", MODELS)
def test_arguments_are_kept_as_they_were_given(name):
    """Also what SB3 derives other values from: policy_kwargs, the replay buffer's class and its arguments."""
    kwargs = MODELS[name][3]
    model = make(name)
    given = {**kwargs, "policy_kwargs": {**ENSEMBLE, **kwargs.get("policy_kwargs", {})}, "learning_rate": 1e-3, "seed": 0}
    for either in (model, through_file(model), through_file(through_file(model))):
        for argument, value in given.items():
            assert argument == "risk_adapter" or getattr(either, argument) == value, argument
        assert either.replay_buffer_class is None and either.replay_buffer_kwargs == {}


def test_risk_adapter_argument_keeps_its_kind_and_settings():
    model = tiny(ORAIQN, Chain(), risk_adapter=RecursiveAdapter(reference="update"))
    for loaded in (through_file(model), through_file(through_file(model))):
        assert type(loaded.risk_adapter) is type(loaded.adapter) is RecursiveAdapter
        assert loaded.risk_adapter.reference == "update"


@pytest.mark.parametrize("name", MODELS)
def test_the_loaded_model_acts_as_the_saved_one(name):
    model = make(name).learn(80)
    loaded = through_file(model)
    observations = np.array([model.observation_space.sample() for _ in range(30)])
    previous = np.arange(30) % model.action_space.n
    for state in (None, (previous,)):
        first, second = (either.predict(observations, state, deterministic=True) for either in (model, loaded))
        assert np.array_equal(first[0], second[0])
    assert np.array_equal(model.policy.risk.alphas(observations, previous), loaded.policy.risk.alphas(observations, previous))


@pytest.mark.parametrize("name", MODELS)
def test_training_goes_on_the_same_after_a_file(name):
    """The same adapter draws and updates: both models are fed the same transitions from the same random state."""
    model, runs = make(name).learn(60), []
    for loaded in (through_file(model), through_file(through_file(model))):
        loaded.set_env(several(*MODELS[name][1:3]))
        loaded.set_random_seed(5)
        runs.append(loaded.learn(60).get_parameters())
    assert same_parameters(*runs)
    assert not same_parameters(runs[0], model.get_parameters())


@pytest.mark.parametrize("name", ["ORAIQN", "ARTIQN", "TOPIQN"])
def test_the_generator_is_taken_up_where_it_was(name):
    model = make(name).learn(80)
    loaded = through_file(model)
    draws = [
        [(getattr(either.adapter, "ftpl", None) or either.adapter.bandit)._generator.random() for _ in range(3)]
        for either in (model, loaded)
    ]
    assert draws[0] == draws[1]
    if name != "ORAIQN":
        assert np.array_equal(model.adapter.acting_level, loaded.adapter.acting_level)


@pytest.mark.parametrize("name", MODELS)
def test_files_can_be_read_by_a_device_without_float64(name):
    def types(value):
        if isinstance(value, dict):
            return set().union(*map(types, value.values()), set())
        if isinstance(value, list | tuple):
            return set().union(*map(types, value), set())
        return {value.dtype} if isinstance(value, th.Tensor) else set()

    found = saved_parameters(make(name).learn(80))
    assert {"policy.pth", "policy.optimizer.pth", "adapter.pth"} <= set(found)
    for part, state in found.items():
        assert th.float64 not in types(state) or part == "policy.optimizer.pth", part


@pytest.mark.parametrize("name", MODELS)
def test_parameters_of_another_model(name):
    model = make(name).learn(80)
    other = make(name)
    assert not same_parameters(model.get_parameters(), other.get_parameters())
    other.set_parameters(model.get_parameters())
    assert same_parameters(model.get_parameters(), other.get_parameters())


def test_parameters_of_the_policy_alone():
    model, other = (tiny(ORAIQN, Chain()) for _ in range(2))
    model.learn(80)
    with pytest.raises(ValueError, match="Names of parameters do not match"):
        other.set_parameters({"policy": model.policy.state_dict()})
    other.set_parameters({"policy": model.policy.state_dict()}, exact_match=False)
    assert same_parameters(model.policy.state_dict(), other.policy.state_dict())


@pytest.mark.parametrize("name", MODELS)
def test_policies_have_files_of_their_own(name, tmp_path):
    model = make(name).learn(80)
    model.policy.save(tmp_path / "policy")
    policy = IQNPolicy.load(tmp_path / "policy", device="cpu")
    observations = np.array([model.observation_space.sample() for _ in range(30)])
    state = (np.arange(30) % model.action_space.n,)
    assert np.array_equal(policy.predict(observations, state)[0], model.predict(observations, state, deterministic=True)[0])
    assert same_parameters(policy.state_dict(), model.policy.state_dict())


@pytest.mark.parametrize(("name", "policy_class"), [("channel last", CnnPolicy), ("dict with image", MultiInputPolicy)])
def test_policies_of_images_and_dicts(name, policy_class, tmp_path):
    model = model_for(ORAIQN, name).learn(40)
    model.policy.save(tmp_path / "policy")
    assert same_parameters(policy_class.load(tmp_path / "policy", device="cpu").state_dict(), model.policy.state_dict())
    assert same_parameters(through_file(model).get_parameters(), model.get_parameters())


def test_normalised_observations_without_their_environment():
    """The state key is made for normalised observations, which a file without environment must still say."""
    model = tiny(ORAIQN, VecNormalize(several(lambda: Scripted((4,)), 2))).learn(60)
    for loaded in (through_file(model), through_file(through_file(model))):
        assert same_parameters(loaded.get_parameters(), model.get_parameters())


def test_an_adapter_of_another_signal_does_not_take_over_the_weights():
    model = tiny(ARTIQN, Chain()).learn(60)
    model.adapter.bandit.weights[:] = [1.0, 2.0]
    model._adopt_adapter(EWAFAdapter("episode-return"))
    assert model.adapter.bandit.weights.tolist() == [0.0, 0.0]


def test_an_adapter_from_the_callbacks_is_found_again_in_the_file():
    """The file holds the state of an adapter the loaded model does not have: it waits for one of that kind."""
    arms = {"risk_levels": (0.1, 0.5, 1.0)}
    model = tiny(IQN, Chain(), distortion="cvar").learn(80, callback=EWAFAdapter("episode-return", **arms))
    weights = model.adapter.bandit.weights.copy()
    assert np.abs(weights).max() > 0
    loaded = through_file(through_file(through_file(model)), env=Chain())
    assert loaded.adapter.kind == "ScheduleAdapter"
    loaded = through_file(loaded.learn(40), env=Chain())
    adapter = EWAFAdapter("episode-return", **arms)
    loaded._adopt_adapter(adapter)
    assert np.array_equal(adapter.bandit.weights, weights)
    loaded.learn(40)
    assert loaded.adapter is adapter


class LearnedHash(StateKey):
    """A key of one's own, with the names of a torch module's weights."""

    def __init__(self):
        self.net = th.nn.Sequential(th.nn.Linear(4, 3, bias=False))

    def __call__(self, observations):
        with th.no_grad():
            return (self.net(th.as_tensor(observations)) > 0).numpy() @ np.array([1, 2, 4])

    def state_dict(self):
        return dict(self.net.state_dict())

    def load_state_dict(self, state):
        self.net.load_state_dict(state)


def test_a_state_key_whose_names_have_dots():
    model = tiny(ORAIQN, CARTPOLE(), state_key=LearnedHash()).learn(60)
    file = io.BytesIO()
    model.save(file)
    file.seek(0)
    loaded = ORAIQN.load(file, custom_objects={"state_key": LearnedHash()})
    keys = [m.policy.risk.state_key for m in (model, loaded)]
    assert keys[0] is not keys[1] and same_parameters(*(key.state_dict() for key in keys))
    assert len(loaded.policy.risk.table) == len(model.policy.risk.table) > 0


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_the_policy_is_a_module_with_gradients(algorithm):
    """As of SB3's own policies, a call needs no ``th.no_grad()``."""
    model = tiny(algorithm, CARTPOLE())
    observations = np.random.default_rng(0).normal(size=(5, 4)).astype(np.float32)
    actions = model.policy(th.as_tensor(observations))
    assert actions.tolist() == model.predict(observations, deterministic=True)[0].tolist()
