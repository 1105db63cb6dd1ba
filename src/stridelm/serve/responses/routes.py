"""/v1/responses: OpenAI's Responses API. A request is translated to a chat's, and the answer back."""

import asyncio

from fastapi import APIRouter, Request
from starlette.responses import Response

from stridelm.serve.blocks import BlockWriter
from stridelm.serve.chat_answers import open_chat
from stridelm.serve.context import Context
from stridelm.serve.grammars.vocabulary import Vocabulary
from stridelm.serve.http.json_body import JsonReply
from stridelm.serve.prompts import Prompts
from stridelm.serve.respond import respond
from stridelm.serve.responses.form import ResponseForm
from stridelm.serve.responses.request import ResponsesRequest
from stridelm.serve.responses.translate import translate
from stridelm.serve.schemas.common import ERRORS, TEXT_REPLY


def add_responses(router: APIRouter, context: Context, prompts: Prompts, vocabulary: Vocabulary) -> None:
    @router.post("/v1/responses", responses=TEXT_REPLY | ERRORS, response_class=JsonReply)
    async def responses(http: Request, request: ResponsesRequest) -> Response:
        # In a thread, since a conversation may be long.
        answers = await open_chat(context, prompts, vocabulary, await asyncio.to_thread(translate, request))
        writer = BlockWriter(answers, ResponseForm(request, answers))
        return await respond(http, answers.streams, writer, context.settings, streams=bool(request.stream))
