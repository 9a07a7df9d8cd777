"""
Train ORAIQN to pack knapsacks of 50 items, one model for each instance, and compare it with the optimum.

For each instance, prints what the model packs greedily, the optimum by dynamic programming, what packing by value per
weight is worth, and the gaps to both.

    python examples/knapsack.py --instances 0 1 2 --episodes 5000
"""

import argparse
from collections.abc import Sequence

import torch as th
from stable_baselines3.common.callbacks import StopTrainingOnMaxEpisodes
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import VecNormalize

from sb3_ora import ORAIQN
from sb3_ora.envs import KnapsackEnv

N_ENVS = 8
STEPS_PER_EPISODE = 30  # more than they take, on average


def train(instance: int, n_episodes: int, seed: int) -> tuple[ORAIQN, int]:
    """
    :param instance: seed that fixes the items
    :param n_episodes: episodes to train for
    :param seed: of the run
    :return: the trained model, and the number of environment steps it took
    """
    env = make_vec_env(KnapsackEnv, N_ENVS, seed=seed, env_kwargs={"instance_seed": instance})
    steps = STEPS_PER_EPISODE * n_episodes
    model = ORAIQN(
        "MultiInputPolicy",
        VecNormalize(env, norm_obs=False, gamma=1.0),
        learning_rate=lambda progress: 1e-3 * max(progress, 0.05),
        buffer_size=50_000,
        learning_starts=min(1_000, steps // 4),
        batch_size=64,
        gamma=1.0,
        n_steps=3,
        tau=0.02,
        target_update_interval=N_ENVS,
        train_freq=4,
        gradient_steps=8,
        exploration_fraction=0.3,
        use_action_mask=True,
        policy_kwargs={"net_arch": [128], "head_arch": [32], "optimizer_kwargs": {"eps": 1e-8}},
        seed=seed,
    )
    model.learn(steps, callback=StopTrainingOnMaxEpisodes(max(n_episodes // N_ENVS, 1)))
    return model, model.num_timesteps


def pack(model: ORAIQN, env: KnapsackEnv) -> float:
    """
    :param model: what packs
    :param env: the knapsack
    :return: value packed greedily
    """
    observation, _ = env.reset()
    value, state, over = 0.0, None, False
    while not over:
        action, state = model.predict(observation, state, deterministic=True)
        observation, reward, terminated, truncated, _ = env.step(int(action))
        value += float(reward)
        over = terminated or truncated
    return value


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--instances", type=int, nargs="+", default=[0])
    parser.add_argument("--episodes", type=int, default=5_000)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args(arguments)
    th.set_num_threads(1)  # much faster for networks as small as these
    print(f"{'instance':>8}{'packed':>8}{'optimum':>9}{'greedy':>8}{'gap to optimum':>16}{'to greedy':>11}{'steps':>8}")
    for instance in args.instances:
        model, steps = train(instance, args.episodes, args.seed)
        env = KnapsackEnv(instance_seed=instance)
        packed, optimum, greedy = pack(model, env), env.optimal_value(), env.greedy_value()
        gaps = f"{1 - packed / optimum:16.2%}{1 - packed / greedy:11.2%}"
        print(f"{instance:8}{packed:8.0f}{optimum:9.0f}{greedy:8.0f}{gaps}{steps:8}", flush=True)


if __name__ == "__main__":
    main()
