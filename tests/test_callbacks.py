"""Stable-Baselines3's callbacks with our algorithms: when they are called, what they write, and when they stop training."""

import numpy as np
import pytest
from stable_baselines3.common.callbacks import (
    BaseCallback,
    CallbackList,
    CheckpointCallback,
    EvalCallback,
    EveryNTimesteps,
    StopTrainingOnMaxEpisodes,
    StopTrainingOnNoModelImprovement,
    StopTrainingOnRewardThreshold,
)

from tests.tiny import ALGORITHMS, several, tiny
from tests.toy_envs import Scripted


def evaluation(lengths=(4,), **kwargs):
    """Evaluates every 10 steps; an episode's return is its length, whatever the model does."""
    return EvalCallback(
        several(lambda: Scripted(lengths), 1), eval_freq=10, n_eval_episodes=2, verbose=0, warn=False, **kwargs
    )


class Steps(BaseCallback):
    """Keeps when it is called."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def _on_step(self):
        self.seen.append(self.num_timesteps)
        return True


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_checkpoints_and_events(algorithm, tmp_path):
    files = CheckpointCallback(40, str(tmp_path), name_prefix="m", save_replay_buffer=True)
    event, each = Steps(), Steps()
    model = tiny(algorithm, Scripted((4,)))
    model.learn(100, callback=CallbackList([files, EveryNTimesteps(25, event), each]))
    names = {f"m_{n}_steps.zip" for n in (40, 80)} | {f"m_replay_buffer_{n}_steps.pkl" for n in (40, 80)}
    assert {path.name for path in tmp_path.iterdir()} == names
    assert event.seen == [25, 50, 75, 100] and each.seen == list(range(1, 101))
    assert each.locals["new_obs"].shape == (1, 2) and files.locals["new_obs"] is each.locals["new_obs"]
    loaded = algorithm.load(tmp_path / "m_80_steps", env=Scripted((4,)), device="cpu")
    loaded.load_replay_buffer(tmp_path / "m_replay_buffer_80_steps")
    assert loaded.num_timesteps == 80 and loaded.replay_buffer.size() == 79  # the step itself is stored after the call
    assert np.array_equal(loaded.replay_buffer.observations[:79], model.replay_buffer.observations[:79])


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_evaluations(algorithm, tmp_path):
    callback = evaluation((2, 6), best_model_save_path=str(tmp_path), log_path=str(tmp_path))
    tiny(algorithm, Scripted((4,)), n_steps=2).learn(30, callback=callback)
    written = np.load(tmp_path / "evaluations.npz")
    assert written["timesteps"].tolist() == [10, 20, 30]
    assert written["results"].tolist() == written["ep_lengths"].tolist()
    assert set(written["results"].ravel()) == {2, 6}
    assert callback.best_mean_reward == written["results"].mean(axis=1).max()
    assert algorithm.load(tmp_path / "best_model", device="cpu").num_timesteps == 10


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize(
    ("make", "steps"),
    [
        (lambda: StopTrainingOnMaxEpisodes(3), 21),
        (lambda: evaluation(callback_on_new_best=StopTrainingOnRewardThreshold(3.5)), 10),
        (lambda: evaluation(callback_on_new_best=StopTrainingOnRewardThreshold(4.5)), 60),
        # The first two evaluations are not counted, the next three are no better
        (lambda: evaluation(callback_after_eval=StopTrainingOnNoModelImprovement(2, min_evals=2)), 50),
        (lambda: lambda local, _: local["self"].num_timesteps < 33, 33),
    ],
    ids=["episodes", "reward", "reward not reached", "no improvement", "function"],
)
def test_stopping(algorithm, make, steps):
    model = tiny(algorithm, Scripted((7,))).learn(60, callback=make())
    assert model.num_timesteps == steps
    assert model.learn(12, reset_num_timesteps=False).num_timesteps == steps + 12


def test_episodes_of_several_environments():
    """Three episodes for each environment."""
    model = tiny(ALGORITHMS[0], several(lambda: Scripted((7,)), 2)).learn(200, callback=StopTrainingOnMaxEpisodes(3))
    assert model.num_timesteps == 2 * 21
