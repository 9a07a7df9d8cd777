"""The scripts in studies/ measure what they say; the studies from YAML files have their tests in study/."""

import sys

import numpy as np
import pytest
import torch as th

from sb3_ora import IQN
from studies import heads, shared_fractions


@pytest.fixture(autouse=True)
def restore_threads():
    threads = th.get_num_threads()
    yield
    th.set_num_threads(threads)


def test_half_of_the_chain_is_never_seen():
    env = heads.HalfSeenChain()
    seen = env.reset(seed=0)[0].copy()
    for action in (1, 1, 0, 1, 1, 1, 1, 1):
        observation, reward, done, truncated, _ = env.step(action)
        seen += observation * (not done)
        assert reward == (1 if done else 0.02 * (action == 0)) and not truncated
    assert done and (seen[:5] > 0).all() and not seen[5:].any()


def test_a_prior_marks_what_is_never_seen(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(heads, "RESULTS", tmp_path / "heads.csv")
    monkeypatch.setattr(heads, "ARCHITECTURES", {"32-prior": heads.ARCHITECTURES["32-prior"]})
    monkeypatch.setattr(sys, "argv", ["heads", "--seeds", "1"])
    heads.main()
    header, row = (tmp_path / "heads.csv").read_text().splitlines()
    start, visited, unvisited = map(float, row.split(",")[2:])
    assert header.startswith("architecture,seed") and unvisited > 20 * visited and start > visited
    printed = float(capsys.readouterr().out.split("median ")[1].split()[0])
    assert printed == pytest.approx(unvisited / visited, rel=0.01)


def test_the_gamble_pays_what_it_should():
    env = shared_fractions.Gamble()
    env.reset(seed=0)
    paid = np.array([env.step(1)[1] for _ in range(4000)])
    assert set(paid) == {shared_fractions.LOSS, shared_fractions.WIN} and env.step(0)[1] == 1
    expected = 0.1 * shared_fractions.LOSS + 0.9 * shared_fractions.WIN
    assert expected == pytest.approx(1.5) and paid.mean() == pytest.approx(expected, abs=4 * paid.std() / 4000**0.5)


def test_errors_of_a_network_that_is_known(monkeypatch):
    """A network whose quantiles are all 2, in the place of training: CVaR is off by 12, the mean by 2 minus the sample's."""
    models = []

    def train(self, gradient_steps, batch_size=100):
        models.append(self)
        with th.no_grad():
            last = self.quantile_net.heads[-1]
            last.weight.zero_()
            last.bias.fill_(2.0)

    monkeypatch.setattr(IQN, "train", train)
    tail, mean = shared_fractions.errors(IQN, 0)
    buffer = models[-1].replay_buffer
    gambled = buffer.rewards[buffer.actions[..., 0] == 1]
    assert 300 < len(gambled) < 700 and (tail, mean) == pytest.approx((12, 2 - gambled.mean()), abs=1e-5)
