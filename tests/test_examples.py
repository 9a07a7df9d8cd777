"""The examples run, and do what they say; the Python code in README.md and docs/ runs too."""

import importlib.util
import re
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

import matplotlib.image
import numpy as np
import pandas as pd
import pytest
import torch as th

from sb3_ora import ORAIQN
from sb3_ora.envs import KnapsackEnv
from tests.tiny import tiny

ROOT = Path(__file__).parents[1]
# The CartPole settings learn from step 1000 on
STEPS = "1200"
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


@cache
def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"example_{name}", ROOT / "examples" / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_train_and_evaluate(tmp_path, capsys):
    load("train_and_evaluate").main(["--steps", STEPS, "--output", str(tmp_path / "new")])
    model = ORAIQN.load(tmp_path / "new" / "model.zip")
    assert model.num_timesteps >= int(STEPS) and model._n_updates > 0
    n_keys = len(model.policy.risk.table)
    assert n_keys > 0 and f"{n_keys} pairs" in capsys.readouterr().out


def test_custom_distortion_and_measure(capsys):
    example = load("custom_distortion_and_measure")
    example.main(["--steps", STEPS])
    printed = capsys.readouterr().out
    # Heads 3, 1, 2, 6: the mean is 3, the worst 1
    for alpha, value in ((0.1, 1.2), (0.5, 2.0), (1.0, 3.0)):
        assert f"at alpha {alpha}: {value:.2f}" in printed
    assert "mean return" in printed


def test_the_trimmed_mean_of_a_known_return():
    distortion = load("custom_distortion_and_measure").TrimmedMean()
    taus = (th.arange(1000, dtype=th.float64) + 0.5) / 1000
    # A return with the quantile function tau^2: the mean over the middle half is 2 * integral of t^2 from 1/4 to 3/4
    kept = (distortion(taus, 0.5) ** 2).mean().item()
    assert kept == pytest.approx(2 * (0.75**3 - 0.25**3) / 3, abs=1e-6)
    with pytest.raises(ValueError, match="risk_level"):
        distortion(taus, 1.5)


def test_custom_adapter():
    load("custom_adapter").main(["--steps", STEPS])


def test_the_custom_adapter_sets_alpha_by_disagreement_and_is_saved(tmp_path):
    example = load("custom_adapter")
    model = tiny(ORAIQN, "CartPole-v1", risk_adapter=example.DisagreementAdapter(), alpha_min=0.2, alpha_max=0.8)
    adapter = model.adapter
    after = np.array([[0.0, 1.0, 1.0, 1.0], [5.0, 5.0, 5.0, 5.0]])
    adapter._compare(np.array([3, 4]), np.zeros_like(after), after)
    # Spreads by hand: sqrt(2/4 * (1 - 0)^2) = 0.7071 and 0; the first running mean is their mean, half the first
    assert adapter.typical == pytest.approx(0.5**0.5 / 2)
    alphas = model.policy.risk.table.lookup(np.array([3, 4, 5]))
    assert alphas == pytest.approx([0.8 - 0.6 * 2 / 3, 0.8, 0.8])
    model.save(tmp_path / "model.zip")
    assert ORAIQN.load(tmp_path / "model.zip").adapter.typical == adapter.typical


def test_adaptive_against_fixed_risk(tmp_path, capsys):
    load("adaptive_against_fixed_risk").main(["--steps", "500", "--seeds", "1", "--output", str(tmp_path)])
    printed = capsys.readouterr().out
    names = ("adaptive", "fixed_at_0.1", "fixed_at_1")
    adaptive, averse, neutral = (pd.read_csv(tmp_path / name / "0" / "progress.csv") for name in names)
    assert averse["risk/alpha_mean"].dropna().to_numpy() == pytest.approx(0.1)
    assert neutral["risk/alpha_mean"].dropna().to_numpy() == pytest.approx(1.0)
    assert adaptive["risk/alpha_min"].min() < adaptive["risk/alpha_max"].max()
    assert printed.count("reach the goal") == 3
    assert matplotlib.image.imread(tmp_path / "ledge.png").std() > 0


