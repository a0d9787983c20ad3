"""A request to vLLM's own output processor without an engine core behind it, as `AsyncLLM` makes and reads it."""

from collections.abc import AsyncIterator

from vllm.outputs import RequestOutput
from vllm.sampling_params import SamplingParams
from vllm.v1.engine import EngineCoreRequest
from vllm.v1.engine.output_processor import OutputProcessor, RequestOutputCollector


def admit(
    processor: OutputProcessor, request_id: str, prompt_ids: list[int], params: SamplingParams, cache_salt: str | None
) -> tuple[str, RequestOutputCollector]:
    """The name that the engine core knows the request by, and the queue of its chunks."""
    queue = RequestOutputCollector(params.output_kind, request_id)
    request = EngineCoreRequest(
        request_id=f"{request_id}-internal",
        external_req_id=request_id,
        prompt_token_ids=prompt_ids,
        mm_features=None,
        sampling_params=params,
        pooling_params=None,
        arrival_time=0.0,
        lora_request=None,
        cache_salt=cache_salt,
        data_parallel_rank=None,
    )
    processor.add_request(request, None, queue=queue)
    return request.request_id, queue


async def chunks_of(queue: RequestOutputCollector) -> AsyncIterator[RequestOutput]:
    """All chunks of a request, to the last one."""
    finished = False
    while not finished:
        chunk = queue.get_nowait() or await queue.get()
        finished = chunk.finished
        yield chunk
