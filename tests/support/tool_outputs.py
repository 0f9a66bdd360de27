"""What models of each family write when they have tools, in the form in which they write it."""

from __future__ import annotations

from dataclasses import dataclass

from meshnet.session.tools.parts import ToolCall, Tools

TOOLS: Tools = {
    "weather": {
        "type": "object",
        "properties": {
            "city": {"type": "string"},
            "days": {"type": "integer"},
            "where": {"type": "object"},
            "note": {"type": ["string", "null"]},
        },
    },
    "now": {"type": "object", "properties": {}},
}

TEMPLATES = {
    "hermes": '{{ tools }}<tool_call>{"name": <name>, "arguments": <args>}</tool_call>',
    "qwen3": '{{ tools }}<tool_call>{"name": <name>, "arguments": <args>}<think></think>',
    "qwen-xml": "{{ tools }}<tool_call><function=f><parameter=p></tool_call>",
    "llama": "{{ tools }}<|python_tag|>",
    "mistral": "{{ tools }}[TOOL_CALLS]",
    "deepseek": "{{ tools }}<｜tool▁call▁begin｜><think></think>",  # noqa: RUF001
}
"""Chat templates, as far as the family is told by them."""


@dataclass(frozen=True, slots=True)
class Output:
    """One output and what is in it."""

    family: str
    written: str
    text: str = ""
    calls: tuple[ToolCall, ...] = ()
    reasoning: str = ""
    thinking: bool = False
    """Whether the prompt has begun the reasoning."""


def weather(arguments: str = '{"city": "Oslo"}') -> ToolCall:
    return ToolCall("weather", arguments)


NOW = ToolCall("now", "{}")
D_CALL, D_SEP, D_END = "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"  # noqa: RUF001
D_CALLS, D_CALLS_END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"  # noqa: RUF001


def hermes(body: str) -> str:
    return f"<tool_call>\n{body}\n</tool_call>"


OSLO = '{"name": "weather", "arguments": {"city": "Oslo"}}'
LLAMA_OSLO = '{"name": "weather", "parameters": {"city": "Oslo"}}'
TRICKY = '{"city": "a</tool_call>\\"}{ [TOOL_CALLS]", "where": {"x": [1, {"y": "}"}]}}'
XML_OSLO = "<function=weather>\n<parameter=city>\nOslo\n</parameter>\n</function>"
DS_OSLO = f'{D_CALL}function{D_SEP}weather\n```json\n{{"city": "Oslo"}}\n```{D_END}'

