"""Loading with other settings, and training on."""

import io
from copy import deepcopy
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch as th
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.vec_env import VecFrameStack, VecNormalize

from sb3_ora import ARTIQN, IQN, ORAIQN
from sb3_ora.adapters import CompositeAdapter, FTPLAdapter, RecursiveAdapter
from sb3_ora.risk import CVaR, Wang
from tests.tiny import ALGORITHMS, same_parameters, set_values, several, tiny
from tests.toy_envs import Chain, Scripted


def file_of(model):
    file = io.BytesIO()
    model.save(file)
    file.seek(0)
    return file


class Progress(BaseCallback):
    """Exploration rate, level and learning rate at each step."""

    model: Any

    def __init__(self):
        super().__init__()
        self.seen = []

    def _on_step(self) -> bool:
        self.seen.append((self.num_timesteps, self.model.exploration_rate, self.model.policy.risk.level))
        return True


@pytest.mark.parametrize("n_envs", [1, 4])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_another_number_of_environments(algorithm, n_envs):
    model = tiny(algorithm, several(Chain, 2)).learn(60)
    loaded = algorithm.load(file_of(model), env=several(Chain, n_envs))
    assert loaded.n_envs == n_envs
    assert same_parameters(loaded.policy.state_dict(), model.policy.state_dict())
    before = loaded._n_updates
    loaded.learn(60)
    assert loaded._n_updates > before


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_settings_given_to_load(algorithm):
    """As rl_zoo3 does for enjoy (buffer_size=1) and for continued training."""
    model = tiny(algorithm, Chain()).learn(60)
    settings = {"learning_rate": 0.5, "seed": 7, "buffer_size": 1, "gamma": 0.5, "exploration_final_eps": 0.3}
    loaded = algorithm.load(file_of(model), env=Chain(), **settings)
    assert (loaded.seed, loaded.buffer_size, loaded.gamma) == (7, 1, 0.5)
    assert loaded.replay_buffer.buffer_size == 1
    assert loaded.lr_schedule(1.0) == 0.5
    assert same_parameters(loaded.policy.state_dict(), model.policy.state_dict())
    loaded.learn(40)
    assert loaded.exploration_rate == pytest.approx(0.3)
    assert loaded.policy.optimizer.param_groups[0]["lr"] == 0.5


def test_a_buffer_of_one_for_models_with_n_step_returns():
    """Which holds no return, and is not needed to act."""
    loaded = IQN.load(file_of(tiny(IQN, Chain(), n_steps=3)), env=Chain(), buffer_size=1)
    assert loaded.predict(2, deterministic=True)[0] in (0, 1)
    with pytest.raises(ValueError, match="n_steps must not be larger than buffer_size=1, got 3"):
        loaded.learn(10)


def test_another_adapter_acts_at_once():
    """Composite takes the mean of the heads, whatever levels are in the file; and back."""
    model = tiny(ORAIQN, Chain(5, one_hot=True), alpha_max=0.1)
    set_values(model, np.array([[3.0, 1.0], [3.0, 1.0], [3.0, 1.0], [-4.0, 1.0]]))  # means 1.25 and 1
    observation = np.zeros(5, dtype=np.float32)
    assert model.predict(observation, deterministic=True)[0] == 1
    loaded = ORAIQN.load(file_of(model), risk_adapter="composite")
    assert loaded.predict(observation, deterministic=True)[0] == 0
    assert ORAIQN.load(file_of(loaded), risk_adapter="ftpl").predict(observation, deterministic=True)[0] == 1
    assert ORAIQN.load(file_of(loaded)).predict(observation, deterministic=True)[0] == 0


