import argparse

import optuna
import pytest
import torch as th
from optuna.trial import FixedTrial

from sb3_ora import ORAIQN
from sb3_ora.iqn.finite import NotFiniteError
from sb3_ora.risk.distortions import make_distortion
from sb3_ora.zoo import ALGORITHMS
from sb3_ora.zoo.files import default_config
from sb3_ora.zoo.sampling import SAMPLERS, convert_params, merge_policy_kwargs, sampling_around

COMMON = {
    "one_minus_gamma": 0.01,
    "batch_size_pow": 6,
    "learning_rate": 1e-3,
    "train_freq": 8,
    "subsample_steps": 3,
    "exploration_fraction": 0.1,
    "exploration_final_eps": 0.05,
    "n_quantiles": 16,
    "net_arch": "medium",
    "head_width": 32,
    "target_update_interval": 100,
}
CONVERTED = {
    "batch_size": 64,
    "learning_rate": 1e-3,
    "train_freq": 8,
    "gradient_steps": 2,
    "exploration_fraction": 0.1,
    "exploration_final_eps": 0.05,
    "n_quantiles": 16,
    "policy_kwargs": {"net_arch": [128, 128], "head_arch": [32]},
    "target_update_interval": 100,
}
OWN = {
    "iqn": {},
    "ora_iqn": {"n_heads": 5, "risk_scope": "action", "eta": "auto"},
    "art_iqn": {"bandit_lr": 0.2},
    "top_iqn": {"bandit_lr": 0.2},
}


def sample(algo, params, yaml_hyperparams=None):
    with sampling_around(yaml_hyperparams or {}):
        return SAMPLERS[algo](FixedTrial(params), 0, 1, {"using_her_replay_buffer": False, "her_kwargs": {}})


@pytest.mark.parametrize("algo", ALGORITHMS)
def test_sampled_values_become_constructor_arguments(algo):
    sampled = sample(algo, COMMON | OWN[algo])
    assert convert_params(COMMON | OWN[algo]) == sampled
    assert sampled.pop("gamma") == pytest.approx(0.99)
    assert sampled == CONVERTED | OWN[algo]


@pytest.mark.parametrize("train_freq, subsample_steps, expected", [(1, 4, 1), (8, 1, 8), (10, 4, 2)])
def test_gradient_steps(train_freq, subsample_steps, expected):
    params = COMMON | {"train_freq": train_freq, "subsample_steps": subsample_steps}
    assert convert_params(params)["gradient_steps"] == expected


def test_conversion_leaves_the_trial_alone():
    params = dict(COMMON)
    convert_params(params)
    assert params == COMMON


@pytest.mark.parametrize("algo", ALGORITHMS)
def test_every_algorithm_accepts_what_its_sampler_draws(algo):
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=1))
    base = {"distortion": "cvar"} if algo == "iqn" else {}
    for _ in range(5):
        with sampling_around(base):
            sampled = SAMPLERS[algo](study.ask(), 0, 1, {})
        model = ALGORITHMS[algo]("MlpPolicy", "CartPole-v1", buffer_size=100, device="cpu", **base, **sampled)
        for name in sampled.keys() - {"train_freq", "policy_kwargs"}:
            assert getattr(model, name) == sampled[name]
        assert model.train_freq.frequency == sampled["train_freq"]


def test_policy_kwargs_of_the_file_survive():
    base = {"policy_kwargs": {"net_arch": [7], "n_cosines": 32, "prior_scale": 3.0}}
    expected = {"net_arch": [128, 128], "head_arch": [32], "n_cosines": 32, "prior_scale": 3.0}
    assert sample("ora_iqn", COMMON | OWN["ora_iqn"], base)["policy_kwargs"] == expected
    assert base["policy_kwargs"]["net_arch"] == [7]


@pytest.mark.parametrize("base", [{}, {"policy_kwargs": None}])
def test_a_file_without_policy_kwargs(base):
    assert merge_policy_kwargs(base, {"gamma": 0.9, "policy_kwargs": {"net_arch": [1]}}) == {
        "gamma": 0.9,
        "policy_kwargs": {"net_arch": [1]},
    }


def test_the_file_is_forgotten_after_the_trial():
    with pytest.raises(RuntimeError), sampling_around({"policy_kwargs": {"n_cosines": 32}}):
        raise RuntimeError
    with sampling_around({"policy_kwargs": {"n_cosines": 16}}):
        pass
    assert "n_cosines" not in SAMPLERS["iqn"](FixedTrial(COMMON), 0, 1, {})["policy_kwargs"]


