"""The reference code's episodes and probes, and the statistics of its resets."""

import json

import numpy as np
import pytest

from sb3_ora.envs import NanoDroneEnv
from sb3_ora.envs.nano_drone.config import OUTCOMES, VELOCITIES, NanoDroneConfig
from sb3_ora.envs.nano_drone.core import NanoDroneCore, load_backend
from sb3_ora.envs.nano_drone.layouts import Layout, check_options, rectangle_edges
from tests.envs.conftest import DATA

N_RESETS = 2000
FALSE_ALARM = 1e-4  # of the comparison of all statistics of all modes together


def test_actions_and_outcomes_have_their_numbers(golden):
    np.testing.assert_array_equal(VELOCITIES, golden["action_vel"])
    assert [name.lower() for name in golden["info_names"]] == list(OUTCOMES)


def test_probes(golden, compiled):
    sense = load_backend(compiled).sense
    for i, n in enumerate(golden["probe_n"]):
        edges = np.empty((2, 26))
        rectangle_edges(golden["probe_obstacles"][i, :n], edges)
        sensed = sense(edges[:, :, None], golden["probe_pos"][i])
        np.testing.assert_allclose(sensed[:, 1:], golden["probe_ranger"][i], rtol=0, atol=1e-6)
        np.testing.assert_allclose(sensed[:, 0] - 0.05, golden["probe_clearance"][i], rtol=0, atol=1e-12)
        np.testing.assert_array_equal(sensed[:, 0] - 0.05 <= 0, golden["probe_collision"][i])
        np.testing.assert_array_equal(sensed[:, 0] - 1.0 > 0, golden["probe_far_enough"][i])


def layout(golden, episode):
    obstacles = golden["obstacles"][episode, : golden["n_obs"][episode]]
    return {"obstacles": obstacles, "start": golden["start"][episode], "goal": golden["goal"][episode]}


def test_episodes_of_all_drones_at_once(golden, compiled):
    """Those labels that hang on rounding (``tie``) come out as the reference has them, too."""
    lengths = golden["ep_len"]
    core = NanoDroneCore(len(lengths), NanoDroneConfig(max_steps=251, ranger_noise=0.0, mode="fixed"), compiled)
    for episode in range(len(lengths)):
        core.reset(episode, np.random.default_rng(0), check_options(layout(golden, episode)))
    for t in range(lengths.max() + 1):
        on = t <= lengths
        np.testing.assert_array_equal(core.state[on, :2], golden["pos"][on, t])
        np.testing.assert_allclose(core.state[on, 4], golden["goal_dist"][on, t], rtol=0, atol=1e-12)
        np.testing.assert_allclose(core.state[on, 5:], golden["ranger"][on, t], rtol=0, atol=1e-6)
        if t > 0:
            np.testing.assert_allclose(core.rewards[on], golden["reward"][on, t - 1], rtol=0, atol=1e-12)
            np.testing.assert_allclose(core.clearances[on], golden["clearance"][on, t - 1], rtol=0, atol=1e-12)
            np.testing.assert_array_equal(core.outcomes[on], golden["info"][on, t - 1])
        if t < lengths.max():
            core.step(np.where(t < lengths, golden["action"][:, t], 0))
    assert golden["tie"].sum() > 0 and {*np.unique(golden["info"][golden["info"] >= 0])} == {*range(5)}


@pytest.mark.parametrize("episode", [1, 4, 16, 25, 41, 42, 44, 46, 49, 61, 62, 63])
def test_episodes_of_the_environment(golden, episode):
    env = NanoDroneEnv(max_steps=251, ranger_noise=0.0)
    obs, info = env.reset(seed=0, options=layout(golden, episode))
    assert info["n_obstacles"] == golden["n_obs"][episode]
    for t in range(golden["ep_len"][episode] + 1):
        expected = np.hstack([golden[name][episode, t] for name in ("pos", "goal_dist", "ranger")])
        np.testing.assert_allclose(obs, expected, rtol=0, atol=1.5e-6)
        if t == golden["ep_len"][episode]:
            break
        obs, reward, terminated, truncated, info = env.step(golden["action"][episode, t])
        code = golden["info"][episode, t]
        assert reward == pytest.approx(golden["reward"][episode, t], abs=1e-12)
        assert info["clearance"] == pytest.approx(golden["clearance"][episode, t], abs=1e-12)
        assert info["outcome"] == OUTCOMES[code] and info["is_success"] == (code == 2)
        assert (terminated, truncated) == (code in (2, 3), code == 4)
        assert golden["done"][episode, t] == (terminated or truncated)