def test_an_adapter_goes_on_after_others_were_there():
    """Two kinds in between, each through a file."""
    model = tiny(ORAIQN, Chain()).learn(60)
    state, table = model.adapter.ftpl.state_dict(), len(model.policy.risk.table)
    for other in ("recursive", "composite", "recursive"):
        model = ORAIQN.load(file_of(model), env=Chain(), risk_adapter=other)
    back = ORAIQN.load(file_of(model), env=Chain(), risk_adapter="ftpl")
    assert back.adapter.ftpl.state_dict() == state and len(back.policy.risk.table) == table
    back.learn(10, callback=RecursiveAdapter())
    back.learn(10, callback=FTPLAdapter())
    assert back.adapter.ftpl.scale != 1.0
    assert {*back.adapter.states_of_others} == {"RecursiveAdapter", "CompositeAdapter"}


def test_another_distortion_has_its_own_level():
    """CVaR's 0.25 would be risk-seeking for Wang, whose default is averse."""
    loaded = IQN.load(file_of(tiny(IQN, Chain(), distortion="cvar")), distortion="wang")
    assert loaded.policy.risk.level == -0.75


def test_a_schedule_begins_with_the_model():
    assert tiny(IQN, Chain(), distortion="cvar", risk_level="0.1->0.9").policy.risk.level == pytest.approx(0.1)


def test_a_schedule_begins_anew():
    """The first step of a second training is made at the first level, not at the last one of the training before."""
    levels = [[], []]
    greedy = {"learning_starts": 0, "exploration_initial_eps": 0.0, "exploration_final_eps": 0.0}
    model = tiny(IQN, Chain(), distortion="cvar", risk_level="0.1->0.9", **greedy)
    taus = model.policy.risk.taus
    for number in range(2):
        model.policy.risk.taus = lambda level=None, n=number: levels[n].append(model.policy.risk.level) or taus(level)
        model.learn(50)
    assert levels[0][0] == levels[1][0] == pytest.approx(0.1)
    assert levels[1][-1] == pytest.approx(0.9, abs=0.05)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_copy_of_a_model_trains_like_it(algorithm):
    model = tiny(algorithm, Chain()).learn(60)
    copied = deepcopy(model)
    for one in (model, copied):
        one.set_random_seed(3)
        one.learn(60)
    assert copied.adapter is not model.adapter
    assert same_parameters(copied.policy.state_dict(), model.policy.state_dict())


def test_custom_objects():
    model = tiny(ORAIQN, Chain(), learning_rate=lambda left: 1e-3 * left)
    loaded = ORAIQN.load(file_of(model), custom_objects={"learning_rate": 0.25, "lr_schedule": lambda _: 0.25})
    assert loaded.lr_schedule(0.3) == 0.25


@pytest.mark.parametrize("bad", [{"n_quantiles": 0}, {"alpha_min": 2.0}, {"distortion": "cvarr"}])
def test_bad_settings_given_to_load_are_refused(bad):
    with pytest.raises(ValueError, match=str(next(iter(bad.values())))):
        ORAIQN.load(file_of(tiny(ORAIQN, Chain())), **bad)


def test_another_policy_is_refused():
    with pytest.raises(ValueError, match="specified policy kwargs do not equal the stored policy kwargs"):
        IQN.load(file_of(tiny(IQN, Chain())), policy_kwargs={"net_arch": [3]})


@pytest.mark.parametrize(
    ("given", "distortion", "level"),
    [
        ({"risk_level": 0.7}, CVaR(), 0.7),
        ({"risk_level": "0.3->0.6"}, CVaR(), 0.6),
        ({"distortion": "wang", "risk_level": -1.5}, Wang(), -1.5),
        ({"distortion": "neutral", "risk_level": None}, None, 1.0),
    ],
)
@pytest.mark.parametrize("way", ["kwargs", "custom_objects"])
def test_a_trained_model_at_another_level(given, distortion, level, way):
    """The level in the file is that at the end of its schedule; a new one takes its place, at the end of training too."""
    model = tiny(IQN, Chain(), distortion="cvar", risk_level="0.1->0.9->0.2").learn(40)
    assert IQN.load(file_of(model)).policy.risk.level == pytest.approx(0.2)
    arguments = given if way == "kwargs" else {"custom_objects": given}
    loaded = IQN.load(file_of(model), **arguments)
    assert loaded.policy.risk.level == pytest.approx(level)
    middle = (th.arange(32) + 0.5) / 32
    expected = middle if distortion is None else distortion(middle, level)
    th.testing.assert_close(loaded.policy.risk.taus(), expected[None])
    loaded.predict(np.array([0]), deterministic=True)


