"""The recipe's own log lines, in every process that has some."""

import logging


def show_logs() -> None:
    """Show what the recipe logs from INFO on, like verl's own lines; importing vLLM silences all others below ERROR."""
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(levelname)s:%(asctime)s:%(message)s"))
    package_logger = logging.getLogger(__package__)
    package_logger.handlers = [handler]
    package_logger.setLevel(logging.INFO)
    package_logger.propagate = False
