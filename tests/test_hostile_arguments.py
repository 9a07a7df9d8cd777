"""
Every argument of every public class is given values that make no sense. Each is refused with an error of this package
that names the argument and the value, unless it is listed here as one that makes sense after all.
"""

import inspect
import math
import traceback
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from stable_baselines3.common.buffers import NStepReplayBuffer

import sb3_ora
from sb3_ora import ARTIQN, IQN, ORAIQN, TOPIQN
from sb3_ora.adapters import CompositeAdapter, EWAFAdapter, FTPLAdapter, RecursiveAdapter, ScheduleAdapter
from sb3_ora.checkpoint import RunCheckpoint
from sb3_ora.envs import KnapsackEnv, NanoDroneEnv, NanoDroneVecEnv, NanoDroneVectorEnv, ShowRiskLevel
from sb3_ora.iqn import CnnPolicy, IQNPolicy, MultiInputPolicy
from sb3_ora.iqn.buffers import DictNStepReplayBuffer
from sb3_ora.risk import (
    CPW,
    EWAF,
    FTPL,
    BucketKey,
    CVaR,
    DiscreteKey,
    Neutral,
    PiecewiseLinear,
    Power,
    PublishedARTController,
    RiskTable,
    SimHashKey,
    Wang,
)
from tests.tiny import ENSEMBLE, tiny
from tests.toy_envs import AnySpace, Chain


class Object:
    """Something else, of which a copy looks the same."""

    def __repr__(self):
        return "<something else>"


OBJECT = Object()
HUGE = 10**400  # no float is so large
VALUES: list[Any] = [None, -1, 0, 1.5, math.nan, math.inf, -math.inf, "x", [], {}, OBJECT, True, HUGE, np.zeros(2), (1, 2)]
PACKAGE = Path(sb3_ora.__file__).parent

BOX, TWO = spaces.Box(-1, 1, (3,)), spaces.Discrete(2)
IMAGE = spaces.Box(0, 255, (4, 40, 40), np.uint8)
POLICY = {"action_space": TWO, "lr_schedule": lambda progress: 1e-3}

#: The values above that an argument takes; "Class.argument" goes before "argument"
FINE = {
    "learning_rate": [0, 1.5],
    "learning_starts": [0, 1.5],
    "gradient_steps": [-1, 0],
    "max_grad_norm": [None, 1.5],
    "prior_scale": [0, 1.5],
    "ranger_noise": [0, 1.5],
    "PublishedARTController.learning_rate": [1.5],
    "EWAF.learning_rate": [1.5],
    "eta": [1.5],
    "verbose": [0, True],
    "n_obstacles": [0],
    "version": [0],
    "initial": [-1, 0, 1.5],
    "level_min": [-1, 0],
    "level_max": [1.5],
    "Wang.default_level": [None, -1, 0, 1.5],
    "Power.default_level": [None, -1, 0, 1.5],
    "points": [np.zeros(2), (1, 2)],
    "alphas": [(1, 2)],
    "tensorboard_log": [None, "x"],
    "folder": [None, "x"],
    "bandit_lr": [1.5],
    "EWAFAdapter.bandit_lr": [None, 1.5],
    "EWAFAdapter.weight_decay": [None, 0],
    "FTPLAdapter.eta": [None, 1.5],
    "SimHashKey.seed": [0],
    "instance_seed": [0],
    **{name: [0] for name in ["gamma", "evaluation_eps", "weight_decay", "decay"]},
    **{name: [0] for name in ["exploration_initial_eps", "exploration_final_eps", "exploration_fraction"]},
    **{
        name: [None, {}] for name in ["policy_kwargs", "replay_buffer_kwargs", "features_extractor_kwargs", "optimizer_kwargs"]
    },
    **{name: [None, [], (1, 2)] for name in ["net_arch", "shared_arch", "head_arch"]},
    "seed": [None, 0],
    **{name: [None] for name in ["replay_buffer_class", "risk_adapter", "risk_level", "state_key", "reference", "table"]},
    **{name: [None] for name in ["feedback_window", "render_mode", "vec_normalize", "epistemic_measure", "default_level"]},
    **{
        name: [True]
        for name in ["double_q", "cuda_graphs", "normalize_loss", "normalize", "independent_heads", "normalize_images"]
    },
    **{name: [True] for name in ["handle_timeout_termination", "randomize", "safe_start"]},
    "ORAIQN.risk_adapter": [],
    "ORAIQN.epistemic_measure": [],
}
#: What an adapter leaves to its model
for _name in ("alpha_min", "alpha_max", "alpha_step", "reference", "epistemic_measure", "normalize_loss"):
    for _adapter in ("FTPLAdapter", "RecursiveAdapter"):
        FINE[f"{_adapter}.{_name}"] = [None, True] if _name == "normalize_loss" else [None]
