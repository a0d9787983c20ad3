"""An engine that stands still, and those that only look like it."""

from hypothesis import given
from hypothesis import strategies as st

from recipe.async_dapo.core.standstill import Standstill

LOOKS = st.lists(st.tuples(st.floats(0.1, 100.0), st.integers(0, 3), st.integers(0, 2)), max_size=30)


@given(LOOKS)
def test_it_is_told_for_how_long_looks_have_found_requests_and_no_output(looks: list[tuple[float, int, int]]) -> None:
    standstill, now_s, outputs, since_s = Standstill(), 0.0, 0, None
    for after_s, requests, more in looks:
        now_s, outputs = now_s + after_s, outputs + more
        if not requests:
            since_s = None
        elif more or since_s is None:
            since_s = now_s
        expected = 0.0 if since_s is None else now_s - since_s
        assert standstill.look(now_s, requests=requests, outputs=outputs) == expected
