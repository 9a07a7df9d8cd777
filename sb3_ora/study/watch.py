"""What a cell keeps of its training, and how it plays in the end."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
from stable_baselines3.common.atari_wrappers import EpisodicLifeEnv
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.utils import set_random_seed
from stable_baselines3.common.vec_env import VecEnv

from sb3_ora.checkpoint.run import NOT_COPIED, env_layers

#: Steps between two looks at what alpha changes
EVERY = 5


class Watch(BaseCallback):
    """
    Keeps the return of every training episode and, for an ensemble that adapts its risk, means of alpha and of the spread.

    :param interval: environment steps that one row of ``risk`` is the mean of
    """

    def __init__(self, interval: int):
        super().__init__()
        self.interval = interval
        self.seconds = 0.0  #: spent in training
        self.process_clock = 0.0  # of this process
        self.episodes: list[list[Any]] = []  #: step, return, length
        #: Step, alpha, share of alphas below the largest, LTV, share of greedy actions that alpha changes
        self.risk: list[list[Any]] = []
        self._rows: list[list[float]] = []
        self._last = 0

    def _on_training_start(self) -> None:
        self.process_clock = time.monotonic()

    def _on_step(self) -> bool:
        now = time.monotonic()
        self.seconds, self.process_clock = self.seconds + now - self.process_clock, now
        for info in self.locals["infos"]:
            if "episode" in info:  # of Monitor, so without normalisation or clipping
                self.episodes.append([self.num_timesteps, info["episode"]["r"], info["episode"]["l"]])
        adapter = getattr(self.model, "adapter", None)
        if hasattr(adapter, "ltv") and self.model._acting is not None:  # type: ignore[attr-defined]
            alphas = self.model._acting_alphas  # type: ignore[attr-defined]
            below = alphas < adapter.grid[-1] - 1e-9  # type: ignore[union-attr]
            changed = self._changed(alphas).mean() if self.n_calls % EVERY == 0 else np.nan
            self._rows.append([alphas.mean(), below.mean(), adapter.ltv, changed])  # type: ignore[union-attr]
        if self.num_timesteps - self._last >= self.interval:
            self._close_row()
        return True

    def _on_training_end(self) -> None:
        self._close_row()

    def _changed(self, alphas: np.ndarray) -> np.ndarray:
        """
        :param alphas: levels at which the actions are compared, (E,)
        :return: whether the mean of the heads would have made another action greedy, (E,)
        """
        model: Any = self.model
        valid, values = model.policy.valid_actions(model._last_obs), model._acting.values  # (K, E, A)
        neutral = model.policy.greedy_actions(values.mean(axis=0, keepdims=True), alphas, valid)
        return model.policy.greedy_actions(values, alphas, valid) != neutral

    def _close_row(self) -> None:
        if self._rows:
            rows = np.array(self._rows, dtype=float)
            known = (~np.isnan(rows)).sum(axis=0)
            means = np.where(known > 0, np.nansum(rows, axis=0) / np.maximum(known, 1), np.nan)
            self.risk.append([self.num_timesteps, *(f"{mean:.6g}" for mean in means)])
        self._rows, self._last = [], self.num_timesteps


NOT_COPIED[Watch] = {"process_clock"}


def final_episodes(
    model: BaseAlgorithm, env: VecEnv, n_episodes: int, seed: int, deterministic: bool = True
) -> list[list[Any]]:
    """
    Episode i is played with the environment's seed ``seed + i``, whatever the number of environments, so that each
    method meets the same ones.

    :param model: who plays
    :param env: environments with Monitor
    :param n_episodes: how many episodes
    :param seed: seed of the first one
    :param deterministic: whether the model plays greedily
    :return: return, length and outcome of each episode
    """
    rows: list[list[Any]] = []
    for start in range(0, n_episodes, env.num_envs):
        env.seed(seed + start)
        if not deterministic:
            set_random_seed(seed + start)
            model.action_space.seed(seed + start)
        rows += _first_episodes(model, env, deterministic)[: n_episodes - start]
    return rows


def _first_episodes(model: BaseAlgorithm, env: VecEnv, deterministic: bool) -> list[list[Any]]:
    """The episode that each environment plays after a reset; what it plays while it waits for the others is dropped."""
    ended: dict[int, list[Any]] = {}
    for layer in env_layers(env):
        if isinstance(layer, EpisodicLifeEnv):  # which would go on with the game of the last batch
            layer.was_real_done = True
    observations, state = env.reset(), None
    starts = np.ones(env.num_envs, dtype=bool)
    while len(ended) < env.num_envs:
        actions, state = model.predict(observations, state, starts, deterministic)  # type: ignore[arg-type]
        observations, _, starts, infos = env.step(actions)
        for number, info in enumerate(infos):
            if "episode" in info and number not in ended:  # a life lost in Atari is not an episode
                outcome = info.get("outcome", "success" if info.get("is_success") else "")
                ended[number] = [info["episode"]["r"], info["episode"]["l"], outcome]
    return [ended[number] for number in range(env.num_envs)]
