"""Simulates the steps and draws them into assets/step_picture: python -m benchmarks.step_picture"""

from benchmarks.step_picture.draw import FOLDER, draw
from benchmarks.step_picture.run import simulate

if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    samples, steps = simulate()
    samples.to_csv(FOLDER / "engines.csv", index=False, float_format="%.2f")
    steps.to_csv(FOLDER / "steps.csv", index=False, float_format="%.1f")
    draw(samples, steps, FOLDER / "step.png")
    print(steps.round(1).to_string(index=False))
