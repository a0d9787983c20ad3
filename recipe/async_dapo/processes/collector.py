"""How often Python looks for reference cycles. By default so often that a quarter of an import of vLLM goes into it.

Ray runs `look_rarely` in every process of a run before anything is imported there; the driver calls it itself.
"""

import gc

_BY_DEFAULT = gc.get_threshold()
_RARELY = (50_000, 20, 100)  # new objects; looks at those before the next older ones are looked at, too


def look_rarely() -> None:
    """For the imports, and for processes whose objects are small."""
    gc.set_threshold(*_RARELY)


def look_as_usual() -> None:
    """For a process with tensors, which a cycle must not keep for long. What is there by now is looked at once, and
    then no more: verl collects garbage several times a step.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_BY_DEFAULT)
