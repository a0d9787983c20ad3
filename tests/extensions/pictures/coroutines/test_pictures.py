"""Pictures of prompts: kept once a group, seen by agent loop, trainer and checkpoint alike."""

import pickle
from io import BytesIO
from typing import Any

import pytest
from PIL import Image
from verl.experimental.agent_loop import AgentLoopWorker

from recipe.async_dapo.config.values import ConfigError
from recipe.async_dapo.core.ledger import Ledger
from recipe.async_dapo.core.pool import PoolState
from recipe.async_dapo.core.trajectory import PromptGroup
from recipe.async_dapo.extensions.pictures.codec import PictureCodec
from recipe.async_dapo.recording import prompt_digest
from recipe.async_dapo.rollout import run_worker, worker
from recipe.async_dapo.rollout.codec import check_shown, codec
from recipe.async_dapo.rollout.manager import make_group
from recipe.async_dapo.rollout.packed_output import PackedOutput
from recipe.async_dapo.training.checkpoints import RolloutState, from_frames, to_frames

from ....coroutines.test_packed_output import output, sampled
from ....support.composed_runs import compose_run, valid_overrides

COLORS = ["red", "green"]


def picture(color: str) -> Image.Image:
    return Image.new("RGB", (56, 28), color)


def file_of(color: str) -> bytes:
    stream = BytesIO()
    picture(color).save(stream, "PNG")
    return stream.getvalue()


def as_decoded(color: str) -> dict[str, Any]:
    return {"image": picture(color), "max_pixels": 9}


def as_bytes(color: str) -> dict[str, Any]:
    data = file_of(color)
    return {"bytes": data, "path": "a.png", "image": Image.open(BytesIO(data)), "max_pixels": 9}


def row(*pictures: dict[str, Any]) -> dict[str, Any]:
    """As verl's data set gives it, with the same messages in two columns."""
    items = [{"type": "image", **one} for one in pictures]
    messages = [{"role": "system", "content": "be brief"}, {"role": "user", "content": [*items, {"type": "text"}]}]
    return {"uid": "group", "raw_prompt": messages, "prompt": messages, "data_source": "shapes"}


@pytest.mark.parametrize("form", [as_decoded, as_bytes])
def test_given_pictures_when_a_group_is_made_then_it_keeps_the_bytes_of_each_and_loops_see_the_pictures(form):
    group = make_group(row(*map(form, COLORS)), n=2, step=1)
    assert pickle.dumps(group).count(file_of("red")) == 1
    *items, text = codec().open(group.prompt)["raw_prompt"][1]["content"]
    assert [item.keys() for item in items] == [{"type", "image", "max_pixels"}] * 2 and text == {"type": "text"}
    for item, color in zip(items, COLORS, strict=True):
        assert item["image"].tobytes() == picture(color).tobytes()
    other = make_group(row(*map(form, reversed(COLORS))), n=2, step=1)
    assert group.key != other.key == make_group(row(*map(form, reversed(COLORS))), n=2, step=2).key


def test_given_a_picture_by_path_when_a_group_is_made_then_it_keeps_the_path():
    notes = [{"content": ["no item", "of a message"]}]  # a column of another kind
    group = make_group(row({"image": "/data/1.png"}) | {"notes": notes}, n=2, step=1)
    assert group.prompt["notes"] == notes
    assert codec().open(group.prompt) == group.prompt
    assert codec().strip(group.prompt)["raw_prompt"][1]["content"] == [{"type": "image"}, {"type": "text"}]
    assert group.prompt["raw_prompt"][1]["content"][0] == {"type": "image", "image": "/data/1.png"}


def test_a_worker_has_loaded_what_opens_pictures_before_its_first_trajectory(monkeypatch, tmp_path):
    """It would stop the worker's event loop for as long as its imports take."""
    monkeypatch.setattr(AgentLoopWorker, "__init__", lambda self, config: setattr(self, "config", config))
    for name in ("show_logs", "join_queue"):
        monkeypatch.setattr(run_worker, name, lambda: None)
    codec.cache_clear()
    worker.AsyncDAPOAgentLoopWorker(compose_run(valid_overrides(tmp_path)))
    monkeypatch.setattr("recipe.async_dapo.rollout.codec.of_copy", None)
    assert isinstance(codec(), PictureCodec)


def test_given_pictures_when_a_loop_has_shown_others_or_more_then_it_is_refused():
    messages = make_group(row(*map(as_bytes, COLORS)), n=1, step=1).prompt["raw_prompt"]
    check_shown({"images": [1, 2], "videos": None}, messages)
    check_shown(None, [{"role": "user", "content": "1+1="}])
    for media in ({"images": [1, 2, 3]}, {"images": [1]}, None, {"images": [1, 2], "videos": [1]}):
        with pytest.raises(
            ConfigError, match=r"^agent loop=multi_modal_data: .* for a prompt with 2 pictures: training"
        ):
            check_shown(media, messages)


def test_given_other_pictures_when_a_turn_is_digested_then_it_is_another_turn():
    digests = {prompt_digest([1, 2], [picture(color)]) for color in COLORS} | {prompt_digest([1, 2])}
    assert len(digests) == 3 and prompt_digest([1, 2], [picture("red")]) in digests


def finished_group(*colors: str) -> PromptGroup:
    group = make_group(row(*map(as_bytes, colors)), n=3, step=1)
    for trajectory in group.trajectories:
        seen = output([10, 11], [1, 1], multi_modal_data={"images": [picture(color) for color in colors]})
        trajectory.finish([PackedOutput.pack(seen, sampled())])
    return group


def test_given_pictures_when_a_checkpoint_is_written_then_it_holds_each_once_a_group():
    group = finished_group(*COLORS)
    state = RolloutState(pool=PoolState(waiting=(), buffered=(group,), carried=(), ledger=Ledger()))
    frames = list(to_frames(state))
    assert [b"".join(frames).count(file_of(color)) for color in COLORS] == [1, 1]
    [restored] = from_frames(frames).pool.buffered
    assert codec().open(restored.prompt)["raw_prompt"][1]["content"][0]["image"].size == (56, 28)
