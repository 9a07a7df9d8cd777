import warnings
from typing import Any

import numpy as np
import torch as th
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import VecMonitor, is_vecenv_wrapped

from sb3_ora.adapters.base import RiskAdapter
from sb3_ora.checks import check_choice, check_integer, check_number, named
from sb3_ora.risk.ewaf import EWAF, PublishedARTController, tail_variance
from sb3_ora.risk.state import NO_ACTION

SIGNALS = ("tail-variance", "episode-return")
# Modes, and the published script that each follows
SCRIPTS = {"sample": None, "published": "simulation", "published-flight": "flight"}


class EWAFAdapter(RiskAdapter):
    """
    A bandit over levels of the return distortion, by exponentially weighted average forecasting. Two signals:

    - ``"tail-variance"`` (ART, Liu et al. 2022): at every step each environment draws a level, and the level is credited
      with the fall of the truncated variance of the lower half of the return of the action taken.
    - ``"episode-return"`` (TOP, Moskovitz et al. 2021): each environment draws a level for an episode, and the level is
      credited with the rise of the return over the episode that ended before. Episodes of the warm-up credit none.

    After training, and for ``predict``, the level is that of the most probable arm. Arguments at None are the model's.

    :param signal: "tail-variance" or "episode-return"
    :param risk_levels: the arms, levels of the model's distortion
    :param bandit_lr: step size of the weights
    :param mode: with "tail-variance" only: "sample" draws arms; "published" is the controller of the published ART code,
        whose level is a weighted mean of two arms and which starts anew in each episode; "published-flight" that of its
        flight script, which also learns from an episode's first step
    :param sign: with ``mode="sample"``: credit a "falling" variance, or the sign printed in the "paper"
    :param n_variance_quantiles: number N of the quantiles i/N whose lower half gives the variance
    :param feedback_window: divide the feedback by its standard deviation over the last so many (episodes, or steps of all
        environments), after subtracting its mean; None for raw feedback
    :param weight_decay: share of the weights that is forgotten before each update
    :param verbose: verbosity level
    """

    defaults = {  # noqa: RUF012
        "risk_levels": (0.1, 1.0),
        "bandit_lr": 0.5,
        "mode": "sample",
        "sign": "falling",
        "n_variance_quantiles": 16,
        "feedback_window": None,
        "weight_decay": 0.0,
    }

    def __init__(
        self,
        signal: str,
        risk_levels: tuple[float, ...] | list[float] | None = None,
        bandit_lr: float | None = None,
        mode: str | None = None,
        sign: str | None = None,
        n_variance_quantiles: int | None = None,
        feedback_window: int | None = None,
        weight_decay: float | None = None,
        verbose: int = 0,
    ):
        super().__init__(verbose)
        self.signal = check_choice("signal", signal, SIGNALS)
        self.risk_levels, self.bandit_lr, self.mode, self.sign = risk_levels, bandit_lr, mode, sign
        self.n_variance_quantiles = n_variance_quantiles
        self.feedback_window, self.weight_decay = feedback_window, weight_decay
        for name in ("mode", "sign", "n_variance_quantiles"):
            if signal == "episode-return" and getattr(self, name) is not None:
                raise ValueError(f"{name}={getattr(self, name)!r} has no effect with signal={signal!r}")

    @property
    def kind(self) -> str:
        return f"{super().kind}({self.signal})"

    def _bind(self) -> None:
        options, risk, n_envs = self.options, self.model.policy.risk, self.model.n_envs
        self._require_distortion()
        self.arms = self._check_arms(options["risk_levels"])
        script = SCRIPTS[check_choice("mode", options["mode"], SCRIPTS)]
        self.published = script is not None
        self.direction = -1.0 if check_choice("sign", options["sign"], ("falling", "paper")) == "falling" else 1.0
        learning_rate = check_number("bandit_lr", options["bandit_lr"], 0, open_low=True)
        decay = check_number("weight_decay", options["weight_decay"], 0, 1, open_high=True)
        self.by_step = self.signal == "tail-variance"
        self.watches_actions = self.by_step
        if self.by_step:
            n = check_integer("n_variance_quantiles", options["n_variance_quantiles"], 2)
            if n % 2:
                raise ValueError(f"n_variance_quantiles must be even, so that the median is one of them, got {n}")
            self.tail_taus = th.arange(1, n // 2 + 1, dtype=th.float32) / n  # the fractions i / N up to 1/2
        if options["feedback_window"] is not None:
            check_integer("feedback_window", options["feedback_window"], 2)
        if self.published and (not self.by_step or len(self.arms) != 2):
            raise ValueError(
                f"mode={options['mode']!r} takes the tail variance and two risk_levels, "
                f"got signal={self.signal!r} and risk_levels={options['risk_levels']!r}"
            )
        for name in ("feedback_window", "weight_decay"):
            if self.published and options[name]:
                raise ValueError(f"{name}={options[name]!r} has no effect with mode={options['mode']!r}")
        low, high = float(self.arms.min()), float(self.arms.max())
        self.controllers: list[PublishedARTController] = []
        if script is not None:
            self.controllers = [PublishedARTController(low, high, learning_rate, script=script) for _ in range(n_envs)]
        self.bandit = EWAF(len(self.arms), learning_rate, decay, seed=self.model.seed)
        self.feedback: list[float] = []
        self.last_return: float | None = None
        self.drawn = np.zeros(n_envs, dtype=np.int64)  # each environment's arm
        self.probability = np.ones(n_envs)  # with which it was drawn; the weights may have moved since, by other environments
        self.last_variance = np.full(n_envs, np.nan)
        self.episode_return = np.zeros(n_envs)
        self.played = np.ones(n_envs, dtype=bool)  # whether the episode has been without warm-up so far
        self._draw(np.arange(n_envs))
        risk.level = self.level

    def seed(self, seed: int) -> None:
        self.bandit.seed(seed)
        self._draw(np.arange(self.model.n_envs))

    def _check_arms(self, arms: Any) -> np.ndarray:
        if isinstance(arms, str) or not hasattr(arms, "__len__") or len(arms) == 0:
            raise ValueError(f"risk_levels must be a list of at least one level, got {arms!r}")
        with named("risk_levels", arms):
            for arm in arms:
                self.model.policy.risk.distortion.check_level(arm)
        return np.array(arms, dtype=np.float64)

    @property
    def level(self) -> float:
        """The level for ``predict``: that of the most probable arm, or the mean of the published controllers."""
        if self.published:
            return float(np.mean([controller.level for controller in self.controllers]))
        return float(self.arms[self.bandit.best])

    def _level_schedule(self) -> None:
        return None

    def _draw(self, envs: np.ndarray) -> None:
        """Choose the level at which these environments act next."""
        if not self.published:
            self.drawn[envs] = self.bandit.sample(len(envs))
            self.probability[envs] = self.bandit.probabilities[self.drawn[envs]]
        self._set_acting_levels()

    def _set_acting_levels(self) -> None:
        levels = [controller.level for controller in self.controllers] if self.published else self.arms[self.drawn]
        self.acting_level = np.array(levels)

    def _on_training_start(self) -> None:
        super()._on_training_start()
        self.monitored = self._is_monitored()
        started = self.model._previous_actions == NO_ACTION  # all of them where the environments were reset
        self.last_variance[started], self.episode_return[started], self.played[started] = np.nan, 0.0, True
        if self.published:
            for env in np.flatnonzero(started):
                self.controllers[env].reset()
            self._draw(np.flatnonzero(started))

    def _is_monitored(self) -> bool:
        return is_vecenv_wrapped(self.training_env, VecMonitor) or self.training_env.env_is_wrapped(Monitor)[0]

    def _on_step(self) -> bool:
        rewards, dones = np.asarray(self.locals["rewards"]), np.asarray(self.locals["dones"], dtype=bool)
        if self.by_step:
            self._learn_from_variance(dones)
        else:
            self._learn_from_returns(rewards, dones)
        self.model.policy.risk.level = self.level
        return True

    def _learn_from_variance(self, dones: np.ndarray) -> None:
        acting = self.model._acting
        if acting is None:  # warm-up
            return
        assert acting.tail is not None
        n_envs = len(dones)
        tails = acting.tail.mean(axis=0)[np.arange(n_envs), :, self.model._previous_actions]  # (E, N / 2)
        tails = tails.astype(np.float64)
        n = 2 * tails.shape[1]
        if self.published:
            for env, variance in enumerate(tail_variance(tails, 1 / (2 * n))):
                self.controllers[env].update(variance)
                if dones[env]:
                    self.controllers[env].reset()
        else:
            variances = tail_variance(tails, 2 / n)  # (E,)
            for env in np.flatnonzero(~np.isnan(self.last_variance)).tolist():
                change = float(variances[env] - self.last_variance[env])
                self._credit(env, self.direction * change)
            self.last_variance = np.where(dones, np.nan, variances)
        self._draw(np.arange(n_envs))

    def _learn_from_returns(self, rewards: np.ndarray, dones: np.ndarray) -> None:
        self.episode_return += rewards
        if self.model.num_timesteps - self.model.n_envs < self.model.learning_starts:  # before this step
            self.played[:] = False
        for env in np.flatnonzero(dones).tolist():
            episode = self.locals["infos"][env].get("episode")  # the return before any normalisation, where it is known
            if episode is None and self.monitored:  # a life was lost, the game goes on
                continue
            finished = float(self.episode_return[env] if episode is None else episode["r"])
            if self.last_return is not None and self.played[env]:
                self._credit(env, finished - self.last_return)
            self.last_return = finished
            self.episode_return[env], self.played[env] = 0.0, True
            self._draw(np.array([env]))

    def _credit(self, env: int, feedback: float) -> None:
        self.bandit.update(int(self.drawn[env]), self._normalised(feedback), float(self.probability[env]))

    def _normalised(self, feedback: float) -> float:
        window = self.options["feedback_window"]
        if window is None:
            return feedback
        self.feedback = [*self.feedback, feedback][-window:]
        recent = np.array(self.feedback)
        spread = float(recent.std())
        return (feedback - float(recent.mean())) / spread if spread > 0 else 0.0

    def record(self) -> None:
        super().record()
        if not self.published:
            for arm, probability in zip(self.arms, self.bandit.probabilities, strict=True):
                self.model.logger.record(f"risk/probability_{arm:g}", float(probability))

    def learned_state(self) -> dict[str, Any]:
        bandit = self.bandit.state_dict()
        return {
            "bandit": {**bandit, "weights": bandit["weights"].tolist()},  # a device without float64 must be able to read it
            "arms": self.arms.tolist(),
            "drawn": self.drawn.tolist(),
            "probability": self.probability.tolist(),
            "feedback": self.feedback,
            "last_return": self.last_return,
            "controllers": [controller.state_dict() for controller in self.controllers],
        }

    def load_learned_state(self, state: dict[str, Any]) -> None:
        if state["arms"] != self.arms.tolist():
            arms = f"risk_levels={state['arms']} instead of {self.arms.tolist()}"
            warnings.warn(f"what the bandit has learned is not loaded, as it is of {arms}", stacklevel=2)
            return
        weights = th.tensor(state["bandit"]["weights"], dtype=th.float64)
        self.bandit.load_state_dict({**state["bandit"], "weights": weights})
        self.feedback, self.last_return = list(state["feedback"]), state["last_return"]
        for controller, saved in zip(self.controllers, state["controllers"], strict=False):
            controller.load_state_dict(saved)
        kept = min(len(state["drawn"]), self.model.n_envs)
        self.drawn[:kept], self.probability[:kept] = state["drawn"][:kept], state["probability"][:kept]
        self._draw(np.arange(kept, self.model.n_envs))
        self._set_acting_levels()
