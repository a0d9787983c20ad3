"""What a run says that a signal ends: the places where it plugs in."""

from ...config.extensions import Declared

DECLARED = Declared(driver="told.told_how_to_go_on", observer="noted_step.StepNotes")
