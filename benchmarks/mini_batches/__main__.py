"""`python -m benchmarks.mini_batches`"""

from .run import main

main()
