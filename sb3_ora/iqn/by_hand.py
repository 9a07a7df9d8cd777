"""
What autograd does with an implicit quantile network, written out: for small networks on the CPU, the graph and the modules'
calls take up to a third of a gradient step.
"""

import functools
from collections.abc import Callable, Iterable
from operator import is_
from typing import Any, NamedTuple

import torch as th
from gymnasium import spaces
from stable_baselines3.common.torch_layers import FlattenExtractor
from stable_baselines3.common.type_aliases import PyTorchObs
from torch import nn

from sb3_ora.iqn.networks import EnsembleLinear, ImplicitQuantileNetwork, onednn_product, through_onednn


@functools.cache
def keep_memory() -> None:
    """
    Let glibc keep what large tensors leave behind, rather than give it back to the system and fetch it, page by page, for the
    next ones: it does so for blocks up to the largest that was given back (mallopt(3), M_MMAP_THRESHOLD), here 24 MiB.
    """
    th.empty(24 * 2**18, device="cpu")  # never touched, so it takes no memory itself


# Which networks

_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


class Affine(NamedTuple):
    """Weights of a layer, (K * out, in) and (K * out,). Attributes of modules take much longer."""

    weight: nn.Parameter
    bias: nn.Parameter


class Layers:
    """
    The layers of a network.

    :param net: a network
    """

    def __init__(self, net: ImplicitQuantileNetwork):
        parts = [list(part) for part in _containers(net)]
        containers = [net.trunk, net.embedding, net.shared, net.heads]
        self.extractor: nn.Module = net.features_extractor
        self.modules = [layer for part in parts for layer in part]
        self.activations = [getattr(layer, "activation", None) for layer in self.modules]
        self.parameters = [parameter for layer in self.modules for parameter in layer._parameters.values()]
        extractor_modules = list(self.extractor.modules())
        self.extractor_parts = [module._modules for module in extractor_modules]
        self.extractor_layout = [list(parts.values()) for parts in self.extractor_parts]
        self.extractor_parameters = [module._parameters for module in extractor_modules]
        watched = [net, *extractor_modules, *containers, *self.modules]
        self.attributes = [module.__dict__ for module in watched]
        self.hooks = [module[name] for module in self.attributes for name in _HOOKS]
        self.frequencies = net.frequencies
        #: Whether it is made of layers that this module knows
        self.known = self._are_known(net, parts)
        if self.known:
            self.trunk, (self.embedding,), self.shared, (first, self.last) = [_affine(part) for part in parts]
            self.hidden = [*self.shared, first]
            self.n_heads, self.n_actions = net.n_heads, net.n_actions
            space = net.observation_space
            flat = type(self.extractor) is FlattenExtractor and isinstance(space, spaces.Box) and len(space.shape) == 1
            self.features: Callable[[Any], th.Tensor] = th.Tensor.float if flat else functools.partial(_extract, net)

    def _are_known(self, net: ImplicitQuantileNetwork, parts: list[list[nn.Module]]) -> bool:
        _, embedding, _, heads = parts
        return (
            net.prior_extractor is None
            and not net.independent_heads
            and not any(self.extractor_parameters)
            and all(type(layer) is EnsembleLinear for layer in self.modules)
            and all(parameter is not None for parameter in self.parameters)
            and len(heads) == 2
            and len(embedding) == 1
            and self.activations == [*[th.relu_] * (len(self.modules) - 1), None]
        )

    def are_those_of(self, net: ImplicitQuantileNetwork) -> bool:
        """
        :param net: the network
        :return: whether it still has these layers and weights
        """
        modules = [layer for part in _containers(net) for layer in part]
        if modules != self.modules or net._modules["features_extractor"] is not self.extractor:
            return False
        if [list(parts.values()) for parts in self.extractor_parts] != self.extractor_layout:
            return False
        if net._buffers["frequencies"] is not self.frequencies or (self.known and any(self.extractor_parameters)):
            return False
        parameters = [parameter for layer in modules for parameter in layer._parameters.values()]
        if len(parameters) != len(self.parameters) or not all(map(is_, parameters, self.parameters)):
            return False
        return not self.known or [layer.activation for layer in modules] == self.activations

    def are_plain(self) -> bool:
        """
        :return: whether all weights are trained, in single precision and on the CPU, without hooks, autocast, or functions
            put in the place of ``forward``
        """
        weight = self.parameters[-1]
        return (
            weight.is_cpu
            and weight.dtype == th.float32
            and not any(self.hooks)
            and not any(["forward" in attributes for attributes in self.attributes])
            and all([parameter.requires_grad and not parameter._backward_hooks for parameter in self.parameters])
            and not th.is_autocast_enabled("cpu")
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return type(None), ()  # copies of the network find out for themselves


def _containers(net: ImplicitQuantileNetwork) -> list[Iterable[Any]]:
    """Layers of the trunk, the embedding, the shared part and the heads."""
    modules: Any = net._modules
    return [modules[part]._modules.values() for part in ("trunk", "embedding", "shared", "heads")]


def _affine(layers: Iterable[Any]) -> list[Affine]:
    return [Affine(layer.weight, layer.bias) for layer in layers]


def _extract(net: ImplicitQuantileNetwork, obs: PyTorchObs) -> th.Tensor:
    return net.extract_features(obs, net.features_extractor)


def layers_of(net: ImplicitQuantileNetwork) -> Layers | None:
    """
    :param net: a network
    :return: its layers, if this module can stand for them: ReLU, one hidden layer in each head, no prior, nothing to learn in
        the features extractor, all weights trained, in single precision and on the CPU, no hooks, no autocast; else None
    """
    if type(net) is not ImplicitQuantileNetwork:
        return None
    layers = net.layers_by_hand
    if layers is None or not layers.are_those_of(net):
        layers = net.layers_by_hand = Layers(net)
    return layers if layers.known and layers.are_plain() else None


# Forwards and backwards


class Pass(NamedTuple):
    """What the way back needs of a forward pass. Rows are those of the product: N * B, fractions first."""

    inputs: list[th.Tensor]  # of the trunk's layers, and its output, (B, ...)
    cosines: th.Tensor  # (N * T, C)
    features: th.Tensor  # (1, B / T, T, H)
    embedded: th.Tensor  # (N, 1, T, H)
    products: list[th.Tensor]  # of the shared layers and of the heads' first one, and its output, (N * B, ...)


def quantiles(net: ImplicitQuantileNetwork, obs: PyTorchObs, taus: th.Tensor) -> th.Tensor:
    """
    :param net: a network
    :param obs: observations, (B, ...)
    :param taus: quantile fractions, (T, N) where T divides B: observation b has those of row b modulo T
    :return: quantiles of the return, those of ``net(obs, taus)``, without a gradient, (K, A, N, B)
    """
    layers = layers_of(net)
    with th.no_grad():
        return net(obs, taus).permute(0, 3, 2, 1) if layers is None else evaluate(layers, obs, taus)[0]


def _multiply(x: th.Tensor, y: th.Tensor) -> th.Tensor:
    """The product of two matrices, (M, N) and (N, R), (M, R)."""
    return onednn_product(x, y) if through_onednn(x.numel() * y.shape[1]) else th.mm(x, y)


def _forward(layers: list[Affine], x: th.Tensor) -> list[th.Tensor]:
    """The inputs of all layers, each with its ReLU, and the output of the last, (R, in) to (R, K * out)."""
    values = [x]
    for weight, bias in layers:
        if through_onednn(len(x) * weight.numel()):
            x = th.ops.mkldnn._linear_pointwise.default(x, weight, bias, "relu", [], "")
        else:
            x = nn.functional.linear(x, weight, bias).relu_()
        values.append(x)
    return values


def evaluate(layers: Layers, obs: PyTorchObs, taus: th.Tensor) -> tuple[th.Tensor, Pass]:
    """
    The forward pass, to be called without gradients.

    :param layers: layers of a network
    :param obs: observations, (B, ...)
    :param taus: quantile fractions, (T, N) where T divides B: observation b has those of row b modulo T
    :return: quantiles of the return, those of ``net(obs, taus)``, (K, A, N, B), and what :func:`differentiate` needs
    """
    inputs = _forward(layers.trunk, layers.features(obs))
    n_rows, n = taus.shape
    width = inputs[-1].shape[1]
    features = inputs[-1].view(1, -1, n_rows, width)
    cosines = (taus.T.reshape(-1, 1) * layers.frequencies).cos_()
    embedded = _forward([layers.embedding], cosines)[1].view(n, 1, n_rows, width)
    products = _forward(layers.hidden, (features * embedded).view(-1, width))
    k, a, hidden, (weight, bias) = layers.n_heads, layers.n_actions, products[-1], layers.last
    if k == 1:
        values = th.addmm(bias.unsqueeze(1), weight, hidden.T)  # (A, N * B)
    else:
        by_head = hidden.view(len(hidden), k, -1).permute(1, 2, 0)  # (K, out, N * B)
        values = th.baddbmm(bias.view(k, a, 1), weight.view(k, a, -1), by_head)
    return values.view(k, a, n, -1), Pass(inputs, cosines, features, embedded, products)


def _set_gradients(layer: Affine, grad: th.Tensor, x: th.Tensor) -> None:
    """Gradients of a layer's weights, from that of its output, (R, out), and its input, (R, in)."""
    of_weight = _multiply(x.T, grad).T.contiguous() if grad.shape[1] > 2 * x.shape[1] else _multiply(grad.T, x)
    layer.weight.grad, layer.bias.grad = of_weight, grad.sum(dim=0)


def _backward(layers: list[Affine], values: list[th.Tensor], grad: th.Tensor, of_input: bool) -> th.Tensor:
    """Through layers with ReLU, from the last one's output to the first one's input, if that has a gradient."""
    for i in reversed(range(len(layers))):
        grad = th.ops.aten.threshold_backward.grad_input(grad, values[i + 1], 0, grad_input=grad)  # of ReLU, in place
        _set_gradients(layers[i], grad, values[i])
        if i or of_input:
            grad = _multiply(grad, layers[i].weight)
    return grad


def differentiate(layers: Layers, forward: Pass, grad: th.Tensor) -> None:
    """
    The backward pass, to be called without gradients: sets those of all weights.

    :param layers: layers of a network
    :param forward: what :func:`evaluate` returned, used up by this
    :param grad: derivative of the loss by the quantiles, (K, A, N, B)
    """
    inputs, cosines, features, embedded, products = forward
    hidden, last, k, a = products[-1], layers.last, layers.n_heads, layers.n_actions
    rows = len(hidden)
    if k == 1:
        grad = grad.view(a, rows)
        last.weight.grad, last.bias.grad = th.mm(grad, hidden), grad.sum(dim=1)
        of_hidden = th.mm(grad.T, last.weight)
    else:
        grad = grad.view(k, a, rows)
        of_hidden = th.empty_like(hidden)
        by_head, of_head = (x.view(rows, k, -1).transpose(0, 1) for x in (hidden, of_hidden))  # (K, R, out)
        last.weight.grad, last.bias.grad = th.bmm(grad, by_head).view(k * a, -1), grad.sum(dim=2).view(-1)
        th.bmm(grad.transpose(1, 2), last.weight.view(k, a, -1), out=of_head)
    of_product = _backward(layers.hidden, products, of_hidden, of_input=True).view(len(embedded), *features.shape[1:])
    of_features = (of_product * embedded).sum(dim=0).view(-1, features.shape[3])
    of_embedded = of_product.mul_(features).sum(dim=1).view(len(cosines), -1)
    _backward([layers.embedding], [cosines, embedded.view(len(cosines), -1)], of_embedded, of_input=False)
    if layers.trunk:
        _backward(layers.trunk, inputs, of_features, of_input=False)
