import pickle

import numpy as np
import pytest
import torch as th

from sb3_ora import IQN
from sb3_ora.risk import PiecewiseLinear, make_level_schedule


def test_up_and_down_again():
    schedule = make_level_schedule("0.1->0.9->0.1")
    for progress_remaining, level in [(1.0, 0.1), (0.75, 0.5), (0.5, 0.9), (0.25, 0.5), (0.125, 0.3), (0.0, 0.1)]:
        assert schedule(progress_remaining) == pytest.approx(level)


def test_knots_are_equally_spaced():
    schedule = PiecewiseLinear([0.0, 3.0, 4.0, 10.0])
    assert [schedule(1 - third / 3) for third in range(4)] == pytest.approx([0.0, 3.0, 4.0, 10.0])
    assert schedule(1 - 0.5 / 3) == pytest.approx(1.5)
    assert schedule(0.5 / 3) == pytest.approx(7.0)


def test_progress_outside_training_counts_as_its_ends():
    schedule = PiecewiseLinear([0.2, 0.8])
    assert schedule(1.5) == 0.2
    assert schedule(-0.01) == 0.8


@pytest.mark.parametrize("spec", [0.25, "0.25", " 0.25 "])
def test_constants(spec):
    schedule = make_level_schedule(spec)
    assert [schedule(progress) for progress in (1.0, 0.3, 0.0)] == [0.25] * 3
    assert schedule == make_level_schedule(0.25)
    assert schedule != make_level_schedule(0.5)
    assert isinstance(schedule(0.3), float)


def test_negative_levels_and_blanks():
    assert make_level_schedule("-2 -> 1e-1") == PiecewiseLinear((-2.0, 0.1))


@pytest.mark.parametrize("kind", [float, np.float64, np.array, th.tensor])
def test_functions_return_numbers(kind):
    schedule = make_level_schedule(lambda progress_remaining: kind(progress_remaining / 2))
    assert schedule(0.5) == 0.25 and type(schedule(0.5)) is float
    assert make_level_schedule(schedule) is schedule


def test_functions_that_return_no_number_are_refused():
    with pytest.raises(ValueError, match=r"risk_level must return a number for 0\.5, got 'averse'"):
        make_level_schedule(lambda _: "averse")(0.5)


def test_schedules_are_values():
    schedule = PiecewiseLinear([0.1, 0.9])
    assert pickle.loads(pickle.dumps(schedule)) == schedule
    assert repr(schedule) == "PiecewiseLinear(points=(0.1, 0.9))"
    assert schedule != PiecewiseLinear([0.9, 0.1])


@pytest.mark.parametrize("spec", ["", "0.1->", "a->b", "0.1-0.9", "nan", "0.1->inf", float("inf"), True, None, [0.1, 0.9]])
def test_bad_levels_are_refused(spec):
    with pytest.raises(ValueError, match="risk_level"):
        make_level_schedule(spec)


def test_the_whole_text_is_in_the_message():
    with pytest.raises(ValueError, match=r"^risk_level='0.1->2': risk_level must be a number in \(0, 1\], got 2.0$"):
        IQN("MlpPolicy", "CartPole-v1", distortion="cvar", risk_level="0.1->2")


def test_no_points_are_refused():
    with pytest.raises(ValueError, match=r"points must be a list of at least one value, got \[\]"):
        PiecewiseLinear([])
