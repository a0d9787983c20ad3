"""Compares the installed verl, vLLM and TransferQueue with what the recipe was written against, and names each
difference: `python -m requirements.bump_check`, by `make bump-check`. For a change of their versions.
"""

import hashlib
import importlib
import inspect
import sys
import textwrap
from collections.abc import Iterator
from typing import Any

from .upstream import READ, SIGNATURES


def named(name: str) -> Any:
    """MODULE:PATH, without decorators."""
    module, _, path = name.partition(":")
    found: Any = importlib.import_module(module)
    for part in path.split("."):
        found = inspect.getattr_static(found, part) if inspect.isclass(found) else getattr(found, part)
    return inspect.unwrap(found.__func__ if isinstance(found, classmethod | staticmethod) else found)


def signature_of(function: Any) -> str:
    """Names, kinds and defaults. Ray adds a parameter to the methods of a class that was made an actor."""
    signature = inspect.signature(function)
    parameters = [
        parameter.replace(annotation=inspect.Parameter.empty)
        for parameter in signature.parameters.values()
        if parameter.name != "_ray_trace_ctx"
    ]
    return str(signature.replace(parameters=parameters, return_annotation=inspect.Signature.empty))


def digest_of(function: Any) -> str:
    source = textwrap.dedent(inspect.getsource(function))
    return hashlib.blake2b(source.encode(), digest_size=6).hexdigest()


def differences() -> Iterator[str]:
    for name, signature in SIGNATURES.items():
        if (found := _found(signature_of, name)) != signature:
            yield f"{name} is called otherwise: {found}, and was {signature}"
    for name, digest in READ.items():
        if (found := _found(digest_of, name)) != digest:
            yield f"{name} has changed ({found}, was {digest}): read it, and what the recipe does around it"


def _found(look: Any, name: str) -> str:
    try:
        return str(look(named(name)))
    except (ImportError, AttributeError) as error:
        return f"gone: {error}"


if __name__ == "__main__":
    found = list(differences())
    sys.stdout.write("".join(f"{line}\n" for line in found))
    sys.exit(bool(found))
