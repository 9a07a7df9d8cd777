"""
Updates as CUDA graphs. On the CPU, torch.fx stands for CUDA: it records an update as the torch operations that it consists
of, with whatever is not a tensor as it was then, and repeats these, which is what a graph does.
"""

import io
from copy import deepcopy

import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from stable_baselines3.common.torch_layers import FlattenExtractor
from torch.fx.experimental.proxy_tensor import make_fx

from sb3_ora import ARTIQN, IQN, ORAIQN, TOPIQN
from sb3_ora.iqn import by_hand
from sb3_ora.iqn.cuda_graphs import MAX_RECORDINGS, WARM_UP, RecordedUpdates, Snapshot, Update, can_record
from sb3_ora.iqn.finite import NotFiniteError, check_update, skip_unless_finite
from tests.iqn.test_masks import Masked
from tests.tiny import ALGORITHMS, several, tiny
from tests.toy_envs import AnySpace, Scripted


class Operations:
    """Recorder by torch.fx."""

    def __init__(self, model):
        self.model = model
        self.n_replays = 0

    def warm_up(self, function):
        return function()

    def record(self, function):
        before = Snapshot(self.model)
        try:
            operations = make_fx(function)()
        finally:
            before.restore()
        result = Update(*(tensor.clone() for tensor in operations()))
        before.restore()

        def replay():
            self.n_replays += 1
            for place, tensor in zip(result, operations(), strict=True):
                place.copy_(tensor)

        return result, replay


@pytest.fixture(autouse=True)
def _as_on_cuda(monkeypatch):
    """Where the check of the loss does not wait for it, and updates are autograd's."""
    monkeypatch.setattr(by_hand, "layers_of", lambda net: None)
    monkeypatch.setattr("sb3_ora.iqn.iqn.check_update", lambda model, loss, _: skip_unless_finite(model, loss))


def make(algorithm, recorded, env=None, policy="MlpPolicy", recorder=Operations, **kwargs):
    model = tiny(algorithm, several(lambda: Scripted((4, 7)), 2) if env is None else env, policy, **kwargs)
    if recorded:
        model._recorded_updates = RecordedUpdates(model, recorder(model))
    return model


def weights(model):
    return th.nn.utils.parameters_to_vector(model.quantile_net.parameters()).detach()


def twins(algorithm, steps, make_env=lambda: None, **kwargs):
    """Two models, trained one after the other with the same random numbers, that differ in nothing but their updates."""
    return [make(algorithm, recorded, make_env(), **kwargs).learn(steps) for recorded in (False, True)]


def replays(model):
    return model._recorded_updates.recorder.n_replays


