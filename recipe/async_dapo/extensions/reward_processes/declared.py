"""The reward function in processes of its own: the places where that plugs in."""

from ...config.extensions import Declared

KILLED = "failure/killed_reward_processes"
DECLARED = Declared(metrics=(KILLED,), observer="meter.KilledProcesses", reward_trial="trial.Trial", wire="wiring.wire")
