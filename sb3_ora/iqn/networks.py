"""The implicit quantile network, with one head (IQN) or an ensemble of heads on a shared trunk (DRL-ORA)."""

import copy
import functools
import itertools
import math
import platform
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch as th
from gymnasium import spaces
from stable_baselines3.common.policies import BasePolicy
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from stable_baselines3.common.type_aliases import PyTorchObs
from torch import nn
from torch.autograd.function import once_differentiable

#: Multiplications from which on a product of matrices is worth a call of oneDNN, which takes longer to begin
LARGE = 2**21


@functools.cache
def has_faster_products() -> bool:
    """
    :return: whether this processor multiplies large matrices faster through oneDNN than as torch does, through MKL: MKL
        uses AVX-512 on Intel's processors only, oneDNN on AMD's as well
    """
    cpus = Path("/proc/cpuinfo")
    is_amd = "AuthenticAMD" in (cpus.read_text() if cpus.exists() else platform.processor())
    return is_amd and "AVX512" in th.backends.cpu.get_cpu_capability() and hasattr(th.ops.mkldnn, "_linear_pointwise")


def through_onednn(n: int) -> bool:
    """
    :param n: number of multiplications
    :return: whether a product of float32 matrices on the CPU goes through oneDNN
    """
    return n >= LARGE and has_faster_products() and bool(th.backends.mkldnn.enabled)


def onednn_product(first: th.Tensor, second: th.Tensor) -> th.Tensor:
    """The product of two matrices on the CPU, (M, N) and (N, R), through oneDNN, (M, R)."""
    return th.ops.mkldnn._linear_pointwise.default(first, second.T, None, "none", [], "")


class _Affine(th.autograd.Function):
    """W x + b, large and on the CPU. torch has no derivative of oneDNN's products."""

    @staticmethod
    def forward(ctx: Any, weight: th.Tensor, bias: th.Tensor, x: th.Tensor) -> th.Tensor:
        ctx.save_for_backward(weight, x)
        return onednn_product(weight, x).add_(bias.unsqueeze(1))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: th.Tensor) -> tuple[th.Tensor | None, ...]:
        weight, x = ctx.saved_tensors
        grad = grads[0].contiguous()
        of_weight, of_bias, of_x = ctx.needs_input_grad
        return (
            onednn_product(grad, x.T) if of_weight else None,
            grad.sum(dim=1) if of_bias else None,
            onednn_product(weight.T, grad) if of_x else None,
        )


def affine(weight: th.Tensor, bias: th.Tensor, x: th.Tensor) -> th.Tensor:
    """
    :param weight: W, (out, in)
    :param bias: b, (out,)
    :param x: x, (in, R)
    :return: W x + b, (out, R)
    """
    known = x.is_cpu and x.dtype == weight.dtype == th.float32
    if known and through_onednn(weight.numel() * x.shape[1]) and not th.is_autocast_enabled("cpu"):
        return _Affine.apply(weight, bias, x)
    return th.addmm(bias.unsqueeze(1), weight, x)


class EnsembleLinear(nn.Module):
    """
    ``n_heads`` independent linear layers applied side by side. Features come before rows, so that whatever the heads share
    or have to themselves, every product and activation runs over contiguous memory.

    :param n_heads: number of layers K
    :param in_features: width of the input
    :param out_features: width of each output
    :param activation_fn: activation of the output, element by element; None for a linear map
    """

    def __init__(self, n_heads: int, in_features: int, out_features: int, activation_fn: type[nn.Module] | None = None):
        super().__init__()
        self.n_heads, self.in_features, self.out_features = n_heads, in_features, out_features
        self.activation: Callable[[th.Tensor], th.Tensor] | None = None
        if activation_fn is not None:
            self.activation = th.relu_ if activation_fn is nn.ReLU else activation_fn()
        self.weight = nn.Parameter(th.empty(n_heads * out_features, in_features))
        self.bias = nn.Parameter(th.empty(n_heads * out_features))
        bound = 1 / math.sqrt(in_features)  # torch's own default for nn.Linear, drawn for each head
        nn.init.uniform_(self.weight, -bound, bound)
        nn.init.uniform_(self.bias, -bound, bound)

    def forward(self, x: th.Tensor) -> th.Tensor:
        """
        :param x: an input shared by all layers, (in, R), or one for each, (K, in, R)
        :return: (K, out, R), or (out, R) if there is one layer
        """
        if x.ndim == 2:  # one matrix product serves all heads
            y = affine(self.weight, self.bias, x)  # (K * out, R)
        else:
            weight = self.weight.view(self.n_heads, self.out_features, self.in_features)
            y = th.baddbmm(self.bias.view(self.n_heads, -1, 1), weight, x)
        if self.activation is not None:
            y = self.activation(y)
        return y if self.n_heads == 1 else y.view(self.n_heads, self.out_features, -1)


