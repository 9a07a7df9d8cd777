"""NaN and infinite numbers stop a training, with their source, before they do harm; large and small rewards do not."""

import math

import gymnasium as gym
import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

from sb3_ora import IQN, ORAIQN
from sb3_ora.checkpoint import RunCheckpoint, last_checkpoint
from sb3_ora.iqn.finite import NotFiniteError, check_update
from tests.tiny import ALGORITHMS, same_parameters, tiny

NAN, INF = math.nan, math.inf
BOX = spaces.Box(-10, 10, (3,))


class Spoiled(gym.Env):
    """Random observations in episodes of 7 steps; from a given step on, the value at a given place is a given number."""

    action_space = spaces.Discrete(2)

    def __init__(self, place=None, value=NAN, at=60, as_dict=False, scale=1.0):
        self.place, self.value, self.at, self.scale, self.steps = place, value, at, scale, 0
        self.observation_space = spaces.Dict({"far": BOX, "near": BOX}) if as_dict else BOX

    def observe(self, spoil):
        observation = self.observation_space.sample()
        if spoil:
            part = observation if self.observation_space is BOX else observation["near"]
            part[1] = self.value
        return observation

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        self.observation_space.seed(seed)
        self.t = 0
        return self.observe(self.place == "reset"), {}

    def step(self, action):
        self.t, self.steps = self.t + 1, self.steps + 1
        due, done = self.steps >= self.at, self.t == 7
        spoil = due and (self.place == "observation" or (self.place == "last" and done))
        reward = self.value if due and self.place == "reward" else self.scale * float(self.np_random.normal())
        return self.observe(spoil), reward, done, False, {}


class Snapshot(BaseCallback):
    """Keeps the weights of the last step that was well."""

    def _on_step(self):
        self.weights = {name: value.clone() for name, value in self.model.policy.state_dict().items()}
        return True


def several(bad, n_envs=3, normalize=False):
    """Environments of which the second is the bad one."""
    as_dict = isinstance(bad.observation_space, spaces.Dict)
    env = DummyVecEnv([(lambda i=i: bad if i == 1 else Spoiled(as_dict=as_dict)) for i in range(n_envs)])
    return VecNormalize(env) if normalize else env


def stopped(model, message):
    """Train until the error, and see that weights and replay buffer are those from before."""
    snapshot = Snapshot()
    with pytest.raises(NotFiniteError, match=message):
        model.learn(600, callback=snapshot)
    if model.num_timesteps:
        assert same_parameters(snapshot.weights, dict(model.policy.state_dict()))
    assert all(th.isfinite(parameter).all() for parameter in model.policy.parameters())
    buffer = model.replay_buffer
    stored = [buffer.observations, buffer.next_observations]
    for part in [part for value in stored for part in (value.values() if isinstance(value, dict) else [value])]:
        assert np.isfinite(part).all()
    assert np.isfinite(buffer.rewards).all()


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        ("observation", NAN, "^observation of environment 1 is nan at index 1 of 3, after step 180$"),
        ("reward", INF, "^reward of environment 1 is inf, after step 180$"),
        ("last", -INF, "^last observation of the episode of environment 1 is -inf at index 1 of 3, after step 189$"),
    ],
)
def test_where_it_came_from(algorithm, place, value, message):
    stopped(tiny(algorithm, several(Spoiled(place, value))), message)


@pytest.mark.parametrize("place", ["observation", "last"])
def test_an_entry_of_a_dict(place):
    model = tiny(IQN, several(Spoiled(place, as_dict=True)), "MultiInputPolicy")
    stopped(model, "^entry 'near' of the .*observation.* of environment 1 is nan at index 1 of 3, after step 18")


def test_the_first_observation():
    stopped(tiny(IQN, several(Spoiled("reset"))), r"^observation of environment 1 is nan at index 1 of 3, after reset\(\)$")


@pytest.mark.parametrize("as_dict", [False, True])
@pytest.mark.parametrize("value", [NAN, INF])
@pytest.mark.parametrize(("place", "when"), [("reset", r"after reset\(\)"), ("observation", "after step 180")])
def test_statistics_of_the_normalisation_are_kept(place, when, value, as_dict):
    env = several(Spoiled(place, value, as_dict=as_dict), normalize=True)
    model = tiny(ORAIQN, env, "MultiInputPolicy" if as_dict else "MlpPolicy")
    stopped(model, f"observation of environment 1 is {value} at index 1 of 3, {when}")
    running = [*env.obs_rms.values()] if as_dict else [env.obs_rms]
    for part in [*running, env.ret_rms]:
        assert np.isfinite(part.mean).all() and np.isfinite(part.var).all()
    assert np.isfinite(env.returns).all()
    steps = 0 if place == "reset" else 60  # the first reset, and 59 steps, of 3 environments
    assert running[0].count == pytest.approx(3 * steps + 1e-4)


def test_rewards_that_the_normalisation_would_clip():
    env = several(Spoiled("reward", INF), normalize=True)
    stopped(tiny(IQN, env), "^reward of environment 1 is inf, after step 180$")
    assert np.isfinite(env.ret_rms.var) and np.isfinite(env.returns).all()


def test_training_goes_on_when_the_environment_is_well_again():
    bad = Spoiled("observation")
    model = tiny(IQN, several(bad))
    stopped(model, "observation of environment 1")
    bad.place = None
    model.learn(60, reset_num_timesteps=False)
    assert model.num_timesteps == 177 + 60


class Cusp(BaseFeaturesExtractor):
    """Its gradient does not exist where observations are 0."""

    def __init__(self, space):
        super().__init__(space, 3)
        self.scale = th.nn.Parameter(th.ones(3))

    def forward(self, observations):
        return (self.scale * observations * 0).abs().sqrt() + observations


