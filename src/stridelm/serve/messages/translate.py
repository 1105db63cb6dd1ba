"""A request to /v1/messages as a chat's."""

from collections.abc import Iterator
from typing import Any, Literal

import orjson

from stridelm.serve.chat_answers import Translated
from stridelm.serve.errors import ApiError
from stridelm.serve.http.json_body import depth
from stridelm.serve.messages.content import (
    AssistantTurn,
    SystemTurn,
    TextBlock,
    Thinking,
    ToolResult,
    ToolUse,
    Turn,
    UserBlock,
    UserTurn,
)
from stridelm.serve.messages.request import (
    AnyChoice,
    AutoChoice,
    CountRequest,
    MessagesRequest,
    MessagesTool,
    NoChoice,
    OutputOptions,
    PromptFields,
    ThinkingOptions,
    ToolChoice,
)
from stridelm.serve.prompts import MAX_ARGUMENT_DEPTH, Prompts, Variables
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
    SystemMessage,
    TextPart,
    ToolCall,
    ToolMessage,
    UserMessage,
)

_THINKING = "enable_thinking"
NAMES = {
    "response_format": "output_config.format",
    "reasoning_effort": "output_config.effort",
    "parallel_tool_calls": "tool_choice.disable_parallel_tool_use",
    "continue_final_message": "messages",
    "stop": "stop_sequences",
    f"chat_template_kwargs.{_THINKING}": "thinking",
}


def translate(request: MessagesRequest, prompts: Prompts) -> Translated:
    chat = ChatRequest(
        **_prompt_fields(request, prompts),
        **request.generation_fields(),
        max_tokens=request.max_tokens,
        stop=request.stop_sequences,
    )
    return Translated(chat, NAMES, request.ignored, may_shorten=True)


def translate_count(request: CountRequest, prompts: Prompts) -> Translated:
    return Translated(ChatRequest(**_prompt_fields(request, prompts), model=request.model), NAMES)


def _prompt_fields(request: PromptFields, prompts: Prompts) -> dict[str, Any]:
    """What both kinds of requests have, as fields of a chat."""
    choice, output = request.tool_choice, request.output_config
    disabled = None if choice is None or isinstance(choice, NoChoice) else choice.disable_parallel_tool_use
    return {
        "messages": [*_system(request), *(message for turn in request.messages for message in _messages(turn))],
        "continue_final_message": isinstance(request.messages[-1], AssistantTurn) or None,
        "tools": [_tool(tool) for tool in request.tools or ()],
        "tool_choice": _choice(request),
        "parallel_tool_calls": None if disabled is None else not disabled,
        "response_format": output and _format(output),
        "reasoning_effort": output and output.effort,
        "chat_template_kwargs": request.thinking and _variables(request.thinking, prompts),
    }


def _tool(tool: MessagesTool) -> Tool:
    about = Function(name=tool.name, description=tool.description, parameters=tool.input_schema, strict=tool.strict)
    return Tool(type="function", function=about)


def _choice(request: PromptFields) -> Literal["none", "auto", "required"] | NamedTool | None:
    match request.tool_choice:
        case AutoChoice():
            return "auto"
        case AnyChoice():
            return "required"
        case NoChoice():
            return "none"
        case ToolChoice(name=name):
            return NamedTool(type="function", function=NamedFunction(name=name))
    return None


def _format(output: OutputOptions) -> ResponseFormat | None:
    if output.format is None:
        return None
    return SchemaFormat(type="json_schema", json_schema=JsonSchema.model_validate({"schema": output.format.schema_}))


def _variables(thinking: ThinkingOptions, prompts: Prompts) -> Variables:
    for name, given in (("budget_tokens", thinking.budget_tokens), ("display", thinking.display)):
        if given is not None and prompts.reads(_THINKING):
            message = f"thinking.{name}: what this model thinks is part of its text and cannot be limited or hidden"
            raise ApiError(400, f"{message}; leave it out, with type adaptive or disabled", param=f"thinking.{name}")
    return {_THINKING: thinking.type != "disabled"}


def _system(request: PromptFields) -> Iterator[AnyMessage]:
    if request.system:
        yield SystemMessage(role="system", content=_texts(request.system))


def _messages(turn: Turn) -> Iterator[AnyMessage]:
    match turn:
        case SystemTurn():
            yield SystemMessage(role="system", content=_texts(turn.content))
        case AssistantTurn():
            yield _assistant(turn)
        case UserTurn():
            yield from _user_messages(turn.content)


def _user_messages(content: str | list[UserBlock]) -> Iterator[AnyMessage]:
    """Results of calls are messages of their own, and so are the texts between them."""
    if isinstance(content, str):
        yield UserMessage(role="user", content=content)
        return
    texts: list[TextPart] = []
    for block in content:
        if isinstance(block, TextBlock):
            texts.append(_text(block))
            continue
        if texts:
            yield UserMessage(role="user", content=texts)
            texts = []
        yield ToolMessage(role="tool", tool_call_id=block.tool_use_id, content=_result(block))
    if texts:
        yield UserMessage(role="user", content=texts)


def _result(block: ToolResult) -> str:
    content = block.content or ""
    text = content if isinstance(content, str) else "\n".join(each.text for each in content)
    return f"Error: {text}" if block.is_error else text


def _assistant(turn: AssistantTurn) -> AssistantMessage:
    if isinstance(turn.content, str):
        return AssistantMessage(role="assistant", content=turn.content)
    thoughts = [block.thinking for block in turn.content if isinstance(block, Thinking)]
    return AssistantMessage(
        role="assistant",
        content=[_text(block) for block in turn.content if isinstance(block, TextBlock)] or None,
        tool_calls=[_call(block) for block in turn.content if isinstance(block, ToolUse)] or None,
        reasoning_content="\n".join(thoughts) or None,
    )


def _call(block: ToolUse) -> ToolCall:
    if depth(block.input) > MAX_ARGUMENT_DEPTH:
        message = f"messages: the input of {block.id} may be {MAX_ARGUMENT_DEPTH} deep at most"
        raise ApiError(400, message, param="messages")
    arguments = orjson.dumps(block.input).decode()
    return ToolCall(id=block.id, function=CalledFunction(name=block.name, arguments=arguments))


def _texts(content: str | list[TextBlock]) -> Content:
    return content if isinstance(content, str) else [_text(block) for block in content]


def _text(block: TextBlock) -> TextPart:
    return TextPart(type="text", text=block.text)
