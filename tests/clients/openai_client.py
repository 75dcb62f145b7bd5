"""Each feature of the server through the unmodified `openai` package of PyPI.

Usage: openai_client.py URL MODEL KEY
"""

import asyncio
import json
import sys

import openai

URL, MODEL, KEY = sys.argv[1:]
client = openai.OpenAI(base_url=URL + "/v1", api_key=KEY, max_retries=0, timeout=120)
MESSAGES = [{"role": "user", "content": "Name a colour."}]
WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather of a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"enum": ["Paris", "Rome"]}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}


def chat(**fields):
    fields = {"temperature": 0, "max_tokens": 16, "messages": MESSAGES, **fields}
    return client.chat.completions.create(model=MODEL, **fields)


def refused(kind, call):
    try:
        call()
    except kind as error:
        return error
    raise AssertionError(f"{kind.__name__} was not raised")


def models():
    assert [model.id for model in client.models.list()] == [MODEL]
    assert client.models.retrieve(MODEL).id == MODEL
    assert refused(openai.NotFoundError, lambda: client.models.retrieve("other")).code == "model_not_found"


def answers_and_streams():
    whole = chat()
    text = whole.choices[0].message.content
    assert text and whole.choices[0].finish_reason in ("stop", "length")
    assert whole.usage.completion_tokens <= 16
    streamed, usage = "", None
    for chunk in chat(stream=True, stream_options={"include_usage": True}):
        usage = chunk.usage or usage
        for choice in chunk.choices:
            streamed += choice.delta.content or ""
    assert streamed == text, (streamed, text)
    assert usage.total_tokens == whole.usage.total_tokens
    completion = client.completions.create(model=MODEL, prompt="Once upon a time", max_tokens=8, temperature=0, echo=True)
    assert completion.choices[0].text.startswith("Once upon a time")
    assert chat(max_tokens=openai.NOT_GIVEN, max_completion_tokens=3).usage.completion_tokens == 3


def seeds_biases_and_several():
    draw = lambda seed: chat(temperature=1.5, seed=seed).choices[0].message.content
    assert draw(1) == draw(1) and len({draw(seed) for seed in range(4)}) > 1
    several = chat(temperature=1.5, seed=1, n=3)
    assert [choice.index for choice in several.choices] == [0, 1, 2]
    assert several.choices[0].message.content == draw(1)
    token = client.post("../tokenize", body={"prompt": "A"}, cast_to=object)["tokens"][0]
    assert chat(logit_bias={str(token): 100}, max_tokens=4).choices[0].message.content == "AAAA"
    penalised = chat(top_p=0.9, frequency_penalty=0.5, presence_penalty=0.5, extra_body={"top_k": 20, "min_p": 0.05, "repetition_penalty": 1.1})
    assert penalised.choices[0].message.content


def stops():
    text = chat(max_tokens=24).choices[0].message.content
    cut = text[len(text) // 2 :][:4]
    stopped = chat(max_tokens=24, stop=[cut])
    assert stopped.choices[0].message.content == text[: text.index(cut)], (text, cut)
    assert stopped.choices[0].finish_reason == "stop"


def logprobs():
    choice = chat(logprobs=True, top_logprobs=3).choices[0]
    entries = choice.logprobs.content
    assert "".join(entry.token for entry in entries if entry.bytes) .startswith(choice.message.content[:4])
    assert all(len(entry.top_logprobs) == 3 and entry.logprob <= 0 for entry in entries)
    assert entries[0].top_logprobs[0].token == entries[0].token


def schemas():
    schema = {
        "type": "object",
        "properties": {"colour": {"enum": ["red", "green"]}, "shade": {"type": "integer", "minimum": 0, "maximum": 9}},
        "required": ["colour", "shade"],
        "additionalProperties": False,
    }
    form = {"type": "json_schema", "json_schema": {"name": "colour", "schema": schema, "strict": True}}
    for temperature in (0, 1.5):
        choice = chat(response_format=form, max_tokens=60, temperature=temperature).choices[0]
        value = json.loads(choice.message.content)
        assert value["colour"] in ("red", "green") and 0 <= value["shade"] <= 9 and len(value) == 2, value
        assert choice.finish_reason == "stop"
    form["json_schema"]["schema"] = {"type": "string", "pattern": "(?=no)("}
    assert refused(openai.BadRequestError, lambda: chat(response_format=form)).code == "invalid_grammar"


def tools():
    call = chat(tools=[WEATHER], tool_choice="required", max_tokens=60).choices[0]
    assert call.finish_reason == "tool_calls"
    function = call.message.tool_calls[0].function
    assert function.name == "weather" and json.loads(function.arguments)["city"] in ("Paris", "Rome")
    name, arguments = "", ""
    named = {"type": "function", "function": {"name": "weather"}}
    for chunk in chat(tools=[WEATHER], tool_choice=named, max_tokens=60, stream=True):
        for delta in chunk.choices[0].delta.tool_calls or []:
            name += delta.function.name or ""
            arguments += delta.function.arguments or ""
    assert (name, arguments) == (function.name, function.arguments)
    talk = MESSAGES + [
        {"role": "assistant", "tool_calls": [call.message.tool_calls[0].model_dump()]},
        {"role": "tool", "tool_call_id": call.message.tool_calls[0].id, "content": "sunny"},
    ]
    assert chat(messages=talk, tools=[WEATHER]).choices[0].finish_reason


def errors():
    error = refused(openai.BadRequestError, lambda: chat(temperature=-1))
    assert error.param == "temperature", error
    assert refused(openai.BadRequestError, lambda: chat(messages=[{"role": "x", "content": "y"}])).param == "messages[0].role"
    long = [{"role": "user", "content": "word " * 20000}]
    assert refused(openai.BadRequestError, lambda: chat(messages=long)).code == "context_length_exceeded"
    assert refused(openai.NotFoundError, lambda: client.chat.completions.create(model="x", messages=MESSAGES)).param == "model"
    stranger = openai.OpenAI(base_url=URL + "/v1", api_key="wrong", max_retries=0)
    refused(openai.AuthenticationError, lambda: stranger.models.list())
    image = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,"}}]}]
    assert refused(openai.BadRequestError, lambda: chat(messages=image)).code == "unsupported_parameter"
    assert "user" in chat(user="me", max_tokens=1).warnings[0]


async def asynchronous():
    async with openai.AsyncOpenAI(base_url=URL + "/v1", api_key=KEY, max_retries=0) as others:
        ask = lambda n: others.chat.completions.create(model=MODEL, messages=MESSAGES, max_tokens=n, temperature=0)
        answers = await asyncio.gather(*(ask(n) for n in (2, 4, 8)))
        texts = [answer.choices[0].message.content for answer in answers]
        assert texts[2].startswith(texts[1]) and texts[1].startswith(texts[0]), texts
        stream = await others.chat.completions.create(model=MODEL, messages=MESSAGES, max_tokens=400, stream=True)
        async for _ in stream:
            break
        await stream.close()


TESTS = [models, answers_and_streams, seeds_biases_and_several, stops, logprobs, schemas, tools, errors]
for test in TESTS:
    test()
    print(f"openai {openai.__version__} (Python): {test.__name__} ok", flush=True)
asyncio.run(asynchronous())
print(f"openai {openai.__version__} (Python): asynchronous ok")
