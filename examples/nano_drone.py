"""
Train ORAIQN to fly a drone between obstacles, then show what its risk level does.

Writes ``trajectories.png``, the ways flown in one layout at several fixed levels alpha, and, where moviepy is installed,
a video of one episode with the adapted alpha as colour and number (needs pygame and moviepy: the extra ``[render]``).

    python examples/nano_drone.py --output logs/nano_drone
"""

import argparse
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

import gymnasium as gym
import matplotlib.pyplot as plt
import numpy as np
import torch as th
from matplotlib.patches import Circle, Rectangle
from stable_baselines3.common.vec_env import VecMonitor

from sb3_ora import ORAIQN
from sb3_ora.envs import NanoDroneEnv, NanoDroneVecEnv, ShowRiskLevel
from sb3_ora.envs.evaluate import evaluate, print_table, rows

ALPHAS = (0.1, 0.5, 1.0)


def train(n_steps: int, seed: int) -> ORAIQN:
    """
    :param n_steps: environment steps
    :param seed: of the run
    :return: the trained model
    """
    model = ORAIQN(
        "MlpPolicy",
        VecMonitor(NanoDroneVecEnv(8, n_obstacles=6, normalize=True)),
        learning_rate=5e-4,
        buffer_size=100_000,
        learning_starts=1_000,
        batch_size=64,
        tau=0.01,
        target_update_interval=8,
        gradient_steps=2,
        exploration_fraction=0.4,
        exploration_final_eps=0.05,
        policy_kwargs={"net_arch": [128], "head_arch": [64]},
        seed=seed,
    )
    return model.learn(n_steps, log_interval=100)


@th.no_grad()
def fly(model: ORAIQN, alpha: float, seed: int) -> tuple[NanoDroneEnv, np.ndarray, str]:
    """
    Fly one episode in which all actions are compared at the same level.

    :param model: what flies
    :param alpha: the level
    :param seed: of the layout
    :return: the environment, the positions (T + 1, 2) and how it ended
    """
    env = NanoDroneEnv(n_obstacles=6, mode="eval", safe_start=True, normalize=True)
    observation, _ = env.reset(seed=seed)
    positions, over, outcome = [env.core.state[0, :2].copy()], False, ""
    while not over:
        values = model.policy.epistemic_values(model.policy.obs_to_tensor(observation)[0]).cpu().numpy()
        action = model.policy.greedy_actions(values, np.array([alpha]))[0]
        observation, _, terminated, truncated, info = env.step(action)
        outcome = info["outcome"]
        positions.append(env.core.state[0, :2].copy())
        over = terminated or truncated
    return env, np.array(positions), outcome


def draw(model: ORAIQN, seed: int, path: Path) -> None:
    """
    :param model: what flies
    :param seed: of the layout
    :param path: where to save the picture
    """
    figure, axis = plt.subplots(figsize=(5, 5), layout="constrained")
    for alpha in ALPHAS:
        env, positions, outcome = fly(model, alpha, seed)
        axis.plot(*positions.T, label=f"alpha {alpha:g}: {outcome} after {len(positions) - 1} steps")
    for x, y, width, height in env.core.obstacles[0]:
        axis.add_patch(Rectangle((x - width / 2, y - height / 2), width, height, color="0.6"))
    axis.add_patch(Circle(env.core.goals[0].tolist(), 0.5, color="lightgreen"))
    axis.set(xlim=(-4, 4), ylim=(-4, 4), aspect="equal", xlabel="x [m]", ylabel="y [m]")
    axis.legend(loc="upper right", fontsize="small")
    figure.savefig(path, dpi=120)
    plt.close(figure)


def record(model: ORAIQN, seed: int, folder: Path) -> None:
    """
    :param model: what flies
    :param seed: of the layout
    :param folder: where the video goes
    """
    env = NanoDroneEnv(n_obstacles=6, mode="eval", safe_start=True, normalize=True, render_mode="rgb_array")
    video = gym.wrappers.RecordVideo(ShowRiskLevel(env, model), str(folder), name_prefix="nano_drone", disable_logger=True)
    observation, _ = video.reset(seed=seed)
    state, over = None, False
    while not over:
        action, state = model.predict(observation, state, np.array([state is None]), deterministic=True)
        observation, _, terminated, truncated, _ = video.step(action)
        over = terminated or truncated
    video.close()


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="ORAIQN flies a drone between obstacles.")
    parser.add_argument("--steps", type=int, default=100_000, help="environment steps of training")
    parser.add_argument("--seed", type=int, default=0, help="of training; layouts have others")
    parser.add_argument("--layouts", type=int, default=100, help="layouts of the evaluation at each density")
    parser.add_argument("--output", type=Path, default=Path("logs/nano_drone"), help="folder for the pictures")
    args = parser.parse_args(arguments)

    th.set_num_threads(1)
    model = train(args.steps, args.seed)
    args.output.mkdir(parents=True, exist_ok=True)
    model.save(args.output / "model.zip")
    print_table(rows([evaluate(model, density, args.layouts, normalize=True) for density in (2, 6, 12)]))
    draw(model, 1_000, args.output / "trajectories.png")
    print(f"saved {args.output / 'trajectories.png'}")
    if find_spec("moviepy") and find_spec("pygame"):
        record(model, 1_000, args.output / "video")
        print(f"saved {args.output / 'video'}")
    else:
        print("no video: needs pygame and moviepy (the extra render)")


if __name__ == "__main__":
    main()
