"""`python -m benchmarks.front_end`"""

from .run import main

main()
