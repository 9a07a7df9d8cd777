"""The batched network against single networks made of its slices."""

import itertools

import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from stable_baselines3.common.torch_layers import FlattenExtractor

from sb3_ora.iqn import networks
from sb3_ora.iqn.networks import ImplicitQuantileNetwork, affine, has_faster_products

OBSERVATION, ACTION = spaces.Box(-1, 1, (5,)), spaces.Discrete(3)
ARCHITECTURES = list(itertools.product([[], [6], [6, 4]], [[], [7]], [[], [8], [8, 9]]))


def make_net(n_heads=3, net_arch=(6,), shared_arch=(), head_arch=(8,), seed=0, **kwargs):
    th.manual_seed(seed)
    arch = {"net_arch": list(net_arch), "shared_arch": list(shared_arch), "head_arch": list(head_arch)}
    extractor = FlattenExtractor(OBSERVATION)
    return ImplicitQuantileNetwork(OBSERVATION, ACTION, extractor, 5, n_heads, n_cosines=10, **arch, **kwargs)


def layers(module, head):
    """Weights and biases of one head's layers, whether they are shared or not."""
    found = []
    for layer in module:
        if hasattr(layer, "weight"):
            k = head % layer.n_heads
            rows = slice(k * layer.out_features, (k + 1) * layer.out_features)
            found.append((layer.weight[rows].detach().numpy(), layer.bias[rows].detach().numpy()))
    return found


def relu_layers(x, weights):
    for weight, bias in weights:
        x = np.maximum(weight @ x + bias, 0)
    return x


def single(net, head, obs, tau):
    """One head, one observation, one fraction, after Dabney et al. (2018), section 3."""
    features = relu_layers(obs, layers(net.trunk, head))
    cosines = np.cos(np.pi * np.arange(10) * tau)
    product = features * relu_layers(cosines, layers(net.embedding, head))
    *hidden, (weight, bias) = layers(net.heads, head)
    value = weight @ relu_layers(relu_layers(product, layers(net.shared, head)), hidden) + bias
    if net.prior_scale:
        *hidden, (weight, bias) = layers(net.prior_heads, head)
        value = value + net.prior_scale * (weight @ relu_layers(obs, hidden) + bias)
    return value


