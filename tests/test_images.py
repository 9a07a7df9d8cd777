"""Images in both orders of their axes, as bytes and as numbers between 0 and 1."""

import io

import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from stable_baselines3.common.vec_env import VecFrameStack, VecTransposeImage, is_vecenv_wrapped

from tests.test_spaces import SMALL_CNN
from tests.tiny import ALGORITHMS, same_parameters, several, tiny
from tests.toy_envs import AnySpace

LAST = spaces.Box(0, 255, (36, 40, 3), np.uint8)
FIRST = spaces.Box(0, 255, (3, 36, 40), np.uint8)


def model_of(algorithm, space, **policy_kwargs):
    return tiny(algorithm, AnySpace(space), "CnnPolicy", policy_kwargs={**SMALL_CNN, **policy_kwargs})


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_both_orders_are_the_same_images(algorithm):
    """Trained with one order, the model gives the same actions in the other one."""
    model, first = model_of(algorithm, LAST), model_of(algorithm, FIRST)
    assert is_vecenv_wrapped(model.get_env(), VecTransposeImage) and not is_vecenv_wrapped(first.get_env(), VecTransposeImage)
    model.learn(40)
    assert model.replay_buffer.observations.shape[2:] == (3, 36, 40)
    first.policy.load_state_dict(model.policy.state_dict())
    images = np.random.default_rng(0).integers(0, 256, (20, 36, 40, 3), dtype=np.uint8)
    turned = np.ascontiguousarray(np.moveaxis(images, -1, 1))
    previous = (np.arange(20) % 3,)
    expected = model.predict(images, previous, deterministic=True)[0]
    assert np.array_equal(first.predict(turned, previous, deterministic=True)[0], expected)
    assert np.array_equal(model.predict(turned, previous, deterministic=True)[0], expected)
    assert model.predict(images[3], deterministic=True)[0].shape == ()


@pytest.mark.parametrize("space", [LAST, FIRST], ids=["last", "first"])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_files(algorithm, space):
    model, file = model_of(algorithm, space).learn(32), io.BytesIO()
    model.save(file)
    images = np.random.default_rng(1).integers(0, 256, (20, *space.shape), dtype=np.uint8)
    loaded = algorithm.load(file, env=AnySpace(space), device="cpu")
    assert np.array_equal(loaded.predict(images, deterministic=True)[0], model.predict(images, deterministic=True)[0])
    assert same_parameters(loaded.policy.state_dict(), model.policy.state_dict())
    assert loaded.learn(32).num_timesteps == 32


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_bytes_are_divided_by_255(algorithm):
    """Or, with ``normalize_images=False``, numbers are taken as they are."""
    scaled = spaces.Box(0, 1, (3, 36, 40), np.float32)
    model = model_of(algorithm, FIRST)
    features = {"features_dim": 16, "normalized_image": True}
    other = model_of(algorithm, scaled, normalize_images=False, features_extractor_kwargs=features)
    other.quantile_net.load_state_dict(model.quantile_net.state_dict())
    images = th.as_tensor(np.random.default_rng(2).integers(0, 256, (5, 3, 36, 40), dtype=np.uint8))
    values = [m.policy.epistemic_values(obs) for m, obs in ((model, images), (other, images.float() / 255))]
    th.testing.assert_close(*values)


def test_stacked_images_whose_first_axis_is_not_the_smallest():
    """Fourteen frames of 3 channels, 42 in all, would pass for rows: the wrapper is told to leave them alone."""
    env = VecFrameStack(several(lambda: AnySpace(FIRST), 1), 14, channels_order="first")
    env = VecTransposeImage(env, skip=True)
    model = tiny(ALGORITHMS[1], env, "CnnPolicy", buffer_size=40, policy_kwargs=SMALL_CNN).learn(30)
    assert model.observation_space.shape == (42, 36, 40) and model._n_updates > 0
    assert model.predict(env.reset())[0].shape == (1,)
