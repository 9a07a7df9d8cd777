"""A callback that files of hyperparameters can name."""

import os

from stable_baselines3.common.callbacks import BaseCallback


class Stop(BaseCallback):
    """Stops as Ctrl-C does, at the step in ``STOP_AT``, if there is one."""

    def _on_step(self) -> bool:
        if str(self.num_timesteps) == os.environ.get("STOP_AT"):
            raise KeyboardInterrupt
        return True
