"""What this recipe's loggers add to verl's: the place where they plug in."""

from ...config.extensions import Declared

DECLARED = Declared(observer="step_log.StepLog")
