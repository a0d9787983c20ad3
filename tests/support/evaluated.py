"""The command of an evaluation, `python -m tests.support.evaluated RUN_DIR`: its training's processes are forks."""

from recipe.async_dapo_lab.evaluate import __main__ as evaluate

from .fork_server import ForkedTraining

if __name__ == "__main__":
    evaluate.TrainingProcess = ForkedTraining
    evaluate.main()
