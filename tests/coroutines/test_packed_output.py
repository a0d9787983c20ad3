"""Outputs of agent loops as they are stored: which policy version sampled each token, and what is refused."""

import tracemalloc
from typing import Any

import numpy as np
import pytest
import torch
from verl.experimental.agent_loop.agent_loop import AgentLoopMetrics, AgentLoopOutput
from verl.utils.tensordict_utils import list_of_dict_to_tensordict

from recipe.async_dapo.config.values import ConfigError
from recipe.async_dapo.core.trajectory import PromptGroup, Trajectory, Turn
from recipe.async_dapo.engines.routes import append_routes
from recipe.async_dapo.recording import SampledTokens, append_tokens
from recipe.async_dapo.rollout.manager import TAKEN_NAMES, make_group
from recipe.async_dapo.rollout.packed_output import PackedOutput
from recipe.async_dapo.store import rows_of


def sampled(routes: np.ndarray | None = None) -> SampledTokens:
    """Tokens 10 to 14: two of version 0, then three of version 1."""
    turn = Turn(prompt_digest=b"", prompt_len_tok=1)
    append_tokens(turn, [10, 11, 12, 13, 14], [-0.5, -0.25, -0.5, -0.25, -0.5], [(0, 2), (1, 3)])
    if routes is not None:
        append_routes(turn, 0, routes)
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


@pytest.mark.parametrize(("dtype", "least"), [(np.uint8, 250), (np.uint16, 500)])
def test_given_routes_then_training_gets_what_verl_makes_of_them_and_a_loop_that_drops_them_is_refused(dtype, least):
    routes = (least + np.arange(5 * 2 * 3) % 6).reshape(5, 2, 3).astype(dtype)
    with_tool = output([10, 11, 12, 13, 14, 99], [1, 1, 1, 1, 1, 0], routed_experts=routes)
    packed = PackedOutput.pack(with_tool, sampled(routes))
    assert packed.routes.row_bytes == 6 * routes.itemsize and packed.rest.routed_experts is None
    ours, verls = packed.fields()["routed_experts"], with_tool.as_dict()["routed_experts"]
    assert torch.equal(ours, verls) and ours.dtype is verls.dtype and ours.shape == (7, 2, 3)
    with pytest.raises(ConfigError, match="agent loop=routed_experts: training replays them"):
        PackedOutput.pack(output([10], [1]), sampled(routes))


def test_given_tokens_of_tools_that_are_not_masked_then_they_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"^agent loop=response_mask: .* no engine sampled.* mask tokens of tools"):
        PackedOutput.pack(output([10, 99, 11], [1, 1, 1]), sampled())


def test_given_sampled_tokens_without_log_probs_then_they_are_refused() -> None:
    bare = output([10, 11], [1, 1]).model_copy(update={"response_logprobs": None})
    with pytest.raises(ConfigError, match="agent loop=response_logprobs: training needs the log-probs"):
        PackedOutput.pack(bare, sampled())


@pytest.mark.parametrize(("mask", "log_probs"), [([1] * 5, [-0.5] * 3), ([1, 1, 1], [-0.5] * 5), ([0] * 3, None)])
def test_given_other_numbers_of_tokens_masks_and_log_probs_then_they_are_refused(mask, log_probs) -> None:
    uneven = output([10, 11, 12, 13, 14], mask).model_copy(update={"response_logprobs": log_probs})
    told = rf"^agent loop=response_logprobs: there are \d for 5 response_ids, and a response_mask of {len(mask)}: "
    with pytest.raises(ConfigError, match=told):
        PackedOutput.pack(uneven, sampled())


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


@pytest.mark.parametrize("name", ["rm_scores", "old_log_probs", "session_id", "sampling_params", "priority"])
def test_given_a_column_with_a_name_that_is_taken_when_drawn_then_it_is_refused_by_name(name: str) -> None:
    with pytest.raises(ConfigError, match=rf"^data set=\['{name}'\]: columns with names that verl or this recipe uses"):
        make_group({"uid": "a", name: 1.0}, n=1, step=1)


