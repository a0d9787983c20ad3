"""How often a process looks for reference cycles."""

import gc

_BY_DEFAULT = gc.get_threshold()
_RARELY = (50_000, 20, 100)  # new objects; looks at those before the next older ones are looked at, too


def collect_cycles_rarely() -> None:
    """For the imports, and for processes whose objects are small: by default a quarter of an import of vLLM goes into
    looking for cycles. Ray runs this in every process before anything is imported there; the driver calls it itself.
    """
    gc.set_threshold(*_RARELY)


def collect_cycles_as_usual() -> None:
    """For a process with tensors, which a cycle must not keep for long. What is there by now is looked at once, and
    then no more: verl collects garbage several times a step.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_BY_DEFAULT)
