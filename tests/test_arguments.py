"""Bad arguments give an error that names the argument and the value given."""

import inspect
import re

import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from sb3_contrib import QRDQN

from sb3_ora import ARTIQN, IQN, ORAIQN, TOPIQN
from sb3_ora.adapters import CompositeAdapter, EWAFAdapter, FTPLAdapter, RecursiveAdapter, ScheduleAdapter
from sb3_ora.checks import check_choice, check_integer, check_number, check_widths
from sb3_ora.risk import BucketKey, CVaR, LowerQuantile
from tests.tiny import ALGORITHMS, tiny
from tests.toy_envs import Chain, Scripted

#: Arguments of all algorithms
COMMON = [
    ("buffer_size", 0),
    ("buffer_size", 1.5),
    ("learning_starts", -1),
    ("batch_size", 0),
    ("tau", 0.0),
    ("tau", 1.5),
    ("gamma", -0.1),
    ("gamma", 1.01),
    ("train_freq", 0),
    ("train_freq", (1, "year")),
    ("gradient_steps", -2),
    ("n_steps", 0),
    ("target_update_interval", 0),
    ("exploration_fraction", 1.5),
    ("exploration_initial_eps", 2),
    ("exploration_final_eps", -0.5),
    ("max_grad_norm", 0),
    ("n_quantiles", 0),
    ("n_quantiles", 2.5),
    ("n_target_quantiles", -3),
    ("n_risk_samples", "many"),
    ("distortion", "cvarr"),
    ("target_risk", "averse"),
    ("evaluation_eps", 1.5),
    ("evaluation_eps", None),
]
POLICY = [
    ("net_arch", 64),
    ("net_arch", [64, 0]),
    ("shared_arch", "64"),
    ("head_arch", [-1]),
    ("n_cosines", 0),
    ("prior_scale", -1.0),
    ("bootstrap_p", 0.0),
    ("bootstrap_p", 1.1),
]
ORA = [
    ("n_heads", 0),
    ("epistemic_measure", "variance"),
    ("alpha_min", 0.0),
    ("alpha_max", 1.1),
    ("alpha_step", 0),
    ("eta", 0.0),
    ("eta", "fast"),
    ("risk_scope", "state"),
    ("state_key", "bucket"),
    ("reference", "step"),
    ("max_keys", 0),
    ("next_action", "best"),
    ("risk_adapter", "hedge"),
]
EWAF = [("risk_levels", ()), ("risk_levels", (0.1, 1.5)), ("risk_levels", "0.1"), ("bandit_lr", 0.0), ("bandit_lr", "fast")]
TOP = [*EWAF, ("feedback_window", 1), ("weight_decay", 1.0)]
ART = [*TOP, ("mode", "draw"), ("sign", "plus"), ("n_variance_quantiles", 1), ("n_variance_quantiles", 7)]


def assert_refused(make, name, value):
    """The message names the argument and the value, or the part of it that is wrong."""
    parts = value if isinstance(value, tuple | list) and value else [value]
    with pytest.raises(ValueError, match=name.replace("risk_levels", "risk_level")) as error:
        make()
    assert any(re.search(re.escape(str(part)), str(error.value)) for part in parts), error.value


@pytest.mark.parametrize(("name", "value"), COMMON)
def test_arguments_of_all_algorithms(name, value):
    for algorithm in (IQN, ORAIQN):
        assert_refused(lambda algorithm=algorithm: tiny(algorithm, Chain(), **{name: value}), name, value)


@pytest.mark.parametrize(("name", "value"), POLICY)
def test_policy_kwargs(name, value):
    assert_refused(lambda: tiny(IQN, Chain(), policy_kwargs={name: value}), name, value)


@pytest.mark.parametrize(
    ("algorithm", "name", "value"),
    [(ORAIQN, *bad) for bad in ORA] + [(ARTIQN, *bad) for bad in ART] + [(TOPIQN, *bad) for bad in TOP],
)
def test_own_arguments(algorithm, name, value):
    assert_refused(lambda: tiny(algorithm, Chain(), **{name: value}), name, value)


@pytest.mark.parametrize(("distortion", "level"), [("cvar", 0.0), ("cvar", 1.2), ("cpw", -0.5), ("wang", float("inf"))])
def test_levels_that_a_distortion_does_not_have(distortion, level):
    assert_refused(lambda: tiny(IQN, Chain(), distortion=distortion, risk_level=level), "risk_level", level)


