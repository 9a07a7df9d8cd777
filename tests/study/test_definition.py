import shlex
import sys
from pathlib import Path

import pytest
import yaml

from sb3_ora.study.definition import load_study
from tests.study.made_up import write_study
from tests.toy_envs import stand_in

ROOT = Path(__file__).parents[2]
STUDIES = ("cartpole", "nano_drone", "knapsack", "atari", "ensemble_size")
CONFIGS = [*((name, config) for name in STUDIES for config in ("paper", "tuned")), ("ablation", "tuned"), ("zoo", "tuned")]

TEXT = """
title: A study
environments:
  CartPole-v1: {}
  or_gym/Knapsack-v1:
    env_kwargs: {n_items: 5, normalize: true}
    tests: {small: {}, large: {n_items: 9}}
seeds: 3
evaluation: {freq: 100}
configs:
  tuned:
    hyperparams: {gamma: 0.9, n_timesteps: 100, policy_kwargs: {net_arch: [8], n_cosines: 4}}
    algorithms:
      ora_iqn: {hyperparams: {n_heads: 3, gamma: 0.8}}
  paper:
    base: none
    hyperparams: {n_timesteps: 200}
methods:
  ora-cvar: {name: ORA, algo: ora_iqn, hyperparams: {eta: 1}, tuned: {hyperparams: {policy_kwargs: {net_arch: [16]}}}}
  iqn-0.1: {algo: iqn, paper: {base: zoo, hyperparams: {gamma: 0.7}}}
"""


def test_layers_of_hyperparameters(tmp_path):
    study = write_study(tmp_path, TEXT)
    ora, iqn = study.methods
    assert (ora.label, ora.name, ora.algo, ora.base) == ("ora-cvar", "ORA", "ora_iqn", "zoo")
    assert ora.hyperparams == {
        "gamma": 0.8,
        "n_timesteps": 100,
        "n_heads": 3,
        "eta": 1,
        "policy_kwargs": {"net_arch": [16], "n_cosines": 4},
    }
    assert iqn.name == "iqn-0.1"
    assert iqn.hyperparams == {"gamma": 0.9, "n_timesteps": 100, "policy_kwargs": {"net_arch": [8], "n_cosines": 4}}
    ora, iqn = load_study(study.path, "paper").methods
    assert (ora.base, ora.hyperparams) == ("none", {"n_timesteps": 200, "eta": 1})
    assert (iqn.base, iqn.hyperparams) == ("zoo", {"n_timesteps": 200, "gamma": 0.7})


def test_cells(tmp_path):
    study = write_study(tmp_path, TEXT)
    cells = study.cells()
    assert len(cells) == 3 * 2 * 2 and len({cell.folder for cell in cells}) == 12
    assert [cell.seed for cell in cells[:5]] == [1, 1, 1, 1, 2]
    assert cells[0].folder == tmp_path / "out" / "made_up-tuned" / "ora-cvar" / "ora_iqn" / "CartPole-v1_1"
    assert cells[3].name == "iqn-0.1/iqn/or_gym-Knapsack-v1_1"
    assert cells[3].environment.tests == {
        "small": {"n_items": 5, "normalize": True},
        "large": {"n_items": 9, "normalize": True},
    }
    assert cells[0].environment.tests == {"test": {}}
    assert study.cells(["iqn"]) == study.cells(["iqn-0.1"]) == [cell for cell in cells if cell.method.algo == "iqn"]
    assert [cell.seed for cell in load_study(study.path, seeds=2).cells(["iqn"])] == [1, 1, 2, 2]
    assert [cell.seed for cell in load_study(study.path, seeds=[7]).cells(["iqn"])] == [7, 7]


