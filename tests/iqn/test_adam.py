"""Adam's step against torch's own, to the bit, and who is left to torch."""

import copy

import pytest
import torch as th
from torch.optim.optimizer import register_optimizer_step_pre_hook

from sb3_ora.iqn import adam


def make(optimizer_class=th.optim.Adam, **options):
    th.manual_seed(0)
    weights = [th.nn.Parameter(th.randn(*shape)) for shape in ((40, 7), (40,), (3, 40))]
    return optimizer_class(weights, **{"lr": 0.01, "fused": True, **options})


def weights_of(optimizer):
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def steps(optimizer, step, n=5):
    """Take steps along the same random gradients, with a learning rate that falls."""
    th.manual_seed(1)
    for i in range(n):
        optimizer.param_groups[0]["lr"] = 0.01 / (i + 1)
        for weight in weights_of(optimizer):
            weight.grad = th.randn_like(weight)
        step(optimizer)
    return optimizer


def plainly(optimizer):
    optimizer.step()


def assert_same(first, second):
    for mine, its in zip(weights_of(first), weights_of(second), strict=True):
        assert th.equal(mine, its)
        for name, value in first.state[mine].items():
            assert th.equal(value, second.state[its][name])


@pytest.fixture
def wholes(monkeypatch):
    """How often torch's whole step is taken."""
    taken, whole = [], th.optim.Adam.step
    monkeypatch.setattr(th.optim.Adam, "step", lambda self, closure=None: taken.append(self) or whole(self, closure))
    return taken


OPTIONS = [{}, {"eps": 0.1}, {"betas": (0.5, 0.9)}, {"weight_decay": 0.1}, {"maximize": True}]


@pytest.mark.parametrize("options", OPTIONS)
def test_steps_are_those_of_torch(options, wholes):
    mine, its = (steps(make(**options), step) for step in (adam.step, plainly))
    assert_same(mine, its)
    assert wholes.count(mine) == 1  # the first one, which makes the state


@pytest.mark.parametrize("options", [{"amsgrad": True}, {"fused": False}, {"foreach": True, "fused": False}])
def test_other_kinds_are_left_to_torch(options, wholes):
    mine, its = (steps(make(**options), step) for step in (adam.step, plainly))
    assert_same(mine, its)
    assert wholes.count(mine) == 5


@pytest.mark.parametrize("optimizer_class", [th.optim.AdamW, th.optim.SGD])
def test_other_optimizers_are_left_to_torch(optimizer_class):
    mine, its = (steps(make(optimizer_class), step) for step in (adam.step, plainly))
    assert_same(mine, its)


def test_several_groups_are_left_to_torch(wholes):
    optimizer = make()
    optimizer.add_param_group({"params": [th.nn.Parameter(th.ones(2))], "lr": 0.1})
    assert wholes.count(steps(optimizer, adam.step)) == 5


def test_weights_without_a_gradient_stay(wholes):
    optimizer = steps(make(), adam.step)
    frozen = weights_of(optimizer)[1]
    frozen.grad, before = None, frozen.clone()
    adam.step(optimizer)
    assert th.equal(frozen, before)
    assert wholes.count(optimizer) == 2


def test_weights_that_never_have_a_gradient_get_no_state():
    optimizer = make()
    first = weights_of(optimizer)[0]
    for _ in range(3):
        first.grad = th.ones_like(first)
        adam.step(optimizer)
    assert list(optimizer.state) == [first]


def test_hooks_and_schedulers_are_called():
    optimizer, calls = steps(make(), adam.step), []
    handle = optimizer.register_step_post_hook(lambda *args: calls.append(args))
    adam.step(optimizer)
    handle.remove()
    adam.step(optimizer)
    assert len(calls) == 1
    optimizer.step = lambda: calls.append(None)  # as torch's learning-rate schedulers do
    adam.step(optimizer)
    assert len(calls) == 2


def test_hooks_of_all_optimizers_are_called():
    optimizer, calls = steps(make(), adam.step), []
    handle = register_optimizer_step_pre_hook(lambda *args: calls.append(args))
    try:
        adam.step(optimizer)
    finally:
        handle.remove()
    adam.step(optimizer)
    assert len(calls) == 1


def test_a_step_that_is_to_do_nothing_does_nothing():
    """What the fused optimizer is told by gradients that are not finite."""
    optimizer = steps(make(), adam.step)
    before = copy.deepcopy(weights_of(optimizer))
    optimizer.found_inf = th.ones(())
    adam.step(optimizer)
    assert all(map(th.equal, weights_of(optimizer), before))


def test_a_loaded_state_goes_on():
    mine, its = steps(make(), adam.step), make()
    its.load_state_dict(copy.deepcopy(mine.state_dict()))
    for weight, value in zip(weights_of(its), weights_of(mine), strict=True):
        weight.data.copy_(value)
    assert_same(steps(mine, adam.step), steps(its, plainly))
