"""
Distortions of the return distribution: maps of quantile fractions.

A distorted expectation of the return is ``E[Z_{beta(tau)}]`` with ``tau`` uniform on [0, 1]
(Dabney et al. 2018, section 3.1). The level is called eta there; the argument ``eta`` of ORAIQN is something else.
"""

from abc import ABC, abstractmethod
from typing import ClassVar

import torch as th

from sb3_ora.checks import check_integer, check_number, named
from sb3_ora.risk._common import ByValue


def midpoints(n: int, device: th.device | str | None = None) -> th.Tensor:
    """
    Midpoints of ``n`` equal parts of [0, 1].

    :param n: Number of parts.
    :param device: Device of the result.
    :return: Fractions ``(m + 0.5) / n`` for m = 0 ... n - 1, shape (n,), float32.
    :raises ValueError: If ``n`` is smaller than 1.
    """
    check_integer("n", n)
    return (th.arange(n, dtype=th.float32, device=device) + 0.5) / n


class Distortion(ByValue, ABC):
    """
    A map of quantile fractions with one parameter, the risk level.

    To define one, override :meth:`distort` and, if its level is restricted, :meth:`check_level`.

    :param default_level: Level used when none is given; None for the value of Dabney et al. (2018).
    """

    paper_level: ClassVar[float] = 1.0

    def __init__(self, default_level: float | None = None):
        self.default_level = self.paper_level if default_level is None else default_level
        with named("default_level", default_level):
            self.check_level(self.default_level)

    @abstractmethod
    def distort(self, taus: th.Tensor, level: float | th.Tensor) -> th.Tensor:
        """
        The distortion itself, without checks.

        :param taus: Quantile fractions in [0, 1], any shape; (1, M) when a model acts.
        :param level: Risk level, a number or a tensor to be broadcast against ``taus``; (E, 1) for one of each environment.
        :return: Distorted fractions, of the shape that broadcasting gives.
        """

    def __call__(self, taus: th.Tensor, level: float | th.Tensor | None = None) -> th.Tensor:
        """
        Distort quantile fractions.

        :param taus: Quantile fractions in [0, 1], any shape.
        :param level: Risk level, broadcastable against ``taus``; None for ``default_level``. A number is checked,
            a tensor is not.
        :return: Distorted fractions in [0, 1].
        :raises ValueError: If the level is not allowed.
        """
        if level is None:
            level = self.default_level
        elif not isinstance(level, th.Tensor):
            self.check_level(level)
        return self.distort(taus, level).clamp(0.0, 1.0)

    def check_level(self, level: float) -> None:
        """
        Check a risk level.

        :param level: The level, any finite number unless a subclass says otherwise.
        :raises ValueError: If the level is not allowed.
        """
        check_number("risk_level", level)


class _UnitLevel(Distortion):
    """Distortions whose level lies in (0, 1]."""

    def check_level(self, level: float) -> None:
        check_number("risk_level", level, 0, 1, open_low=True)


class Neutral(Distortion):
    """No distortion: the mean of the return. Its level can only be 1, as it has no effect."""

    def distort(self, taus: th.Tensor, level: float | th.Tensor) -> th.Tensor:
        return taus

    def check_level(self, level: float) -> None:
        if check_number("risk_level", level) != 1.0:
            raise ValueError(
                f"risk_level={level} has no effect with the neutral distortion: "
                "leave it at 1 or choose another distortion, such as 'cvar'"
            )


class CVaR(_UnitLevel):
    """Conditional value at risk: the mean of the worst ``level`` fraction of returns, ``beta(tau) = level * tau``."""

    paper_level = 0.25

    def distort(self, taus: th.Tensor, level: float | th.Tensor) -> th.Tensor:
        return level * taus


class Wang(Distortion):
    """Wang (2000): ``beta(tau) = Phi(Phi^-1(tau) + level)``; risk-averse for negative levels."""

    paper_level = -0.75

    def distort(self, taus: th.Tensor, level: float | th.Tensor) -> th.Tensor:
        return th.special.ndtr(th.special.ndtri(taus) + level)


class CPW(_UnitLevel):
    """
    Cumulative probability weighting (Tversky and Kahneman 1992): neither averse nor seeking everywhere, 1 is neutral.
    It increases with the fraction at levels from 0.28 on only.
    """

    paper_level = 0.71

    def distort(self, taus: th.Tensor, level: float | th.Tensor) -> th.Tensor:
        powered = taus**level
        return powered / (powered + (1.0 - taus) ** level) ** (1.0 / level)


class Power(Distortion):
    """Power formula of Dabney et al. (2018): risk-averse for negative levels, seeking for positive ones, 0 is neutral."""

    paper_level = -2.0

    def distort(self, taus: th.Tensor, level: float | th.Tensor) -> th.Tensor:
        levels = th.as_tensor(level, dtype=taus.dtype, device=taus.device)
        exponent = 1.0 / (1.0 + levels.abs())
        return th.where(levels >= 0.0, taus**exponent, 1.0 - (1.0 - taus) ** exponent)


def make_distortion(spec: str | Distortion) -> Distortion:
    """
    Distortion from its name.

    :param spec: "neutral", "cvar", "wang", "cpw", "power", or a distortion, which is returned as it is.
    :return: The distortion.
    :raises ValueError: If the name is unknown.
    :raises TypeError: If it is neither a name nor a distortion.
    """
    if isinstance(spec, Distortion):
        return spec
    known: dict[str, type[Distortion]] = {"neutral": Neutral, "cvar": CVaR, "wang": Wang, "cpw": CPW, "power": Power}
    if not isinstance(spec, str):
        raise TypeError(f"distortion must be a name or a Distortion object, got {spec!r}")
    if spec not in known:
        raise ValueError(f"distortion must be one of {list(known)} or a Distortion object, got {spec!r}")
    return known[spec]()
