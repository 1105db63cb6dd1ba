"""A request to /v1/responses as a chat's."""

from stridelm.serve.chat_answers import Translated
from stridelm.serve.errors import ApiError
from stridelm.serve.responses.items import (
    FunctionCall,
    FunctionCallOutput,
    InputMessage,
    InputText,
    OutputMessage,
    OutputPart,
    OutputText,
)
from stridelm.serve.responses.request import LOGPROBS, FunctionChoice, JsonFormat, ResponsesRequest
from stridelm.serve.schemas.chat import (
    ChatRequest,
    Function,
    JsonSchema,
    NamedFunction,
    NamedTool,
    ResponseFormat,
    SchemaFormat,
    Tool,
)
from stridelm.serve.schemas.messages import (
    AnyMessage,
    AssistantMessage,
    CalledFunction,
    Content,
    RefusalPart,
    Said,
    SystemMessage,
    TextPart,
    ToolCall,
    ToolMessage,
    UserMessage,
)

NAMES = {
    "messages": "input",
    "max_tokens": "max_output_tokens",
    "response_format": "text.format",
    "reasoning_effort": "reasoning.effort",
    "logprobs": "include",
}


def translate(request: ResponsesRequest) -> Translated:
    logprobs = LOGPROBS in (request.include or ())
    if request.top_logprobs is not None and not logprobs:
        raise ApiError(400, f'top_logprobs needs include: ["{LOGPROBS}"]', param="top_logprobs")
    tools = [
        Tool(
            type="function",
            function=Function(
                name=tool.name, description=tool.description, parameters=tool.parameters, strict=tool.strict
            ),
        )
        for tool in request.tools or ()
    ]
    choice = request.tool_choice
    if isinstance(choice, FunctionChoice):
        choice = NamedTool(type="function", function=NamedFunction(name=choice.name))
    chat = ChatRequest(
        **request.generation_fields(),
        messages=_messages(request),
        max_tokens=request.max_output_tokens,
        logprobs=logprobs or None,
        top_logprobs=request.top_logprobs,
        response_format=_format(request),
        tools=tools,
        tool_choice=choice,
        parallel_tool_calls=request.parallel_tool_calls,
        reasoning_effort=request.reasoning and request.reasoning.effort,
        chat_template_kwargs=request.chat_template_kwargs,
    )
    return Translated(chat, NAMES, request.ignored)


def _format(request: ResponsesRequest) -> ResponseFormat | None:
    form = request.text and request.text.format
    if not isinstance(form, JsonFormat):
        return form
    return SchemaFormat(type="json_schema", json_schema=JsonSchema.model_validate({"schema": form.schema_}))


def _messages(request: ResponsesRequest) -> list[AnyMessage]:
    messages: list[AnyMessage] = []
    if request.instructions is not None:
        messages.append(SystemMessage(role="system", content=request.instructions))
    if isinstance(request.input, str):
        return [*messages, UserMessage(role="user", content=request.input)]
    for item in request.input:
        if isinstance(item, FunctionCall):
            _add_call(messages, item)
        else:
            messages.append(_message(item))
    return messages


def _message(item: InputMessage | OutputMessage | FunctionCallOutput) -> AnyMessage:
    match item:
        case FunctionCallOutput():
            return ToolMessage(role="tool", tool_call_id=item.call_id, content=_texts(item.output), name=item.name)
        case InputMessage(role="user"):
            return UserMessage(role="user", content=_texts(item.content))
        case InputMessage():
            return SystemMessage(role="system", content=_texts(item.content))
    return AssistantMessage(role="assistant", content=_said(item.content))


def _add_call(messages: list[AnyMessage], item: FunctionCall) -> None:
    """Calls are part of the assistant's message before them, if there is one."""
    call = ToolCall(id=item.call_id, function=CalledFunction(name=item.name, arguments=item.arguments))
    if not isinstance(messages[-1] if messages else None, AssistantMessage):
        messages.append(AssistantMessage(role="assistant"))
    last = messages[-1]
    assert isinstance(last, AssistantMessage)
    if last.tool_calls is None:
        last.tool_calls = []
    last.tool_calls.append(call)


def _texts(content: str | list[InputText]) -> Content:
    return content if isinstance(content, str) else [TextPart(type="text", text=part.text) for part in content]


def _said(content: str | list[OutputPart]) -> Said:
    if isinstance(content, str):
        return content
    return [
        TextPart(type="text", text=part.text)
        if isinstance(part, OutputText)
        else RefusalPart(type="refusal", refusal=part.refusal)
        for part in content
    ]