def ensemble_mlp(n_heads: int, widths: list[int], activation_fn: type[nn.Module], activate_last: bool = True) -> nn.Sequential:
    """
    :param n_heads: number of independent networks K; 1 for layers that the heads share
    :param widths: width of the input and of every layer
    :param activation_fn: activation between the layers
    :param activate_last: whether the last layer is followed by the activation too
    :return: a network from (in, R) or (K, in, R) to (K, out, R), or (out, R) if there is one
    """
    activations: list[type[nn.Module] | None] = [activation_fn] * (len(widths) - 1)
    if not activate_last:
        activations[-1] = None
    pairs = zip(itertools.pairwise(widths), activations, strict=True)
    return nn.Sequential(*(EnsembleLinear(n_heads, *widths, activation) for widths, activation in pairs))


class Encoding(NamedTuple):
    """What the network makes of a batch of B observations, whatever the quantile fractions."""

    features: th.Tensor  # (H, B), or (K, H, B) where the heads share nothing
    prior: th.Tensor | None  # (K, B, 1, A)


class ImplicitQuantileNetwork(BasePolicy):
    r"""
    Quantile function of the return for every head, action and fraction:
    :math:`Z^k_\tau(s, a) = f_k(\psi(s) \odot \phi(\tau))_a` with the cosine embedding
    :math:`\phi_j(\tau) = \mathrm{act}(\sum_{i=0}^{n-1} \cos(\pi i \tau) w_{ij} + b_j)`
    (Dabney et al. 2018, equation 4), a trunk :math:`\psi` that the heads share and one :math:`f_k` for each head.

    :param observation_space: Observation space
    :param action_space: Action space
    :param features_extractor: turns observations into features
    :param features_dim: number of features
    :param n_heads: number of heads K
    :param net_arch: widths of the trunk
    :param shared_arch: widths of the layers that the heads share after the product with the embedding
    :param head_arch: widths of the hidden layers that each head has to itself
    :param n_cosines: number of cosines in the embedding of a fraction
    :param activation_fn: activation function
    :param prior_scale: scale of the randomised prior added to each head (Osband et al. 2018); 0 for none
    :param independent_heads: whether each head has a trunk and an embedding of its own too
        (only the features extractor is then shared)
    :param normalize_images: whether to divide images by 255
    """

    action_space: spaces.Discrete

    def __init__(
        self,
        observation_space: spaces.Space,
        action_space: spaces.Discrete,
        features_extractor: BaseFeaturesExtractor,
        features_dim: int,
        n_heads: int,
        net_arch: list[int],
        shared_arch: list[int],
        head_arch: list[int],
        n_cosines: int = 64,
        activation_fn: type[nn.Module] = nn.ReLU,
        prior_scale: float = 0.0,
        independent_heads: bool = False,
        normalize_images: bool = True,
    ):
        super().__init__(
            observation_space, action_space, features_extractor=features_extractor, normalize_images=normalize_images
        )
        self.n_heads, self.n_actions, self.n_cosines = n_heads, int(action_space.n), n_cosines
        self.features_dim, self.prior_scale, self.independent_heads = features_dim, prior_scale, independent_heads
        self.net_arch, self.shared_arch, self.head_arch = net_arch, shared_arch, head_arch
        self.activation_fn = activation_fn
        self._modules_in_order: tuple[nn.Module, ...] | None = None
        self.layers_by_hand: Any = None  # what by_hand.layers_of found out, as that takes longer than to see that it holds

        width = [features_dim, *net_arch][-1]
        trunk, product = [features_dim, *net_arch], [width, *shared_arch]
        n_trunks = n_heads if independent_heads else 1
        self.trunk = ensemble_mlp(n_trunks, trunk, activation_fn)
        self.embedding = ensemble_mlp(n_trunks, [n_cosines, width], activation_fn)
        self.shared = ensemble_mlp(n_trunks, product, activation_fn)
        head = [product[-1], *head_arch, self.n_actions]
        self.heads = ensemble_mlp(n_heads, head, activation_fn, activate_last=False)
        self.frequencies: th.Tensor
        self.register_buffer("frequencies", math.pi * th.arange(n_cosines, dtype=th.float32), persistent=False)

        self.prior_extractor: BaseFeaturesExtractor | None = None
        if prior_scale > 0:
            self.prior_extractor = copy.deepcopy(features_extractor)
            self.prior_heads = ensemble_mlp(n_heads, [*trunk, *head_arch, self.n_actions], activation_fn, activate_last=False)
            for module in (self.prior_extractor, self.prior_heads):
                module.requires_grad_(False)
                module.eval()

    def encode(self, obs: PyTorchObs) -> Encoding:
        """
        :param obs: observations, (B, ...)
        :return: their features and, where there is one, the heads' randomised prior
        """
        features = self.trunk(self.extract_features(obs, self.features_extractor).T)  # (H, B) or (K, H, B)
        if self.prior_extractor is None:
            return Encoding(features, None)
        with th.no_grad():
            prior = self.prior_heads(self.extract_features(obs, self.prior_extractor).T)  # (K, A, B) or (A, B)
        prior = prior.view(self.n_heads, self.n_actions, -1, 1).permute(0, 2, 3, 1)  # (K, B, 1, A)
        return Encoding(features, self.prior_scale * prior)

    def quantiles(self, encoding: Encoding, taus: th.Tensor) -> th.Tensor:
        """
        :param encoding: what :meth:`encode` returned for B observations
        :param taus: quantile fractions, (T, N) where T divides B: observation b has those of row b modulo T
        :return: quantiles of the return, (K, B, N, A)
        """
        # Fractions come before observations: the long dimension is the last one, where products and sums are fast
        cosines = th.cos(self.frequencies.unsqueeze(1) * taus.T.flatten())  # (C, N * T)
        embedded = self.embedding(cosines)  # ([K], H, N * T)
        embedded = embedded.unflatten(-1, (taus.shape[1], 1, -1))  # ([K], H, N, 1, T)
        features = encoding.features.unflatten(-1, (1, -1, len(taus)))  # ([K], H, 1, B / T, T)
        product = (features * embedded).flatten(-3)  # ([K], H, N * B)
        values = self.heads(self.shared(product))  # ([K], A, N * B)
        quantiles = values.view(self.n_heads, self.n_actions, taus.shape[1], -1).permute(0, 3, 2, 1)
        return quantiles if encoding.prior is None else quantiles + encoding.prior

    def forward(self, obs: PyTorchObs, taus: th.Tensor) -> th.Tensor:
        """
        :param obs: observations, (B, ...)
        :param taus: quantile fractions, (T, N) where T divides B: observation b has those of row b modulo T
        :return: quantiles of the return, (K, B, N, A)
        """
        return self.quantiles(self.encode(obs), taus)

    def _predict(self, observation: PyTorchObs, deterministic: bool = True) -> th.Tensor:
        taus = (th.arange(32, device=self.device, dtype=th.float32).unsqueeze(0) + 0.5) / 32
        return self(observation, taus).mean(dim=(0, 2)).argmax(dim=1)

    def set_training_mode(self, mode: bool) -> None:
        """
        What ``train(mode)`` does, in a tenth of the time, as it is called twice in every step: the modules are listed at the
        first call after ``train`` or ``eval``.

        :param mode: if true, set to training mode, else set to evaluation mode
        """
        if self._modules_in_order is None:
            prior = {id(module) for part in self._prior() for module in part.modules()}
            self._modules_in_order = tuple(module for module in self.modules() if id(module) not in prior)
        known = (nn.Module.train, ImplicitQuantileNetwork.train)
        if any(type(module).train not in known for module in self._modules_in_order):
            self.train(mode)  # as where an extractor keeps its batch normalisation frozen
            return
        for module in self._modules_in_order:
            module.__dict__["training"] = mode  # past Module.__setattr__, which looks for parameters first

    def _prior(self) -> list[nn.Module]:
        return [] if self.prior_extractor is None else [self.prior_extractor, self.prior_heads]

    def train(self, mode: bool = True) -> "ImplicitQuantileNetwork":
        """
        As in torch, but for the randomised prior, which stays in evaluation mode: its batch norm must not follow the data.

        :param mode: whether to set training mode (``True``) or evaluation mode (``False``)
        :return: the network
        """
        super().train(mode)
        self._modules_in_order = None  # some may have been exchanged
        for module in self._prior():
            module.eval()
        return self

    def _get_constructor_parameters(self) -> dict[str, Any]:
        data = super()._get_constructor_parameters()
        names = "features_extractor features_dim n_heads net_arch shared_arch head_arch n_cosines activation_fn"
        for name in [*names.split(), "prior_scale", "independent_heads"]:
            data[name] = getattr(self, name)
        return data