def test_loss_and_gradient():
    model = tiny(IQN, Spoiled())
    model.learn(40)
    model.replay_buffer.rewards[:] = INF  # as of a buffer that was loaded
    stopped_update(model, "^the loss is inf after 5 updates, at step 40: the replay buffer holds .* in its rewards$")
    model = tiny(IQN, Spoiled(), policy_kwargs={"features_extractor_class": Cusp})
    model.learn(20)
    stopped_update(model, r"^the loss is [\d.]+, but its gradient is not finite .* the gradient does not exist")
    model = tiny(IQN, Spoiled())
    model.learn(40)
    with th.no_grad():
        model.quantile_net_target.heads[0].bias[2] = NAN
    stopped_update(model, "heads.0.bias of the target network holds NaN")


def stopped_update(model, message):
    """Train on what is in the buffer, and see that the weights do not change."""
    before = {name: value.clone() for name, value in model.quantile_net.state_dict().items()}
    updates = model._n_updates
    with pytest.raises(NotFiniteError, match=message):
        model.train(5, batch_size=16)
    assert same_parameters(before, dict(model.quantile_net.state_dict()))
    assert model._n_updates == updates


class NormOfLinear(BaseFeaturesExtractor):
    """Features whose gradient is NaN where the observation is 0; its layer has no bias that would tell."""

    def __init__(self, observation_space):
        super().__init__(observation_space, 1)
        self.linear = th.nn.Linear(3, 4, bias=False)

    def forward(self, observations):
        return (self.linear(observations) ** 2).sum(dim=1, keepdim=True).sqrt()


def test_gradient_of_a_layer_without_bias():
    model = tiny(IQN, Spoiled(), policy_kwargs={"features_extractor_class": NormOfLinear}).learn(40)
    model.replay_buffer.observations[:] = 0.0
    with pytest.raises(NotFiniteError, match="its gradient is not finite"):
        model.train(1, 8)
    assert all(th.isfinite(parameter).all() for parameter in model.policy.parameters())


class StridedGradient(BaseFeaturesExtractor):
    """A layer without bias, whose gradient is laid out with channels last."""

    def __init__(self, observation_space):
        super().__init__(observation_space, 3)
        self.convolution = th.nn.Conv2d(3, 3, 2, padding=1, bias=False).to(memory_format=th.channels_last)

    def forward(self, observations):
        return self.convolution(observations.view(-1, 3, 1, 1)).mean(dim=(2, 3))


def test_gradients_in_any_layout_and_none_that_would_tell():
    model = tiny(IQN, Spoiled(), policy_kwargs={"features_extractor_class": StridedGradient}).learn(40)
    assert not model.quantile_net.features_extractor.convolution.weight.grad.is_contiguous()
    model = tiny(IQN, Spoiled())
    for name, parameter in model.quantile_net.named_parameters():
        parameter.requires_grad_(not name.endswith("bias"))
    before = model.quantile_net.trunk[0].weight.clone()
    model.learn(40)
    assert not th.equal(model.quantile_net.trunk[0].weight, before)


def test_devices_that_would_have_to_be_waited_for(monkeypatch):
    """The fused optimizer, here that of the CPU, is told to leave the weights alone."""
    model = tiny(IQN, Spoiled()).learn(40)
    optimizer = model.policy.optimizer
    assert optimizer.defaults["fused"]

    class Elsewhere:
        """A loss on another device."""

        device = th.device("cuda")

        def __init__(self, value):
            self.value = value

        def detach(self):
            return th.tensor(self.value)

    def step(loss):
        before = [parameter.clone() for parameter in model.quantile_net.parameters()]
        for parameter in model.quantile_net.parameters():
            parameter.grad = th.full_like(parameter, loss)
        check_update(model, Elsewhere(loss), None)
        optimizer.step()
        after = model.quantile_net.parameters()
        return sum(not th.equal(*pair) for pair in zip(before, after, strict=True))

    assert step(1.0) == len(list(model.quantile_net.parameters()))
    assert step(NAN) == 0
    assert step(1.0) == len(list(model.quantile_net.parameters()))  # moments and step count are unharmed
    assert all(th.isfinite(parameter).all() for parameter in model.quantile_net.parameters())


def test_the_model_is_saved_beside_the_checkpoints(tmp_path):
    model = tiny(ORAIQN, several(Spoiled("reward")))
    with pytest.warns(UserWarning, match="the model from before the error is saved in"), pytest.raises(NotFiniteError):
        model.learn(600, callback=[Snapshot(), RunCheckpoint(90, tmp_path)])
    saved = ORAIQN.load(tmp_path / "model_177_steps_before_error.zip", device="cpu")
    assert same_parameters(model.get_parameters(), saved.get_parameters()) and saved._n_updates > 0
    assert last_checkpoint(tmp_path).meta["num_timesteps"] == 96  # the first rollout's start after 90


@pytest.mark.parametrize("scale", [1e-6, 1e6])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_scales_of_rewards(algorithm, scale):
    model = tiny(algorithm, several(Spoiled(scale=scale)), learning_rate=1e-2, buffer_size=500, train_freq=2).learn(600)
    assert all(th.isfinite(parameter).all() for parameter in model.policy.parameters())
    observations = model.replay_buffer.observations[:50, 0]
    values = model.policy.epistemic_values(th.as_tensor(observations))
    assert th.isfinite(values).all()
    assert not math.isnan(model.policy.risk.level)
    if algorithm is ORAIQN:
        alphas = model.policy.risk.table.alpha[: len(model.policy.risk.table)]
        assert len(alphas) and ((alphas >= model.alpha_min) & (alphas <= model.alpha_max)).all()
