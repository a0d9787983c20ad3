"""`python -m benchmarks.corrections`: the exact part; with `--learn`, trainings."""

from .run import main

main()
