"""OpenAI's responses for agents: the place where they plug in."""

from ...config.extensions import Declared

DECLARED = Declared(stands_on="http", api="api.API")
