"""Which extra of this package an environment lacks."""

import re
from importlib.util import find_spec

import gymnasium as gym

#: How an extra is installed, from the folder of a checkout
INSTALL = "pip install -c constraints.txt '.[{}]'"
#: Modules of each extra
MODULES = {"atari": ("ale_py",), "box2d": ("Box2D", "pygame")}


def extra_of(env_id: str) -> str | None:
    """
    :param env_id: environment, registered or not
    :return: the extra it comes from; None if from none
    """
    if re.match(r"ALE/", env_id) or re.search(r"NoFrameskip-v\d+$", env_id):
        return "atari"
    spec = gym.envs.registry.get(env_id)
    return "box2d" if spec is not None and str(spec.entry_point).startswith("gymnasium.envs.box2d") else None


def missing_extra(env_id: str) -> str | None:
    """
    :param env_id: environment, registered or not
    :return: what to install for it; None if nothing that is known to be missing
    """
    extra = extra_of(env_id)
    if extra is None or all(map(find_spec, MODULES[extra])):
        return None
    return f"{env_id} needs the extra [{extra}]: {INSTALL.format(extra)}"
