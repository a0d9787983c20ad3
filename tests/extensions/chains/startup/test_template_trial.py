"""Whether chat template and builder agree where a chain goes on, before a cluster starts."""

import pytest

from recipe.async_dapo.extensions.chains import closing
from recipe.async_dapo.extensions.chains.template_trial import differences

from ...gateway.support.world import TEMPLATE, builder_of


def found(chat_template: str, model_type: str = "qwen3") -> dict[str, str]:
    return differences(*builder_of(chat_template, model_type))


def test_given_a_template_and_builder_that_agree_then_nothing_differs() -> None:
    assert not found(TEMPLATE)


def test_given_a_template_whose_end_of_a_turn_is_not_found_then_cut_answers_are_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(closing, "_closing_ids", lambda builder: ())
    assert found(TEMPLATE).keys() == {"an answer that was cut"}


def test_given_a_family_without_a_builder_of_its_own_then_the_lost_newline_is_named() -> None:
    unlike = found(TEMPLATE, "unheard_of")
    assert unlike.keys() == {"a tool's result", "a user's message"}
    assert all("\\n" in difference for difference in unlike.values())


def test_given_a_template_that_refuses_calls_then_no_tools_result_is_tried() -> None:
    refuses = "{% if m.tool_calls %}{{ raise_exception('no tools') }}{% endif %}"
    assert not found(TEMPLATE.replace("{{ m['content'] }}", refuses + "{{ m['content'] }}"))


def test_given_a_template_that_rewrites_earlier_turns_then_it_is_named() -> None:
    trimmed = TEMPLATE.replace("{{ m['content'] }}", "{{ m['content'] if loop.last else m['content'] | upper }}")
    assert "cannot be appended" in str(found(trimmed))
