"""How model families write calls of tools and reasoning: the place where it plugs in."""

from ...config.extensions import Declared

DECLARED = Declared(stands_on="gateway", reply_reader="reading.FormatReader")
