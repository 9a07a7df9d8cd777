"""The update without autograd against autograd, for every network and loss that takes it, and who does not take it."""

import copy
import gc
import itertools
import pickle
import weakref

import pytest
import torch as th
from gymnasium import spaces
from torch import nn

from sb3_ora import ARTIQN, IQN, ORAIQN
from sb3_ora.iqn import by_hand, networks
from sb3_ora.iqn.networks import ImplicitQuantileNetwork
from tests.iqn.test_networks import make_net
from tests.tiny import tiny
from tests.toy_envs import AnySpace, Chain

NETWORKS = list(itertools.product([1, 3], [[], [6], [6, 4]], [[], [7]]))


@pytest.fixture(params=[False, True], ids=["MKL", "oneDNN"])
def products(request, monkeypatch):
    """Both ways to multiply, however small the matrices are."""
    if request.param:
        if not hasattr(th.ops.mkldnn, "_linear_pointwise"):
            pytest.skip("torch is built without oneDNN")
        monkeypatch.setattr(networks, "LARGE", 0)
        monkeypatch.setattr(networks, "has_faster_products", lambda: True)


def gradients(net, slopes, obs, taus):
    (net(obs, taus).permute(0, 3, 2, 1) * slopes).sum().backward()  # (K, A, N, B)
    return [parameter.grad.clone() for parameter in net.parameters()]


