"""How the algorithms act: greedy actions on a risk level, and epsilon-greedy exploration."""

import warnings
from typing import Any, NamedTuple

import numpy as np
import torch as th
from gymnasium import spaces
from stable_baselines3 import HerReplayBuffer
from stable_baselines3.common.buffers import NStepReplayBuffer, ReplayBuffer
from stable_baselines3.common.noise import ActionNoise
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm
from stable_baselines3.common.utils import obs_as_tensor

from sb3_ora.adapters.base import RiskAdapter
from sb3_ora.iqn import by_hand
from sb3_ora.iqn.masks import sample_actions
from sb3_ora.iqn.networks import ImplicitQuantileNetwork
from sb3_ora.iqn.policies import IQNPolicy
from sb3_ora.observations import Observations, batch_length, stack_batches
from sb3_ora.risk.state import NO_ACTION


class Acting(NamedTuple):
    """What is known of the current observations of the E environments."""

    values: np.ndarray  # (K, E, A)
    tail: np.ndarray | None  # quantiles at the adapter's own fractions, (K, E, N, A)
    states: np.ndarray | None  # keys of the observations' states, (E,), where alpha depends on them


class ActingAlgorithm(OffPolicyAlgorithm):
    """The part of :class:`~sb3_ora.IQN` that chooses actions."""

    action_space: spaces.Discrete
    policy: IQNPolicy
    quantile_net: ImplicitQuantileNetwork
    adapter: RiskAdapter
    exploration_rate: float
    evaluation_eps: float
    _acting: Acting | None
    _acting_alphas: np.ndarray  # (E,)
    _previous_actions: np.ndarray  # indices, (E,)

    def act_ahead(self, others: Observations | None = None) -> np.ndarray | None:
        """
        Evaluate the current observations, and any others, in one forward pass. What it says of the current ones
        is kept for the next action.

        :param others: further observations, (P, ...)
        :return: values of every head for the others, (K, P, A); None without others
        """
        assert self._last_obs is not None
        n_others = 0 if others is None else batch_length(others)
        observations = self._last_obs if others is None else stack_batches([others, self._last_obs])
        obs_tensor = obs_as_tensor(observations, self.device)
        with th.no_grad():
            taus = self.policy.risk.taus(self.adapter.acting_level)  # (1, M) or (E, M)
            tail_taus = self.adapter.tail_taus
            n_tail = 0 if tail_taus is None else len(tail_taus)
            if tail_taus is not None:
                taus = th.cat([tail_taus.to(taus).expand(len(taus), -1), taus], dim=1)
            quantiles = by_hand.quantiles(self.quantile_net, obs_tensor, taus)  # (K, A, N, P + E)
            values = quantiles[:, :, n_tail:].mean(dim=2).cpu().numpy().transpose(0, 2, 1)  # (K, P + E, A)
            tail = quantiles[:, :, :n_tail, n_others:].cpu().numpy().transpose(0, 3, 2, 1) if n_tail else None
        risk = self.policy.risk
        # A key that is not fitted yet may refuse
        adapts = not risk.use_mean and (risk.state_key is None or risk.state_key.fitted)
        self._acting = Acting(values[:, n_others:], tail, risk.state_keys(self._last_obs) if adapts else None)
        return values[:, :n_others] if n_others else None

    def _sample_action(
        self, learning_starts: int, action_noise: ActionNoise | None = None, n_envs: int = 1
    ) -> tuple[np.ndarray, np.ndarray]:
        """
        Sample an action for each environment: uniformly during the warm-up, epsilon-greedy afterwards,
        with one coin for each environment.

        :param learning_starts: Number of steps before learning for the warm-up phase
        :param action_noise: not used
        :param n_envs: number of environments E
        :return: actions for the environments and for the replay buffer, which are the same, (E,)
        """
        assert self._last_obs is not None
        valid = self.policy.valid_actions(self._last_obs)  # (E, A)
        if self.num_timesteps < learning_starts:
            self._acting = None
            explore = np.ones(n_envs, dtype=bool)
            indices = np.zeros(n_envs, dtype=np.int64)
        else:
            explore = np.random.rand(n_envs) < self.exploration_rate
            if self._acting is None and (self.adapter.watches_actions or not explore.all()):
                self.act_ahead()
            if self._acting is None:
                indices = np.zeros(n_envs, dtype=np.int64)
            else:
                self._acting_alphas = self.policy.risk.alphas(self._last_obs, self._previous_actions, self._acting.states)
                indices = self.policy.greedy_actions(self._acting.values, self._acting_alphas, valid)
        actions = indices + int(self.action_space.start)
        if explore.any():
            actions[explore] = sample_actions(self.action_space, explore, valid)
        self._previous_actions = actions - int(self.action_space.start)
        return actions, actions

    def _store_transition(self, replay_buffer: ReplayBuffer, buffer_action: np.ndarray, *args: Any) -> None:
        super()._store_transition(replay_buffer, buffer_action, *args)
        dones = args[2]
        self._previous_actions[np.asarray(dones, dtype=bool)] = NO_ACTION
        self._acting = None  # it was of the observation before this one

    def leave_episodes(self) -> None:
        """
        After the environments were reset: forget the previous actions and what was evaluated ahead, and let the returns in
        the replay buffer end with what was stored last.
        """
        self._previous_actions[:] = NO_ACTION
        self._acting = None
        buffer = self.replay_buffer
        if buffer is None or not buffer.size():
            return
        if isinstance(buffer, HerReplayBuffer):
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", message="The last trajectory in the replay buffer will be truncated")
                buffer.truncate_last_trajectory()
        elif isinstance(buffer, NStepReplayBuffer):
            last = buffer.pos - 1
            buffer.timeouts[last, buffer.dones[last] == 0] = 1  # an interruption is no end, whatever time-outs are
        elif buffer.optimize_memory_usage:
            buffer.dones[buffer.pos - 1] = 1  # as in SB3: the observation that came next is not there

    def predict(
        self,
        observation: np.ndarray | dict[str, np.ndarray],
        state: tuple[np.ndarray, ...] | None = None,
        episode_start: np.ndarray | None = None,
        deterministic: bool = False,
    ) -> tuple[np.ndarray, tuple[np.ndarray, ...] | None]:
        """
        Get the policy action from an observation. With ``deterministic=True`` it is greedy, uses no random numbers
        and changes nothing; otherwise it is epsilon-greedy with ``evaluation_eps``, whatever the exploration rate
        of training, and one coin for each environment.

        :param observation: the input observation, of one environment, (...), or of E of them, (E, ...)
        :param state: what the last call returned: a tuple with the index of each environment's previous action, (E,), on
            which the risk level depends. Without it, every call is taken for an episode's first step.
        :param episode_start: where an episode begins, so that the previous action does not count, (E,)
        :param deterministic: Whether or not to return deterministic actions
        :return: the model's action, () or (E,), and the state for the next call
        :raises ValueError: if the observation does not fit the observation space, or the state the observation
        """
        actions, state = self.policy.predict(observation, state, episode_start, deterministic)
        if deterministic or self.evaluation_eps == 0:
            return actions, state
        assert state is not None
        explore = np.random.rand(len(state[0])) < self.evaluation_eps
        if explore.any():
            batch = np.array(actions).reshape(-1)
            valid = self.policy.valid_actions(self.policy.obs_to_tensor(observation)[0])
            batch[explore] = sample_actions(self.action_space, explore, None if valid is None else valid.cpu().numpy())
            state = (batch - int(self.action_space.start),)
            actions = batch.reshape(np.shape(actions))
        return actions, state
