import pickle

import numpy as np
import pytest
import torch as th
from gymnasium import spaces

from sb3_ora.risk import BucketKey, DiscreteKey, SimHashKey, StateKey, make_state_key
from sb3_ora.risk.keys import _splitmix64

UNIT_BOX = spaces.Box(0.0, 1.0, (3,))
VELOCITY_BOX = spaces.Box(np.array([-2.0, -np.inf, -3e38]), np.array([2.0, np.inf, 3e38]), dtype=np.float64)
IMAGE = spaces.Box(0, 255, (2, 3, 4), np.uint8)
WIDE_BOX = spaces.Box(-1.0, 1.0, (20,))
MASK = (1 << 64) - 1


def splitmix64(value):
    """One output of SplitMix64 in whole numbers."""
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & MASK
    return value ^ (value >> 31)


def hashed(digits):
    """The hash of long digit vectors in whole numbers: the same in every process and on every machine."""
    factors = [splitmix64((0x9E3779B97F4A7C15 * (i + 1)) & MASK) | 1 for i in range(len(digits))]
    return splitmix64(sum(d * f for d, f in zip(digits, factors, strict=True)) & MASK) >> 16


def test_splitmix_against_published_values():
    steps = [(0x9E3779B97F4A7C15 * (i + 1)) & MASK for i in range(3)]
    expected = [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]
    assert _splitmix64(np.array(steps, dtype=np.uint64)).tolist() == expected
    assert [splitmix64(step) for step in steps] == expected


# Buckets


def test_buckets_against_digitize():
    space = spaces.Box(np.array([-1.0, 0.0, 5.0]), np.array([1.0, 10.0, 6.0]), dtype=np.float64)
    observations = np.random.default_rng(0).uniform([-1.2, -1, 4.8], [1.2, 11, 6.2], (500, 3))
    digits = [
        np.clip(np.digitize(observations[:, d], np.linspace(space.low[d], space.high[d], 8)) - 1, 0, 6) for d in range(3)
    ]
    keys = BucketKey(space, n_bins=7)(observations)
    assert keys.dtype == np.int64
    assert keys.tolist() == np.ravel_multi_index(digits, (7, 7, 7)).tolist()


def test_every_bucket_has_its_own_key_and_edges_fall_into_the_end_buckets():
    centres = (np.arange(4) + 0.5) / 4
    grid = np.stack(np.meshgrid(centres, centres, centres), axis=-1).reshape(-1, 3)
    key = BucketKey(UNIT_BOX, n_bins=4)
    assert sorted(key(grid).tolist()) == list(range(64))
    corners = np.array([[0.0, 0.0, 0.0], [1.0, 1.0, 1.0], [-5.0, -np.inf, -1e30], [7.0, np.inf, 1e30]])
    assert key(corners).tolist() == [0, 63, 0, 63]


def test_bounded_buckets_need_no_fit():
    key = BucketKey(UNIT_BOX)
    observations = np.random.default_rng(0).random((50, 3))
    before = key(observations)
    assert key.fitted
    key.fit(observations * 100.0)
    assert key.state_dict() == {}
    key.load_state_dict({})
    assert np.array_equal(key(observations), before)


def test_unbounded_dimensions_are_cut_at_three_standard_deviations():
    rng = np.random.default_rng(1)
    seen = rng.normal([0.0, 5.0, -40.0], [1.0, 0.1, 8.0], (1000, 3))
    key = BucketKey(VELOCITY_BOX, n_bins=10)
    assert not key.fitted
    key.fit(seen)
    assert key.fitted
    mean, sd = seen.mean(axis=0), seen.std(axis=0)
    low, high = np.append(-2.0, mean[1:] - 3 * sd[1:]), np.append(2.0, mean[1:] + 3 * sd[1:])
    new = rng.normal(mean, 3 * sd, (500, 3))
    digits = [np.clip(np.digitize(new[:, d], np.linspace(low[d], high[d], 11)) - 1, 0, 9) for d in range(3)]
    assert key(new).tolist() == np.ravel_multi_index(digits, (10, 10, 10)).tolist()