@pytest.mark.parametrize("level", ["0.1->high", "0.1->0.9->1.5", ""])
def test_schedules_that_cannot_be_read_or_leave_the_range(level):
    with pytest.raises(ValueError, match="risk_level"):
        tiny(IQN, Chain(), distortion="cvar", risk_level=level)


def test_types():
    for name in ("distortion", "epistemic_measure", "state_key"):
        with pytest.raises(TypeError, match=f"{name} must be .*, got 7"):
            tiny(ORAIQN, Chain(), **{name: 7})
    with pytest.raises(ValueError, match="risk_adapter must be a RiskAdapter or None, got 'ftpl'"):
        tiny(IQN, Chain(), risk_adapter="ftpl")


@pytest.mark.parametrize(
    ("algorithm", "kwargs", "message"),
    [
        (IQN, {"risk_level": 0.5}, "risk_level=0.5 has no effect with distortion='neutral'"),
        (ORAIQN, {"state_key": "discrete", "risk_scope": "global"}, "state_key='discrete' has no effect with risk_scope="),
        (ORAIQN, {"alpha_min": 0.8, "alpha_max": 0.5}, "alpha_min must not be larger than alpha_max, got 0.8 > 0.5"),
        (ORAIQN, {"reference": "visit", "risk_scope": "action"}, "reference='visit' .* not with risk_scope='action'"),
        (ARTIQN, {"distortion": "neutral"}, "EWAFAdapter moves the level of a distortion, but .* distortion='neutral'"),
        (ARTIQN, {"mode": "published", "risk_levels": (0.1, 0.5, 1.0)}, r"mode='published' takes .*=\(0.1, 0.5, 1.0\)"),
        (IQN, {"risk_adapter": FTPLAdapter()}, "FTPLAdapter needs a model with epistemic_measure, such as ORAIQN"),
        (IQN, {"risk_adapter": EWAFAdapter("tail-variance")}, "EWAFAdapter moves the level of a distortion"),
        (IQN, {"risk_adapter": ScheduleAdapter(0.5)}, "ScheduleAdapter moves the level of a distortion"),
    ],
)
def test_arguments_that_contradict_each_other(algorithm, kwargs, message):
    with pytest.raises(ValueError, match=message):
        tiny(algorithm, Chain(), **kwargs)


def test_arguments_without_effect_on_an_adapter():
    for name, value in (("mode", "published"), ("sign", "paper"), ("n_variance_quantiles", 8)):
        with pytest.raises(ValueError, match=f"{name}={value!r} has no effect with signal='episode-return'"):
            EWAFAdapter("episode-return", **{name: value})
    for argument in ({"feedback_window": 5}, {"weight_decay": 0.1}):
        (name,) = argument
        with pytest.raises(ValueError, match=f"{name}={argument[name]} has no effect with mode='published'"):
            tiny(ARTIQN, Chain(), mode="published", **argument)
    with pytest.raises(ValueError, match="signal must be one of 'tail-variance', 'episode-return', got 'loss'"):
        EWAFAdapter("loss")


def test_objects_in_place_of_names():
    key = BucketKey(spaces.Box(0, 100, (2,)), n_bins=3)
    model = tiny(ORAIQN, Scripted(), distortion=CVaR(), risk_level=0.5, epistemic_measure=LowerQuantile(), state_key=key)
    model.learn(40)
    used = model.policy.risk.state_key
    points = np.random.default_rng(0).uniform(0, 100, (50, 2))
    assert isinstance(used, BucketKey) and used is not key and np.array_equal(used(points), key(points))
    assert (model.distortion, model.epistemic_measure) == (CVaR(), LowerQuantile())


@pytest.mark.parametrize("adapter", [FTPLAdapter, RecursiveAdapter, CompositeAdapter])
@pytest.mark.parametrize("name", ["ftpl", "recursive", "composite"])
def test_adapters_by_name(name, adapter):
    model = tiny(ORAIQN, Chain(), risk_adapter=name)
    assert (type(model.adapter) is adapter) == (adapter.__name__.lower().startswith(name))
    assert model.risk_adapter == name


def test_positional_arguments_come_in_the_order_of_qrdqn():
    order = (
        "learning_rate buffer_size learning_starts batch_size tau gamma train_freq gradient_steps replay_buffer_class "
        "replay_buffer_kwargs optimize_memory_usage n_steps target_update_interval exploration_fraction "
        "exploration_initial_eps exploration_final_eps max_grad_norm stats_window_size tensorboard_log policy_kwargs "
        "verbose seed device n_quantiles n_target_quantiles n_risk_samples distortion"
    ).split()
    values = [1e-3, 50, 5, 4, 0.5, 0.9, 2, 3, None, {}, False, 2, 7, 0.3, 0.8, 0.2, 9.0, 11, None, {}, 0, 3, "cpu", 5, 6, 9]
    for algorithm in ALGORITHMS:
        model = algorithm("MlpPolicy", Chain(), *values, "cvar")
        for name, value in zip(order, [*values, "cvar"], strict=True):
            if name == "train_freq":
                assert model.train_freq.frequency == value
            elif name == "device":
                assert model.device == th.device(value)
            elif name == "stats_window_size":
                assert model._stats_window_size == value
            else:
                assert getattr(model, name) == value, name


