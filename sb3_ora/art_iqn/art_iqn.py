from typing import Any, TypeVar

import torch as th
from stable_baselines3.common.buffers import ReplayBuffer
from stable_baselines3.common.type_aliases import GymEnv, MaybeCallback, Schedule

from sb3_ora.adapters import EWAFAdapter, RiskAdapter
from sb3_ora.iqn.iqn import IQN
from sb3_ora.iqn.policies import IQNPolicy
from sb3_ora.risk.distortions import Distortion

SelfARTIQN = TypeVar("SelfARTIQN", bound="ARTIQN")


class ARTIQN(IQN):
    """
    IQN with adaptive risk tendency (ART): a bandit over levels of the return distortion, fed at every step with the
    change of the spread of the lower half of the return distribution. Paper: https://arxiv.org/abs/2203.14749

    All arguments not listed here are those of :class:`~sb3_ora.IQN`, but for ``risk_level`` and ``risk_adapter``: the bandit
    moves the level. For another rule, give an adapter to ``IQN``.

    :param policy: The policy model to use (MlpPolicy, CnnPolicy, ...)
    :param env: The environment to learn from (if registered in Gym, can be str)
    :param distortion: distortion of the return distribution when acting, "cvar" by default
    :param risk_levels: the arms, levels of the distortion; exactly two with the published modes
    :param bandit_lr: step size of the bandit's weights
    :param mode: "sample" draws an arm at every step; "published" is the controller of the published code,
        a weighted mean of two levels that starts anew in each episode; "published-flight" is that of its flight script,
        which also learns from an episode's first step
    :param sign: with ``mode="sample"``: credit a "falling" spread, as the published code does,
        or the sign printed in the DRL-ORA "paper"
    :param n_variance_quantiles: even number N of the quantiles i/N whose lower half gives the spread
    :param feedback_window: standardise the feedback over so many steps of all environments; None for raw feedback, which is in
        squared units of return: without a scale one arm soon has all the probability
    :param weight_decay: share of the weights that is forgotten before each update
    :raises ValueError: if an argument is out of range or contradicts another
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
        distortion: str | Distortion = "cvar",
        target_risk: str = "acting",
        evaluation_eps: float = 0.001,
        double_q: bool = False,
        risk_levels: tuple[float, ...] = (0.1, 1.0),
        bandit_lr: float = 0.5,
        mode: str = "sample",
        sign: str = "falling",
        n_variance_quantiles: int = 16,
        feedback_window: int | None = None,
        weight_decay: float = 0.0,
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
            target_risk=target_risk,
            evaluation_eps=evaluation_eps,
            double_q=double_q,
            use_action_mask=use_action_mask,
            cuda_graphs=cuda_graphs,
            _init_setup_model=False,
        )
        self.risk_levels = risk_levels
        self.bandit_lr = bandit_lr
        self.mode = mode
        self.sign = sign
        self.n_variance_quantiles = n_variance_quantiles
        self.feedback_window = feedback_window
        self.weight_decay = weight_decay

        if _init_setup_model:
            self._setup_model()

    def _check_arguments(self) -> None:
        super()._check_arguments()
        # An adapter's None stands for the model's argument
        for name in ("risk_levels", "bandit_lr", "mode", "sign", "n_variance_quantiles", "weight_decay"):
            if getattr(self, name) is None:
                raise ValueError(f"{name} must not be None in {type(self).__name__}")

    def _make_adapter(self) -> RiskAdapter:
        return EWAFAdapter("tail-variance")

    def learn(
        self: SelfARTIQN,
        total_timesteps: int,
        callback: MaybeCallback = None,
        log_interval: int = 4,
        tb_log_name: str = "ARTIQN",
        reset_num_timesteps: bool = True,
        progress_bar: bool = False,
    ) -> SelfARTIQN:
        return super().learn(total_timesteps, callback, log_interval, tb_log_name, reset_num_timesteps, progress_bar)