def test_the_command_finds_the_same_cell(tmp_path):
    from sb3_ora.study.__main__ import build_parser, find_cell

    (cell, *_) = write_study(tmp_path, TEXT).cells(["iqn"])
    words = shlex.split(cell.shell_line)
    assert words[:3] == [sys.executable, "-m", "sb3_ora.study"]
    args = build_parser().parse_args(words[3:])
    study = load_study(args.study, args.config, args.output, [args.seed])
    assert find_cell(study, args.label, args.env) == cell


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("title: A", "titel: A", "each key of made_up.yml must be one of .*, got 'titel'"),
        ("seeds: 3", "seeds: 0", "seeds must be an integer of at least 1, got 0"),
        ("base: none", "base: all", "base must be one of 'zoo', 'none', got 'all'"),
        ("{freq: 100}", "{frequency: 100}", "each key of evaluation must be one of .*, got 'frequency'"),
        ("algo: iqn,", "", "methods.iqn-0.1 must have algo"),
        (
            "iqn-0.1:",
            "report:",
            r"each label of methods must be .* other than 'report' and 'report-\*', got 'report'",
        ),
        ("iqn-0.1:", "report-iqn:", "each label of methods must be a name of a folder .* got 'report-iqn'"),
        ("iqn-0.1:", "a/b:", "each label of methods must be a name of a folder .* got 'a/b'"),
        ("hyperparams: {eta: 1}", "hyperparameters: {eta: 1}", "each key of methods.ora-cvar must be one of"),
        ("tuned: {hyperparams", "tuned: {hyperparms", "each key of methods.ora-cvar.tuned must be one of .*'hyperparms'"),
        ("paper: {base", "paper: {bas", "each key of methods.iqn-0.1.paper must be one of .*'bas'"),
        ("      ora_iqn: ", "      ora_iqm: ", "each key of configs.tuned.algorithms must be one of .*, got 'ora_iqm'"),
        ("seeds: 3", "seeds: [1, 2, 1]", r"seeds must differ, got \[1, 2, 1\]"),
        ("freq: 100", "freq: x", "evaluation.freq must be an integer of at least 1, got 'x'"),
        ("freq: 100", "final_episodes: 0", "evaluation.final_episodes must be an integer of at least 1, got 0"),
        ("freq: 100", "references: [a]", r"evaluation.references must be a mapping, got \['a'\]"),
        ("environments:", "environments: [", "made_up.yml is no YAML: .*"),
        ("tests: {small", "test: {small", "each key of environments.or_gym/Knapsack-v1 must be one of"),
        ("seeds: 3", "seeds: []", r"seeds must be at least one, got \[\]"),
        ("seeds: 3", "seeds: [4294967296]", "each seed must be an integer in .*, got 4294967296"),
        ("title: A", "title: B\ntitle: A", "made_up.yml is no YAML: the key 'title' is there twice"),
        ("iqn-0.1:", "..:", "each label of methods must be a name of a folder .* got '..'"),
        ("algo: iqn,", "algo: [iqn],", r"methods.iqn-0.1 must have algo, a name, got \['iqn'\]"),
        ("hyperparams: {eta: 1}", "hyperparams: [eta]", r"hyperparams for methods.ora-cvar must be a mapping, got \['eta'\]"),
        (
            "hyperparams: {eta: 1}",
            "hyperparams: {env_kwargs: {}}",
            "for methods.ora-cvar must not hold env_kwargs: give them to",
        ),
        (
            "tests: {small: {",
            "tests: {small: a, smaller: {",
            "environments.or_gym/Knapsack-v1.tests.small must be a mapping, got 'a'",
        ),
    ],
)
def test_faults_in_a_file(tmp_path, old, new, message):
    assert old in TEXT
    with pytest.raises(ValueError, match=message):
        write_study(tmp_path, TEXT.replace(old, new, 1))


def test_unknown_names(tmp_path):
    study = write_study(tmp_path, TEXT)
    with pytest.raises(ValueError, match="config must be one of 'tuned', 'paper', got 'best'"):
        load_study(study.path, "best")
    known = "'iqn', 'iqn-0.1', 'ora-cvar', 'ora_iqn', 'CartPole-v1', 'or_gym/Knapsack-v1'"
    with pytest.raises(ValueError, match=f"^--only must be one of {known}, got 'ora'"):
        study.cells(["ora"])


def test_a_file_that_is_not_there(tmp_path, monkeypatch, capsys):
    from sb3_ora.study.__main__ import main

    monkeypatch.chdir(tmp_path)
    for names, there in (([], "no *.yml"), (["zoo.yml", "atari.yml", "notes.txt"], "atari.yml, zoo.yml")):
        (tmp_path / "studies").mkdir(exist_ok=True)
        for name in names:
            (tmp_path / "studies" / name).touch()
        assert main(["status", "studies/cartpol.yml"]) == 2
        assert capsys.readouterr().err == f"error: no file 'studies/cartpol.yml'; its folder has {there}\n"


