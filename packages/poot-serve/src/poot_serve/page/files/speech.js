// What a screen reader hears of an answer: whole sentences as they are complete, not pieces of words.

const spoken = document.getElementById("spoken");
const END = /[.!?。！？:](?=\s)|\n/g;

export class Speech {
  #said = 0;

  constructor() {
    spoken.replaceChildren();
  }

  // `text` is the answer so far.
  hear(text) {
    let end = this.#said;
    END.lastIndex = this.#said;
    for (let match = END.exec(text); match; match = END.exec(text)) end = match.index + 1;
    this.#say(text.slice(this.#said, end));
    this.#said = end;
  }

  // The rest of the answer, and how it ended.
  finish(text, note) {
    this.#say(text.slice(this.#said));
    this.#said = text.length;
    this.#say(note);
  }

  #say(text) {
    if (!text.trim()) return;
    const line = document.createElement("p");
    line.textContent = text.trim();
    spoken.append(line);
  }
}
