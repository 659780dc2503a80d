"""Fields that are not honoured, each with the values that ask for nothing: those pass, any other value is refused.

Clients send such values without being asked (`store: false`, `functions: []`); null always asks for nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from adasd.core.errors import InvalidRequest

Neutral = tuple[object, ...]

REQUEST_FIELDS: Mapping[str, Neutral] = {
    # OpenAI
    "audio": (),
    "function_call": ("none", "auto"),
    "functions": ([],),
    "metadata": ({},),
    "modalities": (["text"],),
    "moderation": (),
    "prediction": (),
    "prompt_cache_options": (),
    "prompt_cache_retention": (),
    "reasoning_effort": ("none",),
    "service_tier": ("auto", "default"),
    "store": (False,),
    "verbosity": ("medium",),
    "web_search_options": (),
    # Sent by clients of other servers
    "add_generation_prompt": (True,),
    "best_of": (1,),
    "chat_template": (),
    "chat_template_kwargs": ({},),
    "continue_final_message": (False,),
    "documents": ([],),
    "echo": (False,),
    "include_stop_str_in_output": (False,),
    "length_penalty": (1,),
    "skip_special_tokens": (True,),
    "spaces_between_special_tokens": (True,),
    "stop_token_ids": ([],),
    "typical_p": (1,),
    "use_beam_search": (False,),
}

_OF_CHATS = {
    "add_generation_prompt", "audio", "chat_template", "chat_template_kwargs", "continue_final_message", "documents",
    "echo", "function_call", "functions", "modalities", "moderation", "prediction",
    "reasoning_effort", "verbosity", "web_search_options",
}  # fmt: skip

COMPLETIONS_FIELDS: Mapping[str, Neutral] = {
    **{name: values for name, values in REQUEST_FIELDS.items() if name not in _OF_CHATS},
    "add_special_tokens": (False,),
    "response_format": ({"type": "text"},),
    "suffix": ("",),
}

MESSAGE_FIELDS: Mapping[str, Neutral] = {
    "annotations": ([],),
    "audio": (),
    "function_call": (),
    "reasoning_content": ("",),
    "refusal": (),
}

TOKENIZE_FIELDS: Mapping[str, Neutral] = {
    "add_generation_prompt": (True,),
    "add_special_tokens": (False,),
    "chat_template": (),
    "chat_template_kwargs": ({},),
    "continue_final_message": (False,),
    "mm_processor_kwargs": ({},),
    "return_token_strs": (False,),
}

STREAM_FIELDS: Mapping[str, Neutral] = {"include_obfuscation": (False,)}

STRUCTURED_FIELDS: Mapping[str, Neutral] = {
    "disable_additional_properties": (False,),
    "disable_any_whitespace": (True,),
    "disable_fallback": (True,),
    "structural_tag": (),
    "whitespace_pattern": (),
}

REQUIRED = {"model", "messages", "prompt", "role", "content"}


def without_neutral(
    given: Mapping[str, Any], honoured: Collection[str], fields: Mapping[str, Neutral], path: str = ""
) -> dict[str, Any]:
    """The honoured fields that ask for something. Raises InvalidRequest for any other field that does.

    fields: known ones that are not honoured, with their neutral values. path: prefix of the names in messages.
    """
    for name, value in given.items():
        if name not in honoured:
            _refuse_unless_neutral(f"{path}{name}", value, fields.get(name))
    return {
        name: value for name, value in given.items() if name in honoured and (value is not None or name in REQUIRED)
    }


def _refuse_unless_neutral(name: str, value: object, neutral: Neutral | None) -> None:
    if neutral is None:
        raise InvalidRequest(f"unknown parameter: {name}", name)
    if value is not None and not any(_same(value, allowed) for allowed in neutral):
        accepted = " or ".join(map(repr, neutral)) or "null"
        raise InvalidRequest(f"{name} is not supported; leave it out, or send {accepted}", name)


def _same(value: object, allowed: object) -> bool:
    """Equal as JSON: 1 and 1.0 are one number, true is none."""
    return value == allowed and isinstance(value, bool) == isinstance(allowed, bool)
