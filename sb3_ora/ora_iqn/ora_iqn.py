import warnings
from collections.abc import Hashable
from typing import Any, TypeVar

import numpy as np
import torch as th
from gymnasium import spaces
from stable_baselines3.common.buffers import NStepReplayBuffer, ReplayBuffer
from stable_baselines3.common.type_aliases import GymEnv, MaybeCallback, ReplayBufferSamples, Schedule

from sb3_ora.adapters import CompositeAdapter, FTPLAdapter, RecursiveAdapter, RiskAdapter
from sb3_ora.adapters.ensemble import alpha_grid
from sb3_ora.checks import check_choice, check_flag, check_integer
from sb3_ora.iqn.iqn import IQN
from sb3_ora.iqn.policies import IQNPolicy
from sb3_ora.risk.distortions import Distortion
from sb3_ora.risk.ftpl import check_eta
from sb3_ora.risk.keys import BucketKey, StateKey
from sb3_ora.risk.measures import EpistemicMeasure, make_measure
from sb3_ora.risk.state import RISK_SCOPES

SelfORAIQN = TypeVar("SelfORAIQN", bound="ORAIQN")

ADAPTERS: dict[str, type[RiskAdapter]] = {
    "ftpl": FTPLAdapter,
    "recursive": RecursiveAdapter,
    "composite": CompositeAdapter,
}


