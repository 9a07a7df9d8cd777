"""Bootstrap masks: which heads learn from which transition."""

import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from stable_baselines3.common.type_aliases import ReplayBufferSamples

from sb3_ora import ORAIQN
from sb3_ora.iqn.bootstrap import bootstrap_mask
from sb3_ora.iqn.losses import quantile_huber_loss
from tests.tiny import tiny
from tests.toy_envs import AnySpace, Chain


def transitions(n, seed=0):
    rng = np.random.default_rng(seed)
    obs, next_obs = (th.tensor(rng.normal(size=(n, 3)), dtype=th.float32) for _ in range(2))
    rewards = th.tensor(rng.normal(size=(n, 1)), dtype=th.float32)
    return ReplayBufferSamples(obs, th.tensor(rng.integers(0, 2, (n, 1))), next_obs, th.zeros(n, 1), rewards)


def select(batch, rows):
    return ReplayBufferSamples(*(None if part is None else part[rows] for part in batch))


@pytest.mark.parametrize("probability", [0.1, 0.5, 0.9])
def test_the_share_of_ones_is_the_probability(probability):
    """40 000 coins; 5 standard deviations are passed by accident less than once in a million."""
    mask = bootstrap_mask(transitions(4000), 10, probability)
    assert mask.shape == (10, 4000)
    assert set(mask.unique().tolist()) == {0.0, 1.0}
    sd = np.sqrt(probability * (1 - probability))
    assert abs(mask.mean().item() - probability) < 5 * sd / np.sqrt(40_000)
    assert (mask.mean(dim=1) - probability).abs().max().item() < 5 * sd / np.sqrt(4000)  # each head


def test_coins_of_heads_and_of_neighbouring_transitions_are_unrelated():
    """The share of equal coins is 1/2 within 5 standard deviations, also where observations hardly differ."""
    batch = transitions(4000)
    batch = batch._replace(observations=th.ones(4000, 3), next_observations=th.arange(4000.0).unsqueeze(1) / 4000)
    mask = bootstrap_mask(batch, 4, 0.5)
    bound = 5 * 0.5 / np.sqrt(4000)
    for k in range(4):
        assert abs((mask[k, 1:] == mask[k, :-1]).float().mean().item() - 0.5) < bound
        for other in range(k):
            assert abs((mask[k] == mask[other]).float().mean().item() - 0.5) < bound


def test_a_transition_keeps_its_heads_for_life():
    batch = transitions(50)
    mask = bootstrap_mask(batch, 10, 0.5)
    rows = th.tensor([7, 3, 3, 49, 0])
    assert th.equal(bootstrap_mask(select(batch, rows), 10, 0.5), mask[:, rows])


@pytest.mark.parametrize("field", ["observations", "actions", "next_observations", "rewards"])
def test_every_part_of_a_transition_counts(field):
    batch = transitions(200)
    other = batch._replace(**{field: getattr(batch, field) + 1})
    share = (bootstrap_mask(batch, 10, 0.5) == bootstrap_mask(other, 10, 0.5)).float().mean().item()
    assert abs(share - 0.5) < 5 * 0.5 / np.sqrt(2000)


def test_dict_observations_and_images():
    batch = transitions(200)
    image = th.arange(200 * 16).reshape(200, 1, 4, 4).to(th.uint8)
    batch = batch._replace(observations={"a": batch.observations, "b": image}, next_observations={"a": batch.observations})
    assert abs(bootstrap_mask(batch, 10, 0.5).mean().item() - 0.5) < 5 * 0.5 / np.sqrt(2000)


def test_at_probability_one_every_head_learns():
    assert bootstrap_mask(transitions(4000), 10, 1.0).min().item() == 1.0


def test_the_loss_counts_masked_heads_only(monkeypatch):
    model = tiny(ORAIQN, AnySpace(spaces.Box(-1, 1, (3,))), policy_kwargs={"bootstrap_p": 0.5})
    batch = transitions(20)
    monkeypatch.setattr(th, "rand", lambda *shape, **kwargs: th.full(shape, 0.3))
    taus = model._draw_taus(8, 20).repeat(4, 1).T  # (N, B)
    with th.no_grad():
        quantiles = model.quantile_net(batch.observations, taus.T)
        quantiles = th.stack([quantiles[:, b, :, batch.actions[b, 0]] for b in range(20)], dim=2)  # (K, N, B)
        losses, _ = quantile_huber_loss(quantiles, model._target_quantiles(batch), taus)
    mask = bootstrap_mask(batch, 4, 0.5) == 1
    assert 0 < mask.sum() < mask.numel()
    assert model._differentiate(batch).loss.item() == pytest.approx(losses[mask].mean().item(), rel=1e-5)


def test_heads_without_any_transition_stay_as_they_are():
    model = tiny(ORAIQN, AnySpace(spaces.Box(-1, 1, (3,))), policy_kwargs={"bootstrap_p": 0.5})
    batch = transitions(1)
    learns = bootstrap_mask(batch, 4, 0.5)[:, 0].bool()
    model._differentiate(batch)
    moved = model.quantile_net.heads[0].weight.grad.view(4, -1).abs().sum(dim=1) > 0
    assert moved.tolist() == learns.tolist()
    assert learns.any() and not learns.all()


def test_a_policy_keeps_its_share_of_heads(tmp_path):
    model = tiny(ORAIQN, Chain(), policy_kwargs={"bootstrap_p": 0.5})
    model.policy.save(tmp_path / "policy")
    assert type(model.policy).load(tmp_path / "policy").bootstrap_p == 0.5
