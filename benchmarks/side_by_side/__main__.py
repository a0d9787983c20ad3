"""`python -m benchmarks.side_by_side`"""

from .run import main

main()