def nearest(layouts, points, walls):
    """Distance from points (R, 2) to the nearest edge, and whether they lie in an obstacle: projection on each segment."""
    n_most = max(map(len, layouts)) + 1
    boxes = np.full((len(points), n_most, 4), np.nan)  # left, lower, right, upper
    for i, obstacles in enumerate(layouts):
        centres, halves = obstacles[:, :2], obstacles[:, 2:] / 2
        boxes[i, : len(obstacles)] = np.hstack([centres - halves, centres + halves])
    if walls:
        boxes[:, -1] = [-4.0, -4.0, 4.0, 4.0]
    corners = boxes[:, :, [[0, 1], [2, 1], [2, 3], [0, 3], [0, 1]]]  # (R, n, 5, 2)
    tails, heads = corners[:, :, :-1], corners[:, :, 1:]
    offsets, edges = points[:, None, None] - tails, heads - tails
    share = np.clip((offsets * edges).sum(-1) / (edges**2).sum(-1), 0, 1)[..., None]
    distances = np.linalg.norm(offsets - share * edges, axis=-1).reshape(len(points), -1)
    inside = (boxes[:, :, :2] < points[:, None]) & (points[:, None] < boxes[:, :, 2:])
    return np.nanmin(np.hstack([distances, np.full((len(points), 1), np.inf)]), axis=1), inside.all(-1)[:, : n_most - 1].any(1)


def draw(mode, n_obstacles):
    core = NanoDroneCore(1, NanoDroneConfig(n_obstacles, mode))
    generator, layouts, starts, goals = np.random.default_rng(7), [], [], []
    for _ in range(N_RESETS):
        core.reset(0, generator, Layout())
        layouts.append(core.obstacles[0].copy())
        starts.append(core.state[0, :2].copy())
        goals.append(core.goals[0].copy())
    starts, goals = np.array(starts), np.array(goals)
    samples = dict(zip(("cx", "cy", "wx", "wy"), np.concatenate(layouts).T, strict=True))
    samples |= {f"{name}_{axis}": p[:, i] for name, p in (("start", starts), ("goal", goals)) for i, axis in enumerate("xy")}
    samples["start_goal_dist"] = np.hypot(*(starts - goals).T)
    samples["start_edge_dist"], inside = nearest(layouts, starts, walls=True)
    samples["goal_edge_dist"], _ = nearest(layouts, goals, walls=True)
    shares = {
        "p_start_within_goal_radius": samples["start_goal_dist"] < 0.5,
        "p_start_y_gt_2": starts[:, 1] > 2,
        "p_start_y_gt_0": starts[:, 1] > 0,
        "p_start_inside_obstacle": inside,
        "p_start_in_collision_band": samples["start_edge_dist"] <= 0.05,
        "p_start_inside_or_band": inside | (samples["start_edge_dist"] <= 0.05),
        "p_goal_disc_touches_obstacle": nearest(layouts, goals, walls=False)[0] < 0.5,
    }
    return np.array([len(obstacles) for obstacles in layouts]), samples, shares


def deviations(name, sample, known):
    """Standardised differences of the mean, and of the variance where there is any."""
    n, m = len(sample), known["n"]
    if known["std"] == 0:
        np.testing.assert_allclose(sample, known["mean"])
        return {}
    spread = known["std"] * np.sqrt(1 / n + 1 / m)
    # The variance of a sample variance is sigma^4 (kurtosis + 2) / n
    variance_spread = known["std"] ** 2 * np.sqrt((known["kurt"] + 2) * (1 / n + 1 / m))
    return {
        f"mean of {name}": (sample.mean() - known["mean"]) / spread,
        f"variance of {name}": (sample.var() - known["std"] ** 2) / variance_spread,
    }


def test_statistics_of_resets():
    """
    Two-sample tests against 20 000 resets of the reference in each mode. Each has the false-alarm rate
    ``FALSE_ALARM`` / (number of tests), so all together have at most ``FALSE_ALARM``.
    """
    from scipy.stats import chi2_contingency, norm

    known_modes = json.loads((DATA / "nano_drone_resets.json").read_text())
    p_values = {}
    for mode, known in known_modes.items():
        counts, samples, shares = draw(mode.split("_")[0], known["obstacle_num"])
        for name, sample in samples.items():
            z = deviations(f"{name} in {mode}", sample, known[name])
            p_values |= {key: 2 * norm.sf(abs(value)) for key, value in z.items()}
        for name, happened in shares.items():
            together = (happened.sum() + 20_000 * known[name]) / (N_RESETS + 20_000)
            if together * N_RESETS < 10:  # too few for the normal law
                continue
            spread = np.sqrt(together * (1 - together) * (1 / N_RESETS + 1 / 20_000))
            p_values[f"{name} in {mode}"] = 2 * norm.sf(abs(happened.mean() - known[name]) / spread)
        table = np.array([np.bincount(counts, minlength=len(known["count_hist"])), known["count_hist"]])
        table = table[:, table.sum(axis=0) > 0]
        if table.shape[1] > 1:
            p_values[f"count in {mode}"] = chi2_contingency(table).pvalue
        else:
            assert counts.min() == counts.max() == known["obstacle_num"]
    assert len(p_values) > 150
    assert min(p_values.values()) > FALSE_ALARM / len(p_values), min(p_values.items(), key=lambda item: item[1])