def test_a_fit_is_frozen_and_saved(through_file):
    rng = np.random.default_rng(2)
    key = BucketKey(VELOCITY_BOX)
    assert key.state_dict() == {}
    assert key(np.array([[0.0, 2.9, 0.0]])) != key(np.array([[0.0, 0.0, 0.0]]))  # between -3 and 3 until fitted
    key.fit(rng.normal(10.0, 2.0, (200, 3)))
    new = rng.normal(10.0, 2.0, (300, 3))
    before = key(new)
    key.fit(rng.normal(-10.0, 2.0, (200, 3)))
    assert np.array_equal(key(new), before)
    twin = BucketKey(VELOCITY_BOX)
    assert not np.array_equal(twin(new), before)
    twin.load_state_dict(through_file(key.state_dict()))
    assert twin.fitted
    assert np.array_equal(twin(new), before)
    assert np.array_equal(pickle.loads(pickle.dumps(key))(new), before)


def test_dimensions_without_spread():
    key = BucketKey(spaces.Box(-np.inf, np.inf, (2,)))
    key.fit(np.full((10, 2), 4.0))
    assert key(np.array([[4.0, 4.0], [3.1, 4.0], [9.0, 9.0]])).tolist() == [55, 5, 99]
    constant = BucketKey(spaces.Box(np.array([1.0, 0.0]), np.array([1.0, 1.0]), dtype=np.float64), n_bins=4)
    assert constant(np.array([[1.0, 0.6]])).tolist() == [2]


@pytest.mark.parametrize("n_bins", [10, 1000])
def test_too_many_buckets_are_hashed(n_bins):
    rng = np.random.default_rng(3)
    digits = np.unique(rng.integers(0, n_bins, (20_000, 20)), axis=0)
    keys = BucketKey(WIDE_BOX, n_bins)(-1.0 + 2.0 * (digits + 0.5) / n_bins)
    assert keys.min() >= 0
    assert keys.max() < 2**48
    assert len(np.unique(keys)) == len(digits)
    assert keys[:50].tolist() == [hashed(row) for row in digits[:50].tolist()]


def test_hashes_of_near_buckets_differ():
    digits = np.full((1, 20), 4)
    near = np.concatenate([digits, *(digits + step * np.eye(20, dtype=int) for step in range(-4, 6) if step)])
    keys = BucketKey(WIDE_BOX)(-1.0 + 2.0 * (near + 0.5) / 10)
    assert len(np.unique(keys)) == len(near) == 181


def test_the_largest_exact_space_is_not_hashed():
    key = BucketKey(spaces.Box(0.0, 1.0, (48,)), n_bins=2)
    assert key(np.ones((1, 48))).tolist() == [2**48 - 1]
    assert key(np.eye(48)).tolist() == [2 ** (47 - d) for d in range(48)]
    assert BucketKey(spaces.Box(0.0, 1.0, (49,)), n_bins=2)(np.ones((1, 49))).tolist() == [hashed([1] * 49)]


# Discrete spaces


@pytest.mark.parametrize("shape", [(5,), (5, 1)])
def test_discrete_keys_honour_the_start(shape):
    key = DiscreteKey(spaces.Discrete(5, start=-2))
    assert key(np.arange(-2, 3).reshape(shape)).tolist() == [0, 1, 2, 3, 4]
    for outside in (-3, 3):
        with pytest.raises(ValueError, match="observations must lie in"):
            key(np.array([outside]))