def test_given_columns_with_names_of_a_trajectory_s_fields_then_these_stay_and_all_such_names_are_taken() -> None:
    def fields_of(prompt: dict[str, Any]) -> dict[str, Any]:
        trajectory = Trajectory(session_id=0)
        trajectory.finish([PackedOutput.pack(output([10, 11], [1, 1], reward_score=1.0), sampled())])
        [(_, fields, _)] = rows_of(PromptGroup(uid="g", prompt=prompt, drawn_at_step=1, trajectories=[trajectory]))
        return fields

    own = fields_of({})
    assert own.keys() <= TAKEN_NAMES
    assert str(fields_of(dict.fromkeys(own, "a column"))) == str(own)


def test_given_finished_trajectories_then_every_row_has_the_prompt_s_columns_as_they_were() -> None:
    prompt = {"raw_prompt": [{"role": "user", "content": "?"}], "extra_info": {"index": 7}, "data_source": "sums"}
    trajectories = [Trajectory(session_id=k) for k in range(3)]
    for trajectory in trajectories[:2]:
        tokens = sampled()
        trajectory.finish([PackedOutput.pack(output([10, 11], [1, 1]), tokens)])
    group = PromptGroup(uid="group", prompt=prompt, drawn_at_step=1, trajectories=trajectories)
    keys, fields, _ = zip(*rows_of(group), strict=True)
    assert keys == ("group_0_0", "group_1_0")  # the third is unfinished
    stored = list_of_dict_to_tensordict(list(fields))
    for key, value in prompt.items():
        assert stored.get(key).tolist() == [value, value]


def test_given_a_masked_output_without_log_probs_then_its_row_has_the_fields_of_the_others() -> None:
    tokens = sampled()
    masked = output([99, 98], [0, 0], reward_score=1.0).model_copy(update={"response_logprobs": None})
    outputs = [PackedOutput.pack(one, tokens) for one in (masked, output([10, 11], [1, 1], reward_score=1.0))]
    trajectory = Trajectory(session_id=0)
    trajectory.finish(outputs)
    trajectory.finished_stamps = ((0, 2),)
    group = PromptGroup(uid="group", prompt={}, drawn_at_step=1, trajectories=[trajectory])
    _, fields, tags = zip(*rows_of(group), strict=True)
    assert list_of_dict_to_tensordict(list(fields))["rollout_log_probs"].tolist() == [[0.0, 0.0], [-0.5, -0.25]]
    assert [tag["min_global_steps"] for tag in tags] == [0, 0]


@pytest.mark.parametrize("score", [None, 0.5])
def test_fields_are_what_verl_makes_of_the_output_itself(score: float | None) -> None:
    whole = output([10, 11, 99, 12], [1, 1, 0, 1], reward_score=score, num_turns=2, extra_fields={"tool": "sums"})
    fields, verls = PackedOutput.pack(whole, sampled()).fields(), whole.as_dict()
    assert fields.keys() == verls.keys()
    for key, value in verls.items():
        if isinstance(value, torch.Tensor):
            assert (fields[key].dtype, fields[key].tolist()) == (value.dtype, value.tolist()), key
        else:
            assert fields[key] == value, key


def test_rows_are_made_without_a_python_number_for_each_token() -> None:
    num_tok = 100_000
    turn = Turn(prompt_digest=b"", prompt_len_tok=1)
    append_tokens(turn, [10] * num_tok, [-0.5] * num_tok, [(0, 60_000), (1, 40_000)])
    trajectory = Trajectory(session_id=0)
    trajectory.finish([PackedOutput.pack(output([10] * num_tok, [1] * num_tok), SampledTokens([turn]))])
    group = PromptGroup(uid="group", prompt={}, drawn_at_step=1, trajectories=[trajectory])
    tracemalloc.start()
    [(_, fields, _)] = rows_of(group)
    _, peak_bytes = tracemalloc.get_traced_memory()  # what torch allocates is not traced
    tracemalloc.stop()
    assert peak_bytes < num_tok
    assert fields["policy_versions"].tolist() == [0] * 60_000 + [1] * 40_000
