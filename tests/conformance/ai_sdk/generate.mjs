// Runs every scenario with the unmodified AI SDK and prints what came of it as one JSON object.
// Arguments: base URL, key, model.
import { createOpenAI } from '@ai-sdk/openai';
import { createOpenAICompatible } from '@ai-sdk/openai-compatible';
import { generateText, streamText } from 'ai';

const [baseURL, apiKey, name] = process.argv.slice(2);
const compatible = createOpenAICompatible({ name: 'adasd', baseURL, apiKey, includeUsage: true });
const openai = createOpenAI({ baseURL, apiKey });
const models = {
  compatible: compatible.chatModel(name),
  compatibleText: compatible.completionModel(name),
  openai: openai.chat(name),
  openaiText: openai.completion(name),
};
const noEnd = { 0: -100 }; // id 0 would end the text
const providerOptions = { adasd: { logit_bias: noEnd }, openai: { logitBias: noEnd } };
const common = { temperature: 1, seed: 2, maxRetries: 0, providerOptions };

async function generated(model, options) {
  const { text, finishReason, usage, warnings } = await generateText({ model, ...common, ...options });
  return { text, finishReason, usage, warnings: warnings ?? [] };
}

async function streamed(model, options) {
  const errors = [];
  const onError = ({ error }) => errors.push(String(error));
  const result = streamText({ model, ...common, ...options, onError });
  const deltas = [];
  for await (const part of result.fullStream) {
    if (part.type === 'text-delta') deltas.push(part.text);
    if (part.type === 'error') errors.push(String(part.error));
  }
  return { text: deltas.join(''), deltas: deltas.length, finishReason: await result.finishReason, usage: await result.usage, errors };
}

async function refused(model, options) {
  try {
    await generateText({ model, ...common, ...options });
    return null;
  } catch (error) {
    const { name, statusCode, isRetryable, message } = error;
    return { name, statusCode, isRetryable, message };
  }
}

async function aborted(model, options) {
  const controller = new AbortController();
  const { fullStream } = streamText({ model, ...common, ...options, abortSignal: controller.signal, onError() {} });
  const kinds = [];
  for await (const part of fullStream) {
    kinds.push(part.type);
    if (part.type === 'text-delta') controller.abort();
  }
  return { kinds };
}

const conversation = [
  { role: 'system', content: 'Be brief.' },
  { role: 'user', content: [{ type: 'text', text: 'hello' }] },
  { role: 'assistant', content: [{ type: 'text', text: 'hi' }] },
  { role: 'user', content: 'and now?' },
];
const results = {};
for (const [kind, model] of Object.entries(models)) {
  const asked = { prompt: 'hello there', maxOutputTokens: 12 };
  const sampling = { prompt: 'hello', maxOutputTokens: 8, temperature: 0.7, topP: 0.9, presencePenalty: 0.5, frequencyPenalty: 0.5 };
  results[kind] = {
    plain: await generated(model, { prompt: 'hello', maxOutputTokens: 4 }),
    generated: await generated(model, asked),
    streamed: await streamed(model, asked),
    stopped: await generated(model, { prompt: 'hello there', stopSequences: ['a', 'e', 'o'] }),
    sampled: await generated(model, sampling),
    refused: await refused(model, { ...asked, temperature: 9 }),
    aborted: await aborted(model, { prompt: 'hello there', temperature: 1, maxOutputTokens: 500 }),
  };
}
results.compatible.conversation = await generated(models.compatible, { messages: conversation, maxOutputTokens: 8 });
results.openai.conversation = await generated(models.openai, { messages: conversation, maxOutputTokens: 8 });
results.unknown = await refused(compatible.chatModel('gpt-5'), { prompt: 'x' });
console.log(JSON.stringify(results));
