"""`python -m benchmarks.stop_latency`"""

from .run import main

main()
