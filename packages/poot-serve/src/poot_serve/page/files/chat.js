// The page: reads what is typed, streams answers, keeps the conversation.
import { ApiError, answer, models, readiness } from "./api.js";
import { Settings } from "./settings.js";
import { Speech } from "./speech.js";
import { AnswerTurn, UserTurn, clear } from "./turns.js";

const POLL_MILLISECONDS = 3000;
const SETTLED_MILLISECONDS = 500; // after the first piece, until a rate says something

const form = document.getElementById("composer");
const message = document.getElementById("message");
const send = document.getElementById("send");
const stop = document.getElementById("stop");
const model = document.getElementById("model");
const state = document.getElementById("state");

let conversation = [];
let running = null; // what aborts the answer that is being written

const settings = new Settings(connect);

// The conversation as a request has it. Answers that failed with nothing said are left out, and what the reader wrote
// before and after them becomes one message: templates want the roles to alternate.
function messages() {
  const said = settings.system.trim() ? [{ role: "system", content: settings.system }] : [];
  for (const { role, content } of conversation) {
    if (!content) continue;
    const last = said.at(-1);
    if (role === "user" && last?.role === "user") last.content += `\n\n${content}`;
    else said.push({ role, content });
  }
  return said;
}

async function write() {
  const request = { messages: messages(), ...settings.request };
  for (const earlier of conversation) earlier.settle?.();
  const turn = new AnswerTurn();
  conversation.push(turn);
  const speech = new Speech();
  const clock = new Clock();
  const abort = new AbortController();
  running = abort;
  busy(true);
  let note;
  let failure = null;
  try {
    // Who types as soon as the page is there may be ahead of the list.
    if (!model.value) await list(abort.signal);
    for await (const piece of answer({ model: model.value, ...request }, settings.key, abort.signal)) {
      if (piece.text) {
        clock.piece();
        turn.write(piece.text, clock.meanwhile());
        speech.hear(turn.content);
      } else {
        note = clock.end(piece.usage, piece.finish);
      }
    }
  } catch (error) {
    if (error.name === "AbortError") {
      note = clock.end(null, "stopped");
    } else if (error instanceof ApiError) {
      failure = error;
      note = clock.end(null, "failed");
    } else {
      throw error;
    }
  } finally {
    running = null;
    busy(false);
  }
  // A conversation that was cleared meanwhile has no room for the end of its answer.
  if (conversation.at(-1) !== turn) return;
  turn.finish(note, failure?.message, again);
  speech.finish(turn.content, failure ? "" : note); // an error is an alert of its own
  if (failure?.status === 401) settings.open("key");
  else message.focus();
}

function again() {
  if (running) return;
  conversation.pop().item.remove();
  write();
}

function busy(on) {
  send.hidden = on;
  stop.hidden = !on;
  if (on) message.focus();
}

// Times of an answer: until the first piece, and tokens a second after it.
class Clock {
  #start = performance.now();
  #first = null;
  #last = null;
  #pieces = 0;

  piece() {
    this.#last = performance.now();
    this.#first ??= this.#last;
    this.#pieces += 1;
  }

  #rate(tokens) {
    const seconds = (this.#last - this.#first) / 1000;
    return seconds > 0 && tokens > 1 ? ((tokens - 1) / seconds).toFixed(1) : null;
  }

  meanwhile() {
    if (this.#last - this.#first < SETTLED_MILLISECONDS) return "";
    const rate = this.#rate(this.#pieces);
    return rate ? `about ${rate} tokens/s` : "";
  }

  // `usage` has the server's count of tokens; without it pieces are counted, and the number is about.
  end(usage, finish) {
    const parts = [];
    const tokens = usage?.completion_tokens ?? this.#pieces;
    const about = usage ? "" : "about ";
    if (tokens) parts.push(`${about}${tokens} ${tokens === 1 ? "token" : "tokens"}`);
    const rate = this.#rate(tokens);
    if (rate) parts.push(`${about}${rate} tokens/s`);
    if (this.#first !== null) parts.push(`first after ${((this.#first - this.#start) / 1000).toFixed(2)} s`);
    if (finish === "length") parts.push("cut off at the most tokens");
    else if (finish !== "stop" && finish !== null) parts.push(finish.replace("_", " "));
    return parts.join(" · ");
  }
}

function submit() {
  const content = message.value.trim();
  if (!content || running) return;
  message.value = "";
  fit();
  conversation.push(new UserTurn(content));
  write();
}

function fit() {
  message.style.height = "auto";
  message.style.height = `${message.scrollHeight + 2}px`;
}

function halt() {
  running?.abort();
}

function startOver() {
  conversation = [];
  halt();
  clear();
  message.focus();
}

form.addEventListener("submit", (event) => {
  event.preventDefault();
  submit();
});
message.addEventListener("input", fit);
message.addEventListener("keydown", (event) => {
  // While a word is being composed (Japanese, say), Enter ends the composition.
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    submit();
  }
});
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape" && !document.querySelector("dialog[open]")) halt();
});
stop.addEventListener("click", halt);
document.getElementById("new").addEventListener("click", startOver);

function say(text, bad) {
  if (state.textContent !== text) state.textContent = text;
  state.classList.toggle("bad", bad);
}

let connecting = 0; // which attempt is the latest

// Waits until the server is ready, then lists its models.
async function connect() {
  const attempt = ++connecting;
  for (;;) {
    let ready = false;
    try {
      const found = await readiness();
      if (found.ready) await list();
      say(found.text, !found.ready);
      ready = found.ready;
    } catch (error) {
      say(error.message, true);
      if (error.status === 401 || error.status === 403) return; // a key is wanted: another one connects again
    }
    if (ready || attempt !== connecting) return;
    await new Promise((resolve) => setTimeout(resolve, POLL_MILLISECONDS));
    if (attempt !== connecting) return;
  }
}

async function list(signal) {
  const names = await models(settings.key, signal);
  const chosen = model.value;
  model.replaceChildren(...names.map((name) => new Option(name, name, false, name === chosen)));
  model.disabled = names.length < 2;
}

connect();