OUTPUTS = (
    # Hermes, Qwen 2.5
    Output(
        "hermes", "No tool is needed: <b>hi</b> & a < b.", "No tool is needed: <b>hi</b> & a < b."
    ),
    Output("hermes", hermes(OSLO), calls=(weather(),)),
    Output("hermes", f"<tool_call>{OSLO}</tool_call>", calls=(weather(),)),
    Output("hermes", f"Let me look.\n\n{hermes(OSLO)}", "Let me look.", (weather(),)),
    Output(
        "hermes",
        hermes(OSLO) + "\n" + hermes('{"name": "now", "arguments": {}}'),
        calls=(weather(), NOW),
    ),
    Output(
        "hermes",
        hermes(f'{{"name": "weather", "arguments": {TRICKY}}}'),
        calls=(weather(TRICKY),),
    ),
    Output("hermes", hermes('{"arguments": {}, "name": "now"}'), calls=(NOW,)),
    Output("hermes", f"<tool_call>\n{OSLO}", calls=(weather(),)),
    Output("hermes", f"{hermes(OSLO)} Done.", "Done.", (weather(),)),
    Output("hermes", hermes('{"name": "weather"'), hermes('{"name": "weather"')),
    Output("hermes", hermes("not JSON"), hermes("not JSON")),
    Output("hermes", hermes('{"name": 5}'), hermes('{"name": 5}')),
    Output(
        "hermes",
        hermes('{"name": "f", "arguments": {"a": NaN}}'),
        hermes('{"name": "f", "arguments": {"a": NaN}}'),
    ),
    Output("hermes", f"<tool_call> what? {hermes(OSLO)}", "<tool_call> what?", (weather(),)),
    Output("hermes", f"<tool_<tool_call>{OSLO}</tool_call>", "<tool_", (weather(),)),
    Output("hermes", "A stray </tool_call> stays.", "A stray </tool_call> stays."),
    Output(
        "hermes",
        hermes('{"name": "weather", "arguments": {"city": "Tromsø 🌨"}}'),
        calls=(weather('{"city": "Tromsø 🌨"}'),),
    ),
    # Qwen 3, QwQ
    Output("qwen3", f"<think>\nHm.\n</think>\n\n{hermes(OSLO)}", "", (weather(),), "Hm."),
    Output("qwen3", "<think>\n\n</think>\n\nHello.", "Hello."),
    Output("qwen3", "Hm, <tool_call>?\n</think>\n\nHello.", "Hello.", (), "Hm, <tool_call>?", True),
    Output("qwen3", "Cut off in thou", "", (), "Cut off in thou", True),
    Output("qwen3", "It says <think> here.", "It says <think> here."),
    # Qwen3-Coder
    Output("qwen-xml", f"<tool_call>\n{XML_OSLO}\n</tool_call>", calls=(weather(),)),
    Output("qwen-xml", f"I look.\n{XML_OSLO}", "I look.", (weather(),)),
    Output(
        "qwen-xml",
        "<tool_call>\n<function=weather>\n<parameter=city>\n5\nlines\n</parameter>\n"
        '<parameter=days>\n3\n</parameter>\n<parameter=where>\n{"x": [1]}\n</parameter>\n'
        "<parameter=note>\nnull\n</parameter>\n</function>\n</tool_call>",
        calls=(weather('{"city": "5\\nlines", "days": 3, "where": {"x": [1]}, "note": null}'),),
    ),
    Output("qwen-xml", "<tool_call>\n<function=now>\n</function>\n</tool_call>", calls=(NOW,)),
    Output("qwen-xml", "<function=now>nothing", "<function=now>nothing"),
    Output("qwen-xml", hermes(OSLO), calls=(weather(),)),
    # Llama 3
    Output("llama", LLAMA_OSLO, calls=(weather(),)),
    Output("llama", f"\n\n{LLAMA_OSLO}\n", calls=(weather(),)),
    Output("llama", f"<|python_tag|>{LLAMA_OSLO}", calls=(weather(),)),
    Output(
        "llama",
        f'<|python_tag|>{LLAMA_OSLO}; {{"name": "now", "parameters": {{}}}}',
        calls=(weather(), NOW),
    ),
    Output("llama", f"{LLAMA_OSLO}\n{LLAMA_OSLO}", calls=(weather(), weather())),
    Output("llama", f"{LLAMA_OSLO}; so", "; so", (weather(),)),
    Output("llama", '{"type": "function", ' + LLAMA_OSLO[1:], calls=(weather(),)),
    Output("llama", '{"city": "Oslo"} is JSON.', '{"city": "Oslo"} is JSON.'),
    Output("llama", '{"name": "Ada", "arguments": {}}', '{"name": "Ada", "arguments": {}}'),
    Output("llama", '{"name": "now"}', '{"name": "now"}'),
    Output("llama", '{"name": ["now"], "parameters": {}}', '{"name": ["now"], "parameters": {}}'),
    Output("llama", f"Say {LLAMA_OSLO}", f"Say {LLAMA_OSLO}"),
    Output("llama", "<|python_tag|>print(1)", "<|python_tag|>print(1)"),
    # Mistral
    Output("mistral", f"[TOOL_CALLS][{OSLO}]", calls=(weather(),)),
    Output(
        "mistral",
        f'[TOOL_CALLS] [{OSLO}, {{"name": "now", "arguments": {{}}, "id": "123456789"}}]',
        calls=(weather(), NOW),
    ),
    Output("mistral", 'Wait.[TOOL_CALLS]weather[ARGS]{"city": "Oslo"}', "Wait.", (weather(),)),
    Output(
        "mistral",
        '[TOOL_CALLS]weather[CALL_ID]abc[ARGS]{"city": "Oslo"}[TOOL_CALLS]now[ARGS]{}',
        calls=(weather(), NOW),
    ),
    Output("mistral", "x[TOOL_CALLS]now{}", "x", (NOW,)),
    Output("mistral", "[TOOL_CALLS][]", "[TOOL_CALLS][]"),
    Output("mistral", f"[TOOL_CALLS][{OSLO}, oops]", ", oops]", (weather(),)),
    Output("mistral", "A list [1, 2] and [TOOL", "A list [1, 2] and [TOOL"),
    # DeepSeek
    Output("deepseek", f"{D_CALLS}{DS_OSLO}{D_CALLS_END}", calls=(weather(),)),
    Output(
        "deepseek",
        f"Hm.</think>I look.{D_CALLS}{DS_OSLO}\n{DS_OSLO}{D_CALLS_END}",
        "I look.",
        (weather(), weather()),
        "Hm.",
        thinking=True,
    ),
    Output(
        "deepseek",
        f'{D_CALLS}{D_CALL}weather{D_SEP}{{"city": "Oslo"}}{D_END}'
        f"{D_CALL}now{D_SEP}{{}}{D_END}{D_CALLS_END}",
        calls=(weather(), NOW),
    ),
    Output("deepseek", f"{D_CALLS}{DS_OSLO[:-30]}", f"{D_CALLS}{DS_OSLO[:-30]}"),
    Output("deepseek", f"{D_CALLS}none", f"{D_CALLS}none"),
)
