"""
What autograd does with an implicit quantile network, written out: for small networks on the CPU, the graph and the modules'
calls take up to a third of a gradient step.
"""

import functools
from typing import Any, NamedTuple

import torch as th
from stable_baselines3.common.type_aliases import PyTorchObs
from torch import nn

from sb3_ora.iqn.networks import EnsembleLinear, ImplicitQuantileNetwork, onednn_product, through_onednn

Layers = list[EnsembleLinear]


class Pass(NamedTuple):
    """What the way back needs of a forward pass. Rows are those of the product: N * B, fractions first."""

    inputs: list[th.Tensor]  # of the trunk's layers, and its output, (B, ...)
    cosines: th.Tensor  # (N * T, C)
    features: th.Tensor  # (1, B / T, T, H)
    embedded: th.Tensor  # (N, 1, T, H)
    products: list[th.Tensor]  # of the shared layers and of the heads' first one, and its output, (N * B, ...)


@functools.cache
def keep_memory() -> None:
    """
    Let glibc keep what large tensors leave behind, rather than give it back to the system and fetch it, page by page, for the
    next ones: it does so for blocks up to the largest that was given back (mallopt(3), M_MMAP_THRESHOLD), here 24 MiB.
    """
    th.empty(24 * 2**18, device="cpu")  # never touched, so it takes no memory itself


def quantiles(net: ImplicitQuantileNetwork, obs: PyTorchObs, taus: th.Tensor) -> th.Tensor:
    """
    :param net: a network
    :param obs: observations, (B, ...)
    :param taus: quantile fractions, (T, N) where T divides B: observation b has those of row b modulo T
    :return: quantiles of the return, (K, B, N, A), as ``net(obs, taus)``, without a gradient where this is faster
    """
    return evaluate(net, obs, taus)[0] if suits(net) else net(obs, taus)


def suits(net: ImplicitQuantileNetwork) -> bool:
    """
    :param net: a network
    :return: whether it is made of the layers that this module knows, all trained, without hooks or autocast, on the CPU:
        ReLU, one hidden layer in each head, no prior, nothing to learn in the features extractor
    """
    layers = layers_of(net)
    return (
        layers is not None
        and not th.is_autocast_enabled("cpu")
        and all(_is_plain(layer) for part in layers for layer in part)
        and not ("forward" in net.__dict__ or net._forward_hooks or net._forward_pre_hooks)
    )


def _is_plain(layer: nn.Module) -> bool:
    if type(layer) is not EnsembleLinear or "forward" in layer.__dict__ or layer._forward_hooks or layer._forward_pre_hooks:
        return False
    weight, bias = layer._parameters.get("weight"), layer._parameters.get("bias")  # Module.__getattr__ takes longer
    if weight is None or bias is None:
        return False
    plain = weight.requires_grad and bias.requires_grad and weight.is_cpu and weight.dtype == bias.dtype == th.float32
    return plain and not (layer._backward_hooks or weight._backward_hooks or bias._backward_hooks)


def _parts(net: ImplicitQuantileNetwork) -> Any:
    """Layers of the trunk, the embedding, the shared part and the heads."""
    modules: Any = net._modules  # past Module.__getattr__, which takes longer
    return tuple(list(modules[part]._modules.values()) for part in ("trunk", "embedding", "shared", "heads"))


def layers_of(net: ImplicitQuantileNetwork) -> tuple[Layers, Layers, Layers, Layers] | None:
    """
    :param net: a network
    :return: the layers of its trunk, embedding, shared part and heads; None if it has others, or is not the plain network
    """
    if net.prior_extractor is not None or net.independent_heads or type(net) is not ImplicitQuantileNetwork:
        return None
    parts = trunk, embedding, shared, heads = _parts(net)
    hidden = [*trunk, *embedding, *shared, *heads[:-1]]
    known = len(heads) == 2 and len(embedding) == 1 and all(getattr(x, "activation", None) is th.relu_ for x in hidden)
    if not known or getattr(heads[-1], "activation", th.relu_) is not None:
        return None
    return None if next(net.features_extractor.parameters(), None) is not None else parts


def _multiply(x: th.Tensor, y: th.Tensor) -> th.Tensor:
    """The product of two matrices, (M, N) and (N, R), (M, R)."""
    return onednn_product(x, y) if through_onednn(x.numel() * y.shape[1]) else th.mm(x, y)


def _hidden(layer: EnsembleLinear, x: th.Tensor) -> th.Tensor:
    """A layer and its ReLU, (R, in) to (R, K * out)."""
    if through_onednn(len(x) * layer.weight.numel()):
        return th.ops.mkldnn._linear_pointwise.default(x, layer.weight, layer.bias, "relu", [], "")
    return th.addmm(layer.bias, x, layer.weight.T).relu_()