@pytest.mark.usefixtures("products")
@pytest.mark.parametrize("n_rows", [2, 8])
@pytest.mark.parametrize(("n_heads", "net_arch", "shared_arch"), NETWORKS)
def test_quantiles_and_gradients_are_those_of_autograd(n_heads, net_arch, shared_arch, n_rows):
    net = make_net(n_heads, net_arch, shared_arch)
    obs, taus, slopes = th.randn(8, 5), th.rand(n_rows, 4), th.randn(n_heads, 3, 4, 8)
    expected, wanted = net(obs, taus).detach(), gradients(net, slopes, obs, taus)
    for parameter in net.parameters():
        parameter.grad = None
    layers = by_hand.layers_of(net)
    with th.no_grad():
        found, forward = by_hand.evaluate(layers, obs, taus)
        th.testing.assert_close(found.permute(0, 3, 2, 1), expected, rtol=1e-5, atol=1e-6)
        by_hand.differentiate(layers, forward, slopes)
    for parameter, gradient in zip(net.parameters(), wanted, strict=True):
        assert parameter.grad.is_contiguous()
        th.testing.assert_close(parameter.grad, gradient, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("options", [{}, {"double_q": True}, {"policy_kwargs": {"bootstrap_p": 0.5}}, {"max_grad_norm": 0.1}])
@pytest.mark.parametrize("algorithm", [IQN, ORAIQN, ARTIQN])
def test_a_training_is_the_same_with_autograd(algorithm, options, monkeypatch):
    """After 60 updates, over which differences in rounding may grow."""
    weights, counts, differentiate = [], [], by_hand.differentiate
    monkeypatch.setattr(by_hand, "differentiate", lambda *args: (counts.append(len(weights)), differentiate(*args)))
    for layers_of in (by_hand.layers_of, lambda net: None):
        monkeypatch.setattr(by_hand, "layers_of", layers_of)
        model = tiny(algorithm, Chain(), train_freq=1, **options).learn(80)
        weights.append(th.cat([parameter.detach().flatten() for parameter in model.quantile_net.parameters()]))
    th.testing.assert_close(*weights, rtol=1e-3, atol=1e-4)
    assert set(counts) == {0}  # the first training alone was by hand


def used(model, monkeypatch):
    """Whether an update of the model is by hand."""
    calls, original = [], by_hand.differentiate
    monkeypatch.setattr(by_hand, "differentiate", lambda *args: (calls.append(None), original(*args)))
    model.learn(24)
    return bool(calls)


def test_small_networks_are_updated_by_hand(monkeypatch):
    assert used(tiny(IQN, Chain(), train_freq=1), monkeypatch)


@pytest.mark.parametrize(
    "network",
    [
        {"activation_fn": nn.Tanh},
        {"prior_scale": 1.0},
        {"independent_heads": True},
        {"head_arch": []},
        {"head_arch": [4, 4]},
    ],
)
def test_other_networks_are_not(network, monkeypatch):
    assert not used(tiny(ORAIQN, Chain(), train_freq=1, policy_kwargs=network), monkeypatch)


@pytest.mark.parametrize("frozen", ["trunk.0.weight", "heads.1.bias"])
def test_frozen_weights_stay(frozen):
    model = tiny(IQN, Chain(), train_freq=1)
    parameter = model.quantile_net.get_parameter(frozen)
    parameter.requires_grad_(False)
    before = parameter.clone()
    model.learn(40)
    assert th.equal(parameter, before)


def test_hooks_and_networks_of_ones_own_are_called():
    net, obs, taus, calls = make_net(), th.randn(8, 5), th.rand(8, 4), []
    handle = net.heads[0].register_forward_hook(lambda *args: calls.append(args))
    assert by_hand.layers_of(net) is None
    by_hand.quantiles(net, obs, taus)
    assert len(calls) == 1
    handle.remove()
    assert by_hand.layers_of(net) is not None

    class Own(ImplicitQuantileNetwork):
        pass

    net.__class__ = Own
    assert by_hand.layers_of(net) is None


def exchange_layer(net):
    net.heads[0] = copy.deepcopy(net.heads[0])


def exchange_weights(net):
    net.trunk[0].weight = nn.Parameter(th.randn_like(net.trunk[0].weight))


def exchange_values(net):
    net.trunk[0].weight.data = th.randn_like(net.trunk[0].weight)


@pytest.mark.parametrize("exchange", [exchange_layer, exchange_weights, exchange_values])
def test_what_was_exchanged_is_used(exchange):
    net, obs, taus = make_net(), th.randn(8, 5), th.rand(8, 4)
    by_hand.quantiles(net, obs, taus)
    exchange(net)
    layers = by_hand.layers_of(net)
    with th.no_grad():
        quantiles, forward = by_hand.evaluate(layers, obs, taus)
        by_hand.differentiate(layers, forward, th.ones_like(quantiles))
    th.testing.assert_close(quantiles.permute(0, 3, 2, 1), net(obs, taus))
    assert all(parameter.grad is not None for parameter in net.parameters())


def own_forward(net):
    net.trunk[0].forward = lambda x: x


def another_activation(net):
    net.trunk[0].activation = th.tanh


def another_extractor(net):
    net.features_extractor = nn.Sequential(nn.Flatten(), nn.Linear(5, 5))


def double_precision(net):
    net.double()


def hook_on_a_gradient(net):
    net.embedding[0].bias.register_hook(lambda grad: grad)


def hook_before_the_backward_pass(net):
    net.embedding[0].register_full_backward_pre_hook(lambda module, grad: None)


def hook_on_the_extractor(net):
    net.features_extractor.flatten.register_forward_hook(lambda module, args, output: None)


def hook_on_all_heads(net):
    net.heads.register_forward_hook(lambda module, args, output: None)


def layer_in_the_extractor(net):
    net.features_extractor.flatten = nn.Sequential(nn.Flatten(), nn.Linear(5, 5))


def weights_of_the_extractor(net):
    net.features_extractor.flatten.scale = nn.Parameter(th.ones(()))


def layer_without_bias(net):
    net.heads[1].bias = None


EXTRACTORS = [another_extractor, layer_in_the_extractor, weights_of_the_extractor]
CHANGES = [own_forward, another_activation, double_precision, layer_without_bias]
HOOKS = [hook_on_all_heads, hook_on_a_gradient, hook_before_the_backward_pass, hook_on_the_extractor]


@pytest.mark.parametrize("change", [*EXTRACTORS, *CHANGES, *HOOKS])
def test_what_changes_in_between_is_seen(change):
    net = make_net()
    assert by_hand.layers_of(net) is not None
    change(net)
    assert by_hand.layers_of(net) is None


SPACES = [spaces.Box(-1, 1, (3,)), spaces.Discrete(4), spaces.Dict({"a": spaces.Box(-1, 1, (3,))})]


@pytest.mark.parametrize("space", SPACES)
def test_networks_are_not_kept(space, monkeypatch):
    model = tiny(IQN, AnySpace(space), "MultiInputPolicy" if isinstance(space, spaces.Dict) else "MlpPolicy", train_freq=1)
    with monkeypatch.context() as patch:
        assert used(model, patch)
    kept = weakref.ref(model.quantile_net)
    del model
    gc.collect()
    assert kept() is None


def test_copies_have_layers_of_their_own():
    net, obs, taus = make_net(), th.randn(8, 5), th.rand(8, 4)
    by_hand.layers_of(net)
    twin, loaded = copy.deepcopy(net), pickle.loads(pickle.dumps(net))
    for other in (twin, loaded):
        own_forward(other)
        assert by_hand.layers_of(other) is None
        del other.trunk[0].forward
        assert by_hand.layers_of(other).last.weight is other.heads[1].weight
        with th.no_grad():
            other.heads[1].bias.add_(1.0)
        th.testing.assert_close(by_hand.quantiles(other, obs, taus), by_hand.quantiles(net, obs, taus) + 1)


def test_weights_that_are_computed_are_left_to_autograd():
    model = tiny(IQN, Chain(), train_freq=1)
    layer = model.quantile_net.heads[0]
    nn.utils.parametrizations.weight_norm(layer)
    assert by_hand.layers_of(model.quantile_net) is None


@pytest.mark.parametrize("double_q", [False, True])
def test_autocast_is_left_to_torch(double_q, monkeypatch):
    model = tiny(ORAIQN, Chain(), double_q=double_q).learn(40)
    before = model.quantile_net.trunk[0].weight.clone()
    with th.autocast("cpu", dtype=th.bfloat16):
        assert by_hand.layers_of(model.quantile_net) is None
        model.train(3, 8)
    assert not th.equal(model.quantile_net.trunk[0].weight, before)


def test_single_precision_again():
    net, obs, taus = make_net(), th.randn(8, 5), th.rand(8, 4)
    expected = net(obs, taus).detach()
    net.double()
    assert by_hand.layers_of(net) is None
    net.float()
    assert by_hand.layers_of(net) is not None
    th.testing.assert_close(by_hand.quantiles(net, obs, taus).permute(0, 3, 2, 1), expected)


def test_images_are_left_to_autograd(monkeypatch):
    """Their features extractor learns too."""
    env = AnySpace(spaces.Box(0, 255, (3, 36, 36), "uint8"), spaces.Discrete(2))
    assert not used(tiny(IQN, env, "CnnPolicy", train_freq=1), monkeypatch)
