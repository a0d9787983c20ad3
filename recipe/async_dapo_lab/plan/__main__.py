"""`python -m recipe.async_dapo_lab.plan`"""

import sys

from .cli import main

if __name__ == "__main__":
    sys.exit(main())
