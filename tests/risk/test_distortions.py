import pickle

import numpy as np
import pytest
import torch as th
from scipy import stats
from scipy.integrate import quad

from sb3_ora.risk import CPW, CVaR, Distortion, Neutral, Power, Wang, make_distortion, midpoints

# Section 3.1 of the IQN paper, written with numpy and scipy
FORMULAS = [
    (Neutral(), 1.0, lambda t: t),
    (CVaR(), 0.25, lambda t: 0.25 * t),
    (CVaR(), 1.0, lambda t: t),
    (Wang(), -0.75, lambda t: stats.norm.cdf(stats.norm.ppf(t) - 0.75)),
    (Wang(), 0.75, lambda t: stats.norm.cdf(stats.norm.ppf(t) + 0.75)),
    (CPW(), 0.71, lambda t: t**0.71 / (t**0.71 + (1 - t) ** 0.71) ** (1 / 0.71)),
    (Power(), -2.0, lambda t: 1 - (1 - t) ** (1 / 3)),
    (Power(), 2.0, lambda t: t ** (1 / 3)),
    (Power(), 0.3, lambda t: t ** (1 / 1.3)),
    (Power(), 0.0, lambda t: t),
]


@pytest.mark.parametrize(("distortion", "level", "formula"), FORMULAS)
def test_formulas(distortion, level, formula):
    taus = np.linspace(0.0, 1.0, 101)
    np.testing.assert_allclose(distortion(th.tensor(taus), level).numpy(), formula(taus), atol=1e-12)
    single = distortion(th.tensor(taus, dtype=th.float32), level)
    assert single.dtype == th.float32
    np.testing.assert_allclose(single.numpy(), formula(taus), atol=1e-6)


@pytest.mark.parametrize(
    ("distortion", "quantile", "mean"),
    [
        (Neutral(), stats.norm.ppf, 0.0),
        (Wang(0.4), stats.norm.ppf, 0.4),  # shifts a standard normal return
        (CVaR(0.25), stats.norm.ppf, -stats.norm.pdf(stats.norm.ppf(0.25)) / 0.25),
        (Power(-2.0), lambda t: t, 1 / 4),
        (Power(2.0), lambda t: t, 3 / 4),
        (CPW(0.71), lambda t: t, quad(lambda t: t**0.71 / (t**0.71 + (1 - t) ** 0.71) ** (1 / 0.71), 0, 1)[0]),
    ],
    ids=repr,
)
def test_distorted_means_of_known_returns(distortion, quantile, mean):
    taus = distortion(midpoints(20_000).double())
    assert np.mean(quantile(taus.numpy())) == pytest.approx(mean, abs=1e-3)


@pytest.mark.parametrize("name", ["neutral", "cvar", "wang", "cpw", "power"])
def test_levels_of_the_paper_are_the_defaults(name):
    distortion = make_distortion(name)
    assert distortion.default_level == {"neutral": 1.0, "cvar": 0.25, "wang": -0.75, "cpw": 0.71, "power": -2.0}[name]
    taus = midpoints(9)
    assert th.equal(distortion(taus), distortion(taus, distortion.default_level))


@pytest.mark.parametrize("distortion", [CVaR(), Wang(), CPW(), Power()], ids=repr)
def test_one_level_for_each_row(distortion):
    levels = [0.2, 0.9, 1.0]
    taus = th.rand(3, 8, generator=th.Generator().manual_seed(0))
    together = distortion(taus, th.tensor(levels).unsqueeze(1))
    for row, level in enumerate(levels):
        th.testing.assert_close(together[row], distortion(taus[row], level))


def test_power_takes_levels_of_both_signs_at_once():
    taus = th.full((2, 1), 0.5, dtype=th.float64)
    result = Power()(taus, th.tensor([[-2.0], [2.0]], dtype=th.float64))
    np.testing.assert_allclose(result.numpy(), [[1 - 0.5 ** (1 / 3)], [0.5 ** (1 / 3)]])


@pytest.mark.parametrize("distortion", [CVaR(), CPW()], ids=repr)
@pytest.mark.parametrize("level", [0.0, -0.5, 1.5, float("nan"), "0.5", None])
def test_levels_of_cvar_and_cpw_lie_in_the_unit_interval(distortion, level):
    with pytest.raises(ValueError, match=r"risk_level must be a number in \(0, 1\]"):
        distortion.check_level(level)
    if level is not None:
        with pytest.raises(ValueError, match="risk_level"):
            distortion(midpoints(3), level)
        with pytest.raises(ValueError, match="risk_level"):
            type(distortion)(level)


@pytest.mark.parametrize("distortion", [Wang(), Power()], ids=repr)
def test_levels_of_wang_and_power_are_finite(distortion):
    distortion.check_level(-3.0)
    with pytest.raises(ValueError, match="risk_level"):
        distortion.check_level(float("inf"))


def test_a_level_without_effect_is_refused():
    Neutral().check_level(1.0)
    with pytest.raises(ValueError, match=r"risk_level=0.1 has no effect with the neutral distortion"):
        Neutral().check_level(0.1)


def test_own_distortion_stays_in_the_unit_interval():
    class Shift(Distortion):
        paper_level = 0.0

        def distort(self, taus, level):
            return taus + level

    assert Shift()(th.tensor([0.0, 0.5, 1.0]), 0.75).tolist() == [0.75, 1.0, 1.0]
    assert Shift()(th.tensor([0.5])).tolist() == [0.5]


def test_distortions_are_values():
    assert CVaR(0.1) == CVaR(0.1)
    assert CVaR(0.1) != CVaR(0.2)
    assert CVaR(0.71) != CPW(0.71)
    assert CVaR() == CVaR(0.25)
    assert repr(Wang(-0.5)) == "Wang(default_level=-0.5)"
    assert pickle.loads(pickle.dumps(Power(-1.0))) == Power(-1.0)


def test_make_distortion():
    own = CVaR(0.05)
    assert make_distortion(own) is own
    for name, expected in [("neutral", Neutral()), ("cvar", CVaR()), ("wang", Wang()), ("cpw", CPW()), ("power", Power())]:
        assert make_distortion(name) == expected
    with pytest.raises(ValueError, match=r"distortion must be one of .*'cpw'.*got 'CVaR'"):
        make_distortion("CVaR")
    with pytest.raises(TypeError, match="distortion"):
        make_distortion(0.25)


def test_midpoints():
    assert midpoints(4).tolist() == [0.125, 0.375, 0.625, 0.875]
    assert midpoints(1).tolist() == [0.5]
    assert midpoints(7, device="cpu").dtype == th.float32
    with pytest.raises(ValueError, match="n must be"):
        midpoints(0)
