"""
The implicit quantile networks of pfrl and tianshou, set to the common work.

pfrl chooses the target's action on samples of its own, as many as it acts on (32); ``8 for the target`` lets it use 8.
tianshou's collector and update are called directly, which is faster than its trainer.
"""

from functools import partial
from importlib.util import find_spec
from typing import Any

import torch as th
from torch import nn

from benchmarks.work import (
    BATCH,
    BUFFER,
    EPSILON,
    GAMMA,
    LEARNING_RATE,
    N_ACTING,
    N_COSINES,
    N_QUANTILES,
    TARGET_COPY,
    WARM_UP,
    WIDTH,
    Learner,
    Make,
    cart_pole,
)

#: Distributions of which a peer cannot do without, as modules
MODULES = {"pfrl": ("pfrl", "gym"), "tianshou": ("tianshou",)}


def _pfrl_agent(fused: bool, few: bool, explorer: Any, replay: Any) -> Any:
    from pfrl.agents import iqn

    class FewForTheTarget(iqn.IQN):
        """Chooses the target's action on N' samples."""

        def _compute_target_values(self, exp_batch: Any) -> th.Tensor:
            self.quantile_thresholds_K = N_QUANTILES
            try:
                return super()._compute_target_values(exp_batch)
            finally:
                self.quantile_thresholds_K = N_ACTING

    network = iqn.ImplicitQuantileQFunction(
        psi=nn.Sequential(nn.Linear(4, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.ReLU()),
        phi=nn.Sequential(iqn.CosineBasisLinear(N_COSINES, WIDTH), nn.ReLU()),
        f=nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 2)),
    )
    return (FewForTheTarget if few else iqn.IQN)(
        network,
        th.optim.Adam(network.parameters(), lr=LEARNING_RATE, fused=fused),
        replay,
        GAMMA,
        explorer,
        replay_start_size=WARM_UP,
        minibatch_size=BATCH,
        target_update_interval=TARGET_COPY,
        quantile_thresholds_N=N_QUANTILES,
        quantile_thresholds_N_prime=N_QUANTILES,
        quantile_thresholds_K=N_ACTING,
    )


def _pfrl(fused: bool, few: bool, seed: int) -> Learner:
    from pfrl.explorers import ConstantEpsilonGreedy
    from pfrl.replay_buffers import ReplayBuffer

    env = cart_pole()
    replay = ReplayBuffer(BUFFER)
    explorer = ConstantEpsilonGreedy(1.0, env.action_space.sample)
    agent = _pfrl_agent(fused, few, explorer, replay)
    observation, _ = env.reset(seed=seed)

    def steps(n: int) -> None:
        nonlocal observation
        for _ in range(n):
            observation, reward, terminated, truncated, _ = env.step(agent.act(observation))
            agent.observe(observation, reward, terminated, truncated)
            if terminated or truncated:
                observation, _ = env.reset()

    def warm_up() -> None:
        steps(WARM_UP)
        explorer.epsilon = EPSILON

    return Learner(warm_up, steps, lambda: agent.update(replay.sample(BATCH)))


def _tianshou(fused: bool, seed: int) -> Learner:
    from tianshou.algorithm.modelfree.iqn import IQN, IQNPolicy
    from tianshou.algorithm.optim import TorchOptimizerFactory
    from tianshou.data import Collector, ReplayBuffer
    from tianshou.env import DummyVectorEnv
    from tianshou.utils.net.common import Net
    from tianshou.utils.net.discrete import ImplicitQuantileNetwork
    from tianshou.utils.torch_utils import policy_within_training_step

    envs = DummyVectorEnv([cart_pole])
    network = ImplicitQuantileNetwork(
        preprocess_net=Net(state_shape=4, hidden_sizes=[WIDTH, WIDTH]),
        action_shape=2,
        hidden_sizes=[WIDTH],
        num_cosines=N_COSINES,
    )
    policy = IQNPolicy(
        model=network,
        action_space=envs.action_space[0],
        sample_size=N_ACTING,
        online_sample_size=N_QUANTILES,
        target_sample_size=N_QUANTILES,
        eps_training=EPSILON,
    )
    optimizer = TorchOptimizerFactory(th.optim.Adam, lr=LEARNING_RATE, fused=fused)
    algorithm = IQN(policy=policy, optim=optimizer, gamma=GAMMA, num_quantiles=N_QUANTILES, target_update_freq=TARGET_COPY)
    replay = ReplayBuffer(BUFFER, random_seed=seed)
    collector = Collector(algorithm, envs, replay, exploration_noise=True)

    def warm_up() -> None:
        collector.reset()
        collector.collect(n_step=WARM_UP, random=True)

    def gradient() -> None:
        with policy_within_training_step(policy):
            algorithm.update(buffer=replay, sample_size=BATCH)

    def steps(n: int) -> None:
        for _ in range(n):
            with policy_within_training_step(policy):
                collector.collect(n_step=1)
                algorithm.update(buffer=replay, sample_size=BATCH)

    return Learner(warm_up, steps, gradient)


def installed(peer: str) -> bool:
    """
    :param peer: "pfrl" or "tianshou"
    :return: whether it can be measured here
    """
    return all(find_spec(module) is not None for module in MODULES[peer])


def peer_cases() -> dict[str, Make]:
    """
    :return: makers of the peers that are installed, by name, each with torch's plain and with its fused Adam
    """
    cases: dict[str, Make] = {}
    for adam, fused in (("plain", False), ("fused", True)):
        if installed("pfrl"):
            cases[f"pfrl IQN, {adam}"] = partial(_pfrl, fused, False)
            cases[f"pfrl IQN, 8 for the target, {adam}"] = partial(_pfrl, fused, True)
        if installed("tianshou"):
            cases[f"tianshou IQN, {adam}"] = partial(_tianshou, fused)
    return cases
