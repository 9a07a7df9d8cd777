from stable_baselines3.common.type_aliases import Schedule

from sb3_ora.adapters.base import RiskAdapter
from sb3_ora.risk.schedules import check_schedule, make_level_schedule


class ScheduleAdapter(RiskAdapter):
    """
    Moves the level of the return distortion along a schedule over training, whatever is learned.

    :param risk_level: a number, a function of the progress remaining (from 1 to 0), or a string such as
        "0.1->0.9->0.1", piecewise linear over training; None for the model's
    :param verbose: verbosity level
    """

    defaults = {"risk_level": None}  # noqa: RUF012

    def __init__(self, risk_level: float | str | Schedule | None = None, verbose: int = 0):
        super().__init__(verbose)
        self.risk_level = risk_level

    def _bind(self) -> None:
        level = self.options["risk_level"]
        if level is None:
            self.schedule = self.model.level_schedule
        else:
            self._require_distortion()
            self.schedule = make_level_schedule(level)
            check_schedule(self.schedule, self.model.policy.risk.distortion)

    def _level_schedule(self) -> Schedule:
        return self.schedule