def test_soft_updates_have_no_sampled_interval():
    assert "target_update_interval" not in sample("iqn", COMMON, {"tau": 0.01})
    assert sample("iqn", COMMON, {"tau": 1.0})["target_update_interval"] == 100


def ranges(algo, base):
    """What a sampler may draw: limits of numbers, or all choices."""
    trial = optuna.create_study().ask()
    with sampling_around(base):
        SAMPLERS[algo](trial, 0, 1, {})
    return {
        name: tuple(drawn.choices) if hasattr(drawn, "choices") else (drawn.low, drawn.high)
        for name, drawn in trial.distributions.items()
    }


@pytest.mark.parametrize("algo", ALGORITHMS)
def test_ranges(algo):
    """Around rl-zoo3's for QR-DQN, with the sizes that ensembles of the paper have."""
    drawn = ranges(algo, {})
    common = {
        "one_minus_gamma": (0.0001, 0.05),
        "batch_size_pow": (4, 9),
        "learning_rate": (1e-5, 5e-3),
        "train_freq": (1, 10),
        "subsample_steps": (1, 4),
        "exploration_fraction": (0.01, 0.5),
        "exploration_final_eps": (0.0, 0.2),
        "n_quantiles": (8, 16, 32, 64),
        "net_arch": ("small", "medium", "big"),
        "head_width": (32, 64, 128),
        "target_update_interval": (1, 20_000),
    }
    bandit = {"bandit_lr": (1e-3, 1.0)}
    scopes = ("state-action", "action", "global")
    own = {
        "iqn": {},
        "ora_iqn": {"n_heads": (5, 10, 20), "risk_scope": scopes, "eta": ("auto", 0.1, 0.5, 2.0)},
        "art_iqn": bandit,
        "top_iqn": bandit,
    }
    assert drawn == common | own[algo]


@pytest.mark.parametrize(
    "distortion, averse, neutral", [("cvar", 0.05, 1.0), ("wang", -1.5, 0.0), ("cpw", 0.5, 1.0), ("power", -4.0, 0.0)]
)
def test_risk_level_of_a_distortion_is_sampled_in_its_range(distortion, averse, neutral):
    """From levels at which a lottery is worth less than its mean to where it is worth just that."""
    base = {"distortion": distortion, "risk_level": neutral}
    assert ranges("iqn", base)["risk_level"] == (averse, neutral)
    assert sample("iqn", COMMON | {"risk_level": averse}, base)["risk_level"] == averse
    taus = th.linspace(0.0005, 0.9995, 1000)
    made = make_distortion(distortion)
    worth = [made(taus, th.tensor(level)).mean().item() for level in (averse, neutral)]  # of one that pays its own fraction
    assert worth[0] < 0.49 and worth[1] == pytest.approx(0.5, abs=1e-3)


@pytest.mark.parametrize("base", [{}, {"distortion": "neutral"}, {"distortion": "cvar", "risk_level": "0.1->0.9"}])
def test_risk_level_is_kept_where_it_has_no_effect_or_follows_a_schedule(base):
    assert "risk_level" not in sample("iqn", COMMON | {"risk_level": 0.5}, base)


@pytest.mark.parametrize(
    "adapter, expected",
    [("ftpl", {"eta", "risk_scope"}), (None, {"eta", "risk_scope"}), ("recursive", {"risk_scope"}), ("composite", set())],
)
def test_only_what_the_adapter_uses_is_sampled(adapter, expected):
    sampled = sample("ora_iqn", COMMON | OWN["ora_iqn"], {"risk_adapter": adapter})
    assert sampled.keys() & {"eta", "risk_scope"} == expected


# Through rl_zoo3


@pytest.fixture
def conf_file(tmp_path):
    path = tmp_path / "my.yml"
    path.write_text("""
CartPole-v1:
  n_timesteps: 60
  policy: MlpPolicy
  learning_starts: 20
  n_heads: 3
  alpha_min: 0.2
  policy_kwargs: "dict(n_cosines=16, net_arch=[8], activation_fn=nn.ReLU)"
""")
    return str(path)


def optimization(experiment, conf_file, **kwargs):
    options = {"config": conf_file, "optimize_hyperparameters": True, "n_trials": 2, "no_optim_plots": True}
    manager = experiment(**options | kwargs)
    manager.args = argparse.Namespace(num_threads=1)
    return manager