def test_progress_goes_on_from_where_it_was():
    """40 of 120 steps done: SB3's progress runs from 2/3 to 0; epsilon falls in the first half, the level all along."""
    settings = {"exploration_initial_eps": 0.9, "exploration_final_eps": 0.1, "distortion": "cvar", "risk_level": "0.2->0.8"}
    model = tiny(IQN, Chain(), **settings).learn(40)
    progress = Progress()
    loaded = IQN.load(file_of(model), env=Chain())
    loaded.learn(80, callback=progress, reset_num_timesteps=False)
    steps = np.arange(41, 120)
    assert [seen[0] for seen in progress.seen] == list(range(41, 121))
    epsilon = [max(0.9 - 0.8 * (step / 120) / 0.5, 0.1) for step in steps]
    assert [seen[1] for seen in progress.seen[1:]] == pytest.approx(epsilon)
    assert [seen[2] for seen in progress.seen[1:]] == pytest.approx([0.2 + 0.6 * step / 120 for step in steps])


@pytest.mark.parametrize("n_envs", [1, 3])
def test_adaptation_goes_on_with_the_saved_table(n_envs):
    model = tiny(ORAIQN, several(Chain, n_envs)).learn(40 * n_envs)
    loaded = ORAIQN.load(file_of(model), env=several(Chain, n_envs))
    counts = loaded.policy.risk.table.state_dict()["loss_count"].sum()
    loaded.learn(40 * n_envs, reset_num_timesteps=False)
    assert loaded.policy.risk.table.state_dict()["loss_count"].sum() > counts > 0


def test_the_state_key_is_not_fitted_again():
    model = tiny(ORAIQN, "CartPole-v1").learn(120)
    assert model.policy.risk.state_key.fitted
    bounds = model.policy.risk.state_key.state_dict()
    loaded = ORAIQN.load(file_of(model), env=gym.make("CartPole-v1")).learn(120)
    assert same_parameters(loaded.policy.risk.state_key.state_dict(), bounds)


@pytest.mark.parametrize("callback", [RecursiveAdapter, CompositeAdapter, FTPLAdapter])
def test_a_model_trained_with_an_adapter_of_another_kind(callback):
    model = tiny(ORAIQN, Chain()).learn(60, callback=callback())
    for _ in range(3):
        loaded = ORAIQN.load(file_of(model), env=Chain())
        asked = {"observation": np.arange(5), "state": (np.zeros(5),), "deterministic": True}
        assert np.array_equal(model.predict(**asked)[0], loaded.predict(**asked)[0])
        loaded.learn(40)
        assert type(loaded.adapter) is FTPLAdapter
        model = loaded.learn(40, callback=callback())


def test_a_replay_buffer_of_its_own_file(tmp_path):
    model = tiny(ORAIQN, Chain()).learn(60)
    model.save(tmp_path / "model")
    model.save_replay_buffer(tmp_path / "buffer")
    loaded = ORAIQN.load(tmp_path / "model", env=Chain())
    loaded.load_replay_buffer(tmp_path / "buffer")
    assert loaded.replay_buffer.size() == 60
    loaded.learn(40, reset_num_timesteps=False)
    assert loaded.replay_buffer.size() == 100


def test_another_environment():
    model = tiny(ORAIQN, Chain()).learn(40)
    model.set_env(Chain(5, 3))
    model.learn(40)
    with pytest.raises(ValueError, match="Observation spaces do not match"):
        model.set_env(Chain(6))
    with pytest.raises(AssertionError, match="number of environments"):
        model.set_env(several(Chain, 2))


def test_normalised_environments_are_found_again():
    env = VecNormalize(several(lambda: Scripted((4,)), 2))
    model = tiny(ORAIQN, env).learn(60)
    other = VecNormalize(several(lambda: Scripted((4,)), 3))
    loaded = ORAIQN.load(file_of(model), env=other)
    assert loaded.get_vec_normalize_env() is other
    loaded.learn(60)


