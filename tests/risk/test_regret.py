import numpy as np
import pytest

from sb3_ora.risk import regret


def test_regret_by_its_definition():
    rng = np.random.default_rng(0)
    losses, chosen = rng.random((50, 7)), rng.integers(0, 7, 50)
    result = regret(losses, chosen)
    assert result.shape == (50,)
    for t in range(1, 51):
        paid = sum(losses[i][chosen[i]] for i in range(t))
        best = min(sum(losses[i][g] for i in range(t)) for g in range(7))
        assert result[t - 1] == pytest.approx(paid - best)


def test_the_best_fixed_choice_has_no_regret_at_the_end_and_changing_choices_can_have_less():
    losses = np.array([[0.0, 1.0], [1.0, 0.0], [0.0, 1.0]])
    assert regret(losses, np.array([0, 0, 0])).tolist() == [0.0, 0.0, 0.0]
    assert regret(losses, np.array([0, 1, 0])).tolist() == [0.0, -1.0, -1.0]
    assert regret(np.zeros((0, 3)), np.zeros(0, dtype=int)).shape == (0,)


def test_bad_input_is_refused():
    with pytest.raises(ValueError, match="losses must be"):
        regret(np.zeros(3), np.zeros(3, dtype=int))
    with pytest.raises(ValueError, match="chosen"):
        regret(np.zeros((3, 2)), np.zeros(2, dtype=int))
    with pytest.raises(ValueError, match=r"chosen must lie in \[0, 2\)"):
        regret(np.zeros((3, 2)), np.array([0, 1, -1]))
    with pytest.raises(TypeError, match="chosen must hold integer grid indices"):
        regret(np.zeros((3, 2)), np.array([0.1, 0.5, 1.0]))
