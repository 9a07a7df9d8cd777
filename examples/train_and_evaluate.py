"""
Train ORAIQN on CartPole-v1, evaluate it, save it, and load it again.

    python examples/train_and_evaluate.py --output logs/cartpole
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

import torch as th
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.utils import LinearSchedule
from stable_baselines3.common.vec_env import VecNormalize

from sb3_ora import ORAIQN


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Train ORAIQN on CartPole-v1, evaluate it, save it, and load it again.")
    parser.add_argument("--steps", type=int, default=50_000, help="environment steps of training")
    parser.add_argument("--output", type=Path, default=Path("logs/cartpole"), help="folder for the model")
    args = parser.parse_args(arguments)

    th.set_num_threads(1)  # a network this small gains nothing from more
    env = VecNormalize(make_vec_env("CartPole-v1", n_envs=8, seed=0), norm_reward=False)
    model = ORAIQN(
        "MlpPolicy",
        env,
        learning_rate=LinearSchedule(2e-3, 0.0, 1.0),
        buffer_size=50_000,
        learning_starts=1_000,
        batch_size=64,
        tau=0.02,
        train_freq=4,
        gradient_steps=8,
        n_steps=3,
        target_update_interval=8,
        exploration_fraction=0.16,
        exploration_final_eps=0.1,
        policy_kwargs={"net_arch": [128], "head_arch": [32], "optimizer_kwargs": {"eps": 1e-8}},
        seed=0,
        verbose=1,
    )
    model.learn(args.steps, log_interval=50)

    # evaluate_policy hands `state` from one call of predict() to the next. ORAIQN needs that: the risk level of a
    # state depends on the action before it.
    env.training = False  # keep the statistics of the observations
    mean, std = evaluate_policy(model, env, n_eval_episodes=20)
    print(f"mean return over 20 episodes: {mean:.1f} +/- {std:.1f}")

    # The model's file holds the table of risk levels and the state of their adaptation beside the weights;
    # the statistics of VecNormalize have a file of their own, as always in Stable-Baselines3
    args.output.mkdir(parents=True, exist_ok=True)
    model.save(args.output / "model.zip")
    env.save(str(args.output / "vecnormalize.pkl"))

    env = VecNormalize.load(str(args.output / "vecnormalize.pkl"), make_vec_env("CartPole-v1", n_envs=1, seed=1))
    env.training = False
    loaded = ORAIQN.load(args.output / "model.zip", env=env)
    mean, std = evaluate_policy(loaded, env, n_eval_episodes=20)
    print(f"loaded, on other episodes: {mean:.1f} +/- {std:.1f}")
    table = loaded.policy.risk.table
    assert table is not None  # as in IQN, which has no ensemble
    print(f"{len(table)} pairs of a state and an action have a risk level of their own")


if __name__ == "__main__":
    main()
