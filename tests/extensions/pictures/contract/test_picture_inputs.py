"""What is made once a group of its pictures is what verl makes of each trajectory, and reaches verl's engines."""

import asyncio
from array import array
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from omegaconf import OmegaConf
from tensordict import NonTensorStack
from transfer_queue import KVBatchMeta
from transfer_queue.utils.serial_utils import MsgpackDecoder, MsgpackEncoder
from transformers import Qwen2_5_VLForConditionalGeneration
from verl.experimental.agent_loop.agent_loop import AgentLoopMetrics, AgentLoopOutput, AgentLoopWorker
from verl.trainer.ppo import padding_utils
from verl.utils.dataset.rl_dataset import RLHFDataset
from verl.utils.model import extract_multi_modal_inputs
from verl.utils.tensordict_utils import list_of_dict_to_tensordict
from verl.workers.config import HFModelConfig

from recipe.async_dapo import store
from recipe.async_dapo.core.trajectory import PromptGroup, Trajectory
from recipe.async_dapo.extensions.pictures.codec import PictureCodec
from recipe.async_dapo.extensions.pictures.stored_pixels import PIXELS
from recipe.async_dapo.rollout.packed_output import PackedOutput
from recipe.async_dapo.weights.sender import AsyncDAPOActorRolloutRefWorker, policy_worker
from recipe.async_dapo_lab.gpu_check.families import TinyModel, picture, qwen2_5_vl

from ....support.composed_runs import compose_run, valid_overrides
from ....support.families import qwen3_5
from ....support.ranks import run_ranks
from ....support.training_rank import OVERRIDES, PADDED, Rank

CODEC = PictureCodec()
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy keyword")
RESPONSES = [range(20, 27), range(30, 33), range(40, 60), range(50, 55)]
KEEPER = f"g_{len(RESPONSES) - 1}_0"  # the row with the pixel values
READ = ("prompts", "responses", "input_ids", "position_ids", "response_mask", "loss_mask", "multi_modal_inputs")


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
    opened_messages = CODEC.open({"raw_prompt": messages})["raw_prompt"]
    parts = {"processor": worker.processor, "dataset_cls": RLHFDataset, "data": worker.config.data}
    return asyncio.run(CODEC.shown(opened_messages, **parts))


