"""
Adds the algorithms of this package to rl_zoo3, which keeps them in dictionaries of three modules.

An installed package does this by itself when rl_zoo3 is imported (see ``startup/``). Call :func:`register` where the
start-up hook cannot run: under ``python -S``, or with the package on ``PYTHONPATH`` only.
"""

from importlib import import_module
from types import ModuleType

from stable_baselines3.common.base_class import BaseAlgorithm

from sb3_ora import ARTIQN, IQN, ORAIQN, TOPIQN
from sb3_ora.zoo.sampling import CONVERTERS, SAMPLERS

ALGORITHMS: dict[str, type[BaseAlgorithm]] = {"iqn": IQN, "ora_iqn": ORAIQN, "art_iqn": ARTIQN, "top_iqn": TOPIQN}


def patch(module: ModuleType) -> None:
    """
    Add what this package has to one module of rl_zoo3. A second call changes nothing, and a name that is already
    taken keeps its meaning.

    :param module: ``rl_zoo3.utils`` (algorithms), ``rl_zoo3.hyperparams_opt`` (Optuna samplers and converters) or
        ``rl_zoo3.exp_manager`` (default hyperparameters, run folders, evaluation environments).
    :raises ValueError: for any other module.
    """
    if module.__name__ == "rl_zoo3.utils":
        module.ALGOS.update(ALGORITHMS | module.ALGOS)
    elif module.__name__ == "rl_zoo3.hyperparams_opt":
        module.HYPERPARAMS_SAMPLER.update(SAMPLERS | module.HYPERPARAMS_SAMPLER)
        module.HYPERPARAMS_CONVERTER.update(CONVERTERS | module.HYPERPARAMS_CONVERTER)
    elif module.__name__ == "rl_zoo3.exp_manager":
        # Imported here because it needs rl_zoo3, which may not be loaded when this module is
        from sb3_ora.zoo import manager

        if hasattr(manager, "extend"):  # else it is being imported, and extends it itself
            manager.extend(module.ExperimentManager)
    else:
        raise ValueError(
            f"module must be rl_zoo3.utils, rl_zoo3.hyperparams_opt or rl_zoo3.exp_manager, not {module.__name__}"
        )


def register() -> None:
    """Import rl_zoo3, if that has not happened yet, and add the algorithms of this package to it."""
    for name in ("rl_zoo3.utils", "rl_zoo3.hyperparams_opt", "rl_zoo3.exp_manager"):
        patch(import_module(name))
