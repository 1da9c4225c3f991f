// What the reader may set. It stays in this browser (localStorage); the API key in this tab (sessionStorage).

const STORED = "poot.settings";
const KEY = "poot.key";
const NUMBERS = ["temperature", "top_p", "max_tokens", "seed"];

export class Settings {
  #dialog = document.getElementById("settings");
  #form = document.getElementById("settings-form");
  #error = document.getElementById("settings-error");
  #values;
  #onKey;

  // `onKey` is called when the dialog closes and the API key is another one.
  constructor(onKey) {
    this.#onKey = onKey;
    this.#values = load();
    this.#fill();
    this.#paint();
    this.#form.addEventListener("input", () => this.#take());
    this.#form.addEventListener("submit", (event) => {
      event.preventDefault();
      if (this.#take()) this.#dialog.close();
    });
    this.#dialog.addEventListener("close", () => this.#closed());
    document.getElementById("open-settings").addEventListener("click", () => this.open());
    document.getElementById("reset").addEventListener("click", () => {
      this.#values = {};
      this.#fill();
      this.#take();
    });
  }

  get key() {
    return read(sessionStorage, KEY) ?? "";
  }

  get system() {
    return this.#values.system ?? "";
  }

  // Fields of a request: those that are set.
  get request() {
    const set = NUMBERS.filter((name) => this.#values[name] !== undefined);
    return Object.fromEntries(set.map((name) => [name, this.#values[name]]));
  }

  // Opens the dialog, at a field.
  open(field = "system") {
    this.#before = this.key;
    this.#dialog.showModal();
    this.#form.elements[field].focus();
  }

  #before = "";

  #closed() {
    this.#fill(); // a field that was refused shows what counts again
    this.#take();
    if (this.key !== this.#before) this.#onKey();
  }

  // Stores what the form says, if it is right; whether it is.
  #take() {
    const wrong = [];
    for (const name of NUMBERS) {
      const field = this.#form.elements[name];
      const right = field.validity.valid;
      field.setAttribute("aria-invalid", String(!right));
      if (!right) wrong.push(`${field.labels[0].textContent}: ${field.validationMessage}`);
      else if (field.value === "") delete this.#values[name];
      else this.#values[name] = field.valueAsNumber;
    }
    this.#values.system = this.#form.elements.system.value;
    this.#values.theme = this.#form.elements.theme.value;
    write(localStorage, STORED, JSON.stringify(this.#values));
    write(sessionStorage, KEY, this.#form.elements.key.value.trim());
    this.#error.textContent = wrong.join("\n");
    this.#error.hidden = wrong.length === 0;
    this.#paint();
    return wrong.length === 0;
  }

  #fill() {
    for (const name of NUMBERS) this.#form.elements[name].value = this.#values[name] ?? "";
    this.#form.elements.system.value = this.system;
    this.#form.elements.theme.value = this.#values.theme ?? "system";
    this.#form.elements.key.value = this.key;
  }

  #paint() {
    const theme = this.#values.theme ?? "system";
    if (theme === "system") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = theme;
  }
}

// What was stored, as far as it is what this page would have stored.
function load() {
  let stored;
  try {
    stored = JSON.parse(read(localStorage, STORED)) ?? {};
  } catch {
    return {};
  }
  const values = {};
  for (const name of NUMBERS) if (Number.isFinite(stored[name])) values[name] = stored[name];
  if (typeof stored.system === "string") values.system = stored.system;
  if (["system", "light", "dark"].includes(stored.theme)) values.theme = stored.theme;
  return values;
}

// A browser may refuse storage, by its settings or for want of room: the page works without.
function read(storage, name) {
  try {
    return storage.getItem(name);
  } catch {
    return null;
  }
}

function write(storage, name, text) {
  try {
    if (text) storage.setItem(name, text);
    else storage.removeItem(name);
  } catch {
    // Nothing is kept then.
  }
}
