import functools
import io
import pathlib
import pickle
import warnings
from collections.abc import Hashable
from contextlib import nullcontext
from copy import deepcopy
from typing import Any, ClassVar, TypeVar

import numpy as np
import torch as th
from gymnasium import spaces
from stable_baselines3.common.buffers import ReplayBuffer
from stable_baselines3.common.callbacks import BaseCallback, CallbackList
from stable_baselines3.common.policies import BasePolicy
from stable_baselines3.common.save_util import load_from_zip_file
from stable_baselines3.common.type_aliases import GymEnv, MaybeCallback, ReplayBufferSamples, RolloutReturn, Schedule
from stable_baselines3.common.utils import LinearSchedule, get_parameters_by_name, polyak_update
from stable_baselines3.common.vec_env import VecEnv

from sb3_ora.adapters.base import RiskAdapter, find_adapters
from sb3_ora.adapters.schedule import ScheduleAdapter
from sb3_ora.iqn import adam, by_hand
from sb3_ora.iqn.acting import ActingAlgorithm
from sb3_ora.checks import named
from sb3_ora.iqn.arguments import algorithm_of, check_algorithm, check_learner, check_made_with, check_n_steps
from sb3_ora.iqn.bootstrap import bootstrap_mask
from sb3_ora.iqn.buffers import LARGE_BUFFER, DictNStepReplayBuffer, observation_bytes
from sb3_ora.iqn.cuda_graphs import RecordedUpdates, Update, can_record
from sb3_ora.iqn.finite import (
    FiniteEnv,
    NotFiniteError,
    Statistics,
    check_first_observations,
    check_update,
    checked_loss,
    tell_callbacks,
)
from sb3_ora.iqn.losses import quantile_huber_loss
from sb3_ora.iqn.masks import check_mask, mask_values
from sb3_ora.iqn.networks import ImplicitQuantileNetwork
from sb3_ora.iqn.policies import CnnPolicy, IQNPolicy, MlpPolicy, MultiInputPolicy
from sb3_ora.risk.distortions import Distortion, Neutral, make_distortion, midpoints
from sb3_ora.risk.schedules import check_schedule, make_level_schedule
from sb3_ora.risk.state import NO_ACTION

SHARING = 4  # transitions of a batch that share their random fractions

SelfIQN = TypeVar("SelfIQN", bound="IQN")


@functools.cache
def _grids(n: int, n_rows: int, device: th.device) -> tuple[th.Tensor, th.Tensor]:
    """Where T rows are spaced, (T,), and where n strata begin, (n, 1)."""
    return th.arange(n_rows, device=device) / n_rows, th.arange(n, device=device).unsqueeze(1) / n


def _index(actions: th.Tensor, quantiles: th.Tensor) -> th.Tensor:
    """Actions, (K, B) or (1, B), as an index for the second dimension of quantiles, (K, A, N, B)."""
    n_heads, _, n, n_rows = quantiles.shape
    return actions.view(-1, 1, 1, n_rows).expand(n_heads, 1, n, n_rows)