def rows_with(worker: Worker, messages: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """The queue's rows of a group, by key."""
    text = worker.processor.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    prompt_ids = worker.processor(text=[text], images=shown(worker, messages).get("images"))["input_ids"][0]
    group = PromptGroup(uid="g", prompt={"raw_prompt": messages}, drawn_at_step=1, trajectories=[])
    rest = AgentLoopOutput(prompt_ids=[], response_ids=[], response_mask=[], metrics=AgentLoopMetrics())
    for session, ids in enumerate(RESPONSES):
        output = PackedOutput(
            rest=rest,
            stamps=((0, len(ids)),),
            prompt_ids=array("i", prompt_ids),
            response_ids=array("i", ids),
            response_mask=bytes([1] * len(ids)),
            response_logprobs=array("f", [0.0] * len(ids)),
        )
        group.trajectories.append(Trajectory(session_id=session, outputs=[output], finished_stamps=output.stamps))
    return {key: one for key, one, _ in store.rows_of(group, asyncio.run(CODEC.inputs(group, worker)))}


def messages_with(num_pictures: int) -> list[dict[str, Any]]:
    items = [{"type": "image", "bytes": picture(number)} for number in range(num_pictures)]
    return [{"role": "user", "content": [*items, {"type": "text", "text": "1+1="}]}]


@pytest.mark.parametrize("num_pictures", [0, 1, 2])
def test_given_pictures_when_rows_are_stored_then_engines_read_what_verl_makes_of_each(
    worker, num_pictures, monkeypatch
):
    messages = messages_with(num_pictures)
    rows = rows_with(worker, messages)
    seen, verls = SimpleNamespace(multi_modal_data=shown(worker, messages), mm_processor_kwargs=None), []
    for fields in rows.values():
        ids_1T = fields["input_ids"].unsqueeze(0)
        verls.append(worker._compute_multi_modal_inputs(seen, fields["input_ids"]))
        positions = worker._compute_position_ids(ids_1T, torch.ones_like(ids_1T), verls[-1]).squeeze(0)
        assert torch.equal(fields["position_ids"], positions) and positions.shape == (4, ids_1T.shape[1])
    sent = NonTensorStack(*(fields["multi_modal_inputs"] for fields in rows.values()))
    received = MsgpackDecoder().decode(MsgpackEncoder().encode(sent.tolist()))
    monkeypatch.setattr(store, "read_object", lambda key, field: rows[key][field])
    ours, wanted = extract_multi_modal_inputs(received), extract_multi_modal_inputs(verls)
    assert ours.keys() == wanted.keys() and bool(ours) == bool(num_pictures)
    assert all(torch.equal(ours[name], wanted[name]) for name in wanted)


def test_given_a_batch_that_verl_fills_up_then_no_row_that_it_makes_has_pixels_or_is_of_the_group(worker, monkeypatch):
    rows, put = rows_with(worker, messages_with(1)), []
    assert [key for key, fields in rows.items() if fields[PIXELS]] == [KEEPER]
    queue = SimpleNamespace(
        kv_batch_get=lambda keys, partition_id: list_of_dict_to_tensordict([rows[key] for key in keys]),
        kv_batch_put=lambda keys, partition_id, fields, tags: put.extend(fields),
    )
    monkeypatch.setattr(padding_utils, "tq", queue)
    batch = KVBatchMeta(partition_id="train", keys=sorted(rows), tags=[{} for _ in rows])
    padded = padding_utils.upsample_batch_to_divisible_size(batch, 6, eos_token_id=0)
    own = [row for row, tag in enumerate(padded.tags) if not store.is_padding(tag)]
    assert len(padded) == 6 and own == list(range(len(rows)))
    assert len(put) == 2 and not any(row[PIXELS] or row["multi_modal_inputs"] for row in put)


def log_probs_of_the_model(model_path: str, rows: dict[str, dict[str, Any]]) -> list[torch.Tensor]:
    """As transformers computes them, positions included."""
    model = Qwen2_5_VLForConditionalGeneration.from_pretrained(model_path, attn_implementation="sdpa").eval()
    pixels = {name: value for name, value in rows[KEEPER][PIXELS].items() if name != "images_seqlens"}
    found = []
    for fields in rows.values():
        ids_1T, length = fields["input_ids"].unsqueeze(0), len(fields["responses"])
        kinds_1T = (ids_1T == model.config.image_token_id).int()
        with torch.no_grad():
            logits_TV = model(input_ids=ids_1T, mm_token_type_ids=kinds_1T, **pixels).logits[0, -length - 1 : -1]
        found.append(logits_TV.log_softmax(-1).gather(1, fields["responses"].unsqueeze(1)).squeeze(1))
    return found


def check_rank(folder: Path) -> None:
    """verl's FSDP engine on the rows of a group with two pictures."""
    model_path = f"{folder}/model/model"
    rows = rows_with(Worker(HFModelConfig(path=model_path)), messages_with(2))
    store.read_object = lambda key, field: rows[key][field]
    wanted = log_probs_of_the_model(model_path, rows)  # before verl changes its class
    path = f"actor_rollout_ref.model.path={model_path}"
    AsyncDAPOActorRolloutRefWorker.actor_worker_cls = policy_worker({"extensions": ["pictures"]})
    rank = Rank(compose_run([*valid_overrides(folder), *OVERRIDES, PADDED, path]))
    data = list_of_dict_to_tensordict([{name: fields[name] for name in READ} for fields in rows.values()])
    found, _ = rank.log_probs(data)
    for found_T, wanted_T in zip(found.unbind(), wanted, strict=True):
        torch.testing.assert_close(found_T, wanted_T, atol=1e-5, rtol=0)


@pytest.mark.slow
def test_given_pictures_when_verls_engine_computes_log_probs_then_they_are_the_models(tmp_path):
    TinyModel(make=qwen2_5_vl, has_pictures=True).write(tmp_path / "model")
    run_ranks(check_rank, tmp_path)
