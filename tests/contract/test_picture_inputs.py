"""What is made once a group of its pictures is what verl makes of each trajectory, and reaches verl's engines."""

import asyncio
from array import array
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from omegaconf import OmegaConf
from tensordict import NonTensorStack
from transfer_queue.utils.serial_utils import MsgpackDecoder, MsgpackEncoder
from verl.experimental.agent_loop.agent_loop import AgentLoopMetrics, AgentLoopOutput, AgentLoopWorker
from verl.utils.dataset.rl_dataset import RLHFDataset
from verl.utils.model import extract_multi_modal_inputs
from verl.workers.config import HFModelConfig

from recipe.async_dapo import store
from recipe.async_dapo.core.trajectory import PromptGroup, Trajectory
from recipe.async_dapo.rollout.packed_output import PackedOutput
from recipe.async_dapo.rollout.pictures import PictureInputs, media_of, opened

from ..support.tiny_models import TinyModel, picture, qwen2_5_vl, qwen3_5

pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy keyword")
RESPONSES = [range(20, 27), range(30, 33), range(40, 60)]


class Worker(AgentLoopWorker):
    """verl's, as far as it makes a model's inputs."""

    def __init__(self, model: HFModelConfig) -> None:
        self.processor, self.tokenizer, self.dataset_cls = model.processor, model.tokenizer, RLHFDataset
        self.config = SimpleNamespace(data=OmegaConf.create({}))
        self.mm_processor_kwargs: dict[str, Any] = {}


@pytest.fixture(scope="module", params=[qwen2_5_vl, qwen3_5], ids=lambda make: make.__name__)
def worker(request, tmp_path_factory) -> Worker:
    assets = TinyModel(make=request.param, has_pictures=True).write(tmp_path_factory.mktemp("tiny") / "model")
    return Worker(HFModelConfig(path=str(assets.model)))


def shown(worker: Worker, messages: list[dict[str, Any]]) -> dict[str, Any]:
    opened_messages = opened({"raw_prompt": messages})["raw_prompt"]
    parts = {"processor": worker.processor, "dataset_cls": RLHFDataset, "data": worker.config.data}
    return asyncio.run(media_of(opened_messages, **parts))


@pytest.mark.parametrize("num_pictures", [0, 1, 2])
def test_given_pictures_when_rows_are_stored_then_engines_read_what_verl_makes_of_each(
    worker, num_pictures, monkeypatch
):
    items = [{"type": "image", "bytes": picture(number)} for number in range(num_pictures)]
    messages = [{"role": "user", "content": [*items, {"type": "text", "text": "1+1="}]}]
    media = shown(worker, messages)
    text = worker.processor.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    prompt_ids = array("i", worker.processor(text=[text], images=media.get("images"))["input_ids"][0])
    group = PromptGroup(uid="g", prompt={"raw_prompt": messages}, drawn_at_step=1, trajectories=[])
    rest = AgentLoopOutput(prompt_ids=[], response_ids=[], response_mask=[], metrics=AgentLoopMetrics())
    for session, ids in enumerate(RESPONSES):
        output = PackedOutput(
            rest=rest,
            stamps=((0, len(ids)),),
            prompt_ids=prompt_ids,
            response_ids=array("i", ids),
            response_mask=bytes([1] * len(ids)),
            response_logprobs=array("f", [0.0] * len(ids)),
        )
        group.trajectories.append(Trajectory(session_id=session, outputs=[output]))
        group.trajectories[-1].finished_stamps = output.stamps
    rows = {key: one for key, one, _ in store.rows_of(group, asyncio.run(PictureInputs.of(group, worker)))}

    seen, verls = SimpleNamespace(multi_modal_data=media, mm_processor_kwargs=None), []
    for fields in rows.values():
        ids_1T = fields["input_ids"].unsqueeze(0)
        verls.append(worker._compute_multi_modal_inputs(seen, fields["input_ids"]))
        positions = worker._compute_position_ids(ids_1T, torch.ones_like(ids_1T), verls[-1]).squeeze(0)
        assert torch.equal(fields["position_ids"], positions) and positions.shape == (4, ids_1T.shape[1])
    sent = NonTensorStack(*(fields["multi_modal_inputs"] for fields in rows.values()))
    received = MsgpackDecoder().decode(MsgpackEncoder().encode(sent.tolist()))
    monkeypatch.setattr(store, "read_pixels", lambda key: rows[key][store.PIXELS])
    ours, wanted = extract_multi_modal_inputs(received), extract_multi_modal_inputs(verls)
    assert ours.keys() == wanted.keys() and bool(ours) == bool(num_pictures)
    assert all(torch.equal(ours[name], wanted[name]) for name in wanted)
