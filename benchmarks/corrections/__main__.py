"""`python -m benchmarks.corrections` writes `exact.csv` and `exact.png` to `assets/corrections`."""

from .exact import write

write()
