"""`python -m benchmarks.control_plane`"""

from .run import main

main()
