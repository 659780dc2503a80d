// The page's own script under node, with as much of a document as it touches: node page_harness.mjs PAGE URL JSON
// JSON: {prompt, limit, stop_after: characters after which Stop is pressed, or null}. Prints what a user would have seen.
import { readFileSync } from "node:fs";

const [page, url, told] = process.argv.slice(2);
const { prompt, limit, stop_after: stopAfter } = JSON.parse(told);

class Element {
  constructor(kind) {
    Object.assign(this, { kind, children: [], listeners: {}, style: {}, className: "", value: "", checked: true, title: "" });
    Object.assign(this, { scrollHeight: 0, scrollTop: 0, clientHeight: 0, classList: { toggle() {} } });
  }
  get textContent() { return this.children.map((child) => child.textContent ?? child).join(""); }
  set textContent(text) { this.children = text === "" ? [] : [String(text)]; }
  append(...children) { this.children.push(...children); }
  appendChild(child) { this.children.push(child); return child; }
  replaceChildren(...children) { this.children = children; }
  querySelector() { return null; }
  addEventListener(name, act) { this.listeners[name] = act; }
  focus() {}
  all() { return [this, ...this.children.flatMap((child) => child.all?.() ?? [])]; }
}

const named = new Map(), requests = [], fetched = globalThis.fetch;
const element = (id) => named.get(id) ?? named.set(id, new Element(id)).get(id);
globalThis.document = { getElementById: element, createElement: (kind) => new Element(kind), body: new Element("body") };
globalThis.window = { prompt: () => null };
globalThis.fetch = (path, options = {}) => {
  requests.push(`${options.method ?? "GET"} ${path.replace(/[0-9a-f]{32}/, "ID")}`);
  return fetched(`${url}/${path}`, options);
};
element("temperature").value = "0";
element("limit").value = String(limit);
element("send").textContent = "Send";
new Function(readFileSync(page, "utf8").match(/<script>([\s\S]*)<\/script>/)[1])();

const wait = (ms) => new Promise((wake) => setTimeout(wake, ms));
const submit = () => element("form").listeners.submit({ preventDefault() {} });
const shown = (name) => element("talk").all().filter((one) => one.className === name).map((one) => one.textContent).at(-1);
await wait(50); // the model's name
element("prompt").value = prompt;
submit();
const said = new Set();
let pressed = false;
while (element("send").textContent !== "Send") {
  said.add(shown("figures"));
  if (stopAfter !== null && !pressed && shown("text").length >= stopAfter) {
    pressed = true;
    submit();
  }
  await wait(5);
}
await wait(300); // for what Stop has sent
console.log(JSON.stringify({ text: shown("text"), figures: shown("figures"), said: [...said], requests }));
