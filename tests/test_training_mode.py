"""Layers that behave differently in training: batch normalisation and dropout."""

import numpy as np
import pytest
import torch as th
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from torch import nn

from sb3_ora import IQN, ORAIQN
from tests.tiny import ALGORITHMS, same_parameters, several, tiny
from tests.toy_envs import Scripted


class Normalised(BaseFeaturesExtractor):
    """Statistics that are plain means over all batches so far (``momentum=None``), and then half of the features lost."""

    def __init__(self, observation_space):
        super().__init__(observation_space, observation_space.shape[0])
        self.norm = nn.BatchNorm1d(observation_space.shape[0], momentum=None)
        self.drop = nn.Dropout(0.5)

    def forward(self, observations):
        return self.drop(self.norm(observations))


def model_with(algorithm, **kwargs):
    """An interval of the target network that is never reached, for the target to stay as it was."""
    settings = {"target_update_interval": 1000, "policy_kwargs": {"features_extractor_class": Normalised}, **kwargs}
    return tiny(algorithm, several(lambda: Scripted((4, 7)), 2), **settings)


def statistics(net):
    return {name: value.clone() for name, value in net.features_extractor.norm.named_buffers()}


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_statistics_are_those_of_the_training_batches(algorithm, monkeypatch):
    """Acting, adapting the risk, evaluating targets and predicting leave no trace in them."""
    model = model_with(algorithm)
    batches, sample = [], model.replay_buffer.sample
    monkeypatch.setattr(model.replay_buffer, "sample", lambda *args, **kw: batches.append(sample(*args, **kw)) or batches[-1])
    target = statistics(model.quantile_net_target)
    model.learn(100)
    model.predict(np.ones((30, 2), dtype=np.float32))
    observations = th.stack([batch.observations for batch in batches])  # (T, B, 2)
    norm = model.quantile_net.features_extractor.norm
    assert norm.num_batches_tracked == len(batches) == model._n_updates > 5
    th.testing.assert_close(norm.running_mean, observations.mean(dim=(0, 1)))
    th.testing.assert_close(norm.running_var, observations.var(dim=1).mean(dim=0))
    assert same_parameters(statistics(model.quantile_net_target), target)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_collecting_changes_no_statistics(algorithm):
    model = model_with(algorithm, gradient_steps=0)
    before = statistics(model.quantile_net)
    model.learn(100)
    assert same_parameters(statistics(model.quantile_net), before)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_the_target_takes_over_the_statistics(algorithm):
    """Also with a soft update, which mixes weights but not statistics."""
    model = model_with(algorithm, target_update_interval=2, tau=0.5, train_freq=10).learn(90)  # updates follow, no target step
    trained, target = statistics(model.quantile_net), statistics(model.quantile_net_target)
    assert not th.equal(trained["running_mean"], target["running_mean"])
    model.num_timesteps, model._n_calls = 92, 2 * model._n_calls
    model._on_step()
    assert th.equal(trained["running_mean"], statistics(model.quantile_net_target)["running_mean"])
    assert th.equal(trained["running_var"], statistics(model.quantile_net_target)["running_var"])
    assert not same_parameters(
        model.quantile_net.features_extractor.norm.weight, model.quantile_net_target.features_extractor.norm.weight
    )


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_predictions_lose_no_features(algorithm):
    """Right after training, too, which leaves the network in training mode."""
    model = model_with(algorithm).learn(60)
    observations = np.random.default_rng(0).uniform(0, 8, (50, 2)).astype(np.float32)
    model.policy.set_training_mode(True)
    first = model.predict(observations, deterministic=True)[0]
    assert not model.quantile_net.training
    for _ in range(4):
        model.policy.set_training_mode(True)
        assert np.array_equal(model.predict(observations, deterministic=True)[0], first)
    norm, kept = model.quantile_net.features_extractor.norm, th.as_tensor(observations)
    expected = (kept - norm.running_mean) / (norm.running_var + norm.eps).sqrt() * norm.weight + norm.bias
    th.testing.assert_close(model.quantile_net.features_extractor(kept), expected)


class Frozen(Normalised):
    """Batch normalisation that keeps its statistics, whatever the mode of the network."""

    def train(self, mode=True):
        super().train(mode)
        self.norm.eval()
        return self


def test_all_modules_follow_the_mode_and_an_extractor_may_decide_for_itself():
    for extractor, frozen in ((Normalised, False), (Frozen, True)):
        net = model_with(ALGORITHMS[1], policy_kwargs={"features_extractor_class": extractor}).quantile_net
        for mode in (True, False, True):
            net.set_training_mode(mode)
            modes = {module.training for module in net.modules() if module is not net.features_extractor.norm}
            assert modes == {mode}
            assert net.features_extractor.norm.training == (mode and not frozen)


def test_the_prior_stays_as_it_is():
    """Its batch norm and dropout take no part in training, however the mode is set."""
    model = model_with(ORAIQN, policy_kwargs={"features_extractor_class": Normalised, "prior_scale": 1.0})
    observations = th.rand(6, 2) * 5

    def prior():
        return model.quantile_net.encode(observations).prior.clone()

    before = prior()
    model.learn(100)
    model.quantile_net.train()
    assert model.quantile_net.features_extractor.training
    th.testing.assert_close(prior(), before, rtol=0, atol=0)
    model.policy.set_training_mode(True)
    th.testing.assert_close(prior(), before, rtol=0, atol=0)
    th.testing.assert_close(model.quantile_net_target.encode(observations).prior, before, rtol=0, atol=0)


def test_layers_can_be_frozen():
    """Those of the online network alone, too: the target goes on to follow it."""
    model = tiny(IQN, Scripted((4, 7)), target_update_interval=4, tau=0.5)
    model.quantile_net.trunk.requires_grad_(False)
    before = {name: value.clone() for name, value in model.quantile_net.named_parameters()}
    model.learn(100)
    after, target = (dict(net.named_parameters()) for net in (model.quantile_net, model.quantile_net_target))
    frozen = {name for name in before if th.equal(before[name], after[name])}
    assert frozen == {"trunk.0.weight", "trunk.0.bias"}
    assert all(th.equal(target[name], before[name]) == (name in frozen) for name in before)


@pytest.mark.parametrize("algorithm", [IQN, ORAIQN])
def test_a_layer_that_is_exchanged_follows_the_mode(algorithm):
    """As when a trained model is given other heads, here with dropout."""
    model = tiny(algorithm, several(lambda: Scripted((4, 7)), 2)).learn(60)
    for attribute in ("shared", "trunk"):
        dropout = nn.Dropout(0.5)
        setattr(model.quantile_net, attribute, nn.Sequential(*getattr(model.quantile_net, attribute), dropout))
        observations = np.random.default_rng(0).normal(size=(20, 2)).astype(np.float32)
        model.predict(observations, deterministic=True)
        assert not dropout.training
        modes = []
        dropout.register_forward_hook(lambda module, *_, modes=modes: modes.append(module.training))
        model.learn(60)
        assert {True, False} == set(modes)
