from typing import Any, TypeVar

import torch as th
from stable_baselines3.common.buffers import ReplayBuffer
from stable_baselines3.common.type_aliases import GymEnv, MaybeCallback, Schedule

from sb3_ora.adapters import EWAFAdapter, RiskAdapter
from sb3_ora.iqn.iqn import IQN
from sb3_ora.iqn.policies import IQNPolicy
from sb3_ora.risk.distortions import Distortion

SelfTOPIQN = TypeVar("SelfTOPIQN", bound="TOPIQN")


class TOPIQN(IQN):
    """
    IQN with tactical optimism and pessimism (TOP): a bandit over levels of the return distortion, fed at every episode's
    end with the rise of the return over the episode before. Paper: https://arxiv.org/abs/2102.03765

    All arguments not listed here are those of :class:`~sb3_ora.IQN`, but for ``risk_level`` and ``risk_adapter``: the bandit
    moves the level. For another rule, give an adapter to ``IQN``.

    :param policy: The policy model to use (MlpPolicy, CnnPolicy, ...)
    :param env: The environment to learn from (if registered in Gym, can be str)
    :param distortion: distortion of the return distribution when acting, "cvar" by default
    :param risk_levels: the arms, levels of the distortion
    :param bandit_lr: step size of the bandit's weights
    :param feedback_window: standardise the feedback over so many episodes; None for raw feedback (DRL-ORA paper)
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
        risk_levels: tuple[float, ...] = (0.1, 0.5, 1.0),
        bandit_lr: float = 0.1,
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
        self.feedback_window = feedback_window
        self.weight_decay = weight_decay

        if _init_setup_model:
            self._setup_model()

    def _check_arguments(self) -> None:
        super()._check_arguments()
        for name in ("risk_levels", "bandit_lr", "weight_decay"):  # an adapter's None stands for the model's argument
            if getattr(self, name) is None:
                raise ValueError(f"{name} must not be None in {type(self).__name__}")

    def _make_adapter(self) -> RiskAdapter:
        return EWAFAdapter("episode-return")

    def learn(
        self: SelfTOPIQN,
        total_timesteps: int,
        callback: MaybeCallback = None,
        log_interval: int = 4,
        tb_log_name: str = "TOPIQN",
        reset_num_timesteps: bool = True,
        progress_bar: bool = False,
    ) -> SelfTOPIQN:
        return super().learn(total_timesteps, callback, log_interval, tb_log_name, reset_num_timesteps, progress_bar)
