"""A stand-in: the branch `api` has the real one. Streamed completions only, as much as the server's tests need."""

from collections.abc import AsyncIterator
from typing import Any

import orjson
from fastapi import APIRouter
from fastapi.responses import StreamingResponse

from stridelm.engine.worker import EngineStopped
from stridelm.params import SamplingParams
from stridelm.serve.answer import OpenAnswer
from stridelm.serve.context import Context
from stridelm.serve.errors import ApiError


def make_router(context: Context) -> APIRouter:
    router = APIRouter()

    @router.post("/v1/completions")
    async def complete(request: dict[str, Any]) -> Any:
        model = context.model
        params = SamplingParams(max_tokens=request.get("max_tokens", 16), seed=request.get("seed"))
        settings = model.check(request.get("stride", {}).get("decoder", "auto"))
        sequence = model.sequence(model.encode(request["prompt"], raw=True), params, settings)
        answer = OpenAnswer(context.worker, sequence)
        if request.get("stream"):
            return StreamingResponse(_events(answer), media_type="text/event-stream")
        try:
            strides = [stride async for stride in answer]
        finally:
            answer.close()
        choice = {"index": 0, "text": "".join(each.text for each in strides), "finish_reason": sequence.finish_reason}
        usage = {"prompt_tokens": sequence.prompt_length, "completion_tokens": len(sequence.output)}
        return {"object": "text_completion", "model": context.name, "choices": [choice], "usage": usage}

    return router


async def _events(answer: OpenAnswer) -> AsyncIterator[bytes]:
    try:
        async for stride in answer:
            choice = {"index": 0, "text": stride.text, "finish_reason": stride.finish_reason}
            yield b"data: " + orjson.dumps({"object": "text_completion", "choices": [choice]}) + b"\n\n"
        yield b"data: [DONE]\n\n"
    except EngineStopped as error:
        yield b"data: " + orjson.dumps(ApiError(503, str(error)).body()) + b"\n\n"
    finally:
        answer.close()