def test_the_ledge():
    env = load("adaptive_against_fixed_risk").LedgeEnv(gust=0.0)
    up, right, down = 0, 1, 2
    env.reset(seed=0)
    assert env.step(right)[1:4] == (-1.0, True, False)
    env.reset()
    results = [env.step(action)[1:] for action in [up, right, right, right, right, down]]
    assert [reward for reward, *_ in results] == [0, 0, 0, 0, 0, 1]
    assert results[-1] == (1.0, True, False, {"is_success": True})


def test_nano_drone(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    example = load("nano_drone")
    example.main(["--steps", STEPS, "--layouts", "4", "--output", str(tmp_path / "new")])
    printed = capsys.readouterr().out
    assert "success %" in printed and printed.count("[") == 9  # three densities, three ends
    assert matplotlib.image.imread(tmp_path / "new" / "trajectories.png").std() > 0
    if find_spec("moviepy") and find_spec("pygame"):
        assert (tmp_path / "new" / "video" / "nano_drone-episode-0.mp4").stat().st_size > 1000
    model = ORAIQN.load(tmp_path / "new" / "model.zip")
    _, positions, outcome = example.fly(model, 0.5, seed=1)
    assert positions[0].tolist() == [0.0, -3.0] and outcome in ("reached", "collision", "timeout")
    assert np.abs(np.diff(positions, axis=0)).max() <= 0.1 + 1e-12


def test_knapsack(capsys):
    example = load("knapsack")
    example.main(["--instances", "3", "--episodes", "80"])
    instance, packed, optimum, greedy, to_optimum, to_greedy, steps = capsys.readouterr().out.splitlines()[1].split()
    env = KnapsackEnv(instance_seed=3)
    order = sorted(range(50), key=lambda item: env.item_values[item] / env.item_weights[item], reverse=True)
    assert instance == "3" and float(optimum) == env.optimal_value() and 0 < float(packed) <= float(optimum)
    assert float(to_optimum[:-1]) == pytest.approx(100 * (1 - float(packed) / float(optimum)), abs=0.01)
    assert float(to_greedy[:-1]) == pytest.approx(100 * (1 - float(packed) / float(greedy)), abs=0.01)
    assert int(steps) >= 80

    class Greedy:
        """Takes what is worth most per weight, of what fits."""

        def predict(self, observation, state, deterministic):
            fitting = [item for item in order if observation["action_mask"][item]]
            return fitting[0] if fitting else 0, None

    assert example.pack(Greedy(), env) == float(greedy)


@pytest.mark.slow
@pytest.mark.skipif(find_spec("ale_py") is None, reason="needs ale_py: pip install 'sb3_ora[atari]'")
def test_atari_with_the_zoo(tmp_path):
    sizes = ["--steps", "250", "--learning-starts", "200", "--buffer-size", "300"]
    load("atari_with_the_zoo").main([*sizes, "--output", str(tmp_path)])
    model = ORAIQN.load(tmp_path / "ora_iqn" / "MsPacmanNoFrameskip-v4_1" / "MsPacmanNoFrameskip-v4.zip")
    assert model._n_updates > 0


def test_every_example_is_tested():
    tested = re.findall(r'load\("(\w+)"\)', Path(__file__).read_text())
    assert {path.stem for path in (ROOT / "examples").glob("*.py")} == set(tested)


def python_blocks(page: Path) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", page.read_text(), flags=re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("page", [page for page in PAGES if python_blocks(page)], ids=lambda page: str(page.relative_to(ROOT)))
def test_code_in_the_documentation(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    # What follows in a page may use what came before; training is cut short
    code = re.sub(r"\.learn\([\d_]+", ".learn(150", "\n".join(python_blocks(page)))
    code = re.sub(r"save_freq=[\d_]+", "save_freq=50", code)
    exec(compile(code, page.name, "exec"), {"__name__": page.stem})


def test_relative_links_lead_somewhere():
    for page in PAGES:
        for target in re.findall(r"\]\((?!https?:|#)([^)#]+)[^)]*\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"
