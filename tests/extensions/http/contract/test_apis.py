"""What the APIs have in common, and one that a copy lacks."""

from typing import Any

import openai
import pytest

from recipe.async_dapo.config.extensions import declared
from recipe.async_dapo.extensions.gateway.messages import Refused
from recipe.async_dapo.extensions.http import apis
from recipe.async_dapo.extensions.http.apis import check_parameters, text_of

from ...gateway.support.played import by_chat, openai_client, play
from ...gateway.support.world import QUESTION, texts


def lacks(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    there = {other: one for other, one in declared().items() if other != name}
    monkeypatch.setattr(apis, "declared", lambda: there)


@pytest.mark.parametrize("name", apis.OF_EXTENSIONS)
def test_given_an_api_whose_extension_this_copy_lacks_then_what_it_is_asked_is_refused_with_the_folder_s_name(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lacks(name, monkeypatch)
    path = apis.OF_EXTENSIONS[name]
    [api] = [one for one in apis.apis() if one.path == path]
    with pytest.raises(Refused, match=f"{path} is not served: extensions/{name} is not in this copy") as refused:
        api.request_of({})
    assert refused.value.status == 404


@pytest.mark.skipif("chat_completions" not in declared(), reason="this copy serves no chat completions")
@pytest.mark.parametrize("name", apis.OF_EXTENSIONS.keys() - {"chat_completions"})
def test_given_an_api_whose_extension_this_copy_lacks_then_its_path_answers_404_and_others_serve(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lacks(name, monkeypatch)

    async def agent(address: str, key: str, sample: dict[str, Any]) -> float:
        path = apis.OF_EXTENSIONS[name]
        async with openai_client(address, key, max_retries=0) as client:
            with pytest.raises(openai.NotFoundError, match=f"{path} is not served: extensions/{name} is not in this"):
                await client.post(f"{address}{path}", body={}, cast_to=object)
            assert (await by_chat(client, QUESTION)).content == "yes"
        return 1.0

    outcome, _, life = play(agent, says=texts("yes"))
    assert not outcome.reason, outcome.cause
    assert life.counted["gateway/requests"] == 2 and life.counted["gateway/refused"] == 1


@pytest.mark.parametrize("content", [{"type": "text", "text": "What is a loon?"}, 3])
def test_given_content_that_is_neither_text_nor_a_list_then_its_request_is_refused(content: Any) -> None:
    with pytest.raises(Refused, match="content must be text or a list of parts"):
        text_of(content)


def test_given_a_wish_for_one_call_at_a_time_then_it_is_told_as_without_effect() -> None:
    assert check_parameters({"parallel_tool_calls": False, "seed": 3}) == ("seed", "parallel_tool_calls")
    choice = {"type": "auto", "disable_parallel_tool_use": True}
    assert check_parameters({"tool_choice": choice}) == ("disable_parallel_tool_use",)
    assert check_parameters({"parallel_tool_calls": True, "tool_choice": {"type": "auto"}}) == ()