def test_trials_keep_the_settings_of_the_file(experiment, conf_file, monkeypatch):
    built = []
    original = ALGORITHMS["ora_iqn"]._setup_model
    monkeypatch.setattr(ALGORITHMS["ora_iqn"], "_setup_model", lambda self: (built.append(self), original(self)))
    manager = optimization(experiment, conf_file)
    assert manager.setup_experiment() is None
    manager.hyperparameters_optimization()
    assert len(built) == 2
    for model in built:
        assert model.policy_kwargs["n_cosines"] == 16 and model.alpha_min == 0.2
        assert model.policy_kwargs["activation_fn"].__name__ == "ReLU"
        assert model.policy_kwargs["net_arch"] in ([64, 64], [128, 128], [256, 256])
        assert model.n_heads in (5, 10, 20)


@pytest.fixture
def study(tmp_path):
    """A journal with two trials of known parameters."""
    path = str(tmp_path / "study.log")
    storage = optuna.storages.JournalStorage(optuna.storages.journal.JournalFileBackend(path))
    study = optuna.create_study(study_name="mine", storage=storage)
    for head_width in (32, 128):
        study.enqueue_trial(COMMON | OWN["ora_iqn"] | {"head_width": head_width})
        trial = study.ask()
        SAMPLERS["ora_iqn"](trial, 0, 1, {})
        study.tell(trial, 1.0)
    return {"storage": path, "study_name": "mine"}


@pytest.mark.parametrize("trial_id, head_width", [(0, 32), (1, 128)])
def test_trial_id_lays_the_trial_over_the_file(experiment, conf_file, study, trial_id, head_width):
    manager = experiment(config=conf_file, trial_id=trial_id, **study)
    hyperparams, saved = manager.read_hyperparameters()
    assert hyperparams["policy_kwargs"].pop("activation_fn").__name__ == "ReLU"
    assert hyperparams["policy_kwargs"] == {"n_cosines": 16, "net_arch": [128, 128], "head_arch": [head_width]}
    assert (hyperparams["alpha_min"], hyperparams["n_heads"], hyperparams["batch_size"]) == (0.2, 5, 64)
    assert dict(saved) == hyperparams and list(saved) == sorted(saved)
    assert manager.trial_id == trial_id


def test_params_win_over_the_trial(experiment, conf_file, study):
    manager = experiment(config=conf_file, trial_id=1, hyperparams={"n_heads": 7}, **study)
    hyperparams, _ = manager.read_hyperparameters()
    assert (hyperparams["n_heads"], hyperparams["batch_size"]) == (7, 64)


def test_a_model_is_built_from_a_trial(experiment, study):
    manager = experiment(config=default_config("ora_iqn"), trial_id=1, **study)
    model, _ = manager.setup_experiment()
    assert (model.n_heads, model.risk_scope, model.eta) == (5, "action", "auto")
    assert model.policy_kwargs["head_arch"] == [128]


# Trials that go wrong


def search(experiment, conf_file, monkeypatch):
    """The trials of a search of two, after which the callbacks are those of the file again."""
    studies, create = [], optuna.create_study
    monkeypatch.setattr(optuna, "create_study", lambda **kwargs: studies.append(create(**kwargs)) or studies[-1])
    manager = optimization(experiment, conf_file)
    manager.setup_experiment()
    specified = manager.specified_callbacks
    manager.hyperparameters_optimization()
    assert manager.specified_callbacks is specified
    return studies[0].trials


def test_a_trial_with_nan_is_pruned(experiment, conf_file, monkeypatch):
    learn, calls = ORAIQN.learn, []

    def learn_or_not(model, *args, **kwargs):
        calls.append(model)
        if len(calls) == 1:
            raise NotFiniteError("the loss is nan")
        return learn(model, *args, **kwargs)

    monkeypatch.setattr(ORAIQN, "learn", learn_or_not)
    trials = search(experiment, conf_file, monkeypatch)
    assert [trial.state.name for trial in trials] == ["PRUNED", "COMPLETE"]


def test_trials_have_no_checkpoints_of_the_run(experiment, conf_file, monkeypatch, tmp_path):
    options = f"{{save_freq: 20, folder: {tmp_path / 'checkpoints'}}}"
    with open(conf_file, "a") as file:
        file.write(f"  callback:\n    - sb3_ora.checkpoint.RunCheckpoint: {options}\n")
    trials = search(experiment, conf_file, monkeypatch)
    assert [trial.state.name for trial in trials] == ["COMPLETE"] * 2
    assert not list(tmp_path.glob("checkpoints/*.zip"))


@pytest.mark.parametrize("entry", [{"reference": "visit"}, {"state_key": "simhash"}])
def test_levels_of_states_stay(entry):
    """What the file says makes no sense with another scope, which the constructor would refuse."""
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=1))
    for _ in range(10):
        with sampling_around(entry):
            sampled = SAMPLERS["ora_iqn"](study.ask(), 0, 1, {})
        assert "risk_scope" not in sampled and "n_heads" in sampled
