"""`python -m benchmarks.strategies`"""

from .run import main

main()
