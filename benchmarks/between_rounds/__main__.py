"""`python -m benchmarks.between_rounds`"""

from .run import main

main()
