"""`python -m benchmarks.selection`"""

from .run import main

main()