def test_a_bandit_with_other_arms_starts_anew():
    model = tiny(ARTIQN, Chain()).learn(40)
    assert model.adapter.bandit.weights.any()
    with pytest.warns(UserWarning, match=r"is not loaded, as it is of risk_levels=\[0.1, 1.0\] instead of \[0.1, 0.5\]"):
        loaded = ARTIQN.load(file_of(model), env=Chain(), risk_levels=(0.1, 0.5))
    assert loaded.adapter.arms.tolist() == [0.1, 0.5] and not loaded.adapter.bandit.weights.any()
    loaded.learn(40, reset_num_timesteps=False)


@pytest.mark.parametrize(
    "given, told",
    [
        ({"risk_scope": "action"}, "scope='state-action' instead of 'action', state_key='DiscreteKey' instead of None"),
        ({"alpha_min": 0.05, "alpha_max": 0.95}, "grid=.* instead of"),
        ({"alpha_step": 0.1}, "grid=.* instead of"),
    ],
)
def test_levels_of_another_meaning_are_not_loaded(given, told):
    """Keys that stood for states would stand for actions, or sums of losses for other levels."""
    model = tiny(ORAIQN, Chain(), eta=50.0, learning_rate=0.05).learn(200)
    assert len(model.policy.risk.table) > 0 and (model.policy.risk.table.alpha[: len(model.policy.risk.table)] < 1).any()
    with pytest.warns(UserWarning, match=f"the learned risk levels are not loaded, as they are of {told}"):
        loaded = ORAIQN.load(file_of(model), env=Chain(), **given)
    assert len(loaded.policy.risk.table) == 0
    same = zip(model.policy.quantile_net.parameters(), loaded.policy.quantile_net.parameters(), strict=True)
    assert all(th.equal(*pair) for pair in same)
    loaded.learn(100, reset_num_timesteps=False)
    levels = loaded.policy.risk.table.lookup(loaded.policy.risk.table.keys())
    assert np.isclose(levels[:, None], loaded.adapter.grid).any(axis=1).all()


def test_no_steps_and_no_updates():
    for algorithm in ALGORITHMS:
        model = tiny(algorithm, Chain()).learn(0)
        assert model.num_timesteps == 0
        model.learn(40)
        before = model._n_updates
        model.train(0, 8)
        assert model._n_updates == before


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_deep_copy_is_a_model_of_its_own(algorithm):
    model = tiny(algorithm, Chain()).learn(60)
    copied = deepcopy(model)
    assert copied.adapter.model is copied and model.adapter.model is model
    copied.set_parameters(deepcopy(model.get_parameters()))  # an optimizer keeps the tensors it is given
    copied.dump_logs()
    assert same_parameters(copied.get_parameters(), model.get_parameters())
    before = deepcopy(model.get_parameters())
    copied.learn(60, reset_num_timesteps=False)
    assert same_parameters(model.get_parameters(), before)
    assert not same_parameters(copied.get_parameters(), before)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_seeds_set_afterwards(algorithm):
    """Also the adapter's own random numbers follow set_random_seed."""

    def trained(seed):
        th.manual_seed(0)
        model = tiny(algorithm, Chain(), seed=None, eta=5.0) if algorithm is ORAIQN else tiny(algorithm, Chain(), seed=None)
        model.set_random_seed(seed)
        return model.learn(120).get_parameters()

    first, again, other = trained(3), trained(3), trained(4)
    assert same_parameters(first, again) and not same_parameters(first, other)


def test_an_adapter_serves_one_model():
    adapter = FTPLAdapter()
    models = [tiny(ORAIQN, Chain()) for _ in range(2)]
    for model in models:
        model.learn(40, callback=adapter)
    with pytest.raises(ValueError, match="callback holds a FTPLAdapter that has served another model since"):
        models[0].learn(40, callback=adapter)
    n_keys = len(models[1].policy.risk.table)
    with pytest.raises(ValueError, match="the FTPLAdapter of this model has served another one since"):
        models[0].learn(40)
    assert len(models[1].policy.risk.table) == n_keys
    models[0].learn(40, callback=FTPLAdapter())


