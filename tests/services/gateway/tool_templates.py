"""Chat templates with tools, written as four families write theirs; all end with `assistant: `."""

from __future__ import annotations

from adasd.runtime.toy_tokenizer import CHAT_TEMPLATE

END = "{% if add_generation_prompt %}{{ 'assistant: ' }}{% endif %}"

QWEN = (
    """{%- if tools %}
    {{- '<|im_start|>system\\n# Tools\\n\\n<tools>' }}
    {%- for tool in tools %}
        {{- "\\n" }}
        {{- tool | tojson }}
    {%- endfor %}
    {{- "\\n</tools>\\n\\n<tool_call>\\n{\\"name\\": <function-name>}\\n</tool_call><|im_end|>\\n" }}
{%- endif %}
{%- for message in messages %}
    {%- if (message.role == "user") or (message.role == "assistant" and not message.tool_calls) %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}
    {%- elif message.role == "assistant" %}
        {{- 'assistant: ' }}
        {%- if message.content %}
            {{- message.content + '\\n' }}
        {%- endif %}
        {%- for tool_call in message.tool_calls %}
            {%- if tool_call.function is defined %}
                {%- set tool_call = tool_call.function %}
            {%- endif %}
            {{- '<tool_call>\\n{"name": "' }}
            {{- tool_call.name }}
            {{- '", "arguments": ' }}
            {{- tool_call.arguments | tojson }}
            {{- '}\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == "tool" %}
        {{- '<|im_start|>user\\n<tool_response>\\n' + message.content + '\\n</tool_response><|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}"""
    + END
)

MISTRAL = (
    """{{- '<s>' }}
{%- for message in messages %}
    {%- if message.role == 'user' %}
        {%- if tools is not none and (message == messages[0]) %}
            {{- '[AVAILABLE_TOOLS] [' }}
            {%- for tool in tools %}
                {{- '{"type": "function", "function": {' }}
                {%- for key, val in tool.function.items() if key != 'return' %}
                    {%- if val is string %}
                        {{- '"' + key + '": "' + val + '"' }}
                    {%- else %}
                        {{- '"' + key + '": ' + val | tojson }}
                    {%- endif %}
                    {%- if not loop.last %}
                        {{- ', ' }}
                    {%- endif %}
                {%- endfor %}
                {{- '}}' }}
            {%- endfor %}
            {{- '][/AVAILABLE_TOOLS]' }}
        {%- endif %}
        {{- '[INST] ' + message.content + '[/INST]' }}
    {%- elif message.tool_calls is defined and message.tool_calls is not none %}
        {{- 'assistant: [TOOL_CALLS] [' }}
        {%- for tool_call in message.tool_calls %}
            {%- set out = tool_call.function | tojson %}
            {{- out[:-1] }}
            {%- if not tool_call.id is defined or tool_call.id | length != 9 %}
                {{- raise_exception('Tool call IDs should be alphanumeric strings with length 9!') }}
            {%- endif %}
            {{- ', "id": "' + tool_call.id + '"}' }}
            {{- ', ' if not loop.last else ']</s>' }}
        {%- endfor %}
    {%- elif message.role == 'assistant' %}
        {{- message.content + '</s>' }}
    {%- elif message.role == 'tool' %}
        {{- '[TOOL_RESULTS] {"content": ' + message.content | string + ', ' }}
        {{- '"call_id": "' + message.tool_call_id + '"}[/TOOL_RESULTS]' }}
    {%- endif %}
{%- endfor %}"""
    + END
)

LLAMA = (
    """{%- if tools is not none %}
    {{- 'Respond in the format {"name": function name, "parameters": dictionary}.\\n\\n' }}
    {%- for t in tools %}
        {{- t | tojson(indent=4) }}
        {{- '\\n\\n' }}
    {%- endfor %}
{%- endif %}
{%- for message in messages %}
    {%- if not (message.role == 'ipython' or message.role == 'tool' or 'tool_calls' in message) %}
        {{- message['role'] + ': ' + message['content'] | trim + '<|eot_id|>' }}
    {%- elif 'tool_calls' in message %}
        {%- if not message.tool_calls | length == 1 %}
            {{- raise_exception('This model only supports single tool-calls at once!') }}
        {%- endif %}
        {%- set tool_call = message.tool_calls[0].function %}
        {{- 'assistant: {"name": "' + tool_call.name + '", ' }}
        {{- '"parameters": ' + tool_call.arguments | tojson + '}<|eot_id|>' }}
    {%- else %}
        {{- 'ipython: ' + message.content | tojson + '<|eot_id|>' }}
    {%- endif %}
{%- endfor %}"""
    + END
)

SMOL = (
    """{%- if tools %}
    {%- for tool in tools %}
        {{- tool | string + '\\n' }}
    {%- endfor %}
{%- endif %}
{%- for message in messages %}
    {{- '<|im_start|>' + message.role + '\\n' }}
    {%- if message.tool_calls %}
        {{- 'assistant: <tool_call>[' }}
        {%- for call in message.tool_calls %}
            {{- call.function | tojson }}
        {%- endfor %}
        {{- ']</tool_call>' }}
    {%- else %}
        {{- message.content }}
    {%- endif %}
    {{- '<|im_end|>' }}
{%- endfor %}"""
    + END
)

FAMILIES = {
    "toy": ("hermes", CHAT_TEMPLATE, ()),
    "qwen": ("hermes", QWEN, ("<|im_start|>", "<|im_end|>")),
    "smol": ("hermes", SMOL, ("<|im_start|>", "<|im_end|>")),
    "mistral": ("mistral", MISTRAL, ("<s>", "</s>", "[INST]", "[/INST]", "[TOOL_CALLS]")),
    "llama": ("llama", LLAMA, ("<|eot_id|>", "<|python_tag|>")),
}
"""Format, template, special tokens."""
