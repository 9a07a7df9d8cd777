"""Levels of the return distortion that follow a schedule over training."""

from typing import Any

import numpy as np
import pytest
import torch as th
from stable_baselines3.common.callbacks import BaseCallback

from sb3_ora import IQN, ORAIQN
from sb3_ora.adapters import ScheduleAdapter
from tests.tiny import several, tiny
from tests.toy_envs import Chain


class Levels(BaseCallback):
    """The level at which each step was made."""

    model: Any

    def __init__(self):
        super().__init__()
        self.seen = []

    def _on_step(self) -> bool:
        self.seen.append(self.model.policy.risk.level)
        return True


def there_and_back(step, total):
    """0.1 -> 0.9 -> 0.1, linear in each half."""
    share = step / total
    return 0.1 + 0.8 * (2 * share if share <= 0.5 else 2 - 2 * share)


@pytest.mark.parametrize("n_envs", [1, 2])
@pytest.mark.parametrize("algorithm", [IQN, ORAIQN])
def test_the_level_of_each_step(algorithm, n_envs):
    model = tiny(algorithm, several(Chain, n_envs), distortion="cvar", risk_level="0.1->0.9->0.1")
    levels = Levels()
    model.learn(80, callback=levels)
    assert levels.seen == pytest.approx([there_and_back(step, 80) for step in range(0, 80, n_envs)])
    assert model.policy.risk.level == pytest.approx(0.1)
    taus = 0.1 * (np.arange(32) + 0.5) / 32
    np.testing.assert_allclose(model.policy.risk.taus().numpy(), taus[None], rtol=1e-5)


@pytest.mark.parametrize(
    ("given", "expected"),
    [(0.3, lambda left: 0.3), ("0.3", lambda left: 0.3), (lambda left: 0.2 + 0.5 * left, lambda left: 0.2 + 0.5 * left)],
)
def test_numbers_and_functions(given, expected):
    model = tiny(IQN, Chain(), distortion="cvar", risk_level=given)
    levels = Levels()
    model.learn(40, callback=levels)
    assert levels.seen == pytest.approx([expected(1 - step / 40) for step in range(40)])


@pytest.mark.parametrize(("name", "level"), [("cvar", 0.25), ("wang", -0.75), ("cpw", 0.71), ("power", -2.0)])
def test_without_a_level_it_is_the_papers(name, level):
    """Dabney et al. (2018), section 4.2."""
    assert tiny(IQN, Chain(), distortion=name).policy.risk.level == level


@pytest.mark.parametrize("by_argument", [True, False])
def test_as_an_adapter_of_its_own(by_argument):
    adapter, levels = ScheduleAdapter("0.1->0.9->0.1"), Levels()
    model = tiny(IQN, Chain(), distortion="cvar", risk_adapter=adapter if by_argument else None)
    model.learn(40, callback=[levels] if by_argument else [adapter, levels])
    assert levels.seen == pytest.approx([there_and_back(step, 40) for step in range(40)])


def test_it_does_not_leave_the_range_of_the_distortion():
    with pytest.raises(ValueError, match=r"risk_level must be .*, got 1.5"):
        tiny(IQN, Chain(), distortion="cvar", risk_adapter=ScheduleAdapter("0.1->1.5->0.1"))


def test_continuing_takes_up_the_progress():
    """SB3 counts the second call from where the first ended: 40 of 120 steps are done, then 41, ..."""
    model, levels = tiny(IQN, Chain(), distortion="cvar", risk_level="0.1->0.9->0.1").learn(40), Levels()
    model.learn(80, callback=levels, reset_num_timesteps=False)
    assert levels.seen[1:] == pytest.approx([there_and_back(step, 120) for step in range(41, 120)])
    model.learn(40, callback=levels)
    assert levels.seen[81:] == pytest.approx([there_and_back(step, 40) for step in range(1, 40)])


def test_the_mean_of_the_distorted_return():
    """Quantiles that are the fractions themselves: CVaR at level 0.4 has mean 0.2, neutral 0.5."""
    for distortion, level, mean in [("cvar", 0.4, 0.2), ("neutral", None, 0.5)]:
        model = tiny(IQN, Chain(), distortion=distortion, risk_level=level)
        model.quantile_net.forward = lambda obs, taus: taus[None, :, :, None].expand(1, len(obs), -1, 2)
        values = model.policy.epistemic_values(th.zeros(3, 1))
        th.testing.assert_close(values, th.full((1, 3, 2), mean))
