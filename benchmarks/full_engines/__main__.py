"""`python -m benchmarks.full_engines`"""

from .run import main

main()
