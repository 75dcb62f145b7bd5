// Each feature of the server through the unmodified `openai` package of npm.
//
// Usage: node openai_client.mjs URL MODEL KEY, in a folder with node_modules

import assert from "node:assert/strict";
import OpenAI from "openai";

const [url, model, apiKey] = process.argv.slice(2);
const client = new OpenAI({ baseURL: `${url}/v1`, apiKey, maxRetries: 0 });
const messages = [{ role: "user", content: "Name a colour." }];
const chat = (fields = {}) => client.chat.completions.create({ model, messages, temperature: 0, max_tokens: 16, ...fields });
const weather = {
  type: "function",
  function: {
    name: "weather",
    parameters: { type: "object", properties: { city: { enum: ["Paris", "Rome"] } }, required: ["city"], additionalProperties: false },
  },
};

const tests = {
  async models() {
    const ids = [];
    for await (const one of client.models.list()) ids.push(one.id);
    assert.deepEqual(ids, [model]);
  },
  async answersAndStreams() {
    const whole = await chat();
    let text = "";
    let usage = null;
    for await (const chunk of await chat({ stream: true, stream_options: { include_usage: true } })) {
      text += chunk.choices[0]?.delta?.content ?? "";
      usage = chunk.usage ?? usage;
    }
    assert.equal(text, whole.choices[0].message.content);
    assert.equal(usage.total_tokens, whole.usage.total_tokens);
  },
  async seedStopAndLogprobs() {
    const drawn = await Promise.all([1, 1].map((seed) => chat({ seed, temperature: 1.5 })));
    assert.equal(drawn[0].choices[0].message.content, drawn[1].choices[0].message.content);
    const text = (await chat()).choices[0].message.content;
    const cut = text.slice(4, 7);
    const stopped = await chat({ stop: cut });
    assert.equal(stopped.choices[0].message.content, text.slice(0, text.indexOf(cut)));
    const listed = await chat({ logprobs: true, top_logprobs: 2 });
    assert.equal(listed.choices[0].logprobs.content[0].top_logprobs.length, 2);
  },
  async schema() {
    const schema = { type: "object", properties: { ok: { type: "boolean" } }, required: ["ok"], additionalProperties: false };
    const answer = await chat({ response_format: { type: "json_schema", json_schema: { name: "x", schema } }, max_tokens: 40 });
    assert.equal(typeof JSON.parse(answer.choices[0].message.content).ok, "boolean");
  },
  async tools() {
    const stream = client.chat.completions.stream({ model, messages, tools: [weather], tool_choice: "required", temperature: 0, max_tokens: 60 });
    const answer = await stream.finalChatCompletion();
    const call = answer.choices[0].message.tool_calls[0].function;
    assert.equal(call.name, "weather");
    assert.ok(["Paris", "Rome"].includes(JSON.parse(call.arguments).city));
  },
  async errors() {
    await assert.rejects(chat({ top_p: 2 }), (error) => error instanceof OpenAI.BadRequestError && error.param === "top_p");
    await assert.rejects(chat({ model: "x" }), (error) => error instanceof OpenAI.NotFoundError);
    const stranger = new OpenAI({ baseURL: `${url}/v1`, apiKey: "wrong", maxRetries: 0 });
    await assert.rejects(stranger.models.list(), (error) => error instanceof OpenAI.AuthenticationError);
  },
  async abort() {
    const stream = await chat({ stream: true, max_tokens: 400 });
    for await (const _ of stream) break;
  },
};

for (const [name, test] of Object.entries(tests)) {
  await test();
  console.log(`openai (npm): ${name} ok`);
}
