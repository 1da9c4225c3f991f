// The conversation as it is shown: a list item a turn.
import { Markdown } from "./markdown.js";

const turns = document.getElementById("turns");
const main = document.querySelector("main");
const empty = document.getElementById("empty");
const NEAR = 60; // pixels from the end within which the view follows new text

function follow(change) {
  const near = main.scrollHeight - main.scrollTop - main.clientHeight < NEAR;
  change();
  if (near) main.scrollTop = main.scrollHeight;
}

function add(kind, name) {
  const item = document.createElement("li");
  const turn = document.createElement("article");
  turn.className = `turn ${kind}`;
  turn.setAttribute("aria-label", name);
  const text = document.createElement("div");
  text.className = "text";
  turn.append(text);
  item.append(turn);
  turns.append(item);
  empty.hidden = true;
  main.scrollTop = main.scrollHeight;
  return { item, turn, text };
}

export function clear() {
  turns.replaceChildren();
  empty.hidden = false;
}

// What the reader wrote, as it was written.
export class UserTurn {
  role = "user";

  constructor(content) {
    this.content = content;
    const { item, text } = add("user", "You");
    this.item = item;
    text.textContent = content;
  }
}

// An answer that is being written, then how it ended.
export class AnswerTurn {
  role = "assistant";
  content = "";
  #turn;
  #markdown;
  #foot;
  #frame = 0;

  constructor() {
    const { item, turn, text } = add("assistant", "Answer");
    this.item = item;
    this.#turn = turn;
    this.#markdown = new Markdown(text);
    this.#foot = document.createElement("div");
    this.#foot.className = "foot";
    turn.append(this.#foot);
    turn.classList.add("writing");
    turn.setAttribute("aria-busy", "true");
  }

  // Adds text; it is drawn once a frame, however many pieces come. `note` is what the foot says meanwhile.
  write(text, note) {
    this.content += text;
    this.note = note;
    this.#frame ||= requestAnimationFrame(() => this.#draw());
  }

  #draw() {
    cancelAnimationFrame(this.#frame);
    this.#frame = 0;
    follow(() => {
      this.#markdown.update(this.content);
      this.#foot.textContent = this.note ?? "";
    });
  }

  // The answer is over: `note` says how, `error` what went wrong, `again` makes another one.
  finish(note, error, again) {
    this.note = note;
    this.#draw();
    this.#turn.classList.remove("writing");
    this.#turn.removeAttribute("aria-busy");
    follow(() => {
      if (error) {
        const box = document.createElement("p");
        box.className = "error";
        box.setAttribute("role", "alert");
        box.textContent = error;
        this.#foot.before(box);
      }
      const said = document.createElement("span");
      said.textContent = note;
      this.#foot.replaceChildren(said);
      if (navigator.clipboard && this.content) {
        this.#foot.append(button("Copy", () => navigator.clipboard.writeText(this.content)));
      }
      this.again = button(error ? "Try again" : "Regenerate", again);
      this.#foot.append(this.again);
    });
  }

  // Only the last answer can be made again.
  settle() {
    this.again?.remove();
  }
}

function button(text, act) {
  const made = document.createElement("button");
  made.type = "button";
  made.textContent = text;
  made.addEventListener("click", act);
  return made;
}
