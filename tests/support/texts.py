"""Texts for hypothesis."""

from hypothesis import strategies as st

# All that UTF-8 can write. hypothesis's own default tries each code point once in a checkout, in each lane: 3 s.
_WRITABLE = st.characters(exclude_categories=["Cs"])


def any_text(*, min_size: int = 0, max_size: int | None = None) -> st.SearchStrategy[str]:
    return st.text(_WRITABLE, min_size=min_size, max_size=max_size)
