"""How adapters get into a model: by argument, among the callbacks, or by the model itself."""

import io
import json
import pickle
import zipfile
from typing import Any

import numpy as np
import pytest
import torch as th
from stable_baselines3.common.callbacks import BaseCallback, CallbackList, EvalCallback, EveryNTimesteps

from sb3_ora import ARTIQN, IQN, ORAIQN
from sb3_ora.adapters import EWAFAdapter, FTPLAdapter, RecursiveAdapter, RiskAdapter, ScheduleAdapter
from tests.tiny import ALGORITHMS, tiny
from tests.toy_envs import Chain


class CountingAdapter(FTPLAdapter):
    """Counts how often each hook is called."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.calls = {"start": 0, "rollout": 0, "step": 0, "end": 0}

    def _on_training_start(self):
        self.calls["start"] += 1
        super()._on_training_start()

    def _on_rollout_start(self):
        self.calls["rollout"] += 1
        super()._on_rollout_start()

    def _on_step(self):
        self.calls["step"] += 1
        return super()._on_step()

    def _on_training_end(self):
        self.calls["end"] += 1
        super()._on_training_end()


class Other(BaseCallback):
    def _on_step(self) -> bool:
        return True


#: Ways to give an adapter to learn
WAYS = {
    "alone": lambda adapter: adapter,
    "first in a list": lambda adapter: [adapter, Other()],
    "last in a list": lambda adapter: [Other(), adapter],
    "in a CallbackList": lambda adapter: CallbackList([Other(), adapter]),
    "deep inside": lambda adapter: [Other(), CallbackList([Other(), CallbackList([adapter])])],
}
ONCE = {"start": 1, "rollout": 15, "step": 60, "end": 1}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("progress_bar", [False, True])
def test_among_the_callbacks(way, progress_bar):
    adapter = CountingAdapter()
    model = tiny(ORAIQN, Chain())
    model.learn(60, callback=WAYS[way](adapter), progress_bar=progress_bar)
    assert model.adapter is adapter and adapter.calls == ONCE
    assert len(model.policy.risk.table) > 0
    assert model.risk_adapter == "ftpl"


@pytest.mark.parametrize("callback", [None, Other(), [Other()], lambda local, world: True], ids=str)
def test_by_argument(callback):
    given = CountingAdapter()
    model = tiny(ORAIQN, Chain(), risk_adapter=given)
    model.learn(60, callback=callback)
    assert model.risk_adapter is given and model.adapter is not given
    assert model.adapter.calls == ONCE
    assert set(given.calls.values()) == {0}, "the argument can serve another model"


def test_an_adapter_stays_for_the_next_call_to_learn():
    adapter = CountingAdapter()
    model = tiny(ORAIQN, Chain()).learn(60, callback=adapter)
    model.learn(60)
    assert model.adapter is adapter and adapter.calls == {name: 2 * count for name, count in ONCE.items()}
    model.learn(60, callback=[adapter])
    assert adapter.calls == {name: 3 * count for name, count in ONCE.items()}


def test_a_new_one_of_the_same_kind_goes_on_where_the_old_one_stopped():
    model = tiny(ORAIQN, Chain()).learn(60)
    before = model.adapter.state_dict()
    table = model.policy.risk.table.state_dict()["loss_sum"].clone()
    new = FTPLAdapter()
    model._adopt_adapter(new)
    assert model.adapter is new and new.state_dict() == before
    assert th.equal(table, model.policy.risk.table.state_dict()["loss_sum"])


def test_one_of_another_kind_starts_anew():
    model = tiny(ORAIQN, Chain()).learn(60)
    model.learn(60, callback=RecursiveAdapter())
    assert isinstance(model.adapter, RecursiveAdapter) and np.isfinite(model.adapter.loss)


def test_an_adapter_serves_one_model_after_the_other():
    adapter = FTPLAdapter()
    first = tiny(ORAIQN, Chain()).learn(60, callback=adapter)
    second = tiny(ORAIQN, Chain()).learn(60, callback=adapter)
    assert first.policy.risk.table is not second.policy.risk.table
    assert adapter.model is second
    tables = [model.policy.risk.table.state_dict() for model in (first, second)]
    assert all(th.equal(tables[0][name], tables[1][name]) for name in ("alpha", "loss_sum", "keys"))


def test_inside_an_event_it_would_miss_steps():
    events = [EveryNTimesteps(1, FTPLAdapter())]
    events += [EvalCallback(Chain(), **{name: FTPLAdapter()}) for name in ("callback_after_eval", "callback_on_new_best")]
    for event in events:
        with pytest.raises(ValueError, match=r"a FTPLAdapter inside a .* would only see some steps: give it .* in a list"):
            tiny(ORAIQN, Chain()).learn(40, callback=[Other(), event])


def test_with_an_evaluation_callback(tmp_path):
    adapter = CountingAdapter()
    evaluation = EvalCallback(Chain(), None, None, 1, 20, best_model_save_path=str(tmp_path), verbose=0, warn=False)
    tiny(ORAIQN, Chain()).learn(60, callback=[evaluation, adapter])
    assert adapter.calls == ONCE
    ORAIQN.load(tmp_path / "best_model")


def test_two_adapters_are_refused():
    with pytest.raises(ValueError, match=r"holds 2 risk adapters .* only one can act"):
        tiny(ORAIQN, Chain()).learn(40, callback=[FTPLAdapter(), CallbackList([RecursiveAdapter()])])
    with pytest.raises(ValueError, match=r"callback holds a RecursiveAdapter, but risk_adapter=<.*FTPLAdapter.*>: give one"):
        tiny(ORAIQN, Chain(), risk_adapter=FTPLAdapter()).learn(40, callback=RecursiveAdapter())


@pytest.mark.parametrize(
    ("algorithm", "adapter", "message"),
    [
        (ORAIQN, FTPLAdapter(alpha_min=0.3), r"alpha_min=0.3 of the FTPLAdapter contradicts alpha_min=0.1 of the ORAIQN"),
        (ORAIQN, FTPLAdapter(normalize_loss=False), "normalize_loss=False .* normalize_loss=True"),
        (ORAIQN, FTPLAdapter(eta="auto"), "eta='auto' .* eta=0.5"),
        (ORAIQN, RecursiveAdapter(epistemic_measure="quantile"), "epistemic_measure='quantile' .* epistemic_measure='cvar'"),
        (ARTIQN, EWAFAdapter("tail-variance", bandit_lr=0.1), "bandit_lr=0.1 of the EWAFAdapter .* bandit_lr=0.5"),
    ],
)
def test_arguments_that_contradict_the_models_are_refused_with_both_values(algorithm, adapter, message):
    with pytest.raises(ValueError, match=message):
        tiny(algorithm, Chain()).learn(40, callback=adapter)


def test_a_schedule_against_the_models_level():
    with pytest.raises(ValueError, match=r"risk_level=0.5 of the ScheduleAdapter contradicts risk_level=0.25 of the IQN"):
        tiny(IQN, Chain(), distortion="cvar", risk_level=0.25).learn(40, callback=ScheduleAdapter(0.5))


def test_arguments_left_out_are_the_models():
    kwargs = {"alpha_min": 0.2, "alpha_max": 0.8, "alpha_step": 0.3, "eta": "auto", "normalize_loss": False}
    model = tiny(ORAIQN, Chain(), epistemic_measure="quantile", reference="update", **kwargs)
    for adapter in (FTPLAdapter(), FTPLAdapter(alpha_min=0.2, eta="auto")):
        model._adopt_adapter(adapter)
        assert adapter.grid.tolist() == [0.2, 0.5, 0.8]
        assert adapter.options == {**kwargs, "epistemic_measure": "quantile", "reference": "update"}
        assert (adapter.ftpl.eta, adapter.ftpl.normalize) == ("auto", False)


def test_lists_and_tuples_are_the_same_arms():
    adapter = EWAFAdapter("tail-variance", risk_levels=(0.2, 0.6))
    model = tiny(ARTIQN, Chain(), risk_levels=[0.2, 0.6]).learn(40, callback=adapter)
    assert model.adapter.arms.tolist() == [0.2, 0.6]


def test_options_that_the_model_does_not_have_take_the_adapters_value_or_default():
    adapter = EWAFAdapter("episode-return", risk_levels=(0.3, 0.6, 0.9), feedback_window=4)
    model = tiny(IQN, Chain(), distortion="cvar").learn(40, callback=adapter)
    assert model.adapter.options["bandit_lr"] == 0.5
    assert model.adapter.arms.tolist() == [0.3, 0.6, 0.9]


def files_in(path):
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_the_file_holds_the_adapters_state_and_no_adapter(algorithm, tmp_path):
    """Saved after training with pending pairs, the file is as large as the network and its table, not as the buffer."""
    model = tiny(algorithm, Chain(), buffer_size=50_000).learn(80)
    model.save(tmp_path / "model.zip")
    files = files_in(tmp_path / "model.zip")
    assert "adapter" not in json.loads(files["data"])
    state = th.load(io.BytesIO(files["adapter.pth"]), weights_only=True)
    assert state["kind"] == model.adapter.kind
    assert (tmp_path / "model.zip").stat().st_size < 200_000


def test_an_adapter_given_as_argument_is_saved_without_the_model(tmp_path):
    adapter = FTPLAdapter()
    tiny(ORAIQN, Chain(), buffer_size=50_000).learn(60, callback=adapter)
    assert len(pickle.dumps(adapter)) < 50_000
    model = tiny(ORAIQN, Chain(), risk_adapter=adapter)
    model.save(tmp_path / "model.zip")
    assert (tmp_path / "model.zip").stat().st_size < 200_000
    loaded = ORAIQN.load(tmp_path / "model.zip", env=Chain())
    assert type(loaded.risk_adapter) is FTPLAdapter
    loaded.learn(60)
    assert len(loaded.policy.risk.table) > 0


class Fixed(RiskAdapter):
    """A user's own: all environments act at level 0.3, then it moves the level of the policy."""

    def _bind(self):
        self._require_distortion()
        self.acting_level = np.full(self.model.n_envs, 0.3)

    def _level_schedule(self):
        return None

    def learned_state(self):
        return {"n_calls": self.n_calls}

    def load_learned_state(self, state):
        self.n_calls = state["n_calls"]