def same(plain, recorded):
    th.testing.assert_close(weights(recorded), weights(plain), rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize(
    "kwargs",
    [
        {},
        {"learning_rate": lambda progress: 3e-3 * progress},
        {"n_steps": 3, "gamma": 0.9},
        {"max_grad_norm": 0.5, "double_q": True},
        {"gradient_steps": 3, "tau": 0.5, "target_update_interval": 4},
        {"policy_kwargs": {"prior_scale": 1.0, "bootstrap_p": 0.5, "independent_heads": True}},
    ],
    ids=["defaults", "learning rate", "n-step", "clipped", "several steps", "ensemble"],
)
@pytest.mark.parametrize("algorithm", [IQN, ORAIQN])
def test_learning_is_the_same(algorithm, kwargs):
    plain, recorded = twins(algorithm, 200, **kwargs)
    same(plain, recorded)
    assert plain._n_updates == recorded._n_updates
    assert replays(recorded) == recorded._n_updates - WARM_UP > 10
    assert plain.policy.optimizer.param_groups[0]["lr"] == recorded.policy.optimizer.param_groups[0]["lr"]


def test_dict_observations_with_masks():
    kwargs = {"policy": "MultiInputPolicy", "use_action_mask": True, "n_steps": 2}
    plain, recorded = twins(ORAIQN, 150, Masked, **kwargs)
    same(plain, recorded)
    assert replays(recorded) > 10


def test_images():
    space = AnySpace(spaces.Box(0, 255, (3, 36, 36), np.uint8))
    plain, recorded = twins(ORAIQN, 100, lambda: space, policy="CnnPolicy")
    same(plain, recorded)
    assert replays(recorded) > 5


# Not the recorded update


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_batch_of_another_size_is_not_replayed(algorithm):
    plain, recorded = twins(algorithm, 160)
    before = replays(recorded)
    assert before > 5
    for model in (plain, recorded):
        th.manual_seed(1)
        np.random.seed(1)
        for size in (8, 5, 8, 5):
            model.train(1, size)
    same(plain, recorded)
    assert replays(recorded) == before + 2


def test_a_constant_that_changes_is_not_replayed():
    plain, recorded = twins(IQN, 120, n_steps=1)
    for model in (plain, recorded):
        model.gamma, model.max_grad_norm = 0.1, 0.01
        th.manual_seed(1)
        np.random.seed(1)
        model.train(WARM_UP + 5, 8)
    same(plain, recorded)
    assert len(recorded._recorded_updates.recordings) == 2


@pytest.mark.parametrize(
    ("algorithm", "kwargs"),
    [
        (IQN, {"distortion": "cvar", "risk_level": 0.5}),
        (IQN, {"distortion": "wang", "risk_level": "-1->1"}),
        (ARTIQN, {}),
        (TOPIQN, {}),
    ],
)
def test_levels_are_those_of_the_moment(algorithm, kwargs):
    plain, recorded = twins(algorithm, 200, **kwargs)
    same(plain, recorded)
    assert replays(recorded) > 10


def test_actions_chosen_by_numpy_are_not_recorded():
    plain, recorded = twins(ORAIQN, 200, next_action="ensemble")
    same(plain, recorded)
    assert replays(recorded) == 0 and not recorded._recorded_updates.failed


def test_no_more_recordings_than_allowed():
    model = make(IQN, True).learn(60)
    for size in range(5, 5 + MAX_RECORDINGS + 2):
        model.train(WARM_UP + 2, size)
    assert len(model._recorded_updates.recordings) == MAX_RECORDINGS


# Loading and saving


@pytest.mark.parametrize("load", ["set_parameters", "load_weights"])
def test_what_is_loaded_is_what_learns(load):
    plain, recorded = twins(ORAIQN, 120)
    other = make(ORAIQN, False, seed=5).learn(160)
    file = io.BytesIO()
    other.save(file)
    for model in (plain, recorded):
        file.seek(0)
        getattr(model, load)(file)
        th.manual_seed(1)
        np.random.seed(1)
        before = 0 if model is plain else replays(model)
        model.train(WARM_UP + 6, 8)
    same(plain, recorded)
    assert replays(recorded) == before + 6
    moments = [next(iter(model.policy.optimizer.state.values()))["exp_avg"] for model in (plain, recorded)]
    th.testing.assert_close(*moments)


def test_files_are_those_of_any_model():
    plain, recorded = twins(ORAIQN, 120)
    group, expected = (model.policy.optimizer.param_groups[0] for model in (recorded, plain))
    assert {**group, "params": 0} == {**expected, "params": 0} and isinstance(group["lr"], float)
    file = io.BytesIO()
    recorded.save(file)
    file.seek(0)
    loaded = ORAIQN.load(file, several(lambda: Scripted((4, 7)), 2), device="cpu")
    assert th.equal(weights(loaded), weights(recorded)) and loaded.cuda_graphs and loaded._recorded_updates is None
    loaded.learn(60)


# What cannot be recorded


class Random(FlattenExtractor):
    """Noise from NumPy, which a recording would repeat."""

    def forward(self, observations):
        return super().forward(observations) + float(np.random.normal())


class Unrecordable(FlattenExtractor):
    """Asks a tensor for its value, for which a CUDA device would have to be waited for."""

    def forward(self, observations):
        return super().forward(observations) * (1.0 if observations.sum().item() > -1 else 2.0)


class Nothing(Operations):
    """A recorder whose replays have no effect."""

    def record(self, function):
        return super().record(function)[0], lambda: None


@pytest.mark.parametrize(
    ("extractor", "recorder", "message"),
    [
        (Random, Operations, "is another one when it is replayed"),
        (Unrecordable, Operations, "cannot be recorded"),
        (FlattenExtractor, Nothing, "is another one when it is replayed"),
    ],
)
def test_what_cannot_be_recorded_is_done_as_before(extractor, recorder, message):
    settings = {"policy_kwargs": {"features_extractor_class": extractor}, "recorder": recorder}
    with pytest.warns(UserWarning, match=f"without CUDA graphs.*{message}"):
        plain, recorded = twins(ORAIQN, 160, **settings)
    assert recorded._recorded_updates.failed and not recorded._recorded_updates.recordings
    if extractor is not Random:  # whose numbers the comparison has used up
        same(plain, recorded)


def test_a_loss_that_is_not_finite_changes_no_weights():
    model = make(ORAIQN, True).learn(120)
    before, n_replays = weights(model).clone(), replays(model)
    model.replay_buffer.rewards[:] = np.nan
    with pytest.raises(NotFiniteError):
        model.train(2, 8)
    assert th.equal(weights(model), before) and replays(model) == n_replays + 2


class Cusp(FlattenExtractor):
    """Adds nothing, as the square root of 0 times a parameter; its derivative by that is NaN."""

    def __init__(self, space):
        super().__init__(space)
        self.scale = th.nn.Parameter(th.ones(1))

    def forward(self, observations):
        return super().forward(observations) + (self.scale * 0).sqrt() * 0


def test_a_gradient_that_is_not_finite_changes_no_weights():
    model = make(ORAIQN, False, policy_kwargs={"features_extractor_class": Cusp})
    before = weights(model).clone()
    with pytest.raises(NotFiniteError, match="the loss or its gradient is nan"):
        model.learn(60)
    assert model._n_updates > 0 and th.equal(weights(model), before)


def test_a_copy_records_for_itself():
    recorded = make(ORAIQN, True).learn(120)
    assert recorded._recorded_updates.recordings
    copy, before = deepcopy(recorded), weights(recorded).clone()
    train(recorded, WARM_UP + 5, 3)
    expected = weights(recorded).clone()
    assert th.equal(weights(copy), before)
    n_replays = replays(copy)
    train(copy, WARM_UP + 5, 3)
    assert th.equal(weights(recorded), expected)
    assert replays(copy) == n_replays + 5
    th.testing.assert_close(weights(copy), expected, rtol=1e-5, atol=1e-7)


def test_layers_that_are_frozen_stay_as_they_are():
    plain, recorded = twins(IQN, 40)
    for model in (plain, recorded):
        train(model, WARM_UP + 2, 0)
        model.quantile_net.trunk.requires_grad_(False)
        before = next(model.quantile_net.trunk.parameters()).clone()
        train(model, 3, 1)
        assert th.equal(next(model.quantile_net.trunk.parameters()), before)
    same(plain, recorded)


def test_an_optimizer_that_loading_made_another_is_not_recorded():
    """As with the file of a model whose Adam was not fused."""
    plain, recorded = twins(IQN, 40)
    for model in (plain, recorded):
        train(model, WARM_UP + 2, 0)
        model.policy.optimizer.param_groups[0]["fused"] = False
        model.policy.optimizer.found_inf = None
    before = replays(recorded)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sb3_ora.iqn.iqn.check_update", check_update)
        for model in (plain, recorded):
            train(model, WARM_UP + 5, 1)
    assert replays(recorded) == before
    same(plain, recorded)


# Which models record


def test_only_a_fused_optimizer_on_a_cuda_device_records():
    class Elsewhere:
        """A model on another device."""

        def __init__(self, model, cuda_graphs=True):
            self.policy, self.device, self.cuda_graphs = model.policy, th.device("cuda"), cuda_graphs

    model = make(IQN, False)
    assert not can_record(model) and model._recorded_updates is None
    assert can_record(Elsewhere(model)) and not can_record(Elsewhere(model, cuda_graphs=False))
    assert not can_record(Elsewhere(make(IQN, False, policy_kwargs={"optimizer_kwargs": {"fused": False}})))
    assert not can_record(Elsewhere(make(IQN, False, policy_kwargs={"optimizer_class": th.optim.SGD})))


@pytest.mark.gpu
@pytest.mark.skipif(not th.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("kwargs", [{}, {"learning_rate": lambda progress: 3e-3 * progress}, {"n_steps": 3}])
@pytest.mark.parametrize("algorithm", [IQN, ORAIQN])
def test_on_a_cuda_device(algorithm, kwargs):
    plain, recorded = (
        make(algorithm, False, device="cuda", cuda_graphs=graphs, **kwargs).learn(600) for graphs in (False, True)
    )
    assert plain._recorded_updates is None
    assert recorded._recorded_updates.recordings and not recorded._recorded_updates.failed
    th.testing.assert_close(weights(recorded), weights(plain), rtol=1e-3, atol=1e-5)
    gradients = [[p.grad for p in model.quantile_net.parameters()] for model in (recorded, plain)]
    th.testing.assert_close(*gradients, rtol=1e-2, atol=1e-4)


@pytest.mark.gpu
@pytest.mark.skipif(not th.cuda.is_available(), reason="needs a CUDA device")
def test_copies_and_other_optimizers_on_a_cuda_device():
    model = make(ORAIQN, False, device="cuda").learn(600)
    assert model._recorded_updates.recordings
    deepcopy(model).learn(100)
    file = io.BytesIO()
    make(ORAIQN, False, device="cuda", policy_kwargs={"optimizer_kwargs": {"fused": False}}).learn(60).save(file)
    file.seek(0)
    model.load_weights(file)
    model.learn(100)
    assert th.isfinite(weights(model)).all()


def train(model, n, seed):
    """So many updates, on the same random numbers for each model."""
    th.manual_seed(seed)
    np.random.seed(seed)
    model.train(n, 8)


def test_the_logged_loss_is_the_mean_of_replayed_updates():
    losses = []
    for model in twins(IQN, 40):
        train(model, WARM_UP + 2, 0)
        train(model, 5, 1)
        losses.append(model.logger.name_to_value["train/loss"])
    assert replays(model) >= 5
    assert losses[1] == pytest.approx(losses[0], rel=1e-4)


@pytest.mark.parametrize(("name", "value"), [("max_grad_norm", 1e-3), ("double_q", True), ("n_quantiles", 3)])
def test_each_constant_that_changes_is_not_replayed(name, value):
    plain, recorded = twins(IQN, 40)
    for model in (plain, recorded):
        train(model, WARM_UP + 2, 0)
        setattr(model, name, value)
        before = 0 if model is plain else replays(model)
        train(model, 3, 1)
    assert replays(recorded) == before
    same(plain, recorded)


def test_groups_of_the_optimizer_that_change_are_not_replayed():
    plain, recorded = twins(IQN, 40)
    for model in (plain, recorded):
        train(model, WARM_UP + 2, 0)
        model.policy.optimizer.param_groups[0]["weight_decay"] = 0.5
        train(model, 3, 1)
    same(plain, recorded)