class ORAIQN(IQN):
    """
    Distributional RL with Online Epistemic Risk Adaptation (DRL-ORA): an ensemble of implicit quantile networks whose
    disagreement is the epistemic uncertainty. Actions are compared by a risk measure on the law of the heads, and the
    level alpha of that measure adapts online, so that the risk changes as little as possible while the heads learn.

    All arguments not listed here are those of :class:`~sb3_ora.IQN`.

    :param policy: The policy model to use (MlpPolicy, CnnPolicy, ...)
    :param env: The environment to learn from (if registered in Gym, can be str)
    :param distortion: distortion of each head's return distribution (the paper's beta), neutral by default
    :param n_heads: number of heads K
    :param epistemic_measure: risk measure on the law of the heads: "cvar", "quantile", or an
        :class:`~sb3_ora.risk.EpistemicMeasure`
    :param alpha_min: smallest risk level, the most averse, in (0, 1]
    :param alpha_max: largest risk level, and the one before anything is known, in (0, 1]; 1 is neutral for CVaR
    :param alpha_step: distance between the risk levels of the grid; the paper's "grid size accuracy of 5" (Atari) and
        "bucketed to 1" (drone, Knapsack) are read as 0.05 and 0.01
    :param eta: rate of the exponential perturbation of FTPL, or "auto" for n^(-1/2) at a key's n-th loss
    :param risk_scope: what has an alpha of its own: each pair of "state-action" (paper), each "action", or one "global"
    :param state_key: how observations are grouped for "state-action": "bucket", "discrete", "simhash" or a
        :class:`~sb3_ora.risk.StateKey`; None chooses by the observation space
    :param reference: compare the law of the heads before and after each "update", or at the last "visit" of the same pair
        (paper) and now; None for "visit" where observations are discrete, else "update"
    :param max_keys: largest number of keys that have an alpha; the one not updated for longest is dropped
    :param normalize_loss: whether FTPL divides losses by a running scale of their range (False in the paper)
    :param next_action: the target's action is greedy for each "head" itself, or for the "ensemble" at its risk level
        (with one-step returns only)
    :param risk_adapter: "ftpl" (paper, Algorithm 1), "recursive" (paper, Extension), "composite" (no adaptation),
        or a :class:`~sb3_ora.adapters.RiskAdapter`
    :raises ValueError: if an argument is out of range or contradicts another
    :raises TypeError: if an argument is of another kind than what is allowed
    """

    def __init__(
        self,
        policy: str | type[IQNPolicy],
        env: GymEnv | str,
        learning_rate: float | Schedule = 5e-5,
        buffer_size: int = 1_000_000,
        learning_starts: int = 100,
        batch_size: int = 32,
        tau: float = 1.0,
        gamma: float = 0.99,
        train_freq: int | tuple[int, str] = 4,
        gradient_steps: int = 1,
        replay_buffer_class: type[ReplayBuffer] | None = None,
        replay_buffer_kwargs: dict[str, Any] | None = None,
        optimize_memory_usage: bool = False,
        n_steps: int = 1,
        target_update_interval: int = 10000,
        exploration_fraction: float = 0.005,
        exploration_initial_eps: float = 1.0,
        exploration_final_eps: float = 0.01,
        max_grad_norm: float | None = None,
        stats_window_size: int = 100,
        tensorboard_log: str | None = None,
        policy_kwargs: dict[str, Any] | None = None,
        verbose: int = 0,
        seed: int | None = None,
        device: th.device | str = "auto",
        n_quantiles: int = 8,
        n_target_quantiles: int = 8,
        n_risk_samples: int = 32,
        distortion: str | Distortion = "neutral",
        risk_level: float | str | Schedule | None = None,
        target_risk: str = "acting",
        evaluation_eps: float = 0.001,
        double_q: bool = False,
        n_heads: int = 10,
        epistemic_measure: str | EpistemicMeasure = "cvar",
        alpha_min: float = 0.1,
        alpha_max: float = 1.0,
        alpha_step: float = 0.05,
        eta: float | str = 0.5,
        risk_scope: str = "state-action",
        state_key: str | StateKey | None = None,
        reference: str | None = None,
        max_keys: int = 100_000,
        normalize_loss: bool = True,
        next_action: str = "head",
        risk_adapter: str | RiskAdapter = "ftpl",
        use_action_mask: bool = False,
        cuda_graphs: bool = True,
        _init_setup_model: bool = True,
    ):
        super().__init__(
            policy=policy,
            env=env,
            learning_rate=learning_rate,
            buffer_size=buffer_size,
            learning_starts=learning_starts,
            batch_size=batch_size,
            tau=tau,
            gamma=gamma,
            train_freq=train_freq,
            gradient_steps=gradient_steps,
            replay_buffer_class=replay_buffer_class,
            replay_buffer_kwargs=replay_buffer_kwargs,
            optimize_memory_usage=optimize_memory_usage,
            n_steps=n_steps,
            target_update_interval=target_update_interval,
            exploration_fraction=exploration_fraction,
            exploration_initial_eps=exploration_initial_eps,
            exploration_final_eps=exploration_final_eps,
            max_grad_norm=max_grad_norm,
            stats_window_size=stats_window_size,
            tensorboard_log=tensorboard_log,
            policy_kwargs=policy_kwargs,
            verbose=verbose,
            seed=seed,
            device=device,
            n_quantiles=n_quantiles,
            n_target_quantiles=n_target_quantiles,
            n_risk_samples=n_risk_samples,
            distortion=distortion,
            risk_level=risk_level,
            target_risk=target_risk,
            evaluation_eps=evaluation_eps,
            double_q=double_q,
            use_action_mask=use_action_mask,
            cuda_graphs=cuda_graphs,
            _init_setup_model=False,
        )
        self.n_heads = n_heads
        self.epistemic_measure = epistemic_measure
        self.alpha_min = alpha_min
        self.alpha_max = alpha_max
        self.alpha_step = alpha_step
        self.eta = eta
        self.risk_scope = risk_scope
        self.state_key = state_key
        self.reference = reference
        self.max_keys = max_keys
        self.normalize_loss = normalize_loss
        self.next_action = next_action
        self.risk_adapter = risk_adapter
        self._normalized_observations: bool | None = None

        if _init_setup_model:
            self._setup_model()

    def _check_arguments(self) -> None:
        super()._check_arguments()
        check_integer("n_heads", self.n_heads)
        check_integer("max_keys", self.max_keys)
        check_choice("risk_scope", self.risk_scope, RISK_SCOPES)
        check_choice("next_action", self.next_action, ("head", "ensemble"))
        buffer = self.replay_buffer_class
        by_buffer = buffer is not None and issubclass(buffer, NStepReplayBuffer)
        if self.next_action == "ensemble" and (self.n_steps > 1 or by_buffer):
            given = f"replay_buffer_class={buffer}" if by_buffer else self.n_steps
            raise ValueError(
                f"next_action='ensemble' needs n_steps=1, got {given}: the level of a state depends on the action "
                "before it, which the replay buffer does not give for the last of several steps"
            )
        if self.reference is not None:
            check_choice("reference", self.reference, ("update", "visit"))
        check_flag("normalize_loss", self.normalize_loss)
        if not isinstance(self.state_key, str | StateKey | None):
            raise TypeError(f"state_key must be None, a name or a StateKey object, got {self.state_key!r}")
        if self.state_key is not None and self.risk_scope != "state-action":
            raise ValueError(f"state_key={self.state_key!r} has no effect with risk_scope={self.risk_scope!r}")
        check_eta(self.eta)
        make_measure(self.epistemic_measure)
        alpha_grid(self.alpha_min, self.alpha_max, self.alpha_step)

    def _make_state_key(self) -> str | StateKey | None:
        """The state key; where VecNormalize moves observations, the bounds of their space do not hold for the policy."""
        if self._normalized_observations is None:  # a loaded model groups states as before
            self._normalized_observations = self._is_normalized()
        space = self.observation_space
        by_bucket = self.state_key == "bucket" or (self.state_key is None and len(space.shape or ()) == 1)
        if self._normalized_observations and by_bucket and isinstance(space, spaces.Box):
            return BucketKey(spaces.Box(-np.inf, np.inf, space.shape))
        return self.state_key

    def _is_normalized(self) -> bool:
        normalize = None if self.env is None else self.get_vec_normalize_env()
        return normalize is not None and normalize.norm_obs

    def _check_env(self) -> None:
        super()._check_env()
        if self.risk_scope == "state-action" and self._is_normalized() != self._normalized_observations:
            with_it, without = ("with", "without") if self._normalized_observations else ("without", "with")
            warnings.warn(
                f"the model groups states {with_it} normalisation of observations, and env comes {without} it: "
                "where risk levels are to adapt, make a new model with this environment",
                stacklevel=3,
            )

    def _policy_arguments(self) -> dict[str, Any]:
        return {
            **super()._policy_arguments(),
            "n_heads": self.n_heads,
            "epistemic_measure": self.epistemic_measure,
            "alpha": self.alpha_max,
            "risk_scope": self.risk_scope,
            "state_key": self._make_state_key(),
            "max_keys": self.max_keys,
        }

    def _make_adapter(self) -> RiskAdapter:
        if isinstance(self.risk_adapter, RiskAdapter):
            return super()._make_adapter()
        return ADAPTERS[check_choice("risk_adapter", self.risk_adapter, ADAPTERS)]()

    def _update_constants(self) -> Hashable:
        return super()._update_constants() if self.next_action == "head" else None

    def _next_actions(self, values: th.Tensor, batch: ReplayBufferSamples) -> th.Tensor:
        if self.next_action == "head":
            return super()._next_actions(values, batch)
        # Greedy as the agent itself would be: at alpha(s', a), a being the action that led to s'
        actions = batch.actions.squeeze(1).cpu().numpy() - int(self.action_space.start)
        alphas = self.policy.risk.alphas(self.policy.observations_to_numpy(batch.next_observations), actions)  # (B,)
        valid = self.policy.valid_actions(batch.next_observations)
        valid_array = None if valid is None else valid.cpu().numpy()
        greedy = self.policy.greedy_actions(values.cpu().numpy(), alphas, valid_array)  # (B,)
        return th.as_tensor(greedy, device=self.device).expand(len(values), -1)

    def learn(
        self: SelfORAIQN,
        total_timesteps: int,
        callback: MaybeCallback = None,
        log_interval: int = 4,
        tb_log_name: str = "ORAIQN",
        reset_num_timesteps: bool = True,
        progress_bar: bool = False,
    ) -> SelfORAIQN:
        return super().learn(total_timesteps, callback, log_interval, tb_log_name, reset_num_timesteps, progress_bar)