def test_multi_discrete_and_multi_binary_keys_are_exact():
    members = np.array(list(np.ndindex(3, 2, 4)))
    assert DiscreteKey(spaces.MultiDiscrete([3, 2, 4]))(members).tolist() == list(range(24))
    shifted = spaces.MultiDiscrete([3, 2, 4], start=[10, -1, 0])
    assert DiscreteKey(shifted)(members + np.array([10, -1, 0])).tolist() == list(range(24))
    table = spaces.MultiDiscrete(np.array([[3, 2], [4, 2]]))
    assert DiscreteKey(table)(np.array([[[2, 1], [3, 1]]])).tolist() == [47]
    bits = np.array(list(np.ndindex(2, 2, 2, 2)), dtype=np.int8)
    assert DiscreteKey(spaces.MultiBinary(4))(bits).tolist() == list(range(16))
    assert DiscreteKey(spaces.MultiBinary((2, 2)))(bits.reshape(-1, 2, 2)).tolist() == list(range(16))


def test_huge_discrete_spaces_are_hashed():
    bits = np.random.default_rng(4).integers(0, 2, (5000, 300)).astype(np.int8)
    keys = DiscreteKey(spaces.MultiBinary(300))(bits)
    assert len(np.unique(keys)) == 5000
    assert keys.max() < 2**48
    assert keys[:20].tolist() == [hashed(row) for row in bits[:20].tolist()]


def test_discrete_keys_have_nothing_to_learn():
    key = DiscreteKey(spaces.Discrete(4))
    key.fit(np.array([0, 1]))
    assert key.fitted
    assert key.state_dict() == {}
    with pytest.raises(ValueError, match=r"state of DiscreteKey must be empty, got \['mean'\]"):
        key.load_state_dict({"mean": th.zeros(1)})


# SimHash


def test_bits_agree_as_often_as_the_angle_says():
    """Charikar: two vectors at an angle a share a bit with probability 1 - a / pi."""
    rng = np.random.default_rng(5)
    for angle in (0.1, 1.0, 2.0):
        first, other = np.linalg.qr(rng.normal(size=(6, 2)))[0].T
        pair = np.stack([first, np.cos(angle) * first + np.sin(angle) * other])
        shared = []
        for seed in range(100):
            one, two = SimHashKey(spaces.Box(-1.0, 1.0, (6,)), n_bits=48, seed=seed)(pair).tolist()
            shared.append(48 - (one ^ two).bit_count())
        assert np.mean(shared) / 48 == pytest.approx(1.0 - angle / np.pi, abs=0.03)


def test_keys_fit_the_number_of_bits():
    observations = np.random.default_rng(6).normal(size=(3000, 20))
    for n_bits in (1, 5, 48):
        keys = SimHashKey(WIDE_BOX, n_bits)(observations)
        assert keys.dtype == np.int64
        assert keys.min() >= 0
        assert keys.max() < 2**n_bits
    assert len(np.unique(keys)) > 2990
    assert len(np.unique(SimHashKey(WIDE_BOX, 1)(observations))) == 2
    assert 2**31 < SimHashKey(WIDE_BOX)(observations).max() < 2**32  # 32 bits by default, as in Tang et al.


def test_near_observations_share_a_key_and_far_ones_do_not():
    rng = np.random.default_rng(7)
    centre = rng.normal(size=(1, 20))
    near = SimHashKey(WIDE_BOX, n_bits=16)(centre + 1e-4 * rng.normal(size=(100, 20)))
    assert np.mean(near == near[0]) > 0.9
    assert len(np.unique(SimHashKey(WIDE_BOX, n_bits=16)(rng.normal(size=(100, 20))))) > 90


def test_centring_on_the_mean(through_file):
    rng = np.random.default_rng(8)
    seen, new = 50.0 + rng.normal(size=(700, 20)), 50.0 + rng.normal(size=(400, 20))
    key, plain = SimHashKey(WIDE_BOX), SimHashKey(WIDE_BOX)
    assert not key.fitted
    assert key.state_dict() == {}
    assert len(np.unique(key(new))) < 20  # far from zero, all look alike
    key.fit(seen)
    assert key.fitted
    assert len(np.unique(key(new))) > 390
    agree = key(new) == plain(new - seen.mean(axis=0))
    assert agree.mean() > 0.99  # up to rounding
    key.fit(seen + 100.0)
    np.testing.assert_allclose(key.state_dict()["mean"], seen.mean(axis=0), rtol=1e-5)
    twin = SimHashKey(WIDE_BOX)
    twin.load_state_dict(through_file(key.state_dict()))
    assert twin.fitted
    assert np.array_equal(twin(new), key(new))


