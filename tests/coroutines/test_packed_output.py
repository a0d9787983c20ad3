"""Outputs of agent loops as they are stored: which policy version sampled each token, and what is refused."""

from typing import Any

import pytest
from verl.experimental.agent_loop.agent_loop import AgentLoopMetrics, AgentLoopOutput
from verl.utils.tensordict_utils import list_of_dict_to_tensordict

from recipe.async_dapo.config import ConfigError
from recipe.async_dapo.core.recording import SampledTokens, append_tokens
from recipe.async_dapo.core.trajectory import PromptGroup, Trajectory, Turn
from recipe.async_dapo.rollout.packed_output import PackedOutput
from recipe.async_dapo.rollout.prompts import make_group
from recipe.async_dapo.store import rows_of


def sampled() -> SampledTokens:
    """Tokens 10 to 14: two of version 0, then three of version 1."""
    turn = Turn(prompt_digest=b"", prompt_len_tok=1)
    append_tokens(turn, [10, 11, 12, 13, 14], [-0.5, -0.25, -0.5, -0.25, -0.5], [(0, 2), (1, 3)])
    return SampledTokens([turn])


def output(response_ids: list[int], mask: list[int], **rest: Any) -> AgentLoopOutput:
    log_probs = [-0.25 if token % 2 else -0.5 for token in response_ids]
    return AgentLoopOutput(
        prompt_ids=[1],
        response_ids=response_ids,
        response_mask=mask,
        response_logprobs=log_probs,
        metrics=AgentLoopMetrics(),
        **rest,
    )


def test_given_tokens_of_tools_between_the_sampled_ones_then_only_the_latter_have_versions() -> None:
    packed = PackedOutput.pack(output([10, 11, 12, 99, 99, 13, 14], [1, 1, 1, 0, 0, 1, 1]), sampled())
    assert packed.stamps == ((0, 2), (1, 3))


def test_given_an_output_that_ends_early_then_the_versions_are_those_of_what_is_left() -> None:
    assert PackedOutput.pack(output([10, 11, 12], [1, 1, 1]), sampled()).stamps == ((0, 2), (1, 1))


def test_given_a_sampled_token_that_the_loop_removes_then_later_ones_keep_their_versions() -> None:
    assert PackedOutput.pack(output([10, 12, 13, 14], [1, 1, 1, 1]), sampled()).stamps == ((0, 1), (1, 3))


def test_given_several_outputs_then_each_has_the_versions_of_its_own_tokens() -> None:
    tokens = sampled()
    assert PackedOutput.pack(output([10], [1]), tokens).stamps == ((0, 1),)
    assert PackedOutput.pack(output([99], [0]), tokens).stamps == ()
    assert PackedOutput.pack(output([11, 12, 13, 14], [1, 1, 1, 1]), tokens).stamps == ((0, 1), (1, 3))


def test_given_tokens_of_tools_that_are_not_masked_then_they_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"^agent loop=response_mask: .* no engine sampled.* mask tokens of tools"):
        PackedOutput.pack(output([10, 99, 11], [1, 1, 1]), sampled())


def test_given_sampled_tokens_without_log_probs_then_they_are_refused() -> None:
    bare = output([10, 11], [1, 1]).model_copy(update={"response_logprobs": None})
    with pytest.raises(ConfigError, match="agent loop=response_logprobs: training needs the log-probs"):
        PackedOutput.pack(bare, sampled())


def test_given_images_then_they_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"^agent loop=multi_modal_data: training would not see images"):
        PackedOutput.pack(output([10], [1], multi_modal_data={"images": ["image"]}), sampled())


def test_given_what_no_checkpoint_could_hold_when_packed_then_it_is_refused_by_name() -> None:
    class Mine(AgentLoopOutput):
        pass

    with pytest.raises(ConfigError, match=r"^agent loop=\S*Mine: a checkpoint holds verl's AgentLoopOutput only"):
        PackedOutput.pack(Mine(**output([10], [1]).model_dump()), sampled())
    with pytest.raises(ConfigError, match=r"^agent loop=extra_fields\.tool: is a builtins\.object, which no"):
        PackedOutput.pack(output([10], [1], extra_fields={"tool": object()}), sampled())


def test_given_a_column_that_no_checkpoint_could_hold_when_drawn_then_it_is_refused_by_name() -> None:
    row = {"uid": "a", "validate": False, "extra_info": {"image": object()}}
    with pytest.raises(ConfigError, match=r"^data set=extra_info\.image: is a builtins\.object"):
        make_group(row, n=1, step=1)


def test_given_finished_trajectories_then_every_row_has_the_prompt_s_columns_as_they_were() -> None:
    prompt = {"raw_prompt": [{"role": "user", "content": "?"}], "extra_info": {"index": 7}, "data_source": "sums"}
    trajectories = [Trajectory(session_id=k) for k in range(3)]
    for trajectory in trajectories[:2]:
        tokens = sampled()
        trajectory.finish([PackedOutput.pack(output([10, 11], [1, 1]), tokens)])
    group = PromptGroup(uid="group", prompt=prompt, drawn_at_step=1, trajectories=trajectories)
    keys, fields, _ = zip(*rows_of(group, dispatched_at_step=1), strict=True)
    assert keys == ("group_0_0", "group_1_0")  # the third is unfinished
    stored = list_of_dict_to_tensordict(list(fields))
    for key, value in prompt.items():
        assert stored.get(key).tolist() == [value, value]