class IQN(ActingAlgorithm):
    """
    Implicit Quantile Network (IQN), risk-neutral or acting on a distortion of the return.
    Paper: https://arxiv.org/abs/1806.06923
    Default hyperparameters are those of the paper, tuned for Atari games
    (except for the ``learning_starts`` parameter and the number of quantiles).

    :param policy: The policy model to use (MlpPolicy, CnnPolicy, ...)
    :param env: The environment to learn from (if registered in Gym, can be str)
    :param learning_rate: The learning rate, it can be a function
        of the current progress remaining (from 1 to 0)
    :param buffer_size: size of the replay buffer
    :param learning_starts: how many steps of the model to collect transitions for before learning starts
    :param batch_size: Minibatch size for each gradient update
    :param tau: the soft update coefficient ("Polyak update", between 0 and 1) default 1 for hard update
    :param gamma: the discount factor
    :param train_freq: Update the model every ``train_freq`` steps. Alternatively pass a tuple of frequency and unit
        like ``(5, "step")`` or ``(2, "episode")``.
    :param gradient_steps: How many gradient steps to do after each rollout (see ``train_freq``)
        Set to ``-1`` means to do as many gradient steps as steps done in the environment
        during the rollout.
    :param replay_buffer_class: Replay buffer class to use (for instance ``HerReplayBuffer``).
        If ``None``, it will be automatically selected.
    :param replay_buffer_kwargs: Keyword arguments to pass to the replay buffer on creation.
    :param optimize_memory_usage: Enable a memory efficient variant of the replay buffer
        at a cost of more complexity.
    :param n_steps: When n_step > 1, uses n-step return (with the NStepReplayBuffer) when updating the network.
    :param target_update_interval: update the target network every ``target_update_interval``
        environment steps.
    :param exploration_fraction: fraction of entire training period over which the exploration rate is reduced
    :param exploration_initial_eps: initial value of random action probability
    :param exploration_final_eps: final value of random action probability
    :param max_grad_norm: The maximum value for the gradient clipping (if None, no clipping)
    :param stats_window_size: Window size for the rollout logging, specifying the number of episodes to average
        the reported success rate, mean episode length, and mean reward over
    :param tensorboard_log: the log location for tensorboard (if None, no logging)
    :param policy_kwargs: additional arguments to be passed to the policy on creation, see :class:`IQNPolicy`
    :param verbose: the verbosity level: 0 no output, 1 info, 2 debug
    :param seed: Seed for the pseudo random generators
    :param device: Device (cpu, cuda, ...) on which the code should be run.
        Setting it to auto, the code will be run on the GPU if possible.
    :param n_quantiles: number N of random fractions at which the loss evaluates the online network
    :param n_target_quantiles: number N' of random fractions at which it evaluates the target network
    :param n_risk_samples: number M of fixed fractions over which acting averages the return
    :param distortion: distortion of the return distribution when acting: "neutral", "cvar", "wang", "cpw", "power",
        or a :class:`~sb3_ora.risk.Distortion`
    :param risk_level: level of the distortion: a number, a function of the progress remaining (from 1 to 0), or a string
        such as "0.1->0.9->0.1", piecewise linear over training. None for the IQN paper's level of that distortion.
    :param target_risk: distortion under which the target's action is greedy: "acting" or "neutral"
    :param evaluation_eps: random action probability of ``predict(deterministic=False)``
    :param double_q: let the online network choose the target's action (as in Double DQN)
    :param risk_adapter: callback that moves the risk attitude during training; None for the algorithm's own
    :param use_action_mask: read the valid actions from the entry ``action_mask`` of Dict observations: others are
        neither taken, also not at random, nor the actions of a target. The network does not see the entry.
    :param cuda_graphs: on a CUDA device, record updates and replay them, which saves most of their time with networks of
        usual size; updates that cannot be recorded are done as usual
    :param _init_setup_model: Whether or not to build the network at the creation of the instance
    :raises ValueError: if an argument is out of range or contradicts another
    :raises TypeError: if an argument is of another kind than what is allowed
    """

    policy_aliases: ClassVar[dict[str, type[BasePolicy]]] = {
        "MlpPolicy": MlpPolicy,
        "CnnPolicy": CnnPolicy,
        "MultiInputPolicy": MultiInputPolicy,
    }
    exploration_schedule: Schedule
    level_schedule: Schedule
    quantile_net_target: ImplicitQuantileNetwork

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
        risk_adapter: RiskAdapter | None = None,
        use_action_mask: bool = False,
        cuda_graphs: bool = True,
        _init_setup_model: bool = True,
    ):
        check_made_with(
            type(self),
            IQNPolicy,
            policy=policy,
            env=env,
            device=device,
            verbose=verbose,
            tensorboard_log=tensorboard_log,
            policy_kwargs=policy_kwargs,
            replay_buffer_kwargs=replay_buffer_kwargs,
            is_complete=_init_setup_model,
        )
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
            action_noise=None,  # No action noise
            replay_buffer_class=replay_buffer_class,
            replay_buffer_kwargs=replay_buffer_kwargs,
            optimize_memory_usage=optimize_memory_usage,
            n_steps=n_steps,
            policy_kwargs=policy_kwargs,
            stats_window_size=stats_window_size,
            tensorboard_log=tensorboard_log,
            verbose=verbose,
            device=device,
            seed=seed,
            sde_support=False,
            supported_action_spaces=(spaces.Discrete,),
            support_multi_env=True,
        )
        self.exploration_initial_eps = exploration_initial_eps
        self.exploration_final_eps = exploration_final_eps
        self.exploration_fraction = exploration_fraction
        self.target_update_interval = target_update_interval
        self.max_grad_norm = max_grad_norm
        self.n_quantiles = n_quantiles
        self.n_target_quantiles = n_target_quantiles
        self.n_risk_samples = n_risk_samples
        self.distortion = distortion
        self.risk_level = risk_level
        self.target_risk = target_risk
        self.evaluation_eps = evaluation_eps
        self.double_q = double_q
        self.risk_adapter: str | RiskAdapter | None = risk_adapter
        self.use_action_mask = use_action_mask
        self.cuda_graphs = cuda_graphs
        # For updating the target network with multiple envs:
        self._n_calls = 0
        # "epsilon" for the epsilon-greedy exploration
        self.exploration_rate = exploration_initial_eps
        self._acting = None
        self._finite_env: FiniteEnv | None = None
        self._recorded_updates: RecordedUpdates | None = None
        self._algorithm = algorithm_of(type(self))  # which a file tells

        if _init_setup_model:
            self._setup_model()

    # Set-up

    def _check_arguments(self) -> None:
        check_algorithm(self)
        check_learner(self)

    def _policy_arguments(self) -> dict[str, Any]:
        """What the policy is built from: the user's ``policy_kwargs`` and the algorithm's own arguments."""
        optimizer: dict[str, Any] = {}
        if "optimizer_class" not in self.policy_kwargs:
            # eps was proposed in the QR-DQN paper, where `batch_size = 32`
            given = self.policy_kwargs.get("optimizer_kwargs") or {}
            fused = self.device.type in ("cpu", "cuda") and not {"foreach", "differentiable"} & given.keys()
            kwargs = {"eps": 0.01 / self.batch_size, "fused": fused, **given}
            optimizer = {"optimizer_class": th.optim.Adam, "optimizer_kwargs": kwargs}
        return {
            **self.policy_kwargs,
            **optimizer,
            "n_risk_samples": self.n_risk_samples,
            "distortion": self.distortion,
            "risk_level": self.level_schedule(1.0),
            "use_action_mask": self.use_action_mask,
        }

    def _make_adapter(self) -> RiskAdapter:
        if self.risk_adapter is None:
            return ScheduleAdapter()
        if not isinstance(self.risk_adapter, RiskAdapter):
            raise ValueError(f"risk_adapter must be a RiskAdapter or None, got {self.risk_adapter!r}")
        return deepcopy(self.risk_adapter)  # the argument stays as given, and can serve another model

    def _announce_memory(self) -> None:
        n_bytes = observation_bytes(self.observation_space, self.buffer_size, self.optimize_memory_usage)
        if self.verbose >= 1 and self.replay_buffer is None and n_bytes >= LARGE_BUFFER:
            print(f"The replay buffer takes {n_bytes / 1e9:.1f} GB for {self.buffer_size} transitions, once it is full")

    def _setup_model(self) -> None:
        self._check_arguments()
        by_hand.keep_memory()
        distortion = make_distortion(self.distortion)
        self.level_schedule = make_level_schedule(distortion.default_level if self.risk_level is None else self.risk_level)
        with named("risk_level", self.risk_level) if isinstance(self.risk_level, str) else nullcontext():
            check_schedule(self.level_schedule, distortion)
        # The constructor's arguments stay as given: what SB3 derives from them lasts for the set-up only
        names = ("policy_kwargs", "replay_buffer_class", "replay_buffer_kwargs")
        given = {name: getattr(self, name) for name in names}
        self.policy_kwargs = self._policy_arguments()
        self.replay_buffer_kwargs = dict(self.replay_buffer_kwargs)
        self._announce_memory()
        try:
            with warnings.catch_warnings():
                if self.n_steps > 1 and self.replay_buffer_class is None and isinstance(self.observation_space, spaces.Dict):
                    self.replay_buffer_class = DictNStepReplayBuffer
                    self.replay_buffer_kwargs |= {"n_steps": self.n_steps, "gamma": self.gamma}
                    warnings.filterwarnings("ignore", message=r"`n_steps=\d+` is ignored")
                super()._setup_model()
        except MemoryError as error:
            raise MemoryError(f"buffer_size={self.buffer_size} transitions do not fit into memory: {error}") from error
        finally:
            self.__dict__.update(given)
        self._create_aliases()
        self._probes: list[th.nn.Parameter] | None = None
        # Copy running stats, see https://github.com/DLR-RM/stable-baselines3/issues/996
        self.batch_norm_stats = get_parameters_by_name(self.quantile_net, ["running_"])
        self.batch_norm_stats_target = get_parameters_by_name(self.quantile_net_target, ["running_"])
        self.exploration_schedule = LinearSchedule(
            self.exploration_initial_eps, self.exploration_final_eps, self.exploration_fraction
        )
        self._previous_actions = np.full(self.n_envs, NO_ACTION)
        self._acting = None
        self._acting_alphas = np.ones(self.n_envs)
        self.adapter = self._make_adapter()
        self.adapter.bind(self)
        self._recorded_updates = RecordedUpdates(self) if can_record(self) else None

        if self.n_envs > self.target_update_interval:
            warnings.warn(
                "The number of environments used is greater than the target network "
                f"update interval ({self.n_envs} > {self.target_update_interval}), "
                "therefore the target network will be updated after each call to env.step() "
                f"which corresponds to {self.n_envs} steps.",
                stacklevel=2,
            )

    def _create_aliases(self) -> None:
        self.quantile_net = self.policy.quantile_net
        self.quantile_net_target = self.policy.quantile_net_target

    def set_random_seed(self, seed: int | None = None) -> None:
        super().set_random_seed(seed)
        if seed is not None and hasattr(self, "adapter"):  # which the constructor seeds itself
            self.adapter.seed(seed)

    def set_env(self, env: GymEnv, force_reset: bool = True) -> None:
        super().set_env(env, force_reset)
        self._check_env()

    def _check_env(self) -> None:
        """Whether the environment goes with the arguments, and with what was learned in another one."""
        if self.use_action_mask:
            check_mask(self.observation_space, self.action_space, self.get_vec_normalize_env())

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if "adapter" in state:  # which is copied without its model
            self.adapter.model = self

    # Learning

    def _on_step(self) -> None:
        """
        Update the exploration rate, the risk level and the target network if needed.
        This method is called in ``collect_rollouts()`` after each step in the environment.
        """
        self._n_calls += 1
        # Account for multiple environments
        # each call to step() corresponds to n_envs transitions
        if self._n_calls % max(self.target_update_interval // self.n_envs, 1) == 0:
            pairs = zip(self.quantile_net.parameters(), self.quantile_net_target.parameters(), strict=True)
            learned = [(mine, its) for mine, its in pairs if mine.requires_grad or its.requires_grad]  # without the priors
            online, target = zip(*learned, strict=True)
            polyak_update(online, target, self.tau)
            # Copy running stats, see https://github.com/DLR-RM/stable-baselines3/issues/996
            polyak_update(self.batch_norm_stats, self.batch_norm_stats_target, 1.0)

        self.exploration_rate = self.exploration_schedule(self._current_progress_remaining)
        self.logger.record("rollout/exploration_rate", self.exploration_rate)
        self.adapter.update_level()

    def _draw_taus(self, n: int, batch_size: int) -> th.Tensor:
        """
        Random fractions for a batch, (T, n). Each row has one from each n-th of [0, 1], uniform on it; the rows are equally
        spaced there, from a random shift. Means over the batch have the expectation that they have under independent
        uniform fractions, and less variance. So transitions can share them, which spares the network three of four
        embeddings: transition b has those of row b modulo T, where T = B / 4 (or T = B if that is no integer).
        """
        n_rows = batch_size // SHARING if batch_size % SHARING == 0 else batch_size
        spacing, strata = _grids(n, n_rows, self.device)
        within = (th.rand(n, 1, device=self.device) + spacing).frac_()  # (n, T)
        return th.add(strata, within, alpha=1 / n).T

    def _target_levels(self) -> th.Tensor | None:
        """
        :return: levels of the distortion under which the target's action is greedy, (L, 1): one, or one for each
            environment; None if it is neutral
        """
        risk = self.policy.risk
        if self.target_risk == "neutral" or isinstance(risk.distortion, Neutral):
            return None
        levels = risk.level if self.adapter.acting_level is None else self.adapter.acting_level
        return th.as_tensor(levels, dtype=th.float32, device=self.device).reshape(-1, 1)

    def _target_taus(self, batch_size: int, levels: th.Tensor | None) -> tuple[th.Tensor, bool]:
        """
        Fractions for the target network: random ones, (T, N'), and, where the target's action is chosen under
        a distortion, as many distorted midpoints for that choice, so (T, 2N') or (B, 2N').
        """
        taus = self._draw_taus(self.n_target_quantiles, batch_size)
        if levels is None:
            return taus, False
        if len(taus) % len(levels):
            taus = taus.repeat(batch_size // len(taus), 1)
        levels = levels[th.arange(len(taus), device=self.device) % len(levels)]  # transitions take environments' in turn
        distorted = self.policy.risk.distortion(midpoints(self.n_target_quantiles, self.device).unsqueeze(0), levels)
        return th.cat([taus, distorted], dim=1), True

    def _next_actions(self, values: th.Tensor, batch: ReplayBufferSamples) -> th.Tensor:
        """
        :param values: every head's values of the next observations, (K, B, A)
        :param batch: the transitions
        :return: the action whose return each head takes as its target, (K, B)
        """
        values = mask_values(values, self.policy.valid_actions(batch.next_observations))
        return values.max(dim=2).indices  # argmax takes up to ten times as long

    def _target_quantiles(self, batch: ReplayBufferSamples, levels: th.Tensor | None = None) -> th.Tensor:
        """
        :param batch: B transitions
        :param levels: see :meth:`_target_levels`; None for the present ones
        :return: samples of each head's own target distribution, r + gamma^n Z^k(s', a*_k), (K, N', B)
        """
        n = self.n_target_quantiles
        taus, distorted = self._target_taus(len(batch.rewards), self._target_levels() if levels is None else levels)
        quantiles = by_hand.quantiles(self.quantile_net_target, batch.next_observations, taus)  # (K, A, N' or 2N', B)
        choosing = quantiles
        if self.double_q:
            choosing = by_hand.quantiles(self.quantile_net, batch.next_observations, taus[:, n:] if distorted else taus)
        elif distorted:
            choosing = quantiles[:, :, n:]
        next_actions = self._next_actions(choosing.mean(dim=2).transpose(1, 2), batch)  # (K, B)
        if distorted:
            quantiles = quantiles[:, :, :n]
        next_quantiles = quantiles.gather(1, _index(next_actions, quantiles)).squeeze(1)  # (K, N', B)
        follows = th.rsub(batch.dones, 1)  # (B, 1)
        if batch.discounts is None:
            return th.addcmul(batch.rewards.T, follows.T, next_quantiles, value=self.gamma)
        # For n-step replay, discount factor is gamma**n_steps (when no early termination)
        return th.addcmul(batch.rewards.T, follows.mul_(batch.discounts).T, next_quantiles)

    def _loss(
        self, quantiles: th.Tensor, targets: th.Tensor, taus: th.Tensor, batch: ReplayBufferSamples
    ) -> tuple[th.Tensor, th.Tensor, th.Tensor]:
        """
        :param quantiles: the network's quantiles, (K, A, N, B)
        :param targets: samples of the heads' target distributions, (K, N', B)
        :param taus: fractions of the quantiles, (T, N)
        :param batch: B transitions
        :return: the loss, (); its derivative by the quantiles, (K, A, N, B); quantiles of the actions taken, (K, N, B)
        """
        actions = batch.actions.long()
        if self.action_space.start:
            actions = actions - int(self.action_space.start)
        index = _index(actions.T, quantiles)
        taken = quantiles.gather(1, index).squeeze(1)
        fractions = taus.T.unsqueeze(1).expand(-1, len(actions) // len(taus), -1).flatten(1)  # (N, B)
        losses, slopes = quantile_huber_loss(taken, targets, fractions)  # (K, B), (K, N, B)
        if self.policy.bootstrap_p == 1:
            loss, slopes = losses.mean(), slopes.div_(losses.numel())
        else:
            mask = bootstrap_mask(batch, len(losses), self.policy.bootstrap_p)  # (K, B)
            weights = mask / mask.sum().clamp(min=1)
            loss, slopes = (weights * losses).sum(), slopes.mul_(weights.unsqueeze(1))
        return loss, th.zeros_like(quantiles).scatter_(1, index, slopes.unsqueeze(1).to(quantiles.dtype)), taken

    def _differentiate(self, batch: ReplayBufferSamples, levels: th.Tensor | None = None) -> Update:
        """
        Set the gradients of all weights. The loss tells its derivative by the network's quantiles; autograd has the rest,
        or :mod:`~sb3_ora.iqn.by_hand` where it knows the network.

        :param batch: B transitions
        :param levels: see :meth:`_target_levels`; None for the present ones
        :return: the loss, and the quantiles of the actions taken
        """
        net, layers = self.quantile_net, by_hand.layers_of(self.quantile_net)
        with th.no_grad():
            targets = self._target_quantiles(batch, levels)  # (K, N', B)
            taus = self._draw_taus(self.n_quantiles, len(batch.rewards))  # (T, N)
            if layers is not None:
                quantiles, forward = by_hand.evaluate(layers, batch.observations, taus)  # (K, A, N, B)
                loss, derivative, taken = self._loss(quantiles, targets, taus, batch)
                by_hand.differentiate(layers, forward, derivative)
                return Update(loss, taken)
        quantiles = net(batch.observations, taus).permute(0, 3, 2, 1)
        with th.no_grad():
            loss, derivative, taken = self._loss(quantiles.detach(), targets, taus, batch)
        for parameter in self._trained():  # optimizer.zero_grad() takes much longer
            parameter.grad = None
        quantiles.backward(derivative)
        return Update(loss, taken)

    def _trained(self) -> list[th.nn.Parameter]:
        """The optimizer's parameters."""
        return [parameter for group in self.policy.optimizer.param_groups for parameter in group["params"]]

    def _update(self, batch: ReplayBufferSamples, levels: th.Tensor | None = None) -> Update:
        """
        One gradient step.

        :param batch: B transitions
        :param levels: see :meth:`_target_levels`; None for the present ones
        :return: the loss, and the quantiles of the actions taken
        """
        loss, taken = self._differentiate(batch, levels)
        if self.max_grad_norm is not None:
            th.nn.utils.clip_grad_norm_(self._trained(), self.max_grad_norm)
        loss = check_update(self, loss, batch)
        adam.step(self.policy.optimizer)
        return Update(loss, taken)

    def _update_constants(self) -> Hashable:
        """
        :return: the numbers that an update uses as they are when it is recorded as a CUDA graph;
            None if it does part of its work with NumPy
        """
        return self.gamma, self.max_grad_norm, self.double_q, self.n_quantiles, self.n_target_quantiles

    def train(self, gradient_steps: int, batch_size: int = 100) -> None:
        # Switch to train mode (this affects batch norm / dropout)
        self.policy.set_training_mode(True)
        # Update learning rate according to schedule
        self._update_learning_rate(self.policy.optimizer)
        if gradient_steps < 1:
            return

        losses = []
        for _ in range(gradient_steps):
            batch = self.replay_buffer.sample(batch_size, env=self._vec_normalize_env)  # type: ignore[union-attr]
            update = self._update(batch) if self._recorded_updates is None else self._recorded_updates(batch)
            losses.append(update.loss)

        self._n_updates += gradient_steps
        self.logger.record("train/n_updates", self._n_updates, exclude="tensorboard")
        loss = losses[0] if gradient_steps == 1 else th.stack(losses).mean()
        self.logger.record("train/loss", checked_loss(self, loss.item()))
        if self.policy.n_heads > 1:
            self.logger.record("train/q_spread", update.taken.mean(dim=1).std(dim=0).mean().item())

    def _adopt_adapter(self, callback: MaybeCallback) -> bool:
        """
        :param callback: the user's callbacks
        :return: whether a risk adapter is among them, which is then this model's
        """
        given = find_adapters(callback)
        if len(given) > 1:
            raise ValueError(f"callback holds {len(given)} risk adapters ({given[0]!r}, {given[1]!r}, ...); only one can act")
        if not given:
            return False
        if given[0] is self.adapter and given[0].model is not self:
            raise ValueError(
                f"callback holds a {type(given[0]).__name__} that has served another model since: give each its own"
            )
        if given[0] is not self.adapter:
            if isinstance(self.risk_adapter, RiskAdapter):
                raise ValueError(
                    f"callback holds a {type(given[0]).__name__}, but risk_adapter={self.risk_adapter!r}: give one of them"
                )
            given[0].bind(self)
            given[0].continue_from(self.adapter)
            self.adapter = given[0]
        return True

    def _init_callback(self, callback: MaybeCallback, progress_bar: bool = False) -> BaseCallback:
        adopted = self._adopt_adapter(callback)
        if self.adapter.model is not self:
            raise ValueError(
                f"the {type(self.adapter).__name__} of this model has served another one since: "
                "give learn(callback=...) an adapter of its own"
            )
        callbacks = super()._init_callback(callback, progress_bar)
        if adopted:
            return callbacks
        self.adapter.init_callback(self)
        chain = CallbackList([self.adapter, callbacks])
        chain.model = self
        return chain

    def _setup_learn(
        self,
        total_timesteps: int,
        callback: MaybeCallback = None,
        reset_num_timesteps: bool = True,
        *args: Any,
        **kwargs: Any,
    ) -> tuple[int, BaseCallback]:
        check_n_steps(self)
        self.quantile_net.eval()
        resets, statistics = reset_num_timesteps or self._last_obs is None, Statistics(self.get_vec_normalize_env())
        result = super()._setup_learn(total_timesteps, callback, reset_num_timesteps, *args, **kwargs)
        self._acting = None
        if self._total_timesteps > 0:  # until now that of the last training
            self._update_current_progress_remaining(self.num_timesteps, self._total_timesteps)
        if self.verbose >= 1 and reset_num_timesteps and 0 < self._total_timesteps <= self.learning_starts:
            print(f"Nothing will be learned: learning_starts={self.learning_starts}, of {self._total_timesteps} steps in all")
        if resets:
            self.leave_episodes()
            check_first_observations(self, statistics)
        return result

    def collect_rollouts(self, env: VecEnv, *args: Any, **kwargs: Any) -> RolloutReturn:
        if self._finite_env is None or self._finite_env.venv is not env:
            self._finite_env = FiniteEnv(env, self)
        return super().collect_rollouts(self._finite_env, *args, **kwargs)

    def learn(
        self: SelfIQN,
        total_timesteps: int,
        callback: MaybeCallback = None,
        log_interval: int = 4,
        tb_log_name: str = "IQN",
        reset_num_timesteps: bool = True,
        progress_bar: bool = False,
    ) -> SelfIQN:
        try:
            return super().learn(
                total_timesteps=total_timesteps,
                callback=callback,
                log_interval=log_interval,
                tb_log_name=tb_log_name,
                reset_num_timesteps=reset_num_timesteps,
                progress_bar=progress_bar,
            )
        except BaseException as error:
            if isinstance(error, NotFiniteError):
                self._last_obs = None  # the environments are one step further: the next training begins with a reset
            tell_callbacks(callback, error)
            raise
        finally:
            self._finite_env = None

    def dump_logs(self) -> None:
        self.adapter.record()
        super().dump_logs()

    # Saving

    @classmethod
    def load(
        cls: type[SelfIQN],
        path: str | pathlib.Path | io.BufferedIOBase,
        env: GymEnv | None = None,
        device: th.device | str = "auto",
        custom_objects: dict[str, Any] | None = None,
        print_system_info: bool = False,
        force_reset: bool = True,
        **kwargs: Any,
    ) -> SelfIQN:
        model = super().load(path, env, device, custom_objects, print_system_info, force_reset, **kwargs)
        given = {*kwargs, *(custom_objects or {})}
        if (seed := kwargs.get("seed")) is not None:
            model.adapter.seed(seed)  # rather than go on with the file's random numbers
        if {"distortion", "risk_level"} & given:
            model.adapter.update_level()  # the level in the file is not the one wanted now
        if "risk_adapter" in given:
            model.adapter.apply_to_policy()  # nor is what the file's adapter made of the policy
        if env is not None:
            model._check_env()
        return model

    def load_weights(self, path: str | pathlib.Path | io.BufferedIOBase) -> None:
        """
        Take networks, optimizer, risk levels and the adapter's state from a model's file, into a model made with the same
        arguments. Unlike :meth:`load`, this runs nothing that is in the file: for files of others.

        :param path: file of a saved model
        :raises ValueError: if the file is not that of a model, or of one with other networks
        """
        try:
            _, parameters, _ = load_from_zip_file(path, device=self.device, load_data=False)
        except pickle.UnpicklingError as error:  # torch's, for what is neither a tensor nor a plain value
            raise ValueError(f"path={str(path)!r} holds more than weights, which was not loaded: {error}") from error
        if not parameters:
            raise ValueError(f"path={str(path)!r} holds no weights of a model")
        before, state_key = deepcopy(self.get_parameters()), deepcopy(self.policy.risk.state_key)
        try:
            self.set_parameters(parameters, exact_match=True, device=self.device)
        except (RuntimeError, ValueError) as error:  # with the names and shapes that differ
            self.set_parameters(before, device=self.device)  # type: ignore[arg-type]
            self.policy.risk.state_key = state_key  # which says nothing of itself before it is fitted
            raise ValueError(f"path={str(path)!r} is of a model with other networks: {error}") from error

    def _excluded_save_params(self) -> list[str]:
        derived = ["quantile_net", "quantile_net_target", "batch_norm_stats", "batch_norm_stats_target"]
        return [
            *super()._excluded_save_params(),
            *derived,
            "level_schedule",
            "_acting",
            "_acting_alphas",
            "_previous_actions",
            "_finite_env",
            "_recorded_updates",
            "_probes",
        ]

    def _get_torch_save_params(self) -> tuple[list[str], list[str]]:
        return ["policy", "policy.optimizer", "adapter"], []