def test_projections_come_from_the_seed_and_are_not_saved():
    image = spaces.Box(0, 255, (84, 84, 4), np.uint8)
    observations = np.random.default_rng(9).integers(0, 256, (20, 84, 84, 4), dtype=np.uint8)
    key = SimHashKey(image, seed=3)
    keys = key(observations)
    saved = pickle.dumps(key)
    assert len(saved) < 84 * 84 * 4 * 32  # a quarter of the projections
    assert np.array_equal(pickle.loads(saved)(observations), keys)
    assert np.array_equal(SimHashKey(image, seed=3)(observations), keys)
    assert not np.array_equal(SimHashKey(image, seed=4)(observations), keys)
    one_by_one = np.concatenate([key(observations[i : i + 1]) for i in range(20)])
    assert np.array_equal(one_by_one, keys)


def test_images_are_scaled():
    pixels = np.random.default_rng(10).integers(0, 256, (300, 2, 3, 4), dtype=np.uint8)
    floats = spaces.Box(0.0, 1.0, (2, 3, 4))
    key, same = SimHashKey(IMAGE), SimHashKey(floats)
    key.fit(pixels)
    same.fit(pixels.astype(np.float32) / np.float32(255))
    np.testing.assert_allclose(key.state_dict()["mean"], pixels.reshape(300, -1).mean(axis=0) / 255, rtol=1e-5)
    assert np.array_equal(key(pixels), same(pixels.astype(np.float32) / np.float32(255)))


def test_dicts_are_concatenated_in_sorted_order():
    rng = np.random.default_rng(11)
    space = spaces.Dict(
        {
            "z": spaces.Box(-1.0, 1.0, (2,)),
            "a": IMAGE,
            "m": spaces.Dict({"y": spaces.MultiBinary(3), "x": spaces.Discrete(4)}),
        }
    )
    observations = {
        "m": {"x": rng.integers(0, 4, (50, 1)), "y": rng.integers(0, 2, (50, 3))},
        "a": rng.integers(0, 256, (50, 2, 3, 4), dtype=np.uint8),
        "z": rng.normal(size=(50, 2)),
    }
    parts = [observations["a"].reshape(50, 24) / 255, observations["m"]["x"], observations["m"]["y"], observations["z"]]
    flat = np.concatenate(parts, axis=1).astype(np.float32)
    key, same = SimHashKey(space), SimHashKey(spaces.Box(-9.0, 9.0, (30,)))
    assert np.array_equal(key(observations), same(flat))
    key.fit(observations)
    same.fit(flat)
    assert np.array_equal(key(observations), same(flat))
    assert key.fitted
    with pytest.raises(ValueError, match=r"observations must be a dict with the entries \['a', 'm', 'z'\]"):
        key({"z": observations["z"]})
    with pytest.raises(ValueError, match=r"observations\['m'\] must be a dict with the entries \['x', 'y'\]"):
        key({**observations, "m": {}})


# Choice and errors


