"""Entry point: `python -m recipe.async_dapo_lab.rehearse <hydra overrides>`, the same as for training."""

from .rehearsal.supervisor import main

if __name__ == "__main__":
    main()