def test_an_environment_that_is_normalised_otherwise():
    model = tiny(ORAIQN, several(lambda: Scripted((4,)), 1))
    with pytest.warns(UserWarning, match="groups states without normalisation of observations, and env comes with it"):
        model.set_env(VecNormalize(several(lambda: Scripted((4,)), 1)))
    normalised = tiny(ORAIQN, VecNormalize(several(lambda: Scripted((4,)), 1))).learn(60)
    with pytest.warns(UserWarning, match="groups states with normalisation of observations, and env comes without it"):
        loaded = ORAIQN.load(file_of(normalised))
        loaded.set_env(several(lambda: Scripted((4,)), 1))
    with pytest.warns(UserWarning, match="groups states with normalisation of observations, and env comes without it"):
        plain = ORAIQN.load(file_of(normalised), env=several(lambda: Scripted((4,)), 1))
    assert same_parameters(plain.get_parameters(), normalised.get_parameters())


def test_a_reset_of_stacked_frames():
    """VecFrameStack returns the same array from reset() as from the last step."""
    env = VecFrameStack(several(lambda: Scripted((50,)), 1), 2)
    model = tiny(ORAIQN, env, n_steps=3, learning_starts=1000)
    model.learn(10)
    last = model.replay_buffer.pos - 1
    model.learn(10)
    assert model._previous_actions.tolist() != [-1]
    discounts = model.replay_buffer._get_samples(np.array([last - 1, last])).discounts.flatten()
    assert discounts.tolist() == pytest.approx([model.gamma**2, model.gamma])
    model._setup_learn(10)
    assert model._previous_actions.tolist() == [-1]


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_file_of_another_algorithm(algorithm):
    file = file_of(tiny(algorithm, Chain()))
    for other in set(ALGORITHMS) - {algorithm}:
        file.seek(0)
        message = f"^the file holds a model of {algorithm.__name__}, not of {other.__name__}: use {algorithm.__name__}.load$"
        with pytest.raises(ValueError, match=message):
            other.load(file)


def test_a_class_of_ones_own_is_the_algorithm_that_it_extends():
    class Mine(ORAIQN):
        pass

    assert type(ORAIQN.load(file_of(tiny(Mine, Chain(), n_heads=4)))) is ORAIQN
    assert type(Mine.load(file_of(tiny(ORAIQN, Chain())))) is Mine


def test_a_seed_given_to_load_seeds_the_adapter():
    file = file_of(tiny(ORAIQN, Chain()).learn(60))

    def trained(**kwargs):
        file.seek(0)
        model = ORAIQN.load(file, env=Chain(), **kwargs)
        return model.adapter.ftpl._generator.random(4).tolist()

    assert trained(seed=1) == trained(seed=1) == np.random.default_rng(1).random(4).tolist()
    assert trained(seed=2) == np.random.default_rng(2).random(4).tolist() and trained() == trained()


def test_nothing_to_learn_is_said(capsys):
    tiny(IQN, Chain(), learning_starts=50, verbose=1).learn(50)
    assert "Nothing will be learned: learning_starts=50, of 50 steps in all" in capsys.readouterr().out
    tiny(IQN, Chain(), learning_starts=50, verbose=1).learn(51)
    assert "Nothing" not in capsys.readouterr().out


def test_the_last_transition_before_a_reset_leads_nowhere():
    """With optimize_memory_usage the next observation is that of the next transition, here of another episode."""
    replay = {"optimize_memory_usage": True, "replay_buffer_kwargs": {"handle_timeout_termination": False}}
    model = tiny(IQN, Scripted((50,)), learning_starts=1000, **replay)
    model.learn(12)
    model.set_env(Scripted((50,)))
    model.learn(5, reset_num_timesteps=False)
    assert np.flatnonzero(model.replay_buffer.dones[:15, 0]).tolist() == [11]