@pytest.mark.parametrize(
    ("space", "expected"),
    [
        (UNIT_BOX, BucketKey),
        (VELOCITY_BOX, BucketKey),
        (spaces.Box(0, 5, (3,), np.int64), BucketKey),
        (spaces.Box(-1.0, 1.0, (3, 3)), SimHashKey),
        (IMAGE, SimHashKey),
        (spaces.Dict({"a": UNIT_BOX}), SimHashKey),
        (spaces.Discrete(3), DiscreteKey),
        (spaces.MultiDiscrete([2, 3]), DiscreteKey),
        (spaces.MultiBinary(3), DiscreteKey),
    ],
)
def test_the_space_picks_the_key(space, expected):
    assert type(make_state_key(None, space)) is expected
    if expected is not DiscreteKey or not isinstance(space, spaces.Discrete):
        assert type(make_state_key("simhash", space)) is SimHashKey
    observations = space.sample()
    batch = {"a": observations["a"][None]} if isinstance(space, spaces.Dict) else np.asarray(observations)[None]
    assert make_state_key(None, space)(batch).shape == (1,)


@pytest.mark.parametrize(
    ("spec", "space"),
    [
        ("bucket", spaces.Discrete(3)),
        ("bucket", spaces.MultiBinary(3)),
        ("bucket", IMAGE),
        ("bucket", spaces.Dict({"a": UNIT_BOX})),
        ("discrete", UNIT_BOX),
        ("discrete", IMAGE),
        ("simhash", spaces.Discrete(3)),
        ("buckets", UNIT_BOX),
    ],
)
def test_contradictions_are_refused(spec, space):
    with pytest.raises(ValueError, match=f"state_key for .* must be one of .* got '{spec}'"):
        make_state_key(spec, space)


def test_own_keys_are_kept():
    class Parity(StateKey):
        def __call__(self, observations):
            return observations[:, 0].astype(np.int64) % 2

    own = Parity()
    assert make_state_key(own, UNIT_BOX) is own
    assert own.fitted
    own.fit(np.zeros((1, 3)))
    with pytest.raises(TypeError, match="state_key"):
        make_state_key(3, UNIT_BOX)
    with pytest.raises(ValueError, match="state_key"):
        make_state_key(None, spaces.Text(3))


def test_a_key_that_cannot_learn_says_so():
    class Forgetful(StateKey):
        fitted = False

        def __call__(self, observations):
            return np.zeros(len(observations), dtype=np.int64)

    with pytest.raises(NotImplementedError, match="Forgetful"):
        Forgetful().fit(np.zeros((1, 3)))


@pytest.mark.parametrize("key", [BucketKey(VELOCITY_BOX), SimHashKey(VELOCITY_BOX)], ids=["bucket", "simhash"])
def test_bad_observations_are_refused(key):
    assert key(np.zeros((0, 3))).shape == (0,)
    with pytest.raises(ValueError, match=r"observations must be a batch .* got shape \(3,\)"):
        key(np.zeros(3))
    with pytest.raises(ValueError, match="observations must be a batch"):
        key({"a": np.zeros((1, 3))})
    with pytest.raises(ValueError, match="NaN"):
        key(np.array([[0.0, np.nan, 0.0]]))
    with pytest.raises(ValueError, match="observations to fit must be"):
        key.fit(np.zeros((0, 3)))
    with pytest.raises(ValueError, match="state of the key must hold"):
        key.load_state_dict({"other": th.zeros(3)})
    with pytest.raises(ValueError, match=r"state of the key must hold .* shape \(3,\), got \(4,\)"):
        key.load_state_dict({"low": th.zeros(4), "high": th.zeros(4), "mean": th.zeros(4)})
    assert not key.fitted


def test_bad_arguments_are_refused():
    with pytest.raises(TypeError, match="space of a BucketKey must be a Box"):
        BucketKey(spaces.Discrete(3))
    with pytest.raises(ValueError, match="n_bins"):
        BucketKey(UNIT_BOX, 0)
    with pytest.raises(TypeError, match="space of a DiscreteKey"):
        DiscreteKey(UNIT_BOX)
    with pytest.raises(TypeError, match="space of a SimHashKey"):
        SimHashKey(spaces.Tuple([UNIT_BOX]))
    for n_bits in (0, 49):
        with pytest.raises(ValueError, match="n_bits"):
            SimHashKey(UNIT_BOX, n_bits)