def _chain(layers: Layers, x: th.Tensor) -> list[th.Tensor]:
    """The inputs of all layers and the output of the last."""
    values = [x]
    for layer in layers:
        values.append(_hidden(layer, values[-1]))
    return values


@th.no_grad()
def evaluate(net: ImplicitQuantileNetwork, obs: PyTorchObs, taus: th.Tensor) -> tuple[th.Tensor, Pass]:
    """
    :param net: a network that :func:`suits`
    :param obs: observations, (B, ...)
    :param taus: quantile fractions, (T, N) where T divides B: observation b has those of row b modulo T
    :return: quantiles of the return, (K, B, N, A), as ``net(obs, taus)``, and what :func:`differentiate` needs
    """
    trunk, (embedding,), shared, (first, last) = _parts(net)
    inputs = _chain(trunk, net.extract_features(obs, net.features_extractor))
    n_rows, n = taus.shape
    features = inputs[-1].view(1, -1, n_rows, inputs[-1].shape[1])
    cosines = th.cos(taus.T.reshape(-1, 1) * net.frequencies)
    embedded = _hidden(embedding, cosines).view(n, 1, n_rows, -1)
    products = _chain([*shared, first], (features * embedded).view(-1, inputs[-1].shape[1]))
    k, a = net.n_heads, net.n_actions
    if k == 1:
        values = th.addmm(last.bias.unsqueeze(1), last.weight, products[-1].T)  # (A, N * B)
    else:
        hidden = products[-1].view(len(products[-1]), k, -1).permute(1, 2, 0)  # (K, out, N * B)
        values = th.baddbmm(last.bias.view(k, a, 1), last.weight.view(k, a, -1), hidden)
    return values.view(k, a, n, -1).permute(0, 3, 2, 1), Pass(inputs, cosines, features, embedded, products)


def _through_relu(grad: th.Tensor, output: th.Tensor) -> th.Tensor:
    """The gradient before a ReLU, in place."""
    return th.ops.aten.threshold_backward.grad_input(grad, output, 0, grad_input=grad)


def _parameters(layer: EnsembleLinear, grad: th.Tensor, x: th.Tensor) -> None:
    """Gradients of a layer's weights, from that of its output, (R, out), and its input, (R, in)."""
    layer.weight.grad = _multiply(x.T, grad).T.contiguous() if grad.shape[1] > 2 * x.shape[1] else _multiply(grad.T, x)
    layer.bias.grad = grad.sum(dim=0)


def _back(layers: Layers, values: list[th.Tensor], grad: th.Tensor, of_input: bool) -> th.Tensor:
    """Through layers with ReLU, from the last one's output to the first one's input, if that has a gradient."""
    for i in reversed(range(len(layers))):
        grad = _through_relu(grad, values[i + 1])
        _parameters(layers[i], grad, values[i])
        if i or of_input:
            grad = _multiply(grad, layers[i].weight)
    return grad


@th.no_grad()
def differentiate(net: ImplicitQuantileNetwork, forward: Pass, grad: th.Tensor) -> None:
    """
    Set the gradients of all weights.

    :param net: the network of :func:`evaluate`
    :param forward: what that returned, used up by this
    :param grad: derivative of the loss by the quantiles, (K, A, N, B)
    """
    trunk, (embedding,), shared, (first, last) = _parts(net)
    inputs, cosines, features, embedded, products = forward
    hidden, k, a = products[-1], net.n_heads, net.n_actions
    rows = len(hidden)
    grad = grad.reshape(k, a, rows)
    weight, heads = last.weight.view(k, a, -1), hidden.view(rows, k, -1).transpose(0, 1)  # (K, A, out), (K, R, out)
    of_hidden = th.empty_like(hidden)
    th.bmm(grad.transpose(1, 2), weight, out=of_hidden.view(rows, k, -1).transpose(0, 1))
    last.weight.grad = th.bmm(grad, heads).view(k * a, -1)
    last.bias.grad = grad.sum(dim=2).view(-1)
    of_product = _back([*shared, first], products, of_hidden, of_input=True).view(len(embedded), *features.shape[1:])
    of_features = (of_product * embedded).sum(dim=0).flatten(0, 1)
    of_embedded = of_product.mul_(features).sum(dim=1).flatten(0, 1)
    _back([embedding], [cosines, embedded.flatten(0, 2)], of_embedded, of_input=False)
    if trunk:
        _back(trunk, inputs, of_features, of_input=False)