for _name in ("risk_levels", "mode", "sign", "n_variance_quantiles"):
    FINE[f"EWAFAdapter.{_name}"] = [None]
#: Where the memory ends, nobody checks
SIZES = {
    *("n_arms", "n_bins", "n_envs", "num_envs", "n_items", "n_obstacles", "max_steps", "max_keys", "window", "keep"),
    *("buffer_size", "batch_size", "n_quantiles", "n_target_quantiles", "n_risk_samples", "n_heads", "n_cosines", "save_freq"),
    *("target_update_interval", "train_freq", "gradient_steps", "stats_window_size", "n_variance_quantiles", "verbose"),
    *("feedback_window", "instance_seed", "n_steps"),
}


def algorithm(kind):
    def make(**given):
        arguments = {
            "policy": "MlpPolicy",
            "env": Chain(),
            "buffer_size": 200,
            "policy_kwargs": ENSEMBLE,
            "device": "cpu",
            **given,
        }
        return kind(**arguments)

    return make


def adapted(adapter, **signal):
    """A model whose adapter has the argument; the model itself has not, or has the same one."""

    def make(**given):
        for_adapter = {**signal, **given}
        if issubclass(adapter, EWAFAdapter | ScheduleAdapter):
            return algorithm(IQN)(distortion="cvar", risk_adapter=adapter(**for_adapter))
        shared = {name: value for name, value in given.items() if name != "verbose" and value is not None}
        return algorithm(ORAIQN)(**shared, risk_adapter=adapter(**for_adapter))

    return make


def shown(**given):
    env = NanoDroneEnv()
    return ShowRiskLevel(**{"env": env, "model": tiny(IQN, env), **given})


own = set(inspect.signature(IQN).parameters) - {"distortion", "risk_adapter"}
CASES = [
    (IQN, algorithm(IQN), {"_init_setup_model"}),
    (ORAIQN, algorithm(ORAIQN), own),
    (ARTIQN, algorithm(ARTIQN), own),
    (TOPIQN, algorithm(TOPIQN), own),
    (IQNPolicy, lambda **given: IQNPolicy(**{**POLICY, "observation_space": BOX, "epistemic_measure": "cvar", **given}), ()),
    (
        MultiInputPolicy,
        lambda **given: MultiInputPolicy(**{**POLICY, "observation_space": spaces.Dict({"a": BOX}), **given}),
        (),
    ),
    (CnnPolicy, lambda **given: CnnPolicy(**{**POLICY, "observation_space": IMAGE, "net_arch": [4], **given}), ()),
    (
        DictNStepReplayBuffer,
        lambda **given: DictNStepReplayBuffer(
            **{"buffer_size": 9, "observation_space": spaces.Dict({"a": BOX}), "action_space": TWO, **given}
        ),
        (),
    ),
    (FTPLAdapter, adapted(FTPLAdapter), ()),
    (RecursiveAdapter, adapted(RecursiveAdapter), ()),
    (CompositeAdapter, adapted(CompositeAdapter), ()),
    (ScheduleAdapter, adapted(ScheduleAdapter), ()),
    (EWAFAdapter, adapted(EWAFAdapter, signal="tail-variance"), ()),
    (EWAFAdapter, adapted(EWAFAdapter, signal="episode-return"), {"mode", "sign", "n_variance_quantiles"}),
    *[(kind, kind, ()) for kind in (CVaR, CPW, Neutral, Power, Wang, PublishedARTController)],
    (EWAF, lambda **given: EWAF(**{"n_arms": 2, "learning_rate": 0.1, **given}), ()),
    (FTPL, lambda **given: FTPL(**{"alphas": [0.1, 1.0], **given}), ()),
    (RiskTable, lambda **given: RiskTable(**{"initial": 1.0, **given}), ()),
    (BucketKey, lambda **given: BucketKey(**{"space": BOX, **given}), ()),
    (DiscreteKey, DiscreteKey, ()),
    (SimHashKey, lambda **given: SimHashKey(**{"space": BOX, **given}), ()),
    (PiecewiseLinear, PiecewiseLinear, ()),
    (RunCheckpoint, lambda **given: RunCheckpoint(**{"save_freq": 10, **given}), ()),
    (KnapsackEnv, KnapsackEnv, ()),
    (NanoDroneEnv, NanoDroneEnv, ()),
    (NanoDroneVecEnv, lambda **given: NanoDroneVecEnv(**{"n_envs": 2, **given}), ()),
    (NanoDroneVectorEnv, NanoDroneVectorEnv, ()),
    (ShowRiskLevel, shown, {"env"}),  # Gymnasium's own error
]