def test_an_adapter_of_ones_own(tmp_path):
    model = tiny(IQN, Chain(), distortion="cvar", risk_adapter=Fixed()).learn(40)
    model.save(tmp_path / "model.zip")
    loaded = IQN.load(tmp_path / "model.zip", env=Chain())
    assert loaded.adapter.n_calls == model.adapter.n_calls == 40
    loaded.learn(40)


class Kept(Fixed):
    """Keeps what it is told to."""

    kept: Any = None

    def learned_state(self):
        return {"kept": self.kept}

    def load_learned_state(self, state):
        self.kept = state["kept"]


def test_what_numpy_has_of_numbers_goes_through_a_file(tmp_path):
    model = tiny(IQN, Chain(), distortion="cvar", risk_adapter=Kept())
    model.adapter.kept = [np.float64(0.5), {"a": np.arange(3), "b": (np.int64(2), np.bool_(True))}]
    model.save(tmp_path / "model.zip")
    mean, rest = IQN.load(tmp_path / "model.zip").adapter.kept
    assert (mean, rest["a"].tolist(), rest["b"]) == (0.5, [0, 1, 2], (2, True))


def test_what_could_not_be_loaded_is_not_saved(tmp_path):
    model = tiny(IQN, Chain(), distortion="cvar", risk_adapter=Kept())
    model.adapter.kept = [1, {2}]
    message = r"learned_state\(\) of Kept\['kept'\]\[1\] must be a tensor, number, text, or list or dict of these, got \{2\}"
    with pytest.raises(ValueError, match=message):
        model.save(tmp_path / "model.zip")
