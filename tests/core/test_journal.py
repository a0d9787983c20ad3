"""How a call is known again; what is recorded of calls, and when, is in `extensions/agents/`."""

from recipe.async_dapo.core.journal import call_digest


def test_given_the_same_bytes_when_they_are_divided_otherwise_then_it_is_another_call() -> None:
    calls = [([], b"abc"), ([b"abc"], b""), ([b"ab"], b"c"), ([b"a"], b"bc"), ([b"a", b"b"], b"c")]
    assert len({call_digest(context, arguments) for context, arguments in calls}) == len(calls)
    assert call_digest([b"a"], b"b") == call_digest((b"a",), b"b")
