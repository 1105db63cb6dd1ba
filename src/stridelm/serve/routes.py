"""The routes that answer with the model's text or tokens."""

import asyncio
from typing import Annotated

import orjson
from fastapi import APIRouter, Body, Request
from starlette.responses import Response

from stridelm.serve.chat import answer_chat
from stridelm.serve.completions import answer_completion
from stridelm.serve.context import Context
from stridelm.serve.errors import ApiError
from stridelm.serve.grammars.vocabulary import Vocabulary
from stridelm.serve.http.json_body import JsonReply, json_route
from stridelm.serve.messages.routes import add_messages
from stridelm.serve.prompts import Prompts
from stridelm.serve.responses.routes import add_responses
from stridelm.serve.schemas.chat import ChatRequest
from stridelm.serve.schemas.common import ERRORS, TEXT_REPLY
from stridelm.serve.schemas.text import (
    CompletionRequest,
    DetokenizeReply,
    DetokenizeRequest,
    TokenizeChat,
    TokenizeReply,
    TokenizeRequest,
)
from stridelm.serve.tools.use import check_functions

_TEXT = TEXT_REPLY | ERRORS
_NO_EMBEDDINGS = "this server writes text and has no embeddings: start a server of an embedding model for them"


def make_router(context: Context) -> APIRouter:
    router = APIRouter(route_class=json_route(context.model.max_length))
    prompts = Prompts(context)
    vocabulary = Vocabulary(context.model.target.tokenizer)

    @router.post("/v1/chat/completions", responses=_TEXT, response_class=JsonReply)
    async def chat_completions(http: Request, request: ChatRequest) -> Response:
        return await answer_chat(http, context, prompts, vocabulary, request)

    @router.post("/v1/completions", responses=_TEXT, response_class=JsonReply)
    async def completions(http: Request, request: CompletionRequest) -> Response:
        return await answer_completion(http, context, prompts, vocabulary, request)

    @router.post("/tokenize", responses={200: {"model": TokenizeReply}, **ERRORS}, response_class=JsonReply)
    async def tokenize(request: Annotated[TokenizeRequest, Body()]) -> Response:
        return await _tokenize(context, prompts, request)

    @router.post("/detokenize", responses={200: {"model": DetokenizeReply}, **ERRORS}, response_class=JsonReply)
    async def detokenize(request: DetokenizeRequest) -> Response:
        context.check_model(request.model)
        prompts.check_known(request.tokens, "tokens")
        return JsonReply({"prompt": await asyncio.to_thread(context.model.target.tokenizer.decode, request.tokens)})

    add_responses(router, context, prompts, vocabulary)
    add_messages(router, context, prompts, vocabulary)

    @router.post("/v1/embeddings", include_in_schema=False)
    async def embeddings() -> Response:
        raise ApiError(404, _NO_EMBEDDINGS)

    return router


async def _tokenize(context: Context, prompts: Prompts, request: TokenizeRequest) -> Response:
    context.check_model(request.model)
    if isinstance(request, TokenizeChat):
        functions = [tool.function for tool in request.tools or ()]
        check_functions(context.settings, functions)
        ids = await prompts.chat(
            request.messages,
            functions,
            opens_turn=request.add_generation_prompt,
            continues=request.continue_final_message,
            adds_special=request.add_special_tokens,
            variables=prompts.variables(request.chat_template_kwargs),
        )
    else:
        ids = await prompts.text(request.prompt, adds_special=request.add_special_tokens)

    def write() -> bytes:
        names = context.model.target.tokenizer.convert_ids_to_tokens(ids) if request.return_token_strs else None
        reply = {"count": len(ids), "max_model_len": context.model.max_length, "tokens": ids, "token_strs": names}
        return orjson.dumps(reply)

    return JsonReply(await asyncio.to_thread(write))
