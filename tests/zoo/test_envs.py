"""The environments of this package under rl_zoo3."""

import numpy as np
import pytest
import yaml
from stable_baselines3.common.save_util import load_from_zip_file


def environments(manager):
    """Of training and of evaluation, as rl_zoo3.train makes them."""
    hyperparams, _ = manager.read_hyperparameters()
    manager._preprocess_hyperparams(hyperparams)
    return manager.create_envs(2, no_log=True), manager.create_envs(1, eval_env=True, no_log=True)


@pytest.mark.parametrize("algo", ["ora_iqn", "dqn"])
def test_knapsacks_of_training_and_evaluation_hold_the_same_items(experiment, algo):
    instances = []
    for seed in (0, 7):
        for env in environments(experiment(algo, "or_gym/Knapsack-v1", seed=seed)):
            env.reset()
            weights, values = env.get_attr("item_weights"), env.get_attr("item_values")
            instances += list(zip(weights, values, strict=True))
            env.close()
    assert len(instances) == 6
    for weights, values in instances:
        np.testing.assert_array_equal(weights, instances[0][0])
        np.testing.assert_array_equal(values, instances[0][1])


def test_knapsacks_have_the_env_kwargs_of_the_file(experiment, tmp_path):
    entry = {"n_timesteps": 100, "policy": "MlpPolicy", "env_kwargs": {"instance_seed": 3, "obs_mode": "flat"}}
    (tmp_path / "my.yml").write_text(yaml.dump({"or_gym/Knapsack-v1": entry}))
    for env in environments(experiment("ora_iqn", "or_gym/Knapsack-v1", config=str(tmp_path / "my.yml"))):
        assert set(env.get_attr("instance_seed")) == {3} and env.observation_space.shape == (153,)
        env.close()


def test_training_with_masks(experiment):
    hyperparams = {"policy": "MultiInputPolicy", "use_action_mask": True, "learning_starts": 20, "batch_size": 8}
    manager = experiment("ora_iqn", "or_gym/Knapsack-v1", n_timesteps=60, hyperparams=hyperparams, log_interval=10)
    model, _ = manager.setup_experiment()
    manager.learn(model)
    manager.save_trained_model(model)
    assert model._n_updates > 0
    data, *_ = load_from_zip_file(f"{manager.save_path}/or_gym-Knapsack-v1.zip")
    assert data["use_action_mask"]
