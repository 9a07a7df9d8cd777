from copy import deepcopy
from typing import Any

import numpy as np
import torch as th
from gymnasium import spaces
from stable_baselines3.common.policies import BasePolicy
from stable_baselines3.common.preprocessing import get_obs_shape
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor, CombinedExtractor, FlattenExtractor, NatureCNN
from stable_baselines3.common.type_aliases import PyTorchObs, Schedule
from torch import nn

from sb3_ora.checks import check_integer, check_number, check_widths
from sb3_ora.iqn.arguments import check_policy
from sb3_ora.iqn.masks import valid_actions, without_mask
from sb3_ora.iqn.networks import ImplicitQuantileNetwork
from sb3_ora.risk.distortions import Distortion, make_distortion
from sb3_ora.risk.keys import StateKey, make_state_key
from sb3_ora.risk.measures import EpistemicMeasure, make_measure
from sb3_ora.risk.state import NO_ACTION, RiskState
from sb3_ora.risk.table import RiskTable


class IQNPolicy(BasePolicy):
    """
    Policy with an implicit quantile network of one or more heads, its target network and its risk attitude.

    :param observation_space: Observation space
    :param action_space: Action space
    :param lr_schedule: Learning rate schedule (could be constant)
    :param net_arch: widths of the trunk; ``[64, 64]`` by default, nothing after a ``NatureCNN``
    :param shared_arch: widths of the layers that the heads share after the product with the embedding; none by default
    :param head_arch: widths of the hidden layers that each head has to itself; ``[64]`` by default,
        ``[512]`` for a single head after a ``NatureCNN``
    :param n_cosines: number of cosines in the embedding of a quantile fraction
    :param activation_fn: Activation function
    :param prior_scale: scale of the randomised prior function of each head (Osband et al. 2018); 0 for none
    :param bootstrap_p: probability with which a head learns from a transition; each transition keeps its
        heads for life (with ``VecNormalize`` only as long as its statistics stand still)
    :param independent_heads: whether each head has a trunk and an embedding of its own too
    :param n_heads: number of heads K (set by the algorithm)
    :param n_risk_samples: number M of fractions at which acting averages the return (set by the algorithm)
    :param distortion: distortion of the return distribution (set by the algorithm)
    :param risk_level: level of that distortion; None for its default (set by the algorithm)
    :param epistemic_measure: risk measure on the heads; None for their mean (set by the algorithm)
    :param alpha: initial level of that measure (set by the algorithm)
    :param risk_scope: what has an alpha of its own (set by the algorithm)
    :param state_key: maps observations to integers (set by the algorithm)
    :param max_keys: largest number of keys that have an alpha (set by the algorithm)
    :param use_action_mask: whether observations say which actions are valid (set by the algorithm)
    :param features_extractor_class: Features extractor to use
    :param features_extractor_kwargs: Keyword arguments to pass to the features extractor
    :param normalize_images: Whether to normalize images or not, dividing by 255.0 (True by default)
    :param optimizer_class: The optimizer to use, ``th.optim.Adam`` by default
    :param optimizer_kwargs: Additional keyword arguments, excluding the learning rate, to pass to the optimizer. The
        algorithms give Adam ``eps = 0.01 / batch_size``, as the QR-DQN paper does, and ``fused=True`` where they choose it
    :raises ValueError: for a value out of range
    """

    quantile_net: ImplicitQuantileNetwork
    quantile_net_target: ImplicitQuantileNetwork
    action_space: spaces.Discrete

    def __init__(
        self,
        observation_space: spaces.Space,
        action_space: spaces.Discrete,
        lr_schedule: Schedule,
        net_arch: list[int] | None = None,
        shared_arch: list[int] | None = None,
        head_arch: list[int] | None = None,
        n_cosines: int = 64,
        activation_fn: type[nn.Module] = nn.ReLU,
        prior_scale: float = 0.0,
        bootstrap_p: float = 1.0,
        independent_heads: bool = False,
        n_heads: int = 1,
        n_risk_samples: int = 32,
        distortion: str | Distortion = "neutral",
        risk_level: float | None = None,
        epistemic_measure: str | EpistemicMeasure | None = None,
        alpha: float = 1.0,
        risk_scope: str = "state-action",
        state_key: str | StateKey | None = None,
        max_keys: int = 100_000,
        use_action_mask: bool = False,
        features_extractor_class: type[BaseFeaturesExtractor] = FlattenExtractor,
        features_extractor_kwargs: dict[str, Any] | None = None,
        normalize_images: bool = True,
        optimizer_class: type[th.optim.Optimizer] = th.optim.Adam,
        optimizer_kwargs: dict[str, Any] | None = None,
    ):
        check_policy(
            observation_space=observation_space,
            action_space=action_space,
            lr_schedule=lr_schedule,
            activation_fn=activation_fn,
            independent_heads=independent_heads,
            alpha=alpha,
            risk_scope=risk_scope,
            use_action_mask=use_action_mask,
            features_extractor_class=features_extractor_class,
            features_extractor_kwargs=features_extractor_kwargs,
            normalize_images=normalize_images,
            optimizer_class=optimizer_class,
            optimizer_kwargs=optimizer_kwargs,
        )
        super().__init__(
            observation_space,
            action_space,
            features_extractor_class,
            features_extractor_kwargs,
            optimizer_class=optimizer_class,
            optimizer_kwargs=optimizer_kwargs,
            normalize_images=normalize_images,
        )
        images = issubclass(features_extractor_class, NatureCNN)
        if net_arch is None:
            net_arch = [] if images else [64, 64]
        if head_arch is None:
            head_arch = [512] if images and n_heads == 1 else [64]
        self.bootstrap_p = check_number("bootstrap_p", bootstrap_p, 0, 1, open_low=True)
        self.net_args: dict[str, Any] = {
            "observation_space": observation_space,
            "action_space": action_space,
            "n_heads": check_integer("n_heads", n_heads),
            "net_arch": check_widths("net_arch", net_arch),
            "shared_arch": check_widths("shared_arch", [] if shared_arch is None else shared_arch),
            "head_arch": check_widths("head_arch", head_arch),
            "n_cosines": check_integer("n_cosines", n_cosines),
            "activation_fn": activation_fn,
            "prior_scale": check_number("prior_scale", prior_scale, 0),
            "independent_heads": independent_heads,
            "normalize_images": normalize_images,
        }
        self.risk_args: dict[str, Any] = {
            "n_risk_samples": check_integer("n_risk_samples", n_risk_samples),
            "distortion": distortion,
            "risk_level": risk_level,
            "epistemic_measure": epistemic_measure,
            "alpha": alpha,
            "risk_scope": risk_scope,
            "state_key": state_key,
            "max_keys": max_keys,
        }
        self.use_action_mask = use_action_mask
        self.risk = self._make_risk_state()
        self._build(lr_schedule)

    @property
    def n_heads(self) -> int:
        """Number of heads K."""
        return self.net_args["n_heads"]

    def _make_risk_state(self) -> RiskState:
        args = self.risk_args
        distortion = make_distortion(args["distortion"])
        level = distortion.default_level if args["risk_level"] is None else args["risk_level"]
        distortion.check_level(level)
        measure, table, state_key = None, None, None
        if args["epistemic_measure"] is not None:
            measure = make_measure(args["epistemic_measure"])
            table = RiskTable(args["alpha"], args["max_keys"])
            if args["risk_scope"] == "state-action":
                # A copy: a key object may have been given to other models too, and is fitted to what this one sees
                state_key = deepcopy(make_state_key(args["state_key"], self.observation_space))
        n_actions = int(self.action_space.n)
        return RiskState(distortion, level, args["n_risk_samples"], measure, table, state_key, args["risk_scope"], n_actions)

    def _build(self, lr_schedule: Schedule) -> None:
        """
        Create the networks and the optimizer.

        :param lr_schedule: Learning rate schedule; ``lr_schedule(1)`` is the initial learning rate
        """
        self.quantile_net = self.make_quantile_net()
        self.quantile_net_target = self.make_quantile_net()
        self.quantile_net_target.load_state_dict(self.quantile_net.state_dict())
        self.quantile_net_target.set_training_mode(False)
        self.optimizer = self.optimizer_class(  # type: ignore[call-arg]
            [parameter for parameter in self.quantile_net.parameters() if parameter.requires_grad],
            lr=lr_schedule(1),
            **self.optimizer_kwargs,
        )

    def make_quantile_net(self) -> ImplicitQuantileNetwork:
        """
        :return: a network with a features extractor of its own
        """
        net_args = self._update_features_extractor(self.net_args, features_extractor=None)
        return ImplicitQuantileNetwork(**net_args).to(self.device)

    def make_features_extractor(self) -> BaseFeaturesExtractor:
        """
        :return: a features extractor; it does not see action masks
        """
        if not self.use_action_mask:
            return super().make_features_extractor()
        return self.features_extractor_class(without_mask(self.observation_space), **self.features_extractor_kwargs)

    def valid_actions(self, observations: Any) -> Any:
        """
        :param observations: as arrays or tensors, (B, ...)
        :return: True for each action that may be taken, of the same kind, (B, A); None without masks
        """
        return valid_actions(observations) if self.use_action_mask else None

    def epistemic_values(self, obs: PyTorchObs, level: float | np.ndarray | None = None) -> th.Tensor:
        """
        The value of each head: the mean of its (distorted) return over M fixed fractions, the midpoints
        (paper, Algorithm 1, line 7, without the sampling noise).

        :param obs: observations, (B, ...)
        :param level: level of the distortion, one for all or (B,); None for the policy's own
        :return: values, (K, B, A)
        """
        return self.quantile_net(obs, self.risk.taus(level)).mean(dim=2)

    def greedy_actions(self, values: np.ndarray, alphas: np.ndarray, valid: np.ndarray | None = None) -> np.ndarray:
        """
        :param values: value of every head, (K, B, A)
        :param alphas: risk level of each state, (B,)
        :param valid: which actions may be taken, (B, A); None for all
        :return: indices of the actions with the least epistemic risk (paper, Algorithm 1, line 5), (B,)
        """
        risk_values = self.risk.risk_values(values, alphas)  # (B, A)
        return (risk_values if valid is None else np.where(valid, risk_values, -np.inf)).argmax(axis=1)

    def forward(self, obs: PyTorchObs, deterministic: bool = True) -> th.Tensor:
        return self._predict(obs, deterministic=deterministic)

    def _predict(self, observation: PyTorchObs, deterministic: bool = True) -> th.Tensor:
        """Greedy actions at an episode's first step, when no action has been taken yet, (B,)."""
        values = self.epistemic_values(observation).detach().cpu().numpy()
        observations = self.observations_to_numpy(observation)
        alphas = self.risk.alphas(observations, np.full(values.shape[1], NO_ACTION))
        actions = self.greedy_actions(values, alphas, self.valid_actions(observations))
        return th.as_tensor(actions + int(self.action_space.start), device=self.device)

    def predict(
        self,
        observation: np.ndarray | dict[str, np.ndarray],
        state: tuple[np.ndarray, ...] | None = None,
        episode_start: np.ndarray | None = None,
        deterministic: bool = False,
    ) -> tuple[np.ndarray, tuple[np.ndarray, ...] | None]:
        """
        Greedy actions; they use no random numbers.

        :param observation: the input observation
        :param state: indices of each environment's previous action, as returned by the last call;
            None if there was none
        :param episode_start: where an episode begins, and the previous action does not count
        :param deterministic: not used here: exploration is the algorithm's, see :meth:`IQN.predict`
        :return: the actions and the state for the next call
        """
        self.quantile_net.eval()
        self.training = False
        if isinstance(observation, tuple):
            raise ValueError(
                f"predict() takes the observation alone, got a tuple of {len(observation)}: "
                "`env.reset()` of a Gymnasium environment returns (observation, info)"
            )
        obs_tensor, vectorized = self.obs_to_tensor(observation)
        with th.no_grad():
            values = self.epistemic_values(obs_tensor).cpu().numpy()  # (K, B, A)
        previous = self._actions_before(values.shape[1], state, episode_start)
        observations = self.observations_to_numpy(obs_tensor)
        indices = self.greedy_actions(values, self.risk.alphas(observations, previous), self.valid_actions(observations))
        actions = indices + int(self.action_space.start)
        return (actions if vectorized else actions.squeeze(axis=0)), (indices,)

    @staticmethod
    def _actions_before(n_envs: int, state: tuple[np.ndarray, ...] | None, episode_start: np.ndarray | None) -> np.ndarray:
        if state is None:
            return np.full(n_envs, NO_ACTION)
        previous = np.array(state[0], dtype=np.int64)
        if previous.shape != (n_envs,):
            raise ValueError(f"state must hold one previous action for each of {n_envs} observations, got {previous.shape}")
        if episode_start is not None:
            previous[np.asarray(episode_start, dtype=bool).reshape(-1)] = NO_ACTION
        return previous

    def observations_to_numpy(self, obs: PyTorchObs) -> np.ndarray | dict[str, np.ndarray]:
        """
        :param obs: a batch of observations as tensors
        :return: the same as arrays, as the state keys take them
        """
        if isinstance(obs, dict):
            return {key: value.cpu().numpy() for key, value in obs.items()}
        return obs.cpu().numpy().reshape(-1, *get_obs_shape(self.observation_space))

    def _get_constructor_parameters(self) -> dict[str, Any]:
        data = super()._get_constructor_parameters()
        data.update({**self.net_args, **self.risk_args})
        data.update(
            bootstrap_p=self.bootstrap_p,
            use_action_mask=self.use_action_mask,
            lr_schedule=self._dummy_schedule,  # dummy lr schedule, not needed for loading policy alone
            optimizer_class=self.optimizer_class,
            optimizer_kwargs=self.optimizer_kwargs,
            features_extractor_class=self.features_extractor_class,
            features_extractor_kwargs=self.features_extractor_kwargs,
        )
        return data

    def set_training_mode(self, mode: bool) -> None:
        """
        Put the policy in either training or evaluation mode.
        This affects certain modules, such as batch normalisation and dropout.

        :param mode: if true, set to training mode, else set to evaluation mode
        """
        self.quantile_net.set_training_mode(mode)
        self.training = mode