def same(first, second):
    return type(first) is type(second) and repr(first) == repr(second)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("kind", "make", "left_out"), CASES, ids=lambda part: getattr(part, "__name__", ""))
def test_values_that_make_no_sense(kind, make, left_out):
    failures = []
    for name in inspect.signature(kind).parameters:
        if name in left_out or name == "kwargs":
            continue
        fine = FINE.get(f"{kind.__name__}.{name}", FINE.get(name, []))
        for value in VALUES:
            if (value is HUGE and name in SIZES) or (name == "env" and isinstance(value, str)):  # Gymnasium knows its ids
                continue
            wanted = "taken" if any(same(value, one) for one in fine) else "refused"
            outcome = attempt(make, name, value)
            if outcome != wanted:
                failures.append(f"{name}={str(value)[:20]!r}: {outcome}, not {wanted}")
    assert not failures, "\n".join(failures)


def attempt(make, name, value):
    """How an argument with this value is met: "taken", "refused" with a good message, or what is bad about it."""
    try:
        make(**{name: value})
    except (ValueError, TypeError) as error:
        message, place = str(error), Path(traceback.extract_tb(error.__traceback__)[-1].filename)
        parts = value if isinstance(value, tuple | list | np.ndarray) and len(value) else [value]
        if name not in message.replace("\n", " "):
            return f"{message!r} lacks the name"
        if not any(repr(part) in message or str(part) in message for part in (value, *parts)):
            return f"{message!r} lacks the value"
        return "refused" if PACKAGE in place.parents else f"{message!r} comes from {place}"
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "taken"


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"optimize_memory_usage": True}, "optimize_memory_usage=True cannot tell .*, got replay_buffer_kwargs={}"),
        ({"optimize_memory_usage": True, "n_steps": 3}, "optimize_memory_usage=True is not for n-step .*, got n_steps=3"),
        ({"n_steps": 50, "buffer_size": 40}, "n_steps must not be larger than buffer_size=40, got 50"),
        ({"train_freq": (1, "day")}, r"unit in train_freq must be 'step' or 'episode', got \(1, 'day'\)"),
        ({"train_freq": (0, "episode")}, "frequency in train_freq must be an integer of at least 1, got 0"),
        ({"learning_rate": lambda progress: -progress}, "learning_rate at the start of training must be .*, got -1.0"),
        ({"policy_kwargs": {"activation_fn": "relu"}}, "activation_fn must be .*, got 'relu'"),
        ({"policy_kwargs": {1: 2}}, "policy_kwargs must be a dict of keyword arguments, got {.* 1: 2}"),
    ],
)
def test_contradictions(kwargs, message):
    with pytest.raises(ValueError, match=message):
        tiny(IQN, Chain(), **kwargs)


def test_the_ensemble_chooses_after_one_step_only():
    with pytest.raises(ValueError, match="next_action='ensemble' needs n_steps=1, got 3"):
        tiny(ORAIQN, Chain(), next_action="ensemble", n_steps=3)
    buffer = {"replay_buffer_class": NStepReplayBuffer, "replay_buffer_kwargs": {"n_steps": 3, "gamma": 0.9}}
    with pytest.raises(
        ValueError, match=r"next_action='ensemble' needs n_steps=1, got replay_buffer_class=.*NStepReplayBuffer"
    ):
        tiny(ORAIQN, Chain(), next_action="ensemble", **buffer)


def test_contradictions_with_the_observations():
    env = AnySpace(spaces.Dict({"a": BOX}))
    with pytest.raises(ValueError, match="optimize_memory_usage=True is not for Dict observations, got Dict"):
        tiny(IQN, env, "MultiInputPolicy", optimize_memory_usage=True)
    with pytest.raises(ValueError, match=r"state_key .* must be one of .*, got 'bucket'"):
        tiny(ORAIQN, env, "MultiInputPolicy", state_key="bucket")


def test_a_buffer_that_does_not_fit_into_memory():
    with pytest.raises(MemoryError, match=f"buffer_size={10**15} transitions do not fit into memory"):
        tiny(IQN, Chain(), buffer_size=10**15)