@pytest.mark.parametrize("prior_scale", [0.0, 2.5])
@pytest.mark.parametrize("independent_heads", [False, True])
@pytest.mark.parametrize(("net_arch", "shared_arch", "head_arch"), ARCHITECTURES)
def test_one_batched_pass_is_many_single_networks(net_arch, shared_arch, head_arch, independent_heads, prior_scale):
    options = {"independent_heads": independent_heads, "prior_scale": prior_scale}
    net = make_net(3, net_arch, shared_arch, head_arch, **options)
    obs, taus = th.randn(2, 5), th.rand(2, 4)
    quantiles = net(obs, taus).detach().numpy()
    assert quantiles.shape == (3, 2, 4, 3)
    for k, b, n in itertools.product(range(3), range(2), range(4)):
        expected = single(net, k, obs[b].numpy(), taus[b, n].item())
        np.testing.assert_allclose(quantiles[k, b, n], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("independent_heads", [False, True])
def test_one_row_of_fractions_serves_all_observations(independent_heads):
    net = make_net(independent_heads=independent_heads)
    obs, taus = th.randn(6, 5), th.rand(1, 4)
    th.testing.assert_close(net(obs, taus), net(obs, taus.expand(6, -1).contiguous()))


def test_observations_and_fractions_do_not_mix():
    net = make_net()
    obs, taus = th.randn(4, 5), th.rand(4, 3)
    before = net(obs, taus)
    obs[1], taus[2] = 0.0, 0.5
    changed = (net(obs, taus) != before).flatten(2).any(dim=2).any(dim=0)
    assert changed.tolist() == [False, True, True, False]


@pytest.mark.parametrize("independent_heads", [False, True])
def test_a_heads_loss_reaches_its_own_parameters_only(independent_heads):
    net = make_net(independent_heads=independent_heads, shared_arch=[7], head_arch=[8, 9])
    net(th.randn(4, 5), th.rand(4, 3))[1].square().mean().backward()
    own = [*net.heads, *net.trunk, *net.embedding, *net.shared] if independent_heads else net.heads
    for layer in own:
        if hasattr(layer, "weight"):
            touched = layer.weight.grad.view(3, -1).abs().sum(dim=1) > 0
            assert touched.tolist() == [False, True, False]
    assert all(parameter.grad.abs().sum() > 0 for parameter in net.trunk.parameters())


def test_heads_start_apart():
    values = make_net(n_heads=5)(th.randn(16, 5), th.rand(1, 8)).mean(dim=2)  # (K, B, A)
    assert (values.std(dim=0) > 1e-3).all()


def test_the_prior_does_not_train():
    net = make_net(prior_scale=3.0)
    prior = [*net.prior_heads.parameters(), *net.prior_extractor.parameters()]
    assert prior and not any(parameter.requires_grad for parameter in prior)
    net(th.randn(4, 5), th.rand(4, 3)).sum().backward()
    assert all(parameter.grad is None for parameter in prior)


@pytest.mark.parametrize("prior_scale", [0.0, 1.0])
@pytest.mark.parametrize("independent_heads", [False, True])
def test_number_of_parameters(independent_heads, prior_scale):
    """F features 5, C cosines 10, trunk 6, shared 7, heads 8, 9, A 3; priors have the widths of trunk and heads."""
    body = (5 * 6 + 6) + (10 * 6 + 6) + (6 * 7 + 7)
    head = (7 * 8 + 8) + (8 * 9 + 9) + (9 * 3 + 3)
    prior = (5 * 6 + 6) + (6 * 8 + 8) + (8 * 9 + 9) + (9 * 3 + 3)
    net = make_net(4, [6], [7], [8, 9], independent_heads=independent_heads, prior_scale=prior_scale)
    expected = 4 * (body + head) if independent_heads else body + 4 * head
    expected += 4 * prior if prior_scale else 0
    assert sum(parameter.numel() for parameter in net.parameters()) == expected


def test_initial_bounds_are_those_of_single_linear_layers():
    """torch draws weights and biases from [-1/sqrt(fan in), 1/sqrt(fan in)]; of 10^4 draws one comes within 1 %."""
    layer = make_net(n_heads=200, head_arch=[50]).heads[0]
    for parameter in (layer.weight, layer.bias):
        bound = 1 / np.sqrt(layer.in_features)
        assert parameter.abs().max() <= bound
        assert parameter.abs().max() > 0.99 * bound


def test_predict_of_the_network_alone():
    """The greedy action of the mean over heads and fractions."""
    net = make_net()
    obs = np.random.default_rng(0).normal(size=(6, 5)).astype(np.float32)
    taus = [(i + 0.5) / 32 for i in range(32)]
    expected = [np.mean([single(net, k, row, tau) for k in range(3) for tau in taus], axis=0).argmax() for row in obs]
    assert net.predict(obs)[0].tolist() == expected


@pytest.mark.parametrize("activation_fn", [th.nn.ReLU, th.nn.Tanh])
@pytest.mark.parametrize("n_heads", [1, 3])
def test_gradients_are_those_of_finite_differences(n_heads, activation_fn, monkeypatch):
    net = make_net(n_heads, shared_arch=(4,), head_arch=(4, 3), activation_fn=activation_fn).double()
    monkeypatch.setattr(net, "extract_features", lambda obs, _: obs)  # which would make them single precision
    obs, taus = th.randn(4, 5).double(), th.rand(2, 3).double()
    names, parameters = zip(*net.named_parameters(), strict=True)

    def taken(*parameters):
        quantiles = th.func.functional_call(net, dict(zip(names, parameters, strict=True)), (obs, taus))
        return quantiles[:, range(4), :, [0, 2, 1, 2]]

    assert th.autograd.gradcheck(taken, parameters)


# Products through oneDNN

ONEDNN = th.backends.mkldnn.is_available() and hasattr(th.ops.mkldnn, "_linear_pointwise")
SHAPES = [(1, 1, 1), (7, 5, 3), (64, 33, 130), (320, 128, 512)]


@pytest.fixture
def through_onednn(monkeypatch):
    """Every product goes through oneDNN, however small and on whatever processor."""
    if not ONEDNN:
        pytest.skip("torch is built without oneDNN's products")
    monkeypatch.setattr(networks, "LARGE", 0)
    monkeypatch.setattr(networks, "has_faster_products", lambda: True)


def operands(n_out, n_in, n_rows, layout):
    rng = np.random.default_rng(n_out)
    weight, bias, x = rng.normal(size=(n_out, n_in)), rng.normal(size=n_out), rng.normal(size=(n_in, n_rows))
    tensors = [th.tensor(array, dtype=th.float32) for array in (weight, bias, x)]
    if layout == "transposed":
        tensors[2] = tensors[2].T.contiguous().T
    return (weight, bias, x), [tensor.requires_grad_() for tensor in tensors]


@pytest.mark.parametrize("layout", ["contiguous", "transposed"])
@pytest.mark.parametrize("shape", SHAPES)
def test_products_through_onednn_and_their_gradients_are_those_of_numpy(through_onednn, shape, layout):
    (weight, bias, x), tensors = operands(*shape, layout)
    y = affine(*tensors)
    assert "Affine" in y.grad_fn.name()
    np.testing.assert_allclose(y.detach(), weight @ x + bias[:, None], rtol=1e-5, atol=1e-4)
    upstream = np.random.default_rng(0).normal(size=y.shape)
    y.backward(th.tensor(upstream, dtype=th.float32))
    for tensor, expected in zip(tensors, (upstream @ x.T, upstream.sum(axis=1), weight.T @ upstream), strict=True):
        np.testing.assert_allclose(tensor.grad, expected, rtol=1e-5, atol=1e-3)


@pytest.mark.parametrize("wanted", list(itertools.product([False, True], repeat=3)))
def test_only_the_gradients_that_are_asked_for_are_made(through_onednn, wanted):
    _, tensors = operands(7, 5, 3, "contiguous")
    for tensor, flag in zip(tensors, wanted, strict=True):
        tensor.requires_grad_(flag)
    y = affine(*tensors)
    assert y.requires_grad == any(wanted)
    if any(wanted):
        y.sum().backward()  # whose gradient is one number, expanded
        plain = [tensor.detach().clone().requires_grad_(flag) for tensor, flag in zip(tensors, wanted, strict=True)]
        (plain[0] @ plain[2] + plain[1].unsqueeze(1)).sum().backward()
        for tensor, other in zip(tensors, plain, strict=True):
            assert (tensor.grad is None) == (other.grad is None)
            if other.grad is not None:
                th.testing.assert_close(tensor.grad, other.grad)


def test_small_products_other_numbers_autocast_and_a_switched_off_onednn_go_as_in_torch(monkeypatch):
    monkeypatch.setattr(networks, "has_faster_products", lambda: True)
    _, tensors = operands(7, 5, 3, "contiguous")
    assert "Addmm" in affine(*tensors).grad_fn.name()
    monkeypatch.setattr(networks, "LARGE", 7 * 5 * 3)
    assert "Affine" in affine(*tensors).grad_fn.name() or not ONEDNN
    assert "Addmm" in affine(*(tensor.double() for tensor in tensors)).grad_fn.name()
    with th.autocast("cpu", th.bfloat16):
        assert affine(*tensors).dtype == th.bfloat16
    monkeypatch.setattr(th.backends.mkldnn, "enabled", False)
    assert "Addmm" in affine(*tensors).grad_fn.name()


@pytest.mark.parametrize(
    ("cpuinfo", "capability", "expected"),
    [
        ("vendor_id : AuthenticAMD", "AVX512", True),
        ("vendor_id : AuthenticAMD", "AVX2", False),
        ("vendor_id : GenuineIntel", "AVX512", False),
    ],
)
def test_onednn_is_for_processors_that_mkl_does_not_use_fully(monkeypatch, cpuinfo, capability, expected):
    monkeypatch.setattr(networks.Path, "exists", lambda path: True)
    monkeypatch.setattr(networks.Path, "read_text", lambda path: cpuinfo)
    monkeypatch.setattr(th.backends.cpu, "get_cpu_capability", lambda: capability)
    assert has_faster_products.__wrapped__() == (expected and ONEDNN)


@pytest.mark.parametrize("independent_heads", [False, True])
def test_a_network_is_the_same_through_onednn(through_onednn, monkeypatch, independent_heads):
    net = make_net(3, [16, 16], [12], [8, 9], independent_heads=independent_heads)
    obs, taus = th.randn(8, 5), th.rand(4, 6)
    quantiles = net(obs, taus)
    monkeypatch.setattr(networks, "has_faster_products", lambda: False)
    expected = net(obs, taus)
    gradients = th.autograd.grad(expected.square().sum(), list(net.parameters()))
    th.testing.assert_close(quantiles, expected)
    for mine, plain in zip(th.autograd.grad(quantiles.square().sum(), list(net.parameters())), gradients, strict=True):
        th.testing.assert_close(mine, plain, rtol=1e-4, atol=1e-5)