MlpPolicy = IQNPolicy


class CnnPolicy(IQNPolicy):
    """
    Policy class for images: :class:`IQNPolicy` with a ``NatureCNN`` as default features extractor.

    :param observation_space: Observation space
    :param action_space: Action space
    :param lr_schedule: Learning rate schedule (could be constant)
    :param features_extractor_class: Features extractor to use
    :param kwargs: see :class:`IQNPolicy`
    """

    def __init__(
        self,
        observation_space: spaces.Space,
        action_space: spaces.Discrete,
        lr_schedule: Schedule,
        *,
        features_extractor_class: type[BaseFeaturesExtractor] = NatureCNN,
        **kwargs: Any,
    ):
        super().__init__(
            observation_space, action_space, lr_schedule, features_extractor_class=features_extractor_class, **kwargs
        )


class MultiInputPolicy(IQNPolicy):
    """
    Policy class for dict observations: :class:`IQNPolicy` with a ``CombinedExtractor`` as default features extractor.

    :param observation_space: Observation space
    :param action_space: Action space
    :param lr_schedule: Learning rate schedule (could be constant)
    :param features_extractor_class: Features extractor to use
    :param kwargs: see :class:`IQNPolicy`
    """

    def __init__(
        self,
        observation_space: spaces.Space,
        action_space: spaces.Discrete,
        lr_schedule: Schedule,
        *,
        features_extractor_class: type[BaseFeaturesExtractor] = CombinedExtractor,
        **kwargs: Any,
    ):
        super().__init__(
            observation_space, action_space, lr_schedule, features_extractor_class=features_extractor_class, **kwargs
        )