def test_policy_and_optimizer_settings_reach_their_place():
    optimizer = {"optimizer_class": th.optim.SGD, "optimizer_kwargs": {"momentum": 0.5}}
    model = tiny(IQN, Chain(), policy_kwargs={**optimizer, "activation_fn": th.nn.Tanh})
    assert isinstance(model.policy.optimizer, th.optim.SGD) and model.policy.optimizer.defaults["momentum"] == 0.5
    assert all(isinstance(layer.activation, th.nn.Tanh) for layer in model.quantile_net.trunk)
    adam = tiny(IQN, Chain(), batch_size=20).policy.optimizer
    assert isinstance(adam, th.optim.Adam) and adam.defaults["eps"] == 0.01 / 20
    assert adam.defaults["fused"]
    given = tiny(IQN, Chain(), policy_kwargs={"optimizer_kwargs": {"eps": 1e-8, "foreach": True}}).policy.optimizer.defaults
    assert given["eps"] == 1e-8 and given["foreach"] and not given["fused"]


def test_checks():
    assert check_integer("n", th.tensor(3).item()) == 3
    assert check_number("x", 1, 0, 1) == 1.0
    assert check_widths("arch", (3, 4)) == [3, 4]
    assert check_choice("c", "a", ("a", "b")) == "a"
    for bad in (True, "1", None, float("nan"), float("inf"), -0.5, 1.0):
        with pytest.raises(ValueError, match=re.escape(f"x must be a number in [0, 1), got {bad!r}")):
            check_number("x", bad, 0, 1, open_high=True)
    for bad in (True, 1.0, "2", None, 1):
        with pytest.raises(ValueError, match=f"n must be an integer of at least 2, got {bad!r}"):
            check_integer("n", bad, 2)
    for bad in (None, ["a"], "c"):
        with pytest.raises(ValueError, match="c must be one of 'a', 'b', got"):
            check_choice("c", bad, ("a", "b"))


@pytest.mark.parametrize(("name", "value"), [("n_heads", 3), ("distortion", "cvar"), ("risk_level", 0.5)])
def test_what_the_algorithm_sets_is_not_for_policy_kwargs(name, value):
    with pytest.raises(ValueError, match=f"policy_kwargs must not hold {name}={value!r}"):
        ORAIQN("MlpPolicy", "CartPole-v1", policy_kwargs={name: value})


# Defaults

#: What is not in QR-DQN: the numbers of fractions and evaluation's epsilon of Dabney et al. (2018); heads, grid, rate and
#: arms of DRL-ORA; steps of the bandits of Moskovitz et al. (2021) and of ART's published code
IMPLICIT = {"n_quantiles": 8, "n_target_quantiles": 8, "n_risk_samples": 32, "evaluation_eps": 0.001, "double_q": False}
ENSEMBLE = {"n_heads": 10, "epistemic_measure": "cvar", "alpha_min": 0.1, "alpha_max": 1.0, "eta": 0.5, "risk_adapter": "ftpl"}
DEFAULTS = {
    IQN: {**IMPLICIT, "distortion": "neutral", "risk_level": None},
    ORAIQN: {**IMPLICIT, **ENSEMBLE, "distortion": "neutral", "risk_scope": "state-action", "next_action": "head"},
    ARTIQN: {**IMPLICIT, "distortion": "cvar", "risk_levels": (0.1, 1.0), "bandit_lr": 0.5, "n_variance_quantiles": 16},
    TOPIQN: {**IMPLICIT, "distortion": "cvar", "risk_levels": (0.1, 0.5, 1.0), "bandit_lr": 0.1, "feedback_window": None},
}


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_defaults(algorithm):
    """Those of sb3-contrib's QR-DQN where it has the argument, else the papers'."""
    arguments = (inspect.signature(made).parameters.values() for made in (algorithm, QRDQN))
    ours, theirs = ({argument.name: argument.default for argument in found} for found in arguments)
    assert theirs.items() <= ours.items()
    assert DEFAULTS[algorithm].items() <= ours.items()
