"""rl-zoo3 knows ``iqn``, ``ora_iqn``, ``art_iqn`` and ``top_iqn``: registration, default hyperparameters, Optuna samplers."""

from sb3_ora.zoo.registration import ALGORITHMS, patch, register

__all__ = ["ALGORITHMS", "patch", "register"]
