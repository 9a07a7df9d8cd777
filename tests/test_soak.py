"""A day in small: memory stays where it is, however long the training."""

import gc
import os
import sys
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from stable_baselines3.common.callbacks import BaseCallback

from sb3_ora import ORAIQN
from tests.tiny import several

#: Steps of the training; the variable is for long ones by hand, such as 2 000 000
STEPS = int(os.environ.get("SB3_ORA_SOAK_STEPS", "200000"))
N_ENVS = 8
MAX_KEYS = 2000


class Drift(gym.Env):
    """Observations anywhere in a box, so that the keys of states never end; episodes of 500 steps."""

    observation_space = spaces.Box(-1, 1, (4,))
    action_space = spaces.Discrete(2)

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return self.np_random.uniform(-1, 1, 4).astype(np.float32), {}

    def step(self, action):
        self.t += 1
        return self.np_random.uniform(-1, 1, 4).astype(np.float32), float(action), False, self.t == 500, {}


class Memory(BaseCallback):
    """Notes, at ten points of the training, resident memory in bytes and how many objects Python tracks."""

    def __init__(self):
        super().__init__()
        self.resident: list[int] = []
        self.objects: list[int] = []

    def _on_step(self):
        if self.num_timesteps >= STEPS // 10 * (len(self.resident) + 1):
            gc.collect()
            pages = int(Path("/proc/self/statm").read_text().split()[1])
            self.resident.append(pages * os.sysconf("SC_PAGE_SIZE"))
            self.objects.append(len(gc.get_objects()))
        return True


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads resident memory from /proc/self/statm")
def test_memory_is_flat():
    memory = Memory()
    model = ORAIQN(
        "MlpPolicy",
        several(Drift, N_ENVS),
        learning_rate=1e-3,
        buffer_size=20_000,
        learning_starts=1000,
        batch_size=16,
        train_freq=1000,
        target_update_interval=5000,
        policy_kwargs={"net_arch": [8], "head_arch": [8], "n_cosines": 8},
        n_heads=3,
        n_quantiles=4,
        n_target_quantiles=4,
        n_risk_samples=8,
        max_keys=MAX_KEYS,
        seed=0,
        device="cpu",
    )
    model.learn(STEPS, callback=memory)
    table = model.policy.risk.table
    assert len(table) == MAX_KEYS  # full: 10 ** 4 buckets of each action are visited
    assert len(table.column("loss_sum")) == MAX_KEYS
    print("resident MB", [round(size / 1e6, 1) for size in memory.resident], "objects", memory.objects)
    assert len(memory.resident) == 10
    assert max(memory.resident[3:]) - memory.resident[2] < 12e6  # after the allocators have settled
    assert abs(memory.objects[-1] - memory.objects[2]) < 1000
