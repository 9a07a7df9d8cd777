"""
Train ORAIQN on CartPole-v1, evaluate it, save it, and load it again.

    python examples/train_and_evaluate.py --output logs/cartpole.zip
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

import torch as th
from stable_baselines3.common.evaluation import evaluate_policy

from sb3_ora import ORAIQN


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Train ORAIQN on CartPole-v1, evaluate it, save it, and load it again.")
    parser.add_argument("--steps", type=int, default=50_000, help="environment steps of training")
    parser.add_argument("--output", type=Path, default=Path("logs/cartpole.zip"), help="where to save the model")
    args = parser.parse_args(arguments)

    th.set_num_threads(1)  # a network this small gains nothing from more
    model = ORAIQN(
        "MlpPolicy",
        "CartPole-v1",
        learning_rate=2.3e-3,
        buffer_size=100_000,
        learning_starts=1_000,
        batch_size=64,
        train_freq=256,
        gradient_steps=128,
        target_update_interval=10,
        exploration_fraction=0.16,
        exploration_final_eps=0.04,
        policy_kwargs={"net_arch": [128], "head_arch": [64]},
        seed=0,
        verbose=1,
    )
    model.learn(args.steps, log_interval=50)

    # evaluate_policy hands `state` from one call of predict() to the next. ORAIQN needs that: the risk level of a
    # state depends on the action before it.
    mean, std = evaluate_policy(model, model.get_env(), n_eval_episodes=20)
    print(f"mean return over 20 episodes: {mean:.1f} +/- {std:.1f}")

    # The file holds the table of risk levels and the state of their adaptation beside the weights
    args.output.parent.mkdir(parents=True, exist_ok=True)
    model.save(args.output)
    loaded = ORAIQN.load(args.output, env=model.get_env())
    print(f"saved and loaded {args.output}: {len(loaded.policy.risk.table)} pairs of a state and an action with a level")


if __name__ == "__main__":
    main()