def test_only_some_methods_and_environments(tmp_path):
    def kept(*only):
        return [(cell.method.label, cell.environment.env_id, cell.seed) for cell in study.cells(only) if cell.seed < 3]

    study = write_study(tmp_path, TEXT)
    pole, knapsack = "CartPole-v1", "or_gym/Knapsack-v1"
    assert kept() == [(m, e, s) for s in (1, 2) for e in (pole, knapsack) for m in ("ora-cvar", "iqn-0.1")]
    assert kept("iqn") == [("iqn-0.1", e, s) for s in (1, 2) for e in (pole, knapsack)]
    assert kept(knapsack) == [(m, knapsack, s) for s in (1, 2) for m in ("ora-cvar", "iqn-0.1")]
    assert kept(pole, "ora-cvar") == [("ora-cvar", pole, 1), ("ora-cvar", pole, 2)]
    assert kept("iqn", "ora-cvar", pole, knapsack) == kept()


# The studies of the paper


@pytest.mark.parametrize(("name", "config"), CONFIGS)
def test_studies_of_the_paper(name, config):
    from sb3_ora.study.report import read_options
    from sb3_ora.study.styles import STYLES

    study = load_study(ROOT / "studies" / f"{name}.yml", config)
    options = read_options(study)
    labels = [method.label for method in study.methods]
    assert name == "ablation" or set(labels) <= STYLES.keys()  # variants have styles made from their labels
    assert options["reference"] in labels
    by_quantity = [paper for quantities in options["effects"].values() for paper in quantities.values()]
    for paper in (*by_quantity, options["paper_outcomes"]):
        assert set(paper) <= {*labels}
    tests = {env.env_id: {"training", *(f"test: {test}" for test in env.tests)} for env in study.environments}
    for env, quantities in options["effects"].items():
        assert set(quantities) <= tests[env]
    for method in study.methods:
        assert method.base == "zoo" or {"policy", "n_timesteps"} <= method.hyperparams.keys()


@pytest.mark.parametrize(("name", "config"), CONFIGS)
def test_their_hyperparameters_make_models(name, config):
    """Every method of every study is a model that can be built, on a stand-in for its environment."""
    from rl_zoo3.exp_manager import ExperimentManager
    from rl_zoo3.utils import ALGOS

    from sb3_ora.zoo import ALGORITHMS, register
    from sb3_ora.zoo.files import default_config

    register()
    study = load_study(ROOT / "studies" / f"{name}.yml", config)
    for method in study.methods:
        base = {}
        if method.base == "zoo" and method.algo in ALGORITHMS:
            entries = yaml.safe_load(Path(default_config(method.algo)).read_text())
            base = entries.get(study.environments[0].env_id, entries["atari" if name == "atari" else "default"])
        hyperparams = {"policy": "MlpPolicy", **base, **method.hyperparams, "buffer_size": 100}
        for key in ("n_timesteps", "n_envs", "normalize", "env_wrapper", "frame_stack"):
            hyperparams.pop(key, None)
        if isinstance(hyperparams.get("policy_kwargs"), str):
            hyperparams["policy_kwargs"] = eval(hyperparams["policy_kwargs"])
        if isinstance(hyperparams.get("learning_rate"), str):
            hyperparams["learning_rate"] = ExperimentManager._preprocess_schedules(hyperparams)["learning_rate"]
        ALGOS[method.algo](env=stand_in(hyperparams["policy"]), device="cpu", **hyperparams)


def test_defaults_are_those_of_the_docs(tmp_path):
    study = write_study(tmp_path, "environments: {A-v0: {}}\nconfigs: {tuned: {}}\nmethods: {iqn: {algo: iqn}}\n")
    assert study.evaluation == {"freq": 5000, "episodes": 10, "final_episodes": 100, "references": {}}
    assert (study.seeds, study.device, study.packages) == ([1], "cpu", [])
